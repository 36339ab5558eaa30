"""Draw the badges of the README from `pyproject.toml`. Usage: `python docs/badges.py`."""

import tomllib
from html import escape
from pathlib import Path

import wmr_cli

ROOT = Path(__file__).parents[1]
CHARACTER_WIDTH = 6.6  # pixels, at a font size of 11
PADDING = 12  # pixels
FOLDER = ROOT / "docs" / "images" / "badges"
BADGE = """<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="20"
 role="img" aria-label="{label}: {value}">
<title>{label}: {value}</title>
<clipPath id="c"><rect width="{width}" height="20" rx="3"/></clipPath>
<g clip-path="url(#c)">
<rect width="{width}" height="20" fill="#555"/>
<rect x="{left}" width="{right}" height="20" fill="#00695c"/>
</g>
<g fill="#fff" text-anchor="middle" font-family="Verdana,DejaVu Sans,sans-serif" font-size="11">
<text x="{label_at}" y="14" textLength="{label_width}">{label}</text>
<text x="{value_at}" y="14" textLength="{value_width}">{value}</text>
</g>
</svg>
"""


def read_facts() -> dict[str, str]:
    """Return the label and value of each badge, from the settings of the project."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    project = settings["project"]
    (torch,) = (
        text.removeprefix("torch") for text in project["dependencies"] if text.startswith("torch>")
    )
    return {
        "version": wmr_cli.__version__,
        "python": project["requires-python"],
        "torch": torch,
        "types": "mypy --strict" if settings["tool"]["mypy"]["strict"] else "mypy",
        "licence": project["license"],
    }


def draw_badge(label: str, value: str) -> str:
    """Return a badge as SVG."""
    # `textLength` stretches the text to these widths, whatever font the browser has
    label_width = round(CHARACTER_WIDTH * len(label))
    value_width = round(CHARACTER_WIDTH * len(value))
    left = label_width + PADDING
    right = value_width + PADDING
    return BADGE.format(
        label=escape(label),
        value=escape(value),
        width=left + right,
        left=left,
        right=right,
        label_at=left / 2,
        value_at=left + right / 2,
        label_width=label_width,
        value_width=value_width,
    )


def draw_badges() -> dict[Path, str]:
    """Return all badges as SVG, by file."""
    return {
        FOLDER / f"{label}.svg": draw_badge(label, value) for label, value in read_facts().items()
    }


def main() -> None:
    """Write the files."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    for file, text in draw_badges().items():
        file.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()

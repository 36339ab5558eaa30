"""Draw the badges of the README from `pyproject.toml`, so that they are true: `python docs/badges.py`."""

import tomllib
from html import escape
from pathlib import Path

import wmr_cli

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "docs" / "pictures" / "badges"
BADGE = """<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="20" role="img" aria-label="{label}: {value}">
<title>{label}: {value}</title>
<clipPath id="c"><rect width="{width}" height="20" rx="3"/></clipPath>
<g clip-path="url(#c)">
<rect width="{width}" height="20" fill="#555"/><rect x="{left}" width="{right}" height="20" fill="#00695c"/>
</g>
<g fill="#fff" text-anchor="middle" font-family="Verdana,DejaVu Sans,sans-serif" font-size="11">
<text x="{label_at}" y="14" textLength="{label_width}">{label}</text>
<text x="{value_at}" y="14" textLength="{value_width}">{value}</text>
</g>
</svg>
"""


def facts() -> dict[str, str]:
    """What each badge says; every word comes from the project's own settings."""
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


def drawn(label: str, value: str) -> str:
    """One badge as SVG."""
    label_width, value_width = (round(6.6 * len(text)) for text in (label, value))
    left, right = label_width + 12, value_width + 12
    return BADGE.format(
        label=escape(label), value=escape(value), width=left + right, left=left, right=right,
        label_at=left / 2, value_at=left + right / 2, label_width=label_width, value_width=value_width,
    )  # fmt: skip


def badges() -> dict[Path, str]:
    """Every badge as it should be, by its file."""
    return {FOLDER / f"{label}.svg": drawn(label, value) for label, value in facts().items()}


def main() -> None:
    """Write the files."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    for file, text in badges().items():
        file.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()

"""Draw the pictures of the pages anew, from a small study on the embedded data: `python docs/draw.py`. Some minutes."""

import subprocess
import sys
import tempfile
from pathlib import Path

from PIL import Image

PICTURES = Path(__file__).parent / "pictures"
STUDY = (
    ("train", "--defense", "pgd", "--alpha", "0", "--epochs", "12", "--validate-every", "1"),
    *(("train", "--alpha", alpha, "--epochs", "12", "--validate-every", "1") for alpha in ("0", "2")),
    ("evaluate", *(f"runs/digits-{run}-s0" for run in ("pgd-a0", "trades-a0", "trades-a2")), "--eps", "0.1", "--eps", "0.15"),
    ("report", "--figures", "figures"),
)
SHOWN = ("curves-digits", "weights-digits-pgd-0.15", "training-digits")
COLOURS = 64
"""Enough for a drawing, and a third of the bytes."""


def main() -> None:
    """Train, evaluate and draw in a folder that is thrown away; keep the pictures that pages show."""
    with tempfile.TemporaryDirectory() as folder:
        for step in STUDY:
            subprocess.run([sys.executable, "-m", "wmr_cli", *step, "--quiet"], cwd=folder, check=True, stdout=subprocess.DEVNULL)
        PICTURES.mkdir(exist_ok=True)
        for name in SHOWN:
            picture = Image.open(Path(folder, "figures", f"{name}.png")).convert("RGB")
            picture.quantize(COLOURS, dither=Image.Dither.NONE).save(PICTURES / f"{name}.png", optimize=True)


if __name__ == "__main__":
    main()

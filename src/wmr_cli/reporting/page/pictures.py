"""Attacked images small enough for the page: one sheet of tiles per evaluation whose images were saved."""

import base64
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from ...storage.crafted import Crafted, crafted_for
from ...storage.records import Record, Rows

LARGEST = 64
"""Pictures with a longer side are shrunk to it."""

BUDGET = 700_000
"""Bytes of pixels in all sheets of a page together, before PNG packs them."""

COLUMNS = 16


def saved_images(found: Sequence[tuple[Path, Record]]) -> dict[Path, Crafted]:
    """The images saved of each record, by the file of the record."""
    pairs = ((file, crafted_for(file, record)) for file, record in found)
    return {file: crafted for file, crafted in pairs if crafted is not None}


def tiles(crafted: Crafted, rows: Rows, budget: int) -> dict[str, Any] | None:
    """The sheet of a record: a PNG and the images in it, by position among the rows. None where none of them was saved.

    Images of smallest margin come first, as the attacker's choice falls on them. An image is left out if it was saved with
    another prediction than the rows have: it is not the one they speak of.
    """
    if "uniform/prediction" not in rows:
        return None
    width, height = _size(crafted)
    pairs = _pairs(crafted, rows)[: budget // (width * height * min(crafted.shape[0], 3))]
    if not pairs:
        return None
    pictures = [_picture(pixels, (width, height)) for pixels in crafted.pictures([saved for _, saved in pairs])]
    return {
        "sheet": "data:image/png;base64," + base64.b64encode(_sheet(pictures)).decode("ascii"),
        "positions": [position for position, _ in pairs],
        "columns": COLUMNS,
        "width": width,
        "height": height,
    }


def _pairs(crafted: Crafted, rows: Rows) -> list[tuple[int, int]]:
    """Positions among the rows and in the file, of the images that are in both."""
    saved = {int(index): position for position, index in enumerate(crafted.index)}
    order = np.argsort(rows["uniform/margin"], kind="stable") if "uniform/margin" in rows else np.arange(len(rows["index"]))
    prediction = rows["uniform/prediction"]
    wanted = ((int(position), saved.get(int(rows["index"][position]))) for position in order)
    return [(row, kept) for row, kept in wanted if kept is not None and crafted.prediction[kept] == prediction[row]]


def _size(crafted: Crafted) -> tuple[int, int]:
    """Width and height of a tile."""
    _, height, width = crafted.shape
    scale = min(1.0, LARGEST / max(height, width))
    return max(1, round(width * scale)), max(1, round(height * scale))


def _picture(pixels: NDArray[np.uint8], size: tuple[int, int]) -> Image.Image:
    """(C, H, W) as grey or colour; of any other number of channels the first is shown."""
    made = Image.fromarray(np.ascontiguousarray(np.moveaxis(pixels, 0, -1)) if len(pixels) == 3 else pixels[0])
    return made if made.size == size else made.resize(size)


def _sheet(pictures: Sequence[Image.Image]) -> bytes:
    """Tiles row by row, as PNG."""
    width, height = pictures[0].size
    rows = -(-len(pictures) // COLUMNS)
    whole = Image.new(pictures[0].mode, (COLUMNS * width, rows * height))
    for number, picture in enumerate(pictures):
        whole.paste(picture, (number % COLUMNS * width, number // COLUMNS * height))
    stream = io.BytesIO()
    whole.save(stream, format="PNG", optimize=True)
    return stream.getvalue()

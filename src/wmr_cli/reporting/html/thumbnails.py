"""Thumbnails of adversarial images: one PNG sheet of tiles per record with saved images."""

import base64
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from ...storage.adversarial_images import AdversarialImageFile, find_adversarial_images
from ...storage.records import Record, Rows

MAX_SIDE = 64
"""Longest side of a tile in pixels; larger images are shrunk."""

BUDGET_BYTES = 700_000
"""Uncompressed pixels of all sheets of a page together."""

SHEET_COLUMNS = 16


def find_saved_images(found: Sequence[tuple[Path, Record]]) -> dict[Path, AdversarialImageFile]:
    """Return the saved images of each record that has some, by the record's file."""
    saved = {file: find_adversarial_images(file, record) for file, record in found}
    return {file: images for file, images in saved.items() if images is not None}


def make_tiles(saved: AdversarialImageFile, rows: Rows, budget: int) -> dict[str, Any] | None:
    """Return a sheet as PNG and the row positions of its images; None without images.

    Images of smallest margin come first, because the attacker prefers them.
    """
    if "uniform/prediction" not in rows:
        return None
    width, height = _tile_size(saved)
    bytes_per_tile = width * height * min(saved.shape[0], 3)
    matches = _match_rows(saved, rows)[: budget // bytes_per_tile]
    if not matches:
        return None
    pixels = saved.read_images([position for _, position in matches])
    tiles = [_make_tile(image, (width, height)) for image in pixels]
    return {
        "sheet": "data:image/png;base64," + base64.b64encode(_make_sheet(tiles)).decode("ascii"),
        "positions": [row for row, _ in matches],
        "columns": SHEET_COLUMNS,
        "width": width,
        "height": height,
    }


def _match_rows(saved: AdversarialImageFile, rows: Rows) -> list[tuple[int, int]]:
    """Return (position among the rows, position in the file) by increasing margin.

    An image with another prediction than its row belongs to another attack, and is left out.
    """
    positions = {int(index): position for position, index in enumerate(saved.index)}
    order = np.arange(len(rows["index"]))
    if "uniform/margin" in rows:
        order = np.argsort(rows["uniform/margin"], kind="stable")
    matches = []
    for row in order.tolist():
        position = positions.get(int(rows["index"][row]))
        if position is None:
            continue
        if saved.prediction[position] == rows["uniform/prediction"][row]:
            matches.append((row, position))
    return matches


def _tile_size(saved: AdversarialImageFile) -> tuple[int, int]:
    """Return width and height of a tile."""
    _, height, width = saved.shape
    scale = min(1.0, MAX_SIDE / max(height, width))
    return max(1, round(width * scale)), max(1, round(height * scale))


def _make_tile(pixels: NDArray[np.uint8], size: tuple[int, int]) -> Image.Image:
    """Convert (C, H, W) to grey or colour; unless there are three channels, show the first."""
    is_colour = len(pixels) == 3
    values = np.ascontiguousarray(np.moveaxis(pixels, 0, -1)) if is_colour else pixels[0]
    tile = Image.fromarray(values)
    return tile if tile.size == size else tile.resize(size)


def _make_sheet(tiles: Sequence[Image.Image]) -> bytes:
    """Arrange tiles row by row, as PNG."""
    width, height = tiles[0].size
    rows = -(-len(tiles) // SHEET_COLUMNS)
    sheet = Image.new(tiles[0].mode, (SHEET_COLUMNS * width, rows * height))
    for number, tile in enumerate(tiles):
        row, column = divmod(number, SHEET_COLUMNS)
        sheet.paste(tile, (column * width, row * height))
    stream = io.BytesIO()
    sheet.save(stream, format="PNG", optimize=True)
    return stream.getvalue()

"""Attacked images beside the clean ones."""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...storage.files import write_atomically

Array = NDArray[Any]


def attack_grid(path: Path, clean: Array, images: Array, label: Array, predicted_clean: Array, predicted: Array) -> None:
    """One row per image: clean, the perturbation magnified, adversarial, with both predictions. (N, C, H, W) in [0, 1]."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    count = len(label)
    figure = Figure(figsize=(6, 1.9 * count + 0.4), layout="constrained")
    FigureCanvasAgg(figure)
    grid = figure.subplots(count, 3, squeeze=False)
    largest = float(np.abs(images - clean).max()) or 1.0
    for row in range(count):
        shown = (clean[row], 0.5 + (images[row] - clean[row]) / (2 * largest), images[row])
        titles = (
            f"label {label[row]}, seen as {predicted_clean[row]}",
            f"change x {0.5 / largest:.3g}",
            f"seen as {predicted[row]}",
        )
        for axes, picture, title in zip(grid[row], shown, titles, strict=True):
            _show(axes, picture)
            is_fooled = axes is grid[row][2] and predicted[row] != label[row]
            axes.set_title(title, fontsize=9, fontweight="bold" if is_fooled else "normal")
    write_atomically(path, lambda temporary: figure.savefig(temporary, format=path.suffix.lstrip(".") or "png", dpi=120))


def _show(axes: Any, picture: Array) -> None:
    """(C, H, W) as grey or colour."""
    if len(picture) == 3:
        axes.imshow(np.moveaxis(picture, 0, -1).clip(0, 1), interpolation="nearest")
    else:
        axes.imshow(picture[0], cmap="gray", vmin=0, vmax=1, interpolation="nearest")
    axes.set_axis_off()

"""A grid of adversarial images beside the clean ones."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ...storage.atomic import write_atomically

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Array = NDArray[Any]


def attack_grid(
    path: Path, clean: Array, images: Array, label: Array, predicted_clean: Array, predicted: Array
) -> None:
    """Write one row per image: clean, magnified perturbation, adversarial, with predictions.

    Images are (N, C, H, W) in [0, 1].
    """
    # imported here: only the command that draws a grid needs matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    count = len(label)
    figure = Figure(figsize=(6, 1.9 * count + 0.4), layout="constrained")
    FigureCanvasAgg(figure)
    grid = figure.subplots(count, 3, squeeze=False)
    largest_change = float(np.abs(images - clean).max()) or 1.0
    for row, (left, middle, right) in enumerate(grid):
        # grey is no change; the largest change of the batch reaches black or white
        change = 0.5 + (images[row] - clean[row]) / (2 * largest_change)
        _show_image(left, clean[row], f"label {label[row]}, predicted {predicted_clean[row]}")
        _show_image(middle, change, f"change x {0.5 / largest_change:.3g}")
        is_wrong = bool(predicted[row] != label[row])
        _show_image(right, images[row], f"predicted {predicted[row]}", is_bold=is_wrong)
    suffix = path.suffix.lstrip(".") or "png"
    write_atomically(path, lambda temporary: figure.savefig(temporary, format=suffix, dpi=120))


def _show_image(axes: "Axes", image: Array, title: str, *, is_bold: bool = False) -> None:
    """Show (C, H, W) in grey or colour."""
    if len(image) == 3:
        axes.imshow(np.moveaxis(image, 0, -1).clip(0, 1), interpolation="nearest")
    else:
        axes.imshow(image[0], cmap="gray", vmin=0, vmax=1, interpolation="nearest")
    axes.set_axis_off()
    axes.set_title(title, fontsize=9, fontweight="bold" if is_bold else "normal")

"""Mixup and CutMix: images of a batch are mixed in pairs, and so are their losses on labels.

The larger part of a mixed image is that of its own label and index, so that margins, kernels and
statistics keep one label per image. The distribution of mixed images is the usual one: Beta is
symmetric, and exchanging the two images of a pair exchanges their parts.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ..protocols import Batch, SecondLabels
from ..rng import random_words
from .color import copy_drawn

MIXING_STEP = 5
"""Random words of step 4 are those of random erasing."""


@dataclass(frozen=True)
class Mixer:
    """Mix each image with another of its batch, by mixup, by CutMix, or by one of them at random.

    Each is the parameter of a Beta distribution, or 0. Mixup blends whole images (Zhang et al.
    2018, arXiv:1710.09412), CutMix copies a box (Yun et al. 2019, arXiv:1905.04899).
    """

    mixup: float = 0.0
    cutmix: float = 0.0

    def __call__(self, batch: Batch, index: Tensor, seed: int) -> Batch:
        """Mix the images of a batch on its device, by numbers drawn on that of the index.

        The fraction of an image follows from seed and index, its partner from all indices of the
        batch.
        """
        height, width = batch.images.shape[2:]
        partners, is_cut, fractions, boxes = self.draw(index, height, width, seed)
        integers = torch.column_stack([partners, is_cut, boxes])
        moved = copy_drawn(integers, index, batch.images.device)
        partners = moved[:, 0]
        # the second labels have the dtype of the images, for half precision, too
        second = copy_drawn(fractions.float(), index, batch.images.device)
        amount = second[:, None, None, None]
        others = batch.images[partners]
        mixed = (1 - amount) * batch.images + amount * others
        if self.cutmix:
            top, left, bottom, right = moved[:, 2:].T[:, :, None]
            rows = torch.arange(height, device=others.device)
            columns = torch.arange(width, device=others.device)
            in_rows = (rows >= top) & (rows < bottom)
            in_columns = (columns >= left) & (columns < right)
            is_inside = (in_rows[:, :, None] & in_columns[:, None, :])[:, None]
            pasted = torch.where(is_inside, others, batch.images)
            mixed = torch.where(moved[:, 1, None, None, None] == 1, pasted, mixed)
        labels = SecondLabels(batch.labels[partners], second)
        return replace(batch, images=mixed, second=labels)

    def draw(
        self, index: Tensor, height: int, width: int, seed: int
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return for each index (N,) its partner, whether it is cut, the partner's part and a box.

        A partner is a position in the batch. The part is at most 1/2. A box (N, 4) is top, left,
        bottom, right.
        """
        words = random_words(index, 5, seed, step=MIXING_STEP)
        # a cycle through all images in random order: nothing is its own partner
        order = words[:, 0].argsort(stable=True)
        partners = torch.empty_like(order)
        partners[order] = order.roll(1)
        uniform = (words[:, 1:].double() + 0.5) * 2**-32
        both = bool(self.mixup and self.cutmix)
        is_cut = uniform[:, 1] < 0.5 if both else torch.full_like(order, self.cutmix > 0).bool()
        blended = draw_smaller_part(uniform[:, 0], self.mixup)
        boxes = draw_cut_boxes(
            draw_smaller_part(uniform[:, 0], self.cutmix), uniform[:, 2:], height, width
        )
        areas = (boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1])
        fractions = torch.where(is_cut, areas / (height * width), blended)
        return partners, is_cut, fractions, boxes


def draw_smaller_part(uniform: Tensor, parameter: float) -> Tensor:
    """Return the smaller of b and 1 - b, with b from Beta(parameter, parameter) by its quantile."""
    from scipy.special import betaincinv

    if not parameter:
        return torch.zeros_like(uniform)
    # the lower half of a symmetric distribution
    quantiles = betaincinv(parameter, parameter, uniform.numpy() / 2)
    return torch.from_numpy(quantiles)


def draw_cut_boxes(fractions: Tensor, uniform: Tensor, height: int, width: int) -> Tensor:
    """Return boxes (N, 4) of about these fractions of the image, cut off at its border."""
    halves = fractions.sqrt() / 2
    sides = torch.tensor([height, width])
    half_sides = (halves[:, None] * sides).floor().long()
    centres = (uniform * sides).floor().long()
    first = (centres - half_sides).clamp(min=0)
    last = (centres + half_sides).minimum(sides)
    return torch.cat([first, last], dim=1)

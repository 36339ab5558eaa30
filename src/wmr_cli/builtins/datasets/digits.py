"""Handwritten digits of 8x8 pixels from scikit-learn (test part of the UCI ML digits)."""

from pathlib import Path

import torch

from ...core.data.splits import MemorySource, MemorySplit

# No random numbers: every installation has the same splits, and all classes the same number.
TEST_PER_CLASS = 55
VAL_PER_CLASS = 10


def digits(root: Path) -> MemorySource:
    """1,797 images in 10 classes, 0…16 scaled to [0, 1]. Test 550, validation 100, train the rest.

    In each class, every third image belongs to the test set until there are 55, and 10 of the
    others to the validation set.
    """
    from sklearn.datasets import load_digits

    bunch = load_digits()
    images = torch.from_numpy(bunch.images).float().div(16).unsqueeze(1)
    labels = torch.from_numpy(bunch.target).long()
    parts: dict[str, list[torch.Tensor]] = {"train": [], "val": [], "test": []}
    for label in range(10):
        members = (labels == label).nonzero().squeeze(1)
        number = torch.arange(len(members))
        is_test = (number % 3 == 0) & (number < 3 * TEST_PER_CLASS)
        # 18 k + 1 is never a multiple of 3, so the two sets do not overlap
        is_val = (number % 18 == 1) & (number < 18 * VAL_PER_CLASS)
        parts["test"].append(members[is_test])
        parts["val"].append(members[is_val])
        parts["train"].append(members[~is_test & ~is_val])
    positions = {name: torch.cat(members).sort().values for name, members in parts.items()}
    splits = {
        name: MemorySplit(images[index], labels[index], index) for name, index in positions.items()
    }
    return MemorySource(10, splits)

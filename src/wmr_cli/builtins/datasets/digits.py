"""Handwritten digits of 8x8 pixels, embedded in scikit-learn (UCI ML hand-written digits, test part)."""

from pathlib import Path

import torch

from ...core.data.splits import MemorySource, MemorySplit


def digits(root: Path) -> MemorySource:
    """1,797 images in 10 classes, 0…16 scaled to [0, 1]. Test 550, validation 100, train the rest.

    Of each class every third image is a test image until there are 55, and 10 of the others validate: the same number
    from every class, fixed without random numbers.
    """
    from sklearn.datasets import load_digits

    bunch = load_digits()
    images = torch.from_numpy(bunch.images).float().div(16).unsqueeze(1)
    labels = torch.from_numpy(bunch.target).long()
    parts: dict[str, list[torch.Tensor]] = {"train": [], "val": [], "test": []}
    for label in range(10):
        members = (labels == label).nonzero().squeeze(1)
        turn = torch.arange(len(members))
        is_test = (turn % 3 == 0) & (turn < 165)
        is_val = (turn % 18 == 1) & (turn < 180)
        parts["test"].append(members[is_test])
        parts["val"].append(members[is_val])
        parts["train"].append(members[~is_test & ~is_val])
    positions = {name: torch.cat(members).sort().values for name, members in parts.items()}
    return MemorySource(
        10, {name: MemorySplit(images[at], labels[at], at) for name, at in positions.items()}
    )

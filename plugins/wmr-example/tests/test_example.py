"""Every component against its contract."""

from pathlib import Path

import pytest

from wmr_cli import BadInput
from wmr_cli.testing import (
    check_attack,
    check_dataset,
    check_defense,
    check_kernel,
    check_model,
    check_verifier,
    tiny_batch,
    tiny_model,
)
from wmr_example.parts import DualNorm, HalfHalf, Linear, Misclassified, RandomCorners, stripes


def test_stripes() -> None:
    check_dataset(stripes(root=Path()))


def test_linear() -> None:
    check_model(Linear)


def test_half_half() -> None:
    check_defense(HalfHalf())


def test_misclassified() -> None:
    check_kernel(Misclassified())


def test_random_corners() -> None:
    check_attack(RandomCorners(eps=0.1))


def test_dual_norm() -> None:
    check_verifier(DualNorm(), Linear(num_classes=4, input_shape=(1, 8, 8)))
    with pytest.raises(BadInput, match="affine"):
        DualNorm()(tiny_model(), tiny_batch(), norm="linf", eps=0.1, num_classes=4)

"""Every component against its contract."""

from pathlib import Path

from wmr_cli.testing import check_attack, check_dataset, check_defense, check_kernel, check_model
from wmr_example.parts import HalfHalf, Linear, Misclassified, RandomCorners, stripes


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

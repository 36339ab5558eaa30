"""Critical eps: the smallest radius at which an image is misclassified."""

import numpy as np
import pytest

from wmr_cli.measures import critical_eps


def test_the_smallest_radius_counts_and_larger_ones_cannot_repair_an_image() -> None:
    correct = {
        # in any order
        0.3: np.array([False, False, True, False, True]),
        0.1: np.array([True, False, True, True, True]),
        # the attack misses the second and finds the fifth image at this radius only
        0.2: np.array([True, True, True, False, False]),
    }
    clean = np.array([True, True, True, True, True])
    expected = [0.3, 0.1, np.inf, 0.2, 0.2]
    assert critical_eps(correct, clean).tolist() == expected
    assert critical_eps(correct).tolist() == expected


def test_an_image_that_is_misclassified_without_attack_has_radius_0() -> None:
    clean = np.array([False, True])
    found = critical_eps({0.1: np.array([True, True])}, clean)
    assert found.tolist() == [0.0, np.inf]


def test_the_fraction_beyond_a_radius_is_the_running_minimum_of_accuracy_per_image() -> None:
    random = np.random.default_rng(0)
    correct = {eps: random.random(50) < 0.8 for eps in (0.1, 0.2, 0.3)}
    critical = critical_eps(correct)
    survivors = np.ones(50, dtype=bool)
    for eps, mask in correct.items():
        survivors &= mask
        assert ((critical > eps) == survivors).all()


def test_no_radius_is_refused() -> None:
    with pytest.raises(ValueError, match="radius"):
        critical_eps({})

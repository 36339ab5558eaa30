"""Rows to accuracies, on rows small enough to reckon by hand."""

import math
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from support.typed import not_none
from wmr_cli.measures import accuracy, at_alpha, correct, crafted_accuracy, sampled_accuracy

LABELS = np.array([0, 1, 2, 1])


def rows(
    prefix: str = "uniform",
    predictions: tuple[int, ...] = (0, 1, 2, 0),
    margins: tuple[float, ...] = (0.5, 0.25, 0.0, -0.5),
    **others: Any,
) -> dict[str, NDArray[np.float64] | NDArray[np.int64]]:
    return {
        "label": LABELS,
        f"{prefix}/prediction": np.array(predictions),
        f"{prefix}/margin": np.array(margins),
        **{name.replace("__", "/"): np.array(values) for name, values in others.items()},
    }


def test_correctness_is_decided_by_the_prediction() -> None:
    # a tie that is correct, a tie that is misclassified, and margins of the opposite sign
    tied = rows(predictions=(0, 0, 2, 0), margins=(0.0, 0.0, -0.3, 0.3))
    assert correct(tied, "uniform").tolist() == [True, False, True, False]
    assert not_none(accuracy(tied, "uniform")).value == 0.5
    weights = [1.0, 1.0, math.exp(0.3), math.exp(-0.3)]
    assert not_none(sampled_accuracy(tied, "exp", 1.0)).value == pytest.approx(
        (weights[0] + weights[2]) / sum(weights)
    )


def test_natural_accuracy_is_that_of_the_clean_rows() -> None:
    assert not_none(accuracy(rows("clean", predictions=(0, 1, 1, 0)), "clean")).value == 0.5


@pytest.mark.parametrize("alpha", [0.0, 1.0, 2.0])
def test_sampled_accuracy_weights_by_exp_of_minus_alpha_times_margin(alpha: float) -> None:
    weights = [math.exp(-alpha * margin) for margin in (0.5, 0.25, 0.0, -0.5)]
    assert not_none(sampled_accuracy(rows(), "exp", alpha)).value == pytest.approx(
        sum(weights[:3]) / sum(weights)
    )


def test_sampled_accuracy_at_alpha_zero_is_the_robust_accuracy() -> None:
    assert (
        not_none(sampled_accuracy(rows(), "exp", 0.0)).value
        == not_none(accuracy(rows(), "uniform")).value
        == 0.75
    )


def test_crafted_accuracy_uses_the_rows_of_the_weighted_attack() -> None:
    both = rows() | rows("weighted@2.0", predictions=(0, 0, 0, 0), margins=(0.1, -0.1, -0.2, -0.9))
    weights = [math.exp(-2 * margin) for margin in (0.1, -0.1, -0.2, -0.9)]
    assert not_none(crafted_accuracy(both, "exp", 2)).value == pytest.approx(
        weights[0] / sum(weights)
    )
    assert crafted_accuracy(both, "exp", 1.5) is None


def test_stored_log_weights_take_precedence_over_margins() -> None:
    stored = rows() | {"uniform/log_weight@2.0": np.log([1.0, 2.0, 3.0, 4.0])}
    assert not_none(sampled_accuracy(stored, "exp", 2.0)).value == pytest.approx(0.6)
    assert not_none(sampled_accuracy(stored, "other", 2.0)).value == pytest.approx(0.6)
    crafted = rows("weighted@2.0") | {"weighted@2.0/log_weight": np.log([1.0, 2.0, 3.0, 4.0])}
    assert not_none(crafted_accuracy(crafted, "other", 2.0)).value == pytest.approx(0.6)


def test_rows_of_a_kernel_without_alpha_have_no_suffix() -> None:
    stored = rows(uniform__log_weight=np.log([4.0, 3.0, 2.0, 1.0]))
    assert not_none(sampled_accuracy(stored, "focal", None)).value == pytest.approx(0.9)
    crafted = rows("weighted") | {"weighted/log_weight": np.log([4.0, 3.0, 2.0, 1.0])}
    assert not_none(crafted_accuracy(crafted, "focal", None)).value == pytest.approx(0.9)


@pytest.mark.parametrize(("kernel", "alpha"), [("other", 2.0), ("other", None), ("exp", None)])
def test_kernel_without_stored_weights_gives_none(kernel: str, alpha: float | None) -> None:
    assert sampled_accuracy(rows(), kernel, alpha) is None


def test_missing_rows_give_none() -> None:
    assert accuracy(rows("clean"), "uniform") is None
    assert sampled_accuracy(rows("clean"), "exp", 1.0) is None
    assert crafted_accuracy(rows("clean"), "exp", 1.0) is None


@pytest.mark.parametrize(
    ("alpha", "name"), [(2, "weighted@2.0"), (0.1, "weighted@0.1"), (None, "weighted")]
)
def test_row_names_contain_alpha(alpha: float | None, name: str) -> None:
    assert at_alpha("weighted", alpha) == name

"""The worst of several attacks, and how A_sa depends on the scale of logits."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from wmr_cli import measures
from wmr_cli.core.losses import probability_margin
from wmr_cli.errors import BadInput

LABEL = np.array([0, 1, 2, 0])


def attacked(scores: list[list[int]], **more: Any) -> dict[str, NDArray[Any]]:
    logits = np.asarray(scores, dtype=np.float32)
    true = np.take_along_axis(logits, LABEL[:, None], 1)[:, 0]
    others = logits.copy()
    others[np.arange(4), LABEL] = -np.inf
    rows: dict[str, NDArray[Any]] = {
        "index": np.arange(4),
        "label": LABEL,
        "clean/prediction": LABEL,
        "uniform/prediction": logits.argmax(1),
    }
    return rows | {"uniform/logit_margin": true - others.max(1), "uniform/logits": logits, **more}


STRONG = attacked([[1, 2, 0], [0, 3, 0], [1, 0, 2], [3, 0, 0]])
WEAK = attacked([[4, 0, 0], [0, 1, 0], [3, 0, 1], [2, 0, 0]])


def test_worst_rows_take_the_strongest_attack_per_image() -> None:
    worst = measures.worst_rows([STRONG, WEAK])
    assert worst["uniform/logits"].tolist() == [[1, 2, 0], [0, 1, 0], [3, 0, 1], [2, 0, 0]]
    assert worst["uniform/prediction"].tolist() == [1, 1, 0, 0]
    assert worst["clean/prediction"].tolist() == LABEL.tolist()


def test_the_order_of_attacks_does_not_matter() -> None:
    one, other = measures.worst_rows([STRONG, WEAK]), measures.worst_rows([WEAK, STRONG])
    assert all(np.array_equal(one[name], other[name]) for name in one)


def test_worst_case_with_an_attack_without_margins_has_only_predictions() -> None:
    blunt = {
        name: values
        for name, values in WEAK.items()
        if name in ("index", "label", "clean/prediction", "uniform/prediction")
    }
    worst = measures.worst_rows([STRONG, blunt])
    assert sorted(name for name in worst if name.startswith("uniform/")) == ["uniform/prediction"]
    assert (worst["uniform/prediction"] == LABEL).tolist() == [False, True, False, True]


def test_rows_of_other_images_are_refused() -> None:
    with pytest.raises(ValueError, match="different images"):
        measures.worst_rows([STRONG, WEAK | {"index": np.arange(4) + 1}])


def test_margins_at_temperature_one_are_unchanged() -> None:
    import torch

    logits = np.random.default_rng(0).normal(size=(50, 4))
    labels = np.arange(50) % 4
    usual = probability_margin(torch.from_numpy(logits), torch.from_numpy(labels)).numpy()
    assert np.allclose(measures.probability_margins(logits, labels), usual, atol=1e-15)


@settings(deadline=None)
@given(st.integers(0, 10_000), st.floats(0.1, 5.0))
def test_higher_temperature_moves_a_sa_towards_a_rob(seed: int, alpha: float) -> None:
    rng = np.random.default_rng(seed)
    logits, label = rng.normal(size=(60, 5)) * 3, rng.integers(5, size=60)
    rows = {"label": label, "uniform/logits": logits, "uniform/prediction": logits.argmax(1)}
    huge = measures.tempered_accuracy(rows, alpha, 1e6).value
    plain = np.mean(logits.argmax(1) == label)
    assert huge == pytest.approx(plain, abs=1e-4)
    assert measures.tempered_accuracy(rows, alpha, 1.0).value <= plain + 1e-12


def cross_entropy(logits: np.ndarray, label: np.ndarray, temperature: float) -> float:
    scaled = logits / temperature
    return float(
        np.mean(np.logaddexp.reduce(scaled, axis=1) - scaled[np.arange(len(label)), label])
    )


@settings(deadline=None)
@given(st.integers(0, 10_000), st.floats(-6.0, 6.0), st.floats(0.3, 3.0))
def test_calibrated_accuracy_is_invariant_to_scale(
    seed: int, exponent: float, signal: float
) -> None:
    rng = np.random.default_rng(seed)
    label = rng.integers(4, size=90)
    logits = rng.normal(size=(90, 4)) + signal * np.eye(4)[label]
    logits[0] = -np.eye(4)[label[0]]  # at least one is misclassified
    scaled = logits * 10.0**exponent
    found = measures.calibrating_temperature(logits, label)
    near = [cross_entropy(logits, label, found * factor) for factor in (0.99, 1.0, 1.01)]
    assert found == np.inf or near[1] <= min(near) + 1e-12
    assert measures.calibrating_temperature(scaled, label) == pytest.approx(found * 10.0**exponent)
    rows, other = (
        {"label": label, "uniform/logits": each, "uniform/prediction": each.argmax(1)}
        for each in (logits, scaled)
    )
    expected = measures.tempered_accuracy(rows, 2.0, found)
    assert measures.calibrated_accuracy(rows, 2.0) == expected
    assert measures.calibrated_accuracy(other, 2.0).value == pytest.approx(expected.value)
    loss, margin = (measures.calibrated_losses(rows, name) for name in ("ce", "margin"))
    assert loss.mean() == pytest.approx(cross_entropy(logits, label, found))
    assert np.array_equal(margin < 0, logits.argmax(1) == label) or found == np.inf
    assert measures.calibrated_losses(other, "ce") == pytest.approx(loss)
    assert measures.calibrated_losses(other, "margin") == pytest.approx(margin)


def test_calibrated_losses_are_those_of_tempered_logits() -> None:
    rows = {
        "label": np.array([0, 1, 1]),
        "uniform/logits": np.array([[4.0, 0.0], [2.0, 0.0], [0.0, 6.0]]),
    }
    temperature = measures.calibrating_temperature(rows["uniform/logits"], rows["label"])
    margins = np.array([4.0, -2.0, 6.0]) / temperature
    assert measures.calibrated_losses(rows, "margin") == pytest.approx(-margins)
    assert measures.calibrated_losses(rows, "ce") == pytest.approx(np.log1p(np.exp(-margins)))
    with pytest.raises(ValueError, match="zero-one"):
        measures.calibrated_losses(rows, "zero-one")


def test_temperature_without_a_minimum() -> None:
    flawless, hopeless = np.array([[3.0, 1.0], [0.0, 2.0]]), np.array([[1.0, 3.0], [2.0, 0.0]])
    assert measures.calibrating_temperature(flawless, [0, 1]) == 1
    assert measures.calibrating_temperature(hopeless, [0, 1]) == np.inf
    rows = {
        "label": np.array([0, 1, 1]),
        "uniform/logits": np.array([[1.0, 3.0], [2.0, 0.0], [0.0, 0.1]]),
    }
    rows["uniform/prediction"] = rows["uniform/logits"].argmax(1)
    assert measures.calibrated_accuracy(rows, 5.0).value == pytest.approx(
        1 / 3
    )  # all images have the same weight


@settings(deadline=None)
@given(st.integers(0, 10_000), st.floats(0.0, 5.0))
def test_ranked_accuracy_depends_only_on_the_number_of_correct_images(
    seed: int, alpha: float
) -> None:
    rng = np.random.default_rng(seed)
    margin = rng.normal(size=(2, 60))
    num_misclassified = 20
    margin = (
        np.sort(margin, axis=1) - np.sort(margin, axis=1)[:, [num_misclassified]] + 1e-9
    )  # twenty of sixty below 0
    rows = [
        {
            "label": np.zeros(60, int),
            "uniform/prediction": (each < 0).astype(int),
            "uniform/logit_margin": each,
        }
        for each in map(rng.permutation, margin)
    ]
    one, other = (measures.ranked_accuracy(each, alpha).value for each in rows)
    assert one == pytest.approx(other)


@pytest.mark.parametrize("scale", [0.01, 1.0, 50.0])
def test_ranked_accuracy_is_invariant_to_scale(scale: float) -> None:
    rng = np.random.default_rng(1)
    logits, label = rng.normal(size=(80, 3)), rng.integers(3, size=80)
    true = logits[np.arange(80), label]
    others = logits.copy()
    others[np.arange(80), label] = -np.inf
    margin = true - others.max(1)
    rows = {"label": label, "uniform/prediction": logits.argmax(1), "uniform/logit_margin": margin}
    expected = measures.ranked_accuracy(rows, 2.0)
    assert (
        measures.ranked_accuracy(rows | {"uniform/logit_margin": margin * scale}, 2.0) == expected
    )
    assert measures.ranked_accuracy(rows, 0.0).value == pytest.approx(
        np.mean(logits.argmax(1) == label)
    )


def test_equal_margins_have_equal_ranks() -> None:
    rows = {
        "label": LABEL,
        "uniform/prediction": np.array([0, 0, 0, 0]),
        "uniform/logit_margin": np.zeros(4),
    }
    assert measures.ranked_accuracy(rows, 9.0).value == 0.5


def test_temperature_must_be_positive() -> None:
    with pytest.raises(ValueError, match="not positive"):
        measures.probability_margins([[0.0, 1.0]], [0], 0.0)


def test_compact_rows_allow_no_other_temperature() -> None:
    compact = {name: values for name, values in STRONG.items() if name != "uniform/logits"}
    for compute in (
        lambda: measures.tempered_accuracy(compact, 1.0, 2.0),
        lambda: measures.calibrated_accuracy(compact, 1.0),
        lambda: measures.calibrated_losses(compact, "ce"),
    ):
        with pytest.raises(BadInput) as refused:
            compute()
        assert "rows=full" in str(refused.value.hint)
    assert measures.ranked_accuracy(compact, 1.0) == measures.ranked_accuracy(STRONG, 1.0)

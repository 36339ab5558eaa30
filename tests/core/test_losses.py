"""The margin against plain loops, the authors' rule and its gradient by hand."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from wmr_cli.core.losses import logit_margin, margin, probability_margin


@st.composite
def labelled_logits(draw: Callable[..., Any]) -> tuple[list[list[float]], list[int]]:
    classes = draw(st.integers(2, 6))
    row = st.lists(st.floats(-30, 30), min_size=classes, max_size=classes)
    rows = draw(st.lists(row, min_size=1, max_size=4))
    labels = draw(st.lists(st.integers(0, classes - 1), min_size=len(rows), max_size=len(rows)))
    return rows, labels


def best_other(scores: list[float], label: int) -> float:
    return max(score for at, score in enumerate(scores) if at != label)


def softmax(row: list[float]) -> list[float]:
    powers = [math.exp(z - max(row)) for z in row]
    return [power / sum(powers) for power in powers]


@settings(deadline=None)
@given(labelled_logits())
def test_margins_are_true_score_minus_best_other(case: tuple[list[list[float]], list[int]]) -> None:
    rows, labels = case
    logits, tensor = torch.tensor(rows, dtype=torch.float64), torch.tensor(labels)
    by_logit = [
        row[label] - best_other(row, label) for row, label in zip(rows, labels, strict=True)
    ]
    by_probability = [
        softmax(row)[label] - best_other(softmax(row), label)
        for row, label in zip(rows, labels, strict=True)
    ]
    assert logit_margin(logits, tensor).tolist() == by_logit
    assert probability_margin(logits, tensor).tolist() == pytest.approx(by_probability, abs=1e-14)


@pytest.mark.parametrize("scale", [0.1, 1.0, 30.0])
def test_margin_is_bit_identical_to_the_authors_rule(scale: float) -> None:
    generator = torch.Generator().manual_seed(0)
    probabilities = (scale * torch.randn(2000, 10, generator=generator)).softmax(dim=1)
    labels = torch.randint(10, (2000,), generator=generator)
    top = probabilities.topk(2)
    other = torch.where(top.indices[:, 0] == labels, top.values[:, 1], top.values[:, 0])
    assert torch.equal(
        margin(probabilities, labels), probabilities[torch.arange(2000), labels] - other
    )


@pytest.mark.parametrize("classes", [2, 3, 10])
def test_the_gradient_in_the_logits_is_the_closed_form(classes: int) -> None:
    generator = torch.Generator().manual_seed(1)
    logits = torch.randn(50, classes, generator=generator, dtype=torch.float64, requires_grad=True)
    labels = torch.randint(classes, (50,), generator=generator)
    (gradient,) = torch.autograd.grad(probability_margin(logits, labels).sum(), logits)
    for row, label, found in zip(logits.tolist(), labels.tolist(), gradient.tolist(), strict=True):
        p = softmax(row)
        runner_up = p.index(best_other(p, label))
        m = p[label] - p[runner_up]
        expected = [-q * m for q in p]
        expected[label] = p[label] * (1 - m)
        expected[runner_up] = -p[runner_up] * (1 + m)
        assert found == pytest.approx(expected, abs=1e-15)
        assert sum(found) == pytest.approx(0, abs=1e-15)


def test_ties_have_no_margin() -> None:
    logits = torch.tensor([[0.0, 0.0, 0.0], [2.0, 2.0, -1.0], [2.0, 2.0, -1.0]])
    labels = torch.tensor([1, 0, 1])
    assert probability_margin(logits, labels).tolist() == [0, 0, 0]
    assert logit_margin(logits, labels).tolist() == [0, 0, 0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_saturated_margins_are_one_exactly(dtype: torch.dtype) -> None:
    logits = torch.tensor([[1e4, 0.0, -1e4], [1e4, 0.0, -1e4]], dtype=dtype, requires_grad=True)
    margins = probability_margin(logits, torch.tensor([0, 1]))
    (gradient,) = torch.autograd.grad(margins.sum(), logits)
    assert margins.tolist() == [1.0, -1.0]
    assert gradient.isfinite().all()
    assert logit_margin(logits, torch.tensor([0, 1])).tolist() == [1e4, -1e4]


def test_margin_of_two_classes_is_twice_the_probability_minus_one() -> None:
    logits = torch.randn(100, 2, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    labels = torch.arange(100) % 2
    sigmoids = [
        1 / (1 + math.exp(row[1 - label] - row[label]))
        for row, label in zip(logits.tolist(), labels.tolist(), strict=True)
    ]
    assert probability_margin(logits, labels).tolist() == pytest.approx(
        [2 * p - 1 for p in sigmoids], abs=1e-14
    )


@pytest.mark.parametrize("half", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("function", [probability_margin, logit_margin])
def test_half_precision_is_converted_to_float32(
    function: Callable[..., Any], half: torch.dtype
) -> None:
    logits = torch.randn(20, 5, generator=torch.Generator().manual_seed(3)).to(half)
    labels = torch.arange(20) % 5
    margins = function(logits, labels)
    assert margins.dtype == torch.float32
    assert torch.equal(margins, function(logits.to(torch.float32), labels))


@pytest.mark.parametrize("function", [probability_margin, logit_margin])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_float64_is_kept(function: Callable[..., Any], dtype: torch.dtype) -> None:
    assert function(torch.zeros(1, 3, dtype=dtype), torch.tensor([0])).dtype == dtype

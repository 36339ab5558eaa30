"""Margins, losses and objectives: values, gradients and rows."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional

from support.typed import instance_of
from wmr_cli.builtins.kernels.exp import Exponential
from wmr_cli.core.losses import (
    OBJECTIVES,
    KlObjective,
    TargetedDlrLoss,
    WeightedObjective,
    cross_entropy,
    logit_margin,
    margin,
    most_likely_targets,
    probability_margin,
    ranking_scores,
    select_rows,
    weighted_objective,
)
from wmr_cli.core.norms import Linf
from wmr_cli.core.pgd import PgdSettings, run_pgd
from wmr_cli.core.protocols import Batch, Evidence, Objective
from wmr_cli.core.traits import KernelTraits


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


def network(dtype: torch.dtype = torch.float64) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(16, 12), nn.Tanh(), nn.Linear(12, 4)).to(dtype)


def problem(count: int = 32, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    images = torch.rand(count, 1, 4, 4, generator=generator, dtype=dtype)
    return images, torch.randint(4, (count,), generator=generator)


def spread_logits(
    count: int = 40, classes: int = 5, scale: float = 3.0, seed: int = 2
) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    logits = scale * torch.randn(count, classes, generator=generator, dtype=torch.float64)
    return logits, torch.randint(classes, (count,), generator=generator)


def gradient_of(objective: Objective, logits: Tensor, labels: Tensor) -> Tensor:
    leaf = logits.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(objective(leaf, labels).sum(), leaf)
    return gradient


def by_hand(logits: Tensor, labels: Tensor) -> tuple[Tensor, ...]:
    """Cross-entropy, its gradient, the margin and its gradient, from the closed forms."""
    rows = torch.arange(len(labels))
    p = logits.exp() / logits.exp().sum(dim=1, keepdim=True)
    others = p.clone()
    others[rows, labels] = -1
    runner_up = others.argmax(dim=1)
    m = p[rows, labels] - p[rows, runner_up]
    of_loss = p - functional.one_hot(labels, p.shape[1])
    of_margin = -p * m[:, None]
    of_margin[rows, labels] = p[rows, labels] * (1 - m)
    of_margin[rows, runner_up] = -p[rows, runner_up] * (1 + m)
    return -p[rows, labels].log(), of_loss, m, of_margin


@pytest.mark.parametrize("alpha", [0.0, 0.5, 2.0, 20.0])
def test_the_weighted_gradient_is_that_of_loss_minus_alpha_loss_times_that_of_margin(
    alpha: float,
) -> None:
    logits, labels = spread_logits()
    loss, of_loss, margin, of_margin = by_hand(logits, labels)
    bracket = of_loss - alpha * loss[:, None] * of_margin
    relative = gradient_of(WeightedObjective(cross_entropy, Exponential(alpha)), logits, labels)
    torch.testing.assert_close(relative, bracket, rtol=1e-11, atol=1e-13)

    def weight_times_loss(logits: Tensor, labels: Tensor) -> Tensor:
        return Exponential(alpha)(Evidence(logits, labels)).exp() * cross_entropy(logits, labels)

    plain = gradient_of(weight_times_loss, logits, labels)
    torch.testing.assert_close(
        plain, (-alpha * margin).exp()[:, None] * bracket, rtol=1e-11, atol=1e-13
    )


@pytest.mark.parametrize("alpha", [0.0, 1.0, 1000.0])
def test_the_value_of_a_weighted_objective_is_the_loss(alpha: float) -> None:
    logits, labels = spread_logits()
    assert torch.equal(
        WeightedObjective(cross_entropy, Exponential(alpha))(logits, labels),
        cross_entropy(logits, labels),
    )


@pytest.mark.parametrize("alpha", [0.5, 5.0, 20.0, 80.0])
def test_the_relative_form_steps_where_weight_times_loss_steps(alpha: float) -> None:
    model, (images, labels) = network(), problem(64)
    images.requires_grad_()
    logits = model(images)
    p = logits.softmax(dim=1)
    others = p.masked_fill(functional.one_hot(labels, 4).bool(), -1).amax(dim=1)
    weight = (-alpha * (p.gather(1, labels[:, None]).squeeze(1) - others)).exp()
    plain = weight * functional.cross_entropy(logits, labels, reduction="none")
    relative = WeightedObjective(cross_entropy, Exponential(alpha))(logits, labels)
    (expected,) = torch.autograd.grad(plain.sum(), images, retain_graph=True)
    (found,) = torch.autograd.grad(relative.sum(), images)
    assert torch.equal(found.sign(), expected.sign())


def test_the_relative_form_is_finite_where_the_weight_overflows() -> None:
    generator = torch.Generator().manual_seed(3)
    logits, labels = (
        5 * torch.randn(200, 6, generator=generator),
        torch.randint(6, (200,), generator=generator),
    )
    kernel = Exponential(1000.0)
    assert kernel(Evidence(logits, labels)).exp().isinf().any()
    objective = WeightedObjective(cross_entropy, kernel)
    gradient = gradient_of(objective, logits, labels)
    assert objective(logits, labels).isfinite().all()
    assert gradient.isfinite().all()
    assert (gradient != 0).any(dim=1).all()


def iterates(objective: Objective, alpha_free_steps: int = 5) -> Tensor:
    model, (images, labels) = network(), problem()
    batch = Batch(images, labels, torch.arange(len(labels)))
    runs = range(1, alpha_free_steps + 1)
    return torch.stack(
        [
            run_pgd(
                model,
                batch,
                objective,
                images,
                PgdSettings(Linf(), eps=0.1, step=0.03, steps=steps),
            ).images
            for steps in runs
        ]
    )


@pytest.mark.parametrize("alpha", [0.5, 1.0, 2.0, 5.0, 10.0, 20.0])
def test_detached_weights_cancel_and_differentiable_weights_do_not(alpha: float) -> None:
    def detached(logits: Tensor, labels: Tensor) -> Tensor:
        return Exponential(alpha)(Evidence(logits, labels)).exp().detach() * cross_entropy(
            logits, labels
        )

    plain = iterates(cross_entropy)
    assert torch.equal(iterates(detached), plain)
    assert not torch.equal(iterates(WeightedObjective(cross_entropy, Exponential(alpha))), plain)


def test_divergence_is_batchmean_kl_by_hand() -> None:
    clean, labels = spread_logits(seed=4)
    adversarial, _ = spread_logits(seed=5)
    total = 0.0
    for natural, moved in zip(
        clean.softmax(dim=1).tolist(), adversarial.softmax(dim=1).tolist(), strict=True
    ):
        total += sum(p * (math.log(p) - math.log(q)) for p, q in zip(natural, moved, strict=True))
    mean = KlObjective.from_logits(clean)(adversarial, labels).mean()
    assert mean.item() == pytest.approx(total / 40, rel=1e-12)
    published = functional.kl_div(
        adversarial.log_softmax(dim=1), clean.softmax(dim=1), reduction="batchmean"
    )
    assert mean.item() == pytest.approx(published.item(), rel=1e-12)


def test_divergence_is_finite_for_saturated_logits() -> None:
    clean = torch.tensor([[1e4, 0.0], [1e4, 0.0]])
    adversarial = torch.tensor([[0.0, 1e4], [1e4, 0.0]])
    objective, labels = KlObjective.from_logits(clean), torch.tensor([0, 0])
    assert objective(adversarial, labels).tolist() == [1e4, 0.0]
    assert gradient_of(objective, adversarial, labels).isfinite().all()


def test_kl_objective_keeps_natural_probabilities_constant() -> None:
    clean, labels = spread_logits()
    clean.requires_grad_()
    objective = KlObjective.from_logits(clean)
    assert not objective.natural.requires_grad
    assert not objective(clean.detach(), labels).requires_grad


@pytest.mark.parametrize(
    "wrap", [lambda loss: loss, lambda loss: WeightedObjective(loss, Exponential(2.0))]
)
def test_objective_with_state_is_selected_by_rows(wrap: Callable[..., Any]) -> None:
    clean, labels = spread_logits(seed=6)
    adversarial, _ = spread_logits(seed=7)
    objective, rows = wrap(KlObjective.from_logits(clean)), torch.tensor([3, 0, 17])
    assert torch.equal(
        objective[rows](adversarial[rows], labels[rows]), objective(adversarial, labels)[rows]
    )


def test_weighted_objective_without_state_is_equal_for_all_rows() -> None:
    logits, labels = spread_logits()
    objective = WeightedObjective(cross_entropy, Exponential(2.0))
    assert torch.equal(objective[torch.tensor([1, 2])](logits, labels), objective(logits, labels))


def test_margin_objectives_by_hand() -> None:
    logits, labels = (
        torch.tensor([[3.0, 1.0, -2.0], [0.0, 4.0, 1.0]], dtype=torch.float64),
        torch.tensor([0, 2]),
    )
    assert OBJECTIVES["margin"](logits, labels).tolist() == [-2.0, 3.0]
    expected = []
    for row, label, other in (([3.0, 1.0, -2.0], 0, 1), ([0.0, 4.0, 1.0], 2, 1)):
        total = sum(math.exp(z) for z in row)
        expected.append((math.exp(row[other]) - math.exp(row[label])) / total)
    assert OBJECTIVES["pmargin"](logits, labels).tolist() == pytest.approx(expected, rel=1e-12)


def test_cross_entropy_by_hand() -> None:
    logits, labels = torch.tensor([[3.0, 1.0, -2.0]], dtype=torch.float64), torch.tensor([1])
    expected = math.log(math.exp(3) + math.exp(1) + math.exp(-2)) - 1
    assert OBJECTIVES["ce"](logits, labels).tolist() == pytest.approx([expected], rel=1e-12)


def test_weighted_margins_are_positive() -> None:
    logits, labels = spread_logits(count=200, scale=6.0)
    by_logit, by_probability = (
        weighted_objective(loss, Exponential(2.0))(logits, labels) for loss in ("margin", "pmargin")
    )
    behind = [
        max(row[:label] + row[label + 1 :]) - row[label]
        for row, label in zip(logits.tolist(), labels.tolist(), strict=True)
    ]
    assert by_logit.tolist() == pytest.approx(
        [math.log1p(math.exp(value)) for value in behind], rel=1e-9
    )
    torch.testing.assert_close(by_probability, 1 + OBJECTIVES["pmargin"](logits, labels))
    assert (by_logit > 0).all()
    assert (by_probability >= 0).all()


def test_weighted_cross_entropy_needs_no_positive_form() -> None:
    logits, labels = spread_logits()
    found = gradient_of(weighted_objective("ce", Exponential(2.0)), logits, labels)
    assert torch.equal(
        found, gradient_of(WeightedObjective(cross_entropy, Exponential(2.0)), logits, labels)
    )


def test_cw_is_the_margin_until_fifty() -> None:
    logits, labels = (
        torch.tensor([[3.0, 1.0], [0.0, 49.0], [0.0, 51.0], [0.0, 90.0]]),
        torch.zeros(4, dtype=torch.long),
    )
    assert OBJECTIVES["cw"](logits, labels).tolist() == [-2.0, 49.0, 50.0, 50.0]
    assert gradient_of(OBJECTIVES["cw"], logits, labels)[3].tolist() == [0.0, 0.0]


def test_dlr_equals_hand_computation_and_is_invariant_to_shift_and_scale() -> None:
    logits = torch.tensor([[3.0, 1.0, -2.0, 0.5], [0.0, 4.0, 1.0, 3.0]], dtype=torch.float64)
    labels = torch.tensor([0, 2])
    values = OBJECTIVES["dlr"](logits, labels)
    assert values.tolist() == pytest.approx([(1 - 3) / (3 - 0.5), (4 - 1) / (4 - 1)])
    torch.testing.assert_close(OBJECTIVES["dlr"](100 * logits - 7, labels), values)


def test_dlr_of_two_classes_is_the_margin_and_of_equal_logits_finite() -> None:
    logits, labels = torch.tensor([[3.0, 1.0], [0.0, 4.0]]), torch.tensor([0, 0])
    assert OBJECTIVES["dlr"](logits, labels).tolist() == [-2.0, 4.0]
    even = torch.zeros(2, 5)
    assert OBJECTIVES["dlr"](even, labels).tolist() == [0.0, 0.0]
    assert gradient_of(OBJECTIVES["dlr"], even, labels).isfinite().all()


@pytest.mark.parametrize("classes", [2, 3, 5])
@pytest.mark.parametrize("name", sorted(OBJECTIVES))
def test_weighted_losses_are_non_negative_and_increasing(name: str, classes: int) -> None:
    logits, labels = spread_logits(count=200, classes=classes, scale=6.0)
    values = weighted_objective(name, Exponential(2.0))(logits, labels)
    assert (values >= 0).all()
    order = OBJECTIVES[name](logits, labels).argsort()
    assert (values[order].diff() >= -1e-9).all()


@pytest.mark.parametrize("alpha", [0.0, 2.0, 1000.0])
def test_the_rank_of_a_weighted_objective_is_the_logarithm_of_weight_times_loss(
    alpha: float,
) -> None:
    logits, labels = spread_logits()
    objective = WeightedObjective(cross_entropy, Exponential(alpha))
    loss, _, margin, _ = by_hand(logits, labels)
    torch.testing.assert_close(
        ranking_scores(objective, logits, labels), -alpha * margin + loss.log()
    )
    assert not ranking_scores(objective, logits.requires_grad_(), labels).requires_grad


def test_a_loss_of_zero_has_a_finite_rank() -> None:
    logits, labels = torch.tensor([[200.0, 0.0], [100.0, 0.0]]), torch.tensor([0, 0])
    assert cross_entropy(logits, labels).tolist() == [0.0, 0.0]
    assert (
        ranking_scores(WeightedObjective(cross_entropy, Exponential(5.0)), logits, labels)
        .isfinite()
        .all()
    )


def test_the_rank_of_any_other_objective_is_its_value() -> None:
    logits, labels = spread_logits()
    for objective in OBJECTIVES.values():
        assert torch.equal(ranking_scores(objective, logits, labels), objective(logits, labels))


def test_objective_without_state_is_equal_for_all_rows() -> None:
    assert select_rows(cross_entropy, torch.tensor([1])) is cross_entropy
    clean, _ = spread_logits()
    selected = select_rows(KlObjective.from_logits(clean), torch.tensor([1, 3]))
    assert len(instance_of(KlObjective, selected).natural) == 2


def test_image_of_weight_zero_has_its_plain_gradient() -> None:
    class LowMargins:
        traits = KernelTraits()

        def __call__(self, evidence: Evidence) -> Tensor:
            margins = probability_margin(evidence.logits, evidence.labels)
            return torch.where(margins < 0.1, -margins, -torch.inf)

    logits = torch.tensor([[5.0, 0.0], [0.0, 5.0]], requires_grad=True)
    values = WeightedObjective(cross_entropy, LowMargins())(logits, torch.tensor([0, 0]))
    (gradient,) = torch.autograd.grad(values.sum(), logits)
    assert values.isfinite().all()
    assert gradient.isfinite().all()


# targeted objectives

TARGET_LOGITS = torch.tensor([[3.0, 1.0, 2.0, 0.0, -1.0], [0.0, 5.0, 4.0, 1.0, 2.0]])


def test_targets_are_the_most_likely_other_classes_in_order() -> None:
    labels = torch.tensor([2, 1])
    assert most_likely_targets(TARGET_LOGITS, labels).tolist() == [[0, 1, 3, 4], [2, 4, 3, 0]]
    assert most_likely_targets(TARGET_LOGITS, labels, 2).tolist() == [[0, 1], [2, 4]]
    assert most_likely_targets(TARGET_LOGITS[:, :2], torch.tensor([0, 1])).tolist() == [[1], [0]]


def test_targeted_dlr_loss_by_hand() -> None:
    loss = TargetedDlrLoss(torch.tensor([1, 4]))
    values = loss(TARGET_LOGITS, torch.tensor([0, 2]))
    assert values.tolist() == pytest.approx(
        [(1 - 3) / (3 - (1 + 0) / 2), (2 - 4) / (5 - (2 + 1) / 2)]
    )
    torch.testing.assert_close(loss(7 * TARGET_LOGITS + 3, torch.tensor([0, 2])), values)
    assert loss[torch.tensor([1])](TARGET_LOGITS[1:], torch.tensor([2])).tolist() == pytest.approx(
        values[1:].tolist()
    )


@pytest.mark.parametrize("classes", [2, 3])
def test_targeted_dlr_loss_of_few_classes_is_the_targeted_margin(classes: int) -> None:
    values = TargetedDlrLoss(torch.tensor([1, 0]))(TARGET_LOGITS[:, :classes], torch.tensor([0, 1]))
    assert values.tolist() == [-2.0, -5.0]


def test_targeted_dlr_loss_of_equal_logits_is_finite() -> None:
    logits = torch.zeros(1, 5, requires_grad=True)
    value = TargetedDlrLoss(torch.tensor([1]))(logits, torch.tensor([0]))
    (gradient,) = torch.autograd.grad(value.sum(), logits)
    assert value.tolist() == [0.0]
    assert gradient.isfinite().all()

"""The contract of a defense; plugins register it by the hook `wmr_defenses`."""

import copy
from dataclasses import replace

import torch
from torch import Tensor, nn

from ..core.losses import probability_margin
from ..core.protocols import Batch, Defense, Evidence, Kernel, SecondLabels, StepReport
from ..core.traits import ALWAYS_PROVIDED, DefenseTraits, KernelTraits
from .fixtures import (
    RecordingLearner,
    batch_unchanged,
    check_state,
    copy_state,
    require,
    require_traits,
    tensors_equal,
    tiny_batch,
    tiny_model,
)

STEPS = 30
"""Steps on one batch after which the loss has to be lower."""
REPORT_FIELDS = ("losses", "weights", "margins", "correct")


def check_defense(defense: Defense) -> None:
    """Check the step of a defense, its report, its traits and its state.

    A step changes the parameters and depends on the seed only. Weights of 0, and those of
    alpha = 0, are used as they are. Mixed images count for both labels, if the traits declare so.
    Repeated steps lower the loss.
    """
    require_traits(defense, DefenseTraits, "the defense")
    fresh = copy.deepcopy(defense)
    batch = tiny_batch()
    learner = _make_learner()
    before = copy_state(learner.model)
    with batch_unchanged(batch, "the defense"):
        report = _step(defense, learner, batch)
    require(learner.steps >= 1, "a step of the defense takes no optimizer step")
    require(
        not tensors_equal(before, copy_state(learner.model)),
        "a step does not change the parameters",
    )
    _check_report(report, batch, learner.losses)
    _check_traits(defense, learner)
    _check_repeatable(fresh, batch)
    _check_weights(fresh, batch)
    if fresh.traits.mixes_labels:
        _check_mixed_labels(fresh, batch)
    for _ in range(STEPS):
        _step(defense, learner, batch)
    first_loss = learner.losses[0]
    last_loss = learner.losses[-1]
    require(
        last_loss < first_loss,
        f"{STEPS} steps change the loss from {first_loss:.4f} to {last_loss:.4f}",
    )
    check_state(defense, fresh, "the defense")


def _make_learner(kernel: Kernel | None = None) -> RecordingLearner:
    """Return a learner without dropout, so that equal steps are comparable."""
    model = tiny_model().train()
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    return RecordingLearner(model, kernel)


def _step(defense: Defense, learner: RecordingLearner, batch: Batch) -> StepReport:
    torch.manual_seed(learner.step_index)  # as in training
    learner.model.train()
    report = defense.step(learner, batch)
    learner.step_index += 1
    return report


def _check_report(report: StepReport, batch: Batch, losses: list[float]) -> None:
    values = {name: getattr(report, name) for name in REPORT_FIELDS}
    if report.clean_correct is not None:
        values["clean_correct"] = report.clean_correct
    for name, value in values.items():
        is_detached = value.shape == batch.labels.shape and not value.requires_grad
        require(is_detached, f"{name} of the report is not one detached value per image")
        require(value.isfinite().all(), f"{name} of the report are not finite")
    require((report.weights >= 0).all(), "weights of the report are negative")
    require(
        (report.margins.abs() <= 1).all(),
        "margins of the report are not in [-1, 1]: use probability_margin",
    )
    is_correct = report.correct.bool()
    contradicts = (is_correct & (report.margins < 0)) | (~is_correct & (report.margins > 0))
    require(~contradicts.any(), "correct and margins of the report contradict each other")
    mean = float(report.losses.mean())
    # several backward passes in one step may report the last loss or their sum
    expected = (losses[-1], sum(losses))
    is_training_loss = any(abs(loss - mean) <= 1e-4 * max(1.0, abs(loss)) for loss in expected)
    require(
        is_training_loss,
        f"losses of the report have a mean of {mean:.4f}, but the loss was {losses[-1]:.4f}",
    )


def _check_traits(defense: Defense, learner: RecordingLearner) -> None:
    traits = defense.traits
    require(
        learner.steps == traits.replays,
        f"the trait `replays` is {traits.replays}, but it steps {learner.steps} times on a batch",
    )
    require(
        traits.uses_attack or not learner.training_attacks,
        "the trait `uses_attack` is False, but it runs the training attack",
    )
    provided = sorted(ALWAYS_PROVIDED | traits.provides)
    for evidence in learner.evidence:
        missing = [name for name in provided if getattr(evidence, name) is None]
        require(
            not missing,
            f"the evidence has no {', '.join(missing)}, which the defense has to provide",
        )


def _check_repeatable(fresh: Defense, batch: Batch) -> None:
    is_same = tensors_equal(_state_after_step(fresh, batch), _state_after_step(fresh, batch))
    require(is_same, "the same seed gives another step, so a run could not be resumed")


def _state_after_step(
    fresh: Defense, batch: Batch, kernel: Kernel | None = None
) -> dict[str, Tensor]:
    learner = _make_learner(kernel)
    _step(copy.deepcopy(fresh), learner, batch)
    return copy_state(learner.model)


def _check_weights(fresh: Defense, batch: Batch) -> None:
    """Check weights of 1 that carry a gradient, and weights of 0."""
    unweighted = _state_after_step(fresh, batch)
    alpha_zero = _state_after_step(fresh, batch, _AlphaZero())
    # not bit-identical: a weight of exp(-0) takes part in the backward pass
    is_same = all(
        torch.allclose(unweighted[name], alpha_zero[name], atol=1e-6) for name in unweighted
    )
    require(is_same, "weights of alpha = 0 give another step than no weights")
    first_only = _state_after_step(fresh, batch, _FirstImageOnly())
    is_finite = all(bool(tensor.isfinite().all()) for tensor in first_only.values())
    require(is_finite, "with weights of 0, log-weights of -inf, the network is not finite")


def _check_mixed_labels(fresh: Defense, batch: Batch) -> None:
    """Check that images mixed by half have one loss, whichever of their two labels is the first."""
    others = batch.labels.roll(1)
    halves = torch.full(others.shape, 0.5)
    orders = (
        replace(batch, second=SecondLabels(others, halves)),
        replace(batch, labels=others, second=SecondLabels(batch.labels, halves)),
    )
    first, second = (_step(copy.deepcopy(fresh), _make_learner(), each).losses for each in orders)
    require(
        torch.allclose(first, second, atol=1e-5),
        "the trait `mixes_labels` is True, but the loss of images that are mixed by half depends on"
        " which label is the first: pass `batch.second` to label_loss",
    )


class _AlphaZero:
    """The paper's kernel at alpha 0: weights of 1, with a gradient of 0."""

    traits = KernelTraits()

    def __call__(self, evidence: Evidence) -> Tensor:
        return -0.0 * probability_margin(evidence.logits, evidence.labels)


class _FirstImageOnly:
    """A weight of 1 for the first image, of 0 for all others."""

    traits = KernelTraits()

    def __call__(self, evidence: Evidence) -> Tensor:
        log_weights = torch.full_like(evidence.labels, -torch.inf, dtype=evidence.logits.dtype)
        # a batch without any weight has no gradient, so one image keeps its weight
        log_weights[0] = 0.0
        return log_weights

"""What a loss, on the command line a defense, promises."""

import copy

import torch
from torch import Tensor, nn

from ..core.losses import probability_margin
from ..core.protocols import Batch, Defense, Evidence, Kernel, StepReport
from ..core.traits import ALWAYS_PROVIDED, DefenseTraits, KernelTraits
from .assertions import (
    batch_unchanged,
    check_state,
    copy_state,
    require,
    require_traits,
    tensors_equal,
)
from .fixtures import RecordingLearner, tiny_batch, tiny_model

STEPS = 30
PER_IMAGE = ("losses", "weights", "margins", "correct")


def check_defense(defense: Defense) -> None:
    """A step moves the parameters and reports what it paid per image; it follows from the seed; it takes weights as they
    are, those of 0 and of alpha = 0 among them; it tells a kernel what it says it knows; repeated steps lower the loss.
    """
    require_traits(defense, DefenseTraits, "the defense")
    fresh, batch = copy.deepcopy(defense), tiny_batch()
    learner = _learner()
    before = copy_state(learner.model)
    with batch_unchanged(batch, "the defense"):
        report = _step(defense, learner, batch)
    require(learner.steps >= 1, "a step of the defense takes no optimizer step")
    require(not tensors_equal(before, copy_state(learner.model)), "nothing moved")
    _check_report(report, batch, learner.paid)
    _check_traits(defense, learner)
    _check_repeatable(fresh, batch)
    _check_weights(fresh, batch)
    for _ in range(STEPS):
        _step(defense, learner, batch)
    require(
        learner.paid[-1] < learner.paid[0],
        f"the loss went from {learner.paid[0]:.4f} to {learner.paid[-1]:.4f}",
    )
    check_state(defense, fresh, "the defense")


def _learner(kernel: Kernel | None = None) -> RecordingLearner:
    model = tiny_model().train()
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    return RecordingLearner(model, kernel)


def _step(defense: Defense, learner: RecordingLearner, batch: Batch) -> StepReport:
    torch.manual_seed(learner.step_index)  # as every step of a run begins
    learner.model.train()
    report = defense.step(learner, batch)
    learner.step_index += 1
    return report


def _check_report(report: StepReport, batch: Batch, paid: list[float]) -> None:
    values = {name: getattr(report, name) for name in PER_IMAGE}
    if report.clean_correct is not None:
        values["clean_correct"] = report.clean_correct
    for name, value in values.items():
        is_detached = value.shape == batch.labels.shape and not value.requires_grad
        require(is_detached, f"{name} of the report is not one detached value per image")
        require(value.isfinite().all(), f"{name} of the report are not finite")
    require((report.weights >= 0).all(), "weights of the report are negative")
    require(
        (report.margins.abs() <= 1).all(),
        "margins of the report are not in [-1, 1]: take probability_margin",
    )
    contradicts = (report.correct.bool() & (report.margins < 0)) | (
        ~report.correct.bool() & (report.margins > 0)
    )
    require(~contradicts.any(), "correct and margins of the report contradict each other")
    reported = float(report.losses.mean())
    is_paid = any(
        abs(total - reported) <= 1e-4 * max(1.0, abs(total)) for total in (paid[-1], sum(paid))
    )
    require(
        is_paid, f"losses of the report have a mean of {reported:.4f}, but {paid[-1]:.4f} was paid"
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
    for evidence in learner.weighed:
        provided = sorted(ALWAYS_PROVIDED | traits.provides)
        missing = [name for name in provided if getattr(evidence, name) is None]
        require(
            not missing,
            f"the evidence has no {', '.join(missing)}, although the trait `provides` names it",
        )


def _check_repeatable(fresh: Defense, batch: Batch) -> None:
    is_same = tensors_equal(_after_one_step(fresh, batch), _after_one_step(fresh, batch))
    require(is_same, "the same seed gives another step: a run could not be repeated or resumed")


def _after_one_step(
    fresh: Defense, batch: Batch, kernel: Kernel | None = None
) -> dict[str, Tensor]:
    learner = _learner(kernel)
    _step(copy.deepcopy(fresh), learner, batch)
    return copy_state(learner.model)


def _check_weights(fresh: Defense, batch: Batch) -> None:
    """The kernel may give any weights: 1 to all by alpha = 0, or none at all to some images."""
    plain, weighted = _after_one_step(fresh, batch), _after_one_step(fresh, batch, _AlphaZero())
    is_same = all(torch.allclose(plain[name], weighted[name], atol=1e-6) for name in plain)
    require(is_same, "weights of alpha = 0 give another step than no weights")
    alone = _after_one_step(fresh, batch, _FirstImageOnly())
    finite = all(bool(tensor.isfinite().all()) for tensor in alone.values())
    require(
        finite, "an image without weight, whose log-weight is -inf, makes the network not finite"
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
        log_weights[0] = 0.0
        return log_weights

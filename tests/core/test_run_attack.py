"""Every rule of a contract is broken once, on the third image, whose index is 30."""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn

from support.typed import instance_of
from wmr_cli.core.losses import cross_entropy
from wmr_cli.core.norms import NORMS
from wmr_cli.core.pgd import project_to_ball
from wmr_cli.core.protocols import AttackResult, Batch, Objective, StepReport
from wmr_cli.core.run_attack import (
    ThreatModel,
    check_batch,
    check_log_weights,
    check_logits,
    check_report,
    exceeds_eps,
    predictions,
    run_attack,
)
from wmr_cli.core.traits import AttackTraits
from wmr_cli.errors import BrokenContract

BATCH = Batch(
    torch.full((4, 1, 3, 3), 0.5), torch.tensor([0, 1, 2, 0]), torch.tensor([10, 20, 30, 40])
)
LOGITS = torch.zeros(4, 3)


def with_third(tensor: Tensor, value: float) -> Tensor:
    changed = tensor.clone()
    changed[2] = value
    return changed


def with_third_corner(tensor: Tensor, value: float) -> Tensor:
    changed = tensor.clone()
    changed[2].view(-1)[-1] = value
    return changed


@dataclass(frozen=True, eq=False)
class Returns:
    """An attack that returns the images and logits it was built with."""

    images: Tensor
    logits: Tensor = LOGITS

    traits = AttackTraits()

    def __call__(
        self,
        model: nn.Module,
        batch: Batch,
        objective: Objective,
        *,
        seed: int,
        need_logits: bool = True,
    ) -> AttackResult:
        return AttackResult(self.images, torch.zeros_like(batch.labels), self.logits)


def run_checked(
    attack: "ReturnsAnything | Returns", norm: str = "linf", eps: float = 0.1
) -> AttackResult:
    threat = ThreatModel(NORMS[norm], eps, num_classes=3)
    return run_attack(attack, torch.nn.Identity(), BATCH, cross_entropy, threat, seed=0)


def test_valid_batch_and_logits_pass() -> None:
    corners = dataclasses.replace(
        BATCH, images=torch.tensor([0.0, 1.0, 0.0, 1.0])[:, None, None, None].expand(4, 1, 3, 3)
    )
    check_batch(BATCH, 3)
    check_batch(corners, 3)
    check_logits(LOGITS, BATCH.index, 3)


@pytest.mark.parametrize(
    "pixel", [-1e-6, 1 + 1e-6, 255.0, float("nan"), float("inf"), -float("inf")]
)
def test_pixels_outside_the_unit_range_are_refused(pixel: float) -> None:
    broken = dataclasses.replace(BATCH, images=with_third_corner(BATCH.images, pixel))
    with pytest.raises(BrokenContract, match="image 30: ") as refused:
        check_batch(broken, 3)
    assert refused.value.hint


@pytest.mark.parametrize("label", [-1, 3, 99])
def test_labels_outside_the_classes_are_refused(label: int) -> None:
    with pytest.raises(BrokenContract, match=r"image 30: .*label"):
        check_batch(dataclasses.replace(BATCH, labels=with_third(BATCH.labels, label)), 3)


@pytest.mark.parametrize("shape", [(4, 2), (4, 4), (3, 3), (4,), (4, 3, 1), (12,)])
def test_logits_of_another_shape_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(BrokenContract, match="for 4 images of 3 classes"):
        check_logits(torch.zeros(shape), BATCH.index, 3)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_logits_that_are_not_finite_are_refused(value: float) -> None:
    with pytest.raises(BrokenContract, match=r"image 30: .*logits"):
        check_logits(with_third_corner(LOGITS, value), BATCH.index, 3)


def test_attack_inside_the_eps_ball_passes() -> None:
    images = BATCH.images + 0.1
    assert torch.equal(run_checked(Returns(images)).images, images)


@pytest.mark.parametrize(
    ("norm", "pixel"), [("linf", 0.6001), ("linf", 0.3999), ("l2", 0.6001), ("l2", 0.3999)]
)
def test_attack_that_leaves_the_eps_ball_is_refused(norm: str, pixel: float) -> None:
    with pytest.raises(BrokenContract, match=r"image 30: Returns .*0\.1"):
        run_checked(Returns(with_third_corner(BATCH.images, pixel)), norm)


def test_l2_ball_is_smaller_than_the_linf_ball() -> None:
    images = with_third(BATCH.images, 0.55)
    run_checked(Returns(images), "linf")
    with pytest.raises(BrokenContract, match="image 30: Returns "):
        run_checked(Returns(images), "l2")


@pytest.mark.parametrize("pixel", [-0.01, 1.01, float("nan")])
def test_an_attack_that_leaves_the_unit_range_is_refused(pixel: float) -> None:
    with pytest.raises(BrokenContract, match=r"image 30: Returns left \[0, 1\]"):
        run_checked(Returns(with_third_corner(BATCH.images, pixel)), eps=2.0)


def test_an_attack_with_broken_logits_is_refused() -> None:
    with pytest.raises(BrokenContract, match=r"image 30: .*logits"):
        run_checked(Returns(BATCH.images, with_third_corner(LOGITS, float("nan"))))
    with pytest.raises(BrokenContract, match="outputs of shape"):
        run_checked(Returns(BATCH.images, torch.zeros(4, 5)))


@pytest.mark.parametrize(
    "shape", [(1, 1, 3, 3), (4, 1, 1, 1), (4, 2, 3, 3), (4, 1, 2, 3), (3, 1, 3, 3)]
)
def test_an_attack_that_changes_the_shape_is_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(BrokenContract, match="made images of shape"):
        run_checked(Returns(torch.full(shape, 0.5)))


def test_a_single_class_is_refused() -> None:
    with pytest.raises(BrokenContract, match="1 classes"):
        check_logits(torch.zeros(4, 1), BATCH.index, 1)


@pytest.mark.parametrize("eps", [3.0, 20.0])
def test_rounding_of_large_images_stays_within_the_tolerance(eps: float) -> None:
    images = torch.rand(1, 3, 224, 224, generator=torch.Generator().manual_seed(0)) * 0.2 + 0.4
    moved = project_to_ball(
        images,
        images + torch.randn(images.shape, generator=torch.Generator().manual_seed(1)),
        NORMS["l2"],
        eps,
    )
    size = NORMS["l2"].size(moved - images)
    assert not exceeds_eps(size, eps).any()
    assert exceeds_eps(size * 1.001, eps).all()


def test_error_names_the_first_invalid_image() -> None:
    images = BATCH.images.clone()
    images[1:] = 2.0
    with pytest.raises(BrokenContract, match="image 20"):
        check_batch(dataclasses.replace(BATCH, images=images), 3)


def test_prediction_is_the_first_of_equal_largest_logits() -> None:
    logits = torch.tensor([[0.0, 2.0, 2.0], [1.0, 0.0, 1.0], [0.0, 0.0, 0.0]])
    assert predictions(logits).tolist() == [1, 0, 0]


def set_value(tensor: Tensor, value: float) -> None:
    with torch.no_grad():
        tensor.fill_(value)


def replace_weight(model: nn.Sequential) -> None:
    convolution = instance_of(nn.Conv2d, model[0])
    convolution.weight = nn.Parameter(convolution.weight.detach().clone())


def leave_gradients(model: nn.Module) -> None:
    model(BATCH.images).sum().backward()


def update_statistics(model: nn.Sequential) -> None:
    model[1].training = True
    with torch.no_grad():
        model(BATCH.images + torch.rand_like(BATCH.images))
    model[1].training = False


def run_damaging_attack(model: nn.Module, damage: Callable[..., Any]) -> AttackResult:
    """Run an attack that calls `damage` on the model."""

    class ChangesModel:
        traits = AttackTraits()

        def __call__(
            self,
            model: nn.Module,
            batch: Batch,
            objective: Objective,
            *,
            seed: int,
            need_logits: bool = True,
        ) -> AttackResult:
            damage(model)
            return AttackResult(batch.images, torch.zeros_like(batch.labels), LOGITS)

    threat = ThreatModel(NORMS["linf"], 0.1, num_classes=3)
    return run_attack(ChangesModel(), model, BATCH, cross_entropy, threat, seed=0)


def small_network() -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2)).eval()


@pytest.mark.parametrize(
    ("damage", "problem"),
    [
        (lambda model: model.train(), "ChangesModel changed the mode"),
        (lambda model: setattr(model[1], "training", True), "ChangesModel changed the mode"),
        (lambda model: set_value(model[0].bias, 3.0), r"changed '0\.bias'"),
        (lambda model: model[0].bias.requires_grad_(False), r"changed '0\.bias'"),
        (replace_weight, r"changed '0\.weight'"),
        (leave_gradients, r"changed '0\.bias'"),
        (lambda model: set_value(model[1].running_mean, 3.0), r"changed '1\.running_mean'"),
        (update_statistics, r"changed '1\.num_batches_tracked'"),
        (lambda model: model.append(nn.Linear(1, 1)), "changed the mode"),
    ],
)
def test_an_attack_that_changes_the_model_is_refused(
    damage: Callable[..., Any], problem: str
) -> None:
    with pytest.raises(BrokenContract, match=problem) as refused:
        run_damaging_attack(small_network(), damage)
    assert refused.value.hint


def test_buffers_of_several_types_are_compared() -> None:
    model = small_network()
    model.register_buffer("mask", torch.tensor([True, False]))
    model.register_buffer("empty", torch.zeros(0))
    model.register_buffer("unknown", torch.full((2,), float("nan")))
    run_damaging_attack(model, lambda model: None)
    with pytest.raises(BrokenContract, match="changed 'mask'"):
        run_damaging_attack(model, lambda model: model.mask.logical_not_())
    with pytest.raises(BrokenContract, match="changed 'unknown'"):
        run_damaging_attack(model, lambda model: model.unknown.zero_())
    with pytest.raises(BrokenContract, match="changed 'empty'"):
        run_damaging_attack(model, lambda model: setattr(model, "empty", torch.zeros(1)))
    with pytest.raises(BrokenContract, match="changed 'mask'"):
        run_damaging_attack(model, lambda model: model.register_buffer("mask", None))


def test_attack_may_use_forward_and_backward_passes() -> None:
    model = small_network()
    set_value(model.get_buffer("1.running_mean"), float("nan"))
    leave_gradients(model)
    images = BATCH.images.clone().requires_grad_()
    run_damaging_attack(model, lambda model: torch.autograd.grad(model(images).sum(), images))


def test_statistics_may_change_in_train_mode() -> None:
    model = small_network().train()
    run_damaging_attack(model, lambda model: model(BATCH.images))
    with pytest.raises(BrokenContract, match=r"changed '0\.bias'"):
        run_damaging_attack(model, lambda model: set_value(model[0].bias, 3.0))


@dataclass(frozen=True)
class ReturnsAnything:
    """An attack that returns any object."""

    result: Any

    traits = AttackTraits()

    def __call__(
        self,
        model: nn.Module,
        batch: Batch,
        objective: Objective,
        *,
        seed: int,
        need_logits: bool = True,
    ) -> AttackResult:
        result: AttackResult = self.result
        return result


STEPS = torch.zeros(4, dtype=torch.int64)


@pytest.mark.parametrize(
    ("result", "problem"),
    [
        (None, "returned a NoneType without a tensor 'images'"),
        (BATCH.images, "returned a Tensor without a tensor 'images'"),
        ((BATCH.images, LOGITS, STEPS), "returned a tuple without a tensor 'images'"),
        (AttackResult(cast(Tensor, None), STEPS, LOGITS), "without a tensor 'images'"),
        (AttackResult(BATCH.images, STEPS), "without a tensor 'logits'"),
        (
            AttackResult(BATCH.images, STEPS, cast(Tensor, LOGITS.tolist())),
            "without a tensor 'logits'",
        ),
        (
            AttackResult(BATCH.images, cast(Tensor, None), LOGITS),
            "without a tensor 'steps_survived'",
        ),
        (
            AttackResult(BATCH.images, STEPS[:3], LOGITS),
            "steps_survived of shape (3,) for 4 images",
        ),
        (AttackResult(BATCH.images.byte(), STEPS, LOGITS), "returned images as torch.uint8"),
        (AttackResult(BATCH.images, STEPS, LOGITS.long()), "returned logits as torch.int64"),
        (AttackResult(BATCH.images.to("meta"), STEPS, LOGITS), "returned images on meta"),
    ],
)
def test_invalid_attack_result_is_refused(
    result: Tensor | tuple[Tensor, Tensor, Tensor] | AttackResult | None, problem: str
) -> None:
    with pytest.raises(BrokenContract) as refused:
        run_checked(ReturnsAnything(result))
    assert problem in str(refused.value)
    assert "AttackResult" in refused.value.hint


@pytest.mark.parametrize(
    ("result", "problem"),
    [
        (None, "without a tensor 'images'"),
        (AttackResult(BATCH.images + 1, STEPS), "left"),
        (AttackResult(BATCH.images, STEPS, LOGITS / 0), "not finite"),
    ],
)
def test_a_result_is_checked_even_when_its_logits_are_not_needed(
    result: AttackResult | None, problem: str
) -> None:
    threat = ThreatModel(NORMS["linf"], 0.1, num_classes=3)
    with pytest.raises(BrokenContract, match=problem):
        run_attack(
            ReturnsAnything(result),
            nn.Identity(),
            BATCH,
            cross_entropy,
            threat,
            seed=0,
            need_logits=False,
        )


def test_logits_may_be_left_out_when_they_are_not_needed() -> None:
    threat = ThreatModel(NORMS["linf"], 0.1, num_classes=3)
    attack = ReturnsAnything(AttackResult(BATCH.images, STEPS))
    result = run_attack(
        attack, nn.Identity(), BATCH, cross_entropy, threat, seed=0, need_logits=False
    )
    assert result.logits is None
    with pytest.raises(BrokenContract, match="no logits"):
        result.require_logits()


@pytest.mark.parametrize(
    "batch",
    [
        None,
        (BATCH.images, BATCH.labels, BATCH.index),
        dataclasses.replace(BATCH, labels=cast(Tensor, None)),
        dataclasses.replace(BATCH, labels=BATCH.labels.float()),
        dataclasses.replace(BATCH, labels=BATCH.labels[:3]),
        dataclasses.replace(BATCH, index=BATCH.index[:, None]),
        dataclasses.replace(BATCH, images=BATCH.images.byte()),
        dataclasses.replace(BATCH, images=BATCH.images[0]),
    ],
    ids=[
        "nothing",
        "tuple",
        "no labels",
        "float labels",
        "few labels",
        "index in two dimensions",
        "bytes",
        "one image",
    ],
)
def test_invalid_batch_is_refused(
    batch: tuple[Tensor, Tensor, Tensor] | Batch | None,
) -> None:
    with pytest.raises(BrokenContract, match="dataset") as refused:
        check_batch(cast(Batch, batch), 3)
    assert "Batch(images, labels, index)" in refused.value.hint


@pytest.mark.parametrize("outputs", [None, (LOGITS, LOGITS), [0.0]])
def test_outputs_that_are_not_a_tensor_are_refused(
    outputs: list[float] | tuple[Tensor, Tensor] | None,
) -> None:
    with pytest.raises(BrokenContract, match="the model returned a") as refused:
        check_logits(cast(Tensor, outputs), BATCH.index, 3)
    assert refused.value.hint


@pytest.mark.parametrize(
    ("log_weights", "problem"),
    [
        (None, "returned a NoneType"),
        (torch.zeros(3), r"of shape \(3,\) for 4 images"),
        (torch.zeros(4, 1), r"of shape \(4, 1\) for 4 images"),
        (torch.zeros(4, dtype=torch.int64), "returned torch.int64"),
        (torch.tensor([0.0, float("nan"), 0.0, 0.0]), "NaN"),
        (torch.tensor([0.0, float("inf"), 0.0, 0.0]), "inf"),
    ],
)
def test_invalid_log_weights_are_refused(log_weights: Tensor | None, problem: str) -> None:
    with pytest.raises(BrokenContract, match=problem) as refused:
        check_log_weights(run_checked, cast(Tensor, log_weights), 4)
    assert refused.value.hint
    check_log_weights(run_checked, torch.tensor([0.0, -float("inf"), 1.0, 2.0]), 4)


ONES = torch.ones(4)


@pytest.mark.parametrize(
    "report",
    [
        None,
        3.0,
        StepReport(ONES, ONES, ONES, cast(Tensor, None)),
        StepReport(ONES, ONES[:3], ONES, ONES > 0),
        StepReport(*[ONES.sum()] * 4),
    ],
    ids=["None", "a loss", "no correct", "few weights", "means"],
)
def test_invalid_step_report_is_refused(report: float | StepReport | None) -> None:
    with pytest.raises(BrokenContract, match="step of") as refused:
        check_report(run_checked, cast(StepReport, report), 4)
    assert "StepReport" in refused.value.hint
    check_report(run_checked, StepReport(ONES, ONES, ONES, ONES > 0), 4)

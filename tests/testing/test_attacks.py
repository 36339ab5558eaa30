"""`check_attack` passes an attack that keeps its promises, and names the one promise that another breaks."""

import random
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from wmr_cli.core import rng
from wmr_cli.core.losses import cross_entropy
from wmr_cli.core.protocols import AttackResult, Batch, Objective
from wmr_cli.core.traits import AttackTraits, KernelTraits
from wmr_cli.testing import check_attack, tiny_batch, tiny_model
from wmr_cli.testing.attacks import _Asked, _PerImage


@dataclass(frozen=True)
class OneStep:
    """A random start and one signed gradient step. Each method is a promise that a mutant below breaks."""

    eps: float = 0.1

    traits = AttackTraits()

    def __call__(
        self,
        model: nn.Module,
        batch: Batch,
        objective: Objective | _Asked | _PerImage,
        *,
        seed: int,
        need_logits: bool = True,
    ) -> AttackResult:
        moved = self.moved(model, batch.images, batch.labels, objective, batch.index, seed)
        return self.result(*moved, batch.labels)

    def moved(
        self,
        model: nn.Module,
        images: Tensor,
        labels: Tensor,
        objective: Objective | _Asked | _PerImage,
        index: Tensor,
        seed: int,
    ) -> tuple[Tensor, Tensor]:
        begin = (
            (images + self.eps * (2 * self.drawn(images, index, seed) - 1))
            .clamp(0, 1)
            .requires_grad_()
        )
        (gradient,) = torch.autograd.grad(objective(model(begin), labels).sum(), begin)
        stepped = begin.detach() + self.eps * self.direction(gradient)
        moved = self.boxed(images, stepped)
        with torch.no_grad():
            return moved, model(moved)

    def drawn(self, images: Tensor, index: Tensor, seed: int) -> Tensor:
        return rng.uniform(images, index, seed)

    def direction(self, gradient: Tensor) -> Tensor:
        return gradient.sign()

    def boxed(self, images: Tensor, moved: Tensor) -> Tensor:
        return (images + (moved - images).clamp(-self.eps, self.eps)).clamp(0, 1)

    def result(self, moved: Tensor, logits: Tensor, labels: Tensor) -> AttackResult:
        return AttackResult(moved, (logits.argmax(dim=1) == labels).long(), logits)


class SkipsLogits(OneStep):
    def __call__(
        self,
        model: nn.Module,
        batch: Batch,
        objective: Objective | _Asked | _PerImage,
        *,
        seed: int,
        need_logits: bool = True,
    ) -> AttackResult:
        result = super().__call__(model, batch, objective, seed=seed)
        return result if need_logits else replace(result, logits=None)


class NeverGivesLogits(SkipsLogits):
    def __call__(
        self,
        model: nn.Module,
        batch: Batch,
        objective: Objective,
        *,
        seed: int,
        need_logits: bool = True,
    ) -> AttackResult:
        return super().__call__(model, batch, objective, seed=seed, need_logits=False)


class DiffersWithoutLogits(SkipsLogits):
    def __call__(
        self,
        model: nn.Module,
        batch: Batch,
        objective: Objective | _Asked,
        *,
        seed: int,
        need_logits: bool = True,
    ) -> AttackResult:
        seed = seed if need_logits else seed + 1
        return super().__call__(model, batch, objective, seed=seed, need_logits=need_logits)


class LeavesBall(OneStep):
    def boxed(self, images: Tensor, moved: Tensor) -> Tensor:
        return (images + (moved - images).clamp(-2 * self.eps, 2 * self.eps)).clamp(0, 1)


class LeavesRange(OneStep):
    def boxed(self, images: Tensor, moved: Tensor) -> Tensor:
        return images + (moved - images).clamp(-self.eps, self.eps)


class MakesNan(OneStep):
    def boxed(self, images: Tensor, moved: Tensor) -> Tensor:
        return super().boxed(images, moved) / (images > 0)  # 0 / 0 in the black image


class ReturnsFewer(OneStep):
    def result(self, moved: Tensor, logits: Tensor, labels: Tensor) -> AttackResult:
        return super().result(moved[1:], logits, labels)


class ReturnsDoubles(OneStep):
    def result(self, moved: Tensor, logits: Tensor, labels: Tensor) -> AttackResult:
        return super().result(moved.double(), logits, labels)


class KeepsGraph(OneStep):
    def result(self, moved: Tensor, logits: Tensor, labels: Tensor) -> AttackResult:
        return super().result(moved.requires_grad_(), logits, labels)


class ReturnsOldLogits(OneStep):
    def result(self, moved: Tensor, logits: Tensor, labels: Tensor) -> AttackResult:
        return super().result(moved, logits + 0.01, labels)


class CountsNothing(OneStep):
    def result(self, moved: Tensor, logits: Tensor, labels: Tensor) -> AttackResult:
        return AttackResult(moved, torch.zeros(1, dtype=torch.long), logits)


class CountsShares(OneStep):
    def result(self, moved: Tensor, logits: Tensor, labels: Tensor) -> AttackResult:
        return AttackResult(moved, torch.full_like(labels, 0.5, dtype=torch.float32), logits)


class Descends(OneStep):
    def direction(self, gradient: Tensor) -> Tensor:
        return -2 * gradient.sign()


class ClimbsItsOwn(OneStep):
    def moved(
        self,
        model: nn.Module,
        images: Tensor,
        labels: Tensor,
        objective: Objective | _Asked | _PerImage,
        index: Tensor,
        seed: int,
    ) -> tuple[Tensor, Tensor]:
        return super().moved(model, images, labels, cross_entropy, index, seed)


class DrawsFromTorch(OneStep):
    def drawn(self, images: Tensor, index: Tensor, seed: int) -> Tensor:
        return torch.rand_like(images)


class DrawsFromPython(OneStep):
    def drawn(self, images: Tensor, index: Tensor, seed: int) -> Tensor:
        return torch.full_like(images, random.random())


class DrawsByPlace(OneStep):
    def drawn(self, images: Tensor, index: Tensor, seed: int) -> Tensor:
        return rng.uniform(images, torch.arange(len(index)), seed)


class LooksAtNeighbours(OneStep):
    def direction(self, gradient: Tensor) -> Tensor:
        return gradient.mean(dim=0, keepdim=True).sign()


class ForgetsRows(OneStep):
    """Leaves fooled images alone, and asks about the others with the objective of all."""

    def moved(
        self,
        model: nn.Module,
        images: Tensor,
        labels: Tensor,
        objective: Objective | _Asked | _PerImage,
        index: Tensor,
        seed: int,
    ) -> tuple[Tensor, Tensor]:
        rows = (model(images).argmax(dim=1) == labels).nonzero().squeeze(1)
        moved = images.clone()
        moved[rows], _ = super().moved(
            model, images[rows], labels[rows], objective, index[rows], seed
        )
        with torch.no_grad():
            return moved, model(moved)


class MovesWithoutRadius(OneStep):
    """The smallest step that 8 bits can show, however small the ball."""

    def boxed(self, images: Tensor, moved: Tensor) -> Tensor:
        radius = max(self.eps, 1 / 255)
        return (images + (moved - images).clamp(-radius, radius)).clamp(0, 1)

    def drawn(self, images: Tensor, index: Tensor, seed: int) -> Tensor:
        return rng.uniform(images, index, seed) + 0.01 * (self.eps == 0)

    def direction(self, gradient: Tensor) -> Tensor:
        return gradient.sign() * (1 if self.eps else torch.inf)


class Touches(OneStep):
    """Changes the model before the attack."""

    def touch(self, model: nn.Module, images: Tensor) -> None:
        raise NotImplementedError

    def moved(
        self,
        model: nn.Module,
        images: Tensor,
        labels: Tensor,
        objective: Objective | _Asked | _PerImage,
        index: Tensor,
        seed: int,
    ) -> tuple[Tensor, Tensor]:
        self.touch(model, images)
        return super().moved(model, images, labels, objective, index, seed)


class LeavesEvalMode(Touches):
    def touch(self, model: nn.Module, images: Tensor) -> None:
        model.eval()


class FreezesParameters(Touches):
    def touch(self, model: nn.Module, images: Tensor) -> None:
        model.requires_grad_(False)


class ForgetsGradients(Touches):
    def touch(self, model: nn.Module, images: Tensor) -> None:
        model.zero_grad()


class AddsGradients(Touches):
    def touch(self, model: nn.Module, images: Tensor) -> None:
        model(images).sum().backward()


class WritesParameters(Touches):
    def touch(self, model: nn.Module, images: Tensor) -> None:
        next(model.parameters()).data[0] += 1e-3  # which no version counter sees


class WritesBuffers(Touches):
    def touch(self, model: nn.Module, images: Tensor) -> None:
        for buffer in model.buffers():
            buffer += 1


class WritesImages(Touches):
    def touch(self, model: nn.Module, images: Tensor) -> None:
        images.mul_(0.5)


@dataclass
class NotFrozen:
    eps: float = 0.1
    __call__, moved, drawn = OneStep.__call__, OneStep.moved, OneStep.drawn
    direction, boxed, result = OneStep.direction, OneStep.boxed, OneStep.result


@dataclass(frozen=True)
class HoldsModel(OneStep):
    model: nn.Module = field(default_factory=tiny_model)


@dataclass(frozen=True)
class HoldsTensor(OneStep):
    radii: Tensor = field(default_factory=lambda: torch.ones(3))


class UnknownObjective(OneStep):
    traits = AttackTraits(objective="cross-entropy")


class UnknownNorm(OneStep):
    traits = AttackTraits(norms=frozenset({"linf", "l1"}))


@dataclass(frozen=True)
class WithoutTraits(OneStep):
    traits = None  # type: ignore[assignment]


class TraitsOfAKernel(OneStep):
    traits = KernelTraits()  # type: ignore[assignment]


class LossOf01(OneStep):
    loss = "ce"


class StopsEarlyOf01(OneStep):
    @property
    def stops_early(self) -> bool:
        return False


class FollowsPresetOf01(OneStep):
    follows_preset = True


@dataclass(frozen=True)
class IgnoredLoss(OneStep):
    loss: str = "margin"


class RemarksNumbers(OneStep):
    def remarks(self, num_classes: int) -> Iterator[int]:
        yield num_classes


MUTANTS = {
    NeverGivesLogits: "no logits",
    DiffersWithoutLogits: "need_logits=False",
    LeavesBall: r"left the linf ball of radius 0\.1",
    LeavesRange: r"left \[0, 1\]",
    MakesNan: r"left \[0, 1\]",
    ReturnsFewer: r"images of shape \(11, 1, 8, 8\) for \(12, 1, 8, 8\)",
    ReturnsDoubles: r"images of type torch\.float64",
    KeepsGraph: "carry a graph",
    ReturnsOldLogits: "logits are not those of the returned images",
    CountsNothing: "steps_survived",
    CountsShares: "steps_survived",
    Descends: "does not climb",
    ClimbsItsOwn: "never asks for the objective",
    DrawsFromTorch: "same seed gives other images",
    DrawsFromPython: "same seed gives other images",
    DrawsByPlace: "depends on the other images of its batch",
    LooksAtNeighbours: "depends on the other images of its batch",
    ForgetsRows: "select_rows",
    MovesWithoutRadius: "with a radius of 0",
    LeavesEvalMode: "changed the model's mode",
    FreezesParameters: "which parameters of the model want gradients",
    ForgetsGradients: "changed the gradients of the parameters",
    AddsGradients: "changed the gradients of the parameters",
    WritesParameters: r"changed 0\.weight of the model",
    WritesBuffers: r"changed 1\.num_batches_tracked, 1\.running_mean, 1\.running_var of the model",
    WritesImages: "wrote into the images",
    NotFrozen: "frozen dataclass",
    HoldsModel: "never a network or tensors: model",
    HoldsTensor: "never a network or tensors: radii",
    UnknownObjective: "`objective` is 'cross-entropy'",
    UnknownNorm: "`norms` has l1",
    WithoutTraits: r"without `traits`: add `traits = AttackTraits\(\)`",
    TraitsOfAKernel: "`traits` of the attack is a KernelTraits",
    LossOf01: "`loss` of wmr 0.1.*objective",
    StopsEarlyOf01: "`stops_early` of wmr 0.1",
    FollowsPresetOf01: "`follows_preset` of wmr 0.1",
    IgnoredLoss: "`loss` and the trait `objective` .* differ",
    RemarksNumbers: "`remarks`",
}


def test_an_attack_that_keeps_its_promises_passes() -> None:
    check_attack(OneStep())
    check_attack(SkipsLogits())


@pytest.mark.parametrize(
    ("mutant", "broken"), MUTANTS.items(), ids=lambda part: getattr(part, "__name__", "")
)
def test_a_broken_promise_is_named(mutant: type[Any], broken: str) -> None:
    with pytest.raises(AssertionError, match=broken):
        check_attack(mutant())


def test_an_attack_that_stops_early_may_climb_its_own() -> None:
    class StopsEarly(ClimbsItsOwn):
        traits = AttackTraits(stops_early=True)

    check_attack(StopsEarly())


def test_the_model_comes_back_as_it_was_even_from_a_failed_check() -> None:
    model = tiny_model().train()
    with pytest.raises(AssertionError, match="does not climb"):
        check_attack(Descends(), model, tiny_batch(5))
    assert model.training
    assert all(parameter.grad is None for parameter in model.parameters())

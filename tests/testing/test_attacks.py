"""`check_attack` accepts a correct attack and names the rule that each mutant violates."""

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


@dataclass(frozen=True)
class OneStep:
    """A random start and one signed gradient step. Each mutant below overrides one method."""

    eps: float = 0.1

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
        moved = self.move(model, batch.images, batch.labels, objective, batch.index, seed)
        return self.result(*moved, batch.labels)

    def move(
        self,
        model: nn.Module,
        images: Tensor,
        labels: Tensor,
        objective: Objective,
        index: Tensor,
        seed: int,
    ) -> tuple[Tensor, Tensor]:
        begin = (
            (images + self.eps * (2 * self.random_numbers(images, index, seed) - 1))
            .clamp(0, 1)
            .requires_grad_()
        )
        (gradient,) = torch.autograd.grad(objective(model(begin), labels).sum(), begin)
        stepped = begin.detach() + self.eps * self.direction(gradient)
        moved = self.project(images, stepped)
        with torch.no_grad():
            return moved, model(moved)

    def random_numbers(self, images: Tensor, index: Tensor, seed: int) -> Tensor:
        return rng.uniform(images, index, seed)

    def direction(self, gradient: Tensor) -> Tensor:
        return gradient.sign()

    def project(self, images: Tensor, moved: Tensor) -> Tensor:
        return (images + (moved - images).clamp(-self.eps, self.eps)).clamp(0, 1)

    def result(self, moved: Tensor, logits: Tensor, labels: Tensor) -> AttackResult:
        return AttackResult(moved, (logits.argmax(dim=1) == labels).long(), logits)


class SkipsLogits(OneStep):
    def __call__(
        self,
        model: nn.Module,
        batch: Batch,
        objective: Objective,
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
        objective: Objective,
        *,
        seed: int,
        need_logits: bool = True,
    ) -> AttackResult:
        seed = seed if need_logits else seed + 1
        return super().__call__(model, batch, objective, seed=seed, need_logits=need_logits)


class LeavesEpsBall(OneStep):
    def project(self, images: Tensor, moved: Tensor) -> Tensor:
        return (images + (moved - images).clamp(-2 * self.eps, 2 * self.eps)).clamp(0, 1)


class LeavesRange(OneStep):
    def project(self, images: Tensor, moved: Tensor) -> Tensor:
        return images + (moved - images).clamp(-self.eps, self.eps)


class ReturnsNan(OneStep):
    def project(self, images: Tensor, moved: Tensor) -> Tensor:
        return super().project(images, moved) / (images > 0)  # 0 / 0 in the black image


class ReturnsFewerImages(OneStep):
    def result(self, moved: Tensor, logits: Tensor, labels: Tensor) -> AttackResult:
        return super().result(moved[1:], logits, labels)


class ReturnsFloat64(OneStep):
    def result(self, moved: Tensor, logits: Tensor, labels: Tensor) -> AttackResult:
        return super().result(moved.double(), logits, labels)


class ReturnsGraph(OneStep):
    def result(self, moved: Tensor, logits: Tensor, labels: Tensor) -> AttackResult:
        return super().result(moved.requires_grad_(), logits, labels)


class ReturnsOtherLogits(OneStep):
    def result(self, moved: Tensor, logits: Tensor, labels: Tensor) -> AttackResult:
        return super().result(moved, logits + 0.01, labels)


class ReturnsOneCount(OneStep):
    def result(self, moved: Tensor, logits: Tensor, labels: Tensor) -> AttackResult:
        return AttackResult(moved, torch.zeros(1, dtype=torch.long), logits)


class ReturnsFractionalCounts(OneStep):
    def result(self, moved: Tensor, logits: Tensor, labels: Tensor) -> AttackResult:
        return AttackResult(moved, torch.full_like(labels, 0.5, dtype=torch.float32), logits)


class LowersLoss(OneStep):
    def direction(self, gradient: Tensor) -> Tensor:
        return -2 * gradient.sign()


class IgnoresObjective(OneStep):
    def move(
        self,
        model: nn.Module,
        images: Tensor,
        labels: Tensor,
        objective: Objective,
        index: Tensor,
        seed: int,
    ) -> tuple[Tensor, Tensor]:
        return super().move(model, images, labels, cross_entropy, index, seed)


class UsesTorchGenerator(OneStep):
    def random_numbers(self, images: Tensor, index: Tensor, seed: int) -> Tensor:
        return torch.rand_like(images)


class UsesPythonGenerator(OneStep):
    def random_numbers(self, images: Tensor, index: Tensor, seed: int) -> Tensor:
        return torch.full_like(images, random.random())


class UsesBatchPosition(OneStep):
    def random_numbers(self, images: Tensor, index: Tensor, seed: int) -> Tensor:
        return rng.uniform(images, torch.arange(len(index)), seed)


class UsesOtherImages(OneStep):
    def direction(self, gradient: Tensor) -> Tensor:
        return gradient.mean(dim=0, keepdim=True).sign()


class UsesObjectiveOfAllRows(OneStep):
    """Attacks only the correct images, but with the objective of all images."""

    def move(
        self,
        model: nn.Module,
        images: Tensor,
        labels: Tensor,
        objective: Objective,
        index: Tensor,
        seed: int,
    ) -> tuple[Tensor, Tensor]:
        rows = (model(images).argmax(dim=1) == labels).nonzero().squeeze(1)
        moved = images.clone()
        moved[rows], _ = super().move(
            model, images[rows], labels[rows], objective, index[rows], seed
        )
        with torch.no_grad():
            return moved, model(moved)


class MovesAtZeroRadius(OneStep):
    """Moves by at least one 8-bit level, also where eps is 0."""

    def project(self, images: Tensor, moved: Tensor) -> Tensor:
        radius = max(self.eps, 1 / 255)
        return (images + (moved - images).clamp(-radius, radius)).clamp(0, 1)

    def random_numbers(self, images: Tensor, index: Tensor, seed: int) -> Tensor:
        return rng.uniform(images, index, seed) + 0.01 * (self.eps == 0)

    def direction(self, gradient: Tensor) -> Tensor:
        return gradient.sign() * (1 if self.eps else torch.inf)


class ChangesModel(OneStep):
    """Changes the model before the attack."""

    def change(self, model: nn.Module, images: Tensor) -> None:
        raise NotImplementedError

    def move(
        self,
        model: nn.Module,
        images: Tensor,
        labels: Tensor,
        objective: Objective,
        index: Tensor,
        seed: int,
    ) -> tuple[Tensor, Tensor]:
        self.change(model, images)
        return super().move(model, images, labels, objective, index, seed)


class ChangesMode(ChangesModel):
    def change(self, model: nn.Module, images: Tensor) -> None:
        model.eval()


class FreezesParameters(ChangesModel):
    def change(self, model: nn.Module, images: Tensor) -> None:
        model.requires_grad_(False)


class ResetsGradients(ChangesModel):
    def change(self, model: nn.Module, images: Tensor) -> None:
        model.zero_grad()


class AddsGradients(ChangesModel):
    def change(self, model: nn.Module, images: Tensor) -> None:
        model(images).sum().backward()


class WritesParameters(ChangesModel):
    def change(self, model: nn.Module, images: Tensor) -> None:
        next(model.parameters()).data[0] += 1e-3  # no version counter changes


class WritesBuffers(ChangesModel):
    def change(self, model: nn.Module, images: Tensor) -> None:
        for buffer in model.buffers():
            buffer += 1


class WritesImages(ChangesModel):
    def change(self, model: nn.Module, images: Tensor) -> None:
        images.mul_(0.5)


@dataclass
class NotFrozen:
    eps: float = 0.1

    traits = AttackTraits()
    __call__ = OneStep.__call__
    move = OneStep.move
    random_numbers = OneStep.random_numbers
    direction = OneStep.direction
    project = OneStep.project
    result = OneStep.result


@dataclass(frozen=True)
class HoldsModel(OneStep):
    model: nn.Module = field(default_factory=tiny_model)


@dataclass(frozen=True)
class HoldsTensor(OneStep):
    radii: Tensor = field(default_factory=lambda: torch.ones(3))


class UnknownObjective(OneStep):
    traits = AttackTraits(objective="cross-entropy")


class TraitInTheClass(OneStep):
    norms = frozenset({"linf"})


class MisspeltTrait(OneStep):
    follow_preset = True


class MisspeltAbility(OneStep):
    def remark(self, num_classes: int) -> list[str]:
        return ["slow"]


class CraftOf01(OneStep):
    def craft(self) -> None: ...


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


class YieldsNumbersAsRemarks(OneStep):
    def remarks(self, num_classes: int) -> Iterator[int]:
        yield num_classes


MUTANTS = {
    NeverGivesLogits: "no logits",
    DiffersWithoutLogits: "need_logits=False",
    LeavesEpsBall: r"left the linf ball of radius 0\.1",
    LeavesRange: r"left \[0, 1\]",
    ReturnsNan: r"left \[0, 1\]",
    ReturnsFewerImages: r"images of shape \(11, 1, 8, 8\) for \(12, 1, 8, 8\)",
    ReturnsFloat64: r"images of type torch\.float64",
    ReturnsGraph: "has a graph",
    ReturnsOtherLogits: "logits are not those of the returned images",
    ReturnsOneCount: "steps_survived",
    ReturnsFractionalCounts: "steps_survived",
    LowersLoss: "lowers the loss",
    IgnoresObjective: "does not use the given objective",
    UsesTorchGenerator: "same seed gives other images",
    UsesPythonGenerator: "same seed gives other images",
    UsesBatchPosition: "depends on the other images of its batch",
    UsesOtherImages: "depends on the other images of its batch",
    UsesObjectiveOfAllRows: "select_rows",
    MovesAtZeroRadius: "with a radius of 0",
    ChangesMode: "changed the model's mode",
    FreezesParameters: "requires_grad",
    ResetsGradients: "changed the gradients of the parameters",
    AddsGradients: "changed the gradients of the parameters",
    WritesParameters: r"changed 0\.weight of the model",
    WritesBuffers: r"changed 1\.num_batches_tracked, 1\.running_mean, 1\.running_var of the model",
    WritesImages: "wrote into the images",
    NotFrozen: "frozen dataclass",
    HoldsModel: "not a network or tensors: model",
    HoldsTensor: "not a network or tensors: radii",
    UnknownObjective: "`objective` is 'cross-entropy'",
    TraitInTheClass: "trait `norms` as an attribute of its class",
    MisspeltTrait: "`follow_preset`.*`follows_preset`",
    MisspeltAbility: "`remark`.*`remarks`",
    CraftOf01: "`craft` of wmr 0.1.*`need_logits`",
    WithoutTraits: r"without `traits`: add `traits = AttackTraits\(\)`",
    TraitsOfAKernel: "`traits` of the attack is a KernelTraits",
    LossOf01: "`loss` of wmr 0.1.*objective",
    StopsEarlyOf01: "`stops_early` of wmr 0.1",
    FollowsPresetOf01: "`follows_preset` of wmr 0.1",
    IgnoredLoss: "`loss` and the trait `objective` .* differ",
    YieldsNumbersAsRemarks: "`remarks`",
}


def test_a_correct_attack_passes() -> None:
    check_attack(OneStep())
    check_attack(SkipsLogits())


@pytest.mark.parametrize(
    ("mutant", "problem"), MUTANTS.items(), ids=lambda part: getattr(part, "__name__", "")
)
def test_the_check_names_the_violated_rule(mutant: type[Any], problem: str) -> None:
    with pytest.raises(AssertionError, match=problem):
        check_attack(mutant())


def test_an_attack_that_stops_early_may_ignore_the_objective() -> None:
    class StopsEarly(IgnoresObjective):
        traits = AttackTraits(stops_early=True)

    check_attack(StopsEarly())


def test_a_failed_check_restores_the_model() -> None:
    model = tiny_model().train()
    with pytest.raises(AssertionError, match="lowers the loss"):
        check_attack(LowersLoss(), model, tiny_batch(5))
    assert model.training
    assert all(parameter.grad is None for parameter in model.parameters())

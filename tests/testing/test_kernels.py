"""`check_kernel` accepts a correct kernel and names the rule that each mutant violates."""

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

from support.typed import not_none
from wmr_cli.core.losses import probability_margin
from wmr_cli.core.protocols import Evidence
from wmr_cli.core.traits import AttackTraits, KernelTraits
from wmr_cli.errors import BrokenContract
from wmr_cli.testing import check_kernel


@dataclass(frozen=True)
class CorrectKernel:
    """The paper's kernel."""

    alpha: float = 1.0

    traits = KernelTraits()

    def __call__(self, evidence: Evidence) -> Tensor:
        return -self.alpha * probability_margin(evidence.logits, evidence.labels)


class ReturnsScalar(CorrectKernel):
    def __call__(self, evidence: Evidence) -> Tensor:
        return super().__call__(evidence).mean()


class ReturnsWeightPerClass(CorrectKernel):
    def __call__(self, evidence: Evidence) -> Tensor:
        return evidence.logits


class ReturnsIntegers(CorrectKernel):
    def __call__(self, evidence: Evidence) -> Tensor:
        return super().__call__(evidence).round().long()


class ReturnsInfinity(CorrectKernel):
    def __call__(self, evidence: Evidence) -> Tensor:
        margins = probability_margin(evidence.logits, evidence.labels)
        return torch.where(margins < 0, torch.inf, 0.0)


class ReturnsNan(CorrectKernel):
    def __call__(self, evidence: Evidence) -> Tensor:
        return self.alpha * (0.5 - probability_margin(evidence.logits, evidence.labels)).log()


class RandomWeights(CorrectKernel):
    def __call__(self, evidence: Evidence) -> Tensor:
        return super().__call__(evidence) + torch.rand(len(evidence.labels))


class SortsWeights(CorrectKernel):
    def __call__(self, evidence: Evidence) -> Tensor:
        return super().__call__(evidence).sort().values


class ComparesImages(CorrectKernel):
    def __call__(self, evidence: Evidence) -> Tensor:
        return super().__call__(evidence).log_softmax(dim=0)


class DifferentiableComparison(ComparesImages):
    traits = KernelTraits(compares_images=True)


class DependsOnPrecision(CorrectKernel):
    """A constant that depends on the floating-point type."""

    def __call__(self, evidence: Evidence) -> Tensor:
        return (
            super().__call__(evidence) + self.alpha * torch.finfo(evidence.logits.dtype).bits / 32
        )


class UsesUndeclaredIndex(CorrectKernel):
    def __call__(self, evidence: Evidence) -> Tensor:
        return super().__call__(evidence) * evidence.index  # type: ignore[operator]


class WithoutTraits:
    def __call__(self, evidence: Evidence) -> Tensor:
        return evidence.logits.new_zeros(len(evidence.labels))


class TraitsOfAnAttack(WithoutTraits):
    traits = AttackTraits()


class NeedsOf01(CorrectKernel):
    needs = ("index",)


class DetachedOf01(CorrectKernel):
    detached = True


class ComparesOf01(CorrectKernel):
    compares = True


class MeanOneOf01(CorrectKernel):
    mean_one = True


class NeedsTrainingOf01(CorrectKernel):
    @property
    def needs_training(self) -> bool:
        return True


class StartEpochOf01(CorrectKernel):
    start_epoch = 60


class LargestMarginOf01(CorrectKernel):
    largest_margin = 10.0


class ReachOf01(CorrectKernel):
    def reach(self, index: Tensor) -> int:
        return len(index)


class TraitInTheClass(CorrectKernel):
    normalized = True


class MisspeltTrait(CorrectKernel):
    compare_images = True


class MisspeltAbility(CorrectKernel):
    def observes(self, evidence: Evidence) -> None: ...


@dataclass(frozen=True)
class IgnoredStartEpoch(CorrectKernel):
    start_epoch: int = 5


@dataclass(frozen=True)
class IgnoredTrait(CorrectKernel):
    differentiable: bool = False


class DifferentiableStepCount(CorrectKernel):
    traits = KernelTraits(needs=frozenset({"steps_survived"}))

    def __call__(self, evidence: Evidence) -> Tensor:
        return -self.alpha * not_none(evidence.steps_survived).float()


class InfiniteGradient(CorrectKernel):
    """(1 - p)^(alpha / 2): where p is 1 the gradient is 0 / 0, although the weight is finite."""

    def __call__(self, evidence: Evidence) -> Tensor:
        rest = 1 - evidence.logits.softmax(dim=1).gather(1, evidence.labels[:, None]).squeeze(1)
        return self.alpha * rest.sqrt()


class WeightedAtAlphaZero(CorrectKernel):
    def __call__(self, evidence: Evidence) -> Tensor:
        return super().__call__(evidence) + 1


class IgnoresLoadedState(CorrectKernel):
    """Does not restore its state."""

    def state(self) -> dict[str, Tensor]:
        return {"sum": torch.rand(3)}

    def load_state(self, state: dict[str, Tensor]) -> None:
        pass


class StateOfNumbers(CorrectKernel):
    def state(self) -> dict[str, float]:
        return {"sum": 3.0}

    def load_state(self, state: object) -> None:
        pass


class StateWithoutLoadState(CorrectKernel):
    def state(self) -> object:
        return {}


class ObservesToNan:
    """Divides by zero after its first observation."""

    traits = KernelTraits(differentiable=False)

    def __init__(self) -> None:
        self.scale = torch.ones(())

    def __call__(self, evidence: Evidence) -> Tensor:
        return evidence.labels / self.scale

    def observe(self, evidence: Evidence) -> None:
        self.scale = torch.zeros(())


MUTANTS = {
    ReturnsScalar: r"log-weights of shape \(\), not one for each of 12 images",
    ReturnsWeightPerClass: r"log-weights of shape \(12, 4\)",
    ReturnsIntegers: "log-weights of type torch.int64",
    ReturnsInfinity: "NaN or .inf",
    ReturnsNan: "NaN or .inf",
    ObservesToNan: "NaN or .inf",
    RandomWeights: "same evidence gives other log-weights",
    SortsWeights: "not in the order of the images",
    ComparesImages: "compares_images=True",
    DifferentiableComparison: "differentiable=False",
    DependsOnPrecision: "float64",
    UsesUndeclaredIndex: "fails with only logits, labels; .*`needs`",
    WithoutTraits: r"without `traits`: add `traits = KernelTraits\(\)`",
    TraitsOfAnAttack: "`traits` of the kernel is a AttackTraits",
    NeedsOf01: "`needs` of wmr 0.1",
    DetachedOf01: "`detached` of wmr 0.1.*differentiable=False",
    ComparesOf01: "`compares` of wmr 0.1.*compares_images=True",
    MeanOneOf01: "`mean_one` of wmr 0.1.*normalized=True",
    NeedsTrainingOf01: "`needs_training` of wmr 0.1.*usable_as_metric=False",
    StartEpochOf01: "`start_epoch` of wmr 0.1",
    LargestMarginOf01: "`largest_margin` of wmr 0.1.*max_margin",
    ReachOf01: "`reach` of wmr 0.1.*`count_weighted`",
    TraitInTheClass: "trait `normalized` as an attribute of its class",
    MisspeltTrait: "`compare_images`.*`compares_images`",
    MisspeltAbility: "`observes`.*`observe`",
    IgnoredStartEpoch: "`start_epoch` .* differ",
    IgnoredTrait: "`differentiable` .* differ",
    DifferentiableStepCount: "steps_survived: set the trait `differentiable=False`",
    InfiniteGradient: "gradient of a log-weight is not finite",
    WeightedAtAlphaZero: "alpha=0.*a weight is not 1",
    IgnoresLoadedState: "does not restore",
    StateOfNumbers: "not a dict of tensors",
    StateWithoutLoadState: "one of `state` and `load_state`",
}


def test_a_correct_kernel_passes() -> None:
    check_kernel(CorrectKernel(2.0))


@pytest.mark.parametrize(
    ("mutant", "problem"), MUTANTS.items(), ids=lambda part: getattr(part, "__name__", "")
)
def test_the_check_names_the_violated_rule(mutant: type[Any], problem: str) -> None:
    with pytest.raises(AssertionError, match=problem):
        check_kernel(mutant())


def test_a_kernel_that_counts_steps_passes_without_gradient() -> None:
    class Detached(DifferentiableStepCount):
        traits = KernelTraits(needs=frozenset({"steps_survived"}), differentiable=False)

    check_kernel(Detached())


def test_a_kernel_that_compares_images_passes_without_gradient() -> None:
    class Ranks:
        traits = KernelTraits(compares_images=True, differentiable=False)

        def __call__(self, evidence: Evidence) -> Tensor:
            return probability_margin(evidence.logits, evidence.labels).log_softmax(dim=0)

    check_kernel(Ranks())


def test_a_weight_of_zero_is_allowed() -> None:
    class MisclassifiedOnly:
        traits = KernelTraits()

        def __call__(self, evidence: Evidence) -> Tensor:
            is_correct = evidence.logits.argmax(dim=1) == evidence.labels
            return torch.where(is_correct, -torch.inf, 0.0).to(evidence.logits)

    check_kernel(MisclassifiedOnly())


def test_a_misspelt_trait_or_evidence_fails_where_it_is_declared() -> None:
    with pytest.raises(TypeError, match="detached"):
        KernelTraits(detached=True)  # type: ignore[call-arg]
    with pytest.raises(BrokenContract, match="gradients"):
        KernelTraits(needs=frozenset({"gradients"}))  # type: ignore[arg-type]

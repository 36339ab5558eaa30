"""`check_kernel` passes a kernel that keeps its promises, and names the one promise that another breaks."""

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
class Sound:
    """The paper's kernel."""

    alpha: float = 1.0

    traits = KernelTraits()

    def __call__(self, evidence: Evidence) -> Tensor:
        return -self.alpha * probability_margin(evidence.logits, evidence.labels)


class OneForAll(Sound):
    def __call__(self, evidence: Evidence) -> Tensor:
        return super().__call__(evidence).mean()


class PerClass(Sound):
    def __call__(self, evidence: Evidence) -> Tensor:
        return evidence.logits


class WholeNumbers(Sound):
    def __call__(self, evidence: Evidence) -> Tensor:
        return super().__call__(evidence).round().long()


class Endless(Sound):
    def __call__(self, evidence: Evidence) -> Tensor:
        margins = probability_margin(evidence.logits, evidence.labels)
        return torch.where(margins < 0, torch.inf, 0.0)


class NoNumber(Sound):
    def __call__(self, evidence: Evidence) -> Tensor:
        return self.alpha * (0.5 - probability_margin(evidence.logits, evidence.labels)).log()


class Dice(Sound):
    def __call__(self, evidence: Evidence) -> Tensor:
        return super().__call__(evidence) + torch.rand(len(evidence.labels))


class Backwards(Sound):
    def __call__(self, evidence: Evidence) -> Tensor:
        return super().__call__(evidence).sort().values


class Normalises(Sound):
    def __call__(self, evidence: Evidence) -> Tensor:
        return super().__call__(evidence).log_softmax(dim=0)


class Comparing(Normalises):
    traits = KernelTraits(compares_images=True)


class Coarse(Sound):
    """A constant that was chosen for one type of number."""

    def __call__(self, evidence: Evidence) -> Tensor:
        return (
            super().__call__(evidence) + self.alpha * torch.finfo(evidence.logits.dtype).bits / 32
        )


class Asks(Sound):
    def __call__(self, evidence: Evidence) -> Tensor:
        return super().__call__(evidence) * evidence.index  # type: ignore[operator]


class WithoutTraits:
    def __call__(self, evidence: Evidence) -> Tensor:
        return evidence.logits.new_zeros(len(evidence.labels))


class TraitsOfAnAttack(WithoutTraits):
    traits = AttackTraits()


class NeedsOf01(Sound):
    needs = ("index",)


class DetachedOf01(Sound):
    detached = True


class ComparesOf01(Sound):
    compares = True


class MeanOneOf01(Sound):
    mean_one = True


class NeedsTrainingOf01(Sound):
    @property
    def needs_training(self) -> bool:
        return True


class StartEpochOf01(Sound):
    start_epoch = 60


class LargestMarginOf01(Sound):
    largest_margin = 10.0


@dataclass(frozen=True)
class IgnoredStartEpoch(Sound):
    start_epoch: int = 5


class Counting(Sound):
    traits = KernelTraits(needs=frozenset({"steps_survived"}))

    def __call__(self, evidence: Evidence) -> Tensor:
        return -self.alpha * not_none(evidence.steps_survived).float()


class SteepEnd(Sound):
    """(1 - p)^alpha without care: where p is 1 its slope is 0 / 0, though nobody minds the weight of 0."""

    def __call__(self, evidence: Evidence) -> Tensor:
        rest = 1 - evidence.logits.softmax(dim=1).gather(1, evidence.labels[:, None]).squeeze(1)
        return self.alpha * rest.sqrt()


class NeverPlain(Sound):
    def __call__(self, evidence: Evidence) -> Tensor:
        return super().__call__(evidence) + 1


class Blank(Sound):
    """Forgets to bring anything back."""

    def state(self) -> dict[str, Tensor]:
        return {"sum": torch.rand(3)}

    def load_state(self, state: dict[str, Tensor]) -> None:
        pass


class StateOfNumbers(Sound):
    def state(self) -> dict[str, float]:
        return {"sum": 3.0}

    def load_state(self, state: object) -> None:
        pass


class HalfAState(Sound):
    def state(self) -> object:
        return {}


class Overwhelmed:
    """Divides by what it has observed, and its images are all right."""

    traits = KernelTraits(differentiable=False)

    def __init__(self) -> None:
        self.scale = torch.ones(())

    def __call__(self, evidence: Evidence) -> Tensor:
        return evidence.labels / self.scale

    def observe(self, evidence: Evidence) -> None:
        self.scale = torch.zeros(())


MUTANTS = {
    OneForAll: r"log-weights of shape \(\), not one for each of 12 images",
    PerClass: r"log-weights of shape \(12, 4\)",
    WholeNumbers: "log-weights of type torch.int64",
    Endless: "not a number or -inf",
    NoNumber: "not a number or -inf",
    Overwhelmed: "not a number or -inf",
    Dice: "same evidence gives other log-weights",
    Backwards: "not in the order of the images",
    Normalises: "compares_images=True",
    Comparing: "differentiable=False",
    Coarse: "float64",
    Asks: "fails with logits, labels alone; .* `needs`",
    WithoutTraits: r"without `traits`: add `traits = KernelTraits\(\)`",
    TraitsOfAnAttack: "`traits` of the kernel is a AttackTraits",
    NeedsOf01: "`needs` of wmr 0.1",
    DetachedOf01: "`detached` of wmr 0.1.*differentiable=False",
    ComparesOf01: "`compares` of wmr 0.1.*compares_images=True",
    MeanOneOf01: "`mean_one` of wmr 0.1.*normalized=True",
    NeedsTrainingOf01: "`needs_training` of wmr 0.1.*usable_as_metric=False",
    StartEpochOf01: "`start_epoch` of wmr 0.1",
    LargestMarginOf01: "`largest_margin` of wmr 0.1.*max_margin",
    IgnoredStartEpoch: "`start_epoch` .* differ",
    Counting: "steps_survived: set the trait `differentiable=False`",
    SteepEnd: "gradient of a log-weight is not finite",
    NeverPlain: "with alpha = 0 a weight is not 1",
    Blank: "does not come back from `state",
    StateOfNumbers: "not a dict of tensors",
    HalfAState: "one of `state` and `load_state`",
}


def test_a_kernel_that_keeps_its_promises_passes() -> None:
    check_kernel(Sound(2.0))


@pytest.mark.parametrize(
    ("mutant", "broken"), MUTANTS.items(), ids=lambda part: getattr(part, "__name__", "")
)
def test_a_broken_promise_is_named(mutant: type[Any], broken: str) -> None:
    with pytest.raises(AssertionError, match=broken):
        check_kernel(mutant())


def test_a_kernel_that_counts_steps_passes_once_it_is_detached() -> None:
    class Detached(Counting):
        traits = KernelTraits(needs=frozenset({"steps_survived"}), differentiable=False)

    check_kernel(Detached())


def test_a_kernel_that_compares_images_passes_once_it_is_detached() -> None:
    class Ranks:
        traits = KernelTraits(compares_images=True, differentiable=False)

        def __call__(self, evidence: Evidence) -> Tensor:
            return probability_margin(evidence.logits, evidence.labels).log_softmax(dim=0)

    check_kernel(Ranks())


def test_no_weight_at_all_is_a_weight() -> None:
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

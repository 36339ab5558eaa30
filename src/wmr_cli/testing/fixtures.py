"""Shared parts of the checks: a small network, images, a learner, and assertions."""

import dataclasses
import difflib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy

import torch
from torch import Tensor, nn

from ..core.contexts import evaluating
from ..core.losses import cross_entropy, mix_objective
from ..core.norms import NORMS
from ..core.protocols import (
    Attack,
    AttackResult,
    Batch,
    Defense,
    Evidence,
    HasState,
    Kernel,
    Objective,
    SecondLabels,
)
from ..core.traits import (
    AttackTraits,
    DefenseTraits,
    KernelTraits,
    Traits,
    VerifierTraits,
    read_traits,
)
from ..errors import BrokenContract

SHAPE = (1, 8, 8)
CLASSES = 4
MIN_SIMILARITY = 0.81
"""Names this similar are a misspelling. `load_state_dict` and `load_state` are 0.8 similar."""
ABILITIES: Mapping[type, tuple[str, ...]] = {
    KernelTraits: ("observe", "count_weighted", "state", "load_state"),
    AttackTraits: ("remarks",),
    DefenseTraits: ("state", "load_state"),
    VerifierTraits: (),
}
"""Optional methods of attacks, kernels and defenses, by the class of their traits."""


def tiny_model(num_classes: int = CLASSES, input_shape: tuple[int, int, int] = SHAPE) -> nn.Module:
    """Return a network in eval mode, with batch-norm and dropout, whose behaviour it changes."""
    torch.manual_seed(0)
    flat = 8 * input_shape[1] * input_shape[2]
    return nn.Sequential(
        nn.Conv2d(input_shape[0], 8, 3, padding=1),
        nn.BatchNorm2d(8),
        nn.Tanh(),
        nn.Flatten(),
        nn.Dropout(0.5),
        nn.Linear(flat, num_classes),
    ).eval()


def tiny_batch(
    size: int = 12, num_classes: int = CLASSES, input_shape: tuple[int, int, int] = SHAPE
) -> Batch:
    """Return images in [0, 1]; the first two are black and white, corners of the unit cube."""
    generator = torch.Generator().manual_seed(1)
    images = torch.rand(size, *input_shape, generator=generator)
    images[0] = 0
    images[1] = 1
    return Batch(images, torch.arange(size) % num_classes, 100 + torch.arange(size))


class EqualWeights:
    """A kernel that gives every image a weight of 1."""

    traits = KernelTraits()

    def __call__(self, evidence: Evidence) -> Tensor:
        return evidence.logits.new_zeros(len(evidence.labels))


class RecordingLearner:
    """The smallest learner: SGD and an attack that adds noise. It records what a defense does."""

    def __init__(self, model: nn.Module, kernel: Kernel | None = None) -> None:
        self.model = model
        self.kernel: Kernel = kernel or EqualWeights()
        self.norm = NORMS["linf"]
        self.eps = 0.05
        self.epoch = 0
        self.step_index = 0
        self.seed = 0
        self.losses: list[float] = []
        """The loss of each backward pass."""
        self.evidence: list[Evidence] = []
        """The evidence of each call of `weights`."""
        self.steps = 0
        """Number of optimizer steps."""
        self.training_attacks = 0
        """Number of runs of the training attack."""
        self._optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.model(images)
        return logits

    @contextmanager
    def attack_mode(self) -> Iterator[nn.Module]:
        with evaluating(self.model):
            yield self.model

    def attack(self, batch: Batch, objective: Objective, own: Attack | None = None) -> AttackResult:
        objective = mix_objective(objective, batch.second)
        if own is not None:
            with evaluating(self.model):
                return own(self.model, batch, objective, seed=self.seed, need_logits=False)
        self.training_attacks += 1
        # a pattern that depends on the pixels alone, so that steps are repeatable
        noise = 0.05 * torch.sign(torch.sin(1000 * batch.images))
        images = (batch.images + noise).clamp(0, 1)
        with torch.no_grad(), evaluating(self.model):
            logits = self.model(images)
        require(
            objective(logits, batch.labels).shape == batch.labels.shape,
            "an objective returns one value per image",
        )
        return AttackResult(images, torch.zeros_like(batch.labels))

    def weights(self, evidence: Evidence) -> Tensor:
        self.evidence.append(evidence)
        return self.kernel(evidence).exp()

    def label_loss(
        self, logits: Tensor, labels: Tensor, second: SecondLabels | None = None
    ) -> Tensor:
        loss = cross_entropy(logits, labels)
        return loss if second is None else second.mix(loss, cross_entropy(logits, second.labels))

    def mean(self, values: Tensor) -> Tensor:
        return values.mean()

    def gather(self, values: Tensor) -> Tensor:
        return values

    def add_gradients(self, gradients: Mapping[nn.Parameter, Tensor]) -> None:
        for parameter, gradient in gradients.items():
            parameter.grad = gradient if parameter.grad is None else parameter.grad + gradient

    def backward(self, loss: Tensor) -> None:
        require(loss.ndim == 0, "the loss of a step is not one number: use learner.mean")
        require(loss.isfinite(), "the loss of a step is not finite")
        self.losses.append(float(loss.detach()))
        loss.backward()

    def optimizer_step(self) -> None:
        self.steps += 1
        self._optimizer.step()
        self._optimizer.zero_grad()


def require(is_met: bool | Tensor, problem: str) -> None:
    """Raise AssertionError with `problem` unless a condition is met."""
    # not an assert statement: `python -O` removes those
    if not bool(is_met):
        raise AssertionError(problem)


def require_traits(component: object, kind: type[Traits], what: str) -> Traits:
    """Return the traits of a component; raise AssertionError where `wmr` would refuse them.

    A misspelt trait or ability in the class is refused here only: `wmr` would ignore it.
    """
    try:
        traits = read_traits(component, kind, what)
    except BrokenContract as error:
        raise AssertionError(f"{error}: {error.hint}") from error
    names: list[str] = [field.name for field in dataclasses.fields(kind)]
    require_spelling(component, (*names, *ABILITIES[kind]), what)
    return traits


def require_spelling(component: object, optional: Sequence[str], what: str) -> None:
    """Require that no attribute of the class is nearly called like an optional member."""
    # `norm` is a parameter that `wmr` reads, not a misspelt trait `norms`
    known = {*optional, "traits", "norm"}
    for name in sorted(_own_attributes(component) - known):
        nearest = difflib.get_close_matches(name, optional, n=1, cutoff=MIN_SIMILARITY)
        require(
            not nearest,
            f"{what} has the attribute `{name}`, which `wmr` does not read: "
            f"did you mean `{''.join(nearest)}`?",
        )


def _own_attributes(component: object) -> set[str]:
    """Return public attributes of the class and its bases, except fields and those of PyTorch."""
    bases = [base for base in type(component).__mro__ if base.__module__.split(".")[0] != "torch"]
    names = {name for base in bases for name in vars(base) if not name.startswith("_")}
    if dataclasses.is_dataclass(component):
        names -= {field.name for field in dataclasses.fields(component)}
    return names


def all_close(first: Tensor, second: Tensor, atol: float = 1e-5, rtol: float = 0.0) -> bool:
    """Return whether tensors are equal up to rounding. Infinities are equal, NaN is not."""
    return first.shape == second.shape and torch.allclose(first, second, atol=atol, rtol=rtol)


def tensors_equal(first: Mapping[str, Tensor], second: Mapping[str, Tensor]) -> bool:
    """Return whether two mappings have the same names and bit-identical tensors."""
    return first.keys() == second.keys() and all(
        torch.equal(first[name], second[name]) for name in first
    )


def copy_state(model: nn.Module) -> dict[str, Tensor]:
    """Return copies of parameters and buffers."""
    # by value: a write through `.data` leaves no other trace
    return {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}


@contextmanager
def batch_unchanged(batch: Batch, what: str) -> Iterator[None]:
    """Require that the code inside does not write into the batch."""
    before = deepcopy(batch)
    yield
    for name in ("images", "labels", "index"):
        is_same = torch.equal(getattr(before, name), getattr(batch, name))
        require(is_same, f"{what} wrote into the {name} of the batch")


def check_state(component: Kernel | Defense, fresh: object, what: str) -> None:
    """Require that `load_state` of a fresh component restores the tensors of `state`."""
    if not isinstance(component, HasState):
        return
    state = component.state()
    is_dict = isinstance(state, dict) and all(isinstance(value, Tensor) for value in state.values())
    require(is_dict, f"`state()` of {what} is not a dict of tensors")
    if state:  # an empty state is not stored, so it is not restored either
        assert isinstance(fresh, HasState)
        fresh.load_state({name: tensor.clone() for name, tensor in state.items()})
        require(
            tensors_equal(state, fresh.state()),
            f"`load_state` of {what} does not restore what `state()` returned",
        )

"""Traits: what a component declares about itself, and the check that it does.

Traits are frozen dataclasses: a misspelt name fails when the module of the component is imported.
A component declares `traits = KernelTraits(...)` in its class, or a property `traits` where a value
depends on its parameters.
"""

import dataclasses
import inspect
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal, TypeVar, get_args

from ..errors import BrokenContract
from .norms import NORMS

EvidenceField = Literal["index", "clean_logits", "steps_survived", "loss"]
"""Fields of `Evidence` beside logits and labels."""
EVIDENCE_FIELDS: tuple[EvidenceField, ...] = get_args(EvidenceField)
ALWAYS_PROVIDED: frozenset[EvidenceField] = frozenset({"index", "loss"})
"""Evidence that every defense and every evaluation provides."""
MIGRATION_PAGE = "docs/migrating.md"


@dataclass(frozen=True, kw_only=True)
class KernelTraits:
    """What a kernel declares about itself."""

    needs: frozenset[EvidenceField] = frozenset()
    """Evidence that it requires beside logits and labels."""
    differentiable: bool = True
    """Its weights have a gradient; without one, attacks maximise the unweighted objective."""
    compares_images: bool = False
    """The weight of an image depends on other images: it gets the batch of all ranks at once."""
    normalized: bool = False
    """A training step divides the weights by their mean over the batch."""
    start_epoch: int = 0
    """Before this epoch all images have the same weight."""
    usable_as_metric: bool = True
    """It can weight an evaluation; False if it uses values that exist only in training."""
    max_margin: float = 1.0
    """The largest margin that alpha is multiplied with; it bounds alpha in training."""

    def __post_init__(self) -> None:
        # the dataclass is frozen; plugins may pass a set or a tuple
        object.__setattr__(self, "needs", _known_names("needs", self.needs, EVIDENCE_FIELDS))


@dataclass(frozen=True, kw_only=True)
class AttackTraits:
    """What an attack declares about itself."""

    objective: str = "ce"
    """Name of the objective that it maximises in evaluation."""
    stops_early: bool = False
    """It stops at an image once it is misclassified: the result has A_rob, but no margins."""
    norms: frozenset[str] = frozenset({"linf", "l2"})
    """Norms of the ε-balls that it can search."""
    gathers_images: bool = False
    """It divides the images that it still attacks into batches of at most `batch_limit`: an
    evaluation passes it the images of several batches at once."""
    follows_preset: bool = False
    """Its steps and step size are those with which the checkpoint's preset evaluates."""
    eot: int = 1
    """Draws of a stochastic model over which each gradient is averaged."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "norms", _known_names("norms", self.norms, NORMS))


@dataclass(frozen=True, kw_only=True)
class DefenseTraits:
    """What a defense declares about itself."""

    provides: frozenset[EvidenceField] = frozenset()
    """Evidence that it fills in beside logits, labels, index and loss."""
    uses_attack: bool = True
    """It runs the training attack; False for a defense without one, or with its own."""
    own_attack_steps: int | None = None
    """Steps of its own attack, for kernels that count them."""
    shares_gradient: bool = False
    """One backward pass updates both images and parameters."""
    replays: int = 1
    """Steps on each batch; epochs and milestones are divided by this number."""
    state_per_rank: bool = False
    """Each rank has its own state."""
    warmup_epochs: int = 0
    """Epochs before the defense reaches its final form."""
    mixes_labels: bool = False
    """It trains on mixed images: it passes `batch.second` to `label_loss`, and has no other term
    that depends on the labels."""
    weight_factor: float | None = None
    """Constant factor of the weighted term; its product with the mean weight is logged."""

    def __post_init__(self) -> None:
        names = _known_names("provides", self.provides, EVIDENCE_FIELDS)
        object.__setattr__(self, "provides", names)


@dataclass(frozen=True, kw_only=True)
class VerifierTraits:
    """What a verifier declares about itself."""

    norms: frozenset[str] = frozenset({"linf", "l2"})
    """Norms of the ε-balls over which it bounds a model."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "norms", _known_names("norms", self.norms, NORMS))


Traits = TypeVar("Traits", KernelTraits, AttackTraits, DefenseTraits, VerifierTraits)

_ATTRIBUTES_OF_0_1: dict[type, dict[str, str]] = {
    KernelTraits: {
        "needs": 'needs=frozenset({"index"})',
        "detached": "differentiable=False",
        "compares": "compares_images=True",
        "mean_one": "normalized=True",
        "start_epoch": "start_epoch=60",
        "needs_training": "usable_as_metric=False",
        "largest_margin": "max_margin=10.0",
    },
    AttackTraits: {
        "loss": 'objective="margin"',
        "stops_early": "stops_early=True",
        "follows_preset": "follows_preset=True",
    },
    DefenseTraits: {
        "knows": 'provides=frozenset({"clean_logits"})',
        "uses_attack": "uses_attack=False",
        "one_gradient": "shares_gradient=True",
        "replays": "replays=8",
        "per_rank": "state_per_rank=True",
        "warmup": "warmup_epochs=10",
    },
    VerifierTraits: {},
}
"""Attributes that wmr 0.1 read, and an example of the trait that replaces each."""
_METHODS_OF_0_1: dict[type, dict[str, str]] = {
    KernelTraits: {"reach": "rename it to `count_weighted`"},
    AttackTraits: {"craft": "remove it, and read the keyword `need_logits` of `__call__`"},
    DefenseTraits: {},
    VerifierTraits: {},
}
"""Methods that wmr 0.1 called, and what to do about each."""
_TRAIT_OF_PARAMETER = {"loss": "objective"}
"""Parameters that have to agree with a trait of another name."""


def read_traits(component: object, kind: type[Traits], what: str) -> Traits:
    """Return the traits of a component.

    Refuse one without traits, with a trait as an attribute of its class, or with names of 0.1.
    `what` describes the component in the error, such as "kernel 'exp'".
    """
    _check_attributes_of_0_1(component, kind, what)
    _check_ignored_attributes(component, kind, what)
    line = f"traits = {kind.__name__}()"
    traits: object = getattr(component, "traits", None)
    if traits is None:
        problem = f"{what} builds a {type(component).__name__} without `traits`"
        raise BrokenContract(problem, hint=f"add `{line}` to its class; see {MIGRATION_PAGE}")
    if not isinstance(traits, kind):
        problem = f"`traits` of {what} is a {type(traits).__name__}"
        raise BrokenContract(problem, hint=f"write `{line}`; see {MIGRATION_PAGE}")
    # a fixed trait would ignore what the user sets by a parameter of its name
    same_name = {field.name: field.name for field in dataclasses.fields(kind)}
    for parameter, trait in (same_name | _TRAIT_OF_PARAMETER).items():
        if parameter not in _field_names(component) or not hasattr(traits, trait):
            continue
        value = getattr(component, parameter)
        # None leaves the choice to the component
        if value is not None and value != getattr(traits, trait):
            raise BrokenContract(
                f"the parameter `{parameter}` and the trait `{trait}` of {what} differ",
                hint=f"return {kind.__name__}({trait}=self.{parameter}) from a property `traits`",
            )
    _check_state_methods(component, what)
    return traits


def read_parameter(component: object, name: str) -> Any:
    """Return a parameter that only some components have, such as `steps` or `alpha`, else None."""
    return getattr(component, name, None)


def _check_attributes_of_0_1(component: object, kind: type, what: str) -> None:
    """Refuse attributes that were traits in 0.1: now they would be ignored without a word."""
    parameters = _field_names(component)
    for name, replacement in _ATTRIBUTES_OF_0_1[kind].items():
        # getattr_static: a property is found without running it, and __getattr__ is not called
        if name not in parameters and inspect.getattr_static(component, name, None) is not None:
            raise BrokenContract(
                f"{what} has the attribute `{name}` of wmr 0.1",
                hint=f"write it as a trait, such as "
                f"`traits = {kind.__name__}({replacement})`; see {MIGRATION_PAGE}",
            )


def _check_ignored_attributes(component: object, kind: type[Traits], what: str) -> None:
    """Refuse a trait beside `traits` in the class, and methods of 0.1: `wmr` reads neither."""
    # only the class: its parameters are fields, or attributes that `__init__` sets
    ignored = set(dir(type(component))) - _field_names(component)
    for field in dataclasses.fields(kind):
        if field.name in ignored:
            raise BrokenContract(
                f"{what} has the trait `{field.name}` as an attribute of its class",
                hint=f"write `traits = {kind.__name__}({field.name}=…)`",
            )
    for name, replacement in _METHODS_OF_0_1[kind].items():
        if name in ignored:
            raise BrokenContract(
                f"{what} has the method `{name}` of wmr 0.1",
                hint=f"{replacement}; see {MIGRATION_PAGE}",
            )


def _check_state_methods(component: object, what: str) -> None:
    """Refuse `state` without `load_state`, or the reverse: the state would be lost on resume."""
    has_state, has_load = (
        inspect.getattr_static(component, name, None) is not None
        for name in ("state", "load_state")
    )
    if has_state != has_load:
        raise BrokenContract(
            f"{what} has one of `state` and `load_state`", hint="write both methods, or neither"
        )


def _field_names(component: object) -> frozenset[str]:
    if not dataclasses.is_dataclass(component):
        return frozenset()
    return frozenset(field.name for field in dataclasses.fields(component))


def _known_names(trait: str, names: Iterable[str], known: Iterable[str]) -> frozenset[str]:
    """Return the names as a set; refuse text, whose elements are its letters, and unknown names."""
    hint = f"write a set of names from {', '.join(known)}"
    if isinstance(names, str):
        raise BrokenContract(f"the trait `{trait}` is the text {names!r}, not a set", hint=hint)
    unknown = sorted(set(names) - set(known))
    if unknown:
        raise BrokenContract(f"the trait `{trait}` has the unknown name {unknown[0]!r}", hint=hint)
    return frozenset(names)

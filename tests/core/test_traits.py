"""Traits of components: what `read_traits` accepts, refuses and recommends."""

from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from wmr_cli.core.traits import (
    MIGRATION_PAGE,
    AttackTraits,
    DefenseTraits,
    KernelTraits,
    read_parameter,
    read_traits,
)
from wmr_cli.errors import BadInput, BrokenContract
from wmr_cli.runtime.components import check_attack_traits

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Startable:
    """A component whose trait follows from a parameter."""

    start_epoch: int = 3

    @property
    def traits(self) -> KernelTraits:
        return KernelTraits(start_epoch=self.start_epoch)


def test_a_property_may_compute_traits_from_parameters() -> None:
    assert read_traits(Startable(5), KernelTraits, "kernel 'mine'").start_epoch == 5


def test_missing_traits_are_refused_with_the_line_to_write() -> None:
    with pytest.raises(BrokenContract, match="kernel 'mine'") as refused:
        read_traits(object(), KernelTraits, "kernel 'mine'")
    assert "traits = KernelTraits()" in refused.value.hint
    assert MIGRATION_PAGE in refused.value.hint
    assert (ROOT / MIGRATION_PAGE).is_file()


@pytest.mark.parametrize(
    ("attribute", "trait"), [("knows", "provides"), ("one_gradient", "shares_gradient")]
)
def test_an_attribute_of_0_1_is_refused_with_its_trait(attribute: str, trait: str) -> None:
    component = SimpleNamespace(traits=DefenseTraits(), **{attribute: ()})
    with pytest.raises(BrokenContract, match=attribute) as refused:
        read_traits(component, DefenseTraits, "defense 'mine'")
    assert trait in refused.value.hint


@pytest.mark.parametrize("attribute", ["knows", "one_gradient", "detached", "loss"])
def test_the_migration_page_names_attributes_of_0_1(attribute: str) -> None:
    assert f"`{attribute} = " in (ROOT / MIGRATION_PAGE).read_text(encoding="utf-8")


def test_needed_evidence_may_be_any_collection() -> None:
    assert KernelTraits(needs=("index",)).needs == frozenset({"index"})  # type: ignore[arg-type]


@pytest.mark.parametrize("norms", ["linf", {"linf", "l1"}, ["max"]])
def test_norms_that_are_text_or_unknown_are_refused(norms: object) -> None:
    with pytest.raises(BrokenContract, match="`norms`") as refused:
        AttackTraits(norms=norms)  # type: ignore[arg-type]
    assert "linf, l2" in refused.value.hint


def test_evidence_that_is_text_is_refused() -> None:
    with pytest.raises(BrokenContract, match="`needs` is the text 'index'"):
        KernelTraits(needs="index")  # type: ignore[arg-type]


def test_a_trait_as_an_attribute_of_the_class_is_refused() -> None:
    class Ignored:
        traits = KernelTraits()
        differentiable = False

    with pytest.raises(BrokenContract, match="`differentiable`") as refused:
        read_traits(Ignored(), KernelTraits, "kernel 'mine'")
    assert "traits = KernelTraits(differentiable=" in refused.value.hint


def test_a_parameter_may_be_called_like_a_method_of_0_1() -> None:
    @dataclass(frozen=True)
    class Reaching:
        reach: float = 0.5
        traits = KernelTraits()

    assert read_traits(Reaching(), KernelTraits, "kernel 'mine'") == KernelTraits()


def test_a_parameter_that_a_component_lacks_is_none() -> None:
    assert read_parameter(Startable(), "start_epoch") == 3
    assert read_parameter(Startable(), "steps") is None


def test_an_attack_is_refused_for_a_norm_that_it_does_not_support() -> None:
    attack: Any = SimpleNamespace(traits=AttackTraits(norms=frozenset({"linf"})))
    check_attack_traits(attack, "attack 'mine'", "linf")
    with pytest.raises(BadInput, match="l2"):
        check_attack_traits(attack, "attack 'mine'", "l2")

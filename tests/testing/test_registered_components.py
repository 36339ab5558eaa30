"""Every registered component meets its contract. A new built-in is included automatically."""

from pathlib import Path

import pytest

from support.builtin_names import list_builtins
from support.miniature_datasets import MAKERS
from wmr_cli.plugins import collect
from wmr_cli.registry import KINDS, Registry
from wmr_cli.testing import (
    check_attack,
    check_dataset,
    check_defense,
    check_kernel,
    check_model,
    tiny_batch,
    tiny_model,
)

SMALL = {
    "apgd-ce": "apgd-ce:steps=10",
    "apgd-dlr": "apgd-dlr:steps=10",
    "apgd-t": "apgd-t:steps=10",
    "authors-eval": "authors-eval:steps=5,restarts=3",
    "autoattack": "autoattack:steps=5,queries=50",
    "fab-t": "fab-t:steps=10",
    "square": "square:queries=120",
    "timm": "timm:resnet10t",  # which needs a name
    "wrn-28-10": "wrn-28-10:width=1",
    "wrn-34-10": "wrn-34-10:width=1",
}
"""Specs of expensive components with fewer steps or smaller layers."""


@pytest.mark.parametrize("classes", [4, 3, 2])
@pytest.mark.parametrize("norm", ["linf", "l2"])
@pytest.mark.parametrize("name", list_builtins("attack"))
def test_attack(name: str, norm: str, classes: int, registry: Registry) -> None:
    attack = registry.create(
        "attack", SMALL.get(name, name), norm=norm, eps=0.1 if norm == "linf" else 0.5
    )
    check_attack(attack, tiny_model(classes), tiny_batch(num_classes=classes))


@pytest.mark.parametrize("name", list_builtins("model"))
def test_model(name: str, registry: Registry) -> None:
    check_model(lambda **given: registry.create("model", SMALL.get(name, name), **given))


@pytest.mark.parametrize("name", list_builtins("dataset"))
def test_dataset(
    name: str, registry: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    check_dataset(registry.create("dataset", MAKERS[name](tmp_path, monkeypatch), root=tmp_path))


@pytest.mark.parametrize("name", list_builtins("kernel"))
def test_kernel(name: str, registry: Registry, tmp_path: Path) -> None:
    (tmp_path / "weights.csv").write_text("index,weight\n0,1\n3,2.5\n")
    needed = {"table": {"path": tmp_path / "weights.csv"}}
    check_kernel(registry.create("kernel", name, **needed.get(name, {})))


@pytest.mark.parametrize("name", list_builtins("defense"))
def test_loss(name: str, registry: Registry) -> None:
    check_defense(registry.create("defense", name))


def test_all_kinds_but_verifiers_are_there_and_come_through_the_entry_point() -> None:
    assert [kind for kind in KINDS if not list_builtins(kind)] == ["verifier"]
    assert not list(collect([]).registry), (
        "without entry points there are no names: the built-ins have no door of their own"
    )

"""Every registered component meets its contract. A new built-in is included automatically."""

from pathlib import Path

import pytest

from support.miniature_datasets import MAKERS
from wmr_cli.plugins import collect, load_plugins
from wmr_cli.registry import Registry
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

OURS = [
    (kind, owned.entry.name) for kind, owned in load_plugins().registry if owned.owner == "wmr-cli"
]


def names(kind: str) -> list[str]:
    return [name for of, name in OURS if of == kind]


@pytest.mark.parametrize("classes", [4, 3, 2])
@pytest.mark.parametrize("norm", ["linf", "l2"])
@pytest.mark.parametrize("name", names("attack"))
def test_attack(name: str, norm: str, classes: int, registry: Registry) -> None:
    attack = registry.create(
        "attack", SMALL.get(name, name), norm=norm, eps=0.1 if norm == "linf" else 0.5
    )
    check_attack(attack, tiny_model(classes), tiny_batch(num_classes=classes))


@pytest.mark.parametrize("name", names("model"))
def test_model(name: str, registry: Registry) -> None:
    check_model(lambda **given: registry.create("model", SMALL.get(name, name), **given))


@pytest.mark.parametrize("name", names("dataset"))
def test_dataset(
    name: str, registry: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    check_dataset(registry.create("dataset", MAKERS[name](tmp_path, monkeypatch), root=tmp_path))


@pytest.mark.parametrize("name", names("kernel"))
def test_kernel(name: str, registry: Registry, tmp_path: Path) -> None:
    (tmp_path / "weights.csv").write_text("index,weight\n0,1\n3,2.5\n")
    needed = {"table": {"path": tmp_path / "weights.csv"}}
    check_kernel(registry.create("kernel", name, **needed.get(name, {})))


@pytest.mark.parametrize("name", names("defense"))
def test_loss(name: str, registry: Registry) -> None:
    check_defense(registry.create("defense", name))


def test_all_five_kinds_are_there_and_come_through_the_entry_point() -> None:
    assert {kind for kind, _ in OURS} == {"model", "dataset", "defense", "kernel", "attack"}
    assert not list(collect([]).registry), (
        "without entry points there are no names: the built-ins have no door of their own"
    )

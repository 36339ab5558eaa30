"""Two training steps with every built-in component, stopped after the first and resumed."""

from pathlib import Path
from typing import Any

import pytest

from emulated.measuring import check_resumed_run, make_config, save_images
from support.builtin_names import list_builtins
from wmr_cli.registry import Registry

pytestmark = pytest.mark.emulated

SPECS = {
    "free": "free:m=2",
    "iaat": "iaat:warmup=0,steps=2",
    "yopo": "yopo:m=2,n=1",
    "gairat": "gairat:start-epoch=0",
    "mail": "mail:start-epoch=0",
    "table": "table:path={table}",
    "authors-eval": "authors-eval:restarts=2",
    "autoattack": "autoattack:queries=10",
    "square": "square:queries=10",
}
"""Components with fewer steps than their defaults, without burn-in, or with a parameter."""


@pytest.fixture
def dataset(tmp_path: Path) -> str:
    (tmp_path / "table.csv").write_text("index,weight\n0,1\n1,2\n5,0.5\n")
    return save_images(tmp_path)


def spec_of(name: str, folder: Path) -> str:
    return SPECS.get(name, name).format(table=folder / "table.csv")


@pytest.mark.usefixtures("any_device")
@pytest.mark.parametrize("name", list_builtins("defense"))
def test_every_defense_resumes(name: str, dataset: str, registry: Registry, tmp_path: Path) -> None:
    config = make_config(dataset, defense=spec_of(name, tmp_path), augment="crop:1,flip")
    check_resumed_run(config, tmp_path, registry)


@pytest.mark.usefixtures("any_device")
@pytest.mark.parametrize("name", list_builtins("kernel"))
def test_every_kernel_resumes(name: str, dataset: str, registry: Registry, tmp_path: Path) -> None:
    config = make_config(dataset, defense="trades", kernel=spec_of(name, tmp_path))
    check_resumed_run(config, tmp_path, registry)


@pytest.mark.usefixtures("any_device")
@pytest.mark.parametrize("name", list_builtins("attack"))
def test_every_attack_resumes(name: str, dataset: str, registry: Registry, tmp_path: Path) -> None:
    # some attacks have no steps to set
    steps = 2 if registry.accepts("attack", name, "steps") else None
    config = make_config(dataset, attack=spec_of(name, tmp_path), steps=steps)
    check_resumed_run(config, tmp_path, registry)


@pytest.mark.usefixtures("cuda_like")
@pytest.mark.parametrize("precision", ["32", "bf16", "16"])
@pytest.mark.parametrize("optimizer", ["sgd", "adam", "adamw"])
def test_every_precision_and_optimizer_resumes(
    precision: str, optimizer: str, dataset: str, registry: Registry, tmp_path: Path
) -> None:
    settings: dict[str, Any] = {"precision": precision, "optimizer": optimizer, "lr": 0.01}
    # with clipping, half precision needs an optimizer that is not fused
    settings["clip_grad"] = 1.0 if optimizer == "adam" else None
    check_resumed_run(make_config(dataset, **settings), tmp_path, registry)


@pytest.mark.usefixtures("cuda_like")
@pytest.mark.parametrize(
    "settings",
    [
        {"model": "resnet20"},
        {"attack_mode": "train"},
        {"layout": "channels-last"},
        {"validate_every": 1, "select": "sa"},
    ],
    ids=str,
)
def test_other_settings_resume(
    settings: dict[str, Any], dataset: str, registry: Registry, tmp_path: Path
) -> None:
    check_resumed_run(make_config(dataset, **settings), tmp_path, registry)


@pytest.mark.usefixtures("any_device")
@pytest.mark.parametrize("channels", [1, 3])
def test_every_augmentation_resumes(channels: int, registry: Registry, tmp_path: Path) -> None:
    dataset = save_images(tmp_path, channels=channels)
    augment = "crop:1,flip,jitter:0.4:0.4:0.4:0.1,randaugment:2:9,erase,mixup:0.5,cutmix"
    check_resumed_run(make_config(dataset, augment=augment), tmp_path, registry)


@pytest.mark.usefixtures("any_device")
def test_extra_images_resume(dataset: str, registry: Registry, tmp_path: Path) -> None:
    config = make_config(dataset, extra=dataset, extra_fraction=0.5, augment="crop:1,mixup")
    check_resumed_run(config, tmp_path, registry)

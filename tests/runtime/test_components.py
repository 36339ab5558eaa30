"""Components are built from specs, and what plugins return is checked."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from wmr_cli.config import TrainConfig
from wmr_cli.core.data.augment import Augmentation
from wmr_cli.core.data.color import ColorJitter
from wmr_cli.core.data.mixing import Mixer
from wmr_cli.core.data.rand_augment import RandAugment
from wmr_cli.core.data.splits import MemorySource, MemorySplit
from wmr_cli.core.torchvision_compat import timm
from wmr_cli.errors import BadInput, BrokenContract
from wmr_cli.plugins import load_plugins
from wmr_cli.registry import Registry
from wmr_cli.runtime.components import (
    build_attack,
    build_augmentation,
    build_defense,
    build_kernel,
    build_model,
    list_attack_warnings,
    list_dataset_notes,
    restore_model,
    spec_without_weights,
)
from wmr_cli.spec import Spec
from wmr_cli.storage import checkpoints
from wmr_cli.testing import CLASSES, SHAPE

pytestmark = pytest.mark.usefixtures("trusts_local_code")


def one_image_dataset(*shape: int) -> MemorySource:
    images = MemorySplit(torch.zeros(1, *shape), torch.zeros(1), torch.zeros(1))
    return MemorySource(CLASSES, {"train": images})


def test_restoring_a_checkpoint_downloads_nothing(
    tmp_path: Path, registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse_download(*args: object, **kwargs: object) -> None:
        raise AssertionError("the weights of a checkpoint are in its file")

    monkeypatch.setattr(timm.models._builder, "load_state_dict_from_hf", refuse_download)
    model = build_model(registry, "timm:test_resnet", CLASSES, (3, 32, 32))
    path = tmp_path / "net.safetensors"
    config = TrainConfig(model="timm:test_resnet,pretrained=true,drop_rate=0.5")
    source = one_image_dataset(3, 32, 32)
    checkpoints.save(path, model.state_dict(), config, source, alpha_train=None, epoch=1)
    restored = restore_model(registry, checkpoints.load(path))
    weights = restored.state_dict()
    assert all(torch.equal(tensor, weights[name]) for name, tensor in model.state_dict().items())
    assert vars(restored.get_submodule("network"))["drop_rate"] == 0.5


MODELS = """
from pathlib import Path
import torch
from torch import nn


class Net(nn.Sequential):
    def __init__(self, num_classes: int, root: Path = Path("nowhere"), pretrained: bool = True):
        super().__init__(nn.Flatten(), nn.Linear(64, num_classes))
        self.root = root
        if pretrained:
            self.load_state_dict(torch.load(root / "net.pt", weights_only=True))


class Any(nn.Sequential):
    def __init__(self, num_classes: int, **others):
        super().__init__(nn.Flatten(), nn.Linear(64, num_classes))
        self.others = others
"""


@pytest.fixture
def local_model(tmp_path: Path) -> Callable[[str], str]:
    """Return the spec of a class in `MODELS`."""
    (tmp_path / "net.py").write_text(MODELS, encoding="utf-8")
    return lambda name: f"{tmp_path}/net.py:{name}"


def test_a_model_with_a_root_gets_the_data_folder(
    tmp_path: Path, registry: Registry, local_model: Callable[[str], str]
) -> None:
    spec = local_model("Net")
    untrained = f"{spec},pretrained=false"
    data_dir = tmp_path / "data"
    data_dir.mkdir()
    model = build_model(registry, untrained, CLASSES, SHAPE, data_dir)
    assert vars(model)["root"] == data_dir
    other = build_model(registry, f"{untrained},root={tmp_path}", CLASSES, SHAPE, data_dir)
    assert vars(other)["root"] == tmp_path, "an explicit root has precedence"
    torch.save(model.state_dict(), data_dir / "net.pt")
    pretrained = build_model(registry, spec, CLASSES, SHAPE, data_dir)
    assert torch.equal(pretrained.get_parameter("1.weight"), model.get_parameter("1.weight"))


def test_restoring_a_checkpoint_reads_no_pretrained_weights(
    tmp_path: Path, registry: Registry, local_model: Callable[[str], str]
) -> None:
    spec = local_model("Net")
    model = build_model(registry, f"{spec},pretrained=false", CLASSES, SHAPE, tmp_path)
    path = tmp_path / "net.safetensors"
    config = TrainConfig(model=spec)
    source = one_image_dataset(*SHAPE)
    checkpoints.save(path, model.state_dict(), config, source, alpha_train=None, epoch=1)
    restored = restore_model(registry, checkpoints.load(path))
    assert torch.equal(restored.get_parameter("1.weight"), model.get_parameter("1.weight"))


def test_a_model_with_any_keyword_gets_classes_and_shape_only(
    tmp_path: Path, registry: Registry, local_model: Callable[[str], str]
) -> None:
    spec = local_model("Any")
    model = build_model(registry, spec, CLASSES, SHAPE, tmp_path)
    assert vars(model)["others"] == {"input_shape": SHAPE}
    assert spec_without_weights(registry, f"{spec},pretrained=true") == spec
    timm_spec = spec_without_weights(registry, "timm:resnet18,pretrained=true")
    assert timm_spec == "timm:resnet18,pretrained=false"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("none", Augmentation()),
        ("flip", Augmentation(flips=True)),
        ("crop:4", Augmentation(4)),
        ("crop:4,flip", Augmentation(4, flips=True)),
        ("flip, crop:2:reflect", Augmentation(2, "reflect", flips=True)),
        ("resized-crop", Augmentation(smallest_area=0.08)),
        ("flip,resized-crop:0.25", Augmentation(flips=True, smallest_area=0.25)),
        ("jitter", Augmentation(jitter=ColorJitter(0.4, 0.4, 0.4, 0.0))),
        ("jitter:0.2", Augmentation(jitter=ColorJitter(0.2, 0.2, 0.2, 0.0))),
        ("jitter:0.1:0.2:0.3:1/10", Augmentation(jitter=ColorJitter(0.1, 0.2, 0.3, 0.1))),
        ("randaugment", Augmentation(rand_augment=RandAugment(2, 9))),
        ("randaugment:1:15,flip", Augmentation(flips=True, rand_augment=RandAugment(1, 15))),
        ("erase", Augmentation(erase=0.5)),
        ("erase:0.25", Augmentation(erase=0.25)),
        ("mixup:0.2", Augmentation(mixer=Mixer(0.2, 0.0))),
        ("cutmix,mixup:2", Augmentation(mixer=Mixer(2.0, 1.0))),
    ],
)
def test_an_augmentation_is_parsed(text: str, expected: Augmentation) -> None:
    assert build_augmentation(text, (3, 8, 8)) == expected


@pytest.mark.parametrize(
    "text",
    [
        "",
        "crop",
        "crop:x",
        "crop:4:wrap",
        "flip:2",
        "rotate",
        "none,flip",
        "crop:-1",
        "mixup:1:2",
        "flip,crop:2,flip",
    ],
)
def test_an_unknown_augmentation_is_refused(text: str) -> None:
    with pytest.raises(BadInput, match="augmentation"):
        build_augmentation(text, (3, 8, 8))


@pytest.mark.parametrize(
    "text", ["resized-crop:0", "resized-crop:1.5", "resized-crop:1.2.3", "crop:1,resized-crop"]
)
def test_an_impossible_resized_crop_is_refused(text: str) -> None:
    with pytest.raises(BadInput):
        build_augmentation(text, (3, 8, 8))


@pytest.mark.parametrize(
    "text",
    [
        "jitter:-1",
        "jitter:0:0:0:0.6",
        "jitter:",
        "randaugment:0:9",
        "randaugment:2:31",
        "randaugment:1.5",
        "erase:0",
        "erase:2",
        "mixup:0",
        "cutmix:1e9",
        "cutmix:x",
    ],
)
def test_numbers_of_an_augmentation_out_of_range_are_refused(text: str) -> None:
    with pytest.raises(BadInput):
        build_augmentation(text, (3, 8, 8))


@pytest.mark.parametrize("text", ["jitter:0.4", "randaugment"])
def test_changes_of_colour_need_grey_or_colour_images(text: str) -> None:
    build_augmentation(text, (1, 8, 8))
    with pytest.raises(BadInput, match="channels"):
        build_augmentation(text, (4, 8, 8))


@pytest.mark.parametrize("text", ["crop:8", "crop:40:reflect"])
def test_a_crop_of_the_whole_image_is_refused(text: str) -> None:
    with pytest.raises(BadInput, match="side 8"):
        build_augmentation(text, (3, 8, 9))


def test_remarks_of_an_attack_depend_on_the_number_of_classes(registry: Registry) -> None:
    dlr = build_attack(registry, Spec.parse("apgd-dlr"), norm="linf", eps=0.1)
    assert len(list(list_attack_warnings(dlr, 0.1, num_classes=2))) == 1
    assert list(list_attack_warnings(dlr, 0.1, num_classes=3)) == []
    assert list(list_attack_warnings(dlr, 0.1)) == []
    pgd = build_attack(registry, Spec.parse("pgd"), norm="linf", eps=0.1)
    assert list(list_attack_warnings(pgd, 0.1, num_classes=2)) == []


@pytest.mark.parametrize("setting", ["steps", "step_size", "restarts"])
def test_a_setting_that_an_attack_does_not_have_is_refused(
    setting: str, registry: Registry
) -> None:
    given: dict[str, Any] = {setting: 1}
    with pytest.raises(BadInput, match=f"`{setting}`"):
        build_attack(registry, Spec.parse("fgsm"), norm="linf", eps=0.1, **given)


def test_a_rounded_eps_and_a_long_step_cause_warnings(registry: Registry) -> None:
    (rounded,) = list_attack_warnings(None, 0.031)
    assert "8/255" in rounded
    assert list(list_attack_warnings(None, 8 / 255)) == []
    pgd = build_attack(registry, Spec.parse("pgd"), norm="linf", eps=0.1, step_size=0.3)
    (long,) = list_attack_warnings(pgd, 0.1)
    assert "0.3" in long


BROKEN = """
import torch
from wmr_cli.core import AttackTraits, KernelTraits


class NotCallable:
    pass


class OneArgument:
    def __call__(self, model): ...


class AttackWithoutTraits:
    def __call__(self, model, batch, objective, *, seed, need_logits=True): ...


class AttackOfVersion01(AttackWithoutTraits):
    loss = "margin"
    traits = AttackTraits()


class ReturnsNone:
    traits = KernelTraits()
    def __call__(self, evidence): ...


class ReturnsOneWeight:
    traits = KernelTraits()
    def __call__(self, evidence): return torch.zeros(1)


class ReturnsNan:
    traits = KernelTraits()
    def __call__(self, evidence): return evidence.logits[:, 0] * float("nan")


class KernelWithoutTraits:
    def __call__(self, evidence): return torch.zeros(3)


class StepWithoutBatch:
    def step(self, learner): ...


class DefenseWithoutTraits:
    def step(self, learner, batch): ...


def none(): return None
"""


@pytest.fixture
def broken(tmp_path: Path) -> Callable[[str], str]:
    """Return the spec of a component in `BROKEN`."""
    (tmp_path / "mine.py").write_text(BROKEN)
    return lambda name: f"{tmp_path}/mine.py:{name}"


def assert_refused(build: Callable[..., object], *args: object, **params: Any) -> None:
    with pytest.raises(BrokenContract, match=r"mine\.py|wmr 0\.1") as refused:
        build(*args, **params)
    assert refused.value.hint


@pytest.mark.parametrize(
    "name", ["NotCallable", "none", "OneArgument", "AttackWithoutTraits", "AttackOfVersion01"]
)
def test_an_attack_that_breaks_its_contract_is_refused(
    registry: Registry, broken: Callable[[str], str], name: str
) -> None:
    assert_refused(build_attack, registry, Spec.parse(broken(name)), norm="linf", eps=0.1)


@pytest.mark.parametrize("name", ["NotCallable", "KernelWithoutTraits"])
def test_a_kernel_that_breaks_its_contract_is_refused(
    registry: Registry, broken: Callable[[str], str], name: str
) -> None:
    assert_refused(build_kernel, registry, broken(name), None)


@pytest.mark.parametrize("name", ["ReturnsNone", "ReturnsOneWeight", "ReturnsNan"])
def test_a_kernel_without_valid_weights_is_refused(
    registry: Registry, broken: Callable[[str], str], name: str
) -> None:
    with pytest.raises(BrokenContract, match=name):
        build_kernel(registry, broken(name), None)


@pytest.mark.parametrize("name", ["NotCallable", "StepWithoutBatch", "DefenseWithoutTraits"])
def test_a_defense_that_breaks_its_contract_is_refused(
    registry: Registry, broken: Callable[[str], str], name: str
) -> None:
    assert_refused(build_defense, registry, broken(name))


@pytest.mark.parametrize("name", load_plugins().registry.names("kernel"))
def test_every_installed_kernel_can_be_built(registry: Registry, name: str, tmp_path: Path) -> None:
    (tmp_path / "weights.csv").write_text("index,weight\n1,2\n")
    spec = f"table:path={tmp_path}/weights.csv" if name == "table" else name
    assert build_kernel(registry, spec, None)


def test_the_note_of_a_split_reaches_the_user(registry: Registry) -> None:
    split = registry.create("dataset", "digits", root=Path()).splits["test"]
    assert list(list_dataset_notes(split)) == []
    object.__setattr__(split, "note", "half of it is missing")
    assert list(list_dataset_notes(split)) == ["half of it is missing"]

"""Components are built from specs, and what plugins return is checked."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from wmr_cli.config import TrainConfig
from wmr_cli.core.data.splits import MemorySource, MemorySplit
from wmr_cli.core.torchvision_compat import timm
from wmr_cli.errors import BadInput, BrokenContract
from wmr_cli.plugins import load_plugins
from wmr_cli.registry import Registry
from wmr_cli.runtime.components import (
    build_attack,
    build_defense,
    build_kernel,
    build_model,
    check_model_fits,
    list_attack_warnings,
    list_dataset_notes,
    restore_model,
    spec_without_weights,
)
from wmr_cli.spec import Spec
from wmr_cli.storage import checkpoints
from wmr_cli.testing import CLASSES, SHAPE, tiny_model

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


class ReturnsTuple(nn.Module):
    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        return images.flatten(1), images


class RaisesError(nn.Module):
    def forward(self, images: Tensor) -> object:
        raise AttributeError("no_such_attribute")


@pytest.mark.parametrize(
    ("model", "hint"),
    [
        (tiny_model(input_shape=(3, 8, 8)), "input_shape"),
        (tiny_model(input_shape=(1, 6, 6)), "input_shape"),
        (tiny_model(num_classes=10), "num_classes"),
        (nn.Conv2d(1, CLASSES, 3), "(images, classes)"),
        (nn.Sequential(nn.Flatten(0), nn.Unflatten(0, (32, CLASSES))), "(images, classes)"),
        (ReturnsTuple(), "(images, classes)"),
    ],
    ids=["channels", "size", "classes", "features", "images", "tuple"],
)
def test_a_model_that_does_not_fit_the_data_is_refused(model: nn.Module, hint: str) -> None:
    with pytest.raises(BadInput, match=r"model 'mine\.py:Net'") as refused:
        check_model_fits(model, "mine.py:Net", CLASSES, SHAPE)
    assert "\n" not in str(refused.value)
    assert hint in refused.value.hint


def test_the_channels_of_a_transformer_are_those_of_its_patches() -> None:
    model = timm.create_model("vit_tiny_patch16_224", img_size=32, depth=1, num_classes=CLASSES)
    with pytest.raises(BadInput, match="3 channels"):
        check_model_fits(model, "vit", CLASSES, (1, 32, 32))


def test_an_error_in_the_code_of_a_model_keeps_its_class() -> None:
    with pytest.raises(BadInput, match="AttributeError"):
        check_model_fits(RaisesError(), "mine.py:Net", CLASSES, SHAPE)


def test_checking_does_not_change_a_model() -> None:
    model = tiny_model().train()
    model.get_submodule("4").eval()
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    modes = [module.training for module in model.modules()]
    check_model_fits(model, "tiny", CLASSES, SHAPE)
    with pytest.raises(BadInput):
        check_model_fits(model, "tiny", CLASSES + 1, SHAPE)
    assert [module.training for module in model.modules()] == modes
    assert all(torch.equal(tensor, state[name]) for name, tensor in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())


def test_a_model_without_parameters_for_the_data_must_fit_them(
    tmp_path: Path, registry: Registry
) -> None:
    (tmp_path / "net.py").write_text(
        "from torch import nn\nclass Net(nn.Sequential):\n"
        "    def __init__(self): super().__init__(nn.Flatten(), nn.Linear(64, 10))\n"
    )
    model = build_model(registry, f"{tmp_path}/net.py:Net", 10, SHAPE)
    check_model_fits(model, "Net", 10, SHAPE)
    with pytest.raises(BadInput, match="5 classes"):
        check_model_fits(model, "Net", 5, SHAPE)

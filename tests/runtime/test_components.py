"""A network is held against the data before any work is done, and a checkpoint brings its own weights."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from wmr_cli.config import TrainConfig
from wmr_cli.core.data.augment import Augmentation
from wmr_cli.core.data.splits import MemorySource, MemorySplit
from wmr_cli.core.torchvision_compat import timm
from wmr_cli.errors import BadInput, BrokenContract
from wmr_cli.plugins import installed
from wmr_cli.registry import Registry
from wmr_cli.runtime import components
from wmr_cli.runtime.compatibility import check_model_fits
from wmr_cli.runtime.components import build_model, restore_model
from wmr_cli.spec import Spec
from wmr_cli.storage import checkpoints
from wmr_cli.testing import CLASSES, SHAPE, tiny_model

pytestmark = pytest.mark.usefixtures("trusts_local_code")


class Pair(nn.Module):
    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        return images.flatten(1), images


class Buggy(nn.Module):
    def forward(self, images: Tensor) -> object:
        raise AttributeError("no_such_attribute")


@pytest.mark.parametrize(
    ("network", "problem", "hint"),
    [
        (
            tiny_model(input_shape=(3, 8, 8)),
            "takes images of 3 channels, those of the data set have 1",
            "input_shape",
        ),
        (
            tiny_model(input_shape=(1, 6, 6)),
            "cannot take images of 1x8x8: mat1 and mat2 shapes",
            "input_shape",
        ),
        (
            tiny_model(num_classes=10),
            f"has 10 outputs, the data set has {CLASSES} classes",
            "num_classes",
        ),
        (
            nn.Conv2d(1, CLASSES, 3),
            "gives outputs of shape (2, 4, 6, 6) for 2 images",
            "(images, classes)",
        ),
        (
            nn.Sequential(nn.Flatten(0), nn.Unflatten(0, (32, CLASSES))),
            "gives outputs of shape (32, 4)",
            "(images, classes)",
        ),
        (Pair(), "gives a tuple", "(images, classes)"),
    ],
    ids=["channels", "size", "classes", "features", "images", "tuple"],
)
def test_a_network_that_does_not_fit_is_refused_with_the_fix(
    network: nn.Module, problem: str, hint: str
) -> None:
    with pytest.raises(BadInput) as refused:
        check_model_fits(network, "mine.py:Net", CLASSES, SHAPE)
    assert str(refused.value).startswith(f"model 'mine.py:Net' {problem}")
    assert "\n" not in str(refused.value)
    assert hint in refused.value.hint


def test_the_patches_of_a_transformer_are_a_first_convolution() -> None:
    network = timm.create_model("vit_tiny_patch16_224", img_size=32, depth=1, num_classes=CLASSES)
    with pytest.raises(BadInput, match="takes images of 3 channels, those of the data set have 1"):
        check_model_fits(network, "vit", CLASSES, (1, 32, 32))


def test_a_mistake_in_the_code_of_a_network_is_told_with_its_kind() -> None:
    with pytest.raises(BadInput, match="AttributeError"):
        check_model_fits(Buggy(), "mine.py:Buggy", CLASSES, SHAPE)


def test_checking_leaves_a_network_as_it_was() -> None:
    network = tiny_model().train()
    network.get_submodule("4").eval()
    state = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    modes = [module.training for module in network.modules()]
    check_model_fits(network, "tiny", CLASSES, SHAPE)
    with pytest.raises(BadInput):
        check_model_fits(network, "tiny", CLASSES + 1, SHAPE)
    assert [module.training for module in network.modules()] == modes
    assert all(torch.equal(tensor, state[name]) for name, tensor in network.state_dict().items())
    assert all(parameter.grad is None for parameter in network.parameters())


def test_a_class_may_know_its_classes_and_images_by_itself(
    tmp_path: Path, registry: Registry
) -> None:
    (tmp_path / "net.py").write_text(
        "from torch import nn\nclass Net(nn.Sequential):\n"
        "    def __init__(self): super().__init__(nn.Flatten(), nn.Linear(64, 10))\n"
    )
    network = build_model(registry, f"{tmp_path}/net.py:Net", 10, SHAPE)
    check_model_fits(network, "Net", 10, SHAPE)
    with pytest.raises(BadInput, match="has 10 outputs, the data set has 5 classes"):
        check_model_fits(network, "Net", 5, SHAPE)


def test_nothing_is_downloaded_for_a_checkpoint(
    tmp_path: Path, registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unreachable(*args: object, **kwargs: Any) -> None:
        raise AssertionError("the weights of a checkpoint are in its file")

    monkeypatch.setattr(timm.models._builder, "load_state_dict_from_hf", unreachable)
    network = build_model(registry, "timm:test_resnet", CLASSES, (3, 32, 32))
    images = MemorySplit(torch.zeros(1, 3, 32, 32), torch.zeros(1), torch.zeros(1))
    source, path = MemorySource(CLASSES, {"train": images}), tmp_path / "net.safetensors"
    config = TrainConfig(model="timm:test_resnet,pretrained=true,drop_rate=0.5")
    checkpoints.save(path, network.state_dict(), config, source, alpha_train=None, epoch=1)
    again = restore_model(registry, checkpoints.load(path))
    assert all(
        torch.equal(tensor, again.state_dict()[name])
        for name, tensor in network.state_dict().items()
    )
    assert vars(again.get_submodule("network"))["drop_rate"] == 0.5


FROM_A_FILE = """
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


def test_a_network_that_reads_weights_is_told_where_data_are_and_reads_none_for_a_checkpoint(
    tmp_path: Path, registry: Registry
) -> None:
    (tmp_path / "net.py").write_text(FROM_A_FILE, encoding="utf-8")
    data, spec = tmp_path / "data", f"{tmp_path}/net.py:Net"
    data.mkdir()
    fresh = build_model(registry, f"{spec},pretrained=false", CLASSES, SHAPE, data)
    torch.save(fresh.state_dict(), data / "net.pt")
    found = build_model(registry, spec, CLASSES, SHAPE, data)
    assert (vars(found)["root"], vars(fresh)["root"]) == (data, data)
    assert torch.equal(found.get_parameter("1.weight"), fresh.get_parameter("1.weight"))
    elsewhere = build_model(
        registry, f"{spec},pretrained=false,root={tmp_path}", CLASSES, SHAPE, data
    )
    assert vars(elsewhere)["root"] == tmp_path
    (data / "net.pt").unlink()
    images = MemorySplit(torch.zeros(1, *SHAPE), torch.zeros(1), torch.zeros(1))
    checkpoints.save(
        tmp_path / "net.safetensors", found.state_dict(), TrainConfig(model=spec), MemorySource(CLASSES, {"train": images}),
        alpha_train=None, epoch=1,
    )  # fmt: skip
    restored = restore_model(registry, checkpoints.load(tmp_path / "net.safetensors"))
    assert torch.equal(restored.get_parameter("1.weight"), found.get_parameter("1.weight"))


def test_a_network_that_takes_anything_is_told_nothing_more(
    tmp_path: Path, registry: Registry
) -> None:
    (tmp_path / "net.py").write_text(FROM_A_FILE, encoding="utf-8")
    spec = f"{tmp_path}/net.py:Any"
    assert build_model(registry, spec, CLASSES, SHAPE, tmp_path).others == {"input_shape": SHAPE}
    assert components.spec_without_weights(registry, f"{spec},pretrained=true") == spec
    assert (
        components.spec_without_weights(registry, "timm:resnet18,pretrained=true")
        == "timm:resnet18,pretrained=false"
    )


@pytest.mark.parametrize(
    ("text", "made"),
    [
        ("none", Augmentation()),
        ("flip", Augmentation(flips=True)),
        ("crop:4", Augmentation(4)),
        ("crop:4,flip", Augmentation(4, flips=True)),
        ("flip, crop:2:reflect", Augmentation(2, "reflect", flips=True)),
    ],
)
def test_augmentations_are_written_in_words(text: str, made: Augmentation) -> None:
    assert components.build_augmentation(text, (3, 8, 8)) == made


@pytest.mark.parametrize(
    "text", ["", "crop", "crop:x", "crop:4:wrap", "flip:2", "rotate", "none,flip", "crop:-1"]
)
def test_what_is_no_augmentation_is_refused(text: str) -> None:
    with pytest.raises(BadInput, match="no augmentation"):
        components.build_augmentation(text, (3, 8, 8))


@pytest.mark.parametrize("text", ["crop:8", "crop:40:reflect"])
def test_a_crop_that_can_leave_nothing_is_refused(text: str) -> None:
    with pytest.raises(BadInput, match="can leave nothing of an image of side 8"):
        components.build_augmentation(text, (3, 8, 9))


def test_a_note_of_the_data_reaches_the_user(registry: Registry) -> None:
    split = registry.create("dataset", "digits", root=Path()).splits["test"]
    assert list(components.list_dataset_notes(split)) == []
    object.__setattr__(split, "note", "half of it is there")
    assert list(components.list_dataset_notes(split)) == ["half of it is there"]


def test_what_an_attack_remarks_on_few_classes_reaches_the_user(registry: Registry) -> None:
    made = components.build_attack(registry, Spec.parse("apgd-dlr"), norm="linf", eps=0.1)
    assert list(components.list_attack_warnings(made, 0.1, 2)) == [
        "the DLR loss needs 3 classes: with 2 the attack maximises the margin loss"
    ]
    assert list(components.list_attack_warnings(made, 0.1, 3)) == []
    assert list(components.list_attack_warnings(made, 0.1)) == []
    assert (
        list(
            components.list_attack_warnings(
                components.build_attack(registry, Spec.parse("pgd"), norm="linf", eps=0.1), 0.1, 2
            )
        )
        == []
    )


BROKEN = """
import torch
from wmr_cli.core import AttackTraits, Batch, KernelTraits, MemorySource, MemorySplit

SPLIT = MemorySplit(torch.zeros(4, 1, 8, 8), torch.tensor([0, 1, 0, 1]), torch.arange(4))


class Nothing:
    pass


class Few:
    def __call__(self, model): ...


class NoWeights:
    traits = KernelTraits()
    def __call__(self, evidence): ...


class OneWeight:
    traits = KernelTraits()
    def __call__(self, evidence): return torch.zeros(1)


class NotANumber:
    traits = KernelTraits()
    def __call__(self, evidence): return evidence.logits[:, 0] * float("nan")


class WrongStep:
    def step(self, learner): ...


class NoTraits:
    def __call__(self, model, batch, objective, *, seed, need_logits=True): ...


class KernelWithoutTraits:
    def __call__(self, evidence): ...


class DefenseWithoutTraits:
    def step(self, learner, batch): ...


class OldLoss(NoTraits):
    loss = "margin"
    traits = AttackTraits()


def nothing(): return None
def no_splits(): return MemorySource(2, None)
def listed(): return MemorySource(2, [SPLIT])
def one_class(): return MemorySource(1, {"train": SPLIT})
def half_a_class(): return MemorySource(2.5, {"train": SPLIT})
def no_images(): return MemorySource(2, {})
def few_names(): return MemorySource(2, {"train": SPLIT}, class_names=("cat",))
def listed_names(): return MemorySource(2, {"train": SPLIT}, class_names=["cat", "dog"])
def numbers(): return MemorySource(2, {"train": SPLIT}, class_names=(1, 2))
def no_split(): return MemorySource(2, {"train": SPLIT, "test": None})


class Silent:
    labels, sha256 = SPLIT.labels, "0"
    def __len__(self): return 4
    def batch(self, positions): ...


def silent(): return MemorySource(2, {"train": SPLIT, "test": Silent()})
"""


@pytest.fixture
def local(tmp_path: Path) -> Callable[..., Any]:
    (tmp_path / "mine.py").write_text(BROKEN)
    return lambda name: f"{tmp_path}/mine.py:{name}"


def broken(problem: str, act: Callable[..., Any], *args: object, **flags: Any) -> None:
    with pytest.raises(BrokenContract, match=problem) as refused:
        act(*args, **flags)
    assert refused.value.hint


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("Nothing", "builds a Nothing, which cannot be called"),
        ("nothing", "builds a NoneType, which cannot be called"),
        ("Few", "cannot be called: too many positional arguments"),
        ("NoTraits", "without `traits`"),
        ("OldLoss", "`loss` of wmr 0.1"),
    ],
)
def test_an_attack_that_cannot_be_called_is_refused(
    registry: Registry, local: Callable[..., Any], name: str, problem: str
) -> None:
    broken(
        problem, components.build_attack, registry, Spec.parse(local(name)), norm="linf", eps=0.1
    )


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("Nothing", "which cannot be called"),
        ("NoWeights", "returned a NoneType"),
        ("OneWeight", "of shape .1,. for 3 images"),
        ("NotANumber", "not a number"),
    ],
)
def test_a_kernel_that_gives_no_weights_is_refused(
    registry: Registry, local: Callable[..., Any], name: str, problem: str
) -> None:
    broken(problem, components.build_kernel, registry, local(name), None)


@pytest.mark.parametrize(
    ("name", "problem"),
    [("Nothing", "without a method 'step'"), ("WrongStep", "step of .* cannot be called")],
)
def test_a_defense_without_its_step_is_refused(
    registry: Registry, local: Callable[..., Any], name: str, problem: str
) -> None:
    broken(problem, components.build_defense, registry, local(name))


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("nothing", "builds a NoneType that cannot be used"),
        ("Nothing", "builds a Nothing that cannot be used"),
        ("no_splits", "cannot be used"),
        ("listed", "cannot be used"),
        ("no_images", "cannot be used: StopIteration"),
        ("one_class", "num_classes of data set .* is 1"),
        ("half_a_class", r"num_classes of data set .* is 2\.5"),
        ("few_names", "names 1 classes and has 2"),
        ("listed_names", "is not a tuple of text"),
        ("numbers", "is not a tuple of text"),
    ],
)
def test_a_data_set_that_is_not_one_is_refused(
    registry: Registry, local: Callable[..., Any], name: str, problem: str
) -> None:
    broken(problem, components.build_dataset, registry, local(name), Path())


@pytest.mark.parametrize(
    ("name", "problem"), [("no_split", "a NoneType without"), ("silent", "returned a NoneType")]
)
def test_a_split_that_is_not_one_is_refused(
    registry: Registry, local: Callable[..., Any], name: str, problem: str
) -> None:
    source = components.build_dataset(registry, local(name), Path())
    broken(problem, components.get_split, source, "test")


@pytest.mark.parametrize("name", installed().registry.names("kernel"))
def test_every_kernel_passes_its_trial(registry: Registry, name: str, tmp_path: Path) -> None:
    (tmp_path / "weights.csv").write_text("index,weight\n1,2\n")
    assert components.build_kernel(
        registry, f"table:path={tmp_path}/weights.csv" if name == "table" else name, None
    )

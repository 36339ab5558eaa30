"""Components that do not fit the data or each other are refused before any work."""

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from wmr_cli.config import TrainConfig
from wmr_cli.core.torchvision_compat import timm
from wmr_cli.errors import BadInput
from wmr_cli.registry import Registry
from wmr_cli.runtime.compatibility import check_batch_size, check_model_fits, check_ramps
from wmr_cli.runtime.components import build_attack, build_model
from wmr_cli.spec import Spec
from wmr_cli.testing import CLASSES, SHAPE, tiny_model

pytestmark = pytest.mark.usefixtures("trusts_local_code")


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


def test_a_ramp_needs_a_parameter_to_scale(registry: Registry) -> None:
    kernel = registry.create("kernel", "none")
    pgd = build_attack(registry, Spec.parse("pgd"), norm="linf", eps=0.1)
    with pytest.raises(BadInput, match="kernel 'none'") as refused:
        check_ramps(pgd, kernel, TrainConfig(alpha_ramp=0.5, kernel="none"))
    assert "`alpha_ramp`" in refused.value.hint
    check_ramps(pgd, kernel, TrainConfig(eps_ramp=0.5))


def test_each_rank_needs_two_images_of_a_batch() -> None:
    check_batch_size(TrainConfig(batch_size=4), images=8, ranks=2)
    check_batch_size(TrainConfig(batch_size=1), images=8, ranks=1)
    with pytest.raises(BadInput) as refused:
        check_batch_size(TrainConfig(batch_size=3), images=9, ranks=2)
    assert "`batch_size`" in refused.value.hint

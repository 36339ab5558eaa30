"""Networks of timm: built for the data, normalised as in timm, refused where unsupported."""

from typing import Any

import pytest
import torch
from torch import nn

from wmr_cli.builtins.models.timm_models import from_timm
from wmr_cli.core.nn.preprocessing import Normalized, Resized
from wmr_cli.core.torchvision_compat import timm
from wmr_cli.errors import BadFile, BadInput, UnknownName, WmrError
from wmr_cli.registry import Registry

COLOUR = (3, 32, 32)
IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def made(
    spec: str, registry: Registry, shape: tuple[int, int, int] = COLOUR, classes: int = 5
) -> Normalized:
    result: Normalized = registry.create(
        "model", f"timm:{spec}", num_classes=classes, input_shape=shape
    )
    return result


def refusal(spec: str, registry: Registry, shape: tuple[int, int, int] = COLOUR) -> WmrError:
    with pytest.raises((BadInput, BadFile)) as refused:
        made(spec, registry, shape)
    return refused.value


def test_it_is_the_network_of_timm_behind_its_normalisation(registry: Registry) -> None:
    model = made("resnet10t", registry).eval()
    theirs = timm.create_model("resnet10t", num_classes=5).eval()
    theirs.load_state_dict(model.network.state_dict())
    images = torch.rand(2, *COLOUR)
    mean, std = (torch.tensor(values).reshape(3, 1, 1) for values in (IMAGENET_MEAN, IMAGENET_STD))
    torch.testing.assert_close(model(images), theirs((images - mean) / std))


def test_a_tag_chooses_the_normalisation_of_its_weights(registry: Registry) -> None:
    means = {
        tag: made(f"tf_efficientnet_b0.{tag}", registry).mean.flatten().tolist()
        for tag in ("aa_in1k", "ap_in1k")
    }
    assert means == {"aa_in1k": pytest.approx(IMAGENET_MEAN), "ap_in1k": pytest.approx([0.5] * 3)}


def test_data_of_other_channels_are_normalised_by_the_averages(registry: Registry) -> None:
    model = made("resnet10t", registry, (1, 28, 28))
    assert model.mean.flatten().tolist() == pytest.approx([sum(IMAGENET_MEAN) / 3])
    assert model.std.flatten().tolist() == pytest.approx([sum(IMAGENET_STD) / 3])
    assert model(torch.rand(2, 1, 28, 28)).shape == (2, 5)


def test_a_users_mean_and_std_are_taken_instead_and_only_once(registry: Registry) -> None:
    model = made("resnet10t,mean=0.1:0.2:0.3,std=1", registry)
    assert isinstance(model, Normalized)
    assert not isinstance(model.network, Normalized)
    assert model.mean.flatten().tolist() == pytest.approx([0.1, 0.2, 0.3])
    assert model.std.flatten().tolist() == [1]
    only_mean = made("resnet10t,mean=0.1", registry)
    assert only_mean.std.flatten().tolist() == pytest.approx(IMAGENET_STD)


@pytest.mark.parametrize("shape", [(3, 32, 32), (1, 32, 48)])
def test_an_architecture_made_for_one_size_is_built_for_that_of_the_data(
    shape: tuple[int, int, int], registry: Registry
) -> None:
    model = made("vit_tiny_patch16_224,depth=1", registry, shape)
    assert vars(model.network.get_submodule("patch_embed"))["grid_size"] == (
        shape[1] // 16,
        shape[2] // 16,
    )
    assert model(torch.rand(2, *shape)).shape == (2, 5)


def test_options_go_to_timm(registry: Registry) -> None:
    model = made("vit_tiny_patch16_224,depth=2,patch_size=4,drop_rate=0.1", registry).network
    assert len(list(model.get_submodule("blocks").children())) == 2
    assert vars(model.get_submodule("patch_embed"))["grid_size"] == (8, 8)
    assert vars(model.get_submodule("head_drop"))["p"] == 0.1


@pytest.mark.parametrize("shape", [(1, 28, 28), (3, 64, 48), (3, 128, 20)])
def test_with_size_the_model_resizes_and_the_gradient_reaches_every_pixel_of_the_data(
    shape: tuple[int, int, int], registry: Registry
) -> None:
    model = made("vit_tiny_patch16_224,size=32,depth=1", registry, shape).eval()
    assert isinstance(model.network, Resized)
    images = torch.rand(2, *shape, requires_grad=True)
    logits = model(images)
    assert logits.shape == (2, 5)
    (gradient,) = torch.autograd.grad(logits[:, 0].sum(), images)
    assert (gradient != 0).all()


def test_resizing_keeps_constant_images_and_their_range() -> None:
    resized = Resized(nn.Identity(), 40)(
        torch.stack([torch.full((3, 28, 20), 0.25), torch.rand(3, 28, 20)])
    )
    assert resized.shape == (2, 3, 40, 40)
    torch.testing.assert_close(resized[0], torch.full((3, 40, 40), 0.25))
    assert resized.min() >= 0
    assert resized.max() <= 1


def test_images_that_have_the_size_already_stay_as_they_are() -> None:
    images = torch.rand(2, 3, 32, 32)
    torch.testing.assert_close(Resized(nn.Identity(), 32)(images), images)


def test_a_misspelt_network_is_refused_with_the_nearest(registry: Registry) -> None:
    problem = refusal("resnet81", registry)
    assert isinstance(problem, UnknownName)
    assert str(problem) == "timm has no network 'resnet81'"
    assert "did you mean 'resnet" in problem.hint


@pytest.mark.parametrize("name", ["qqqqqq", "_"])
def test_the_hint_stays_short_however_many_networks_there_are(
    name: str, registry: Registry
) -> None:
    problem = refusal(name, registry)
    assert "names" in problem.hint
    assert len(problem.hint) < 150


@pytest.mark.parametrize(
    "name", ["resnet18.no_such_tag", "hf-hub:timm/resnet18.a1_in1k", "vit_tiny_patch16_224_in21k"]
)
def test_names_that_timm_would_fetch_or_map_are_refused(name: str, registry: Registry) -> None:
    assert isinstance(refusal(name, registry), UnknownName)


@pytest.mark.parametrize(
    ("spec", "shape", "problem", "hint"),
    [
        (
            "vit_tiny_patch16_224",
            (1, 28, 28),
            "28x28: they cannot be cut into patches of 16x16",
            "timm:vit_tiny_patch16_224,size=32;",
        ),
        (
            "vit_tiny_patch16_224",
            (1, 250, 250),
            "250x250: they cannot be cut",
            "timm:vit_tiny_patch16_224,size=224",
        ),
        ("densenet121", (1, 8, 8), "8x8: ", "timm:densenet121,size=32"),
        ("inception_v3", (3, 32, 32), "32x32: ", "timm:inception_v3,size=299"),
        ("inception_v3,size=40", (3, 32, 32), "40x40: ", "timm:inception_v3,size=64"),
        ("levit_128s", (3, 28, 28), "28x28: ", "timm:levit_128s,size=32"),
    ],
)
def test_hint_names_a_size_that_fits(
    spec: str, shape: tuple[int, int, int], problem: str, hint: str, registry: Registry
) -> None:
    refused = refusal(spec, registry, shape)
    assert problem in str(refused)
    assert hint in refused.hint
    assert "\n" not in str(refused)


@pytest.mark.parametrize("key", ["stps", "pretraned", "depth", "patch_size"])
def test_an_option_that_timm_refuses_is_named(key: str, registry: Registry) -> None:
    assert (
        str(refusal(f"resnet10t,drop_rate=0.1,{key}=1", registry))
        == f"timm's resnet10t does not take {key!r}"
    )


def test_hint_names_options_with_invalid_values(registry: Registry) -> None:
    assert "depth" in refusal("vit_tiny_patch16_224,depth=many", registry).hint


@pytest.mark.parametrize("key", ["in_chans", "img_size", "checkpoint_path", "features_only"])
def test_options_that_the_data_decide_are_refused(key: str, registry: Registry) -> None:
    assert f"{key} of timm:resnet10t is set elsewhere" in str(
        refusal(f"resnet10t,{key}=1", registry)
    )


def test_size_must_be_positive(registry: Registry) -> None:
    assert "size=0" in str(refusal("resnet10t,size=0", registry))


def test_a_network_without_a_name_is_refused(registry: Registry) -> None:
    with pytest.raises(BadInput, match="'timm' needs name"):
        registry.create("model", "timm", num_classes=2, input_shape=COLOUR)


def test_weights_that_timm_does_not_have_are_one_line(registry: Registry) -> None:
    (name, *_) = sorted(
        set(timm.list_models("resnet*"))
        - {name.partition(".")[0] for name in timm.list_pretrained("resnet*")}
    )
    problem = refusal(f"{name},pretrained=true", registry)
    assert isinstance(problem, BadFile)
    assert f"timm's weights of {name} cannot be loaded: " in str(problem)
    assert "leave out pretrained" in problem.hint


def test_weights_that_cannot_be_fetched_are_one_line(
    registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unreachable(*args: str, **kwargs: Any) -> None:
        raise OSError("no way to the server\nand a long story")

    monkeypatch.setattr(timm.models._builder, "load_state_dict_from_hf", unreachable)
    assert str(refusal("test_resnet,pretrained=true", registry)).endswith(
        "cannot be loaded: no way to the server"
    )


def test_weights_that_are_there_are_loaded_for_the_classes_and_channels_of_the_data(
    registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    weights = timm.create_model("test_resnet").state_dict()
    monkeypatch.setattr(
        timm.models._builder, "load_state_dict_from_hf", lambda *args, **kwargs: dict(weights)
    )
    network = made("test_resnet,pretrained=true", registry).network
    assert torch.equal(
        network.get_parameter("layer1.0.conv1.weight"), weights["layer1.0.conv1.weight"]
    )
    assert network.get_parameter("fc.weight").shape[0] == 5
    gray = made("test_resnet,pretrained=true", registry, (1, 28, 28)).network
    assert next(gray.parameters()).shape[1] == 1


def test_building_does_not_change_the_mode() -> None:
    assert all(module.training for module in from_timm(5, COLOUR, "resnet10t").modules())

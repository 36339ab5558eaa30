"""The embedded networks: shapes, names and how they begin."""

import pytest
import torch
from torch import nn

from wmr_cli.builtins.models.resnets import CifarResNet, resnet18, wide_resnet
from wmr_cli.builtins.models.small_cnns import DigitsCnn, SmallCnn
from wmr_cli.errors import BadInput
from wmr_cli.registry import Registry


def parameters(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def sides(model: nn.Module, stages: list[str], shape: tuple[int, int, int]) -> list[int]:
    """Return the side of the square features of each of these modules for one image."""
    seen = []
    for stage in stages:
        model.get_submodule(stage).register_forward_hook(
            lambda module, given, output: seen.append(output.shape[-1])
        )
    model.eval()(torch.zeros(1, *shape))
    return seen


def test_small_cnn_has_the_parameters_of_the_trades_network() -> None:
    assert parameters(SmallCnn(10, (1, 28, 28))) == 312_202


def test_small_cnn_names_its_weights_as_the_trades_network_does() -> None:
    convolutions = [f"feature_extractor.conv{number}" for number in (1, 2, 3, 4)]
    layers = [*convolutions, *(f"classifier.fc{number}" for number in (1, 2, 3))]
    assert list(SmallCnn(10, (1, 28, 28)).state_dict()) == [
        f"{layer}.{part}" for layer in layers for part in ("weight", "bias")
    ]


def test_small_cnn_starts_with_every_class_as_likely_as_any_other() -> None:
    logits = SmallCnn(10, (1, 28, 28))(
        torch.rand(3, 1, 28, 28, generator=torch.Generator().manual_seed(0))
    )
    assert torch.equal(logits, torch.zeros(3, 10))


def test_small_cnn_starts_with_convolutions_of_he_normal_weights() -> None:
    torch.manual_seed(0)
    for number, inputs in ((2, 32), (3, 32), (4, 64)):
        features = SmallCnn(10, (1, 28, 28)).feature_extractor
        weight = features.get_parameter(f"conv{number}.weight")
        assert weight.std().item() == pytest.approx((2 / (9 * inputs)) ** 0.5, rel=0.05)


@pytest.mark.parametrize("shape", [(1, 28, 28), (3, 32, 32), (1, 16, 16), (2, 17, 30)])
def test_small_cnn_takes_images_of_other_shapes(shape: tuple[int, int, int]) -> None:
    assert SmallCnn(7, shape)(torch.rand(2, *shape)).shape == (2, 7)


@pytest.mark.parametrize("shape", [(1, 8, 8), (1, 15, 28), (1, 28, 15), (1, 2, 2)])
def test_small_cnn_refuses_images_that_are_too_small(shape: tuple[int, int, int]) -> None:
    with pytest.raises(BadInput, match="16x16"):
        SmallCnn(10, shape)


@pytest.mark.parametrize("shape", [(1, 8, 8), (3, 9, 7), (1, 2, 2), (1, 28, 28)])
@pytest.mark.parametrize("classes", [2, 10])
def test_digits_cnn_takes_images_of_any_shape(shape: tuple[int, int, int], classes: int) -> None:
    logits = DigitsCnn(classes, shape)(torch.rand(5, *shape))
    assert logits.shape == (5, classes)
    assert logits.isfinite().all()


def test_digits_cnn_has_the_size_of_its_layers() -> None:
    convolutions = (9 * 1 * 4 + 4) + (9 * 4 * 8 + 8)
    assert parameters(DigitsCnn(10, (1, 8, 8), width=4, hidden=6)) == convolutions + (
        8 * 4 * 4 * 6 + 6
    ) + (6 * 10 + 10)


@pytest.mark.parametrize(
    ("shape", "settings"), [((1, 1, 8), {}), ((1, 8, 8), {"width": 0}), ((1, 8, 8), {"hidden": 0})]
)
def test_digits_cnn_refuses_what_cannot_be_built(
    shape: tuple[int, int, int], settings: dict[str, int]
) -> None:
    with pytest.raises(BadInput, match="digits-cnn cannot be built"):
        DigitsCnn(10, shape, **settings)


@pytest.mark.parametrize(
    ("spec", "classes", "count"),
    [
        pytest.param(
            "resnet18", 10, 11_173_962, id="resnet18 with a 3x3 stem, the common CIFAR version"
        ),
        pytest.param("resnet18:stem=imagenet", 1000, 11_689_512, id="resnet18 as on ImageNet"),
        pytest.param(
            "resnet50", 200, 23_917_832, id="resnet50 as on ImageNet but for its 200 classes"
        ),
        pytest.param(
            "resnet50:stem=cifar",
            200,
            23_910_152,
            id="resnet50 with a 3x3 stem, 7,680 parameters less",
        ),
        pytest.param(
            "preact-resnet18",
            10,
            11_172_170,
            id="preact-resnet18 with a last norm, the common CIFAR version",
        ),
        pytest.param("wrn-28-10", 10, 36_479_194, id="wrn-28-10"),
        pytest.param("wrn-34-10", 10, 46_160_474, id="wrn-34-10, the network of TRADES"),
        pytest.param("wrn-28-10:depth=16,width=4", 10, 2_748_890, id="wrn-16-4"),
        pytest.param("resnet20", 10, 269_722, id="resnet20 with shortcuts without parameters"),
        pytest.param("resnet20:depth=56", 10, 853_018, id="resnet56"),
    ],
)
def test_a_residual_network_has_the_published_number_of_parameters(
    spec: str, classes: int, count: int, registry: Registry
) -> None:
    with torch.device("meta"):
        model = registry.create("model", spec, num_classes=classes, input_shape=(3, 32, 32))
    assert parameters(model) == count


SMALL_SPECS = [
    "resnet18",
    "resnet18:stem=imagenet",
    "preact-resnet18",
    "wrn-28-10:depth=10,width=1",
    "resnet20:depth=8",
]


@pytest.mark.parametrize("spec", SMALL_SPECS)
@pytest.mark.parametrize("shape", [(1, 28, 28), (3, 9, 7), (2, 33, 40)])
def test_a_residual_network_takes_images_of_any_shape(
    spec: str, shape: tuple[int, int, int], registry: Registry
) -> None:
    model = registry.create("model", spec, num_classes=7, input_shape=shape)
    assert model(torch.rand(2, *shape)).shape == (2, 7)


@pytest.mark.parametrize(
    ("spec", "stages", "halvings"),
    [
        ("resnet18", ["maxpool", "layer1", "layer2", "layer3", "layer4"], [64, 64, 32, 16, 8]),
        (
            "resnet18:imagenet",
            ["maxpool", "layer1", "layer2", "layer3", "layer4"],
            [16, 16, 8, 4, 2],
        ),
        ("resnet50", ["maxpool", "layer1", "layer2", "layer3", "layer4"], [16, 16, 8, 4, 2]),
        (
            "preact-resnet18",
            ["stem", "stages.0", "stages.1", "stages.2", "stages.3"],
            [64, 64, 32, 16, 8],
        ),
        ("wrn-28-10:width=1", ["stem", "stages.0", "stages.1", "stages.2"], [64, 64, 32, 16]),
        ("resnet20", ["conv1", "layer1", "layer2", "layer3"], [64, 64, 32, 16]),
    ],
)
def test_stem_and_stages_halve_the_side_as_they_should(
    spec: str, stages: list[str], halvings: list[int], registry: Registry
) -> None:
    model = registry.create("model", spec, num_classes=2, input_shape=(3, 64, 64))
    assert sides(model, stages, (3, 64, 64)) == halvings
    assert {module.dilation for module in model.modules() if isinstance(module, nn.Conv2d)} == {
        (1, 1)
    }


@pytest.mark.parametrize("spec", [*SMALL_SPECS, "resnet50"])
def test_no_block_of_a_residual_network_starts_as_the_identity(
    spec: str, registry: Registry
) -> None:
    model = registry.create("model", spec, num_classes=2, input_shape=(3, 16, 16))
    weights = {name: weight for name, weight in model.named_parameters() if name.endswith("weight")}
    assert [name for name, weight in weights.items() if not weight.any()] == []


@pytest.mark.parametrize("spec", ["resnet18", "preact-resnet18", "resnet20"])
def test_the_stem_starts_with_he_normal_weights(spec: str, registry: Registry) -> None:
    torch.manual_seed(0)
    model = registry.create("model", spec, num_classes=2, input_shape=(16, 8, 8))
    stem = next(module for module in model.modules() if isinstance(module, nn.Conv2d))
    reach = stem.in_channels if spec == "resnet20" else stem.out_channels
    assert stem.weight.std().item() == pytest.approx((2 / (9 * reach)) ** 0.5, rel=0.05)


def test_an_unknown_stem_is_refused(registry: Registry) -> None:
    with pytest.raises(BadInput, match="'mnist' is none of cifar, imagenet"):
        registry.create("model", "resnet18:stem=mnist", num_classes=2, input_shape=(3, 8, 8))


@pytest.mark.parametrize(
    ("settings", "problem"),
    [({"depth": 27}, "depth 27"), ({"depth": 4}, "depth 4"), ({"width": 0}, "width=0")],
)
def test_invalid_wide_resnet_is_refused(settings: dict[str, int], problem: str) -> None:
    with pytest.raises(BadInput, match=problem):
        wide_resnet(10, (3, 32, 32), **settings)


@pytest.mark.parametrize("depth", [2, 18, 21])
def test_a_cifar_resnet_that_cannot_be_is_refused(depth: int) -> None:
    with pytest.raises(BadInput, match=f"depth {depth}"):
        CifarResNet(10, (3, 32, 32), depth)


def test_a_cifar_resnet_names_its_weights_as_the_public_one_does() -> None:
    parts = [("conv1", "bn1")]
    parts += [
        (f"layer{stage}.{block}.conv{half}", f"layer{stage}.{block}.bn{half}")
        for stage in (1, 2, 3)
        for block in (0, 1, 2)
        for half in (1, 2)
    ]
    buffers = ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")
    names = [
        name
        for conv, norm in parts
        for name in (f"{conv}.weight", *(f"{norm}.{buffer}" for buffer in buffers))
    ]
    assert list(CifarResNet(10, (3, 32, 32)).state_dict()) == [
        *names,
        "linear.weight",
        "linear.bias",
    ]


def test_a_shortcut_of_a_cifar_resnet_takes_every_second_pixel_and_adds_channels_of_zeros() -> None:
    block = CifarResNet(10, (3, 32, 32)).layer2[0].eval()
    nn.init.zeros_(block.get_parameter("bn2.weight"))  # the convolutions add nothing
    features = torch.rand(2, 16, 5, 6)
    output = block(features)
    assert output.shape == (2, 32, 3, 3)
    assert torch.equal(output[:, 8:24], features[:, :, ::2, ::2])
    assert not output[:, :8].any()
    assert not output[:, 24:].any()


def test_residual_networks_take_pixels_as_they_are() -> None:
    model = resnet18(3, (3, 8, 8)).eval()
    assert next(model.children()) is model.conv1

"""Fused models and faster convolutions compute the same function as their originals."""

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import pytest
import torch
from torch import Tensor, nn
from torch.autograd import grad
from torch.nn import functional
from torch.nn.utils import parametrizations

from support.dispatch import BeforeEach
from support.typed import not_none
from wmr_cli.core.contexts import evaluating
from wmr_cli.core.losses import cross_entropy
from wmr_cli.core.nn.fusion import (
    MAX_GRADIENT_DIFFERENCE,
    MAX_LOGIT_DIFFERENCE,
    SmallChannelConv2d,
    _agree,
    convert_weights,
    has_few_channels,
    matmul_input_gradient,
    preferred_memory_format,
    prepare_for_attack,
    supported_memory_format,
    to_memory_format,
    try_fuse,
)
from wmr_cli.registry import Registry
from wmr_cli.runtime import components

SHAPES = {"small-cnn": (1, 28, 28), "timm:mobilenetv2_050": (3, 32, 32)}
FUSED_NORMS = {
    "small-cnn": 0,
    "digits-cnn": 0,
    "resnet20": 19,
    "resnet18": 20,
    "preact-resnet18": 8,
    "resnet18:mean=0.5,std=0.2": 20,
    "timm:mobilenetv2_050": 52,
}

Network = TypeVar("Network", bound=nn.Module)


def randomize_norms(network: Network) -> Network:
    """Set statistics and affine parameters that make errors of fusion visible."""
    torch.manual_seed(1)
    for layer in network.modules():
        if isinstance(layer, nn.BatchNorm2d):
            for tensor, low, high in (
                (layer.running_mean, -0.3, 0.3),
                (layer.running_var, 0.5, 1.5),
                (layer.weight, 0.5, 1.5),
                (layer.bias, -0.3, 0.3),
            ):
                nn.init.uniform_(not_none(tensor), low, high)
        if isinstance(layer, nn.Linear):
            nn.init.normal_(layer.weight, std=0.1)
    return network.eval()


def logits_and_gradient(
    network: nn.Module, images: Tensor, labels: Tensor
) -> tuple[Tensor, Tensor]:
    images = images.clone().requires_grad_()
    logits = network(images)
    return logits.detach(), torch.autograd.grad(cross_entropy(logits, labels).sum(), images)[0]


class Block(nn.Module):
    """Convolution, batch-norm, ReLU, pool and a classifier, with a replaceable middle."""

    def __init__(self, middle: Callable[..., Any] | None = None, **options: Any) -> None:
        super().__init__()
        self.conv, self.norm, self.last = (
            nn.Conv2d(1, 4, 3, padding=1),
            nn.BatchNorm2d(4, **options),
            nn.Linear(4 * 16, 3),
        )
        self.middle = middle or (lambda block, images: block.norm(block.conv(images)))

    def forward(self, images: Tensor) -> Tensor:
        result: Tensor = self.last(
            functional.max_pool2d(functional.relu(self.middle(self, images)), 2).flatten(1)
        )
        return result


@pytest.fixture
def images() -> Tensor:
    return torch.rand(4, 1, 8, 8, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("memory_format", [torch.channels_last, torch.contiguous_format])
@pytest.mark.parametrize("spec", FUSED_NORMS)
def test_fused_model_has_the_logits_and_gradients_of_the_original(
    registry: Registry, spec: str, memory_format: torch.memory_format
) -> None:
    shape = SHAPES.get(spec, (1, 8, 8) if spec == "digits-cnn" else (3, 16, 16))
    network = randomize_norms(components.build_model(registry, spec, 10, shape))
    images, labels = torch.rand(3, *shape), torch.arange(3)
    fused = try_fuse(network, images, memory_format)
    assert fused is not None
    assert fused.num_fused == FUSED_NORMS[spec]
    expected_logits, expected_gradient = logits_and_gradient(network, images, labels)
    logits, gradient = logits_and_gradient(fused.module, images, labels)
    difference = (logits - expected_logits).abs().max()
    assert difference <= MAX_LOGIT_DIFFERENCE * expected_logits.abs().max()
    distance = (gradient - expected_gradient).flatten(1).norm(dim=1)
    relative = distance / expected_gradient.flatten(1).norm(dim=1)
    # the median: rounding may move single images across the kink of a ReLU
    assert relative.median() <= MAX_GRADIENT_DIFFERENCE


def test_fused_model_without_batch_norm_is_bit_identical(registry: Registry) -> None:
    network = randomize_norms(components.build_model(registry, "small-cnn", 10, (1, 28, 28)))
    images = torch.rand(5, 1, 28, 28)
    labels = torch.arange(5)
    fused = not_none(try_fuse(network, images))
    assert "relu_" in fused.module.code
    expected_logits, expected_gradient = logits_and_gradient(network, images, labels)
    logits, gradient = logits_and_gradient(fused.module, images, labels)
    assert torch.equal(logits, expected_logits)
    assert torch.equal(gradient, expected_gradient)


def test_refresh_copies_current_weights_in_place(images: Tensor) -> None:
    network = randomize_norms(Block())
    fused = not_none(try_fuse(network, images))
    old_logits = network(images)
    address = fused.copies[0].own.weight.data_ptr()
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.mul_(1.5)
    network.get_buffer("norm.running_mean").add_(0.5)
    assert not torch.allclose(fused.module(images), network(images), atol=1e-3)
    fused.refresh()
    assert torch.allclose(fused.module(images), network(images), atol=1e-5)
    assert not torch.allclose(old_logits, network(images), atol=1e-3)
    assert fused.copies[0].own.weight.data_ptr() == address


def test_fusing_leaves_the_original_unchanged(images: Tensor) -> None:
    network = randomize_norms(Block()).train()
    before = copy.deepcopy(network.state_dict())
    required_grads = [parameter.requires_grad for parameter in network.parameters()]
    fused = not_none(try_fuse(network, images, torch.channels_last))
    with evaluating(network):
        logits_and_gradient(fused.module, images, torch.zeros(4, dtype=torch.long))
    assert all(torch.equal(before[name], tensor) for name, tensor in network.state_dict().items())
    assert network.conv.weight.is_contiguous()
    assert all(module.training for module in network.modules())
    assert [parameter.requires_grad for parameter in network.parameters()] == required_grads
    assert all(parameter.grad is None for parameter in network.parameters())


def reuse_output(block: Block, images: Tensor) -> Tensor:
    inner = block.conv(images)
    result: Tensor = block.norm(inner) + inner
    return result


def reuse_convolution(block: Block, images: Tensor) -> Tensor:
    result: Tensor = block.norm(block.conv(block.conv(images)[:, :1]))
    return result


@pytest.mark.parametrize(
    "block",
    [Block(reuse_output), Block(reuse_convolution), Block(track_running_stats=False)],
    ids=[
        "the convolution's output is used elsewhere",
        "the convolution is used twice",
        "no running statistics",
    ],
)
def test_batch_norm_that_cannot_be_fused_is_kept(block: Block, images: Tensor) -> None:
    fused = try_fuse(randomize_if_possible(block), images)
    assert fused is not None
    assert fused.num_fused == 0
    assert torch.allclose(fused.module(images), block(images), atol=1e-6)


def randomize_if_possible(block: Block) -> Block:
    return randomize_norms(block) if block.norm.track_running_stats else block.eval()


def branch_on_values(block: Block, images: Tensor) -> Tensor:
    result: Tensor = block.norm(block.conv(images)) if images.sum() > 0 else block.conv(images)
    return result


def hide_gradient(block: Block, images: Tensor) -> Tensor:
    with torch.no_grad():
        hidden = block.conv(images)
    result: Tensor = block.norm(hidden + 0.01 * block.conv(images))
    return result


def multiply_by_noise(block: Block, images: Tensor) -> Tensor:
    result: Tensor = block.norm(block.conv(images)) * (1 + torch.rand(1))
    return result


def make_hooked_block() -> nn.Module:
    block = Block()
    block.conv.register_forward_hook(lambda module, args, output: 2 * output)
    return block


@pytest.mark.parametrize(
    "block",
    [Block(branch_on_values), Block(hide_gradient), Block(multiply_by_noise), make_hooked_block()],
    ids=["branches on values", "hides its gradient", "is stochastic", "has a hook"],
)
def test_model_that_cannot_be_rewritten_safely_is_not_fused(
    block: nn.Module, images: Tensor
) -> None:
    block = randomize_norms(block)
    assert try_fuse(block, images) is None
    assert prepare_for_attack(block, images).module is block


class ReusesWeight(Block):
    """Reads the weight of its convolution a second time."""

    def forward(self, images: Tensor) -> Tensor:
        hidden = functional.relu(self.norm(self.conv(images)))
        again = functional.conv_transpose2d(hidden, self.conv.weight, padding=1)
        result: Tensor = self.last(functional.max_pool2d(hidden + again, 2).flatten(1))
        return result


class ReusesPoolInput(Block):
    """Uses the input of the pool a second time, after ReLU in place."""

    def __init__(self) -> None:
        super().__init__()
        self.relu, self.pool = nn.ReLU(inplace=True), nn.MaxPool2d(2)

    def forward(self, images: Tensor) -> Tensor:
        hidden = self.norm(self.conv(images))
        result: Tensor = self.last(
            (self.pool(self.relu(hidden)) + functional.avg_pool2d(hidden, 2)).flatten(1)
        )
        return result


class BufferNorm(nn.Module):
    """A custom norm whose scale is computed from buffers alone."""

    variance: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("variance", torch.ones(4))

    def forward(self, hidden: Tensor) -> Tensor:
        scale = (self.variance + 1e-5).rsqrt()
        return hidden * scale[:, None, None]


class UnregisteredTensor(nn.Module):
    """Uses a tensor that is neither parameter nor buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = torch.ones(4, 1, 1)

    def forward(self, hidden: Tensor) -> Tensor:
        return hidden * (self.scale + 1)


def test_errors_hidden_by_zero_initialisation_are_found(images: Tensor) -> None:
    """At initialisation the last layer is zero and batch-norm is the identity."""
    for block in (ReusesWeight(), ReusesPoolInput()):
        nn.init.zeros_(block.last.weight)
        nn.init.zeros_(block.last.bias)
        fused = try_fuse(block.eval(), images)
        randomize_norms(block)
        if fused is not None:
            fused.refresh()
            torch.testing.assert_close(fused.module(images), block(images), atol=1e-5, rtol=1e-4)


def test_buffers_are_read_in_every_pass(images: Tensor) -> None:
    block = randomize_norms(Block())
    block.add_module("norm", BufferNorm())
    fused = try_fuse(block, images)
    assert fused is not None
    block.get_buffer("norm.variance").fill_(9.0)
    fused.refresh()
    torch.testing.assert_close(fused.module(images), block(images))


def test_model_with_an_unregistered_tensor_is_not_fused(images: Tensor) -> None:
    block = randomize_norms(Block())
    block.add_module("norm", UnregisteredTensor())
    assert try_fuse(block, images) is None


def test_fusing_leaves_the_global_generator_unchanged(images: Tensor) -> None:
    block = randomize_norms(Block())
    torch.manual_seed(3)
    expected = torch.rand(1)
    torch.manual_seed(3)
    assert try_fuse(block, images, torch.channels_last) is not None
    assert torch.equal(torch.rand(1), expected)


def test_parametrized_convolution_is_not_fused(images: Tensor) -> None:
    block = randomize_norms(Block())
    parametrizations.weight_norm(block.conv)
    fused = try_fuse(block, images)
    assert fused is None or fused.num_fused == 0


def test_one_channel_images_are_converted_to_channels_last() -> None:
    images = torch.rand(2, 1, 4, 4)
    assert to_memory_format(images, torch.channels_last).stride() == (16, 1, 4, 1)
    assert torch.equal(to_memory_format(images, torch.channels_last), images)
    assert to_memory_format(images, torch.contiguous_format) is images
    convolution = nn.Conv2d(1, 3, 3)
    parameter = convolution.weight
    convert_weights(convolution, torch.channels_last)
    assert convolution.weight is parameter
    assert convolution(images).is_contiguous(memory_format=torch.channels_last)


def test_model_that_fails_in_channels_last_gets_contiguous_images(images: Tensor) -> None:
    class UsesView(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(1, 4, 3, padding=1)

        def forward(self, images: Tensor) -> object:
            hidden = self.conv(images)
            return hidden.view(len(images), -1)[:, :3]

    assert (
        supported_memory_format(UsesView(), images, torch.channels_last) == torch.contiguous_format
    )
    assert supported_memory_format(Block(), images, torch.channels_last) == torch.channels_last
    assert (
        supported_memory_format(Block(), images, torch.contiguous_format) == torch.contiguous_format
    )


def test_auto_prefers_channels_last_on_cpus_and_in_half_precision() -> None:
    cpu = torch.device("cpu")
    other = torch.device("meta")
    assert preferred_memory_format("auto", cpu) == torch.channels_last
    assert preferred_memory_format("auto", other) == torch.contiguous_format
    assert preferred_memory_format("auto", other, "bf16") == torch.channels_last
    assert preferred_memory_format("contiguous", cpu) == torch.contiguous_format
    assert preferred_memory_format("channels-last", other) == torch.channels_last


@pytest.mark.parametrize("layout", ["channels-last", "contiguous"])
def test_prepare_for_attack_fuses_in_the_given_layout(images: Tensor, layout: str) -> None:
    block = randomize_norms(Block())
    prepared = prepare_for_attack(block, images, layout=layout)
    assert prepared.layout == layout
    assert prepared.num_fused == 1
    assert prepared.module is not block
    assert prepare_for_attack(block, images, layout=layout, fuse=False).module is block


@pytest.mark.parametrize("converts_weights", [False, True])
def test_prepare_for_attack_converts_weights_only_on_request(
    images: Tensor, converts_weights: bool
) -> None:
    block = Block().eval()
    prepare_for_attack(block, images, layout="channels-last", converts_weights=converts_weights)
    assert (block.conv.weight.stride(1) == 1) == converts_weights


def test_refresh_of_a_prepared_model_follows_the_original(images: Tensor) -> None:
    block = randomize_norms(Block())
    prepared = prepare_for_attack(block, images)
    with torch.no_grad():
        block.conv.weight.mul_(2)
    assert torch.allclose(prepared.refresh()(images), block(images), atol=1e-5)


MEMORY_FORMATS = [torch.contiguous_format, torch.channels_last]


@pytest.mark.parametrize("memory_format", MEMORY_FORMATS, ids=["contiguous", "channels last"])
@pytest.mark.parametrize("channels", [1, 2, 3])
@pytest.mark.parametrize(("kernel", "padding"), [(3, 0), (3, 1), ((5, 3), (2, 0)), (1, 0)])
def test_outputs_and_input_gradients_equal_those_of_torch(
    channels: int,
    kernel: int | tuple[int, int],
    padding: int | tuple[int, int],
    memory_format: torch.memory_format,
) -> None:
    torch.manual_seed(0)
    library = nn.Conv2d(channels, 6, kernel, padding=padding).double()
    small = SmallChannelConv2d(library)
    images = to_memory_format(
        torch.rand(4, channels, 9, 11, dtype=torch.float64), memory_format
    ).requires_grad_()
    expected, given = library(images), small(images)
    assert torch.equal(given, expected)
    output_gradient = torch.rand_like(expected)
    torch.testing.assert_close(
        grad(given, images, output_gradient)[0], grad(expected, images, output_gradient)[0]
    )


def test_layer_uses_the_faster_gradient_only_inside_the_context() -> None:
    layer, images = nn.Conv2d(1, 4, 3), torch.rand(2, 1, 5, 5, requires_grad=True)
    (expected,) = grad(layer(images).square().sum(), images)
    with matmul_input_gradient(layer):
        output = layer(images)
        assert "_SmallChannelConv" in type(output.grad_fn).__name__
        torch.testing.assert_close(grad(output.square().sum(), images)[0], expected)
    assert "_SmallChannelConv" not in type(layer(images).grad_fn).__name__
    with matmul_input_gradient(nn.ReLU()):
        pass


def test_second_derivatives_are_correct() -> None:
    small, images = (
        SmallChannelConv2d(nn.Conv2d(1, 2, 3).double()),
        torch.rand(2, 1, 5, 5, dtype=torch.float64, requires_grad=True),
    )
    assert torch.autograd.gradgradcheck(
        lambda images: small.requires_grad_(False)(images).square(), images
    )


def test_vmap_gives_the_gradients_of_single_images() -> None:
    small, images = (
        SmallChannelConv2d(nn.Conv2d(1, 2, 3)).requires_grad_(False),
        torch.rand(3, 1, 5, 5),
    )

    def image_gradient(image: Tensor) -> Tensor:
        result: Tensor = torch.func.grad(lambda image: small(image[None]).square().sum())(image)
        return result

    expected = torch.stack([image_gradient(image) for image in images])
    torch.testing.assert_close(torch.func.vmap(image_gradient)(images), expected)


@pytest.mark.parametrize(
    "options",
    [
        {"in_channels": 4}, {"stride": 2}, {"dilation": 2}, {"groups": 2, "in_channels": 2},
        {"padding": "same"}, {"padding_mode": "reflect", "padding": 1},
    ],
    ids=str,
)  # fmt: skip
def test_other_geometries_are_not_supported(options: dict[str, Any]) -> None:
    geometry = {"in_channels": 1, "out_channels": 4, "kernel_size": 3} | options
    assert not has_few_channels(nn.Conv2d(**geometry))


def test_gradient_is_bit_identical_for_any_number_of_threads() -> None:
    small, before = (
        SmallChannelConv2d(nn.Conv2d(1, 32, 3)).requires_grad_(False),
        torch.get_num_threads(),
    )
    images = to_memory_format(torch.rand(69, 1, 28, 28), torch.channels_last).requires_grad_()
    output_gradient = to_memory_format(torch.rand(69, 32, 26, 26), torch.channels_last)
    found = []
    for threads in (1, 2):
        torch.set_num_threads(threads)
        found.append(grad(small(images), images, output_gradient)[0])
    torch.set_num_threads(before)
    assert torch.equal(*found)


def round_products_to_tf32(
    func: object, args: Sequence[object], kwargs: Mapping[str, object]
) -> Sequence[object]:
    """Round the operands of convolutions and matrix products to 10 bits, where TF32 is allowed."""
    aten = torch.ops.aten
    is_product = func in (aten.convolution.default, aten.addmm.default, aten.mm.default)
    if is_product and torch.backends.cudnn.allow_tf32:
        return [round_to_tf32(arg) if isinstance(arg, Tensor) else arg for arg in args]
    return args


def round_to_tf32(values: Tensor) -> Tensor:
    """Clear the 13 lowest of the 23 bits of a float32 significand, after rounding."""
    return ((values.view(torch.int32) + (1 << 12)) & ~((1 << 13) - 1)).view(torch.float32)


def test_fusion_is_compared_without_tf32(images: Tensor) -> None:
    block = randomize_norms(Block()).eval()
    fused = not_none(try_fuse(block, images))
    with torch.backends.cudnn.flags(allow_tf32=True), BeforeEach(round_products_to_tf32):
        assert not _agree(block, fused.module, images), "the emulation must exceed the limit"
        assert try_fuse(block, images) is not None
        assert torch.backends.cudnn.allow_tf32


def refuse_float64(
    func: object, args: Sequence[object], kwargs: Mapping[str, object]
) -> Sequence[object]:
    """Raise as a device without float64 does, such as MPS."""
    if torch.float64 in (kwargs.get("dtype"), *args):
        raise TypeError("the device does not support float64")
    return args


def test_fusion_needs_no_float64(images: Tensor) -> None:
    with BeforeEach(refuse_float64):
        assert try_fuse(randomize_norms(Block()), images) is not None

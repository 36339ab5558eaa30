import copy
from collections.abc import Callable
from typing import Any, TypeVar

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils import parametrizations

from support.optional import not_none
from wmr_cli.core.contexts import evaluating
from wmr_cli.core.losses import cross_entropy
from wmr_cli.core.nn.fusion import GRADIENTS, OUTPUTS, arrange, arranged, bearable, leaned, twin_of
from wmr_cli.registry import Registry
from wmr_cli.runtime import components

SHAPES = {"small-cnn": (1, 28, 28), "timm:mobilenetv2_050": (3, 32, 32)}
FOLDED = {
    "small-cnn": 0,
    "digits-cnn": 0,
    "resnet20": 19,
    "resnet18": 20,
    "preact-resnet18": 8,
    "resnet18:mean=0.5,std=0.2": 20,
    "timm:mobilenetv2_050": 52,
}

Network = TypeVar("Network", bound=nn.Module)


def lively(network: Network) -> Network:
    """With statistics and an affine part that folding cannot overlook."""
    torch.manual_seed(1)
    for layer in network.modules():
        if isinstance(layer, nn.BatchNorm2d):
            for tensor, low, high in (
                (layer.running_mean, -0.3, 0.3), (layer.running_var, 0.5, 1.5), (layer.weight, 0.5, 1.5), (layer.bias, -0.3, 0.3),
            ):  # fmt: skip
                nn.init.uniform_(not_none(tensor), low, high)
        if isinstance(layer, nn.Linear):
            nn.init.normal_(layer.weight, std=0.1)
    return network.eval()


def slopes(network: nn.Module, images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    images = images.clone().requires_grad_()
    logits = network(images)
    return logits.detach(), torch.autograd.grad(cross_entropy(logits, labels).sum(), images)[0]


class Block(nn.Module):
    """Convolution, batch-norm, ReLU, pool, and a layer for the classes, each open to mischief."""

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
@pytest.mark.parametrize("spec", FOLDED)
def test_a_twin_gives_the_logits_and_gradients_of_its_network(
    registry: Registry, spec: str, memory_format: torch.memory_format
) -> None:
    shape = SHAPES.get(spec, (1, 8, 8) if spec == "digits-cnn" else (3, 16, 16))
    network = lively(components.build_model(registry, spec, 10, shape))
    images, labels = torch.rand(3, *shape), torch.arange(3)
    twin = twin_of(network, images, memory_format)
    assert twin is not None
    assert twin.folded == FOLDED[spec]
    (expected, direction), (given, own) = (
        slopes(network, images, labels),
        slopes(twin.module, images, labels),
    )
    assert (given - expected).abs().max() <= OUTPUTS * expected.abs().max()
    apart = (own - direction).flatten(1).norm(dim=1) / direction.flatten(1).norm(dim=1)
    assert apart.median() <= GRADIENTS


def test_without_batch_norm_a_twin_is_the_same_to_the_bit(registry: Registry) -> None:
    network, images = (
        lively(components.build_model(registry, "small-cnn", 10, (1, 28, 28))),
        torch.rand(5, 1, 28, 28),
    )
    twin = twin_of(network, images)
    assert "relu_" in not_none(twin).module.code
    for expected, given in zip(
        slopes(network, images, torch.arange(5)),
        slopes(not_none(twin).module, images, torch.arange(5)),
        strict=True,
    ):
        assert torch.equal(expected, given)


def test_a_twin_follows_its_network_when_it_is_refreshed(images: Tensor) -> None:
    network = lively(Block())
    twin, stale = twin_of(network, images), network(images)
    place = not_none(twin).follows[0][0].weight.data_ptr()
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.mul_(1.5)
    network.get_buffer("norm.running_mean").add_(0.5)
    assert not torch.allclose(not_none(twin).module(images), network(images), atol=1e-3)
    not_none(twin).refresh()
    assert torch.allclose(not_none(twin).module(images), network(images), atol=1e-5)
    assert not torch.allclose(stale, network(images), atol=1e-3)
    assert not_none(twin).follows[0][0].weight.data_ptr() == place, "in place"


def test_a_network_is_left_as_it_was(images: Tensor) -> None:
    network = lively(Block()).train()
    before, grads = (
        copy.deepcopy(network.state_dict()),
        [parameter.requires_grad for parameter in network.parameters()],
    )
    twin = twin_of(network, images, torch.channels_last)
    with evaluating(network):
        slopes(not_none(twin).module, images, torch.zeros(4, dtype=torch.long))
    assert all(torch.equal(before[name], tensor) for name, tensor in network.state_dict().items())
    assert network.conv.weight.is_contiguous()
    assert all(module.training for module in network.modules())
    assert [parameter.requires_grad for parameter in network.parameters()] == grads
    assert all(parameter.grad is None for parameter in network.parameters())


def seen_twice(block: Block, images: Tensor) -> Tensor:
    inner = block.conv(images)
    result: Tensor = block.norm(inner) + inner
    return result


def used_twice(block: Block, images: Tensor) -> Tensor:
    result: Tensor = block.norm(block.conv(block.conv(images)[:, :1]))
    return result


@pytest.mark.parametrize(
    "block",
    [Block(seen_twice), Block(used_twice), Block(track_running_stats=False)],
    ids=[
        "the convolution's output is used elsewhere",
        "the convolution is used twice",
        "no running statistics",
    ],
)
def test_a_batch_norm_that_cannot_be_folded_stays(block: Block, images: Tensor) -> None:
    twin = twin_of(lively_or_plain(block), images)
    assert twin is not None
    assert twin.folded == 0
    assert torch.allclose(twin.module(images), block(images), atol=1e-6)


def lively_or_plain(block: Block) -> Block:
    return lively(block) if block.norm.track_running_stats else block.eval()


def by_numbers(block: Block, images: Tensor) -> Tensor:
    result: Tensor = block.norm(block.conv(images)) if images.sum() > 0 else block.conv(images)
    return result


def blindly(block: Block, images: Tensor) -> Tensor:
    with torch.no_grad():
        hidden = block.conv(images)
    result: Tensor = block.norm(hidden + 0.01 * block.conv(images))
    return result


def by_lot(block: Block, images: Tensor) -> Tensor:
    result: Tensor = block.norm(block.conv(images)) * (1 + torch.rand(1))
    return result


def hooked() -> nn.Module:
    block = Block()
    block.conv.register_forward_hook(lambda module, args, output: 2 * output)
    return block


@pytest.mark.parametrize(
    "block",
    [Block(by_numbers), Block(blindly), Block(by_lot), hooked()],
    ids=["branches", "hides its gradient", "draws lots", "has a hook"],
)
def test_a_network_that_cannot_be_rewritten_safely_has_no_twin(
    block: nn.Module, images: Tensor
) -> None:
    block = lively(block)
    assert twin_of(block, images) is None
    assert leaned(block, images, torch.contiguous_format) is block


class Tied(Block):
    """Reads the weight of its convolution a second time, and begins with a head of zeros."""

    def forward(self, images: Tensor) -> Tensor:
        hidden = functional.relu(self.norm(self.conv(images)))
        again = functional.conv_transpose2d(hidden, self.conv.weight, padding=1)
        result: Tensor = self.last(functional.max_pool2d(hidden + again, 2).flatten(1))
        return result


class Rectified(Block):
    """What goes into the pool is rectified in place, and seen by another, too."""

    def __init__(self) -> None:
        super().__init__()
        self.relu, self.pool = nn.ReLU(inplace=True), nn.MaxPool2d(2)

    def forward(self, images: Tensor) -> Tensor:
        hidden = self.norm(self.conv(images))
        result: Tensor = self.last(
            (self.pool(self.relu(hidden)) + functional.avg_pool2d(hidden, 2)).flatten(1)
        )
        return result


class OwnNorm(nn.Module):
    """A custom norm whose scale is computed from buffers alone."""

    variance: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("variance", torch.ones(4))

    def forward(self, hidden: Tensor) -> Tensor:
        scale = (self.variance + 1e-5).rsqrt()
        return hidden * scale[:, None, None]


class Loose(nn.Module):
    """A tensor that is neither parameter nor buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = torch.ones(4, 1, 1)

    def forward(self, hidden: Tensor) -> Tensor:
        return hidden * (self.scale + 1)


def test_what_hides_behind_a_head_of_zeros_is_found(images: Tensor) -> None:
    """A network as it starts: zeros at the end, batch-norm as the identity. Later its twin must be right, too."""
    for block in (Tied(), Rectified()):
        nn.init.zeros_(block.last.weight)
        nn.init.zeros_(block.last.bias)
        twin = twin_of(block.eval(), images)
        lively(block)
        if twin is not None:
            twin.refresh()
            torch.testing.assert_close(twin.module(images), block(images), atol=1e-5, rtol=1e-4)


def test_buffers_are_looked_up_in_every_pass(images: Tensor) -> None:
    block = lively(Block())
    block.add_module("norm", OwnNorm())
    twin = twin_of(block, images)
    assert twin is not None
    block.get_buffer("norm.variance").fill_(9.0)
    twin.refresh()
    torch.testing.assert_close(twin.module(images), block(images))


def test_a_tensor_that_may_be_another_tomorrow_has_no_twin(images: Tensor) -> None:
    block = lively(Block())
    block.add_module("norm", Loose())
    assert twin_of(block, images) is None


def test_making_a_twin_draws_no_random_numbers(images: Tensor) -> None:
    block = lively(Block())
    torch.manual_seed(3)
    expected = torch.rand(1)
    torch.manual_seed(3)
    assert twin_of(block, images, torch.channels_last) is not None
    assert torch.equal(torch.rand(1), expected)


def test_a_parametrized_convolution_is_left_alone(images: Tensor) -> None:
    block = lively(Block())
    parametrizations.weight_norm(block.conv)
    twin = twin_of(block, images)
    assert twin is None or twin.folded == 0


def test_one_channel_has_a_layout_of_its_own() -> None:
    images = torch.rand(2, 1, 4, 4)
    assert arranged(images, torch.channels_last).stride() == (16, 1, 4, 1)
    assert torch.equal(arranged(images, torch.channels_last), images)
    assert arranged(images, torch.contiguous_format) is images
    convolution = nn.Conv2d(1, 3, 3)
    parameter = convolution.weight
    arrange(convolution, torch.channels_last)
    assert convolution.weight is parameter
    assert convolution(images).is_contiguous(memory_format=torch.channels_last)


def test_a_network_that_wants_planes_gets_planes(images: Tensor) -> None:
    class Viewed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(1, 4, 3, padding=1)

        def forward(self, images: Tensor) -> object:
            hidden = self.conv(images)
            return hidden.view(len(images), -1)[:, :3]

    assert bearable(Viewed(), images, torch.channels_last) == torch.contiguous_format
    assert bearable(Block(), images, torch.channels_last) == torch.channels_last
    assert bearable(Block(), images, torch.contiguous_format) == torch.contiguous_format

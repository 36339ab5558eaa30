"""How the numbers of images and weights lie in memory: image by image as planes, or pixel by pixel (channels last).

A network's lean twin: the same function of the images in eval mode, with less work for each forward and backward pass.

Batch-norm is folded into the convolution before it, ReLU works in place and after max-pooling, the first convolution has a
quicker gradient, and no weight asks for one. Whoever cannot be rewritten safely has no twin.
"""

import copy
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, fx, nn
from torch.nn import functional

from ..contexts import evaluating
from .small_channel_conv import ThinConv2d, is_thin


def arranged(tensor: Tensor, memory_format: torch.memory_format) -> Tensor:
    """The same numbers (N, C, H, W) in this layout. With one channel, too, where torch takes the two layouts for one."""
    if memory_format == torch.channels_last and tensor.stride(1) != 1:
        return tensor.clone(memory_format=memory_format)
    return tensor


def arrange(network: nn.Module, memory_format: torch.memory_format) -> None:
    """Bring the weights of convolutions into this layout; the parameters stay the same objects."""
    for parameter in network.parameters():
        if parameter.ndim == 4:
            parameter.data = arranged(parameter.data, memory_format)


def bearable(
    network: nn.Module, images: Tensor, wanted: torch.memory_format
) -> torch.memory_format:
    """This layout, or the plain one for a network that cannot take it: one that calls `view` where it means `reshape`."""
    if wanted == torch.channels_last:
        try:
            with torch.no_grad(), evaluating(network):
                network(arranged(images, wanted))
        except RuntimeError:
            return torch.contiguous_format
    return wanted


CHECKED = 8
"""So many images are shown to both before the twin is trusted."""
OUTPUTS, GRADIENTS = 1e-4, 1e-2
"""How far they may be apart: logits as a share of the largest, input gradients as a share of their length. Rounding is a
hundredth of that; it may push an image over the kink of a ReLU, which only the gradient notices."""
MOST = 0.5
"""So many of the images must have that gradient: a network that hides its gradient from us hides it for all."""
HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


Followed = tuple[nn.Conv2d, nn.Conv2d, nn.BatchNorm2d | None]
"""The twin's convolution, the network's, and the batch-norm after it that the twin's stands for, too."""


@dataclass(frozen=True, eq=False)
class Twin:
    """`module` shares everything with its network but the convolutions, each of which follows one of the network's."""

    module: fx.GraphModule
    follows: tuple[Followed, ...]

    @property
    def folded(self) -> int:
        """How many batch-norms are part of a convolution."""
        return sum(norm is not None for _, _, norm in self.follows)

    @torch.no_grad()
    def refresh(self) -> None:
        """Take over weights and statistics as they are now, in place."""
        for own, convolution, norm in self.follows:
            if norm is None:
                own.weight.copy_(convolution.weight)
                if own.bias is not None and convolution.bias is not None:
                    own.bias.copy_(convolution.bias)
                continue
            assert norm.running_mean is not None
            assert norm.running_var is not None
            assert own.bias is not None
            scale = (norm.running_var + norm.eps).rsqrt()
            scale = scale if norm.weight is None else scale * norm.weight
            torch.mul(convolution.weight, scale.reshape(-1, 1, 1, 1), out=own.weight)
            mean = (
                norm.running_mean
                if convolution.bias is None
                else norm.running_mean - convolution.bias
            )
            torch.mul(mean, -scale, out=own.bias)
            if norm.bias is not None:
                own.bias.add_(norm.bias)


def twin_of(
    network: nn.Module, images: Tensor, memory_format: torch.memory_format = torch.contiguous_format
) -> Twin | None:
    """The twin, with its convolutions in this layout. None of a network that cannot be traced, or has hooks, or whose logits
    or gradients for the first of these images (N, C, H, W) are not the twin's, as it is or with other weights.
    """
    if (
        any(getattr(module, hooks) for module in network.modules() for hooks in HOOKS)
        or network._compiled_call_impl is not None
    ):
        return None
    images = arranged(images[:CHECKED], memory_format)
    with evaluating(network):
        try:
            twin, lively = _rewritten(network, memory_format), _enlivened(network)
            are_alike = all(
                _agree(each, rewritten.module, images)
                for each, rewritten in (
                    (network, twin),
                    (lively, _rewritten(lively, memory_format)),
                )
            )
        except Exception:  # noqa: BLE001 - of any kind: a stranger's forward, which may want to see numbers
            return None
    return twin if are_alike else None


@torch.no_grad()
def _enlivened(network: nn.Module) -> nn.Module:
    """A copy with weights and statistics drawn by lot: a layer that begins at zero, or as the identity, would hide mistakes."""
    lively, generator = copy.deepcopy(network), torch.Generator().manual_seed(0)
    for parameter in lively.parameters():
        wide = parameter.ndim > 1
        drawn = (
            torch.randn(parameter.shape, generator=generator)
            if wide
            else torch.rand(parameter.shape, generator=generator) + 0.5
        )
        parameter.copy_(drawn * (2 / parameter[0].numel()) ** 0.5 if wide else drawn)
    for layer in lively.modules():
        if (
            isinstance(layer, nn.BatchNorm2d)
            and layer.running_mean is not None
            and layer.running_var is not None
        ):
            layer.running_mean.copy_(torch.rand(layer.num_features, generator=generator) - 0.5)
            layer.running_var.copy_(torch.rand(layer.num_features, generator=generator) + 0.5)
    return lively


def _rewritten(network: nn.Module, memory_format: torch.memory_format) -> Twin:
    module = fx.GraphModule(network, _Tracer().trace(network))
    if any(
        node.op == "get_attr" and node.target.startswith("_tensor_constant")
        for node in module.graph.nodes
    ):
        raise ValueError(
            "a tensor that is neither a parameter nor a buffer may be another in the next step"
        )
    twin = Twin(module, tuple(_follow(module, memory_format)))
    _rectify(module)
    module.graph.lint()
    module.recompile()
    module.eval()
    twin.refresh()
    return twin


def leaned(network: nn.Module, images: Tensor, memory_format: torch.memory_format) -> nn.Module:
    """The twin of a network whose weights stay as they are, or where it has none the network itself."""
    twin = twin_of(network, images, memory_format)
    return network if twin is None else twin.module


class _Tracer(fx.Tracer):
    """Looks into everything that is not torch's own, but for batch-norms. Buffers are looked up in every pass."""

    proxy_buffer_attributes = True

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return isinstance(m, nn.BatchNorm2d) or super().is_leaf_module(m, module_qualified_name)


def _follow(module: fx.GraphModule, memory_format: torch.memory_format) -> Iterator[Followed]:
    """Give every convolution that is used once a copy, and let it do the work of a batch-norm that alone comes after it."""
    targets = [node.target for node in module.graph.nodes if node.op == "call_module"]
    # whoever reads the weight of a layer calls for the layer, too
    targets += [
        node.target.rpartition(".")[0] for node in module.graph.nodes if node.op == "get_attr"
    ]
    layers = dict(module.named_modules())
    for node in list(module.graph.nodes):
        convolution = _layer(node, layers)
        if (
            type(convolution) is not nn.Conv2d
            or targets.count(node.target) > 1
            or _is_shared(convolution, layers)
        ):
            continue
        follower = next(iter(node.users)) if len(node.users) == 1 else None
        after = None if follower is None else _layer(follower, layers)
        norm = after if isinstance(after, nn.BatchNorm2d) and _can_fold(after) else None
        own = _copied(convolution, memory_format)
        if norm is not None and follower is not None:
            own.bias = nn.Parameter(torch.zeros_like(own.weight[:, 0, 0, 0]), requires_grad=False)
            with module.graph.inserting_after(node):
                # timm's batch-norms bring the activation after them along
                rest = (
                    module.graph.call_module(f"{follower.target}.act", (node,))
                    if hasattr(norm, "act")
                    else node
                )
            follower.replace_all_uses_with(rest)
            module.graph.erase_node(follower)
        module.set_submodule(node.target, own)
        yield own, convolution, norm


def _copied(convolution: nn.Conv2d, memory_format: torch.memory_format) -> nn.Conv2d:
    """A copy in this layout without gradients for its weights; over few channels one whose own gradient is quicker."""
    pays = memory_format == torch.channels_last and is_thin(convolution)
    own = ThinConv2d(convolution) if pays else copy.deepcopy(convolution)
    arrange(own, memory_format)
    return own.requires_grad_(False)


def _can_fold(norm: nn.BatchNorm2d) -> bool:
    """Whether it uses running statistics, and is torch's own or timm's with an activation and no drop-out."""
    is_known = type(norm) is nn.BatchNorm2d or (
        hasattr(norm, "act") and isinstance(getattr(norm, "drop", None), nn.Identity)
    )
    return is_known and norm.running_var is not None and not norm.training


def _is_shared(convolution: nn.Conv2d, layers: dict[str, nn.Module]) -> bool:
    """Whether its weight is made by a parametrization, or is another layer's, too."""
    owners = sum(
        parameter is convolution.weight
        for layer in layers.values()
        for parameter in layer._parameters.values()
    )
    return owners != 1


def _rectify(module: fx.GraphModule) -> None:
    """ReLU after max-pooling where it comes right before it, and in place where nobody else sees what it is given.

    Both leave every bit of outputs and gradients as it was: the largest of a window is the same, and one that is not
    positive gets no gradient either way.
    """
    layers = dict(module.named_modules())
    for node in list(module.graph.nodes):
        if not _is_relu(node, layers) or not _is_fresh(node.args[0], layers):
            continue
        follower = next(iter(node.users)) if len(node.users) == 1 else None
        pool = None if follower is None else _layer(follower, layers)
        given = node.args[0]
        if follower is not None and type(pool) is nn.MaxPool2d and not pool.return_indices:
            node.replace_all_uses_with(given)
            follower.replace_all_uses_with(node)
            node.update_arg(0, follower)
            follower.append(node)
            given = follower
        if _is_fresh(given, layers):
            with module.graph.inserting_before(node):
                node.replace_all_uses_with(module.graph.call_function(functional.relu_, (given,)))
            module.graph.erase_node(node)


def _is_fresh(node: fx.Node, layers: dict[str, nn.Module]) -> bool:
    """Whether this is made by a layer that keeps no view of it for the way back, and is seen by one other alone."""
    return len(node.users) == 1 and isinstance(
        _layer(node, layers), (nn.Conv2d, nn.Linear, nn.MaxPool2d, nn.BatchNorm2d)
    )


def _layer(node: fx.Node, layers: dict[str, nn.Module]) -> nn.Module | None:
    """The layer that a node calls with one argument."""
    is_call = node.op == "call_module" and len(node.args) == 1 and not node.kwargs
    return layers[str(node.target)] if is_call else None


def _is_relu(node: fx.Node, layers: dict[str, nn.Module]) -> bool:
    if node.op == "call_function" and node.target in (functional.relu, torch.relu):
        return len(node.args) == 1
    return type(_layer(node, layers)) is nn.ReLU


def _agree(network: nn.Module, module: nn.Module, images: Tensor) -> bool:
    """Whether both give the same logits, with and without autograd, and the same gradient of a sum that tells classes apart."""
    (expected, slopes), (given, own_slopes) = (_answers(each, images) for each in (network, module))
    with torch.no_grad():  # a trace forgets who switched autograd on or off
        others = network(images), module(images)
    if expected.shape != given.shape or not expected.isfinite().all():
        return False
    limit = OUTPUTS * expected.abs().max().clamp(min=1)
    apart = torch.stack([(logits - expected).abs().max() for logits in (given, *others)]).max()
    are_alike = (own_slopes - slopes).flatten(1).norm(dim=1) <= GRADIENTS * slopes.flatten(1).norm(
        dim=1
    )
    return bool(apart <= limit) and bool(are_alike.double().mean() >= MOST)


def _answers(network: nn.Module, images: Tensor) -> tuple[Tensor, Tensor]:
    """Logits (N, C), and the gradient of their sum with signs that alternate, in the shape of the images."""
    with torch.enable_grad():
        images = images.detach().clone().requires_grad_()
        logits = network(images)
        signs = 1 - 2 * (torch.arange(logits.shape[1], device=logits.device) % 2)
        if not logits.requires_grad:
            return logits, torch.zeros_like(images)
        (slopes,) = torch.autograd.grad((signs * logits).sum(), images, allow_unused=True)
    return logits.detach(), torch.zeros_like(images) if slopes is None else slopes

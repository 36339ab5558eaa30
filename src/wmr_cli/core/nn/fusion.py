"""Fused models and memory formats: the same function of the images, with less work per pass.

Attacks use `prepare_for_attack`. It chooses the memory format and, where it is safe, rewrites a
model for eval-mode attacks: batch-norm becomes part of the convolution before it, ReLU works in
place and after max-pooling, the first convolution has a faster input gradient, and no weight
requires a gradient. A rewritten model is compared with its original before it is used.
"""

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn import functional

from ..contexts import evaluating, exact_float32, find_logits, take_logits

MEMORY_FORMATS = {"channels-last": torch.channels_last, "contiguous": torch.contiguous_format}
"""Memory formats by the value of the setting `layout`."""
SAMPLE_SIZE = 8
"""Number of images on which a fused model is compared with its original."""
MAX_LOGIT_DIFFERENCE = 1e-4
"""As a fraction of the largest logit. Rounding causes about a hundredth of this."""
MAX_GRADIENT_DIFFERENCE = 1e-2
"""As a fraction of an input gradient's L2 norm. Rounding causes about a hundredth of this."""
# Rounding may move an activation across the kink of a ReLU, which changes the gradient of that
# image only. A model whose gradient was lost in the rewriting loses it for every image.
MIN_MATCHING_GRADIENTS = 0.5
"""Fraction of the images whose input gradients must match."""
MAX_MATMUL_CHANNELS = 3
"""Input channels up to which an input gradient is computed as a matrix product.

Libraries are optimised for many channels. At the first layer of an image model the product needs a
fifth of their time on a CPU, which saves a tenth of a whole pass of a small model.
"""
HOOK_TABLES = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


@dataclass(frozen=True, eq=False)
class PreparedModel:
    """A model as attacks see it, and the memory format in which its images should be."""

    module: nn.Module
    memory_format: torch.memory_format = torch.contiguous_format
    fused: "FusedModel | None" = None

    @property
    def layout(self) -> str:
        """The memory format as a value of the setting `layout`."""
        names = {memory_format: name for name, memory_format in MEMORY_FORMATS.items()}
        return names[self.memory_format]

    @property
    def num_fused(self) -> int:
        """Number of batch-norms that are part of a convolution."""
        return 0 if self.fused is None else self.fused.num_fused

    def refresh(self) -> nn.Module:
        """Return the module, after copying the original's current weights and statistics."""
        if self.fused is not None:
            self.fused.refresh()
        return self.module


def prepare_for_attack(
    model: nn.Module,
    sample_images: Tensor,
    *,
    layout: str = "auto",
    precision: str = "32",
    fuse: bool = True,
    converts_weights: bool = False,
) -> PreparedModel:
    """Choose the memory format of a model and fuse it, verified on sample images (N, C, H, W).

    The model itself is unchanged, unless `converts_weights` brings its convolutions into the
    chosen memory format. Call `refresh` on the result after its weights have changed.
    """
    sample_images = sample_images[:SAMPLE_SIZE]
    wanted = preferred_memory_format(layout, sample_images.device, precision)
    memory_format = supported_memory_format(model, sample_images, wanted)
    if converts_weights:
        convert_weights(model, memory_format)
    fused = try_fuse(model, sample_images, memory_format) if fuse else None
    return PreparedModel(model if fused is None else fused.module, memory_format, fused)


def preferred_memory_format(
    layout: str, device: torch.device, precision: str = "32"
) -> torch.memory_format:
    """Return the memory format of this layout; for `auto` the faster one on this device."""
    if layout in MEMORY_FORMATS:
        return MEMORY_FORMATS[layout]
    # oneDNN on CPUs and the tensor cores of GPUs work on channels-last blocks
    is_faster = device.type == "cpu" or precision != "32"
    return torch.channels_last if is_faster else torch.contiguous_format


def supported_memory_format(
    model: nn.Module, images: Tensor, wanted: torch.memory_format
) -> torch.memory_format:
    """Return the wanted memory format, or the contiguous one for a model that fails in it."""
    if wanted == torch.channels_last:
        try:
            with torch.no_grad(), evaluating(model):
                model(to_memory_format(images, wanted))
        except RuntimeError:
            # usually a `view` in the forward pass that should be a `reshape`
            return torch.contiguous_format
    return wanted


def to_memory_format(tensor: Tensor, memory_format: torch.memory_format) -> Tensor:
    """Return the same values (N, C, H, W) in this memory format."""
    # by the stride: for one channel torch considers both formats the same and would not copy,
    # but convolutions choose their algorithm by the stride
    if memory_format == torch.channels_last and tensor.stride(1) != 1:
        return tensor.clone(memory_format=memory_format)
    return tensor


def convert_weights(model: nn.Module, memory_format: torch.memory_format) -> None:
    """Convert the weights of convolutions in place: the parameters stay the same objects."""
    for parameter in model.parameters():
        if parameter.ndim == 4:
            parameter.data = to_memory_format(parameter.data, memory_format)


@dataclass(frozen=True, eq=False)
class ConvolutionCopy:
    """A convolution of the fused model, with the convolution and batch-norm that it replaces."""

    own: nn.Conv2d
    convolution: nn.Conv2d
    norm: nn.BatchNorm2d | None

    @torch.no_grad()
    def refresh(self) -> None:
        """Copy current weights and statistics, in place."""
        if self.norm is None:
            self.own.weight.copy_(self.convolution.weight)
            if self.own.bias is not None and self.convolution.bias is not None:
                self.own.bias.copy_(self.convolution.bias)
            return
        norm = self.norm
        assert norm.running_mean is not None
        assert norm.running_var is not None
        assert self.own.bias is not None
        # (conv + bias - mean) * scale + shift = scale * conv + (bias - mean) * scale + shift
        scale = (norm.running_var + norm.eps).rsqrt()
        if norm.weight is not None:
            scale = scale * norm.weight
        torch.mul(self.convolution.weight, scale.reshape(-1, 1, 1, 1), out=self.own.weight)
        mean = norm.running_mean
        if self.convolution.bias is not None:
            mean = mean - self.convolution.bias
        torch.mul(mean, -scale, out=self.own.bias)
        if norm.bias is not None:
            self.own.bias.add_(norm.bias)


@dataclass(frozen=True, eq=False)
class FusedModel:
    """A rewritten model. It shares all modules with its original except the convolutions."""

    module: fx.GraphModule
    copies: tuple[ConvolutionCopy, ...]

    @property
    def num_fused(self) -> int:
        """Number of batch-norms that are part of a convolution."""
        return sum(each.norm is not None for each in self.copies)

    def refresh(self) -> None:
        """Copy the original's current weights and statistics, in place."""
        for each in self.copies:
            each.refresh()


def try_fuse(
    model: nn.Module, images: Tensor, memory_format: torch.memory_format = torch.contiguous_format
) -> FusedModel | None:
    """Fuse a model, with its convolutions in this memory format, or return None.

    None for a model that cannot be traced, that has hooks, or whose logits or input gradients
    differ from those of the fused model on the first of these images (N, C, H, W).
    """
    has_hooks = any(
        # the trace takes the logits of the output itself
        hook is not take_logits
        for module in model.modules()
        for table in HOOK_TABLES
        for hook in getattr(module, table).values()
    )
    # a model that its author compiles is fused by the compiler already
    if has_hooks or model._compiled_call_impl is not None:
        return None
    images = to_memory_format(images[:SAMPLE_SIZE], memory_format)
    # TF32 has 10 bits, and its rounding alone would exceed the allowed differences
    with evaluating(model), exact_float32():
        try:
            fused = _fuse(model, memory_format)
            # also with random weights: a layer that starts at zero, or as the identity, would hide
            # errors that appear after the first training step
            randomized = _copy_with_random_weights(model)
            is_equivalent = _agree(model, fused.module, images) and _agree(
                randomized, _fuse(randomized, memory_format).module, images
            )
        except Exception:  # noqa: BLE001 - third-party forward passes may raise anything
            return None
    return fused if is_equivalent else None


@torch.no_grad()
def _copy_with_random_weights(model: nn.Module) -> nn.Module:
    """Copy a model, with random weights and statistics of a usual size."""
    randomized = copy.deepcopy(model)
    # its own generator: the global one belongs to the run
    generator = torch.Generator().manual_seed(0)
    for parameter in randomized.parameters():
        if parameter.ndim > 1:
            # He initialisation keeps activations of deep models finite
            values = torch.randn(parameter.shape, generator=generator)
            parameter.copy_(values * (2 / parameter[0].numel()) ** 0.5)
        else:
            parameter.copy_(torch.rand(parameter.shape, generator=generator) + 0.5)
    for layer in randomized.modules():
        if not isinstance(layer, nn.BatchNorm2d):
            continue
        if layer.running_mean is not None and layer.running_var is not None:
            layer.running_mean.copy_(torch.rand(layer.num_features, generator=generator) - 0.5)
            layer.running_var.copy_(torch.rand(layer.num_features, generator=generator) + 0.5)
    return randomized


def _fuse(model: nn.Module, memory_format: torch.memory_format) -> FusedModel:
    module = fx.GraphModule(model, _Tracer().trace(model))
    if any(
        node.op == "get_attr" and node.target.startswith("_tensor_constant")
        for node in module.graph.nodes
    ):
        # the trace holds its present value, which the next step may replace
        raise ValueError("the forward pass uses a tensor that is neither parameter nor buffer")
    fused = FusedModel(module, tuple(_replace_convolutions(module, memory_format)))
    _rewrite_relus(module)
    module.graph.lint()
    module.recompile()
    module.eval()
    fused.refresh()
    return fused


class _Tracer(fx.Tracer):
    """Traces into all modules except torch's own and batch-norms."""

    # buffers are read in every pass: training changes them after the trace
    proxy_buffer_attributes = True

    def create_args_for_root(
        self,
        root_fn: Callable[..., Any],
        is_module: bool,
        concrete_args: dict[str, Any] | tuple[Any, ...] | None = None,
    ) -> tuple[Callable[..., Any], list[Any]]:
        """Return the forward pass with its arguments; it returns logits, as `take_logits` does."""
        forward, args = super().create_args_for_root(root_fn, is_module, concrete_args)

        def compute_logits(*args: object) -> object:
            output = forward(*args)
            # a proxy stands for a tensor, and has any attribute
            logits = None if isinstance(output, fx.Proxy) else find_logits(output)
            return output if logits is None else logits

        return compute_logits, args

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return isinstance(m, nn.BatchNorm2d) or super().is_leaf_module(m, module_qualified_name)


def _replace_convolutions(
    module: fx.GraphModule, memory_format: torch.memory_format
) -> Iterator[ConvolutionCopy]:
    """Replace every convolution that is used once by a copy, together with its batch-norm."""
    targets = [node.target for node in module.graph.nodes if node.op == "call_module"]
    # reading a layer's weight is a use of the layer, too
    targets += [
        node.target.rpartition(".")[0] for node in module.graph.nodes if node.op == "get_attr"
    ]
    layers = dict(module.named_modules())
    for node in list(module.graph.nodes):
        convolution = _called_layer(node, layers)
        # a subclass may compute something else
        if type(convolution) is not nn.Conv2d:
            continue
        if targets.count(node.target) > 1 or _is_shared(convolution, layers):
            continue
        own = _copy_convolution(convolution, memory_format)
        follower = _only_user(node)
        norm = None if follower is None else _called_layer(follower, layers)
        if not isinstance(norm, nn.BatchNorm2d) or not _can_fuse(norm):
            norm = None
        if norm is not None and follower is not None:
            own.bias = nn.Parameter(torch.zeros_like(own.weight[:, 0, 0, 0]), requires_grad=False)
            output = node
            # timm's batch-norms contain the activation after them
            if hasattr(norm, "act"):
                with module.graph.inserting_after(node):
                    output = module.graph.call_module(f"{follower.target}.act", (node,))
            follower.replace_all_uses_with(output)
            module.graph.erase_node(follower)
        module.set_submodule(node.target, own)
        yield ConvolutionCopy(own, convolution, norm)


def _copy_convolution(convolution: nn.Conv2d, memory_format: torch.memory_format) -> nn.Conv2d:
    """Copy a convolution without weight gradients, with a faster input gradient if possible."""
    # only in the channels-last format is the matrix product faster than the library
    if memory_format == torch.channels_last and has_few_channels(convolution):
        own: nn.Conv2d = SmallChannelConv2d(convolution)
    else:
        own = copy.deepcopy(convolution)
    convert_weights(own, memory_format)
    return own.requires_grad_(False)


def _can_fuse(norm: nn.BatchNorm2d) -> bool:
    """Whether it uses running statistics, and is torch's own or timm's without drop-out."""
    is_timm = hasattr(norm, "act") and isinstance(getattr(norm, "drop", None), nn.Identity)
    is_known = type(norm) is nn.BatchNorm2d or is_timm
    return is_known and norm.running_var is not None and not norm.training


def _is_shared(convolution: nn.Conv2d, layers: dict[str, nn.Module]) -> bool:
    """Whether its weight comes from a parametrization, or belongs to another layer, too."""
    owners = sum(
        parameter is convolution.weight
        for layer in layers.values()
        for parameter in layer._parameters.values()
    )
    return owners != 1


def _rewrite_relus(module: fx.GraphModule) -> None:
    """Move ReLU behind max-pooling, and let it work in place where its input has no other use.

    Outputs and gradients stay bit-identical: ReLU is monotonic, so it commutes with the maximum,
    and a maximum that is not positive gets no gradient in either order.
    """
    layers = dict(module.named_modules())
    for node in list(module.graph.nodes):
        if not _is_relu(node, layers) or not _is_private_output(node.args[0], layers):
            continue
        source = node.args[0]
        follower = _only_user(node)
        pool = None if follower is None else _called_layer(follower, layers)
        if follower is not None and type(pool) is nn.MaxPool2d and not pool.return_indices:
            # source -> ReLU -> pool becomes source -> pool -> ReLU
            node.replace_all_uses_with(source)
            follower.replace_all_uses_with(node)
            node.update_arg(0, follower)
            follower.append(node)
            source = follower
        if _is_private_output(source, layers):
            with module.graph.inserting_before(node):
                node.replace_all_uses_with(module.graph.call_function(functional.relu_, (source,)))
            module.graph.erase_node(node)


def _only_user(node: fx.Node) -> fx.Node | None:
    """Return the node that uses this one, if there is exactly one."""
    return next(iter(node.users)) if len(node.users) == 1 else None


def _is_private_output(node: fx.Node, layers: dict[str, nn.Module]) -> bool:
    """Whether one node uses this output, and the layer does not save it for its backward pass."""
    return len(node.users) == 1 and isinstance(
        _called_layer(node, layers), (nn.Conv2d, nn.Linear, nn.MaxPool2d, nn.BatchNorm2d)
    )


def _called_layer(node: fx.Node, layers: dict[str, nn.Module]) -> nn.Module | None:
    """Return the layer that a node calls with one argument."""
    is_call = node.op == "call_module" and len(node.args) == 1 and not node.kwargs
    return layers[str(node.target)] if is_call else None


def _is_relu(node: fx.Node, layers: dict[str, nn.Module]) -> bool:
    if node.op == "call_function" and node.target in (functional.relu, torch.relu):
        return len(node.args) == 1
    return type(_called_layer(node, layers)) is nn.ReLU


def _agree(model: nn.Module, fused: nn.Module, images: Tensor) -> bool:
    """Whether both have the same logits and, for enough images, the same input gradients."""
    expected_logits, expected_gradient = _logits_and_gradient(model, images)
    logits, gradient = _logits_and_gradient(fused, images)
    # also without autograd: a trace does not record where a forward pass switches it off
    with torch.no_grad():
        model_logits = model(images)
        fused_logits = fused(images)
    if expected_logits.shape != logits.shape or not expected_logits.isfinite().all():
        return False
    limit = MAX_LOGIT_DIFFERENCE * expected_logits.abs().max().clamp(min=1)
    differences = [
        (other - expected_logits).abs().max() for other in (logits, model_logits, fused_logits)
    ]
    distance = (gradient - expected_gradient).flatten(1).norm(dim=1)
    matches = distance <= MAX_GRADIENT_DIFFERENCE * expected_gradient.flatten(1).norm(dim=1)
    has_same_logits = bool(torch.stack(differences).max() <= limit)
    return has_same_logits and bool(matches.float().mean() >= MIN_MATCHING_GRADIENTS)


def _logits_and_gradient(model: nn.Module, images: Tensor) -> tuple[Tensor, Tensor]:
    """Return logits (N, C), and the input gradient of their sum with alternating signs."""
    with torch.enable_grad():
        images = images.detach().clone().requires_grad_()
        logits = model(images)
        # alternating: a plain sum could not detect classes that are exchanged
        signs = 1 - 2 * (torch.arange(logits.shape[1], device=logits.device) % 2)
        if not logits.requires_grad:
            return logits, torch.zeros_like(images)
        (gradient,) = torch.autograd.grad((signs * logits).sum(), images, allow_unused=True)
    # torch returns None, against its annotation, for images that the logits do not depend on
    return logits.detach(), torch.zeros_like(images) if gradient is None else gradient


# Convolutions over few channels.


def has_few_channels(convolution: nn.Conv2d) -> bool:
    """Whether the input gradient of this convolution can be computed as a matrix product."""
    is_plain = (
        convolution.stride == (1, 1) and convolution.dilation == (1, 1) and convolution.groups == 1
    )
    # padding by name ("same") may differ between the two sides
    is_padded_by_zeros = convolution.padding_mode == "zeros" and not isinstance(
        convolution.padding, str
    )
    return is_plain and is_padded_by_zeros and convolution.in_channels <= MAX_MATMUL_CHANNELS


@contextmanager
def matmul_input_gradient(layer: nn.Module) -> Iterator[None]:
    """Let a convolution over few channels use the faster gradient inside, without weight gradients.

    Any other layer stays as it is.
    """
    if type(layer) is not nn.Conv2d or not has_few_channels(layer):
        yield
        return
    layer.forward = lambda images: _SmallChannelConv.apply(  # type: ignore[assignment, method-assign, no-untyped-call]
        images, layer.weight, layer.bias, layer.padding
    )
    try:
        yield
    finally:
        # the method of the class becomes visible again
        del layer.forward


class SmallChannelConv2d(nn.Conv2d):
    """A convolution with the faster input gradient; its weights get no gradient."""

    def __init__(self, original: nn.Conv2d) -> None:
        super().__init__(
            original.in_channels,
            original.out_channels,
            original.kernel_size,  # type: ignore[arg-type]
            padding=original.padding,  # type: ignore[arg-type]
            bias=original.bias is not None,
            device="meta",  # no random initialisation: the weights are copied
        )
        self.weight = nn.Parameter(original.weight.detach().clone())
        if original.bias is not None:
            self.bias = nn.Parameter(original.bias.detach().clone())

    def forward(self, images: Tensor) -> Tensor:
        result: Tensor = _SmallChannelConv.apply(  # type: ignore[no-untyped-call]
            images, self.weight, self.bias, self.padding
        )
        return result


class _SmallChannelConv(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(
        images: Tensor, weight: Tensor, bias: Tensor | None, padding: tuple[int, int]
    ) -> Tensor:
        return functional.conv2d(images, weight, bias, padding=padding)

    @staticmethod
    def setup_context(
        ctx: Any,  # noqa: ANN401 - torch gives its class no public name
        inputs: tuple[Any, ...],
        output: Tensor,
    ) -> None:
        images, weight, _, padding = inputs
        ctx.save_for_backward(weight)
        ctx.shape = images.shape
        ctx.padding = padding

    @staticmethod
    def backward(
        ctx: Any,  # noqa: ANN401 - torch gives its class no public name
        *gradients: Tensor,
    ) -> tuple[Tensor | None, ...]:
        """Distribute the gradient of each output pixel to the pixels under its window."""
        (weight,) = ctx.saved_tensors
        (gradient,) = gradients
        count, channels, height, width = ctx.shape
        rows, columns = gradient.shape[2:]
        # image by image: how one product over all images is rounded depends on the threads
        windows = weight.reshape(len(weight), -1).T.expand(count, -1, -1)
        outputs = gradient.permute(0, 2, 3, 1).reshape(count, rows * columns, len(weight))
        contributions = torch.bmm(windows, outputs.transpose(1, 2))
        contributions = contributions.view(count, *weight.shape[1:], rows, columns)
        top, left = ctx.padding
        padded = gradient.new_zeros(count, channels, height + 2 * top, width + 2 * left)
        # a sum over window offsets: each shifts the contributions of one weight position
        for down in range(weight.shape[2]):
            for right in range(weight.shape[3]):
                window = padded[:, :, down : down + rows, right : right + columns]
                window += contributions[:, :, down, right]
        return padded[:, :, top : top + height, left : left + width], None, None, None

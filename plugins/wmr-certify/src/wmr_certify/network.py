"""Trace a model into a list of layers; any operation that cannot be bounded is refused."""

import copy
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, fx, nn

from wmr_cli import BadInput

from .layers import (
    Layer,
    MaxPool,
    Relu,
    Shape,
    Sum,
    make_convolution,
    make_elementwise,
    make_linear,
    make_nonnegative,
    make_reshape,
)

TOLERANCE = 1e-9
"""Largest relative difference between the traced network and the model, both in float64."""
SUPPORTED = (
    "linear and convolution layers, ReLU, batch-norm, average and max pooling, padding, flatten, "
    "normalisation and sums are supported"
)
RESHAPES = (nn.Flatten, nn.Identity, nn.Dropout, nn.Dropout2d)
RESHAPE_NAMES = {"flatten", "view", "reshape", "contiguous", "dropout"}
NONNEGATIVE_MODULES = (nn.AvgPool2d, nn.AdaptiveAvgPool2d)
NONNEGATIVE_NAMES = {"avg_pool2d", "adaptive_avg_pool2d", "mean", "getitem", "pad"}
ELEMENTWISE_NAMES = {"add", "iadd", "sub", "mul", "truediv", "div", "batch_norm"}
"""Operations with numbers and parameters; with two tensors of the network, only sums."""


@dataclass(frozen=True)
class Node:
    """A layer, the numbers of the nodes that it reads, and the shape of its output per image."""

    layer: Layer | None
    """None for the images themselves."""
    inputs: tuple[int, ...]
    shape: Shape


@dataclass
class Network:
    """Nodes in an order in which every node follows its inputs; the first one is the images."""

    nodes: list[Node] = field(default_factory=list)

    def add(self, layer: Layer | None, inputs: tuple[int, ...], shape: Shape) -> int:
        """Append a node; return its number."""
        self.nodes.append(Node(layer, inputs, shape))
        return len(self.nodes) - 1

    def __call__(self, images: Tensor) -> Tensor:
        """Compute the logits (N, K) of images in float64."""
        values = [images]
        for node in self.nodes[1:]:
            assert node.layer is not None
            values.append(node.layer(*(values[number] for number in node.inputs)))
        return values[-1]


def trace_network(model: nn.Module, images: Tensor) -> Network:
    """Trace a model in eval mode, and verify the result on these images (N, C, H, W)."""
    exact = copy.deepcopy(model).cpu().double().eval().requires_grad_(requires_grad=False)
    try:
        graph = fx.Tracer().trace(exact)
    except Exception as error:
        raise BadInput(
            f"the forward pass of {type(model).__name__} cannot be traced: {error}",
            hint="a verifier needs a forward pass without branches on the values of tensors",
        ) from error
    network = _Converter(exact, images[:1].double()).convert(graph)
    expected = exact(images.double())
    found = network(images.double())
    size = 1 + expected.abs().max()
    if found.shape != expected.shape or (found - expected).abs().max() > TOLERANCE * size:
        raise BadInput(
            f"the layers of {type(model).__name__} do not reproduce its logits",
            hint=f"its forward pass treats images differently, or mixes them; {SUPPORTED}",
        )
    return network


class _Converter:
    """Runs the traced graph on one image, and converts each operation on the way."""

    def __init__(self, model: nn.Module, sample: Tensor) -> None:
        self.model = model
        self.sample = sample
        self.network = Network()
        self.values: dict[fx.Node, Any] = {}
        self.numbers: dict[fx.Node, int] = {}

    def convert(self, graph: fx.Graph) -> Network:
        for node in graph.nodes:
            if node.op == "placeholder":
                self._place_images(node)
            elif node.op == "output":
                self._finish(node)
            else:
                self._convert_operation(node)
        return self.network

    def _place_images(self, node: fx.Node) -> None:
        if self.network.nodes:
            # parameters of `forward` beside the images keep their default
            self.values[node] = node.args[0] if node.args else None
            return
        self.values[node] = self.sample
        self.numbers[node] = self.network.add(None, (), tuple(self.sample.shape[1:]))

    def _finish(self, node: fx.Node) -> None:
        (result,) = node.args
        is_last = isinstance(result, fx.Node) and self.numbers.get(result) == (
            len(self.network.nodes) - 1
        )
        if not is_last:
            raise BadInput("the model does not return its last layer", hint=SUPPORTED)

    def _convert_operation(self, node: fx.Node) -> None:
        args = fx.map_arg(node.args, self.values.__getitem__)
        kwargs = fx.map_arg(node.kwargs, self.values.__getitem__)
        result = self._run(node, args, kwargs)
        self.values[node] = result
        inputs = tuple(self.numbers[used] for used in _list_inputs(node) if used in self.numbers)
        # sizes, and parameters of the model
        if not inputs or not isinstance(result, Tensor):
            return
        layer = self._make_layer(node, args, kwargs, inputs, tuple(result.shape[1:]))
        if layer is None:
            raise BadInput(
                f"the model has an operation that cannot be bounded: {self._describe(node)}",
                hint=SUPPORTED,
            )
        self.numbers[node] = self.network.add(layer, inputs, tuple(result.shape[1:]))

    def _run(self, node: fx.Node, args: Any, kwargs: Any) -> Any:
        if node.op == "get_attr":
            found: Any = self.model
            for name in str(node.target).split("."):
                found = getattr(found, name)
            return found
        if node.op == "call_module":
            return self.model.get_submodule(str(node.target))(*args, **kwargs)
        if node.op == "call_method":
            return getattr(args[0], str(node.target))(*args[1:], **kwargs)
        assert callable(node.target)
        return node.target(*args, **kwargs)

    def _make_layer(
        self, node: fx.Node, args: Any, kwargs: Any, inputs: tuple[int, ...], shape: Shape
    ) -> Layer | None:
        input_shape = self.network.nodes[inputs[0]].shape
        if node.op == "call_module":
            return _convert_module(self.model.get_submodule(str(node.target)), input_shape, shape)
        name = self._name(node)
        if name in ("add", "iadd") and len(inputs) == 2:
            both = [self.network.nodes[number].shape for number in inputs]
            return Sum() if both[0] == both[1] and not kwargs else None
        if len(inputs) != 1 or not isinstance(args[0], Tensor):
            return None
        if not isinstance(node.args[0], fx.Node) or node.args[0] not in self.numbers:
            return None
        if name == "relu":
            return Relu()
        if name in RESHAPE_NAMES:
            return make_reshape(input_shape, shape)
        if name == "max_pool2d":
            return _make_max_pool(dict(zip(POOL_OPTIONS, args[1:], strict=False)) | kwargs)
        if name in NONNEGATIVE_NAMES:
            return make_nonnegative(lambda x: self._run(node, (x, *args[1:]), kwargs), input_shape)
        if name in ELEMENTWISE_NAMES and shape == input_shape:
            return make_elementwise(lambda x: self._run(node, (x, *args[1:]), kwargs), input_shape)
        return None

    def _name(self, node: fx.Node) -> str:
        if node.op == "call_method":
            return str(node.target)
        return str(getattr(node.target, "__name__", node.target))

    def _describe(self, node: fx.Node) -> str:
        if node.op == "call_module":
            kind = type(self.model.get_submodule(str(node.target))).__name__
            return f"{kind} ({node.target})"
        return self._name(node)


POOL_OPTIONS = ("kernel_size", "stride", "padding", "dilation", "ceil_mode")


def _list_inputs(node: fx.Node) -> list[fx.Node]:
    """Return the nodes that an operation reads, twice where it reads one twice."""
    found: list[fx.Node] = []
    fx.map_arg((node.args, node.kwargs), lambda used: found.append(used))
    return found


def _convert_module(module: nn.Module, input_shape: Shape, shape: Shape) -> Layer | None:
    """Return the layer of a module of torch, or None if it cannot be bounded."""
    if isinstance(module, nn.Linear):
        return make_linear(module)
    if isinstance(module, nn.Conv2d):
        return make_convolution(module, input_shape)
    if isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d):
        return make_elementwise(module, input_shape)
    if isinstance(module, nn.ReLU):
        return Relu()
    if isinstance(module, nn.MaxPool2d):
        return _make_max_pool({name: getattr(module, name) for name in POOL_OPTIONS})
    if isinstance(module, RESHAPES):
        return make_reshape(input_shape, shape)
    if isinstance(module, NONNEGATIVE_MODULES):
        return make_nonnegative(module, input_shape)
    return None


def _make_max_pool(options: dict[str, Any]) -> MaxPool | None:
    # with ceil_mode a window may leave the padded image
    if set(options) - set(POOL_OPTIONS) or options.get("ceil_mode"):
        return None
    return MaxPool(options)

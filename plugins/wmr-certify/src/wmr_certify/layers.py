"""Layers of a network in the form that bounds need, in float64.

Every affine layer W x + b has four parts: its matrix, the matrix of absolute values, its transpose
and its constant. `Relu` and `MaxPool` are relaxed by `propagation.py`; `Sum` adds two inputs.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.grad import conv2d_input

from wmr_cli import BadInput

Map = Callable[[Tensor], Tensor]
Shape = tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Affine:
    """W x + b for a batch of inputs."""

    linear: Map
    """x to W x."""
    absolute: Map
    """A radius r to |W| r."""
    transposed: Map
    """Rows of coefficients of the output to those of the input."""
    constant: Tensor
    """b, of a shape that can be added to the output."""
    mixes: bool = True
    """Whether an output may depend on several inputs."""

    def __call__(self, values: Tensor) -> Tensor:
        return self.linear(values) + self.constant


@dataclass(frozen=True)
class Relu:
    """max(x, 0)."""

    def __call__(self, values: Tensor) -> Tensor:
        return values.relu()


@dataclass(frozen=True)
class MaxPool:
    """The largest value of each window."""

    options: dict[str, Any]

    def __call__(self, values: Tensor) -> Tensor:
        highest: Tensor = functional.max_pool2d(values, **self.options)
        return highest

    def argmax(self, values: Tensor) -> Tensor:
        """Return the position in the flattened plane of each window's largest value."""
        positions: Tensor = functional.max_pool2d(values, **self.options, return_indices=True)[1]
        return positions

    def unfold(self, planes: Tensor, filler: float) -> Tensor:
        """Return the values of every window, (N, window, windows), from planes (N, 1, H, W)."""
        kernel = _to_pair(self.options["kernel_size"])
        stride = _to_pair(self.options.get("stride") or kernel)
        rows, columns = _to_pair(self.options.get("padding", 0))
        padded = functional.pad(planes, (columns, columns, rows, rows), value=filler)
        dilation = _to_pair(self.options.get("dilation", 1))
        return functional.unfold(padded, kernel, dilation=dilation, stride=stride)


def _to_pair(value: int | tuple[int, int]) -> tuple[int, int]:
    return (value, value) if isinstance(value, int) else value


@dataclass(frozen=True)
class Sum:
    """The sum of two inputs, as in a residual block."""

    def __call__(self, first: Tensor, second: Tensor) -> Tensor:
        return first + second


Layer = Affine | Relu | MaxPool | Sum


def make_linear(module: nn.Linear) -> Affine:
    """Convert a fully connected layer."""
    weight = module.weight
    bias = weight.new_zeros(len(weight)) if module.bias is None else module.bias
    return Affine(
        linear=lambda values: functional.linear(values, weight),
        absolute=lambda radius: functional.linear(radius, weight.abs()),
        transposed=lambda rows: rows @ weight,
        constant=bias,
    )


def make_convolution(module: nn.Conv2d, input_shape: Shape) -> Affine:
    """Convert a convolution with zero padding."""
    if module.padding_mode != "zeros" or isinstance(module.padding, str):
        raise BadInput(
            f"a convolution with padding {module.padding!r} of mode {module.padding_mode!r} "
            "cannot be bounded",
            hint="pad with zeros, by a number of pixels",
        )
    weight = module.weight
    options: dict[str, Any] = {
        "stride": module.stride,
        "padding": module.padding,
        "dilation": module.dilation,
        "groups": module.groups,
    }
    bias = weight.new_zeros(len(weight)) if module.bias is None else module.bias
    return Affine(
        linear=lambda values: functional.conv2d(values, weight, **options),
        absolute=lambda radius: functional.conv2d(radius, weight.abs(), **options),
        transposed=lambda rows: conv2d_input((len(rows), *input_shape), weight, rows, **options),
        constant=bias.reshape(-1, 1, 1),
    )


def make_elementwise(function: Map, input_shape: Shape) -> Affine:
    """Convert a function that scales and shifts each value, such as batch-norm in eval mode."""
    zeros = torch.zeros(1, *input_shape, dtype=torch.float64)
    shift = function(zeros)
    scale = function(torch.ones_like(zeros)) - shift
    return Affine(
        linear=lambda values: values * scale,
        absolute=lambda radius: radius * scale.abs(),
        transposed=lambda rows: rows * scale,
        constant=shift,
        mixes=False,
    )


def make_reshape(input_shape: Shape, output_shape: Shape) -> Affine:
    """Return a change of shape; it may be none at all."""

    def forward(values: Tensor) -> Tensor:
        return values.reshape(len(values), *output_shape)

    return Affine(
        linear=forward,
        absolute=forward,
        transposed=lambda rows: rows.reshape(len(rows), *input_shape),
        constant=torch.zeros((), dtype=torch.float64),
        mixes=False,
    )


def make_nonnegative(function: Map, input_shape: Shape) -> Affine:
    """Convert an affine function whose matrix has no negative entry, such as a mean."""
    constant = function(torch.zeros(1, *input_shape, dtype=torch.float64))

    def apply(values: Tensor) -> Tensor:
        return function(values) - constant

    def transpose(rows: Tensor) -> Tensor:
        with torch.enable_grad():
            start = rows.new_zeros(len(rows), *input_shape, requires_grad=True)
            (product,) = torch.autograd.grad(
                function(start), start, rows, create_graph=rows.requires_grad
            )
        return product

    return Affine(
        linear=apply,
        absolute=apply,
        transposed=transpose,
        constant=constant,
    )

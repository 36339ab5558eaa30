"""Bounds of a network over sets of images: intervals forwards, linear bounds backwards.

`bound_backwards` is CROWN (Zhang et al. 2018, arXiv:1811.00866). It replaces each ReLU by two lines
and so bounds rows of coefficients of any node by a linear function of the images. A row belongs to
one image, so that images may have different numbers of rows.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from .layers import Affine, MaxPool, Relu, Sum
from .network import Network

ROUNDING = 1e-9
"""Relative slack of every interval, far above the rounding errors of float64."""
MAX_ELEMENTS = 8_000_000
"""Largest number of coefficients of one node that are computed at once."""


@dataclass(frozen=True)
class Box:
    """Lower and upper bounds of the values of a node, each (N, *shape)."""

    lower: Tensor
    upper: Tensor

    def widen(self) -> "Box":
        """Return a slightly larger box, which contains rounding errors."""
        slack = ROUNDING * (1 + torch.maximum(self.lower.abs(), self.upper.abs()))
        return Box(self.lower - slack, self.upper + slack)

    def intersect(self, other: "Box") -> "Box":
        """Return the box inside both."""
        lower = torch.maximum(self.lower, other.lower)
        upper = torch.minimum(self.upper, other.upper)
        return Box(lower, upper)


@dataclass(frozen=True)
class Domain:
    """The ε-ball around each image, intersected with the pixel range [0, 1]."""

    images: Tensor
    norm: str
    eps: float

    @property
    def box(self) -> Box:
        """The smallest box around the domain of each image."""
        lower = (self.images - self.eps).clamp(min=0)
        return Box(lower, (self.images + self.eps).clamp(max=1))

    def minimise(self, rows: Tensor, image: Tensor) -> Tensor:
        """Return a lower bound (P,) of each row's product with its image, over the domain."""
        flat = rows.flatten(1)
        box = self.box
        centre = ((box.lower + box.upper) / 2).flatten(1)
        radius = ((box.upper - box.lower) / 2).flatten(1)
        least = (flat * centre[image]).sum(1) - (flat.abs() * radius[image]).sum(1)
        if self.norm == "linf":
            return least
        # the L2 ball without the pixel range: the dual norm of L2 is L2
        value = (flat * self.images.flatten(1)[image]).sum(1)
        least_in_ball = value - self.eps * torch.linalg.vector_norm(flat, dim=1)
        return torch.maximum(least, least_in_ball)

    def find_minimum(self, rows: Tensor) -> Tensor:
        """Return images (N, C, H, W) of the domain with a low product with rows of that shape."""
        if self.norm == "linf":
            return torch.where(rows > 0, self.box.lower, self.box.upper)
        lengths = torch.linalg.vector_norm(rows.flatten(1), dim=1).clamp(min=1e-300)
        wide: Tensor = lengths.reshape(len(rows), 1, 1, 1)
        return (self.images - rows / wide * self.eps).clamp(0, 1)

    def select(self, images: Tensor) -> "Domain":
        """Return the domain of these images."""
        return Domain(self.images[images], self.norm, self.eps)


@dataclass
class Bounds:
    """The boxes of the nodes whose values are relaxed, by the number of the node."""

    boxes: dict[int, Box] = field(default_factory=dict)

    def select(self, images: Tensor) -> "Bounds":
        """Return the bounds of these images."""
        return Bounds(
            {
                number: Box(box.lower[images], box.upper[images])
                for number, box in self.boxes.items()
            }
        )


@dataclass(frozen=True)
class Parameters:
    """What optimisers choose freely: every value gives a valid bound."""

    slopes: Mapping[int, Tensor] = field(default_factory=dict)
    """Lower slopes (P, *shape) of ReLUs by the number of their node, each in [0, 1]."""
    multipliers: Mapping[int, Tensor] = field(default_factory=dict)
    """Multipliers (P, *shape) of the values of a node, each of the sign of its value.

    Their product is not negative, so that subtracting it keeps a lower bound valid.
    """


def propagate(network: Network, domain: Domain, *, refine: bool) -> tuple[Bounds, Box]:
    """Bound all inputs of nonlinear layers, and the logits by intervals.

    With `refine` the intervals that contain 0 are improved by bounds backwards.
    """
    relaxed = {node.inputs[0] for node in network.nodes if isinstance(node.layer, Relu | MaxPool)}
    bounds = Bounds()
    boxes: list[Box] = []
    for number, node in enumerate(network.nodes):
        if node.layer is None:
            box = domain.box
        else:
            box = _apply_to_boxes(node.layer, [boxes[used] for used in node.inputs]).widen()
        if number in relaxed:
            # in a box of pixels, intervals of the first layer are exact
            is_exact = domain.norm == "linf" and _count_mixing(network, number) <= 1
            if refine and not is_exact:
                box = _refine(network, number, box, domain, bounds)
            bounds.boxes[number] = box
        boxes.append(box)
    return bounds, boxes[-1]


def _count_mixing(network: Network, number: int) -> float:
    """Return how many affine layers mix values up to a node; infinite behind other layers."""
    count = 0
    while number:
        node = network.nodes[number]
        if not isinstance(node.layer, Affine):
            return math.inf
        count += node.layer.mixes
        (number,) = node.inputs
    return count


def _apply_to_boxes(layer: Affine | Relu | MaxPool | Sum, boxes: list[Box]) -> Box:
    if isinstance(layer, Affine):
        (box,) = boxes
        centre = layer((box.lower + box.upper) / 2)
        radius = layer.absolute((box.upper - box.lower) / 2)
        return Box(centre - radius, centre + radius)
    # monotone in every input
    return Box(layer(*(box.lower for box in boxes)), layer(*(box.upper for box in boxes)))


def _refine(network: Network, number: int, box: Box, domain: Domain, bounds: Bounds) -> Box:
    """Improve the intervals of a node that contain 0: others make no difference to a ReLU."""
    lower = box.lower.flatten(1).clone()
    upper = box.upper.flatten(1).clone()
    pairs = ((lower < 0) & (upper > 0)).nonzero()
    size = max(_count(node.shape) for node in network.nodes[: number + 1])
    for part in pairs.split(max(1, MAX_ELEMENTS // size)):
        image, neuron = part.unbind(1)
        unit = functional.one_hot(neuron, lower.shape[1]).to(lower.dtype)
        unit = unit.reshape(-1, *network.nodes[number].shape)
        least = bound_backwards(network, Rows(unit, image, number), domain, bounds)
        lower[image, neuron] = least.lower
        highest = bound_backwards(network, Rows(-unit, image, number), domain, bounds)
        upper[image, neuron] = -highest.lower
    refined = Box(lower.reshape(box.lower.shape), upper.reshape(box.upper.shape)).widen()
    return refined.intersect(box)


def _count(shape: tuple[int, ...]) -> int:
    return int(torch.Size(shape).numel())


@dataclass(frozen=True)
class Rows:
    """Coefficients (P, *shape) of the values of a node, and the image (P,) of each row."""

    values: Tensor
    image: Tensor
    node: int


class LinearBounds(NamedTuple):
    """Lower bounds (P,) of rows, and their coefficients of the values of every node."""

    lower: Tensor
    coefficients: dict[int, Tensor]


def bound_backwards(
    network: Network,
    rows: Rows,
    domain: Domain,
    bounds: Bounds,
    parameters: Parameters = Parameters(),  # noqa: B008 - frozen
) -> LinearBounds:
    """Bound the product of each row with the values of its node from below."""
    coefficients: dict[int, Tensor] = {rows.node: rows.values}
    total = rows.values.new_zeros(len(rows.values))
    for number in range(rows.node, 0, -1):
        if number not in coefficients:
            continue
        current = coefficients[number]
        if number in parameters.multipliers:
            current = current - parameters.multipliers[number]
        node = network.nodes[number]
        if isinstance(node.layer, Sum):
            passed = current
        elif isinstance(node.layer, Affine):
            total = total + (current * node.layer.constant).flatten(1).sum(1)
            passed = node.layer.transposed(current)
        else:
            box = bounds.boxes[node.inputs[0]]
            if isinstance(node.layer, Relu):
                slope = parameters.slopes.get(number)
                passed, constant = _relax_relu(current, box, rows.image, slope)
            else:
                assert isinstance(node.layer, MaxPool)
                passed, constant = _relax_max_pool(node.layer, current, box, rows.image)
            total = total + constant
        for used in node.inputs:
            coefficients[used] = coefficients[used] + passed if used in coefficients else passed
    return LinearBounds(total + domain.minimise(coefficients[0], rows.image), coefficients)


def start_slopes(box: Box) -> Tensor:
    """Return the lower slope of each ReLU that leaves the smaller area: 0 or 1."""
    return (box.upper > -box.lower).to(box.lower.dtype)


def _relax_relu(
    rows: Tensor, box: Box, image: Tensor, slope: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Return coefficients of the input of a ReLU, and a constant (P,).

    Positive coefficients take the line slope * x below the ReLU. Negative ones take the line above
    it, through (lower, 0) and (upper, upper).
    """
    is_active = box.lower >= 0
    is_unstable = (box.lower < 0) & (box.upper > 0)
    above = torch.where(is_unstable, box.upper / (box.upper - box.lower).clamp(min=1e-300), 0)
    intercept = (-above * box.lower)[image]
    above = torch.where(is_active, 1, above)[image]
    if slope is None:
        below = torch.where(is_unstable, start_slopes(box), is_active.to(rows.dtype))[image]
    else:
        below = torch.where(is_unstable[image], slope, is_active.to(rows.dtype)[image])
    negative = rows.clamp(max=0)
    passed = rows.clamp(min=0) * below + negative * above
    return passed, (negative * intercept).flatten(1).sum(1)


def _relax_max_pool(layer: MaxPool, rows: Tensor, box: Box, image: Tensor) -> tuple[Tensor, Tensor]:
    """Return coefficients of the input of a max pooling, and a constant (P,).

    The largest value of a window is at least that of the neuron with the highest lower bound. It is
    at most the highest upper bound, and equals that neuron where no other can exceed it.
    """
    best = layer.argmax(box.lower)
    lower = box.lower.flatten(2).gather(2, best.flatten(2)).reshape(best.shape)
    is_exact = (lower >= _highest_other_bound(layer, box.upper, best))[image]
    negative = rows.clamp(max=0)
    constant = torch.where(is_exact, 0, negative * layer(box.upper)[image]).flatten(1).sum(1)
    to_neuron = rows.clamp(min=0) + torch.where(is_exact, negative, 0)
    passed = rows.new_zeros(len(rows), *box.lower.shape[1:]).flatten(2)
    passed = passed.scatter_add(2, best[image].flatten(2), to_neuron.flatten(2))
    return passed.reshape(len(rows), *box.lower.shape[1:]), constant


def _highest_other_bound(layer: MaxPool, upper: Tensor, best: Tensor) -> Tensor:
    """Return the highest upper bound of each window, without the neuron at position `best`."""
    planes = upper.flatten(0, 1).unsqueeze(1)
    numbers = torch.arange(planes[0].numel(), dtype=upper.dtype).reshape(1, 1, *upper.shape[2:])
    windows = layer.unfold(planes, -torch.inf)
    positions = layer.unfold(numbers, -1)
    is_best = positions == best.flatten(0, 1).flatten(1).unsqueeze(1)
    return windows.masked_fill(is_best, -torch.inf).amax(dim=1).reshape(best.shape)


def chunk_images(count: int, rows_per_image: int, network: Network) -> Iterator[Tensor]:
    """Yield positions of images whose rows fit into memory together."""
    size = sum(_count(node.shape) for node in network.nodes)
    # `split` would yield an empty tensor
    if count:
        yield from torch.arange(count).split(max(1, MAX_ELEMENTS // (size * rows_per_image)))


def list_relus(network: Network) -> Iterator[tuple[int, int]]:
    """Yield the number of each ReLU, and that of its input."""
    for number, node in enumerate(network.nodes):
        if isinstance(node.layer, Relu):
            yield number, node.inputs[0]

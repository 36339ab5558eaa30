"""Branch and bound on the signs of ReLUs, for images that linear bounds leave undecided.

A problem is one image with one other class. Its leaves cover the ε-ball: in each, some ReLUs have a
fixed sign. The leaf with the lowest bound is split by one more ReLU, until all bounds are positive
or the budget is spent. Signs enter a bound as in beta-CROWN (Wang et al. 2021, arXiv:2103.06624).
"""

import heapq
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from .network import Network
from .optimisation import Adam, maximise_bounds
from .propagation import Bounds, Box, Domain, Rows, chunk_images, list_relus

ADAM = Adam(steps=12, rate=0.2)
"""Optimises the slopes and multipliers of a leaf."""
Signs = dict[int, Tensor]
"""1, -1, or 0 for a sign that is not fixed, by the number of the input of a ReLU."""


@dataclass(frozen=True)
class Leaf:
    """A part of the ε-ball with its lower bound, and the ReLU that would split it."""

    signs: Signs
    bound: float
    split: tuple[int, int] | None
    """Number of the input of the ReLU, and position in it; None if all signs are known."""

    def divide(self) -> Iterator[Signs]:
        """Yield the signs of the two halves."""
        assert self.split is not None
        number, position = self.split
        for sign in (1, -1):
            signs = dict(self.signs)
            signs[number] = signs[number].clone()
            signs[number].view(-1)[position] = sign
            yield signs


@dataclass
class Problem:
    """An image, the coefficients (K,) of one logit difference, and the leaves so far."""

    image: int
    rows: Tensor
    column: int
    leaves: list[tuple[float, int, Leaf]] = field(default_factory=list)
    order: Iterator[int] = field(default_factory=itertools.count)

    def push(self, leaf: Leaf) -> None:
        # the number breaks ties: leaves have no order
        heapq.heappush(self.leaves, (leaf.bound, next(self.order), leaf))

    @property
    def worst(self) -> Leaf:
        """The leaf with the lowest bound, which is the bound of the problem."""
        return self.leaves[0][2]


def split_neurons(
    network: Network,
    specification: Tensor,
    domain: Domain,
    bounds: Bounds,
    lower: Tensor,
    needed: Tensor,
    splits: int,
) -> Tensor:
    """Return bounds (N, K - 1) after at most this many splits per image and class.

    `specification` (N, K - 1, K) has the coefficients of each difference. Bounds that exceed
    `needed` (N,) are left as they are, and so are images for which the search meets a
    misclassified one in the ball.
    """
    search = _Search(network, specification, domain, bounds)
    undecided = (lower <= needed[:, None]).nonzero().tolist()
    problems = [Problem(image, specification[image, column], column) for image, column in undecided]
    search.add_leaves(problems, [search.free_signs() for _ in problems], lower)
    for _ in range(splits):
        active = [
            problem
            for problem in problems
            if problem.worst.bound <= needed[problem.image]
            and problem.worst.split is not None
            and problem.image not in search.broken
        ]
        if not active:
            break
        halves = [
            (problem, signs)
            for problem in active
            for signs in heapq.heappop(problem.leaves)[2].divide()
        ]
        search.add_leaves([one for one, _ in halves], [signs for _, signs in halves], lower)
    improved = lower.clone()
    for problem in problems:
        improved[problem.image, problem.column] = problem.worst.bound
    return torch.maximum(lower, improved)


@dataclass
class _Search:
    """Bounds leaves of many problems together."""

    network: Network
    specification: Tensor
    domain: Domain
    bounds: Bounds
    broken: set[int] = field(default_factory=set)
    """Images for which a misclassified image in the ball was met."""

    def free_signs(self) -> Signs:
        return {
            used: torch.zeros(self.network.nodes[used].shape, dtype=torch.int8)
            for _, used in list_relus(self.network)
        }

    def add_leaves(
        self, problems: Sequence[Problem], signs: Sequence[Signs], lower: Tensor
    ) -> None:
        """Bound leaves with these signs, one for each problem, and add them."""
        for chosen in chunk_images(len(problems), 1, self.network):
            part = [problems[number] for number in chosen.tolist()]
            leaves = [signs[number] for number in chosen.tolist()]
            values, choices = self._bound(part, leaves)
            for problem, own, value, choice in zip(part, leaves, values, choices, strict=True):
                # a half lies within the whole, whose bound holds for it
                best = max(value, float(lower[problem.image, problem.column]))
                problem.push(Leaf(own, best, choice))

    def _bound(
        self, problems: Sequence[Problem], leaves: Sequence[Signs]
    ) -> tuple[list[float], list[tuple[int, int] | None]]:
        images = torch.tensor([problem.image for problem in problems])
        rows = torch.stack([problem.rows for problem in problems])
        domain = self.domain.select(images)
        signs = {
            used: torch.stack([leaf[used] for leaf in leaves]).to(rows.dtype)
            for _, used in list_relus(self.network)
        }
        bounds = _restrict(self.bounds.select(images), signs)
        own = Rows(rows, torch.arange(len(rows)), len(self.network.nodes) - 1)
        best, coefficients = maximise_bounds(self.network, own, domain, bounds, ADAM, signs)
        candidates = domain.find_minimum(coefficients[0])
        logits = self.network(candidates)
        differences = (self.specification[images] @ logits[:, :, None]).squeeze(2)
        self.broken |= set(images[(differences <= 0).any(dim=1)].tolist())
        return best.tolist(), _choose_splits(self.network, coefficients, bounds)


def _restrict(bounds: Bounds, signs: Signs) -> Bounds:
    """Return the boxes of the part of the ball in which the inputs of ReLUs have these signs."""
    boxes = dict(bounds.boxes)
    for used, sign in signs.items():
        box = boxes[used]
        boxes[used] = Box(
            torch.where(sign > 0, box.lower.clamp(min=0), box.lower),
            torch.where(sign < 0, box.upper.clamp(max=0), box.upper),
        )
    return Bounds(boxes)


def _choose_splits(
    network: Network, coefficients: dict[int, Tensor], bounds: Bounds
) -> list[tuple[int, int] | None]:
    """Return the ReLU of each row whose relaxation can cost most: coefficient times largest gap."""
    scores = []
    places: list[tuple[int, int]] = []
    for number, used in list_relus(network):
        box = bounds.boxes[used]
        is_unstable = (box.lower < 0) & (box.upper > 0)
        gap = -box.lower * box.upper / (box.upper - box.lower).clamp(min=1e-300)
        score = torch.where(is_unstable, coefficients[number].abs() * gap, 0).flatten(1)
        scores.append(score)
        places += [(used, position) for position in range(score.shape[1])]
    highest, position = torch.cat(scores, dim=1).max(dim=1)
    return [
        places[place] if score > 0 else None
        for score, place in zip(highest.tolist(), position.tolist(), strict=True)
    ]

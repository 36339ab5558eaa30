"""The verifiers: lower bounds of the logit differences of every image over its ε-ball."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from wmr_cli import BadInput
from wmr_cli.core import Batch, LogitBounds, VerifierTraits

from .branching import split_neurons
from .network import Network, trace_network
from .optimisation import Adam, maximise_bounds
from .propagation import Domain, Rows, chunk_images, propagate

SAFETY_MARGIN = 1e-5
"""Subtracted from every difference, relative to 1 plus the largest logit of the clean image.

It covers float64 rounding of the bounds and float32 rounding of the evaluated network, for
networks whose float32 logits are accurate to this fraction.
"""


@dataclass(frozen=True)
class IntervalBounds:
    """Interval bound propagation (Gowal et al. 2018, arXiv:1810.12715).

    One forward pass of centres and radii. The bounds are useful for networks that were trained
    for them, and for very small ε.
    """

    traits = VerifierTraits()

    def __call__(
        self, model: nn.Module, batch: Batch, *, norm: str, eps: float, num_classes: int
    ) -> LogitBounds:
        images = batch.images.detach().cpu().double()
        labels = batch.labels.cpu()
        network = trace_network(model, images)
        box = propagate(network, Domain(images, norm, eps), refine=False)[1]
        true = box.lower.gather(1, labels[:, None])
        return finish(network, images, labels, true - box.upper)


@dataclass(frozen=True)
class Crown:
    """Linear bounds with optimised lower slopes (Xu et al. 2021, arXiv:2011.13824).

    Every ReLU whose sign is not known is replaced by two lines. `steps` of Adam optimise the slope
    of the lower line for each image and class. `splits` is the largest number of ReLUs whose two
    signs are bounded apart, for each image that is still undecided. `inner=false` bounds hidden
    layers by intervals, which is faster for large networks.
    """

    steps: int = 20
    rate: float = 0.25
    splits: int = 0
    inner: bool = True

    traits = VerifierTraits()

    def __post_init__(self) -> None:
        for name, value in (("steps", self.steps), ("splits", self.splits)):
            if value < 0:
                raise BadInput(f"`{name}` is {value}", hint=f"`{name}` is 0 or more")
        if not self.rate > 0:
            raise BadInput(f"`rate` is {self.rate:g}", hint="`rate` is a positive step of Adam")

    def __call__(
        self, model: nn.Module, batch: Batch, *, norm: str, eps: float, num_classes: int
    ) -> LogitBounds:
        images = batch.images.detach().cpu().double()
        labels = batch.labels.cpu()
        network = trace_network(model, images)
        domain = Domain(images, norm, eps)
        with torch.no_grad():
            bounds = propagate(network, domain, refine=self.inner)[0]
        specification = make_specification(labels, num_classes)
        parts = []
        for chosen in chunk_images(len(images), num_classes - 1, network):
            rows = Rows(
                specification[chosen].flatten(0, 1),
                torch.arange(len(chosen)).repeat_interleave(num_classes - 1),
                len(network.nodes) - 1,
            )
            part = domain.select(chosen)
            adam = Adam(self.steps, self.rate)
            found = maximise_bounds(network, rows, part, bounds.select(chosen), adam)
            parts.append(found.lower.reshape(len(chosen), num_classes - 1))
        lower = torch.cat(parts)
        if self.splits:
            lower = split_neurons(
                network,
                specification,
                domain,
                bounds,
                lower,
                SAFETY_MARGIN * measure_logits(network, images),
                self.splits,
            )
        return finish(network, images, labels, insert_true_class(lower, labels))


def make_specification(labels: Tensor, num_classes: int) -> Tensor:
    """Return the coefficients (N, K - 1, K) of the logits: true minus each other class."""
    unit = torch.eye(num_classes, dtype=torch.float64)
    differences = unit[labels][:, None, :] - unit[None]
    is_other = torch.arange(num_classes)[None] != labels[:, None]
    return differences[is_other].reshape(len(labels), num_classes - 1, num_classes)


def insert_true_class(lower: Tensor, labels: Tensor) -> Tensor:
    """Return bounds (N, K) from those of the other classes, (N, K - 1)."""
    num_classes = lower.shape[1] + 1
    is_other = torch.arange(num_classes)[None] != labels[:, None]
    complete = lower.new_full((len(labels), num_classes), torch.inf)
    complete[is_other] = lower.flatten()
    return complete


def measure_logits(network: Network, images: Tensor) -> Tensor:
    """Return 1 plus the largest absolute logit (N,) of each clean image."""
    return 1 + network(images).abs().amax(dim=1)


def finish(network: Network, images: Tensor, labels: Tensor, lower: Tensor) -> LogitBounds:
    """Return bounds (N, K) minus the safety margin, with +inf for the true class."""
    safe = lower - SAFETY_MARGIN * measure_logits(network, images)[:, None]
    return LogitBounds(safe.scatter(1, labels[:, None], torch.inf))

"""The contract of a verifier."""

import torch
from torch import Tensor, nn

from ..core.norms import NORMS
from ..core.protocols import Batch, LogitBounds, Verifier
from ..core.traits import VerifierTraits
from .fixtures import (
    CLASSES,
    SHAPE,
    all_close,
    batch_unchanged,
    copy_state,
    require,
    require_traits,
    tensors_equal,
    tiny_batch,
)

SAMPLES = 200
"""Random images in the ball of each image, whose differences must not be below a bound."""


def check_verifier(verifier: Verifier, model: nn.Module | None = None, eps: float = 0.02) -> None:
    """Check the bounds of a verifier for images (N, 1, 8, 8) of four classes, and its traits.

    Bounds (N, K) hold for random images in the ball. They depend neither on the other images of the
    batch nor on state, and the model is unchanged. The default model has one hidden layer.
    """
    traits = require_traits(verifier, VerifierTraits, "the verifier")
    require(bool(traits.norms), "the trait `norms` is empty")
    network = small_network() if model is None else model.eval()
    batch = tiny_batch()
    before = copy_state(network)
    for norm in sorted(traits.norms):
        with batch_unchanged(batch, "the verifier"):
            bounds = _bound(verifier, network, batch, norm, eps)
        again = _bound(verifier, network, batch, norm, eps)
        require(torch.equal(bounds, again), "the same model and images give other bounds")
        rows = torch.tensor([7, 2, 5])
        require(
            all_close(_bound(verifier, network, batch.select(rows), norm, eps), bounds[rows]),
            "the bounds of an image depend on the other images",
        )
        _check_samples(network, batch, bounds, norm, eps)
    require(tensors_equal(before, copy_state(network)), "the verifier changed the model")
    require(not network.training, "the verifier left the model in training mode")


def small_network() -> nn.Module:
    """Return a network of the layers that every verifier supports."""
    torch.manual_seed(0)
    pixels = SHAPE[0] * SHAPE[1] * SHAPE[2]
    hidden = nn.Linear(pixels, 16)
    return nn.Sequential(nn.Flatten(), hidden, nn.ReLU(), nn.Linear(16, CLASSES)).eval()


def _bound(verifier: Verifier, model: nn.Module, batch: Batch, norm: str, eps: float) -> Tensor:
    found = verifier(model, batch, norm=norm, eps=eps, num_classes=CLASSES)
    require(isinstance(found, LogitBounds), "a verifier returns LogitBounds")
    bounds = found.differences
    shape = (len(batch.labels), CLASSES)
    require(bounds.shape == shape, f"bounds of shape {tuple(bounds.shape)} instead of {shape}")
    require(bounds.dtype == torch.float64, f"bounds of type {bounds.dtype} instead of float64")
    is_true = nn.functional.one_hot(batch.labels, CLASSES).bool()
    require(
        torch.equal(bounds == torch.inf, is_true) and not bounds.isnan().any(),
        "a bound is NaN, or not +inf for exactly the true class",
    )
    return bounds


def _check_samples(model: nn.Module, batch: Batch, bounds: Tensor, norm: str, eps: float) -> None:
    generator = torch.Generator().manual_seed(0)
    true_class = batch.labels[:, None]
    for number in range(SAMPLES):
        noise = torch.randn(batch.images.shape, generator=generator)
        # the first image is the clean one
        delta = NORMS[norm].direction(noise) * eps * (number > 0)
        with torch.no_grad():
            logits = model((batch.images + delta).clamp(0, 1)).double()
        differences = logits.gather(1, true_class) - logits
        is_violated = (bounds > differences).scatter(1, true_class, value=False)
        require(~is_violated.any(), f"an image in the {norm} ball violates a bound")

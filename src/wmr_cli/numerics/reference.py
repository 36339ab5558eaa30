"""The stored network and its results, which `studies/exact_digits.py` computes."""

from dataclasses import dataclass
from importlib import resources

import torch
from safetensors.torch import load
from torch import Tensor

from ..core import rng
from .network import DigitsMlp

FILE = "digits.safetensors"
EPS = 0.1
"""Radius of the L∞ balls with proved margins, and of all attacks."""
NUM_IMAGES = 200
"""The first images of the test split."""
PGD = "pgd:start=none,steps=40,step=0.01"
"""Deterministic, with steps that cross the ball several times."""
ALPHA = 2.0
NUM_WORDS = (32, 64)
"""Images with random words, and words per image."""
SEED = 0x9E3779B97F4A7C15
"""Uses all 64 bits of the key of the random numbers."""


@dataclass(frozen=True, eq=False)
class Reference:
    """A network and what is known about it, computed in float64 where possible."""

    network: DigitsMlp
    lowest_margins: Tensor
    """Proved lowest logit margin of each image in its ball (200,)."""
    logits: Tensor
    """Clean logits (200, 10)."""
    gradients: Tensor
    """Gradient of the cross-entropy of clean images (200, 1, 8, 8)."""
    pgd_predictions: Tensor
    """Predictions under `PGD` (200,)."""
    pgd_a_sa: float
    """A_sa under `PGD` at `ALPHA`."""
    random_words: Tensor
    """Words of the random number generator (32, 64)."""


def load_reference() -> Reference:
    """Read the file of the package."""
    tensors = load(resources.files(__package__).joinpath(FILE).read_bytes())
    results = {
        name: tensors.pop(name)
        for name in ("lowest_margins", "logits", "gradients", "pgd_predictions", "random_words")
    }
    a_sa = float(tensors.pop("pgd_a_sa"))
    network = DigitsMlp()
    network.load_state_dict(tensors)
    return Reference(network.eval().requires_grad_(False), pgd_a_sa=a_sa, **results)


def make_random_words(device: torch.device) -> Tensor:
    """Compute the random words of the reference on a device."""
    images, words = NUM_WORDS
    return rng.random_words(torch.arange(images, device=device), words, SEED, restart=3, step=5)

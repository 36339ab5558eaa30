"""The components. `wmr` imports this module when it builds one of them."""

import math
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from wmr_cli import BadInput
from wmr_cli.core import (
    AttackResult,
    AttackTraits,
    Batch,
    DefenseTraits,
    Evidence,
    KernelTraits,
    Learner,
    LogitBounds,
    Losses,
    MemorySource,
    MemorySplit,
    Objective,
    StepReport,
    VerifierTraits,
    cross_entropy,
    ranking_scores,
    rng,
    step_weighted,
)


def stripes(root: Path, size: int = 8, noise_level: float = 0.2) -> MemorySource:
    """Images with stripes in four directions under noise. Nothing is read from `root`."""
    counts = {"train": 400, "val": 80, "test": 200}
    index = torch.arange(sum(counts.values()))
    labels = index % 4
    rows, columns = torch.meshgrid(torch.arange(size), torch.arange(size), indexing="ij")
    patterns = torch.stack([rows, columns, rows + columns, rows - columns]) // 2 % 2
    clean = patterns[labels].float().unsqueeze(1)
    images = ((1 - noise_level) * clean + noise_level * rng.uniform(clean, index, seed=0)).clamp(
        0, 1
    )
    parts = dict(zip(counts, index.split(list(counts.values())), strict=True))
    return MemorySource(
        4, {name: MemorySplit(images[at], labels[at], at) for name, at in parts.items()}
    )


class Linear(nn.Module):
    """One linear layer. (N, C, H, W) to (N, num_classes)."""

    def __init__(self, num_classes: int, input_shape: tuple[int, int, int]) -> None:
        super().__init__()
        self.layer = nn.Linear(math.prod(input_shape), num_classes)

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.layer(images.flatten(1))
        return logits


@dataclass(frozen=True)
class HalfHalf:
    """(CE(x) + weight(x') * CE(x')) / 2, with x' maximising the cross-entropy."""

    traits = DefenseTraits(provides=frozenset({"clean_logits", "steps_survived"}))

    def step(self, learner: Learner, batch: Batch) -> StepReport:
        attacked = learner.attack(batch, cross_entropy)
        clean = learner.forward(batch.images)
        adversarial = learner.forward(attacked.images)
        evidence = batch.evidence(
            adversarial, clean_logits=clean, steps_survived=attacked.steps_survived
        )
        losses = Losses(
            plain=0.5 * learner.label_loss(clean, batch.labels),
            weighted=0.5 * learner.label_loss(adversarial, batch.labels),
            evidence=evidence,
        )
        return step_weighted(learner, batch, losses)


@dataclass(frozen=True)
class Misclassified:
    """A weight of `factor` for misclassified images, of 1 for the others."""

    factor: float = 4.0

    traits = KernelTraits()

    def __call__(self, evidence: Evidence) -> Tensor:
        is_misclassified = evidence.logits.argmax(dim=1) != evidence.labels
        return is_misclassified.to(evidence.logits.dtype) * math.log(self.factor)


@dataclass(frozen=True)
class RandomCorners:
    """The strongest of `tries` random corners of the Linf ball and the image. Uses no gradient."""

    eps: float = 8 / 255
    tries: int = 5

    traits = AttackTraits(norms=frozenset({"linf"}))

    def __call__(
        self,
        model: nn.Module,
        batch: Batch,
        objective: Objective,
        *,
        seed: int,
        need_logits: bool = True,
    ) -> AttackResult:
        images = batch.images
        labels = batch.labels
        with torch.no_grad():
            best = images
            logits = model(images)
            was_correct = logits.argmax(dim=1) == labels
            for step in range(self.tries):
                # random numbers by image index: results do not depend on the batch
                is_negative = rng.uniform(images, batch.index, seed, step=step) < 0.5
                signs = 2 * is_negative.to(images.dtype) - 1
                candidate = (images + self.eps * signs).clamp(0, 1)
                candidate_logits = model(candidate)
                score = ranking_scores(objective, logits, labels)
                is_stronger = ranking_scores(objective, candidate_logits, labels) > score
                best = torch.where(is_stronger[:, None, None, None], candidate, best)
                logits = torch.where(is_stronger[:, None], candidate_logits, logits)
        return AttackResult(best, was_correct.long(), logits)


@dataclass(frozen=True)
class DualNorm:
    """Bounds of an affine model: the least change is -eps times the dual norm of the gradient.

    `samples` is the number of random images on which the model has to be affine; others are
    refused. The pixel range is not used, and `margin` covers rounding.
    """

    samples: int = 8
    margin: float = 1e-4

    traits = VerifierTraits()

    def __call__(
        self, model: nn.Module, batch: Batch, *, norm: str, eps: float, num_classes: int
    ) -> LogitBounds:
        shape = batch.images.shape[1:]
        units = torch.eye(math.prod(shape), device=batch.images.device).reshape(-1, *shape)
        index = torch.arange(self.samples, device=batch.images.device)
        images = rng.uniform(units[:1].expand(self.samples, *shape), index, seed=0)
        with torch.no_grad():
            constant = model(torch.zeros_like(units[:1]))
            # (pixels, classes)
            slopes = model(units) - constant
            logits = images.flatten(1) @ slopes + constant
            if not torch.allclose(logits, model(images), atol=self.margin / 10):
                raise BadInput(
                    "the model is not affine", hint="dual-norm bounds the model `linear`"
                )
            clean = model(batch.images).double()
        order = 1 if norm == "linf" else 2
        true_class = batch.labels[:, None]
        differences = slopes.T[batch.labels][:, None, :] - slopes.T[None]
        change = eps * torch.linalg.vector_norm(differences.double(), ord=order, dim=2)
        lower = clean.gather(1, true_class) - clean - change - self.margin
        return LogitBounds(lower.scatter(1, true_class, torch.inf))

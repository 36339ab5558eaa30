"""The components, imported when they are built."""

import math
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from wmr_cli.core import (
    AttackResult,
    AttackTraits,
    Batch,
    DefenseTraits,
    Evidence,
    KernelTraits,
    Learner,
    Losses,
    MemorySource,
    MemorySplit,
    Objective,
    StepReport,
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
    """(CE(x) + weight(x') * CE(x')) / 2, with x' climbing the cross-entropy."""

    traits = DefenseTraits(provides=frozenset({"clean_logits", "steps_survived"}))

    def step(self, learner: Learner, batch: Batch) -> StepReport:
        attacked = learner.attack(batch, cross_entropy)
        clean, adversarial = learner.forward(batch.images), learner.forward(attacked.images)
        losses = Losses(
            plain=0.5 * learner.label_loss(clean, batch.labels),
            weighted=0.5 * learner.label_loss(adversarial, batch.labels),
            evidence=Evidence(
                adversarial, batch.labels, batch.index, clean, attacked.steps_survived
            ),
        )
        return step_weighted(learner, batch, losses)


@dataclass(frozen=True)
class Fooled:
    """Images classified wrong count `factor` times as much as the others."""

    factor: float = 4.0

    traits = KernelTraits()

    def __call__(self, evidence: Evidence) -> Tensor:
        is_wrong = evidence.logits.argmax(dim=1) != evidence.labels
        return is_wrong.to(evidence.logits.dtype) * math.log(self.factor)


@dataclass(frozen=True)
class RandomCorners:
    """The worst of `tries` random corners of the Linf ball, and of the image itself, by the objective. Needs no gradient."""

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
            best, logits = images, model(images)
            was_right = logits.argmax(dim=1) == labels
            for step in range(self.tries):
                signs = (
                    2 * (rng.uniform(images, batch.index, seed, step=step) < 0.5).to(images.dtype)
                    - 1
                )
                candidate = (images + self.eps * signs).clamp(0, 1)
                candidate_logits = model(candidate)
                is_worse = ranking_scores(objective, candidate_logits, labels) > ranking_scores(
                    objective, logits, labels
                )
                best = torch.where(is_worse[:, None, None, None], candidate, best)
                logits = torch.where(is_worse[:, None], candidate_logits, logits)
        return AttackResult(best, was_right.long(), logits)

"""The network, the images and the learner that the checks use."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from ..core.contexts import evaluating
from ..core.losses import cross_entropy
from ..core.norms import NORMS
from ..core.protocols import AttackResult, Batch, Evidence, Kernel
from ..core.traits import KernelTraits
from .assertions import require

SHAPE = (1, 8, 8)
CLASSES = 4


def tiny_model(num_classes: int = CLASSES, input_shape: tuple[int, int, int] = SHAPE) -> nn.Module:
    """A network with batch-norm and dropout, the two layers whose mode matters, in eval mode."""
    torch.manual_seed(0)
    flat = 8 * input_shape[1] * input_shape[2]
    features = (nn.Conv2d(input_shape[0], 8, 3, padding=1), nn.BatchNorm2d(8), nn.Tanh())
    return nn.Sequential(
        *features, nn.Flatten(), nn.Dropout(0.5), nn.Linear(flat, num_classes)
    ).eval()


def tiny_batch(
    size: int = 12, num_classes: int = CLASSES, input_shape: tuple[int, int, int] = SHAPE
) -> Batch:
    """Images in [0, 1], the corners of the cube among them."""
    generator = torch.Generator().manual_seed(1)
    images = torch.rand(size, *input_shape, generator=generator)
    images[0], images[1] = 0, 1
    return Batch(images, torch.arange(size) % num_classes, 100 + torch.arange(size))


class EqualWeights:
    """A kernel that gives every image a weight of 1."""

    traits = KernelTraits()

    def __call__(self, evidence: Evidence) -> Tensor:
        return evidence.logits.new_zeros(len(evidence.labels))


class RecordingLearner:
    """The smallest learner: plain SGD, an attack that only adds noise, and a note of all that a defense does."""

    def __init__(self, model: nn.Module, kernel: Kernel | None = None) -> None:
        self.model = model
        self.kernel: Kernel = kernel or EqualWeights()
        self.norm, self.eps = NORMS["linf"], 0.05
        self.epoch, self.step_index, self.seed = 0, 0, 0
        self.paid: list[float] = []
        self.weighed: list[Evidence] = []
        """the evidence that weights were asked for"""
        self.steps = 0
        self.training_attacks = 0
        self._optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.model(images)
        return logits

    @contextmanager
    def attack_mode(self) -> Iterator[nn.Module]:
        with evaluating(self.model):
            yield self.model

    def attack(self, batch: Batch, objective: Any, own: Any = None) -> AttackResult:
        if own is not None:
            with evaluating(self.model):
                result: AttackResult = own(
                    self.model, batch, objective, seed=self.seed, need_logits=False
                )
            return result
        self.training_attacks += 1
        images = (batch.images + 0.05 * torch.sign(torch.sin(1000 * batch.images))).clamp(0, 1)
        with torch.no_grad(), evaluating(self.model):
            logits = self.model(images)
        require(
            objective(logits, batch.labels).shape == batch.labels.shape,
            "an objective gives one value per image",
        )
        return AttackResult(images, torch.zeros_like(batch.labels))

    def weights(self, evidence: Evidence) -> Tensor:
        self.weighed.append(evidence)
        return self.kernel(evidence).exp()

    def label_loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        return cross_entropy(logits, labels)

    def mean(self, values: Tensor) -> Tensor:
        return values.mean()

    def gather(self, values: Tensor) -> Tensor:
        return values

    def add_gradients(self, gradients: Any) -> None:
        for parameter, gradient in gradients.items():
            parameter.grad = gradient if parameter.grad is None else parameter.grad + gradient

    def backward(self, loss: Tensor) -> None:
        require(
            loss.ndim == 0, "the loss of a step is one number, not one per image: take learner.mean"
        )
        require(loss.isfinite(), "the loss of a step is not finite")
        self.paid.append(float(loss.detach()))
        loss.backward()

    def optimizer_step(self) -> None:
        self.steps += 1
        self._optimizer.step()
        self._optimizer.zero_grad()

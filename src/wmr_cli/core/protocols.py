"""What the parts promise each other. Everything is per image, (N,), until the last step of a walk.

A plugin's class meets a contract by having its shape; nobody inherits.
"""

from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from ..errors import BrokenContract
from .nn.fusion import to_memory_format
from .norms import Norm


@dataclass(frozen=True)
class Batch:
    """Images (N, C, H, W) in [0, 1], labels (N,), and the index (N,) that each image has in its data set."""

    images: Tensor
    labels: Tensor
    index: Tensor

    def to(
        self, device: Any, memory_format: torch.memory_format = torch.contiguous_format
    ) -> "Batch":
        """Return the same on this device, with the images in this memory format."""
        images = to_memory_format(self.images.to(device), memory_format)
        return Batch(images, self.labels.to(device), self.index.to(device))

    def select(self, rows: Tensor) -> "Batch":
        """Return the images of these rows, with their labels and indices."""
        return Batch(self.images[rows], self.labels[rows], self.index[rows])

    def evidence(
        self,
        logits: Tensor,
        *,
        clean_logits: Tensor | None = None,
        steps_survived: Tensor | None = None,
        loss: Tensor | None = None,
    ) -> "Evidence":
        """Return what a kernel may weight these images by, with their labels and indices filled in."""
        return Evidence(
            logits,
            self.labels,
            self.index,
            clean_logits=clean_logits,
            steps_survived=steps_survived,
            loss=loss,
        )


class Split(Protocol):
    """One part of a data set, in a fixed order.

    `streams = True` marks one that reads its images from files every time: it is then read a batch ahead. `note` may hold
    what a user should know about it.
    """

    @property
    def labels(self) -> Tensor:
        """(N,) int64, in the split's order"""
        ...

    @property
    def sha256(self) -> str:
        """A hash of the split's images and labels."""
        ...

    def __len__(self) -> int: ...

    def batch(self, positions: Tensor) -> Batch:
        """The images at these positions of the split's order."""
        ...


class DataSource(Protocol):
    """A data set: `train`, `val` and `test` splits whose images share one shape. `class_names` are there where they are known."""

    @property
    def num_classes(self) -> int: ...
    @property
    def input_shape(self) -> tuple[int, int, int]: ...
    @property
    def splits(self) -> Mapping[str, Split]: ...


class Objective(Protocol):
    """What an attack climbs: per-image values (N,) from logits (N, C) and labels (N,).

    One whose values do not tell which of two images is the better has a method `rank` of the same shape that does.
    """

    def __call__(self, logits: Tensor, labels: Tensor) -> Tensor: ...


@dataclass(frozen=True)
class AttackResult:
    """Adversarial images and, for each image, the number of steps before which it was still classified correctly.

    `logits` are those of exactly these images. They may be None only when the caller does not need them.
    """

    images: Tensor
    steps_survived: Tensor
    logits: Tensor | None = None

    def require_logits(self) -> Tensor:
        """Return the logits (N, C) of an attack that ran with `need_logits=True`."""
        if self.logits is None:
            raise BrokenContract(
                "the attack returned no logits",
                hint="an attack returns the logits of its images unless need_logits is False",
            )
        return self.logits

    def select(self, rows: Tensor) -> "AttackResult":
        """Return the results of these rows."""
        logits = None if self.logits is None else self.logits[rows]
        return AttackResult(self.images[rows], self.steps_survived[rows], logits)


class Attack(Protocol):
    """A frozen dataclass of numbers, never a model. Its random numbers are a pure function of (seed, index, restart, step).

    `loss` names the objective it climbs in evaluation ("ce" where it says nothing); `stops_early = True` marks an attack
    that leaves an image alone once it is fooled: it gives A_rob, never margins. A method `remarks(num_classes)` may yield
    what the user is to be told.
    """

    def __call__(
        self,
        model: nn.Module,
        batch: Batch,
        objective: Objective,
        *,
        seed: int,
        need_logits: bool = True,
    ) -> AttackResult:
        """Attack a batch. With `need_logits=False` the attack may skip the final forward pass."""
        ...


@dataclass(frozen=True)
class Evidence:
    """What a kernel may weigh an image by. The loss of a training step fills in all it has, and `loss` is what the weight is
    multiplied with; the weighted attack knows logits, labels and loss, the metric the index, too.
    """

    logits: Tensor
    labels: Tensor
    index: Tensor | None = None
    clean_logits: Tensor | None = None
    steps_survived: Tensor | None = None
    loss: Tensor | None = None


class Kernel(Protocol):
    """Log-weights (N,) of images; -inf is a weight of zero. What a kernel may say of itself, each by an attribute:

    `needs = ("steps_survived",)` names the evidence it cannot do without beside logits and labels; `detached = True`: its
    weights carry no gradient, and attacks climb the plain objective; `mean_one = True`: a training step divides them by
    their mean over the batch; `compares = True`: it weighs images against each other, so that it is shown the batch of all
    ranks, or all images of an evaluation, at once; `start_epoch = 60`: every image counts the same for so many epochs;
    `needs_training = True`: it cannot serve as a metric. A method `observe(evidence)` is called after every epoch with the
    held-out images under attack; a method `reach(index)` says how many of these images (N,) have any weight, before any work.
    """

    def __call__(self, evidence: Evidence) -> Tensor: ...


@dataclass(frozen=True)
class Losses:
    """What a training step pays per image: `plain` as it is, `weighted` times the kernel's weight."""

    weighted: Tensor
    evidence: Evidence
    plain: Tensor | None = None


@dataclass(frozen=True)
class StepReport:
    """What a training step saw, per image and detached: what was paid, the weights, the adversarial margins and hits.

    `clean_correct` says which images are right without the attack, where the defense saw that, too.
    """

    losses: Tensor
    weights: Tensor
    margins: Tensor
    correct: Tensor
    clean_correct: Tensor | None = None


class Learner(Protocol):
    """What a defense may touch during one training step."""

    model: nn.Module
    """the plain module, for attacks and input gradients"""
    kernel: Kernel
    norm: Norm
    eps: float
    """the radius of the ball in this step"""
    epoch: int
    step_index: int
    seed: int

    def forward(self, images: Tensor) -> Tensor:
        """Logits through the parallel wrapper, for parameter gradients."""
        ...

    def attack_mode(self) -> AbstractContextManager[nn.Module]:
        """The network as training attacks see it, in the mode in which they do."""
        ...

    def attack(self, batch: Batch, objective: Objective, own: Attack | None = None) -> AttackResult:
        """The training attack on this batch, weighted by the kernel unless the user said otherwise.

        A defense may bring its `own` attack, which names its radius as `eps`: a number, or one per image (N,).
        """
        ...

    def weights(self, evidence: Evidence) -> Tensor:
        """The kernel's weights (N,), with gradient or without and normalised or not, as the user said."""
        ...

    def label_loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Cross-entropy (N,) for a training loss, with labels smoothed as the user said."""
        ...

    def mean(self, values: Tensor) -> Tensor:
        """The mean of values (N,) over the batch of all ranks, in the form whose gradients add up to its gradient."""
        ...

    def gather(self, values: Tensor) -> Tensor:
        """Values (N, ...) of this rank's images to those of all ranks', in an order that is the same for all values."""
        ...

    def backward(self, loss: Tensor) -> None: ...

    def add_gradients(self, gradients: Mapping[nn.Parameter, Tensor]) -> None:
        """Add gradients made by hand to those of `backward`, as the mean over all ranks."""
        ...

    def optimizer_step(self) -> None:
        """Move the parameters, and forget their gradients."""
        ...


class Defense(Protocol):
    """Owns one training step. What a defense may say of itself, each by an attribute:

    `knows = ("clean_logits",)` names the evidence that it fills in beside logits, labels, index and loss; `uses_attack =
    False`: it never asks for the training attack; `one_gradient = True`: the same backward pass moves images and
    parameters; `replays = 8`: it steps so many times on each batch, so that epochs and milestones are divided by that;
    `per_rank = True`: its state is each rank's own.
    """

    def step(self, learner: Learner, batch: Batch) -> StepReport: ...

"""The contracts between components. All values are per image, (N,), until the mean of a step.

A class meets a contract by having its members; it does not inherit from these protocols. What a
component declares about itself are its traits (`core.traits`); rare abilities are protocols of
their own, which are tested with `isinstance`.
"""

from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from ..errors import BrokenContract
from .nn.fusion import to_memory_format
from .norms import Norm
from .traits import AttackTraits, DefenseTraits, KernelTraits, VerifierTraits


def to_unit_floats(images: Tensor) -> Tensor:
    """Convert uint8 to float32 in [0, 1]; return floats as they are."""
    if images.dtype != torch.uint8:
        return images
    # a tensor as divisor: GPUs multiply by the reciprocal of a number, which rounds differently
    return images.float().div_(torch.full((), 255.0, device=images.device))


@dataclass(frozen=True)
class SecondLabels:
    """The labels (N,) of the smaller parts of mixed images, and these parts (N,), at most 1/2."""

    labels: Tensor
    fractions: Tensor

    def mix(self, values: Tensor, second_values: Tensor) -> Tensor:
        """Return the mean of values (N,) for both labels, weighted by their parts of the image."""
        return (1 - self.fractions) * values + self.fractions * second_values

    def select(self, rows: Tensor) -> "SecondLabels":
        """Return those of these rows."""
        return SecondLabels(self.labels[rows], self.fractions[rows])


@dataclass(frozen=True)
class Batch:
    """Images (N, C, H, W) in [0, 1], labels (N,), and each image's index (N,) in its dataset.

    Mixed images of mixup and CutMix have second labels. Label and index are those of the larger
    part.
    """

    images: Tensor
    labels: Tensor
    index: Tensor
    second: SecondLabels | None = None

    def to(
        self, device: Any, memory_format: torch.memory_format = torch.contiguous_format
    ) -> "Batch":
        """Return the same on this device, with the images as floats in this memory format.

        Bytes are converted on the device: they are a quarter of the data to copy.
        """
        # the host does not wait for copies from pinned memory
        images, labels, index = (
            part.to(device, non_blocking=part.is_pinned())
            for part in (self.images, self.labels, self.index)
        )
        second = self.second
        if second is not None:
            second = SecondLabels(second.labels.to(device), second.fractions.to(device))
        images = to_memory_format(to_unit_floats(images), memory_format)
        return Batch(images, labels, index, second)

    def select(self, rows: Tensor) -> "Batch":
        """Return the images of these rows, with their labels and indices."""
        second = None if self.second is None else self.second.select(rows)
        return Batch(self.images[rows], self.labels[rows], self.index[rows], second)

    def evidence(
        self,
        logits: Tensor,
        *,
        clean_logits: Tensor | None = None,
        steps_survived: Tensor | None = None,
        loss: Tensor | None = None,
    ) -> "Evidence":
        """Return the evidence for a kernel, with the labels and indices of this batch."""
        return Evidence(
            logits,
            self.labels,
            self.index,
            clean_logits=clean_logits,
            steps_survived=steps_survived,
            loss=loss,
        )


class Split(Protocol):
    """One part of a dataset, in a fixed order.

    Optional abilities are `HasIndex`, `HasNote`, `Preparable` and `StreamsImages`.
    """

    @property
    def labels(self) -> Tensor:
        """Labels (N,), int64, in the order of the split."""
        ...

    @property
    def sha256(self) -> str:
        """A hash of the images and labels."""
        ...

    def __len__(self) -> int: ...

    def batch(self, positions: Tensor) -> Batch:
        """Return the images at these positions (N,) of the split."""
        ...


@runtime_checkable
class HasIndex(Protocol):
    """A split that knows the index of each image without reading the images."""

    @property
    def index(self) -> Tensor:
        """Index (N,) of each image in the dataset."""
        ...


@runtime_checkable
class HasNote(Protocol):
    """A split with a note for the user."""

    @property
    def note(self) -> str | None:
        """One sentence, or None."""
        ...


@runtime_checkable
class Preparable(Protocol):
    """A split that can read its images into memory before training starts."""

    def prepare(self) -> None:
        """Read and check all images that will be kept in memory."""
        ...


@runtime_checkable
class StreamsImages(Protocol):
    """A split that may read its images from files for every batch."""

    @property
    def streams(self) -> bool:
        """Whether it does: batches are then read ahead in threads, one at a time."""
        ...


class DataSource(Protocol):
    """A dataset: `train`, `val` and `test` splits whose images have one shape."""

    @property
    def num_classes(self) -> int: ...
    @property
    def input_shape(self) -> tuple[int, int, int]: ...
    @property
    def splits(self) -> Mapping[str, Split]: ...
    @property
    def class_names(self) -> tuple[str, ...] | None:
        """A name for each class, or None where they are not known."""
        ...

    @property
    def random_split_sha256(self) -> str | None:
        """A hash of the training images where the splits were chosen at random, else None.

        Evaluation compares it with that of the checkpoint: after a change of the data another
        random choice could put training images into the test split.
        """
        ...


class Objective(Protocol):
    """The objective that an attack maximises: values (N,) from logits (N, C) and labels (N,)."""

    def __call__(self, logits: Tensor, labels: Tensor) -> Tensor: ...


@runtime_checkable
class RanksImages(Protocol):
    """An objective whose values do not order the candidates of an image; `rank` does."""

    def rank(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return values (N,) that are higher for the stronger candidate."""
        ...


@runtime_checkable
class HoldsRows(Protocol):
    """An objective with state per image, which can be restricted to rows of the batch."""

    def __getitem__(self, rows: Tensor) -> Objective: ...


@dataclass(frozen=True)
class AttackResult:
    """Adversarial images, and for each the number of steps before which it was still correct.

    `logits` are those of exactly these images. They may be None only if the caller does not need
    them.
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
    """A frozen dataclass of numbers, without a model.

    Its random numbers are a pure function of (seed, index, restart, step). An optional ability is
    `HasRemarks`.
    """

    @property
    def traits(self) -> AttackTraits: ...

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


@runtime_checkable
class HasRemarks(Protocol):
    """An attack that informs the user about how it behaves."""

    def remarks(self, num_classes: int) -> Iterable[str]:
        """Yield sentences about an attack on a model of this many classes."""
        ...


@dataclass(frozen=True)
class LogitBounds:
    """Lower bounds (N, K) of the true logit minus each other one, over the ε-ball of each image.

    The entry of the true class is +inf. An entry of -inf is a bound as well.
    """

    differences: Tensor


class Verifier(Protocol):
    """A frozen dataclass of numbers, without a model. It bounds what any attack can reach.

    A bound holds for every image within `eps` whose pixels are in [0, 1]. It is a function of the
    model and the image alone, and need not be the best one.
    """

    @property
    def traits(self) -> VerifierTraits: ...

    def __call__(
        self, model: nn.Module, batch: Batch, *, norm: str, eps: float, num_classes: int
    ) -> LogitBounds:
        """Bound a model in eval mode, without changing it. Refuse one with unknown layers."""
        ...


@dataclass(frozen=True)
class LoggedRun:
    """What a logger knows of a run."""

    name: str
    """The name of its folder."""
    folder: Path
    """Its folder. A logger that writes files there uses `folder / NAME`, with its own name."""
    config: Mapping[str, Any]
    """Its settings, as in config.json."""
    tracker_id: str | None = None
    """What `open` returned when the run was first logged."""
    epoch: int = 0
    """The last epoch that this logger has logged; later ones follow after `open`."""


@dataclass(frozen=True)
class EvaluationTable:
    """All evaluations of a run: one row per record and α_test, fractions unrounded."""

    columns: tuple[str, ...]
    """As in `wmr report --format csv`."""
    rows: tuple[tuple[str | float | None, ...], ...]
    metrics: Mapping[str, float]
    """The accuracies by a name such as `test/pgd:steps=20/0.3/a_rob`."""


@runtime_checkable
class Logger(Protocol):
    """Copies the log of a run to another tool. Rank 0 alone uses it.

    The constructor checks parameters and packages, without other effects. No method draws random
    numbers. A logger that raises, or that does not return in time, is not used any further; the
    run continues.
    """

    def open(self, run: LoggedRun) -> str | None:
        """Start to log a run, or continue; return the id of the tool's run if it has one."""
        ...

    def log_epoch(self, epoch: int, metrics: Mapping[str, float]) -> None:
        """Log the numbers of an epoch, counted from 1, under their names in log.jsonl."""
        ...

    def log_evaluation(self, table: EvaluationTable) -> None:
        """Log the evaluations of the run, in place of those logged before."""
        ...

    def close(self, *, is_complete: bool) -> None:
        """Write everything. An interrupted run is not complete, and may be opened again."""
        ...


@runtime_checkable
class LogsFiles(Protocol):
    """A logger that keeps files such as the HTML report."""

    def log_file(self, path: Path) -> None:
        """Copy a file, in place of one of this name. It exists until `close` has returned."""
        ...


@dataclass(frozen=True)
class Evidence:
    """What a kernel may weight an image by.

    A defense fills in all that it has; `loss` is the loss that the weight is multiplied with. A
    weighted attack has logits, labels and loss; an evaluation has the index, too.
    """

    logits: Tensor
    labels: Tensor
    index: Tensor | None = None
    clean_logits: Tensor | None = None
    steps_survived: Tensor | None = None
    loss: Tensor | None = None


class Kernel(Protocol):
    """Log-weights (N,) of images; -inf is a weight of zero.

    Optional abilities are `HasState`, `ObservesValidation` and `CountsWeightedImages`.
    """

    @property
    def traits(self) -> KernelTraits: ...

    def __call__(self, evidence: Evidence) -> Tensor: ...


@runtime_checkable
class ObservesValidation(Protocol):
    """A kernel that learns from the validation set after every epoch."""

    def observe(self, evidence: Evidence) -> None:
        """Learn from the evidence of the validation set under attack."""
        ...


@runtime_checkable
class CountsWeightedImages(Protocol):
    """A kernel that knows by index alone which images have any weight."""

    def count_weighted(self, index: Tensor) -> int:
        """Return how many of the images with these indices (N,) have a weight above zero."""
        ...


@runtime_checkable
class HasState(Protocol):
    """A kernel or defense that keeps tensors from step to step, which checkpoints store."""

    def state(self) -> Mapping[str, Tensor]:
        """Return the tensors by name; an empty mapping is not stored."""
        ...

    def load_state(self, state: dict[str, Tensor]) -> None:
        """Restore what `state` returned."""
        ...


@dataclass(frozen=True)
class Losses:
    """The training loss per image: `plain` plus the kernel's weight times `weighted`."""

    weighted: Tensor
    evidence: Evidence
    plain: Tensor | None = None


@dataclass(frozen=True)
class StepReport:
    """Statistics of a training step, per image and detached.

    Margins and `correct` are those of the adversarial images. `clean_correct` is set where the
    defense computed the logits of the clean images as well.
    """

    losses: Tensor
    weights: Tensor
    margins: Tensor
    correct: Tensor
    clean_correct: Tensor | None = None


class Learner(Protocol):
    """What a defense may use during one training step."""

    model: nn.Module
    """The module without the parallel wrapper, for attacks and input gradients."""
    kernel: Kernel
    norm: Norm
    eps: float
    """The radius of the ε-ball in this step."""
    epoch: int
    step_index: int
    seed: int

    def forward(self, images: Tensor) -> Tensor:
        """Compute logits through the parallel wrapper, for parameter gradients."""
        ...

    def attack_mode(self) -> AbstractContextManager[nn.Module]:
        """Return a context with the model that training attacks use, in their mode."""
        ...

    def attack(self, batch: Batch, objective: Objective, own: Attack | None = None) -> AttackResult:
        """Run the training attack on this batch, weighted by the kernel if so configured.

        A defense may pass its `own` attack, whose radius is its `eps`: a number, or one per image.
        """
        ...

    def weights(self, evidence: Evidence) -> Tensor:
        """Return the kernel's weights (N,).

        `weight_grad` decides whether they carry a gradient, `normalize` whether they are divided by
        their mean. `max_weight` is their upper bound.
        """
        ...

    def label_loss(
        self, logits: Tensor, labels: Tensor, second: SecondLabels | None = None
    ) -> Tensor:
        """Return the cross-entropy (N,) of a training loss, with label smoothing as configured.

        With the second labels of a batch of mixed images, it is the mean over both labels.
        """
        ...

    def mean(self, values: Tensor) -> Tensor:
        """Return the mean of values (N,) over the batch of all ranks.

        The ranks' gradients of the result add up to the gradient of the mean.
        """
        ...

    def gather(self, values: Tensor) -> Tensor:
        """Gather values (N, ...) from all ranks, in the same order for all values."""
        ...

    def backward(self, loss: Tensor) -> None: ...

    def add_gradients(self, gradients: Mapping[nn.Parameter, Tensor]) -> None:
        """Add gradients that `backward` did not compute, as their mean over all ranks."""
        ...

    def optimizer_step(self) -> None:
        """Update the parameters and reset their gradients."""
        ...


class Defense(Protocol):
    """Runs one training step: attack, loss, backward pass, optimizer step.

    An optional ability is `HasState`.
    """

    @property
    def traits(self) -> DefenseTraits: ...

    def step(self, learner: Learner, batch: Batch) -> StepReport: ...

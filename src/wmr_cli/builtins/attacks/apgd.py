"""Auto-PGD, untargeted and targeted: PGD without a step size to choose."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

from torch import Tensor, nn

from ...core.auto_pgd import run_auto_pgd, run_auto_pgd_until_misclassified
from ...core.contexts import compute_logits
from ...core.eot import average_draws
from ...core.losses import (
    MAX_TARGETS,
    MIN_DLR_CLASSES,
    MIN_TARGETED_DLR_CLASSES,
    TargetedDlrLoss,
    get_objective,
    most_likely_targets,
    select_rows,
)
from ...core.norms import NORMS, Norm
from ...core.pgd import start_attempts, start_images
from ...core.protocols import AttackResult, Batch, Objective
from ...core.restarts import attack_in_full_batches, run_restarts
from ...core.traits import AttackTraits
from ...errors import BadInput


@dataclass(frozen=True)
class Apgd:
    """Auto-PGD (Croce and Hein 2020, arXiv:2003.01690). (N, C, H, W) in [0, 1].

    Maximises the given objective; in evaluation that is its `loss`. Each image halves its own step
    size when it makes too little progress. The result is the misclassified iterate with the highest
    score, or that of all iterates; with `stops_early` the first misclassified iterate.
    """

    norm: Literal["linf", "l2"] = "linf"
    eps: float = 8 / 255
    steps: int = 100
    restarts: int = 1
    loss: str = "ce"
    stops_early: bool = False
    eot: int = 1

    def __post_init__(self) -> None:
        if self.eps < 0 or self.steps < 0 or self.restarts < 1 or self.eot < 1:
            raise BadInput(
                f"{self} cannot be run",
                hint="`eps` and `steps` are at least 0, `restarts` and `eot` at least 1",
            )
        # raises for an unknown name when the attack is built, not in the middle of a run
        get_objective(self.loss)

    def remarks(self, num_classes: int) -> Iterator[str]:
        """Yield what differs with this number of classes."""
        if self.loss == "dlr" and num_classes < MIN_DLR_CLASSES:
            yield (
                f"the DLR loss needs {MIN_DLR_CLASSES} classes: "
                f"with {num_classes} the attack maximises the margin loss"
            )

    @property
    def traits(self) -> AttackTraits:
        return AttackTraits(
            objective=self.loss,
            stops_early=self.stops_early,
            gathers_images=self.stops_early,
            eot=self.eot,
        )

    def __call__(
        self,
        model: nn.Module,
        batch: Batch,
        objective: Objective,
        *,
        seed: int,
        need_logits: bool = True,
    ) -> AttackResult:
        norm = NORMS[self.norm]
        model = average_draws(model, self.eot)
        if self.stops_early:

            def choose_objective(rows: Tensor, attempts: Tensor) -> Objective:
                # an objective such as KL holds values per image and must follow the rows
                return select_rows(objective, rows)

            search = EarlySearch(model, batch, norm, self.eps, self.steps, seed, choose_objective)
            return attack_in_full_batches(model, batch, search, self.restarts)

        def run(rows: Tensor, restart: int) -> AttackResult:
            part = batch.select(rows)
            start = start_images("uniform", part, norm, self.eps, seed=seed, restart=restart)
            part_objective = select_rows(objective, rows)
            return run_auto_pgd(
                model, part, part_objective, start, norm=norm, eps=self.eps, steps=self.steps
            )

        return run_restarts(run, model, batch, objective, restarts=self.restarts, stops_early=False)


@dataclass(frozen=True, eq=False)
class EarlySearch:
    """Attempts of Auto-PGD that end at the first misclassified iterate, packed into a batch."""

    model: nn.Module
    batch: Batch
    norm: Norm
    eps: float
    steps: int
    seed: int
    choose_objective: Callable[[Tensor, Tensor], Objective]
    """Returns the objective of these attempts (M,) on these rows (M,)."""

    def __call__(self, rows: Tensor, attempts: Tensor) -> AttackResult:
        part = self.batch.select(rows)
        start = start_attempts(part, self.norm, self.eps, attempts, seed=self.seed)
        return run_auto_pgd_until_misclassified(
            self.model,
            part,
            self.choose_objective(rows, attempts),
            start,
            owners=rows,
            norm=self.norm,
            eps=self.eps,
            steps=self.steps,
        )


@dataclass(frozen=True)
class TargetedApgd:
    """Auto-PGD on the targeted DLR loss (Croce and Hein 2020, arXiv:2003.01690).

    (N, C, H, W) in [0, 1]. Attacks towards each of the `targets` most likely other classes in
    order, whatever the given objective, until the image is misclassified: it gives A_rob. Images
    that survive every target are returned clean.
    """

    norm: Literal["linf", "l2"] = "linf"
    eps: float = 8 / 255
    steps: int = 100
    restarts: int = 1
    targets: int = MAX_TARGETS
    eot: int = 1

    def __post_init__(self) -> None:
        is_negative = self.eps < 0 or self.steps < 0
        if is_negative or self.restarts < 1 or self.targets < 1 or self.eot < 1:
            raise BadInput(
                f"{self} cannot be run",
                hint="`eps` and `steps` are at least 0, `restarts`, `targets` and `eot` at least 1",
            )

    @property
    def traits(self) -> AttackTraits:
        return AttackTraits(stops_early=True, gathers_images=True, eot=self.eot)

    def remarks(self, num_classes: int) -> Iterator[str]:
        """Yield what differs with this number of classes."""
        if num_classes < MIN_TARGETED_DLR_CLASSES:
            yield (
                f"the targeted DLR loss needs {MIN_TARGETED_DLR_CLASSES} classes: "
                f"with {num_classes} the attack maximises the targeted margin"
            )

    def __call__(
        self,
        model: nn.Module,
        batch: Batch,
        objective: Objective,
        *,
        seed: int,
        need_logits: bool = True,
    ) -> AttackResult:
        model = average_draws(model, self.eot)
        # targets are ranked by the clean logits, once: they do not change between restarts
        clean_logits = compute_logits(model, batch.images)
        targets = most_likely_targets(clean_logits, batch.labels, self.targets)
        num_targets = targets.shape[1]

        def choose_objective(rows: Tensor, attempts: Tensor) -> Objective:
            # all targets of a restart before the next restart
            return TargetedDlrLoss(targets[rows, attempts % num_targets])

        norm = NORMS[self.norm]
        search = EarlySearch(model, batch, norm, self.eps, self.steps, seed, choose_objective)
        return attack_in_full_batches(model, batch, search, self.restarts * num_targets)

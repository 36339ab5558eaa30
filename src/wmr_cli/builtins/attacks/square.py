"""Square attack: random search with squares, without gradients."""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from ...core import rng, square
from ...core.losses import get_objective, ranking_scores, select_rows
from ...core.protocols import AttackResult, Batch, Objective
from ...core.restarts import is_stronger, run_restarts
from ...core.traits import AttackTraits
from ...errors import BadInput

QUERIES_PER_CHUNK = 100
"""Queries whose random numbers are computed at once. Results depend on it."""
_START = {"linf": square.start_linf, "l2": square.start_l2}
_PROPOSE = {"linf": square.propose_linf, "l2": square.propose_l2}


@dataclass
class _Search:
    """State of a search: the best images so far, and the queries that each image survived."""

    images: Tensor
    logits: Tensor
    scores: Tensor
    """Ranking scores (N,) of the objective."""
    steps_survived: Tensor

    def select(self, rows: Tensor) -> "_Search":
        return _Search(
            self.images[rows], self.logits[rows], self.scores[rows], self.steps_survived[rows]
        )

    def keep_stronger(
        self, model: nn.Module, moved: Tensor, labels: Tensor, objective: Objective
    ) -> "_Search":
        """Query the model with changed images and keep each change that is stronger."""
        logits = model(moved)
        scores = ranking_scores(objective, logits, labels)
        improves = is_stronger(logits, scores, self.logits, self.scores, labels)
        kept_logits = torch.where(improves[:, None], logits, self.logits)
        return _Search(
            torch.where(improves[:, None, None, None], moved, self.images),
            kept_logits,
            torch.where(improves, scores, self.scores),
            # a query counts as survived if the best image so far is still correct
            self.steps_survived + (kept_logits.argmax(dim=1) == labels),
        )

    def put(self, rows: Tensor, part: "_Search") -> None:
        """Write the state of a part of the batch into these rows."""
        self.images[rows] = part.images
        self.logits[rows] = part.logits
        self.scores[rows] = part.scores
        self.steps_survived[rows] = part.steps_survived


@dataclass(frozen=True)
class Square:
    """Square attack (Andriushchenko et al. 2020, arXiv:1912.00049). (N, C, H, W) in [0, 1].

    Uses logits only, no gradients. Changes one random square at a time, which shrinks from the
    fraction `p_init` of the pixels, and keeps changes that raise the objective; in evaluation that
    is its `loss`. With `stops_early` a misclassified image is not changed any more. Without
    `edges` no square touches the last row and column, and on tiny images the first guess in L2 has
    more tiles: as in public implementations, for comparison with published numbers.
    """

    norm: Literal["linf", "l2"] = "linf"
    eps: float = 8 / 255
    queries: int = 5000
    restarts: int = 1
    p_init: float = 0.8
    loss: str = "margin"
    stops_early: bool = False
    edges: bool = True

    def __post_init__(self) -> None:
        if self.eps < 0 or self.queries < 1 or self.restarts < 1 or not 0 < self.p_init <= 1:
            raise BadInput(
                f"{self} cannot be run",
                hint="`eps` is at least 0, `queries` and `restarts` are at least 1, "
                "`p_init` is above 0 and at most 1",
            )
        get_objective(self.loss)

    @property
    def traits(self) -> AttackTraits:
        return AttackTraits(objective=self.loss, stops_early=self.stops_early)

    def __call__(
        self,
        model: nn.Module,
        batch: Batch,
        objective: Objective,
        *,
        seed: int,
        need_logits: bool = True,
    ) -> AttackResult:
        def search(rows: Tensor, restart: int) -> AttackResult:
            part = batch.select(rows)
            return self._search(
                model, part, select_rows(objective, rows), seed=seed, restart=restart
            )

        with torch.no_grad():
            return run_restarts(
                search,
                model,
                batch,
                objective,
                restarts=self.restarts,
                stops_early=self.stops_early,
            )

    def _search(
        self, model: nn.Module, batch: Batch, objective: Objective, *, seed: int, restart: int
    ) -> AttackResult:
        """Run all queries of one restart, a chunk at a time."""
        images = _START[self.norm](batch.images, self.eps, batch.index, seed, restart, self.edges)
        logits = model(images)
        state = _Search(
            images,
            logits,
            ranking_scores(objective, logits, batch.labels),
            (logits.argmax(dim=1) == batch.labels).long(),
        )
        rows = torch.arange(len(batch.labels), device=batch.labels.device)
        # the position of a square, and one sign per channel
        draws_per_query = square.PLACE_DRAWS + batch.images.shape[1]
        for chunk, first in enumerate(range(1, self.queries, QUERIES_PER_CHUNK), start=1):
            if self.stops_early:
                # only between chunks: selecting rows costs more than a few queries too many
                rows = (state.logits.argmax(dim=1) == batch.labels).nonzero().squeeze(1)
                if not len(rows):
                    break
            part = batch.select(rows)
            draws = rng.uniform(
                batch.images.new_empty(len(rows), QUERIES_PER_CHUNK, draws_per_query),
                part.index,
                seed,
                restart,
                step=chunk,
            )
            part_objective = select_rows(objective, rows)
            part_state = state.select(rows)
            for query in range(first, min(first + QUERIES_PER_CHUNK, self.queries)):
                moved = self._propose(part.images, part_state, query, draws[:, query - first])
                part_state = part_state.keep_stronger(model, moved, part.labels, part_objective)
            state.put(rows, part_state)
        return AttackResult(state.images, state.steps_survived, state.logits)

    def _propose(self, images: Tensor, state: _Search, query: int, draws: Tensor) -> Tensor:
        """Return the best images so far with one more changed square each."""
        fraction = square.square_fraction(query, self.queries, self.p_init)
        return _PROPOSE[self.norm](images, state.images, self.eps, fraction, draws, self.edges)

"""Square attack: random search with squares, without gradients."""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from ...core import rng, square
from ...core.objectives import get_objective, ranking_scores, select_rows
from ...core.protocols import AttackResult, Batch, Objective
from ...core.restarts import is_stronger, run_restarts
from ...core.traits import AttackTraits
from ...errors import BadInput

CHUNK = 100
"""Random numbers are drawn for so many queries at once."""
_FIRST = {"linf": square.first_linf, "l2": square.first_l2}
_NEXT = {"linf": square.next_linf, "l2": square.next_l2}


@dataclass
class _Search:
    """How far a search has come: images (N, C, H, W), logits (N, C), ranks (N,), and the queries that each survived."""

    images: Tensor
    logits: Tensor
    ranks: Tensor
    survived: Tensor

    def at(self, rows: Tensor) -> "_Search":
        return _Search(self.images[rows], self.logits[rows], self.ranks[rows], self.survived[rows])

    def keep_stronger(
        self, model: nn.Module, moved: Tensor, labels: Tensor, objective: Objective
    ) -> "_Search":
        """Query the model with changed images and keep each change that is better for the attack."""
        logits = model(moved)
        rank = ranking_scores(objective, logits, labels)
        takes = is_stronger(logits, rank, self.logits, self.ranks, labels)
        kept_logits = torch.where(takes[:, None], logits, self.logits)
        return _Search(
            torch.where(takes[:, None, None, None], moved, self.images),
            kept_logits,
            torch.where(takes, rank, self.ranks),
            self.survived + (kept_logits.argmax(dim=1) == labels),
        )

    def put(self, rows: Tensor, part: "_Search") -> None:
        self.images[rows], self.logits[rows] = part.images, part.logits
        self.ranks[rows], self.survived[rows] = part.ranks, part.survived


@dataclass(frozen=True)
class Square:
    """Square attack (Andriushchenko et al. 2020, arXiv:1912.00049). (N, C, H, W) in [0, 1] to the same.

    Asks for logits only. Changes one random square at a time, which shrinks from the share `p_init` of the pixels, and
    keeps what raises the objective it is given; in evaluation that is its `loss`. With `stops_early` a fooled image is left
    alone. Without `edges` no square touches the last row and column, and on tiny images the first guess in L2 has more tiles:
    as in the public implementations, to compare with numbers that were measured with them.
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
            hint = "eps is not negative; queries and restarts are 1 or more; p_init lies between 0 and 1"
            raise BadInput(f"{self} cannot be run", hint=hint)
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
        images = _FIRST[self.norm](batch.images, self.eps, batch.index, seed, restart, self.edges)
        logits = model(images)
        state = _Search(
            images,
            logits,
            ranking_scores(objective, logits, batch.labels),
            (logits.argmax(dim=1) == batch.labels).long(),
        )
        rows = torch.arange(len(batch.labels), device=batch.labels.device)
        draws_per_query = square.PLACE_DRAWS + batch.images.shape[1]
        for chunk, first in enumerate(range(1, self.queries, CHUNK), start=1):
            if self.stops_early:
                rows = (state.logits.argmax(dim=1) == batch.labels).nonzero().squeeze(1)
                if not len(rows):
                    break
            part = batch.select(rows)
            draws = rng.uniform(
                batch.images.new_empty(len(rows), CHUNK, draws_per_query),
                part.index,
                seed,
                restart,
                step=chunk,
            )
            part_objective = select_rows(objective, rows)
            part_state = state.at(rows)
            for query in range(first, min(first + CHUNK, self.queries)):
                moved = self._propose(part.images, part_state, query, draws[:, query - first])
                part_state = part_state.keep_stronger(model, moved, part.labels, part_objective)
            state.put(rows, part_state)
        return AttackResult(state.images, state.survived, state.logits)

    def _propose(self, images: Tensor, state: _Search, query: int, draws: Tensor) -> Tensor:
        """Return the best images so far with one more changed square each."""
        share = square.share(query, self.queries, self.p_init)
        return _NEXT[self.norm](images, state.images, self.eps, share, draws, self.edges)

"""Square attack: random search with squares, without gradients."""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from ...core import rng, square
from ...core.contexts import batch_limit, compute_logits
from ...core.losses import get_objective, ranking_scores, select_rows
from ...core.protocols import AttackResult, Batch, Objective
from ...core.restarts import is_stronger, run_restarts
from ...core.traits import AttackTraits
from ...errors import BadInput

QUERIES_PER_CHUNK = 100
"""Queries whose random numbers are computed at once. Results depend on it."""
MAX_QUERIES_AHEAD = 16
"""Queries of an image in a batch at most: those after a success have to be repeated."""
_START = {"linf": square.start_linf, "l2": square.start_l2}
_PROPOSE = {"linf": square.propose_linf, "l2": square.propose_l2}
_PROPOSE_CHANGES = {"linf": square.propose_changes_linf, "l2": square.propose_changes_l2}


@dataclass
class _Search:
    """State of a search: the best images so far, and the queries that each image survived."""

    images: Tensor
    logits: Tensor
    scores: Tensor
    """Ranking scores (N,) of the objective."""
    steps_survived: Tensor

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


@dataclass(frozen=True, eq=False)
class _Draws:
    """Random numbers of queries 1, 2, …, for one chunk of queries per image at a time."""

    batch: Batch
    seed: int
    restart: int
    values: Tensor
    """(N, queries per chunk, K)."""

    @classmethod
    def begin(cls, batch: Batch, seed: int, restart: int) -> "_Draws":
        # the position of a square, and one sign per channel
        per_query = square.PLACE_DRAWS + batch.images.shape[1]
        shape = (len(batch.labels), QUERIES_PER_CHUNK, per_query)
        return cls(batch, seed, restart, batch.images.new_empty(shape))

    def load(self, rows: Tensor, chunks: Tensor) -> None:
        """Compute the random numbers of these rows (M,), of one chunk (M,) each."""
        self.values[rows] = rng.uniform(
            self.values[rows], self.batch.index[rows], self.seed, self.restart, step=chunks
        )


def _chunk_of(queries: Tensor) -> Tensor:
    """Return the chunks of queries, counted from 1."""
    return (queries - 1) // QUERIES_PER_CHUNK + 1


@dataclass(frozen=True)
class Square:
    """Square attack (Andriushchenko et al. 2020, arXiv:1912.00049). (N, C, H, W) in [0, 1].

    Uses logits only, no gradients. Changes one random square at a time, which shrinks from the
    fraction `p_init` of the pixels, and keeps changes that raise the objective; in evaluation that
    is its `loss`. With `stops_early` a misclassified image is not changed any more. With
    `edges=false` squares are placed as in public implementations, for comparison with them.
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
        return AttackTraits(
            objective=self.loss, stops_early=self.stops_early, gathers_images=self.stops_early
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
        run = self._search_ahead if self.stops_early else self._search

        def search(rows: Tensor, restart: int) -> AttackResult:
            part = batch.select(rows)
            draws = _Draws.begin(part, seed, restart)
            return run(model, part, select_rows(objective, rows), draws)

        with torch.no_grad():
            return run_restarts(
                search,
                model,
                batch,
                objective,
                restarts=self.restarts,
                stops_early=self.stops_early,
            )

    def _begin(
        self, model: nn.Module, batch: Batch, objective: Objective, draws: _Draws
    ) -> _Search:
        """Return the starting points, which are the first query."""
        images = _START[self.norm](
            batch.images, self.eps, batch.index, draws.seed, draws.restart, self.edges
        )
        logits = compute_logits(model, images)
        return _Search(
            images,
            logits,
            ranking_scores(objective, logits, batch.labels),
            (logits.argmax(dim=1) == batch.labels).long(),
        )

    def _search(
        self, model: nn.Module, batch: Batch, objective: Objective, draws: _Draws
    ) -> AttackResult:
        """Run all queries of one restart."""
        state = self._begin(model, batch, objective, draws)
        rows = torch.arange(len(batch.labels), device=batch.labels.device)
        for fraction, numbers in square.query_phases(self.queries, self.p_init):
            for query in numbers:
                chunk, place = divmod(query - 1, QUERIES_PER_CHUNK)
                if place == 0:
                    draws.load(rows, torch.full_like(rows, chunk + 1))
                here = draws.values[:, place]
                moved = _PROPOSE[self.norm](
                    batch.images, state.images, self.eps, fraction, here, self.edges
                )
                state = state.keep_stronger(model, moved, batch.labels, objective)
        return AttackResult(state.images, state.steps_survived, state.logits)

    def _search_ahead(
        self, model: nn.Module, batch: Batch, objective: Objective, draws: _Draws
    ) -> AttackResult:
        """Query each image until it is misclassified, several times in one batch.

        Most queries fail. So the next queries of an image all start at its best image, and count
        up to the first one that succeeds: the result is that of one query after the other.
        """
        state = self._begin(model, batch, objective, draws)
        ahead = _QueriesAhead(
            batch,
            state,
            draws,
            next_query=torch.ones_like(batch.labels),
            loaded=torch.zeros_like(batch.labels),
        )
        limit = batch_limit(len(batch.labels))
        is_correct = state.logits.argmax(dim=1) == batch.labels
        for fraction, numbers in square.query_phases(self.queries, self.p_init):
            while True:
                is_active = is_correct & (ahead.next_query < numbers.stop)
                active = is_active.nonzero().squeeze(1)[:limit]
                if not len(active):
                    break
                rows, queries = ahead.list_queries(active, numbers.stop, limit)
                changed, moved = _PROPOSE_CHANGES[self.norm](
                    batch.images,
                    state.images,
                    rows,
                    self.eps,
                    fraction,
                    draws.values[rows, (queries - 1) % QUERIES_PER_CHUNK],
                    self.edges,
                )
                ahead.keep_first_success(model, rows, changed, moved, objective)
                is_correct[active] = state.logits[active].argmax(dim=1) == batch.labels[active]
        return AttackResult(state.images, state.steps_survived, state.logits)


@dataclass(frozen=True, eq=False)
class _QueriesAhead:
    """The next queries of each image, in a search until misclassification."""

    batch: Batch
    state: _Search
    draws: _Draws
    next_query: Tensor
    loaded: Tensor
    """The chunk (N,) of queries whose random numbers are loaded; 0 for none."""

    def list_queries(self, active: Tensor, stop: int, limit: int) -> tuple[Tensor, Tensor]:
        """Return rows and numbers (M,) of the next queries of active rows, at most `limit`.

        The queries of a row follow each other, are below `stop`, and belong to one chunk.
        """
        first = self.next_query[active]
        chunks = _chunk_of(first)
        stale = self.loaded[active] != chunks
        rows = active[stale]
        if len(rows):
            self.draws.load(rows, chunks[stale])
            self.loaded[rows] = chunks[stale]
        ends = (chunks * QUERIES_PER_CHUNK + 1).clamp(max=stop)
        # the rest of the batch: one more query for the first rows
        counts = torch.full_like(first, limit // len(active))
        counts[: limit % len(active)] += 1
        counts = torch.minimum(counts.clamp(max=MAX_QUERIES_AHEAD), ends - first)
        rows = active.repeat_interleave(counts)
        # the position of each query among those of its row
        begins = (counts.cumsum(dim=0) - counts).repeat_interleave(counts)
        offsets = torch.arange(len(rows), device=rows.device) - begins
        return rows, first.repeat_interleave(counts) + offsets

    def keep_first_success(
        self, model: nn.Module, rows: Tensor, changed: Tensor, moved: Tensor, objective: Objective
    ) -> None:
        """Query the model with images (K, C, H, W), the changed ones (K,) of the rows (M,).

        Keep the first one of each row that is stronger; later ones did not start from it.
        """
        state = self.state
        none = len(rows)
        first = torch.full_like(self.next_query, none)
        if len(changed):
            owners = rows[changed]
            labels = self.batch.labels[owners]
            logits = model(moved)
            scores = ranking_scores(select_rows(objective, owners), logits, labels)
            improves = is_stronger(
                logits, scores, state.logits[owners], state.scores[owners], labels
            )
            first.scatter_reduce_(0, owners[improves], changed[improves], "amin")
            taken = (first[owners] == changed).nonzero().squeeze(1)
            kept = owners[taken]
            state.images[kept] = moved[taken]
            state.logits[kept] = logits[taken]
            state.scores[kept] = scores[taken]
            # a query counts as survived if the best image so far is still correct
            is_wrong = (logits[taken].argmax(dim=1) != labels[taken]).long()
            state.steps_survived[kept] -= is_wrong
        # queries up to the success count, or all of a row
        is_run = (torch.arange(none, device=rows.device) <= first[rows]).long()
        self.next_query.index_add_(0, rows, is_run)
        state.steps_survived.index_add_(0, rows, is_run)

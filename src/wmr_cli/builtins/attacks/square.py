"""Square attack: random search with squares, without gradients."""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from ...core import noise, squares
from ...core.ascent import outranks
from ...core.contracts import Attacked, Objective
from ...core.objectives import at_rows, objective_named, ranks
from ...core.turns import restarted
from ...errors import BadInput

CHUNK = 100
"""Random numbers are drawn for so many queries at once."""
_FIRST = {"linf": squares.first_linf, "l2": squares.first_l2}
_NEXT = {"linf": squares.next_linf, "l2": squares.next_l2}


@dataclass
class _Search:
    """How far a search has come: images (N, C, H, W), logits (N, C), ranks (N,), and the queries that each survived."""

    images: Tensor
    logits: Tensor
    ranks: Tensor
    survived: Tensor

    def at(self, rows: Tensor) -> "_Search":
        return _Search(self.images[rows], self.logits[rows], self.ranks[rows], self.survived[rows])

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
        objective_named(self.loss)

    def __call__(
        self, model: nn.Module, images: Tensor, labels: Tensor, objective: Objective, index: Tensor, seed: int
    ) -> Attacked:
        def search(rows: Tensor, restart: int) -> Attacked:
            return self._search(model, images[rows], labels[rows], at_rows(objective, rows), index[rows], seed, restart)

        with torch.no_grad():
            return restarted(search, model, images, labels, objective, self.restarts, self.stops_early)

    def _search(
        self, model: nn.Module, images: Tensor, labels: Tensor, objective: Objective, index: Tensor, seed: int, restart: int
    ) -> Attacked:
        """All queries of one restart, a chunk at a time."""
        begin = _FIRST[self.norm](images, self.eps, index, seed, restart, self.edges)
        logits = model(begin)
        state = _Search(begin, logits, ranks(objective, logits, labels), (logits.argmax(dim=1) == labels).long())
        rows = torch.arange(len(labels), device=labels.device)
        for number, first in enumerate(range(1, self.queries, CHUNK), start=1):
            if self.stops_early:
                rows = (state.logits.argmax(dim=1) == labels).nonzero().squeeze(1)
                if not len(rows):
                    break
            count = squares.PLACE_DRAWS + images.shape[1]
            draws = noise.uniform(images.new_empty(len(rows), CHUNK, count), index[rows], seed, restart, step=number)
            part, given = state.at(rows), (images[rows], labels[rows], at_rows(objective, rows))
            for query in range(first, min(first + CHUNK, self.queries)):
                part = self._asked(model, *given, part, query, draws[:, query - first])
            state.put(rows, part)
        return Attacked(state.images, state.logits, state.survived)

    def _asked(
        self, model: nn.Module, images: Tensor, labels: Tensor, objective: Objective, state: _Search, query: int, draws: Tensor
    ) -> _Search:
        """One query: a changed square in every image, kept where it is better for the attack."""
        share = squares.share(query, self.queries, self.p_init)
        moved = _NEXT[self.norm](images, state.images, self.eps, share, draws, self.edges)
        logits = model(moved)
        rank = ranks(objective, logits, labels)
        takes = outranks(logits, rank, state.logits, state.ranks, labels)
        kept = torch.where(takes[:, None], logits, state.logits)
        return _Search(
            torch.where(takes[:, None, None, None], moved, state.images),
            kept,
            torch.where(takes, rank, state.ranks),
            state.survived + (kept.argmax(dim=1) == labels),
        )

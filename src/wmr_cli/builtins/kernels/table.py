"""`table`: weights from a CSV file."""

import csv
import io
import math
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from ...core.protocols import Evidence
from ...core.traits import KernelTraits
from ...errors import BadFile, BadInput
from ...reading import read_text
from ...spec import parse_number

MAX_INDEX = 2**63 - 1
"""The largest index that an int64 tensor can hold."""


@dataclass
class Table:
    """A weight per image from a CSV file with the columns `index` and `weight`.

    An image that is not listed has the weight `rest`. Indices are those in the rows of an
    evaluation and in `wmr attack`.

    Weight: the number in the table, without gradient
    Good for: attackers that want certain images: costs, priorities, or a given selection
    """

    path: Path
    rest: float = 0.0

    traits = KernelTraits(needs=frozenset({"index"}), differentiable=False)

    def __post_init__(self) -> None:
        if not (self.rest >= 0 and math.isfinite(self.rest)):
            raise BadInput(
                f"`rest` is {self.rest:g}", hint="a weight is a finite number of at least 0"
            )
        self._index, self._weights = _read_table(self.path)

    def __call__(self, evidence: Evidence) -> Tensor:
        assert evidence.index is not None  # a trait requires it
        return self._look_up(evidence.index.cpu()).log().to(evidence.logits)

    def count_weighted(self, index: Tensor) -> int:
        """Return how many of these images (N,) have a weight above zero."""
        return int((self._look_up(index) > 0).sum())

    def _look_up(self, index: Tensor) -> Tensor:
        # an index beyond the last one would point behind the table
        positions = torch.searchsorted(self._index, index).clamp(max=len(self._index) - 1)
        return torch.where(self._index[positions] == index, self._weights[positions], self.rest)


def _read_table(path: Path) -> tuple[Tensor, Tensor]:
    """Return indices in ascending order, and their weights."""
    try:
        # a spreadsheet may write a byte order mark
        text = read_text(path).removeprefix("\ufeff")
        rows = list(csv.DictReader(io.StringIO(text, newline="")))
        pairs = [(int(row["index"]), parse_number(row["weight"].strip())) for row in rows]
    except OSError as error:
        raise BadFile(
            f"cannot read {path}: {error.strerror}", hint="`path` of `table` is a CSV file"
        ) from None
    except KeyError as error:
        raise BadFile(
            f"{path} has no column {error.args[0]!r}", hint="the first line is: index,weight"
        ) from None
    except (ValueError, TypeError, AttributeError, csv.Error, BadInput) as error:
        raise BadFile(
            f"{path} is not a table of weights: {error}", hint="write lines such as 17,2.5"
        ) from None
    out_of_range = next((index for index, _ in pairs if not 0 <= index <= MAX_INDEX), None)
    if out_of_range is not None:
        raise BadFile(
            f"{path} lists the index {out_of_range}",
            hint="an index is an integer of at least 0, as in the rows of an evaluation",
        )
    weights = dict(pairs)
    problem = None
    if not pairs:
        problem = "is empty"
    elif len(weights) < len(pairs):
        problem = "lists an image twice"
    elif min(weights.values()) < 0:
        problem = "has a negative weight"
    if problem is not None:
        raise BadFile(f"{path} {problem}", hint="write one line per image, with a weight >= 0")
    index = sorted(weights)
    sorted_weights = [weights[image] for image in index]
    return torch.tensor(index), torch.tensor(sorted_weights, dtype=torch.float64)

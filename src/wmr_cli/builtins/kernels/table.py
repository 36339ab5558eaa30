"""Weights from a file: this attacker wants these images."""

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

LARGEST_INDEX = 2**63 - 1


@dataclass
class Table:
    """A weight per image from a CSV file with the columns `index` and `weight`; an image that is not listed weighs `rest`.

    An image's index is the one in the rows of an evaluation and in `wmr attack`.

    Weight: the number in the table, without gradient
    Good for: an attacker who wants these images: costs, priorities, or a choice made elsewhere
    """

    path: Path
    rest: float = 0.0

    traits = KernelTraits(needs=frozenset({"index"}), differentiable=False)

    def __post_init__(self) -> None:
        if not (self.rest >= 0 and math.isfinite(self.rest)):
            raise BadInput(
                f"rest is {self.rest:g}", hint="a weight is a finite number that is not negative"
            )
        self._index, self._weights = _read(self.path)

    def __call__(self, evidence: Evidence) -> Tensor:
        assert evidence.index is not None  # it is needed
        return self._weigh(evidence.index.cpu()).log().to(evidence.logits)

    def count_weighted(self, index: Tensor) -> int:
        """Return how many of these images (N,) have a weight above zero."""
        return int((self._weigh(index) > 0).sum())

    def _weigh(self, index: Tensor) -> Tensor:
        places = torch.searchsorted(self._index, index).clamp(max=len(self._index) - 1)
        return torch.where(self._index[places] == index, self._weights[places], self.rest)


def _read(path: Path) -> tuple[Tensor, Tensor]:
    """Indices in rising order, and their weights."""
    try:
        text = read_text(path).removeprefix("\ufeff")
        rows = list(csv.DictReader(io.StringIO(text, newline="")))
        pairs = [(int(row["index"]), parse_number(row["weight"].strip())) for row in rows]
    except OSError as error:
        raise BadFile(
            f"cannot read {path}: {error.strerror}", hint="table:path=… names a CSV file"
        ) from None
    except KeyError as error:
        raise BadFile(
            f"{path} has no column {error.args[0]!r}", hint="its first line is: index,weight"
        ) from None
    except (ValueError, TypeError, AttributeError, csv.Error, BadInput) as error:
        raise BadFile(
            f"{path} is not a table of weights: {error}", hint="lines read: 17,2.5"
        ) from None
    beyond = next((image for image, _ in pairs if not 0 <= image <= LARGEST_INDEX), None)
    if beyond is not None:
        raise BadFile(
            f"{path} lists an image {beyond}",
            hint="an index is a whole number from 0, as the rows of an evaluation have it",
        )
    weights = dict(pairs)
    if not pairs or len(weights) < len(pairs) or min(weights.values()) < 0:
        what = (
            "is empty"
            if not pairs
            else "lists an image twice"
            if len(weights) < len(pairs)
            else "has a negative weight"
        )
        raise BadFile(
            f"{path} {what}", hint="one line per image, with a weight that is not negative"
        )
    index = sorted(weights)
    return torch.tensor(index), torch.tensor(
        [weights[image] for image in index], dtype=torch.float64
    )

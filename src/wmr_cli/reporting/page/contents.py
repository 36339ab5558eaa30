"""What the page's script works on: the numbers of the records, and the rows behind them."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from ...errors import BadFile
from ...measures import correct
from ...storage.crafted import Crafted
from ...storage.records import Record, Rows, rows_of
from ..markup import printable
from . import pictures
from .arrays import Arrays, below_largest, smallest_whole
from .panels import Panel

MOST_CLASSES, MOST_LOGITS = 20, 2_000_000
"""Logits go into the page for so many classes, and so many logits in all."""

LOSS_ROWS = {"ce": "uniform/loss", "margin": "uniform/logit_margin"}


@dataclass(frozen=True)
class Model:
    """A record as the page needs it: what it says, its arrays by what they are, and its pictures."""

    facts: dict[str, Any]
    arrays: dict[str, NDArray[Any]]
    tiles: dict[str, Any] | None = None


@dataclass
class Contents:
    """Everything the script reads: a description, and the arrays it points into."""

    panels: list[dict[str, Any]] = field(default_factory=list)
    arrays: Arrays = field(default_factory=Arrays)
    problems: list[BadFile] = field(default_factory=list)

    @property
    def is_plotted(self) -> bool:
        """Whether any model has rows that a plot can show."""
        models = (model for panel in self.panels for model in panel["models"])
        return any("prediction" in (model["rows"] or {}) for model in models)


def collected(panels: Sequence[Panel]) -> Contents:
    """The panels with all rows that could be read."""
    made = Contents()
    saved = pictures.saved_images([pair for panel in panels for pair in panel.found])
    taken = [list(_models(panel, saved, made.problems)) for panel in panels]
    logits = sum(model.arrays["logits"].size for models in taken for model in models if "logits" in model.arrays)
    for panel, models in zip(panels, taken, strict=True):
        described = []
        for model in models:
            kept = {name: values for name, values in model.arrays.items() if name != "logits" or logits <= MOST_LOGITS}
            rows = {name: made.arrays.add(values) for name, values in kept.items()}
            described.append({**model.facts, "rows": rows or None, "tiles": model.tiles})
        made.panels.append(_visible({"title": panel.title, "classes": _classes(panel, models), "models": described}))
    return made


def _visible(value: Any) -> Any:
    """The same with every text in it as the tables print it: the script shows texts as they are."""
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, dict):
        return {name: _visible(part) for name, part in value.items()}
    return [_visible(part) for part in value] if isinstance(value, list) else value


def _models(panel: Panel, saved: dict[Path, Crafted], problems: list[BadFile]) -> Iterator[Model]:
    """Each record of a panel; one whose rows cannot be read has none, and its problem goes to `problems`."""
    for name, (file, record) in zip(panel.names, panel.found, strict=True):
        try:
            rows = rows_of(file, record)
        except BadFile as problem:
            problems.append(problem)
            yield Model({**_facts(name, record), "problem": str(problem)}, {})
            continue
        tiles = pictures.tiles(saved[file], rows, pictures.BUDGET // len(saved)) if file in saved else None
        yield Model(_facts(name, record), _arrays(rows, record), tiles)


def _facts(name: str, record: Record) -> dict[str, Any]:
    """What the record itself says. Fractions, not percent."""
    return {
        "name": name,
        "id": record.id,
        "defense": record.checkpoint.defense,
        "alpha_train": record.checkpoint.alpha_train,
        "kernel": record.kernel,
        "a_nat": msgspec.to_builtins(record.a_nat),
        "a_rob": msgspec.to_builtins(record.a_rob),
        "by_alpha": msgspec.to_builtins(record.by_alpha),
        "dro": msgspec.to_builtins(record.dro),
        "loss": _loss_name(record),
    }


def _loss_name(record: Record) -> str:
    """Of which loss the worst case in a ball is."""
    return record.dro[0].attack_loss if record.dro else str(record.config.get("dro_loss", "ce"))


def _arrays(rows: Rows, record: Record) -> dict[str, NDArray[Any]]:
    """The rows of the unweighted attack, and which clean images were right. Nothing where rows hold no images."""
    if "label" not in rows or not len(rows["label"]):
        return {}
    made = {"index": smallest_whole(rows["index"]), "label": smallest_whole(rows["label"])}
    if "clean/prediction" in rows:
        made["clean"] = np.packbits(correct(rows, "clean"), bitorder="little")
    if "uniform/prediction" in rows:
        made["prediction"] = smallest_whole(rows["uniform/prediction"])
    if "uniform/margin" in rows:
        made["margin"] = rows["uniform/margin"].astype(np.float64)
    row = LOSS_ROWS.get(_loss_name(record))
    # of the worst of several attacks the image of lowest margin is kept, which need not be that of largest loss
    if row in rows and (record.attack.of is None or record.dro):
        made["loss"] = rows[row] if row == LOSS_ROWS["ce"] else -rows[row]
    logits = rows.get("uniform/logits")
    if logits is not None and logits.shape[1] <= MOST_CLASSES and record.kernel == "exp":
        made["logits"] = below_largest(logits)
    return made


def _classes(panel: Panel, models: Sequence[Model]) -> list[dict[str, Any]]:
    """Labels that have images, with their names where some record knows them."""
    names = {row.label: row.name for record in panel.records for row in record.per_class if row.name is not None}
    labels = sorted({int(label) for model in models if "label" in model.arrays for label in np.unique(model.arrays["label"])})
    return [{"label": label, "name": names.get(label)} for label in labels]

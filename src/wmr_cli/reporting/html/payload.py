"""The data of the HTML page: facts of the records as JSON, rows as arrays, thumbnails.

The arrays are little-endian. Equal arrays are stored once, and all of them are compressed into
one piece of base64 text.
"""

import base64
import gzip
import hashlib
import io
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import ArrayLike, NDArray
from PIL import Image

from ...errors import BadFile
from ...measures import MARGIN_KERNEL, VerifiedMargins, calibrate, is_correct
from ...spec import format_number
from ...storage.adversarial_images import AdversarialImageFile, find_adversarial_images
from ...storage.records import Record, Rows, load_record_rows
from ..comparison import ResampledAccuracies, find_bold_cells
from ..grouping import ComparisonGroup, SeedGroup, group_by_setting
from ..rows import (
    ALL_ACCURACIES,
    ATTACK_SEPARATOR,
    ModelKey,
    ReportRow,
    attack_name,
    list_combined_attacks,
    list_trainings,
    make_group_rows,
    merge_unweighted_rows,
    model_key,
    row_name,
    run_name,
)
from ..tables import main
from ..tables.escaping import printable

RecordFiles = Sequence[tuple[Path, Record]]

# every array starts at a multiple of this: a typed array of the script is a view in place
ALIGNMENT_BYTES = 8

# the page stays below 10 MB for ten evaluations of 10,000 images
MAX_CLASSES_WITH_LOGITS = 20
MAX_LOGITS = 2_000_000

# half precision reaches -65504; a probability of exp(-6e4) is 0 anyway
SMALLEST_LOGIT = -6e4

LOSS_ROWS = {"ce": "uniform/loss", "margin": "uniform/logit_margin"}

# longest side of a tile in pixels; larger images are shrunk
MAX_TILE_SIDE = 64

# uncompressed pixels of all sheets of a page together
MAX_TILE_BYTES = 700_000

SHEET_COLUMNS = 16


# the cells that describe a training, beside the run's name
TRAINING_COLUMNS = ("defense", "kernel_train", "α_train", "seeds")


@dataclass(frozen=True)
class Method:
    """A training under one attack: a row of the page, with the records of each seed."""

    name: str
    entry: SeedGroup
    # of the colour, the dashes and the mark
    style: int

    @property
    def rows(self) -> list[ReportRow]:
        """A row of the tables per alpha."""
        return list(merge_unweighted_rows(make_group_rows(self.entry)))

    @property
    def records(self) -> list[Record]:
        return [record for model in self.entry for record in model]


@dataclass(frozen=True)
class ReportPanel:
    """Comparable records with their files and distinct names, ordered by method."""

    title: str
    found: list[tuple[Path, Record]]
    names: list[str]
    methods: list[Method]
    group: ComparisonGroup

    @property
    def records(self) -> list[Record]:
        return [record for _, record in self.found]

    @property
    def has_several_seeds(self) -> bool:
        """Whether some method has several training seeds."""
        return any(len(method.entry) > 1 for method in self.methods)


def group_into_panels(found: RecordFiles) -> list[ReportPanel]:
    """Group comparable records, in the order of their first record."""
    files = {record.id: file for file, record in found}
    all_records = [record for _, record in found]
    by_id = {record.id: record for record in all_records}
    trainings = list_trainings(all_records)
    styles = {key: number for number, training in enumerate(trainings) for key in training}
    groups = group_by_setting(all_records)
    titles = _make_distinct([_panel_title(group.records[0], by_id) for group in groups])
    return [
        ReportPanel(
            title,
            [(files[record.id], record) for record in group.records],
            _model_names(group.records),
            _list_methods(group, styles),
            group,
        )
        for title, group in zip(titles, groups, strict=True)
    ]


def _list_methods(group: ComparisonGroup, styles: Mapping[ModelKey, int]) -> list[Method]:
    """List what has rows of its own in the tables, in their order.

    A single seed has a row for each of its records.
    """
    entries: list[SeedGroup] = []
    for entry in group.entries:
        entries += [entry] if len(entry) > 1 else [((record,),) for record in entry[0]]
    model_names = dict(
        zip(
            (record.id for record in group.records),
            _model_names(group.records),
            strict=True,
        )
    )
    names = [
        row_name(ReportRow(tuple(model[0] for model in entry), None))
        if len(entry) > 1
        else model_names[entry[0][0].id]
        for entry in entries
    ]
    return [
        Method(name, entry, styles[model_key(entry[0][0])])
        for name, entry in zip(_make_distinct(names), entries, strict=True)
    ]


def _panel_title(record: Record, by_id: Mapping[str, Record]) -> str:
    """Return for example `digits test, 550 images · linf ε-ball, ε 0.15 · pgd:steps=20`."""
    data = record.dataset
    attacks = list_combined_attacks(record, by_id)
    parts = [
        f"{data.name} {data.split}, {data.n} images",
        f"{record.threat.norm} ε-ball, ε {format_number(record.threat.eps)}",
        f"worst of {ATTACK_SEPARATOR.join(attacks)}" if attacks else attack_name(record),
    ]
    if record.attack.seed:
        parts.append(f"attack seed {record.attack.seed}")
    if record.kernel != MARGIN_KERNEL:
        parts.append(f"kernel {record.kernel}")
    return " · ".join(parts)


def _model_names(records: Sequence[Record]) -> list[str]:
    """Return the run names; with the record's id where several records share a run name."""
    runs = [run_name(record) for record in records]
    counts = Counter(runs)
    names = [
        run if counts[run] == 1 else f"{run}, {record.id[:8]}"
        for run, record in zip(runs, records, strict=True)
    ]
    return _make_distinct(names)


def _make_distinct(texts: Sequence[str]) -> list[str]:
    """Add a number to repeated texts: `a`, `a (2)`."""
    seen: Counter[str] = Counter()
    distinct = []
    for text in texts:
        seen[text] += 1
        distinct.append(text if seen[text] == 1 else f"{text} ({seen[text]})")
    return distinct


@dataclass
class PackedArrays:
    """Arrays by number. An array that is added twice, such as shared labels, is stored once."""

    parts: list[bytes] = field(default_factory=list)
    descriptions: list[dict[str, Any]] = field(default_factory=list)
    numbers: dict[str, int] = field(default_factory=dict)
    length: int = 0

    def add(self, values: NDArray[Any]) -> int:
        """Store the flattened values; return the number by which the script finds them."""
        # the type belongs to the key: equal bytes of another type are another array
        kind = f"{values.dtype.kind}{values.dtype.itemsize}"
        content = np.ascontiguousarray(values, dtype=values.dtype.newbyteorder("<")).tobytes()
        key = f"{kind} {hashlib.sha256(content).hexdigest()}"
        if key not in self.numbers:
            self.numbers[key] = len(self.descriptions)
            self.descriptions.append({"type": kind, "start": self.length, "length": values.size})
            padding = bytes(-len(content) % ALIGNMENT_BYTES)
            self.parts += [content, padding]
            self.length += len(content) + len(padding)
        return self.numbers[key]

    def to_base64(self) -> str:
        """Return all arrays, compressed."""
        return compress_to_base64(b"".join(self.parts))


def compress_to_base64(content: bytes) -> str:
    """Compress with gzip. Equal bytes give equal text, because the header has no date."""
    return base64.b64encode(gzip.compress(content, compresslevel=9, mtime=0)).decode("ascii")


def to_smallest_uint(values: ArrayLike) -> NDArray[Any]:
    """Convert non-negative integers to the smallest type that holds them."""
    numbers = np.asarray(values)
    return numbers.astype(np.min_scalar_type(int(numbers.max(initial=0))))


def to_half_logits(logits: ArrayLike) -> NDArray[np.float16]:
    """Subtract each image's largest logit, and round to half precision. (N, C) to the same.

    Probabilities depend on differences only, and those near the largest logit are most precise.
    """
    values = np.asarray(logits, dtype=np.float64)
    shifted = values - values.max(axis=1, keepdims=True)
    return np.asarray(np.maximum(shifted, SMALLEST_LOGIT), dtype=np.float16)


@dataclass(frozen=True)
class ModelPayload:
    """One record for the page: its facts, its arrays by name, its"""

    facts: dict[str, Any]
    arrays: dict[str, NDArray[Any]]
    tiles: dict[str, Any] | None = None


@dataclass
class Payload:
    """Everything that the script reads, and the files that could not be read for it."""

    panels: list[dict[str, Any]] = field(default_factory=list)
    arrays: PackedArrays = field(default_factory=PackedArrays)
    problems: list[BadFile] = field(default_factory=list)

    @property
    def has_plots(self) -> bool:
        """Whether any model has rows that a plot can show."""
        models = [model for panel in self.panels for model in panel["models"]]
        return any("prediction" in (model["rows"] or {}) for model in models)


def build_payload(panels: Sequence[ReportPanel], resampled: ResampledAccuracies) -> Payload:
    """Collect the facts and rows of all panels."""
    payload = Payload()
    saved = find_saved_images([pair for panel in panels for pair in panel.found])
    models_by_panel = [list(_load_models(panel, saved, payload.problems)) for panel in panels]
    # all or none: models could not be compared at other temperatures
    has_logits = _count_logits(models_by_panel) <= MAX_LOGITS
    for panel, models in zip(panels, models_by_panel, strict=True):
        entries = []
        for model in models:
            rows = {
                name: payload.arrays.add(values)
                for name, values in model.arrays.items()
                if name != "logits" or has_logits
            }
            entries.append({**model.facts, "rows": rows or None, "tiles": model.tiles})
        facts = {
            "title": panel.title,
            "classes": _list_classes(panel, models),
            "models": entries,
            **_list_method_facts(panel),
            "bold": _list_bold(panel, resampled),
        }
        payload.panels.append({name: _make_printable(value) for name, value in facts.items()})
    return payload


def _list_method_facts(panel: ReportPanel) -> dict[str, Any]:
    """Return the methods with the numbers of their models, and the columns that describe them."""
    # a row has only those seeds that were evaluated at its alpha
    cells = [
        {**main.format_row(method.rows[0]), "seeds": str(len(method.entry))}
        for method in panel.methods
    ]
    columns = [
        name for name in TRAINING_COLUMNS if main.is_informative(name, {row[name] for row in cells})
    ]
    numbers = iter(range(len(panel.found)))
    methods = [
        {
            "name": method.name,
            "style": method.style,
            "cells": {name: row[name] for name in columns},
            "seeds": [[next(numbers) for _ in model] for model in method.entry],
        }
        for method, row in zip(panel.methods, cells, strict=True)
    ]
    return {"columns": columns, "methods": methods}


def _list_bold(panel: ReportPanel, resampled: ResampledAccuracies) -> list[dict[str, Any]]:
    """Return the bold methods of the main table for each alpha at which it has all of them."""
    rows = [(number, row) for number, method in enumerate(panel.methods) for row in method.rows]
    cells = find_bold_cells(panel.group, resampled)
    found = []
    for alpha in dict.fromkeys(row.alpha_test for _, row in rows):
        at_alpha = {
            place: (number, row)
            for place, (number, row) in enumerate(rows)
            if row.alpha_test == alpha
        }
        complete = [
            number
            for number, row in at_alpha.values()
            if row.seeds == len(panel.methods[number].entry)
        ]
        if complete != list(range(len(panel.methods))):
            continue
        bold = {
            name: [number for place, (number, _) in at_alpha.items() if (place, name) in cells]
            for name in ALL_ACCURACIES
            if all(row.accuracy(name) for _, row in at_alpha.values())
        }
        found.append({"alpha": alpha, "methods": bold})
    return found


def _count_logits(models_by_panel: Sequence[Sequence[ModelPayload]]) -> int:
    models = [model for models in models_by_panel for model in models]
    return sum(model.arrays["logits"].size for model in models if "logits" in model.arrays)


def _make_printable(value: object) -> object:
    """Escape every text of a JSON value as the tables do; the script shows texts unchanged."""
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, dict):
        return {name: _make_printable(part) for name, part in value.items()}
    if isinstance(value, list):
        return [_make_printable(part) for part in value]
    return value


def _load_models(
    panel: ReportPanel, saved: dict[Path, AdversarialImageFile], problems: list[BadFile]
) -> Iterator[ModelPayload]:
    """Load each record of a panel. Unreadable rows are added to `problems` and left out."""
    for name, (file, record) in zip(panel.names, panel.found, strict=True):
        facts = _record_facts(name, record)
        try:
            rows = load_record_rows(file, record)
        except BadFile as problem:
            problems.append(problem)
            yield ModelPayload({**facts, "problem": str(problem)}, {})
            continue
        tiles = None
        if file in saved:
            # all records share the page's budget
            budget = MAX_TILE_BYTES // len(saved)
            tiles = make_tiles(saved[file], rows, budget)
        arrays = _select_rows(rows, record)
        if "logits" in arrays:
            facts["temperature"] = calibrate(rows, record.kernel).temperature
        yield ModelPayload(facts, arrays, tiles)


def _record_facts(name: str, record: Record) -> dict[str, Any]:
    """Return the record's facts; accuracies are fractions, not percent."""
    return {
        "name": name,
        "id": record.id,
        "seed": record.checkpoint.seed,
        "kernel": record.kernel,
        "has_margin_kernel": record.kernel == MARGIN_KERNEL,
        "a_nat": msgspec.to_builtins(record.a_nat),
        "a_rob": msgspec.to_builtins(record.a_rob),
        "by_alpha": msgspec.to_builtins(record.by_alpha),
        "dro": msgspec.to_builtins(record.dro),
        "bounds": msgspec.to_builtins(record.bounds),
        "loss": _dro_loss(record),
        "temperature": record.temperature,
    }


def _dro_loss(record: Record) -> str:
    """Return the loss whose worst case in the χ² ball the record is about."""
    if record.dro:
        return record.dro[0].attack_loss
    return str(record.config.get("dro_loss", "ce"))


def _select_rows(rows: Rows, record: Record) -> dict[str, NDArray[Any]]:
    """Return the rows of the unweighted attack, and which clean images were correct."""
    if "label" not in rows or not len(rows["label"]):
        return {}
    arrays = {"index": to_smallest_uint(rows["index"]), "label": to_smallest_uint(rows["label"])}
    if "clean/prediction" in rows:
        # a bit per image instead of a prediction
        arrays["clean"] = np.packbits(is_correct(rows, "clean"), bitorder="little")
    if "uniform/prediction" in rows:
        arrays["prediction"] = to_smallest_uint(rows["uniform/prediction"])
    if "uniform/margin" in rows:
        # float64: the page must reproduce the recorded numbers
        arrays["margin"] = rows["uniform/margin"].astype(np.float64)
    loss_row = LOSS_ROWS.get(_dro_loss(record))
    # of several attacks the image of lowest margin is stored, not that of largest loss
    if loss_row in rows and (record.attack.of is None or record.dro):
        sign = 1 if loss_row == LOSS_ROWS["ce"] else -1
        arrays["loss"] = sign * rows[loss_row]
    arrays |= _select_verified_rows(rows)
    # the page computes weights of the margin kernel only, others need no logits
    if "uniform/logits" in rows and record.kernel == MARGIN_KERNEL:
        logits = rows["uniform/logits"]
        if logits.shape[1] <= MAX_CLASSES_WITH_LOGITS:
            arrays["logits"] = to_half_logits(logits)
    return arrays


def _select_verified_rows(rows: Rows) -> dict[str, NDArray[Any]]:
    """Return what the bounds of accuracies need; empty without a verifier."""
    margins = VerifiedMargins.of(rows)
    if margins is None:
        return {}
    return {
        "lowest": margins.lower,
        "highest": margins.upper,
        "certified": np.packbits(margins.certified, bitorder="little"),
        "broken": np.packbits(margins.broken, bitorder="little"),
    }


def _list_classes(panel: ReportPanel, models: Sequence[ModelPayload]) -> list[dict[str, Any]]:
    """Return the labels that have images, with names where some record has them."""
    names: dict[int, str] = {}
    for record in panel.records:
        # a record without per-class numbers has no class names
        names |= {row.label: row.name for row in record.per_class if row.name is not None}
    labels: set[int] = set()
    for model in models:
        if "label" in model.arrays:
            labels |= {int(label) for label in np.unique(model.arrays["label"])}
    return [{"label": label, "name": names.get(label)} for label in sorted(labels)]


def find_saved_images(found: Sequence[tuple[Path, Record]]) -> dict[Path, AdversarialImageFile]:
    """Return the saved images of each record that has some, by the record's file."""
    saved = {file: find_adversarial_images(file, record) for file, record in found}
    return {file: images for file, images in saved.items() if images is not None}


def make_tiles(saved: AdversarialImageFile, rows: Rows, budget: int) -> dict[str, Any] | None:
    """Return a sheet as PNG and the row positions of its images; None without images.

    Images of smallest margin come first, because the attacker prefers them.
    """
    if "uniform/prediction" not in rows:
        return None
    width, height = _tile_size(saved)
    bytes_per_tile = width * height * min(saved.shape[0], 3)
    matches = _match_rows(saved, rows)[: budget // bytes_per_tile]
    if not matches:
        return None
    pixels = saved.read_images([position for _, position in matches])
    tiles = [_make_tile(image, (width, height)) for image in pixels]
    return {
        "sheet": "data:image/png;base64," + base64.b64encode(_make_sheet(tiles)).decode("ascii"),
        "positions": [row for row, _ in matches],
        "columns": SHEET_COLUMNS,
        "width": width,
        "height": height,
    }


def _match_rows(saved: AdversarialImageFile, rows: Rows) -> list[tuple[int, int]]:
    """Return (position among the rows, position in the file) by increasing margin.

    An image with another prediction than its row belongs to another attack, and is left out.
    """
    positions = {int(index): position for position, index in enumerate(saved.index)}
    order = np.arange(len(rows["index"]))
    if "uniform/margin" in rows:
        order = np.argsort(rows["uniform/margin"], kind="stable")
    matches = []
    for row in order.tolist():
        position = positions.get(int(rows["index"][row]))
        if position is None:
            continue
        if saved.prediction[position] == rows["uniform/prediction"][row]:
            matches.append((row, position))
    return matches


def _tile_size(saved: AdversarialImageFile) -> tuple[int, int]:
    """Return width and height of a tile."""
    _, height, width = saved.shape
    scale = min(1.0, MAX_TILE_SIDE / max(height, width))
    return max(1, round(width * scale)), max(1, round(height * scale))


def _make_tile(pixels: NDArray[np.uint8], size: tuple[int, int]) -> Image.Image:
    """Convert (C, H, W) to grey or colour; unless there are three channels, show the first."""
    is_colour = len(pixels) == 3
    values = np.ascontiguousarray(np.moveaxis(pixels, 0, -1)) if is_colour else pixels[0]
    tile = Image.fromarray(values)
    return tile if tile.size == size else tile.resize(size)


def _make_sheet(tiles: Sequence[Image.Image]) -> bytes:
    """Arrange tiles row by row, as PNG."""
    width, height = tiles[0].size
    rows = -(-len(tiles) // SHEET_COLUMNS)
    sheet = Image.new(tiles[0].mode, (SHEET_COLUMNS * width, rows * height))
    for number, tile in enumerate(tiles):
        row, column = divmod(number, SHEET_COLUMNS)
        sheet.paste(tile, (column * width, row * height))
    stream = io.BytesIO()
    # PNG, because JPEG would remove the perturbation
    sheet.save(stream, format="PNG", optimize=True)
    return stream.getvalue()

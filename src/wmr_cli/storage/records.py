"""Evaluation records and their per-image rows.

A record is a JSON file. Its rows are a safetensors file of the same name, with one entry per image
in every tensor. `content_hash` identifies tensors by their values. Nothing here imports torch,
because `wmr report` reads records and has to start quickly.
"""

import hashlib
import json
import math
import re
import tomllib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from importlib import resources
from operator import itemgetter
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np
import safetensors.numpy
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

from ..errors import BadFile
from ..measures import Bounds, Estimate, find_contradictions
from ..reading import check_regular, decode_json, is_folder, read_bytes
from .atomic import write_atomically, write_text

SCHEMA = 1
RECORD_NAME = re.compile("[0-9a-f]{16}")
# Records beyond these limits are damaged or forged. They are refused before a report allocates
# arrays of that size.
MAX_IMAGES = 10**10
MAX_CLASSES = 10**6
MAX_EPS = 1e9
WRITTEN_BY = "records are written by `wmr evaluate`"
Rows = dict[str, NDArray[Any]]
"""One array per quantity, such as `uniform/margin`, with one entry per image.

`uniform` is the attack with equal weights, the unweighted one.
"""
PASSES_CHECK = "two passes agree"
"""Name of the check that fails for a stochastic model."""
INTEGER_ROWS = frozenset({"index", "label", "prediction"})
FLOAT_ROWS = frozenset({"margin", "logit_margin", "loss", "logits", "log_weight"})


class Struct(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A part of a record; unknown keys are refused."""


class CheckpointFacts(Struct, frozen=True, kw_only=True):
    """Which weights were evaluated.

    `epoch` and `config` are null for imported weights and in records of wmr 0.1.0.
    """

    path: str
    sha256: str
    model: str
    defense: str
    kernel: str
    alpha_train: float | None
    seed: int
    epoch: int | None = None
    config: dict[str, Any] | None = None


class DatasetFacts(Struct, frozen=True, kw_only=True):
    """Which images were evaluated."""

    name: str
    split: str
    n: int
    sha256: str
    indices: list[int] | None = None


class Threat(Struct, frozen=True, kw_only=True):
    """The ε-ball of the attack."""

    norm: str
    eps: float


class AttackFacts(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How the images were attacked."""

    spec: str
    seed: int
    restarts: int
    of: list[str] | None = None
    eot: int = 1
    draws: int | None = None
    draw_rule: str = "mean"


class AlphaRow(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Accuracies at one alpha_test; null if not requested or not available."""

    alpha_test: float | None
    a_sa: Estimate | None
    a_tr: Estimate | None
    a_cal: Estimate | None = None


class CalibrationFacts(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The temperature behind A_cal."""

    temperature: float | None
    problem: str | None = None


class DroRow(Struct, frozen=True, kw_only=True):
    """The worst case over weights of images in a χ² ball around equal weights."""

    rho: float
    attack_loss: str
    loss: float
    accuracy: float
    worst_accuracy: float
    ess: float
    zero_weights: int
    unique: bool


class ClassAlphaRow(Struct, frozen=True, kw_only=True):
    """A_sa and weight of one class at one alpha_test."""

    alpha_test: float | None
    a_sa: Estimate | None
    share: float | None


class ClassRow(Struct, frozen=True, kw_only=True):
    """Accuracies of one class, with Wilson and logit-delta intervals."""

    label: int
    name: str | None
    n: int
    a_nat: Estimate
    a_rob: Estimate | None
    joint: Estimate
    by_alpha: list[ClassAlphaRow]


class RepeatAlphaRow(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Weighted accuracies of one repetition, without intervals."""

    alpha_test: float | None
    a_sa: float | None
    a_tr: float | None
    a_cal: float | None = None


class RepeatRow(Struct, frozen=True, kw_only=True):
    """The same evaluation with one seed of the attack."""

    seed: int
    a_rob: float | None
    by_alpha: list[RepeatAlphaRow]


class Check(Struct, frozen=True):
    """The result of one sanity check."""

    name: str
    value: float
    verdict: Literal["pass", "fail", "note"]
    text: str


class Record(Struct, frozen=True, kw_only=True):
    """One checkpoint under one attack at one eps, for all values of alpha."""

    schema: int = SCHEMA
    id: str
    created: str
    wmr: str
    checkpoint: CheckpointFacts
    dataset: DatasetFacts
    threat: Threat
    attack: AttackFacts
    kernel: str
    device: str
    deterministic: bool | None = None
    precision: str
    a_nat: Estimate
    a_rob: Estimate | None
    by_alpha: list[AlphaRow]
    # UNSET is not written, so that records without A_cal stay as they are
    calibration: CalibrationFacts | msgspec.UnsetType = msgspec.UNSET
    dro: list[DroRow] = []
    per_class: list[ClassRow] = []
    checks: list[Check] = []
    bounds: Bounds | None = None
    repeats: list[RepeatRow] = []
    seconds: float
    images_per_second: float
    versions: dict[str, str]
    plugins: dict[str, str]
    config: dict[str, Any]

    def to_json(self) -> str:
        return msgspec.json.format(msgspec.json.encode(self), indent=1).decode()

    @classmethod
    def from_json(cls, text: str | bytes) -> "Record":
        return decode_json(text, cls)

    @property
    def temperature(self) -> float | None:
        """The temperature behind A_cal; None if it was not fitted."""
        return self.calibration.temperature if self.calibration else None


class _AnyVersion(msgspec.Struct):
    """The part of a record that every version of the format has."""

    schema: int = SCHEMA


def record_id(determining: Mapping[str, Any]) -> str:
    """Return a short hash of everything that determines a result."""
    # sorted keys: the id must not depend on the order in which the caller fills the mapping
    text = json.dumps(determining, sort_keys=True, allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def rows_path(record_path: Path) -> Path:
    """Return the path of the rows of a record."""
    return record_path.with_suffix(".safetensors")


def save(path: Path, record: Record, rows: Rows) -> None:
    """Write a record and its rows."""
    # rows first: a crash in between leaves rows without a record, which readers ignore
    save_rows(rows_path(path), rows)
    write_text(path, record.to_json() + "\n")


def load(path: Path) -> Record:
    """Read a record; raise BadFile for a file that is not one."""
    try:
        content = read_bytes(path)
        # the schema first: a later one may have fields that this version does not know
        schema = decode_json(content, _AnyVersion).schema
        if schema != SCHEMA:
            raise BadFile(
                f"{path} has schema {schema}",
                hint=f"this version reads schema {SCHEMA}: update wmr",
            )
        record = Record.from_json(content)
    except OSError as error:
        raise BadFile(
            f"cannot read {path}: {error.strerror}", hint=f"name a record; {WRITTEN_BY}"
        ) from None
    # msgspec's own errors are ValueErrors as well
    except ValueError as error:
        raise BadFile(f"{path} is not an evaluation record: {error}", hint=WRITTEN_BY) from None
    problem = next(_find_impossible_values(record), None)
    if problem is not None:
        raise BadFile(
            f"{path} is not an evaluation record: {problem}", hint=f"evaluate again; {WRITTEN_BY}"
        )
    return record


def _find_impossible_values(record: Record) -> Iterator[str]:
    """Yield a description of each value that an evaluation cannot have measured."""
    data = record.dataset
    if not 1 <= data.n <= MAX_IMAGES:
        yield f"its number of images is {data.n}"
    if data.indices is not None and (len(data.indices) != data.n or min(data.indices) < 0):
        yield f"its indices are not those of {data.n} images"
    # NaN fails every comparison, so that it is refused as well
    if not 0 <= record.threat.eps <= MAX_EPS:
        yield f"its eps is {record.threat.eps}"
    for alpha in _list_alphas(record):
        if alpha is not None and not math.isfinite(alpha):
            yield f"it has an alpha of {alpha}"
    for row in record.per_class:
        if not (0 <= row.label < MAX_CLASSES and 0 <= row.n <= data.n):
            yield f"its class {row.label} has {row.n} images"
    for estimate in _list_estimates(record):
        is_ordered = 0 <= estimate.low <= estimate.high <= 1
        if not (is_ordered and 0 <= estimate.value <= 1):
            yield (
                f"{estimate.value} [{estimate.low}, {estimate.high}] "
                "is not a fraction with its interval"
            )
    for bounds in record.bounds.list_pairs() if record.bounds else ():
        if not 0 <= bounds.low <= bounds.lower <= bounds.upper <= bounds.high <= 1:
            yield f"{bounds.lower} and {bounds.upper} are not bounds of a fraction"
    temperature = record.temperature
    if temperature is not None and not 0 < temperature < math.inf:
        yield f"its temperature is {temperature}"
    if not isinstance(record.config.get("metrics", []), list):
        yield "the metrics of its config are not a list"


def _list_alphas(record: Record) -> Iterator[float | None]:
    """Yield every alpha in a record."""
    yield record.checkpoint.alpha_train
    for row in record.by_alpha:
        yield row.alpha_test
    for class_row in record.per_class:
        for class_alpha in class_row.by_alpha:
            yield class_alpha.alpha_test
    for repeat in record.repeats:
        for repeat_alpha in repeat.by_alpha:
            yield repeat_alpha.alpha_test


def _list_estimates(record: Record) -> Iterator[Estimate]:
    """Yield every fraction with an interval in a record."""
    found = [record.a_nat, record.a_rob]
    for row in record.by_alpha:
        found += [row.a_sa, row.a_cal, row.a_tr]
    for class_row in record.per_class:
        found += [class_row.a_nat, class_row.a_rob, class_row.joint]
        found += [class_alpha.a_sa for class_alpha in class_row.by_alpha]
    for estimate in found:
        if estimate is not None:
            yield estimate


def drop_logits(rows: Rows, keep: Collection[str] = ()) -> Rows:
    """Return rows without logits, except under the prefixes to keep.

    Predictions, margins and losses are exact without them. Only the scale of the logits cannot be
    changed afterwards.
    """
    return {
        name: values
        for name, values in rows.items()
        if _quantity_of(name) != "logits" or name.rpartition("/")[0] in keep
    }


def save_rows(path: Path, rows: Rows) -> None:
    """Write rows with their hash."""
    # safetensors refuses strided arrays
    own = {name: np.ascontiguousarray(values) for name, values in rows.items()}
    header = {"content_sha256": _rows_hash(own)}
    write_atomically(
        path, lambda temporary: safetensors.numpy.save_file(own, temporary, metadata=header)
    )


def load_rows(path: Path) -> Rows:
    """Return the rows of a file, checksum verified; raise BadFile for any other file."""
    try:
        # safe_open would block on a FIFO
        check_regular(path)
        with safe_open(path, framework="numpy") as file:
            header = file.metadata() or {}
            rows = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a mapping
    except OSError as error:
        raise BadFile(
            f"the rows {path} cannot be read: {error.strerror or error}", hint="evaluate again"
        ) from None
    # the last two are raised for types that NumPy does not have, such as bfloat16
    except (SafetensorError, UnicodeDecodeError, TypeError, AttributeError) as error:
        raise BadFile(f"the rows {path} cannot be read: {error}", hint="evaluate again") from None
    if header.get("content_sha256") != _rows_hash(rows):
        raise BadFile(
            f"the rows {path} are damaged: they do not match their hash", hint="evaluate again"
        )
    return rows


def load_record_rows(path: Path, record: Record) -> Rows:
    """Return the rows beside a record; raise BadFile if they do not belong to it."""
    rows = load_rows(rows_path(path))
    required = ("index", "label", "clean/prediction")
    problem = next(_find_row_problems(rows, record.dataset.n, required), None)
    indices = record.dataset.indices
    if problem is None and indices is not None and not np.array_equal(rows["index"], indices):
        problem = "'index' differs from the indices of the record"
    if problem is not None:
        raise BadFile(
            f"the rows {rows_path(path)} do not belong to their record: {problem}",
            hint="evaluate again",
        )
    return rows


def _find_row_problems(rows: Rows, images: int, required: Sequence[str]) -> Iterator[str]:
    """Yield a description of each problem of the rows of this number of images.

    The hash only proves that the file is unchanged. It does not prove that the values come from an
    evaluation, and a report computes with them.
    """
    if images < 1:
        yield "the number of images is 0"
    for name in required:
        if name not in rows:
            yield f"{name!r} is missing"
    for name, values in rows.items():
        problem = _find_shape_problem(name, values, images) or _find_value_problem(name, values)
        if problem is not None:
            yield f"{name!r} {problem}"
    # callers stop at the first problem, so that from here on all shapes and types are valid
    classes = MAX_CLASSES
    for name, values in rows.items():
        if _quantity_of(name) == "logits":
            classes = min(classes, values.shape[1])
    for name, values in rows.items():
        if _quantity_of(name) in ("label", "prediction") and values.max() >= classes:
            yield f"{name!r} has class {values.max()}, but there are {classes} classes"
    contradictions = find_contradictions(rows)
    if contradictions is not None and contradictions.any():
        yield "an image violates its verified bound"


def _find_shape_problem(name: str, values: NDArray[Any], images: int) -> str | None:
    """Return why the shape or type of one array is not valid, or None."""
    quantity = _quantity_of(name)
    dimensions = 2 if quantity == "logits" else 1
    if values.ndim != dimensions or len(values) != images:
        return f"has shape {values.shape}, but there are {images} images"
    if quantity == "logits" and values.shape[1] < 2:
        return f"has shape {values.shape}, but a classifier has at least two classes"
    if quantity in INTEGER_ROWS and values.dtype.kind not in "iu":
        return f"has type {values.dtype}, not an integer type"
    if quantity in FLOAT_ROWS and values.dtype.kind != "f":
        return f"has type {values.dtype}, not a floating-point type"
    return None


def _find_value_problem(name: str, values: NDArray[Any]) -> str | None:
    """Return why the values of one array are not valid, or None."""
    quantity = _quantity_of(name)
    if quantity in INTEGER_ROWS and values.min() < 0:
        return "has a negative number"
    if quantity in ("margin", "logit_margin") and not np.isfinite(values).all():
        return "has a value that is not finite"
    if quantity in ("loss", "logits", "log_weight") and np.isnan(values).any():
        return "has a value that is not a number"
    # a loss may be infinite, and a log-weight of minus infinity is a weight of zero
    if quantity == "loss" and np.isneginf(values).any():
        return "has a loss of minus infinity"
    if quantity == "log_weight" and np.isposinf(values).any():
        return "has an infinite weight"
    return None


def _quantity_of(name: str) -> str:
    """Return what an array holds: `log_weight` for `uniform/log_weight@2.0`."""
    return name.rpartition("/")[2].partition("@")[0]


def has_valid_rows(path: Path, images: int | None = None) -> bool:
    """Return whether a file holds rows whose checksum is correct.

    With `images`, the rows must also be valid ones of this number of images. Rows of clean images
    may be missing: an evaluation with several seeds of the attack stores them once.
    """
    try:
        rows = load_rows(path)
    except BadFile:
        return False
    if images is None:
        return True
    return next(_find_row_problems(rows, images, ("index", "label")), None) is None


def content_hash(
    parts: Iterable[tuple[str, str, Sequence[int], bytes]], header: Mapping[str, str]
) -> str:
    """SHA-256 of a header and of tensors: name, type, shape and bytes, in the order of names.

    Hashes of this form are stored in files, so that the encoding cannot change.
    """
    digest = hashlib.sha256(json.dumps(sorted(header.items())).encode())
    for name, kind, shape, content in parts:
        digest.update(json.dumps([name, kind, list(shape)]).encode())
        digest.update(content)
    return digest.hexdigest()


def _rows_hash(rows: Rows) -> str:
    parts = (
        (name, str(values.dtype), values.shape, values.tobytes())
        for name, values in sorted(rows.items(), key=itemgetter(0))
    )
    return content_hash(parts, {})


def find_records(path: Path) -> Iterator[Path]:
    """Yield every record file at or below a path: a record, a run folder, or a folder of runs.

    A path that is not a folder is yielded as it is, so that `load` gives the reason if it cannot be
    read.
    """
    if not is_folder(path):
        yield path
        return
    for folder in sorted([path, *path.rglob("*")]):
        holds_records = folder.name == "evaluations" or folder.suffix == ".evaluations"
        if not folder.is_dir() or not (holds_records or folder == path):
            continue
        for file in sorted(folder.glob("*.json")):
            # the folder that the user names may also hold configs and reports
            if holds_records or _looks_like_a_record(file):
                yield file


def _looks_like_a_record(file: Path) -> bool:
    """Return whether a file has the name of a record, or rows beside it."""
    return RECORD_NAME.fullmatch(file.stem) is not None or rows_path(file).exists()


def load_field_descriptions() -> dict[str, dict[str, str]]:
    """Return the meaning of every field, by the name of its struct."""
    text = resources.files(__package__).joinpath("record_fields.toml").read_text(encoding="utf-8")
    return tomllib.loads(text)


def make_schema() -> dict[str, Any]:
    """Return the JSON Schema of a record, with a description of every field."""
    schema = msgspec.json.schema(Record)
    for name, descriptions in load_field_descriptions().items():
        properties = schema["$defs"][name]["properties"]
        for field, text in descriptions.items():
            # the reference page links to others
            plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", text)
            properties[field] = {"description": plain, **properties[field]}
    # `--format json` adds these to a record that it prints; stored records do not have them
    schema["$defs"]["Record"]["properties"].update(
        rows={"description": "Path of the rows; printed, not stored.", "type": "string"},
        worst_of={
            "description": "Attacks behind a worst case; printed, not stored.",
            "type": "array",
            "items": {"type": "string"},
        },
        over_seeds={
            "description": "Results over the training seeds of a model; printed, not stored.",
            "type": "object",
        },
    )
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}

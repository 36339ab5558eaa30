"""Evaluation records and their per-image rows. No torch: `wmr report` reads them."""

import hashlib
import json
import math
import re
from collections.abc import Iterator, Mapping
from operator import itemgetter
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np
import safetensors.numpy
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

from ..errors import BadFile
from ..measures import Estimate
from ..reading import check_regular, decode_json, is_folder, read_bytes
from .atomic import content_hash, write_atomically, write_text

SCHEMA = 1
RECORD_NAME = re.compile("[0-9a-f]{16}")
MOST_IMAGES = 10**10
MOST_CLASSES = 10**6
LARGEST_EPS = 1e9
"""Numbers beyond these are not those of an evaluation."""
WRITTEN_BY = "records are written by `wmr evaluate`"
Rows = dict[str, NDArray[Any]]


class Struct(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A part of a record; unknown keys are refused."""


class CheckpointFacts(Struct, frozen=True, kw_only=True):
    """Which weights were evaluated; `epoch` and `config` are null for weights from elsewhere and in records of wmr 0.1.0."""

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
    """On which images; `indices` is null for a whole split, else the index of each image of a subset."""

    name: str
    split: str
    n: int
    sha256: str
    indices: list[int] | None = None


class Threat(Struct, frozen=True, kw_only=True):
    """What the attacker may change."""

    norm: str
    eps: float


class AttackFacts(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How the images were attacked; `of` names the records whose worst case this is."""

    spec: str
    seed: int
    restarts: int
    of: list[str] | None = None


class AlphaRow(Struct, frozen=True, kw_only=True):
    """The two weighted accuracies at one alpha_test; null where not asked for or not to be had."""

    alpha_test: float | None
    a_sa: Estimate | None
    a_tr: Estimate | None


class DroRow(Struct, frozen=True, kw_only=True):
    """The worst case over all weights of images in a chi-squared ball of radius rho around equal ones."""

    rho: float
    attack_loss: str
    loss: float
    accuracy: float
    worst_accuracy: float
    ess: float
    zero_weights: int
    unique: bool


class ClassAlphaRow(Struct, frozen=True, kw_only=True):
    """How an attacker who chooses by weight meets one class."""

    alpha_test: float | None
    a_sa: Estimate | None
    share: float | None


class ClassRow(Struct, frozen=True, kw_only=True):
    """One class by itself. Its intervals are Wilson's and logit-delta ones; `joint` allows for looking at all classes."""

    label: int
    name: str | None
    n: int
    a_nat: Estimate
    a_rob: Estimate | None
    joint: Estimate
    by_alpha: list[ClassAlphaRow]


class RepeatAlphaRow(Struct, frozen=True, kw_only=True):
    """The values of the weighted accuracies in one repetition."""

    alpha_test: float | None
    a_sa: float | None
    a_tr: float | None


class RepeatRow(Struct, frozen=True, kw_only=True):
    """The same evaluation with one seed of the attack."""

    seed: int
    a_rob: float | None
    by_alpha: list[RepeatAlphaRow]


class Check(Struct, frozen=True):
    """A sign that the attack was weak, or none: a number, its meaning, and a verdict; `note` is for one that is only told."""

    name: str
    value: float
    verdict: Literal["pass", "fail", "note"]
    text: str


class Record(Struct, frozen=True, kw_only=True):
    """One checkpoint under one attack at one eps, for all alpha."""

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
    precision: str
    a_nat: Estimate
    a_rob: Estimate | None
    by_alpha: list[AlphaRow]
    dro: list[DroRow] = []
    per_class: list[ClassRow] = []
    checks: list[Check] = []
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


def record_id(determining: Mapping[str, Any]) -> str:
    """A short hash of everything that determines a result."""
    return hashlib.sha256(
        json.dumps(determining, sort_keys=True, allow_nan=False).encode()
    ).hexdigest()[:16]


def rows_path(record_path: Path) -> Path:
    """Where the rows of a record are."""
    return record_path.with_suffix(".safetensors")


def save(path: Path, record: Record, rows: Rows) -> None:
    """The rows first: a record that exists has its rows."""
    save_rows(rows_path(path), rows)
    write_text(path, record.to_json() + "\n")


def load(path: Path) -> Record:
    """Read a record; raise BadFile for a file that is not one."""
    try:
        content = read_bytes(path)
        # the schema first: a later one may have fields that this version does not know
        schema = decode_json(content, _Versioned).schema
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
    except ValueError as error:  # msgspec's own are among them
        raise BadFile(f"{path} is not an evaluation record: {error}", hint=WRITTEN_BY) from None
    problem = next(_impossible(record), None)
    if problem is not None:
        raise BadFile(
            f"{path} is not an evaluation record: {problem}", hint=f"evaluate again; {WRITTEN_BY}"
        )
    return record


def _impossible(record: Record) -> Iterator[str]:
    """Yield what no evaluation can have measured."""
    data, eps = record.dataset, record.threat.eps
    if not 1 <= data.n <= MOST_IMAGES:
        yield f"it is of {data.n} images"
    if data.indices is not None and (len(data.indices) != data.n or min(data.indices) < 0):
        yield f"its indices are not those of {data.n} images"
    if not 0 <= eps <= LARGEST_EPS:
        yield f"its eps is {eps}"
    alphas = [row.alpha_test for row in record.by_alpha]
    alphas += [row.alpha_test for of_class in record.per_class for row in of_class.by_alpha]
    alphas += [row.alpha_test for repeat in record.repeats for row in repeat.by_alpha]
    for alpha in (record.checkpoint.alpha_train, *alphas):
        if alpha is not None and not math.isfinite(alpha):
            yield f"it has an alpha of {alpha}"
    for of_class in record.per_class:
        if not (0 <= of_class.label < MOST_CLASSES and 0 <= of_class.n <= data.n):
            yield f"its class {of_class.label} has {of_class.n} images"
    for share in _shares(record):
        if not (0 <= share.low <= share.high <= 1 and 0 <= share.value <= 1):
            yield f"{share.value} [{share.low}, {share.high}] is not a fraction with its interval"
    if not isinstance(record.config.get("metrics", []), list):
        yield "its config has metrics that are no list"


class _Versioned(msgspec.Struct):
    """What every version's records have."""

    schema: int = SCHEMA


def _shares(record: Record) -> Iterator[Estimate]:
    """Every share with an interval in the record."""
    weighted = (share for row in record.by_alpha for share in (row.a_sa, row.a_tr))
    by_class = (
        share
        for row in record.per_class
        for share in (row.a_nat, row.a_rob, row.joint, *(at.a_sa for at in row.by_alpha))
    )
    yield from (
        share for share in (record.a_nat, record.a_rob, *weighted, *by_class) if share is not None
    )


def save_rows(path: Path, rows: Rows) -> None:
    """One entry per image in every tensor, and their hash."""
    own = {name: np.ascontiguousarray(values) for name, values in rows.items()}
    header = {"content_sha256": _rows_hash(own)}
    write_atomically(
        path, lambda temporary: safetensors.numpy.save_file(own, temporary, metadata=header)
    )


def load_rows(path: Path) -> Rows:
    """Return the rows of a file, checksum verified; raise BadFile for a file that does not hold rows."""
    try:
        check_regular(path)
        with safe_open(path, framework="numpy") as file:
            header = file.metadata() or {}
            rows = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a mapping
    except OSError as error:
        raise BadFile(
            f"the rows {path} cannot be read: {error.strerror or error}", hint="evaluate again"
        ) from None
    # the last two are raised for types that numpy does not have, such as bfloat16
    except (SafetensorError, UnicodeDecodeError, TypeError, AttributeError) as error:
        raise BadFile(f"the rows {path} cannot be read: {error}", hint="evaluate again") from None
    if header.get("content_sha256") != _rows_hash(rows):
        raise BadFile(
            f"the rows {path} are damaged: they do not match their hash", hint="evaluate again"
        )
    return rows


def load_record_rows(path: Path, record: Record) -> Rows:
    """Return the rows beside a record; raise BadFile if they do not fit it, or hold values that no evaluation writes."""
    rows = load_rows(rows_path(path))
    problem = next(_misfits(rows, record.dataset.n, "index", "label", "clean/prediction"), None)
    indices = record.dataset.indices
    if problem is None and indices is not None and not np.array_equal(rows["index"], indices):
        problem = "they are of other images"
    if problem is not None:
        raise BadFile(
            f"the rows {rows_path(path)} are not those of their record: {problem}",
            hint="evaluate again",
        )
    return rows


def _misfits(rows: Rows, images: int, *needed: str) -> Iterator[str]:
    """Yield what is wrong with the rows of so many images."""
    if images < 1:
        yield "there are no images"
    yield from (f"there is no {name!r}" for name in needed if name not in rows)
    yield from (
        f"{name!r} {problem}"
        for name, values in rows.items()
        if (problem := _misfit(name, values, images))
    )
    # by now every row has its shape and its type, unless a problem was yielded before
    classes = min(
        (values.shape[1] for name, values in rows.items() if _kind(name) == "logits"),
        default=MOST_CLASSES,
    )
    for name, values in rows.items():
        if _kind(name) in ("label", "prediction") and values.max() >= classes:
            yield f"{name!r} has class {values.max()}, and there are {classes} classes"


def _misfit(name: str, values: NDArray[Any], images: int) -> str:
    """Return what is wrong with one row by itself; empty if nothing is."""
    kind = _kind(name)
    is_whole = kind in ("index", "label", "prediction")
    if values.ndim != (2 if kind == "logits" else 1) or len(values) != images:
        return f"has shape {values.shape}, and there are {images} images"
    if is_whole and values.dtype.kind not in "iu":
        return "holds no whole numbers"
    if is_whole and values.min() < 0:
        return "holds a negative number"
    if kind == "logits" and values.shape[1] < 2:
        return f"has shape {values.shape}, and a classifier has two classes at least"
    if (
        kind in ("margin", "logit_margin", "loss", "logits", "log_weight")
        and values.dtype.kind != "f"
    ):
        return f"has type {values.dtype}"
    if kind in ("margin", "logit_margin") and not np.isfinite(values).all():
        return "holds a number that is not finite"
    if (
        kind == "loss" and (np.isnan(values) | (values == -np.inf)).any()
    ):  # a loss may be without an upper bound
        return "holds values that are not numbers"
    if kind == "logits" and np.isnan(values).any():
        return "holds values that are not numbers"
    if kind == "log_weight" and (np.isnan(values) | (values == np.inf)).any():
        return "holds weights that are no numbers"
    return ""


def _kind(name: str) -> str:
    """Return what a row holds: `margin` for `uniform/margin`, `log_weight` for `uniform/log_weight@2.0`."""
    return name.rpartition("/")[2].partition("@")[0]


def has_valid_rows(path: Path, images: int | None = None) -> bool:
    """Return whether a file holds rows whose checksum is right, and, with `images`, rows of so many images that make sense.

    Rows of clean images may be missing: an evaluation with several seeds of the attack stores them once.
    """
    try:
        rows = load_rows(path)
    except BadFile:
        return False
    return images is None or next(_misfits(rows, images, "index", "label"), None) is None


def _rows_hash(rows: Rows) -> str:
    return content_hash(
        (
            (name, str(values.dtype), values.shape, values.tobytes())
            for name, values in sorted(rows.items(), key=itemgetter(0))
        ),
        {},
    )


def find_records(path: Path) -> Iterator[Path]:
    """Yield every record file at or below a path: a record, a run folder, or a folder of runs.

    A path that is not a folder is yielded as it is, so that `load` gives the reason if it cannot be read.
    """
    if not is_folder(path):
        yield path
        return
    for folder in sorted([path, *path.rglob("*")]):
        if folder.is_dir() and (
            folder.name == "evaluations" or folder.suffix == ".evaluations" or folder == path
        ):
            is_ours = folder.name == "evaluations" or folder.suffix == ".evaluations"
            yield from (
                file
                for file in sorted(folder.glob("*.json"))
                if is_ours or _looks_like_a_record(file)
            )


def _looks_like_a_record(file: Path) -> bool:
    """Among other files, such as reports and configs: by its name, or by the rows beside it."""
    return RECORD_NAME.fullmatch(file.stem) is not None or rows_path(file).exists()

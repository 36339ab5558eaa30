"""Records and rows: values that an evaluation cannot have written, and special files."""

import json
import math
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import safetensors.torch
import torch
from torch import Tensor

from support import synthetic
from support.special_files import IRREGULAR, make_fifo, time_limit
from support.typed import not_none
from wmr_cli.errors import BadFile
from wmr_cli.storage import adversarial_images, records
from wmr_cli.storage.adversarial_images import find_adversarial_images
from wmr_cli.storage.records import Record, Rows

IMAGES = 40


@pytest.fixture(autouse=True)
def _time_limit() -> Iterator[None]:
    with time_limit(60):
        yield


@pytest.fixture
def rows() -> Rows:
    return synthetic.make_rows(IMAGES, logits=True)


@pytest.fixture
def file(tmp_path: Path, rows: Rows) -> Path:
    """Save a record of these rows; return its path."""
    return synthetic.save_record(tmp_path, synthetic.make_record(rows), rows)[0]


def get_error(function: Callable[..., Any], *args: list[int] | Path | Record) -> BadFile:
    """Call a function that has to raise BadFile, and return the error."""
    with pytest.raises(BadFile) as caught:
        function(*args)
    assert caught.value.hint
    assert "\n" not in str(caught.value)
    return caught.value


def edit_record(file: Path, **parts: Any) -> None:
    """Write other values into a record: a dict changes a part, anything else replaces it."""
    stored = json.loads(file.read_text())
    for name, values in parts.items():
        stored[name] = {**stored[name], **values} if isinstance(values, dict) else values
    file.write_text(json.dumps(stored))


def test_a_saved_record_and_its_rows_are_loaded_equal(file: Path, rows: Rows) -> None:
    loaded = records.load_record_rows(file, records.load(file))
    assert loaded.keys() == rows.keys()
    assert all(np.array_equal(loaded[name], rows[name]) for name in rows)


IMPOSSIBLE_VALUES = {
    "zero images": {"dataset": {"n": 0}},
    "negative number of images": {"dataset": {"n": -5}},
    "too many images": {"dataset": {"n": 10**18}},
    "more than 64 bits": {"dataset": {"n": 10**30}},
    "number of images as text": {"dataset": {"n": "40"}},
    "fractional number of images": {"dataset": {"n": 0.5}},
    "a negative eps": {"threat": {"eps": -0.1}},
    "a huge eps": {"threat": {"eps": 1e300}},
    "NaN as eps": {"threat": {"eps": math.nan}},
    "infinite eps": {"threat": {"eps": math.inf}},
    "fewer indices than images": {"dataset": {"n": 3, "indices": [1, 2]}},
    "negative indices": {"dataset": {"n": 2, "indices": [-1, 2]}},
    "nested settings": {"config": {"metrics": [], "deep": json.loads("[" * 300 + "]" * 300)}},
}


@pytest.mark.parametrize("change", IMPOSSIBLE_VALUES.values(), ids=IMPOSSIBLE_VALUES)
def test_a_record_with_impossible_values_is_refused(file: Path, change: dict[str, Any]) -> None:
    edit_record(file, **change)
    assert str(file) in str(get_error(records.load, file))


@pytest.mark.parametrize(
    "text", ["[" * 100_000, '{"schema": 1, "config": ' + "[" * 100_000, '{"a":' * 100_000]
)
def test_a_record_that_is_nested_too_deeply_is_refused(file: Path, text: str) -> None:
    file.write_text(text)
    get_error(records.load, file)


@pytest.mark.parametrize("make", IRREGULAR.values(), ids=IRREGULAR)
def test_only_a_regular_file_is_read_as_a_record(tmp_path: Path, make: Callable[..., Any]) -> None:
    path = tmp_path / "record.json"
    make(path)
    get_error(records.load, path)
    expected = [] if make is IRREGULAR["folder"] else [path]
    assert list(records.find_records(path)) == expected


@pytest.mark.parametrize("make", IRREGULAR.values(), ids=IRREGULAR)
def test_only_a_regular_file_is_read_as_rows(file: Path, make: Callable[..., Any]) -> None:
    records.rows_path(file).unlink()
    make(records.rows_path(file))
    get_error(records.load_record_rows, file, records.load(file))


@pytest.mark.parametrize("name", ["none.json", "a" * 300, "a\0b", "\ud800"])
def test_a_record_with_an_unreadable_file_name_is_refused(name: str) -> None:
    get_error(records.load, Path(name))
    assert list(records.find_records(Path(name))) == [Path(name)]


def test_a_search_for_records_opens_no_file(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = file.parent / "evaluations"
    folder.mkdir()
    make_fifo(folder / "x.json")
    monkeypatch.setattr(os, "open", lambda *args: pytest.fail("it was opened"))
    assert set(records.find_records(file.parent)) == {file, folder / "x.json"}
    get_error(records.load, folder / "x.json")


INVALID_ROWS: dict[str, tuple[str, Callable[..., Any]]] = {
    "infinite margin": ("uniform/margin", lambda values: values + np.inf),
    "NaN as margin": ("uniform/margin", lambda values: values * np.nan),
    "infinite logit margin": ("clean/logit_margin", lambda values: values - np.inf),
    "integer margins": ("uniform/margin", lambda values: values.astype(int)),
    "complex margins": ("uniform/margin", lambda values: values.astype(np.complex64)),
    "loss of minus infinity": ("uniform/loss", lambda values: values - np.inf),
    "zero logits": ("uniform/logits", lambda values: values[:, :0]),
    "one logit": ("uniform/logits", lambda values: values[:, :1]),
    "NaN as logits": ("clean/logits", lambda values: values * np.nan),
    "prediction beyond the logits": ("clean/prediction", lambda values: values + 9),
    "negative label": ("label", lambda values: values - 1),
    "negative prediction": ("uniform/prediction", lambda values: values - 5),
    "negative index": ("index", lambda values: values - 5),
    "Boolean labels": ("label", lambda values: values > 0),
    "scalar label": ("label", lambda values: values.max()),
}
"""The name of an array, and a change after which its values are not those of an evaluation."""


@pytest.mark.parametrize(("name", "change"), INVALID_ROWS.values(), ids=INVALID_ROWS)
def test_invalid_rows_are_refused_although_their_checksum_is_correct(
    file: Path, rows: Rows, name: str, change: Callable[..., Any]
) -> None:
    path = records.rows_path(file)
    records.save_rows(path, {**rows, name: change(rows[name])})
    error = get_error(records.load_record_rows, file, records.load(file))
    assert repr(name) in str(error)
    assert records.has_valid_rows(path)
    assert not records.has_valid_rows(path, IMAGES)


def test_rows_with_fewer_logits_than_labels_are_refused(file: Path, rows: Rows) -> None:
    logits = rows["uniform/logits"][:, :5]
    records.save_rows(records.rows_path(file), {**rows, "uniform/logits": logits})
    error = get_error(records.load_record_rows, file, records.load(file))
    assert "'clean/prediction'" in str(error)


def test_rows_without_images_are_refused(file: Path, rows: Rows) -> None:
    path = records.rows_path(file)
    record = records.load(file)
    records.save_rows(path, {name: values[:0] for name, values in rows.items()})
    empty = msgspec.structs.replace(record, dataset=msgspec.structs.replace(record.dataset, n=0))
    get_error(records.load_record_rows, file, empty)
    assert not records.has_valid_rows(path, 0)


def test_a_huge_label_is_refused_if_no_logits_limit_it(file: Path, rows: Rows) -> None:
    kept = {name: values for name, values in rows.items() if not name.endswith("logits")}
    records.save_rows(records.rows_path(file), {**kept, "label": kept["label"] + 10**12})
    error = get_error(records.load_record_rows, file, records.load(file))
    assert "'label'" in str(error)


def test_rows_of_other_images_are_refused(file: Path) -> None:
    edit_record(file, dataset={"indices": list(range(1, IMAGES + 1))})
    error = get_error(records.load_record_rows, file, records.load(file))
    assert "'index'" in str(error)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float8_e4m3fn])
def test_rows_of_a_type_that_numpy_lacks_are_refused(file: Path, dtype: torch.dtype) -> None:
    path = records.rows_path(file)
    safetensors.torch.save_file({"label": torch.zeros(IMAGES, dtype=dtype)}, path)
    get_error(records.load_record_rows, file, records.load(file))


def test_rows_of_a_chunk_are_valid_only_with_the_right_number_of_images(
    tmp_path: Path, rows: Rows
) -> None:
    path = tmp_path / "00000000-00000040.safetensors"
    records.save_rows(path, rows)
    assert records.has_valid_rows(path)
    assert records.has_valid_rows(path, IMAGES)
    assert not records.has_valid_rows(path, IMAGES + 1)
    # chunks of further seeds have no rows of clean images
    attacked = {name: values for name, values in rows.items() if not name.startswith("clean/")}
    records.save_rows(path, attacked)
    assert records.has_valid_rows(path, IMAGES)
    records.save_rows(path, {"index": rows["index"]})
    assert not records.has_valid_rows(path, IMAGES)
    path.write_bytes(b"nothing")
    assert not records.has_valid_rows(path, IMAGES)


@pytest.mark.parametrize("make", IRREGULAR.values(), ids=IRREGULAR)
def test_a_search_for_adversarial_images_skips_special_files(
    file: Path, make: Callable[..., Any]
) -> None:
    make(file.parent / "0.safetensors")
    assert find_adversarial_images(file, records.load(file)) is None


def save_adversarial_images(file: Path, **tensors: Any) -> None:
    """Save adversarial images of the record, as `wmr attack --save` does."""
    record = records.load(file)
    required = dict(adversarial_images._required_header(record))
    header = {name: value for name, value in required.items() if value is not None}
    defaults = {
        "images": torch.zeros(2, 1, 4, 4),
        "index": torch.arange(2),
        "prediction": torch.zeros(2, dtype=torch.int64),
    }
    safetensors.torch.save_file(
        {**defaults, **tensors}, file.parent / "attack.safetensors", metadata=header
    )


def test_adversarial_images_of_a_record_are_found_and_read(file: Path) -> None:
    save_adversarial_images(file, images=torch.full((2, 1, 4, 4), float("nan")))
    found = not_none(find_adversarial_images(file, records.load(file)))
    assert found.shape == (1, 4, 4)
    assert found.read_images([1]).tolist() == np.zeros((1, 1, 4, 4)).tolist()
    found.path.unlink()
    make_fifo(found.path)
    get_error(found.read_images, [1])


@pytest.mark.parametrize(
    "tensors",
    [
        {"images": torch.zeros(2, 1, 0, 4)},
        {"images": torch.zeros(2, 0, 4, 4)},
        {"images": torch.zeros(2, 4, 4)},
        {"images": torch.zeros(3, 1, 4, 4)},
        {"images": torch.zeros(2, 1, 4, 4, dtype=torch.bfloat16)},
        {"images": torch.zeros(2, 1, 4, 4, dtype=torch.int64)},
        {"index": torch.zeros(2)},
        {"index": torch.zeros(2, 1, dtype=torch.int64)},
        {"prediction": torch.zeros(2, dtype=torch.bfloat16)},
        {"prediction": torch.zeros((), dtype=torch.int64)},
    ],
)
def test_invalid_adversarial_images_are_skipped(file: Path, tensors: dict[str, Tensor]) -> None:
    save_adversarial_images(file, **tensors)
    assert find_adversarial_images(file, records.load(file)) is None

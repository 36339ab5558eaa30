"""Records and rows from elsewhere: what an evaluation cannot have written is refused, and nothing but a file is opened."""

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
from numpy.typing import NDArray
from torch import Tensor

from support import synthetic
from support.special_files import IRREGULAR, make_fifo, time_limit
from support.typed import not_none
from wmr_cli.errors import BadFile
from wmr_cli.storage import adversarial_images, records
from wmr_cli.storage.adversarial_images import find_adversarial_images
from wmr_cli.storage.records import Record

IMAGES = 40


@pytest.fixture(autouse=True)
def _limited() -> Iterator[None]:
    with time_limit(60):
        yield


@pytest.fixture
def rows() -> dict[str, NDArray[np.float32] | NDArray[np.float64] | NDArray[np.int64]]:
    return synthetic.rows(IMAGES, logits=True)


@pytest.fixture
def file(
    tmp_path: Path, rows: dict[str, NDArray[np.float32] | NDArray[np.float64] | NDArray[np.int64]]
) -> Path:
    """A record of these rows."""
    return synthetic.stored(tmp_path, synthetic.record(rows), rows)[0]


def refusal(act: Callable[..., Any], *args: list[int] | Path | Record) -> BadFile:
    with pytest.raises(BadFile) as refused:
        act(*args)
    assert refused.value.hint
    assert "\n" not in str(refused.value)
    return refused.value


def changed(file: Path, **parts: dict[str, float | list[int | list[Any]] | str]) -> None:
    """Write other values into a record: a dict changes a part, anything else replaces it."""
    stored = json.loads(file.read_text())
    for name, values in parts.items():
        stored[name] = {**stored[name], **values} if isinstance(values, dict) else values
    file.write_text(json.dumps(stored))


def test_a_record_and_its_rows_come_back(
    file: Path, rows: dict[str, NDArray[np.float32] | NDArray[np.float64] | NDArray[np.int64]]
) -> None:
    back = records.load_record_rows(file, records.load(file))
    assert back.keys() == rows.keys()
    assert all(np.array_equal(back[name], rows[name]) for name in rows)


IMPOSSIBLE = {
    "no images": {"dataset": {"n": 0}},
    "fewer than none": {"dataset": {"n": -5}},
    "more images than there are": {"dataset": {"n": 10**18}},
    "more than 64 bits": {"dataset": {"n": 10**30}},
    "images as text": {"dataset": {"n": "40"}},
    "half an image": {"dataset": {"n": 0.5}},
    "a negative eps": {"threat": {"eps": -0.1}},
    "a huge eps": {"threat": {"eps": 1e300}},
    "eps that is not a number": {"threat": {"eps": math.nan}},
    "eps without bounds": {"threat": {"eps": math.inf}},
    "fewer indices than images": {"dataset": {"n": 3, "indices": [1, 2]}},
    "negative indices": {"dataset": {"n": 2, "indices": [-1, 2]}},
    "nested settings": {"config": {"metrics": [], "deep": json.loads("[" * 300 + "]" * 300)}},
}


@pytest.mark.parametrize("change", IMPOSSIBLE.values(), ids=IMPOSSIBLE)
def test_a_record_that_no_evaluation_writes_is_refused(file: Path, change: dict[str, Any]) -> None:
    changed(file, **change)
    assert "is not an evaluation record" in str(refusal(records.load, file))


@pytest.mark.parametrize(
    "text", ["[" * 100_000, '{"schema": 1, "config": ' + "[" * 100_000, '{"a":' * 100_000]
)
def test_a_record_that_is_nested_too_deeply_is_refused(file: Path, text: str) -> None:
    file.write_text(text)
    assert "nested too deeply" in str(refusal(records.load, file))


@pytest.mark.parametrize("make", IRREGULAR.values(), ids=IRREGULAR)
def test_only_a_regular_file_is_read_as_a_record(tmp_path: Path, make: Callable[..., Any]) -> None:
    make(tmp_path / "record.json")
    assert "it is" in str(refusal(records.load, tmp_path / "record.json"))
    assert list(records.find_records(tmp_path / "record.json")) == (
        [] if make is IRREGULAR["folder"] else [tmp_path / "record.json"]
    )


@pytest.mark.parametrize("make", IRREGULAR.values(), ids=IRREGULAR)
def test_only_a_regular_file_is_read_as_rows(file: Path, make: Callable[..., Any]) -> None:
    records.rows_path(file).unlink()
    make(records.rows_path(file))
    assert "it is" in str(refusal(records.load_record_rows, file, records.load(file)))


@pytest.mark.parametrize("name", ["none.json", "a" * 300, "a\0b", "\ud800"])
def test_a_record_under_a_name_that_cannot_be_read_is_refused(name: str) -> None:
    refusal(records.load, Path(name))
    assert list(records.find_records(Path(name))) == [Path(name)]


def test_a_search_for_records_opens_nothing(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = file.parent / "evaluations"
    folder.mkdir()
    make_fifo(folder / "x.json")
    monkeypatch.setattr(os, "open", lambda *args: pytest.fail("it was opened"))
    assert set(records.find_records(file.parent)) == {file, folder / "x.json"}
    refusal(records.load, folder / "x.json")


def spoiled(name: str, change: Callable[..., Any]) -> Callable[..., Any]:
    return lambda rows: {**rows, name: change(rows[name])}


SENSELESS = {
    "a margin without bounds": (
        spoiled("uniform/margin", lambda values: values + np.inf),
        "not finite",
    ),
    "a margin that is not a number": (
        spoiled("uniform/margin", lambda values: values * np.nan),
        "not finite",
    ),
    "a logit margin without bounds": (
        spoiled("clean/logit_margin", lambda values: values - np.inf),
        "not finite",
    ),
    "margins as whole numbers": (
        spoiled("uniform/margin", lambda values: values.astype(int)),
        "has type int64",
    ),
    "complex margins": (
        spoiled("uniform/margin", lambda values: values.astype(np.complex64)),
        "has type complex64",
    ),
    "a loss below all": (spoiled("uniform/loss", lambda values: values - np.inf), "not numbers"),
    "no logits": (spoiled("uniform/logits", lambda values: values[:, :0]), "two classes at least"),
    "one logit": (spoiled("uniform/logits", lambda values: values[:, :1]), "two classes at least"),
    "fewer logits than labels": (
        spoiled("uniform/logits", lambda values: values[:, :5]),
        "there are 5 classes",
    ),
    "logits that are not numbers": (
        spoiled("clean/logits", lambda values: values * np.nan),
        "not numbers",
    ),
    "a prediction beyond the logits": (
        spoiled("clean/prediction", lambda values: values + 9),
        "there are 10 classes",
    ),
    "a negative label": (spoiled("label", lambda values: values - 1), "negative"),
    "a negative prediction": (spoiled("uniform/prediction", lambda values: values - 5), "negative"),
    "a negative index": (spoiled("index", lambda values: values - 5), "negative"),
    "labels that are truth values": (
        spoiled("label", lambda values: values > 0),
        "no whole numbers",
    ),
    "no dimension": (spoiled("label", lambda values: values.max()), "has shape (1,)"),
}


@pytest.mark.parametrize(("spoil", "reason"), SENSELESS.values(), ids=SENSELESS)
def test_rows_without_sense_are_refused_though_their_checksum_is_right(
    file: Path,
    rows: dict[str, NDArray[np.float32] | NDArray[np.float64] | NDArray[np.int64]],
    spoil: Callable[..., Any],
    reason: str,
) -> None:
    path = records.rows_path(file)
    records.save_rows(path, spoil(rows))
    assert reason in str(refusal(records.load_record_rows, file, records.load(file)))
    assert records.has_valid_rows(path)
    assert not records.has_valid_rows(path, IMAGES)


def test_rows_of_no_images_are_refused(
    file: Path, rows: dict[str, NDArray[np.float32] | NDArray[np.float64] | NDArray[np.int64]]
) -> None:
    path, record = records.rows_path(file), records.load(file)
    records.save_rows(path, {name: values[:0] for name, values in rows.items()})
    nothing = msgspec.structs.replace(record, dataset=msgspec.structs.replace(record.dataset, n=0))
    assert "there are no images" in str(refusal(records.load_record_rows, file, nothing))
    assert not records.has_valid_rows(path, 0)


def test_a_huge_class_is_refused_where_no_logits_limit_it(
    file: Path, rows: dict[str, NDArray[np.float32] | NDArray[np.float64] | NDArray[np.int64]]
) -> None:
    few = {name: values for name, values in rows.items() if not name.endswith("logits")}
    records.save_rows(records.rows_path(file), {**few, "label": few["label"] + 10**12})
    assert "has class 10000000000" in str(
        refusal(records.load_record_rows, file, records.load(file))
    )


def test_rows_of_other_images_are_refused(file: Path) -> None:
    changed(file, dataset={"indices": list(range(1, IMAGES + 1))})
    assert "they are of other images" in str(
        refusal(records.load_record_rows, file, records.load(file))
    )


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float8_e4m3fn])
def test_rows_of_a_type_that_numpy_does_not_have_are_refused(
    file: Path, dtype: torch.dtype
) -> None:
    safetensors.torch.save_file(
        {"label": torch.zeros(IMAGES, dtype=dtype)}, records.rows_path(file)
    )
    assert "cannot be read" in str(refusal(records.load_record_rows, file, records.load(file)))


def test_a_chunk_is_readable_if_it_has_so_many_images_that_make_sense(
    tmp_path: Path, rows: dict[str, NDArray[np.float32] | NDArray[np.float64] | NDArray[np.int64]]
) -> None:
    path = tmp_path / "00000000-00000040.safetensors"
    records.save_rows(path, rows)
    assert records.has_valid_rows(path)
    assert records.has_valid_rows(path, IMAGES)
    assert not records.has_valid_rows(path, IMAGES + 1)
    records.save_rows(
        path, {name: values for name, values in rows.items() if not name.startswith("clean/")}
    )
    assert records.has_valid_rows(path, IMAGES)  # of a further seed
    records.save_rows(path, {"index": rows["index"]})
    assert not records.has_valid_rows(path, IMAGES)
    path.write_bytes(b"nothing")
    assert not records.has_valid_rows(path, IMAGES)


@pytest.mark.parametrize("make", IRREGULAR.values(), ids=IRREGULAR)
def test_a_search_for_adversarial_images_passes_over_what_is_not_a_file(
    file: Path, make: Callable[..., Any]
) -> None:
    make(file.parent / "0.safetensors")
    assert find_adversarial_images(file, records.load(file)) is None


def attacked(file: Path, **tensors: Any) -> None:
    """Save adversarial images of the record, as `wmr attack --save` does."""
    record = records.load(file)
    header = {
        name: value
        for name, value in adversarial_images._required_header(record)
        if value is not None
    }
    usual = {
        "images": torch.zeros(2, 1, 4, 4),
        "index": torch.arange(2),
        "prediction": torch.zeros(2, dtype=torch.int64),
    }
    safetensors.torch.save_file(
        {**usual, **tensors}, file.parent / "attack.safetensors", metadata=header
    )


def test_adversarial_images_of_a_record_are_found_and_read(file: Path) -> None:
    attacked(file, images=torch.full((2, 1, 4, 4), float("nan")))
    found = find_adversarial_images(file, records.load(file))
    assert not_none(found).shape == (1, 4, 4)
    assert not_none(found).read_images([1]).tolist() == np.zeros((1, 1, 4, 4)).tolist()
    not_none(found).path.unlink()
    make_fifo(not_none(found).path)
    refusal(not_none(found).read_images, [1])


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
def test_adversarial_images_without_sense_are_passed_over(
    file: Path, tensors: dict[str, Tensor]
) -> None:
    attacked(file, **tensors)
    assert find_adversarial_images(file, records.load(file)) is None

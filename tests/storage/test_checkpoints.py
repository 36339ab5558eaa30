"""Checkpoints: invalid headers are refused before a model is built, even if the hash is correct."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from support.special_files import IRREGULAR, time_limit
from wmr_cli.config import TrainConfig
from wmr_cli.core.data.splits import Source
from wmr_cli.errors import BadFile
from wmr_cli.storage import checkpoints

NAMES = ("ant", "cat", "dog")
DATA = Source(3, (1, 8, 8), {}, class_names=NAMES, random_split_sha256="abc")
TENSORS = {"weight": torch.ones(2)}
DEEPLY_NESTED = "[" * 100_000


@pytest.fixture(autouse=True)
def _time_limit() -> Iterator[None]:
    with time_limit(60):
        yield


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Save a checkpoint; return its path."""
    path = tmp_path / "net.safetensors"
    checkpoints.save(path, TENSORS, TrainConfig(), DATA, alpha_train=2.0, epoch=3)
    return path


def get_error(path: Path) -> BadFile:
    """Load a file that has to be refused, and return the error."""
    with pytest.raises(BadFile) as caught:
        checkpoints.load(path)
    assert caught.value.hint
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 500
    return caught.value


def edit_header(file: Path, key: str, text: str | None) -> None:
    """Replace a line of the header, or remove it, and store the hash of the new content."""
    tensors, header = checkpoints.load_tensors(file)
    del header["content_sha256"]
    header.pop(key, None)
    if text is not None:
        header[key] = text
    checkpoints.save_tensors(file, tensors, header)


def test_a_saved_checkpoint_is_loaded_equal(file: Path) -> None:
    found = checkpoints.load(file)
    assert found.num_classes == 3
    assert found.input_shape == (1, 8, 8)
    assert found.class_names == NAMES
    assert found.drawn == "abc"
    assert (found.alpha_train, found.epoch, found.config) == (2.0, 3, TrainConfig())
    assert torch.equal(found.tensors["weight"], TENSORS["weight"])


@pytest.mark.parametrize(
    ("key", "text"),
    [("alpha_train", "null"), ("alpha_train", "2"), ("class_names", "null"), ("eps", "0")],
)
def test_optional_values_of_a_header_may_be_null_or_small(file: Path, key: str, text: str) -> None:
    edit_header(file, key, text)
    checkpoints.load(file)


@pytest.mark.parametrize("key", ["class_names", "drawn"])
def test_a_header_of_version_0_1_may_lack_newer_lines(file: Path, key: str) -> None:
    edit_header(file, key, None)
    assert getattr(checkpoints.load(file), key) is None


NOT_COUNTS = (
    "",
    "0.5",
    "3.0",
    "-1",
    "1" + 18 * "0" + "0",
    "9" * 5000,
    "True",
    "three",
    "٣",
    "1_0",
    " 3",
    "1e3",
    "nan",
    "null",
)
NOT_SHAPES = (
    "null",
    "3",
    '"1x8x8"',
    "{}",
    "",
    "[1, 8",
    DEEPLY_NESTED,
    "[1, 8]",
    "[1, 8, 8, 8]",
    "[0, 8, 8]",
    "[1, -8, 8]",
    "[1, 8.0, 8]",
    "[true, 8, 8]",
    '["1", 8, 8]',
    "[1, 1000000000000000000, 8]",
    "[1, 100000, 100000]",
    "[NaN, 8, 8]",
)
NOT_ALPHAS = (
    "NaN",
    "Infinity",
    "-Infinity",
    "1e999",
    "1" * 400,
    "true",
    '"2"',
    "[]",
    "{}",
    "",
    DEEPLY_NESTED,
)
NOT_CLASS_NAMES = (
    "[]",
    '["a", "b"]',
    '["a", "b", "c", "d"]',
    "[1, 2, 3]",
    '"abc"',
    '["a", "b", null]',
    '{"a": 1, "b": 2, "c": 3}',
    "3",
    "",
    DEEPLY_NESTED,
)
NOT_CONFIGS = (
    "",
    "[]",
    "null",
    '{"eps": -1}',
    '{"new": 1}',
    DEEPLY_NESTED,
    '{"eps":' + DEEPLY_NESTED,
)
INVALID_TEXTS = {
    "num_classes": (*NOT_COUNTS, "0", "1", "1" + 18 * "0"),
    "epoch": NOT_COUNTS,
    "seed": NOT_COUNTS,
    "input_shape": NOT_SHAPES,
    "eps": ("nan", "inf", "-inf", "-0.1", "1e300", "", "8/255", "null", "[]"),
    "alpha_train": NOT_ALPHAS,
    "norm": ("", "l1", "LINF", "\x1b[2J"),
    "class_names": NOT_CLASS_NAMES,
    "drawn": ("3", "[]", "", DEEPLY_NESTED),
    "config": NOT_CONFIGS,
}
INVALID_LINES = [(key, text) for key, texts in INVALID_TEXTS.items() for text in texts]


@pytest.mark.parametrize(("key", "text"), INVALID_LINES, ids=lambda text: text[:12])
def test_an_invalid_line_of_the_header_is_refused_and_named(
    file: Path, key: str, text: str
) -> None:
    edit_header(file, key, text)
    assert key in str(get_error(file))


@pytest.mark.parametrize(
    "key", ["model", "num_classes", "input_shape", "norm", "eps", "config", "alpha_train", "seed"]
)
def test_a_missing_line_of_the_header_is_refused_and_named(file: Path, key: str) -> None:
    edit_header(file, key, None)
    assert repr(key) in str(get_error(file))


@pytest.mark.parametrize("make", IRREGULAR.values(), ids=IRREGULAR)
@pytest.mark.parametrize("name", ["net.safetensors", "run/last.safetensors"])
def test_only_a_regular_file_is_read_as_a_checkpoint(
    tmp_path: Path, make: Callable[..., Any], name: str
) -> None:
    (tmp_path / "run").mkdir()
    make(tmp_path / name)
    for path in (tmp_path / name, (tmp_path / name).parent):
        get_error(path)
        assert not checkpoints.is_checkpoint(path)


@pytest.mark.parametrize("name", ["/dev/zero", "none", "a" * 300, "a\0b", "\ud800"])
def test_a_path_that_cannot_be_read_is_refused(name: str) -> None:
    get_error(Path(name))
    assert not checkpoints.is_checkpoint(Path(name))


def test_a_name_on_the_hub_is_refused_with_the_plugin_that_reads_it() -> None:
    assert "wmr-huggingface" in get_error(Path("hf:owner/name")).hint


def test_a_checkpoint_is_recognised_by_its_header(file: Path) -> None:
    assert checkpoints.is_checkpoint(file)
    assert json.loads(checkpoints.load_tensors(file)[1]["class_names"]) == list(NAMES)

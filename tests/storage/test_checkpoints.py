"""Checkpoints from elsewhere: a header that makes no sense is refused before anything is built, whatever its checksum."""

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
DATA = Source(3, (1, 8, 8), {}, class_names=NAMES, drawn="abc")
TENSORS = {"weight": torch.ones(2)}
DEEP = "[" * 100_000


@pytest.fixture(autouse=True)
def _limited() -> Iterator[None]:
    with time_limit(60):
        yield


@pytest.fixture
def file(tmp_path: Path) -> Path:
    checkpoints.save(
        tmp_path / "net.safetensors", TENSORS, TrainConfig(), DATA, alpha_train=2.0, epoch=3
    )
    return tmp_path / "net.safetensors"


def refusal(path: Path) -> BadFile:
    with pytest.raises(BadFile) as refused:
        checkpoints.load(path)
    assert refused.value.hint
    assert "\n" not in str(refused.value)
    assert len(str(refused.value)) < 500
    return refused.value


def changed(file: Path, key: str, text: str | None) -> None:
    """Write another header, with the checksum that belongs to it."""
    tensors, header = checkpoints.load_tensors(file)
    header = {name: value for name, value in header.items() if name not in ("content_sha256", key)}
    checkpoints.save_tensors(file, tensors, header if text is None else {**header, key: text})


def test_a_checkpoint_comes_back(file: Path) -> None:
    found = checkpoints.load(file)
    assert (found.num_classes, found.input_shape, found.class_names, found.drawn) == (
        3,
        (1, 8, 8),
        NAMES,
        "abc",
    )
    assert (found.alpha_train, found.epoch, found.config) == (2.0, 3, TrainConfig())
    assert torch.equal(found.tensors["weight"], TENSORS["weight"])


@pytest.mark.parametrize(
    ("key", "text"),
    [("alpha_train", "null"), ("alpha_train", "2"), ("class_names", "null"), ("eps", "0")],
)
def test_a_header_may_say_nothing_or_little(file: Path, key: str, text: str) -> None:
    changed(file, key, text)
    checkpoints.load(file)


@pytest.mark.parametrize("key", ["class_names", "drawn"])
def test_a_header_of_an_earlier_version_may_lack_a_line(file: Path, key: str) -> None:
    changed(file, key, None)
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
    *(
        "null",
        "3",
        '"1x8x8"',
        "{}",
        "",
        "[1, 8",
        DEEP,
        "[1, 8]",
        "[1, 8, 8, 8]",
        "[0, 8, 8]",
        "[1, -8, 8]",
        "[1, 8.0, 8]",
    ),
    *(
        "[true, 8, 8]",
        '["1", 8, 8]',
        "[1, 1000000000000000000, 8]",
        "[1, 100000, 100000]",
        "[NaN, 8, 8]",
    ),
)
SENSELESS = [
    *(("num_classes", text) for text in (*NOT_COUNTS, "0", "1", "1" + 18 * "0")),
    *(("epoch", text) for text in NOT_COUNTS),
    *(("seed", text) for text in NOT_COUNTS),
    *(("input_shape", text) for text in NOT_SHAPES),
    *(("eps", text) for text in ("nan", "inf", "-inf", "-0.1", "1e300", "", "8/255", "null", "[]")),
    *(
        ("alpha_train", text)
        for text in (
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
            DEEP,
        )
    ),
    *(("norm", text) for text in ("", "l1", "LINF", "\x1b[2J")),
    *(
        ("class_names", text)
        for text in (
            "[]",
            '["a", "b"]',
            '["a", "b", "c", "d"]',
            "[1, 2, 3]",
            '"abc"',
            '["a", "b", null]',
        )
    ),
    *(("class_names", text) for text in ('{"a": 1, "b": 2, "c": 3}', "3", "", DEEP)),
    *(("drawn", text) for text in ("3", "[]", "", DEEP)),
    *(
        ("config", text)
        for text in ("", "[]", "null", '{"eps": -1}', '{"new": 1}', DEEP, '{"eps":' + DEEP)
    ),
]


@pytest.mark.parametrize(("key", "text"), SENSELESS, ids=lambda text: text[:12])
def test_a_header_that_makes_no_sense_is_refused_by_its_key(
    file: Path, key: str, text: str
) -> None:
    changed(file, key, text)
    problem = str(refusal(file))
    assert "the header of" in problem
    assert key in problem


@pytest.mark.parametrize(
    "key", ["model", "num_classes", "input_shape", "norm", "eps", "config", "alpha_train", "seed"]
)
def test_a_header_that_lacks_a_line_is_refused(file: Path, key: str) -> None:
    changed(file, key, None)
    assert repr(key) in str(refusal(file))


@pytest.mark.parametrize("make", IRREGULAR.values(), ids=IRREGULAR)
@pytest.mark.parametrize("name", ["net.safetensors", "run/last.safetensors"])
def test_only_a_regular_file_is_read_as_a_checkpoint(
    tmp_path: Path, make: Callable[..., Any], name: str
) -> None:
    (tmp_path / "run").mkdir()
    make(tmp_path / name)
    for path in (tmp_path / name, (tmp_path / name).parent):
        refusal(path)
        assert not checkpoints.is_checkpoint(path)


@pytest.mark.parametrize("name", ["/dev/zero", "none", "a" * 300, "a\0b", "\ud800"])
def test_a_path_that_cannot_be_read_is_refused(name: str) -> None:
    refusal(Path(name))
    assert not checkpoints.is_checkpoint(Path(name))


def test_a_checkpoint_is_known_by_its_header(file: Path) -> None:
    assert checkpoints.is_checkpoint(file)
    assert json.loads(checkpoints.load_tensors(file)[1]["class_names"]) == list(NAMES)

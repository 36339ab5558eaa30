"""Datasets of plugins are checked, and the ranks of a node share one copy of the images."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from wmr_cli.errors import BrokenContract
from wmr_cli.registry import Registry
from wmr_cli.runtime.datasets import build_dataset, get_split

uses_local_code = pytest.mark.usefixtures("trusts_local_code")


BROKEN = """
import torch
from wmr_cli.core import MemorySource, MemorySplit

SPLIT = MemorySplit(torch.zeros(4, 1, 8, 8), torch.tensor([0, 1, 0, 1]), torch.arange(4))


class NoMembers:
    pass


class NoBatch:
    labels, sha256 = SPLIT.labels, "0"
    def __len__(self): return 4
    def batch(self, positions): ...


class DrawnOf01(MemorySource):
    drawn = "0"


def none(): return None
def drawn(): return DrawnOf01(2, {"train": SPLIT})
def no_splits(): return MemorySource(2, None)
def list_of_splits(): return MemorySource(2, [SPLIT])
def empty(): return MemorySource(2, {})
def one_class(): return MemorySource(1, {"train": SPLIT})
def fractional_classes(): return MemorySource(2.5, {"train": SPLIT})
def missing_name(): return MemorySource(2, {"train": SPLIT}, class_names=("cat",))
def list_of_names(): return MemorySource(2, {"train": SPLIT}, class_names=["cat", "dog"])
def numbers_as_names(): return MemorySource(2, {"train": SPLIT}, class_names=(1, 2))
def split_is_none(): return MemorySource(2, {"train": SPLIT, "test": None})
def split_without_batch(): return MemorySource(2, {"train": SPLIT, "test": NoBatch()})
"""


@pytest.fixture
def broken(tmp_path: Path) -> Callable[[str], str]:
    """Return the spec of a dataset in `BROKEN`."""
    (tmp_path / "mine.py").write_text(BROKEN)
    return lambda name: f"{tmp_path}/mine.py:{name}"


@uses_local_code
@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("none", "NoneType"),
        ("drawn", "`drawn`"),
        ("NoMembers", "NoMembers"),
        ("no_splits", "AttributeError"),
        ("list_of_splits", "AttributeError"),
        ("empty", "StopIteration"),
        ("one_class", "num_classes"),
        ("fractional_classes", "num_classes"),
        ("missing_name", "1 classes"),
        ("list_of_names", "class_names"),
        ("numbers_as_names", "class_names"),
    ],
)
def test_a_dataset_that_breaks_its_contract_is_refused(
    registry: Registry, broken: Callable[[str], str], name: str, problem: str
) -> None:
    with pytest.raises(BrokenContract, match=problem) as refused:
        build_dataset(registry, broken(name), Path())
    assert refused.value.hint


@uses_local_code
@pytest.mark.parametrize("name", ["split_is_none", "split_without_batch"])
def test_a_split_that_breaks_its_contract_is_refused(
    registry: Registry, broken: Callable[[str], str], name: str
) -> None:
    source = build_dataset(registry, broken(name), Path())
    with pytest.raises(BrokenContract, match="NoneType") as refused:
        get_split(source, "test")
    assert refused.value.hint


SHARE_MEMORY_SPLIT = """
import json, sys
import torch
from wmr_cli.core.data.splits import MemorySource, MemorySplit
from wmr_cli.runtime import datasets
from wmr_cli.runtime.fabric import Hardware, launch

reads = []

def make_split():
    reads.append(1)
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (1000, 1, 28, 28), dtype=torch.uint8, generator=generator)
    return MemorySplit(images, torch.arange(1000) % 10, 5 + torch.arange(1000))

def fail_to_save(tensors, file):
    with open(file, "wb") as half:
        half.write(b"half")
    raise OSError("no space left on device")

if "disk-full" in sys.argv:
    datasets.save_file = fail_to_save
ranks = launch(Hardware("cpu", 2)).ranks
split = datasets.share_split(make_split, ranks)
result = {"reads": len(reads), "sha256": split.sha256, "expected": make_split().sha256}
result["index"] = split.batch(torch.arange(2)).index.tolist()
with open("/proc/self/maps") as maps:
    result["is_mapped"] = "split.safetensors" in maps.read()
source = MemorySource(10, {"train": split, "val": split}, class_names=("a",))
shared = datasets.share_dataset(source, ranks)
result["splits"] = sorted(shared.splits)
result["is_equal"] = (
    shared.num_classes == source.num_classes
    and shared.input_shape == source.input_shape
    and shared.class_names == source.class_names
)
with open(f"rank{ranks.index}.json", "w") as file:
    json.dump(result, file)
ranks.barrier()
"""

SHARE_IMAGE_FILES = """
import json
from pathlib import Path
import numpy as np, torch
from PIL import Image
from wmr_cli.core.data import image_files
from wmr_cli.core.data.image_files import Decoder, ImageFileSplit
from wmr_cli.core.data.splits import Source
from wmr_cli.runtime.datasets import share_dataset, share_hash
from wmr_cli.runtime.fabric import Hardware, launch

ranks = launch(Hardware("cpu", 2)).ranks
paths = [Path(f"{number}.png") for number in range(12)]
if ranks.index == 0:
    for number, path in enumerate(paths):
        Image.fromarray(np.full((5, 4, 3), 20 * number, dtype=np.uint8)).save(path)
ranks.barrier()
decoded, decode = [], ImageFileSplit._decode
ImageFileSplit._decode = lambda self, path: decoded.append(path) or decode(self, path)
numbers = torch.arange(12)
split = ImageFileSplit(paths, numbers % 2, numbers, Decoder(), (3, 5, 4), "images", 1)
source = share_dataset(Source(2, (3, 5, 4), {"train": split, "val": split}), ranks)
source.splits["train"].prepare()
pixels = source.splits["train"].batch(numbers).images
result = {"decoded": len(decoded), "pixels": (255 * pixels[:, 0, 0, 0]).round().tolist()}
result["type"] = type(source.splits["val"]).__name__
hashed, file_hash = [], image_files._file_hash
image_files._file_hash = lambda path: hashed.append(path) or file_hash(path)
shared = share_hash(split, ranks).sha256
result["hashed"] = len(hashed)
result["is_equal"] = source.splits["train"].sha256 == split.sha256 == shared
with open(f"rank{ranks.index}.json", "w") as file:
    json.dump(result, file)
ranks.barrier()
"""


def run_two_ranks(tmp_path: Path, script: str, *args: str) -> list[dict[str, Any]]:
    """Run a script on two ranks, and return the results that they have written."""
    (tmp_path / "script.py").write_text(script, encoding="utf-8")
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    environment = {**os.environ, "TMPDIR": str(temporary)}
    command = [sys.executable, "script.py", *args]
    subprocess.run(command, cwd=tmp_path, env=environment, check=True, timeout=120)
    assert not list(temporary.glob("wmr-*")), "temporary files are removed"
    files = [tmp_path / f"rank{rank}.json" for rank in (0, 1)]
    return [json.loads(file.read_text(encoding="utf-8")) for file in files]


reads_proc = pytest.mark.skipif(sys.platform != "linux", reason="/proc lists mapped files")


@reads_proc
def test_rank_0_reads_the_images_and_all_ranks_map_them(tmp_path: Path) -> None:
    first, second = run_two_ranks(tmp_path, SHARE_MEMORY_SPLIT)
    assert first["reads"] == 1
    assert second["reads"] == 0
    for result in (first, second):
        assert result["sha256"] == result["expected"]
        assert result["index"] == [5, 6]
        assert result["is_mapped"]
        assert result["splits"] == ["train", "val"]
        assert result["is_equal"]


@reads_proc
def test_every_rank_reads_by_itself_if_the_disk_is_full(tmp_path: Path) -> None:
    for result in run_two_ranks(tmp_path, SHARE_MEMORY_SPLIT, "disk-full"):
        assert result["reads"] == 1
        assert result["sha256"] == result["expected"]
        assert not result["is_mapped"]


@pytest.mark.slow
def test_image_files_are_decoded_by_rank_0_only(tmp_path: Path) -> None:
    first, second = run_two_ranks(tmp_path, SHARE_IMAGE_FILES)
    assert first.pop("decoded") == 12
    assert second.pop("decoded") == 0
    assert first.pop("hashed") == 12
    assert second.pop("hashed") == 0
    pixels = [20.0 * number for number in range(12)]
    expected = {"pixels": pixels, "type": "ImageFileSplit", "is_equal": True}
    assert first == expected
    assert second == expected

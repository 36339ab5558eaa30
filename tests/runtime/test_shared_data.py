"""Processes of one machine hold one copy of the images."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import json, os, sys
import torch
from wmr_cli.core.data.splits import MemorySource, MemorySplit
from wmr_cli.errors import BadFile
from wmr_cli.runtime.fabric import Hardware, launch
from wmr_cli.runtime.shared_data import share_dataset, share_split

reads = []

def made():
    reads.append(1)
    if "broken" in sys.argv and os.environ.get("LOCAL_RANK", "0") == "0":
        raise BadFile("the images are damaged")
    images = torch.randint(0, 256, (1000, 1, 28, 28), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    return MemorySplit(images, torch.arange(1000) % 10, 5 + torch.arange(1000))

if "no-room" in sys.argv:
    import wmr_cli.runtime.shared_data as sharing
    def full(tensors, file):
        with open(file, "wb") as half:
            half.write(b"half")
        raise OSError("no space left on device")
    sharing.save_file = full
ranks = launch(Hardware("cpu", 2)).ranks
try:
    split = share_split(made, ranks)
    told = {"reads": len(reads), "sha256": split.sha256, "expected": made().sha256}
    told["batch"] = split.batch(torch.arange(2)).index.tolist()
    with open("/proc/self/maps") as maps:
        told["mapped"] = "split.safetensors" in maps.read()
    source = share_dataset(MemorySource(10, {"train": split, "val": split}, class_names=("a",)), ranks)
    told["source"] = [source.num_classes, source.input_shape, sorted(source.splits), source.class_names]
except BadFile as problem:
    told = {"problem": str(problem)}
with open(f"rank{ranks.index}.json", "w") as file:
    json.dump(told, file)
ranks.barrier()
"""


PICTURES = """
import json
from pathlib import Path
import numpy as np, torch
from PIL import Image
from wmr_cli.core.data.image_files import Decoder, ImageFileSplit
from wmr_cli.core.data.splits import Source
from wmr_cli.runtime.fabric import Hardware, launch
from wmr_cli.runtime.shared_data import share_dataset

ranks, paths = launch(Hardware("cpu", 2)).ranks, [Path(f"{number}.png") for number in range(12)]
if ranks.index == 0:
    for number, path in enumerate(paths):
        Image.fromarray(np.full((5, 4, 3), 20 * number, dtype=np.uint8)).save(path)
ranks.barrier()
decoded, decode = [], ImageFileSplit._decode
ImageFileSplit._decode = lambda self, path: decoded.append(path) or decode(self, path)
split = ImageFileSplit(paths, torch.arange(12) % 2, torch.arange(12), Decoder(), (3, 5, 4), "pictures", 1)
source = share_dataset(Source(2, (3, 5, 4), {"train": split, "val": split}), ranks)
source.splits["train"].prepare()
pixels = source.splits["train"].batch(torch.arange(12)).images
told = {"decoded": len(decoded), "pixels": (255 * pixels[:, 0, 0, 0]).round().tolist()}
told["type"] = type(source.splits["val"]).__name__
told["same"] = source.splits["train"].sha256 == split.sha256
with open(f"rank{ranks.index}.json", "w") as file:
    json.dump(told, file)
ranks.barrier()
"""


def told_by_both(
    tmp_path: Path, *words: str, script: str = SCRIPT
) -> list[dict[str, bool | int | list[float] | str]]:
    (tmp_path / "script.py").write_text(script, encoding="utf-8")
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    environment = {**os.environ, "TMPDIR": str(temporary)}
    subprocess.run(
        [sys.executable, "script.py", *words],
        cwd=tmp_path,
        env=environment,
        check=True,
        timeout=120,
    )
    assert not list(temporary.glob("wmr-*")), "what is mapped needs no name"
    return [
        json.loads((tmp_path / f"rank{rank}.json").read_text(encoding="utf-8")) for rank in (0, 1)
    ]


@pytest.mark.skipif(sys.platform != "linux", reason="/proc tells what is mapped")
def test_the_first_process_reads_and_all_map_what_it_read(tmp_path: Path) -> None:
    first, second = told_by_both(tmp_path)
    assert (first["reads"], second["reads"]) == (1, 0)
    for told in (first, second):
        assert told["sha256"] == told["expected"]
        assert told["batch"] == [5, 6]
        assert told["mapped"]
        assert told["source"] == [10, [1, 28, 28], ["train", "val"], ["a"]]


@pytest.mark.skipif(sys.platform != "linux", reason="/proc tells what is mapped")
def test_without_room_for_a_file_everybody_reads(tmp_path: Path) -> None:
    for told in told_by_both(tmp_path, "no-room"):
        assert told["reads"] == 1
        assert told["sha256"] == told["expected"]
        assert not told["mapped"]


def test_what_the_first_cannot_read_is_an_error_of_all(tmp_path: Path) -> None:
    assert told_by_both(tmp_path, "broken") == [{"problem": "the images are damaged"}] * 2


def test_pictures_are_decoded_by_the_first_alone(tmp_path: Path) -> None:
    first, second = told_by_both(tmp_path, script=PICTURES)
    assert (first.pop("decoded"), second.pop("decoded")) == (12, 0)
    assert (
        first
        == second
        == {
            "pixels": [20.0 * number for number in range(12)],
            "type": "ImageFileSplit",
            "same": True,
        }
    )

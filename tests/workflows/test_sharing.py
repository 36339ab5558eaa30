"""Processes of one machine hold one copy of the images."""

import json
import os
import subprocess
import sys

import pytest

SCRIPT = """
import json, os, sys
import torch
from wmr_cli.core.splits import MemorySource, MemorySplit
from wmr_cli.errors import BadFile
from wmr_cli.workflows.ranks import launched
from wmr_cli.workflows.sharing import shared, shared_split

reads = []

def made():
    reads.append(1)
    if "broken" in sys.argv and os.environ.get("LOCAL_RANK", "0") == "0":
        raise BadFile("the images are damaged")
    images = torch.randint(0, 256, (1000, 1, 28, 28), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    return MemorySplit(images, torch.arange(1000) % 10, 5 + torch.arange(1000))

if "no-room" in sys.argv:
    import wmr_cli.workflows.sharing as sharing
    def full(tensors, file):
        with open(file, "wb") as half:
            half.write(b"half")
        raise OSError("no space left on device")
    sharing.save_file = full
fabric = launched("cpu", 2)
try:
    split = shared_split(made, fabric)
    told = {"reads": len(reads), "sha256": split.sha256, "expected": made().sha256}
    told["batch"] = split.batch(torch.arange(2)).index.tolist()
    with open("/proc/self/maps") as maps:
        told["mapped"] = "split.safetensors" in maps.read()
    source = shared(MemorySource(10, {"train": split, "val": split}, class_names=("a",)), fabric)
    told["source"] = [source.num_classes, source.input_shape, sorted(source.splits), source.class_names]
except BadFile as problem:
    told = {"problem": str(problem)}
with open(f"rank{fabric.global_rank}.json", "w") as file:
    json.dump(told, file)
fabric.barrier()
"""


def told_by_both(tmp_path, *words):
    (tmp_path / "script.py").write_text(SCRIPT, encoding="utf-8")
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    environment = {**os.environ, "TMPDIR": str(temporary)}
    subprocess.run([sys.executable, "script.py", *words], cwd=tmp_path, env=environment, check=True, timeout=120)
    assert not list(temporary.glob("wmr-*")), "what is mapped needs no name"
    return [json.loads((tmp_path / f"rank{rank}.json").read_text(encoding="utf-8")) for rank in (0, 1)]


@pytest.mark.skipif(sys.platform != "linux", reason="/proc tells what is mapped")
def test_the_first_process_reads_and_all_map_what_it_read(tmp_path):
    first, second = told_by_both(tmp_path)
    assert (first["reads"], second["reads"]) == (1, 0)
    for told in (first, second):
        assert told["sha256"] == told["expected"]
        assert told["batch"] == [5, 6]
        assert told["mapped"]
        assert told["source"] == [10, [1, 28, 28], ["train", "val"], ["a"]]


@pytest.mark.skipif(sys.platform != "linux", reason="/proc tells what is mapped")
def test_without_room_for_a_file_everybody_reads(tmp_path):
    for told in told_by_both(tmp_path, "no-room"):
        assert told["reads"] == 1
        assert told["sha256"] == told["expected"]
        assert not told["mapped"]


def test_what_the_first_cannot_read_is_an_error_of_all(tmp_path):
    assert told_by_both(tmp_path, "broken") == [{"problem": "the images are damaged"}] * 2

"""Compare how fast two versions of `wmr` decode JPEG files, in several processes at once.

`python -m benchmarks.decoding OTHER/src`: rates of the version in OTHER and of this one, each from
files to checked batches in the memory of the host, and the ratio. The versions alternate.
"""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import numpy as np
import torch
import typer
from PIL import Image

from wmr_cli.benchmarking.timing import quartiles, time_alternately, time_ratio
from wmr_cli.core.data import image_files
from wmr_cli.core.data.image_files import Decoder, ImageFileSplit
from wmr_cli.core.data.splits import read_ahead
from wmr_cli.core.protocols import Batch
from wmr_cli.core.run_attack import check_batch

THIS_SOURCE = Path(__file__).parent.parent / "src"
BATCH = 128
SIZE = 224
RESIZE = 256
NUM_CLASSES = 2


def main(
    other: Annotated[Path, typer.Argument(help="Folder src of another version.")],
    images: Annotated[int, typer.Option(help="JPEG files of about 500 x 400 pixels.")] = 5000,
    ranks: Annotated[int, typer.Option(help="Processes that decode at once.")] = 2,
    rounds: Annotated[int, typer.Option(help="Measurements of each version.")] = 5,
) -> None:
    """Compare the rates of two versions."""
    cores = len(os.sched_getaffinity(0))
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        folder = Path(name)
        with ProcessPoolExecutor() as pool:
            list(pool.map(partial(save_photo, folder), range(images), chunksize=50))
        # 0: earlier versions start a thread per core in every process
        threads = {"other": 0, "this": max(1, cores // ranks)}
        sources = {"other": other, "this": THIS_SOURCE}
        functions = {
            version: stack.enter_context(start_ranks(source, folder, ranks, threads[version]))
            for version, source in sources.items()
        }
        for decode in functions.values():  # warm-up
            decode()
        times = time_alternately(functions, rounds)
    for version, seconds in times.items():
        typer.echo(f"{version}: {images / quartiles(seconds).median:.0f} images/s")
    ratio = time_ratio(times["other"], times["this"])
    typer.echo(f"ratio: {ratio.median:.2f} ({ratio.low:.2f} to {ratio.high:.2f})")


def save_photo(folder: Path, number: int) -> None:
    """Write an image with smooth areas and noise, as photos have."""
    rng = np.random.default_rng(number)
    width, height = rng.integers((440, 350), (561, 451)).tolist()
    coarse = rng.integers(0, 256, (height // 16, width // 16, 3), dtype=np.uint8)
    smooth = np.asarray(Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC))
    noisy = smooth.astype(np.int16) + rng.integers(-12, 13, (height, width, 1))
    photo = Image.fromarray(noisy.clip(0, 255).astype(np.uint8))
    photo.save(folder / f"{number:06d}.jpg", quality=90)


@contextmanager
def start_ranks(source: Path, folder: Path, ranks: int, threads: int) -> "Iterator[partial[None]]":
    """Start processes with the version in `source`; yield a function that lets all decode once."""
    environment = {**os.environ, "PYTHONPATH": str(source), "OMP_NUM_THREADS": "1"}
    with ExitStack() as stack:
        processes = []
        for rank in range(ranks):
            command = [sys.executable, __file__, str(folder), str(rank), str(ranks), str(threads)]
            process = subprocess.Popen(
                command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE
            )
            processes.append(stack.enter_context(process))
        yield partial(run_once, processes)
        for process in processes:
            assert process.stdin is not None
            process.stdin.close()


def run_once(processes: "list[subprocess.Popen[bytes]]") -> None:
    """Let all processes decode their images, and wait for all of them."""
    for process in processes:
        assert process.stdin is not None
        process.stdin.write(b"\n")
        process.stdin.flush()
    for process in processes:
        assert process.stdout is not None
        if not process.stdout.readline():
            raise SystemExit("a process has failed")


def decode_on_request(folder: Path, rank: int, ranks: int, threads: int) -> None:
    """Decode this rank's images once per line on stdin."""
    image_files.MAX_BYTES_IN_MEMORY = 0
    paths = sorted(folder.iterdir())[rank::ranks]
    index = torch.arange(len(paths))
    shape = (3, SIZE, SIZE)
    split = ImageFileSplit(
        paths, torch.zeros_like(index), index, Decoder(3, SIZE, RESIZE), shape, workers=threads
    )
    for _ in sys.stdin:
        started = time.perf_counter()
        for _batch in load_checked(split, index.split(BATCH)):
            pass
        sys.stdout.write(f"{time.perf_counter() - started}\n")
        sys.stdout.flush()


def load_checked(split: ImageFileSplit, order: tuple[torch.Tensor, ...]) -> Iterator[Batch]:
    """Yield batches as a training of this version loads them."""
    if find_spec("wmr_cli.training.batches") is not None:
        from wmr_cli.training.batches import CheckedSplit

        yield from read_ahead(CheckedSplit(split, NUM_CLASSES, pins=False), order)
        return
    # versions up to 0.1 check a batch between two steps, in the thread that trains
    for batch in read_ahead(split, order):
        check_batch(batch, NUM_CLASSES)
        yield batch


if __name__ == "__main__":
    if len(sys.argv) == 5 and sys.argv[2].isdigit():
        decode_on_request(Path(sys.argv[1]), *map(int, sys.argv[2:]))
    else:
        typer.run(main)

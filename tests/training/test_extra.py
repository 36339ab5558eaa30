"""Extra images: exact fractions, own indices, predicted labels, and runs that resume with them."""

import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from support.training import train
from support.typed import instance_of, not_none, stop
from wmr_cli.config import TrainConfig, resolve
from wmr_cli.core.data.augment import Augmentation
from wmr_cli.core.data.splits import JoinedSplit, MemorySplit
from wmr_cli.core.protocols import Batch, Split
from wmr_cli.errors import BadInput, RunFolderError, WmrError
from wmr_cli.events import Message, StepDone
from wmr_cli.registry import Registry
from wmr_cli.runtime import components
from wmr_cli.runtime.fabric import Hardware, launch
from wmr_cli.storage import checkpoints
from wmr_cli.storage.checkpoints import ExtraData
from wmr_cli.storage.runs import RunFolder
from wmr_cli.training import batches as batches_module
from wmr_cli.training.batches import TrainingBatches
from wmr_cli.training.compatibility import check_batch_size, divide_batch
from wmr_cli.training.extra import ExtraImages, add_extra, spread
from wmr_cli.training.loop import make_batches
from wmr_cli.training.setup import TrainingSetup, set_up_training

CPU = torch.device("cpu")
MODEL = "digits-cnn:width=2,hidden=8"
MAIN, VALIDATION, EXTRA = 60, 12, 100
ONCE = 1e-9
"""Minutes: the state is saved after every step."""


def make_arrays(
    count: int, seed: int, classes: int = 3, shape: tuple[int, int] = (8, 8)
) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Return bytes (count, 8, 8) with similar classes, and their labels."""
    rng = np.random.default_rng(seed)
    labels = np.arange(count) % classes
    images = labels[:, None, None] * 60 + rng.integers(0, 100, (count, *shape))
    return images.astype(np.uint8), labels


@pytest.fixture
def settings(tmp_path: Path) -> dict[str, Any]:
    """Write a main and an extra dataset, and return settings of a short run on both."""
    parts: dict[str, Any] = {}
    for seed, (name, count) in enumerate({"train": MAIN, "val": VALIDATION, "test": 12}.items()):
        parts[f"{name}_images"], parts[f"{name}_labels"] = make_arrays(count, seed)
    np.savez(tmp_path / "main.npz", **parts)
    images, labels = make_arrays(EXTRA, 9)
    np.savez(tmp_path / "extra.npz", images=images, labels=labels)
    return {
        "dataset": f"arrays:path={tmp_path}/main.npz",
        "extra": f"arrays:path={tmp_path}/extra.npz",
        "extra_fraction": 0.6,
        "batch_size": 10,
        "model": MODEL,
        "defense": "natural",
        "steps": 1,
        "epochs": 2,
        "validate_every": 2,
        "augment": "crop:1,flip",
    }


def run(settings: dict[str, Any], path: Path, registry: Registry, **more: Any) -> list[Any]:
    return list(train(resolve(settings), path, registry, **more))


def set_up(settings: dict[str, Any], registry: Registry) -> TrainingSetup:
    return set_up_training(resolve(settings), registry, Path(), launch(Hardware("cpu"), "32"))


def read_result(path: Path) -> tuple[dict[str, bytes], list[dict[str, Any]]]:
    """Return the weights, and the log without times."""
    weights = {
        name: tensor.numpy().tobytes()
        for name, tensor in checkpoints.load(path / "last.safetensors").tensors.items()
    }
    log = [
        {name: value for name, value in entry.items() if name != "images_per_second"}
        for entry in RunFolder(path).read_log()
    ]
    return weights, log


def make_split(count: int, seed: int = 0, first: int = 0) -> MemorySplit:
    generator = torch.Generator().manual_seed(seed)
    images = torch.randint(0, 256, (count, 1, 4, 4), dtype=torch.uint8, generator=generator)
    return MemorySplit(images, torch.arange(count) % 3, first + torch.arange(count))


def make_extra(count: int) -> ExtraImages:
    split = make_split(count, seed=1)
    return ExtraImages(split, split.labels, 1000, ExtraData("x", 0.5, "", None))


# ---- batches ----


@pytest.mark.parametrize(
    ("fraction", "size", "main", "extra"), [(0.7, 10, 3, 7), (0.5, 64, 32, 32), (0.1, 128, 115, 13)]
)
def test_every_batch_has_the_fraction(fraction: float, size: int, main: int, extra: int) -> None:
    config = TrainConfig(extra="x", extra_fraction=fraction, batch_size=size)
    assert divide_batch(config) == (main, extra)
    images = 20 * main
    parts = make_batches(make_split(images), config, 0, make_extra(1000))
    assert len(parts) == 20
    for part in parts:
        assert len(part) == size
        assert int((part >= images).sum()) == extra


def test_an_epoch_is_one_pass_over_the_training_split() -> None:
    config = TrainConfig(extra="x", extra_fraction=0.6, batch_size=10)
    split = make_split(63)
    parts = make_batches(split, config, 0, make_extra(50))
    assert len(parts) == 16
    own = torch.cat(parts)
    assert sorted(own[own < 63].tolist()) == list(range(63))
    for part in parts:
        main = int((part < 63).sum())
        # 6 extra images for 4 training images, rounded
        assert len(part) - main == (6 * main + 2) // 4


def test_batches_are_a_function_of_seed_and_epoch() -> None:
    config = TrainConfig(extra="x", extra_fraction=0.6, batch_size=10)
    split = make_split(60)
    extra = make_extra(50)
    for epoch in (0, 3):
        one = make_batches(split, config, epoch, extra)
        two = make_batches(split, config, epoch, extra)
        assert all(map(torch.equal, one, two))
    other = make_batches(split, msgspec.structs.replace(config, seed=1), 0, extra)
    first = make_batches(split, config, 0, extra)
    assert not torch.equal(torch.cat(first), torch.cat(other))
    assert not torch.equal(torch.cat(first), torch.cat(make_batches(split, config, 1, extra)))


def test_a_pass_over_the_extra_images_continues_in_the_next_epoch() -> None:
    config = TrainConfig(extra="x", extra_fraction=0.6, batch_size=10)
    split = make_split(60)
    extra = make_extra(20 * 6)
    used = [
        part[part >= 60] for epoch in range(4) for part in make_batches(split, config, epoch, extra)
    ]
    # 15 steps in an epoch, 20 in a pass
    passes = [torch.cat(used[first : first + 20]).tolist() for first in (0, 20, 40)]
    for own in passes:
        assert sorted(own) == list(range(60, 180))
    assert passes[0] != passes[1]


def test_no_batch_has_an_image_twice() -> None:
    config = TrainConfig(extra="x", extra_fraction=0.6, batch_size=10)
    for epoch in range(3):
        for part in make_batches(make_split(60), config, epoch, make_extra(7)):
            assert len(part.unique()) == len(part) == 10


@pytest.mark.parametrize(("main", "extra"), [(3, 7), (7, 3), (19, 45), (1, 9), (5, 5)])
def test_extra_images_are_spread_evenly(main: int, extra: int) -> None:
    merged = spread(torch.zeros(main).long(), torch.ones(extra).long())
    assert merged.sum() == extra
    total = main + extra
    for first in range(total):
        for last in range(first + 1, total + 1):
            count = int(merged[first:last].sum())
            assert abs(count - (last - first) * extra / total) < 1


def test_without_extra_images_batches_are_those_of_before() -> None:
    config = TrainConfig(batch_size=10)
    split = make_split(63)
    assert divide_batch(config) == (10, 0)
    assert all(map(torch.equal, make_batches(split, config, 2), make_batches(split, config, 2)))
    assert sorted(torch.cat(make_batches(split, config, 2)).tolist()) == list(range(63))


def test_ranks_need_two_images_of_the_whole_batch() -> None:
    config = TrainConfig(extra="x", extra_fraction=0.5, batch_size=8)
    check_batch_size(config, images=40, ranks=4)
    with pytest.raises(BadInput, match="8 images"):
        check_batch_size(config, images=40, ranks=5)


# ---- the joined split ----


class FileSplit(MemorySplit):
    """A split whose batches are read in threads."""

    streams = True


def join(first: Split, second: Split, labels: Tensor) -> JoinedSplit:
    return JoinedSplit(first, second, labels, 500)


ORDER = [torch.tensor([3, 11, 0, 17]), torch.tensor([1, 2]), torch.tensor([10, 19])]
"""Positions of both splits, of the first, and of the second."""


def read(split: Split) -> list[Batch]:
    made = TrainingBatches(
        split,
        device=CPU,
        num_classes=3,
        augment=Augmentation(padding=1, flips=True),
        seed=1,
        memory_format=torch.contiguous_format,
    )
    return list(made.read(ORDER, epoch=2))


def test_a_joined_split_has_the_images_of_both_with_new_labels_and_indices() -> None:
    first, second = make_split(10), make_split(10, seed=1)
    labels = (torch.arange(10) + 1) % 3
    joined = join(first, second, labels)
    assert len(joined) == 20
    batch = joined.batch(ORDER[0])
    for row, position in enumerate(ORDER[0].tolist()):
        source, own = (first, position) if position < 10 else (second, position - 10)
        expected = source.batch(torch.tensor([own]))
        assert torch.equal(batch.images[row], expected.images[0])
        assert batch.labels[row] == (labels[own] if position >= 10 else first.labels[own])
        assert batch.index[row] == (500 + own if position >= 10 else own)
    assert torch.equal(joined.labels, torch.cat([first.labels, labels]))
    assert joined.sha256 != join(first, second, second.labels).sha256


@pytest.mark.parametrize("floats", [False, True])
@pytest.mark.parametrize("streams", [False, True])
def test_batches_do_not_depend_on_where_images_are(
    floats: bool, streams: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = make_split(10), make_split(10, seed=1)
    if floats:
        second = MemorySplit(second.images.float() / 255, second.labels, second.index)
    expected = read(join(first, second, second.labels))
    if streams:
        second = FileSplit(second.images, second.labels, second.index)
        assert join(first, second, second.labels).streams
    else:
        monkeypatch.setattr(batches_module, "fits_on_device", lambda parts, device: True)
    for one, other in zip(read(join(first, second, second.labels)), expected, strict=True):
        assert one.images.dtype == torch.float32
        assert torch.equal(one.images, other.images)
        assert torch.equal(one.labels, other.labels)
        assert torch.equal(one.index, other.index)


def test_both_parts_have_to_fit_on_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    parts = batches_module.find_images_in_memory(
        join(make_split(10), make_split(30), make_split(30).labels)
    )
    assert [len(part) for part in parts] == [10, 30]
    needed = 4 * 40 * 16
    for free, fits in ((needed, True), (needed - 4, False)):
        monkeypatch.setattr(batches_module, "free_memory", lambda device, free=free: free)
        assert batches_module.fits_on_device(parts, torch.device("meta")) is fits


# ---- runs ----


def test_a_run_trains_on_both_and_records_it(
    settings: dict[str, Any], tmp_path: Path, registry: Registry
) -> None:
    events = run(settings, tmp_path / "run", registry)
    steps = [event for event in events if isinstance(event, StepDone)]
    assert [event.images for event in steps] == [10] * 30
    for entry in RunFolder(tmp_path / "run").read_log():
        assert entry["extra_images"] == 90
    texts = [event.text for event in events if isinstance(event, Message)]
    assert any("100 extra images" in text and "statistics cover both" in text for text in texts)
    checkpoint = checkpoints.load(tmp_path / "run" / "last.safetensors")
    extra = not_none(checkpoint.extra)
    assert (extra.dataset, extra.fraction, extra.labels) == (settings["extra"], 0.6, None)
    assert extra == not_none(set_up(settings, registry).extra).data
    assert checkpoint.config.extra == settings["extra"]
    run(settings, tmp_path / "again", registry)
    assert read_result(tmp_path / "run") == read_result(tmp_path / "again")


def test_a_run_without_extra_images_stores_nothing_about_them(
    settings: dict[str, Any], tmp_path: Path, registry: Registry
) -> None:
    del settings["extra"]
    run(settings, tmp_path / "run", registry)
    for name in ("last", "resume"):
        _, header = checkpoints.load_tensors(tmp_path / "run" / f"{name}.safetensors")
        assert not {"extra", "stale"} & header.keys()
    assert checkpoints.load(tmp_path / "run" / "last.safetensors").extra is None
    assert all("extra_images" not in entry for entry in RunFolder(tmp_path / "run").read_log())


def test_indices_of_extra_images_follow_those_of_all_splits(
    settings: dict[str, Any], registry: Registry
) -> None:
    setup = set_up(settings, registry)
    extra = not_none(setup.extra)
    assert extra.offset == MAIN + VALIDATION + 12
    own = set(extra.offset + np.arange(EXTRA))
    for split in setup.source.splits.values():
        assert not own & set(instance_of(MemorySplit, split).index.tolist())
    order = make_batches(setup.split, setup.config, 0, extra)
    seen = torch.cat([batch.index for batch in setup.batches.read(order, 0)])
    assert set(seen.tolist()) <= set(range(MAIN)) | own
    # and the validation set is that of the main dataset
    assert len(setup.validation_split) == VALIDATION


def test_files_without_splits_are_used_whole_and_other_datasets_by_their_training_split(
    settings: dict[str, Any], registry: Registry
) -> None:
    assert len(not_none(set_up(settings, registry).extra).split) == EXTRA
    settings["extra"] = settings["dataset"]
    setup = set_up(settings, registry)
    extra = not_none(setup.extra)
    assert torch.equal(
        extra.split.batch(torch.arange(MAIN)).images, setup.split.batch(torch.arange(MAIN)).images
    )


STATEFUL: Mapping[str, dict[str, Any]] = {
    "iaat": {"defense": "iaat:steps=1,warmup=0"},
    "free": {"defense": "free:m=2", "epochs": 4, "augment": "crop:1,mixup:0.5,cutmix"},
    "trades": {"defense": "trades", "augment": "jitter:0.2,randaugment,erase,mixup,flip"},
    "wat": {"defense": "trades:terms=both", "kernel": "wat:eta=1"},
    "predicted": {"extra_labels": "labels"},
}


@pytest.mark.parametrize("method", STATEFUL)
def test_a_run_stopped_within_an_epoch_resumes_bit_identically(
    method: str, settings: dict[str, Any], tmp_path: Path, registry: Registry
) -> None:
    settings |= STATEFUL[method]
    if method == "predicted":
        run({**settings, "extra_labels": None, "epochs": 1}, tmp_path / "labels", registry)
        settings["extra_labels"] = str(tmp_path / "labels")
    run(settings, tmp_path / "straight", registry)
    cut = train(resolve(settings), tmp_path / "cut", registry, save_minutes=ONCE)
    steps = 0
    while steps < 19:  # of 15 in an epoch
        steps += isinstance(next(cut), StepDone)
    stop(cut)
    run(settings, tmp_path / "cut", registry, resume=True)
    assert read_result(tmp_path / "cut") == read_result(tmp_path / "straight")
    if method == "iaat":
        tensors, _ = checkpoints.load_tensors(tmp_path / "cut" / "resume.safetensors")
        radii = tensors["defense/radii"]
        offset = MAIN + VALIDATION + 12
        assert len(radii) == offset + EXTRA
        # rows of validation and test images stay unused
        assert not radii[MAIN:offset].any()
        assert radii[:MAIN].any()
        assert radii[offset:].any()


STREAMED = """
import numpy as np, torch
from wmr_cli.core.data.splits import MemorySplit, MemorySource

class Streamed(MemorySplit):
    streams = True

    def batch(self, positions):
        return super().batch(positions)

def load(split_seed=0):
    rng = np.random.default_rng(3)
    labels = torch.arange(300) % 3
    noise = torch.from_numpy(rng.integers(0, 100, (300, 1, 8, 8)))
    images = labels[:, None, None, None] * 60 + noise
    split = Streamed(images.to(torch.uint8), labels, torch.arange(300))
    return MemorySource(3, {"train": split})
"""


@pytest.mark.slow
def test_a_killed_run_with_mixed_images_and_threads_resumes_bit_identically(
    settings: dict[str, Any], tmp_path: Path
) -> None:
    (tmp_path / "streamed.py").write_text(STREAMED, encoding="utf-8")
    settings |= {
        "extra": f"{tmp_path}/streamed.py:load",
        "defense": "pgd",
        "augment": "crop:1,jitter:0.3,erase,mixup:0.4,cutmix",
        "epochs": 30,
        "validate_every": 15,
    }
    words = [
        word
        for name, value in settings.items()
        for word in (f"--{name.replace('_', '-')}", str(value))
    ]
    command = [sys.executable, "-m", "wmr_cli", "train", *words, "--quiet", "--save-minutes"]
    subprocess.run([*command, "0", "--out", "straight"], check=True, timeout=240)
    running = subprocess.Popen([*command, "1e-9", "--out", "killed"])
    while running.poll() is None and len(RunFolder(Path("killed")).read_log()) < 2:
        time.sleep(0.02)
    running.kill()
    assert running.wait(60) == -9
    _, header = checkpoints.load_tensors(Path("killed/resume.safetensors"))
    assert int(header["epoch"]) < 30
    subprocess.run([*command, "0", "--out", "killed", "--resume"], check=True, timeout=240)
    assert read_result(Path("killed")) == read_result(Path("straight"))


# ---- predicted labels ----


def test_labels_are_the_predictions_of_the_checkpoint(
    settings: dict[str, Any], tmp_path: Path, registry: Registry
) -> None:
    run({**settings, "extra": None}, tmp_path / "teacher", registry)
    # meaningless labels of more classes: the checkpoint replaces them
    images, _ = make_arrays(EXTRA, 9)
    np.savez(tmp_path / "extra.npz", images=images, labels=np.full(EXTRA, 4))
    settings["extra_labels"] = str(tmp_path / "teacher" / "last.safetensors")
    setup = set_up(settings, registry)
    extra = not_none(setup.extra)
    teacher = checkpoints.load(tmp_path / "teacher" / "last.safetensors")
    model = components.restore_model(registry, teacher)
    with torch.no_grad():
        expected = model(torch.from_numpy(images)[:, None].float() / 255).argmax(dim=1)
    assert torch.equal(extra.labels, expected)
    assert len(expected.unique()) > 1
    assert extra.data.labels == teacher.sha256
    order = make_batches(setup.split, setup.config, 0, extra)
    for batch in setup.batches.read(order, 0):
        is_extra = batch.index >= extra.offset
        positions = batch.index[is_extra] - extra.offset
        assert torch.equal(batch.labels[is_extra], expected[positions])
    events = run(settings, tmp_path / "student", registry)
    assert any(isinstance(event, Message) and "predicted" in event.text for event in events)
    stored = not_none(checkpoints.load(tmp_path / "student" / "last.safetensors").extra)
    assert stored == extra.data


def test_other_labels_or_images_are_refused_on_resume(
    settings: dict[str, Any], tmp_path: Path, registry: Registry
) -> None:
    run(settings, tmp_path / "run", registry)
    images, labels = make_arrays(EXTRA, 9)
    labels[5] = (labels[5] + 1) % 3
    np.savez(tmp_path / "extra.npz", images=images, labels=labels)
    with pytest.raises(RunFolderError, match="extra"):
        run(settings, tmp_path / "run", registry, resume=True)


# ---- refusals ----


REFUSED: Mapping[str, tuple[dict[str, Any], str]] = {
    "fraction of 0": ({"extra_fraction": 0.0}, "`extra_fraction"),
    "only extra images": ({"extra_fraction": 0.99}, "`extra_fraction"),
    "labels without images": ({"extra": None, "extra_labels": "x"}, "`extra_labels`"),
    "a larger batch than all extra images": ({"batch_size": 200}, "100 images"),
    "other shape": ({}, "8x16"),
    "other classes": ({}, "5 classes"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_impossible_extra_images_are_refused_with_a_hint(
    case: str, settings: dict[str, Any], tmp_path: Path, registry: Registry
) -> None:
    changes, problem = REFUSED[case]
    if case == "other shape":
        images, labels = make_arrays(EXTRA, 9, shape=(8, 16))
        np.savez(tmp_path / "extra.npz", images=images, labels=labels)
    elif case == "other classes":
        images, labels = make_arrays(EXTRA, 9, classes=5)
        np.savez(tmp_path / "extra.npz", images=images, labels=labels)
    with pytest.raises(BadInput, match=problem) as refused:
        set_up({**settings, **changes}, registry)
    assert refused.value.hint


def test_another_division_of_the_main_dataset_is_refused(
    settings: dict[str, Any], registry: Registry
) -> None:
    settings["extra"] = settings["dataset"] + ",holdout=0"
    with pytest.raises(BadInput, match="division"):
        set_up(settings, registry)


def test_a_checkpoint_for_other_images_cannot_label(
    settings: dict[str, Any], tiny_run: Path, registry: Registry
) -> None:
    settings["extra_labels"] = str(tiny_run)
    with pytest.raises(BadInput, match="10 classes"):
        set_up(settings, registry)


def test_a_missing_checkpoint_is_refused(settings: dict[str, Any], registry: Registry) -> None:
    settings["extra_labels"] = "nowhere.safetensors"
    with pytest.raises(WmrError, match="does not exist"):
        set_up(settings, registry)


def test_relative_paths_are_stored_as_absolute_ones() -> None:
    config = resolve({"extra": "mine.py:load", "extra_labels": "runs/a"})
    assert config.extra == f"{Path.cwd()}/mine.py:load"
    assert config.extra_labels == f"{Path.cwd()}/runs/a"
    Path("config.json").write_text(config.to_json(), encoding="utf-8")
    assert resolve({}, Path("config.json")) == config
    without = resolve({})
    assert (without.extra, without.extra_labels) == (None, None)
    Path("config.json").write_text(without.to_json(), encoding="utf-8")
    assert resolve({}, Path("config.json")) == without


def test_add_extra_keeps_the_order_of_training_images() -> None:
    config = TrainConfig(extra="x", extra_fraction=0.6, batch_size=10)
    split = make_split(60)
    plain = torch.arange(60).split(4)
    mixed = add_extra(plain, make_extra(50), config, len(split), epoch=0)
    for own, merged in zip(plain, mixed, strict=True):
        assert torch.equal(merged[merged < 60], own)

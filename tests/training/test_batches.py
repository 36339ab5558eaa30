"""Training batches: equal from the host and from the device, checked, augmented."""

import threading
from pathlib import Path

import pytest
import torch
from PIL import Image
from torch import Tensor

from wmr_cli.core.data.augment import Augmentation
from wmr_cli.core.data.image_files import Decoder, ImageFileSplit
from wmr_cli.core.data.splits import MemorySplit
from wmr_cli.core.protocols import Batch
from wmr_cli.errors import BrokenContract
from wmr_cli.runtime import accelerators
from wmr_cli.training import batches
from wmr_cli.training.batches import TrainingBatches

CPU = torch.device("cpu")
ORDER = [torch.tensor([5, 2, 9]), torch.tensor([0, 7])]


def make_split(labels: int = 3) -> MemorySplit:
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (10, 3, 8, 8), dtype=torch.uint8, generator=generator)
    return MemorySplit(images, torch.arange(10) % labels, 100 + torch.arange(10))


def make_batches(split: MemorySplit) -> TrainingBatches:
    return TrainingBatches(
        split,
        device=CPU,
        num_classes=3,
        augment=Augmentation(padding=2, flips=True),
        seed=1,
        memory_format=torch.channels_last,
    )


@pytest.fixture
def keep_splits_on_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """Treat the CPU as a device with enough memory."""
    monkeypatch.setattr(batches, "fits_on_device", lambda split, device: True)


def read(made: TrainingBatches, epoch: int) -> list[Batch]:
    return list(made.read(ORDER, epoch))


@pytest.mark.parametrize("epoch", [0, 3])
def test_batches_of_a_split_on_the_device_equal_those_from_the_host(
    epoch: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    from_host = make_batches(make_split())
    assert not from_host.on_device
    monkeypatch.setattr(batches, "fits_on_device", lambda split, device: True)
    from_device = make_batches(make_split())
    assert from_device.on_device
    for one, other in zip(read(from_host, epoch), read(from_device, epoch), strict=True):
        assert torch.equal(one.images, other.images)
        assert torch.equal(one.labels, other.labels)
        assert torch.equal(one.index, other.index)
        assert one.images.stride() == other.images.stride()


def test_batches_are_augmented_by_epoch_and_index_alone() -> None:
    made = make_batches(make_split())
    first, second = read(made, 0)
    assert first.index.tolist() == [105, 102, 109]
    assert first.images.is_contiguous(memory_format=torch.channels_last)
    (alone,) = made.read([torch.tensor([7])], 0)
    assert torch.equal(alone.images, second.images[1:])
    assert not torch.equal(first.images, read(made, 1)[0].images)


def test_a_label_outside_the_classes_is_refused_from_the_host() -> None:
    made = make_batches(make_split(labels=4))
    with pytest.raises(BrokenContract, match="image 107"):
        read(made, 0)


@pytest.mark.usefixtures("keep_splits_on_device")
def test_a_label_outside_the_classes_is_refused_before_a_split_is_copied() -> None:
    with pytest.raises(BrokenContract, match="image 103"):
        make_batches(make_split(labels=4))


@pytest.mark.parametrize(("free", "fits"), [(40 * 192, True), (40 * 192 - 8, False)])
def test_a_split_is_copied_if_it_needs_a_quarter_of_the_free_memory(
    free: int, fits: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batches, "free_memory", lambda device: free)
    assert batches.fits_on_device([make_split()], torch.device("meta")) is fits
    assert not batches.fits_on_device([make_split()], CPU)


def test_free_memory_is_guessed_where_torch_does_not_report_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # as before torch 2.5
    monkeypatch.delattr(torch.mps, "recommended_max_memory", raising=False)
    assert accelerators.free_memory(torch.device("mps")) == accelerators.UNKNOWN_MEMORY


def test_bytes_are_copied_and_pinned_before_they_become_floats(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pinned: list[torch.dtype] = []
    threads: set[int] = set()

    def pin(values: Tensor) -> Tensor:
        pinned.append(values.dtype)
        threads.add(threading.get_ident())
        return values

    monkeypatch.setattr(Tensor, "pin_memory", pin)
    expected = read(make_batches(make_split()), 0)
    assert not pinned
    monkeypatch.setattr(batches, "copies_without_blocking", lambda device: True)
    for one, other in zip(read(make_batches(make_split()), 0), expected, strict=True):
        assert torch.equal(one.images, other.images)
    assert pinned.count(torch.uint8) == len(ORDER)
    assert torch.float32 not in pinned
    assert threading.get_ident() not in threads


@pytest.mark.usefixtures("keep_splits_on_device")
def test_image_files_in_memory_are_copied_to_the_device(tmp_path: Path) -> None:
    paths = []
    for number in range(10):
        paths.append(tmp_path / f"{number}.png")
        Image.new("RGB", (8, 8), (20 * number, 0, 0)).save(paths[-1])
    numbers = torch.arange(10)
    files = ImageFileSplit(paths, numbers % 3, numbers, Decoder(), (3, 8, 8))
    place = batches.place_on_device
    assert place(files, CPU) is files
    files.prepare()
    placed = place(files, CPU)
    assert isinstance(placed, MemorySplit)
    assert torch.equal(placed.batch(numbers).images, files.batch(numbers).images)


def test_batches_from_files_are_read_in_another_thread() -> None:
    threads = set()

    class FileSplit(MemorySplit):
        streams = True

        def batch(self, positions: Tensor) -> Batch:
            threads.add(threading.get_ident())
            return super().batch(positions)

    split = make_split()
    from_files = make_batches(FileSplit(split.images, split.labels, split.index))
    for one, other in zip(read(from_files, 0), read(make_batches(split), 0), strict=True):
        assert torch.equal(one.images, other.images)
    assert threads
    assert threading.get_ident() not in threads

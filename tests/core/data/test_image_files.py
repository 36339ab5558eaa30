"""Picture files: decoded as torchvision does, refused where pixels would be changed silently, streamed where there are many."""

import contextlib
import hashlib
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from support.miniature_datasets import picture_tree
from support.special_files import IRREGULAR, time_limit
from support.typed import stop
from wmr_cli.core.contexts import watch_progress
from wmr_cli.core.data import image_files
from wmr_cli.core.data.image_files import Decoder, ImageFileSplit
from wmr_cli.core.data.splits import read_ahead
from wmr_cli.core.protocols import Batch
from wmr_cli.core.torchvision_compat import torchvision
from wmr_cli.errors import BadFile


def saved(path: Path, mode: str, size: tuple[int, int] = (12, 9), **options: Any) -> Path:
    """Random pixels in any mode of Pillow's."""
    rng = np.random.default_rng(0)
    if mode in ("I;16", "I", "F"):
        kind = {"I;16": np.uint16, "I": np.int32, "F": np.float32}[mode]
        picture = Image.fromarray(rng.integers(0, 60_000, size[::-1]).astype(kind))
    else:
        picture = Image.fromarray(rng.integers(0, 256, (*size[::-1], 3), dtype=np.uint8)).convert(
            mode
        )
    picture.save(path, **options)
    return path


@pytest.mark.parametrize("size", [(40, 30), (30, 40), (33, 33), (8, 50), (17, 31)])
@pytest.mark.parametrize(("side", "resize"), [(16, None), (16, 20), (30, None)])
def test_resize_and_crop_are_torchvisions(
    tmp_path: Path, size: tuple[int, int], side: int, resize: int | None
) -> None:
    path = saved(tmp_path / "a.png", "RGB", size)
    transforms = torchvision.transforms
    pipeline = transforms.Compose(
        [transforms.Resize(resize or side), transforms.CenterCrop(side), transforms.PILToTensor()]
    )
    assert torch.equal(Decoder(3, side, resize)(path), pipeline(Image.open(path)))
    assert Decoder(3, side, resize).shape(path) == (3, side, side)


@pytest.mark.parametrize("mode", ["L", "P", "1", "RGB"])
@pytest.mark.parametrize("channels", [1, 3])
def test_plain_pictures_become_grey_or_colour(tmp_path: Path, mode: str, channels: int) -> None:
    path = saved(tmp_path / "a.png", mode)
    expected = np.array(Image.open(path).convert("L" if channels == 1 else "RGB")).reshape(
        9, 12, channels
    )
    assert np.array_equal(Decoder(channels)(path).permute(1, 2, 0).numpy(), expected)
    assert Decoder(channels).shape(path) == (channels, 9, 12)


def test_transparency_that_hides_nothing_is_dropped(tmp_path: Path) -> None:
    for mode in ("RGBA", "LA"):
        path = saved(tmp_path / f"{mode}.png", mode)
        assert np.array_equal(
            Decoder()(path).permute(1, 2, 0).numpy(), np.array(Image.open(path).convert("RGB"))
        )


def transparent(path: Path) -> Path:
    picture = Image.new("RGBA", (4, 4), (255, 0, 0, 255))
    picture.putpixel((1, 1), (0, 0, 0, 100))
    picture.save(path)
    return path


def sixteen_bit_colour(path: Path) -> Path:
    """A PNG of 16 bits per channel, which Pillow would read as 8 without a word."""
    import struct
    import zlib

    def chunk(kind: bytes, content: bytes) -> bytes:
        return (
            struct.pack(">I", len(content))
            + kind
            + content
            + struct.pack(">I", zlib.crc32(kind + content))
        )

    rows = b"".join(b"\0" + bytes(2 * 3 * 2) for _ in range(2))
    header = struct.pack(">IIBBBBB", 2, 2, 16, 2, 0, 0, 0)
    path.write_bytes(
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", header)
        + chunk(b"IDAT", zlib.compress(rows))
        + chunk(b"IEND", b"")
    )
    return path


def cut_short(path: Path) -> Path:
    saved(path, "RGB", (64, 64))
    path.write_bytes(path.read_bytes()[:-400])
    return path


def animated(path: Path) -> Path:
    first, second = Image.new("L", (4, 4)), Image.new("L", (4, 4), 255)
    first.save(path, save_all=True, append_images=[second])
    return path


def written(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


REFUSED: dict[str, tuple[Callable[[Path], Path], str]] = {
    "16 bits, grey": (lambda folder: saved(folder / "a.png", "I;16"), "more than 8 bits"),
    "16 bits, tiff": (lambda folder: saved(folder / "a.tiff", "I;16"), "more than 8 bits"),
    "16 bits, colour": (lambda folder: sixteen_bit_colour(folder / "a.png"), "more than 8 bits"),
    "32 bits": (lambda folder: saved(folder / "a.tiff", "I"), "more than 8 bits"),
    "floats": (lambda folder: saved(folder / "a.tiff", "F"), "more than 8 bits"),
    "CMYK": (lambda folder: saved(folder / "a.jpg", "CMYK"), "a CMYK picture"),
    "LAB": (lambda folder: saved(folder / "a.tiff", "LAB"), "a LAB picture"),
    "transparent": (lambda folder: transparent(folder / "a.png"), "transparent in places"),
    "cut short": (lambda folder: cut_short(folder / "a.png"), "cannot be read"),
    "a web page": (
        lambda folder: written(folder / "a.jpg", b"<html></html>"),
        "it is not an image",
    ),
    "empty": (lambda folder: written(folder / "a.jpg", b""), "it is not an image"),
    "animated": (lambda folder: animated(folder / "a.gif"), "2 pictures in one file"),
    "missing": (lambda folder: folder / "a.jpg", "No such file"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_eight_bits_cannot_hold_is_refused_with_its_path(tmp_path: Path, case: str) -> None:
    make, says = REFUSED[case]
    path = make(tmp_path)
    with pytest.raises(BadFile, match=says) as caught:
        Decoder()(path)
    assert str(path) in str(caught.value)
    assert caught.value.hint


def split_of(tmp_path: Path, **changes: Any) -> ImageFileSplit:
    paths = sorted(picture_tree(tmp_path / "tree", count=6).rglob("*.png"))
    facts = {
        "labels": torch.arange(12) % 2,
        "index": 100 + torch.arange(12),
        "decoder": Decoder(),
        "shape": (3, 16, 16),
    }
    return ImageFileSplit(paths, **{**facts, **changes})


def test_streaming_gives_the_same_batches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    split = split_of(tmp_path)
    order = torch.tensor([7, 0, 11, 3, 5]).split(2)
    in_memory = [split.batch(positions) for positions in order]
    streams_when_small = split.streams
    monkeypatch.setattr(image_files, "LARGE", 0)
    assert (streams_when_small, split.streams) == (False, True)
    for streamed, kept in zip(read_ahead(split, order), in_memory, strict=True):
        assert torch.equal(streamed.images, kept.images)
        assert torch.equal(streamed.labels, kept.labels)
        assert torch.equal(streamed.index, kept.index)


def test_only_what_is_asked_for_is_read(tmp_path: Path) -> None:
    split = split_of(tmp_path)
    split.paths[4].write_bytes(b"spoilt")
    split.batch(torch.tensor([0, 1, 2, 2]))
    with pytest.raises(BadFile, match=split.paths[4].name):
        split.prepare()


def test_small_splits_are_read_once(tmp_path: Path) -> None:
    split, seen = split_of(tmp_path), []
    with watch_progress(lambda *report: seen.append(report)):
        split.prepare()
        first = split.batch(torch.arange(12))
        for path in split.paths:
            path.unlink()
        assert torch.equal(split.batch(torch.arange(12)).images, first.images)
    assert seen[-1] == ("reading pictures", 12, 12)
    assert first.images.dtype == torch.float32


def test_streams_read_a_batch_ahead(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(image_files, "LARGE", 0)
    split = split_of(tmp_path)
    read: list[int] = []
    read_batch = ImageFileSplit.batch

    def keep_position(self: ImageFileSplit, positions: Tensor) -> Batch:
        read.append(int(positions))
        return read_batch(self, positions)

    monkeypatch.setattr(ImageFileSplit, "batch", keep_position)
    batches = read_ahead(split, torch.arange(4).split(1))
    assert next(batches).index.tolist() == [split.index[0]]
    assert next(batches).index.tolist() == [split.index[1]]
    stop(batches)
    assert read in ([0, 1], [0, 1, 2])
    assert len(list(read_ahead(split, torch.arange(4).split(1)))) == 4
    assert read[-4:] == [0, 1, 2, 3]


def test_an_error_of_the_reading_thread_arrives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(image_files, "LARGE", 0)
    split = split_of(tmp_path)
    split.paths[4].write_bytes(b"spoilt")
    with pytest.raises(BadFile, match=split.paths[4].name):
        list(read_ahead(split, torch.arange(12).split(3)))


def test_the_check_finds_a_picture_of_another_size_by_its_header(tmp_path: Path) -> None:
    split = split_of(tmp_path)
    split.check()
    saved(split.paths[9], "RGB", (20, 10))
    with pytest.raises(
        BadFile, match=r"different sizes: .*003\.png has 10x20 instead of 16x16"
    ) as caught:
        split.check()
    assert "size=16" in caught.value.hint


def test_the_hash_follows_bytes_labels_index_and_cut(tmp_path: Path) -> None:
    split = split_of(tmp_path)
    first = split.sha256
    assert len(first) == len(hashlib.sha256().hexdigest())
    others = [
        split_of(tmp_path / "b", labels=(torch.arange(12) + 1) % 2),
        split_of(tmp_path / "c", index=torch.arange(12)),
        split_of(tmp_path / "d", decoder=Decoder(3, 16)),
    ]
    saved(split.paths[0], "RGB", (16, 16))
    others.append(split.subset(torch.arange(12)))
    assert split_of(tmp_path / "e").sha256 == first
    assert len({first, *(other.sha256 for other in others)}) == 5


@pytest.mark.parametrize("make", IRREGULAR.values(), ids=IRREGULAR)
def test_only_a_regular_file_is_read_as_a_picture(tmp_path: Path, make: Callable[..., Any]) -> None:
    make(tmp_path / "x.png")
    split = ImageFileSplit(
        [tmp_path / "x.png"], torch.tensor([0]), torch.tensor([0]), Decoder(), (3, 4, 4)
    )
    with time_limit(60):
        for read in (lambda: split.decoder(tmp_path / "x.png"), split.check, lambda: split.sha256):
            with pytest.raises(BadFile, match=r"it is a folder|not a regular file") as refused:
                read()
            assert refused.value.hint


@pytest.mark.parametrize("ending", ["png", "jpg", "bmp", "gif", "ppm", "webp", "tif"])
def test_damage_anywhere_gives_a_picture_or_a_refusal(tmp_path: Path, ending: str) -> None:
    path, dice = tmp_path / f"x.{ending}", random.Random(0)
    Image.fromarray(np.arange(768, dtype=np.uint8).reshape(16, 16, 3)).save(path)
    whole = path.read_bytes()
    for _ in range(100):
        damaged = bytearray(whole)
        damaged[dice.randrange(len(whole))] = dice.randrange(256)
        path.write_bytes(damaged[: dice.choice((len(whole), dice.randrange(len(whole))))])
        with contextlib.suppress(BadFile):
            assert Decoder()(path).dtype == torch.uint8

"""Image files: decoded as by torchvision, refused if pixels would change silently, streamed."""

import contextlib
import hashlib
import random
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from support.miniature_datasets import make_image_folder
from support.special_files import IRREGULAR, time_limit
from support.typed import stop
from wmr_cli.core.contexts import watch_progress
from wmr_cli.core.data import image_files, splits
from wmr_cli.core.data.image_files import (
    Decoder,
    ImageFileSplit,
    PartlyTransparent,
    parse_background,
)
from wmr_cli.core.data.splits import read_ahead
from wmr_cli.core.protocols import Batch
from wmr_cli.core.torchvision_compat import torchvision
from wmr_cli.errors import BadFile, BadInput


def save_random_image(
    path: Path, mode: str, size: tuple[int, int] = (12, 9), **options: Any
) -> Path:
    """Save random pixels in a mode of Pillow."""
    rng = np.random.default_rng(0)
    if mode in ("I;16", "I", "F"):
        kind = {"I;16": np.uint16, "I": np.int32, "F": np.float32}[mode]
        image = Image.fromarray(rng.integers(0, 60_000, size[::-1]).astype(kind))
    else:
        image = Image.fromarray(rng.integers(0, 256, (*size[::-1], 3), dtype=np.uint8)).convert(
            mode
        )
    image.save(path, **options)
    return path


@pytest.mark.parametrize("size", [(40, 30), (30, 40), (33, 33), (8, 50), (17, 31)])
@pytest.mark.parametrize(("side", "resize"), [(16, None), (16, 20), (30, None)])
def test_resize_and_crop_equal_those_of_torchvision(
    tmp_path: Path, size: tuple[int, int], side: int, resize: int | None
) -> None:
    path = save_random_image(tmp_path / "a.png", "RGB", size)
    transforms = torchvision.transforms
    pipeline = transforms.Compose(
        [transforms.Resize(resize or side), transforms.CenterCrop(side), transforms.PILToTensor()]
    )
    assert torch.equal(Decoder(3, side, resize)(path), pipeline(Image.open(path)))
    assert Decoder(3, side, resize).shape(path) == (3, side, side)


@pytest.mark.parametrize("mode", ["L", "P", "1", "RGB"])
@pytest.mark.parametrize("channels", [1, 3])
def test_images_are_converted_to_grey_or_colour(tmp_path: Path, mode: str, channels: int) -> None:
    path = save_random_image(tmp_path / "a.png", mode)
    expected = np.array(Image.open(path).convert("L" if channels == 1 else "RGB")).reshape(
        9, 12, channels
    )
    assert np.array_equal(Decoder(channels)(path).permute(1, 2, 0).numpy(), expected)
    assert Decoder(channels).shape(path) == (channels, 9, 12)


def test_opaque_alpha_channel_is_dropped(tmp_path: Path) -> None:
    for mode in ("RGBA", "LA"):
        path = save_random_image(tmp_path / f"{mode}.png", mode)
        assert np.array_equal(
            Decoder()(path).permute(1, 2, 0).numpy(), np.array(Image.open(path).convert("RGB"))
        )


def save_partly_transparent(path: Path, mode: str) -> NDArray[np.float64]:
    """Save random pixels of random opacity; return red, green, blue and opacity, (H, W, 4)."""
    rng = np.random.default_rng(0)
    pixels = rng.integers(0, 256, (9, 12, 4), dtype=np.uint8)
    pixels[0, :3, 3] = 0, 128, 255
    if mode == "P":
        image = Image.fromarray(pixels[..., 0] % 4, "P")
        palette = pixels[1, :4]
        image.putpalette(palette[:, :3].tobytes())
        image.save(path, transparency=palette[:, 3].tobytes())
        return palette[pixels[..., 0] % 4].astype(float)
    if mode == "RGB":
        # one colour of an image without alpha channel
        pixels[..., :3] //= 128
        Image.fromarray(pixels[..., :3].copy()).save(path, transparency=(1, 0, 1))
        pixels[..., 3] = np.where((pixels[..., :3] == (1, 0, 1)).all(-1), 0, 255)
        return pixels.astype(float)
    if mode == "LA":
        pixels[..., 1:3] = pixels[..., :1]
        Image.fromarray(pixels[..., [0, 3]].copy(), "LA").save(path)
        return pixels.astype(float)
    Image.fromarray(pixels, mode).save(path)
    return pixels.astype(float)


@pytest.mark.parametrize("mode", ["RGBA", "LA", "P", "RGB"])
@pytest.mark.parametrize("background", ["white", "black", "#fF8000"])
def test_transparent_image_is_composited_on_the_background(
    tmp_path: Path, mode: str, background: str
) -> None:
    source = save_partly_transparent(tmp_path / "a.png", mode)
    color = parse_background(background)
    assert color == {"white": (255, 255, 255), "black": (0, 0, 0)}.get(background, (255, 128, 0))
    opacity = source[..., 3:] / 255
    assert 0 < opacity.mean() < 1
    expected = opacity * source[..., :3] + (1 - opacity) * color
    found = Decoder(background=color)(tmp_path / "a.png").permute(1, 2, 0).numpy()
    # rounded once
    assert np.abs(found - expected).max() <= 0.51
    with pytest.raises(PartlyTransparent) as refused:
        Decoder()(tmp_path / "a.png")
    assert "background=" in refused.value.hint


def test_transparent_image_is_composited_before_it_is_resized(tmp_path: Path) -> None:
    image = Image.new("RGBA", (8, 8), (255, 255, 255, 255))
    # black pixels that are invisible on white
    image.paste((0, 0, 0, 0), (0, 0, 3, 8))
    image.save(tmp_path / "a.png")
    assert (Decoder(3, 4, background=(255, 255, 255))(tmp_path / "a.png") == 255).all()


@pytest.mark.parametrize("mode", ["RGB", "RGBA", "LA", "P"])
def test_background_does_not_change_opaque_images(tmp_path: Path, mode: str) -> None:
    path = save_random_image(tmp_path / "a.png", mode)
    assert torch.equal(Decoder(background=(9, 99, 199))(path), Decoder()(path))


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("whit", "'white'"),
        ("ff8000", "'#ff8000'"),
        ("#fff", "#rrggbb"),
        ("#ff80zz", "#rrggbb"),
        ("٣٣٣٣٣٣", "#rrggbb"),
        ("", "white"),
    ],
)
def test_unknown_background_is_refused_with_a_hint(text: str, hint: str) -> None:
    with pytest.raises(BadInput) as refused:
        parse_background(text)
    assert hint in refused.value.hint


def test_transparent_images_of_a_split_are_counted(tmp_path: Path) -> None:
    split = make_split(tmp_path)
    for position in (2, 5, 7):
        Image.new("RGBA", (16, 16), (0, 0, 0, position)).save(split.paths[position])
    Image.new("RGBA", (16, 16), (0, 0, 0, 255)).save(split.paths[1])
    with pytest.raises(PartlyTransparent, match="3 of 12") as refused:
        split.prepare()
    assert str(split.paths[2]) in str(refused.value)
    assert "background=" in refused.value.hint
    composited = replace(split, decoder=Decoder(background=(255, 0, 0)))
    composited.prepare()
    red, green, _ = composited.batch(torch.tensor([2])).images[0, :, 0, 0].mul(255).tolist()
    assert red == pytest.approx(253)
    assert green == 0


def save_transparent(path: Path) -> Path:
    image = Image.new("RGBA", (4, 4), (255, 0, 0, 255))
    image.putpixel((1, 1), (0, 0, 0, 100))
    image.save(path)
    return path


def save_16_bit_colour(path: Path) -> Path:
    """Write a PNG of 16 bits per channel, which Pillow reads as 8 bits without a warning."""
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


def save_truncated(path: Path) -> Path:
    save_random_image(path, "RGB", (64, 64))
    path.write_bytes(path.read_bytes()[:-400])
    return path


def save_animation(path: Path) -> Path:
    first, second = Image.new("L", (4, 4)), Image.new("L", (4, 4), 255)
    first.save(path, save_all=True, append_images=[second])
    return path


def write(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


REFUSED: dict[str, tuple[Callable[[Path], Path], str]] = {
    "16 bits, grey": (
        lambda folder: save_random_image(folder / "a.png", "I;16"),
        "more than 8 bits",
    ),
    "16 bits, tiff": (
        lambda folder: save_random_image(folder / "a.tiff", "I;16"),
        "more than 8 bits",
    ),
    "16 bits, colour": (lambda folder: save_16_bit_colour(folder / "a.png"), "more than 8 bits"),
    "32 bits": (lambda folder: save_random_image(folder / "a.tiff", "I"), "more than 8 bits"),
    "floats": (lambda folder: save_random_image(folder / "a.tiff", "F"), "more than 8 bits"),
    "CMYK": (lambda folder: save_random_image(folder / "a.jpg", "CMYK"), "CMYK"),
    "LAB": (lambda folder: save_random_image(folder / "a.tiff", "LAB"), "LAB"),
    "transparent": (lambda folder: save_transparent(folder / "a.png"), "transparent"),
    "cut short": (lambda folder: save_truncated(folder / "a.png"), "cannot be read"),
    "a web page": (
        lambda folder: write(folder / "a.jpg", b"<html></html>"),
        "it is not an image",
    ),
    "empty": (lambda folder: write(folder / "a.jpg", b""), "it is not an image"),
    "animated": (lambda folder: save_animation(folder / "a.gif"), "2 images"),
    "missing": (lambda folder: folder / "a.jpg", "No such file"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_unsupported_file_is_refused_with_its_path(tmp_path: Path, case: str) -> None:
    make, problem = REFUSED[case]
    path = make(tmp_path)
    with pytest.raises(BadFile, match=problem) as caught:
        Decoder()(path)
    assert str(path) in str(caught.value)
    assert caught.value.hint


def make_split(tmp_path: Path, **changes: Any) -> ImageFileSplit:
    paths = sorted(make_image_folder(tmp_path / "tree", count=6).rglob("*.png"))
    facts = {
        "labels": torch.arange(12) % 2,
        "index": 100 + torch.arange(12),
        "decoder": Decoder(),
        "shape": (3, 16, 16),
    }
    return ImageFileSplit(paths, **{**facts, **changes})


def test_streamed_batches_equal_those_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    split = make_split(tmp_path)
    order = torch.tensor([7, 0, 11, 3, 5]).split(2)
    in_memory = [split.batch(positions) for positions in order]
    streams_when_small = split.streams
    monkeypatch.setattr(image_files, "MAX_BYTES_IN_MEMORY", 0)
    assert (streams_when_small, split.streams) == (False, True)
    for streamed, kept in zip(read_ahead(split, order), in_memory, strict=True):
        assert streamed.images.dtype == torch.uint8
        assert torch.equal(streamed.to("cpu").images, kept.images)
        assert torch.equal(split.batch(kept.index - 100).images, kept.images)
        assert torch.equal(streamed.labels, kept.labels)
        assert torch.equal(streamed.index, kept.index)


def test_only_requested_images_are_read(tmp_path: Path) -> None:
    split = make_split(tmp_path)
    split.paths[4].write_bytes(b"damaged")
    split.batch(torch.tensor([0, 1, 2, 2]))
    with pytest.raises(BadFile, match=split.paths[4].name):
        split.prepare()


def test_small_split_is_read_once(tmp_path: Path) -> None:
    split = make_split(tmp_path)
    seen = []
    with watch_progress(lambda *report: seen.append(report)):
        split.prepare()
        first = split.batch(torch.arange(12))
        for path in split.paths:
            path.unlink()
        assert torch.equal(split.batch(torch.arange(12)).images, first.images)
    assert seen[-1] == ("reading images", 12, 12)
    assert first.images.dtype == torch.float32


@pytest.mark.parametrize(("memory", "ahead"), [(1 << 20, 4), (2 * 768, 2), (1, 1)])
def test_batches_are_read_ahead_within_a_memory_limit(
    memory: int, ahead: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(splits, "MAX_BYTES_AHEAD", memory)
    requested: list[int] = []

    class Streamed:
        streams = True

        def batch(self, positions: Tensor) -> Batch:
            images = torch.zeros(len(positions), 3, 16, 16, dtype=torch.uint8)
            return Batch(images, positions, positions)

    def order() -> Iterator[Tensor]:
        for position in range(12):
            requested.append(position)
            yield torch.tensor([position])

    batches = read_ahead(Streamed(), order())
    for position in range(8):
        assert next(batches).index.tolist() == [position]
        assert len(requested) <= position + 1 + ahead
    assert len(requested) == 8 + ahead
    assert [int(batch.index) for batch in batches] == [8, 9, 10, 11]


def test_one_pool_of_threads_decodes_all_batches_and_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(image_files, "MAX_BYTES_IN_MEMORY", 0)
    split = make_split(tmp_path, workers=2)
    decoding: set[int] = set()
    decode = Decoder.__call__

    def note_thread(self: Decoder, path: Path) -> Tensor:
        decoding.add(threading.get_ident())
        return decode(self, path)

    monkeypatch.setattr(Decoder, "__call__", note_thread)
    before = threading.active_count()
    batches = read_ahead(split, torch.arange(12).split(2))
    next(batches)
    # two decode, two wait for them
    assert threading.active_count() <= before + 4
    stop(batches)
    assert threading.active_count() == before
    decoding.clear()
    assert len(list(read_ahead(split, torch.arange(12).split(2)))) == 6
    assert len(decoding) <= 2
    assert threading.active_count() == before


def test_a_subclass_that_changes_batches_is_read_by_its_own_method(tmp_path: Path) -> None:
    class Inverted(ImageFileSplit):
        def batch(self, positions: Tensor) -> Batch:
            batch = super().batch(positions)
            return Batch(1 - batch.images, batch.labels, batch.index)

    split = make_split(tmp_path)
    inverted = Inverted(split.paths, split.labels, split.index, split.decoder, split.shape)
    (read,) = read_ahead(inverted, [torch.arange(3)])
    assert torch.equal(read.images, 1 - split.batch(torch.arange(3)).images)


def test_error_in_the_reading_thread_is_raised(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(image_files, "MAX_BYTES_IN_MEMORY", 0)
    split = make_split(tmp_path)
    split.paths[4].write_bytes(b"damaged")
    before = threading.active_count()
    with pytest.raises(BadFile, match=split.paths[4].name):
        list(read_ahead(split, torch.arange(12).split(3)))
    assert threading.active_count() == before


def test_check_finds_an_image_of_another_size(tmp_path: Path) -> None:
    split = make_split(tmp_path)
    split.check()
    save_random_image(split.paths[9], "RGB", (20, 10))
    with pytest.raises(BadFile, match=r"003\.png .*10x20 .*16x16") as caught:
        split.check()
    assert "size=16" in caught.value.hint


def test_hash_depends_on_bytes_labels_index_and_decoder(tmp_path: Path) -> None:
    split = make_split(tmp_path)
    first = split.sha256
    assert len(first) == len(hashlib.sha256().hexdigest())
    others = [
        make_split(tmp_path / "b", labels=(torch.arange(12) + 1) % 2),
        make_split(tmp_path / "c", index=torch.arange(12)),
        make_split(tmp_path / "d", decoder=Decoder(3, 16)),
        make_split(tmp_path / "f", decoder=Decoder(background=(0, 0, 0))),
        make_split(tmp_path / "g", decoder=Decoder(background=(0, 0, 1))),
    ]
    save_random_image(split.paths[0], "RGB", (16, 16))
    others.append(split.subset(torch.arange(12)))
    assert make_split(tmp_path / "e").sha256 == first
    assert len({first, *(other.sha256 for other in others)}) == 7


@pytest.mark.parametrize("make", IRREGULAR.values(), ids=IRREGULAR)
def test_irregular_file_is_refused(tmp_path: Path, make: Callable[..., Any]) -> None:
    make(tmp_path / "x.png")
    split = ImageFileSplit(
        [tmp_path / "x.png"], torch.tensor([0]), torch.tensor([0]), Decoder(), (3, 4, 4)
    )
    with time_limit(60):
        for read in (lambda: split.decoder(tmp_path / "x.png"), split.check, lambda: split.sha256):
            with pytest.raises(BadFile) as refused:
                read()
            assert refused.value.hint


@pytest.mark.parametrize("ending", ["png", "jpg", "bmp", "gif", "ppm", "webp", "tif"])
def test_damaged_file_is_decoded_or_refused(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"x.{ending}"
    generator = random.Random(0)
    Image.fromarray(np.arange(768, dtype=np.uint8).reshape(16, 16, 3)).save(path)
    whole = path.read_bytes()
    for _ in range(100):
        damaged = bytearray(whole)
        damaged[generator.randrange(len(whole))] = generator.randrange(256)
        path.write_bytes(damaged[: generator.choice((len(whole), generator.randrange(len(whole))))])
        with contextlib.suppress(BadFile):
            assert Decoder()(path).dtype == torch.uint8

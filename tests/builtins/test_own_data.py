"""Image folders and arrays of the user: layouts, splits and errors."""

import hashlib
import io
import os
import pickle
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image
from safetensors.numpy import save_file

from support.miniature_datasets import labels, make_image_folder, pixels
from support.special_files import IRREGULAR, WITHOUT_END, time_limit
from wmr_cli.core.data.splits import MemorySource, Source
from wmr_cli.errors import BadFile, BadInput, UnknownName
from wmr_cli.registry import Registry
from wmr_cli.testing import check_dataset


@pytest.fixture
def make(registry: Registry, tmp_path: Path) -> Callable[..., Any]:
    return lambda spec, **given: registry.create("dataset", spec, root=tmp_path, **given)


def sizes(source: MemorySource | Source) -> dict[str, int]:
    return {name: len(split) for name, split in source.splits.items()}


def test_class_folders_are_split_at_random(make: Callable[..., Any], tmp_path: Path) -> None:
    make_image_folder(tmp_path / "pics", ("cat", "ant", "dog"), count=20)
    source = make(f"folder:path={tmp_path / 'pics'}")
    assert source.class_names == ("ant", "cat", "dog")
    assert source.input_shape == (3, 16, 16)
    assert sizes(source) == {"all": 60, "test": 12, "val": 6, "train": 42}
    assert source.splits["test"].labels.bincount().tolist() == [4, 4, 4]
    check_dataset(source)


def test_seed_decides_the_splits(make: Callable[..., Any], tmp_path: Path) -> None:
    make_image_folder(tmp_path / "pics", count=20)
    spec = f"folder:path={tmp_path / 'pics'}"
    first, same, other = (
        make(spec, split_seed=seed).splits["test"].index.tolist() for seed in (0, 0, 1)
    )
    assert first == same != other


def test_value_without_a_key_is_the_path(make: Callable[..., Any], tmp_path: Path) -> None:
    make_image_folder(tmp_path / "pics")
    assert make(f"folder:{tmp_path / 'pics'}").num_classes == 2


@pytest.mark.parametrize(
    ("folders", "expected"),
    [
        (("train", "val", "test"), {"train": 20, "val": 20, "test": 20}),
        (("train", "test"), {"train": 18, "test": 20, "val": 2}),
        (("train", "val"), {"train": 18, "test": 20, "val": 2}),
        (("Training", "Validation", "Testing"), {"train": 20, "val": 20, "test": 20}),
        (("train",), {"train": 14, "val": 2, "test": 4}),
        (("test",), {"test": 20}),
    ],
    ids=" ".join,
)
def test_split_folders_are_used_and_missing_splits_are_held_out(
    make: Callable[..., Any], tmp_path: Path, folders: tuple[str, ...], expected: dict[str, int]
) -> None:
    for seed, name in enumerate(folders):
        make_image_folder(tmp_path / "pics" / name, seed=seed)
    source = make(f"folder:path={tmp_path / 'pics'}")
    assert sizes(source) == expected
    indices = [index for split in source.splits.values() for index in split.index.tolist()]
    assert len(set(indices)) == len(indices)


def test_val_folder_without_test_is_the_test_set(make: Callable[..., Any], tmp_path: Path) -> None:
    make_image_folder(tmp_path / "pics" / "train", seed=0)
    make_image_folder(tmp_path / "pics" / "val", seed=1)
    source = make(f"folder:path={tmp_path / 'pics'}")
    assert {path.parent.parent.name for path in source.splits["test"].paths} == {"val"}
    assert {path.parent.parent.name for path in source.splits["val"].paths} == {"train"}


def test_without_holdout_there_is_no_val_split(make: Callable[..., Any], tmp_path: Path) -> None:
    make_image_folder(tmp_path / "pics")
    assert sizes(make(f"folder:path={tmp_path / 'pics'},holdout=0,test=0")) == {
        "all": 20,
        "train": 20,
    }


def test_images_are_resized_and_converted_to_grey(make: Callable[..., Any], tmp_path: Path) -> None:
    make_image_folder(tmp_path / "pics", side=20)
    Image.new("RGB", (31, 44)).save(tmp_path / "pics" / "cat" / "other.jpg")
    source = make(f"folder:path={tmp_path / 'pics'},size=16,resize=18,channels=1")
    assert source.input_shape == (1, 16, 16)
    check_dataset(source)


def test_other_and_hidden_files_are_ignored(make: Callable[..., Any], tmp_path: Path) -> None:
    pics = make_image_folder(tmp_path / "pics")
    (pics / "README.txt").write_text("about")
    (pics / "cat" / "notes.txt").write_text("about")
    (pics / "cat" / ".hidden.png").write_text("not an image")
    (pics / ".cache").mkdir()
    assert sizes(make(f"folder:path={pics}"))["all"] == 20


def remove_classes(pics: Path) -> None:
    for name in ("cat", "dog"):
        shutil.rmtree(pics / name)


MISTAKES: dict[str, tuple[Callable[[Path], object], str]] = {
    "no such folder": (lambda pics: shutil.rmtree(pics), "is not a folder"),
    "no class folders": (
        remove_classes,
        "two class folders",
    ),
    "one class": (lambda pics: shutil.rmtree(pics / "dog"), "has only cat"),
    "an empty class": (lambda pics: (pics / "owl").mkdir(), "owl"),
    "splits and classes": (
        lambda pics: make_image_folder(pics / "train"),
        "cat, dog, train",
    ),
    "mixed sizes": (
        lambda pics: Image.new("RGB", (9, 9)).save(pics / "dog" / "x.png"),
        "x.png has 9x9",
    ),
    "16 bits": (
        lambda pics: Image.fromarray(np.zeros((16, 16), np.uint16)).save(pics / "dog" / "x.png"),
        "more than 8 bits",
    ),
    "CMYK": (
        lambda pics: Image.new("CMYK", (16, 16)).save(pics / "dog" / "x.jpg"),
        "CMYK",
    ),
    "a web page": (
        lambda pics: (pics / "dog" / "x.jpg").write_text("<html>"),
        "x.jpg",
    ),
}


@pytest.mark.parametrize("case", MISTAKES)
def test_invalid_folder_is_refused_before_images_are_read(
    make: Callable[..., Any], tmp_path: Path, case: str
) -> None:
    pics = make_image_folder(tmp_path / "pics")
    damage, problem = MISTAKES[case]
    damage(pics)
    with pytest.raises(BadFile, match=problem) as caught:
        make(f"folder:path={pics}")
    assert caught.value.hint


def test_hidden_folders_are_ignored_and_links_are_followed(
    make: Callable[..., Any], tmp_path: Path
) -> None:
    pics = make_image_folder(tmp_path / "pics")
    shutil.copytree(pics / "cat", pics / "cat" / ".ipynb_checkpoints" / "deep")
    shutil.copytree(pics / "cat", tmp_path / "more", ignore=lambda *_: [".ipynb_checkpoints"])
    (pics / "dog" / "linked").symlink_to(tmp_path / "more")
    assert make(f"folder:path={pics}").splits["all"].labels.bincount().tolist() == [10, 20]


def test_note_names_a_class_without_images_in_a_split(
    make: Callable[..., Any], tmp_path: Path
) -> None:
    make_image_folder(tmp_path / "pics" / "train", ("cat", "dog", "owl"))
    make_image_folder(tmp_path / "pics" / "test", ("cat", "dog"))
    source = make(f"folder:path={tmp_path / 'pics'}")
    note = source.splits["test"].note
    assert "owl" in note
    assert str(tmp_path / "pics" / "test") in note
    assert source.splits["train"].note is None


@pytest.mark.parametrize("is_relative", [False, True])
def test_images_are_numbered_by_the_parts_of_their_paths(
    make: Callable[..., Any], tmp_path: Path, is_relative: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ("b.png", "b/c.png", "b!/c.PNG", "a/z/y.png", "a.x/z.png", "é.png", "B.png")
    for place in ("cat", "dog"):
        for name in names:
            file = tmp_path / "pics" / place / "sub" / name
            file.parent.mkdir(parents=True, exist_ok=True)
            Image.new("RGB", (4, 4)).save(file)
    monkeypatch.chdir(tmp_path / "pics")
    root = Path() if is_relative else tmp_path / "pics"
    source = make(f"folder:path={root}")
    expected = sorted(root.rglob("*.[pP][nN][gG]"))
    assert len(expected) == 14
    assert list(source.splits["all"].paths) == expected
    digest = hashlib.sha256()
    for path in source.splits["train"].paths:
        digest.update(os.fsencode(path.relative_to(root)) + b"\0")
    assert source.random_split_sha256 == digest.hexdigest()


def test_random_splits_have_a_hash_of_their_training_images(
    make: Callable[..., Any], tmp_path: Path
) -> None:
    pics = make_image_folder(tmp_path / "pics")
    spec = f"folder:path={pics}"
    drawn = make(spec).random_split_sha256
    assert drawn == make(spec).random_split_sha256 != make(spec, split_seed=1).random_split_sha256
    assert make(f"{spec},test=0.5").random_split_sha256 != drawn
    shutil.copy(pics / "cat" / "000.png", pics / "cat" / "new.png")
    assert make(spec).random_split_sha256 != drawn
    make_image_folder(tmp_path / "divided" / "train")
    make_image_folder(tmp_path / "divided" / "test")
    assert make(f"folder:path={tmp_path / 'divided'}").random_split_sha256 is None


def test_class_without_training_folder_is_refused(make: Callable[..., Any], tmp_path: Path) -> None:
    make_image_folder(tmp_path / "pics" / "train")
    make_image_folder(tmp_path / "pics" / "test", ("cat", "owl"))
    with pytest.raises(BadFile, match="owl"):
        make(f"folder:path={tmp_path / 'pics'}")


@pytest.mark.parametrize(
    ("params", "problem"),
    [
        ("channels=2", "channels=2"),
        ("size=0", "a square of side 0"),
        ("size=32,resize=16", "a square of side 32"),
        ("resize=16", "resize alone"),
        ("holdout=1.5", "holdout=1.5"),
        ("holdout=nan", "finite"),
        ("holdout=0.9999", r"holdout=0\.9999 .*class 0"),
        ("test=0.99", r"test=0\.99 .*class 0"),
        ("size=99999", "side 99999"),
        ("workers=-1", "workers=-1"),
        ("background=whit", "background=whit"),
    ],
)
def test_invalid_settings_of_folder_are_refused(
    make: Callable[..., Any], tmp_path: Path, params: str, problem: str
) -> None:
    make_image_folder(tmp_path / "pics")
    with pytest.raises(BadInput, match=problem):
        make(f"folder:path={tmp_path / 'pics'},{params}")


def test_large_holdout_is_allowed_if_every_class_keeps_training_images(
    make: Callable[..., Any], tmp_path: Path
) -> None:
    make_image_folder(tmp_path / "pics", count=20)
    source = make(f"folder:path={tmp_path / 'pics'},holdout=0.9,test=0.5")
    assert sizes(source) == {"all": 40, "test": 20, "val": 18, "train": 2}


@pytest.mark.parametrize("make_file", WITHOUT_END.values(), ids=WITHOUT_END)
def test_irregular_image_file_is_refused(
    make: Callable[..., Any], tmp_path: Path, make_file: Callable[..., Any]
) -> None:
    pics = make_image_folder(tmp_path / "pics")
    make_file(pics / "cat" / "x.png")
    with (
        time_limit(60),
        pytest.raises(BadFile, match=r"x\.png") as caught,
    ):
        make(f"folder:path={pics}")
    assert caught.value.hint


def test_cycle_of_links_ends(make: Callable[..., Any], tmp_path: Path) -> None:
    pics = make_image_folder(tmp_path / "pics")
    for name in ("a", "b", "c"):
        (pics / "cat" / name).symlink_to(pics / "cat")
    with time_limit(60):
        assert sizes(make(f"folder:path={pics}"))["all"] == 20


def test_class_name_that_is_not_utf8_is_refused(make: Callable[..., Any], tmp_path: Path) -> None:
    pics = make_image_folder(tmp_path / "pics")
    (pics / "cat").rename(pics / os.fsdecode(b"\xff"))
    with pytest.raises(BadFile, match="is not UTF-8") as caught:
        make(f"folder:path={pics}")
    assert caught.value.hint


def test_misspelt_key_gets_a_hint(registry: Registry) -> None:
    with pytest.raises(UnknownName, match="'szie'") as caught:
        registry.check("dataset", "folder:path=x,szie=3")
    assert caught.value.hint == "did you mean 'size'?"


def stored(path: Path, **arrays: Any) -> Path:
    if path.suffix == ".npz":
        np.savez(path, **arrays)
    else:
        save_file({name: np.ascontiguousarray(array) for name, array in arrays.items()}, path)
    return path


@pytest.mark.parametrize("ending", [".npz", ".safetensors"])
def test_arrays_without_splits_are_split_at_random(
    make: Callable[..., Any], tmp_path: Path, ending: str
) -> None:
    path = stored(tmp_path / f"data{ending}", images=pixels(50, 8, 8), labels=labels(50, 5))
    source = make(f"arrays:path={path}")
    assert sizes(source) == {"all": 50, "test": 10, "val": 5, "train": 35}
    assert (source.num_classes, source.input_shape) == (5, (1, 8, 8))
    assert torch.equal(source.splits["all"].images[:, 0], torch.from_numpy(pixels(50, 8, 8)))
    check_dataset(source)


@pytest.mark.parametrize(
    "names",
    [
        ("train_images", "train_labels", "test_images", "test_labels"),
        ("x_train", "y_train", "x_test", "y_test"),
    ],
    ids=lambda names: names[0],
)
def test_splits_of_a_file_are_used(
    make: Callable[..., Any], tmp_path: Path, names: tuple[str, ...]
) -> None:
    parts = (
        pixels(40, 8, 8),
        labels(40, 4)[:, None],
        pixels(20, 8, 8, seed=1),
        labels(20, 4)[:, None],
    )
    source = make(
        f"arrays:path={stored(tmp_path / 'data.npz', **dict(zip(names, parts, strict=True)))}"
    )
    assert sizes(source) == {"train": 36, "test": 20, "val": 4}
    check_dataset(source)


@pytest.mark.parametrize(
    ("images", "layout"),
    [
        (pixels(30, 3, 8, 8), "auto"),
        (pixels(30, 8, 8, 3), "auto"),
        (pixels(30, 3, 8, 3), "nchw"),
        (pixels(30, 3, 8, 3), "nhwc"),
    ],
)
def test_channels_are_moved_first(
    make: Callable[..., Any], tmp_path: Path, images: NDArray[np.uint8], layout: str
) -> None:
    path = stored(tmp_path / "data.npz", images=images, labels=labels(30, 3))
    made = make(f"arrays:path={path},layout={layout}").splits["all"].images.numpy()
    is_first = layout == "nchw" or images.shape[1:] == (3, 8, 8)
    assert np.array_equal(made, images if is_first else images.transpose(0, 3, 1, 2))


def test_floats_in_the_unit_range_stay_floats(make: Callable[..., Any], tmp_path: Path) -> None:
    floats = (pixels(30, 8, 8) / 255).astype(np.float64)
    source = make(
        f"arrays:path={stored(tmp_path / 'data.npz', images=floats, labels=labels(30, 3))}"
        ",classes=7"
    )
    assert source.num_classes == 7
    assert torch.equal(
        source.splits["all"].images[:, 0], torch.from_numpy(floats.astype(np.float32))
    )


def test_what_wmr_attack_saves_can_be_evaluated(make: Callable[..., Any], tmp_path: Path) -> None:
    path = stored(
        tmp_path / "attack.safetensors",
        images=pixels(20, 1, 8, 8),
        label=labels(20, 2),
        index=np.arange(20),
    )
    assert len(make(f"arrays:path={path}").splits["all"]) == 20


def objects(path: Path) -> None:
    np.savez(path, images=np.array([{}, {}], dtype=object), labels=labels(2))


def pickled(path: Path) -> None:
    path.write_bytes(pickle.dumps({"images": pixels(3, 8, 8)}))


def single(path: Path) -> None:
    with path.open("wb") as stream:
        np.save(stream, pixels(3, 8, 8))


def cut_short(path: Path) -> None:
    path.write_bytes(stored(path, images=pixels(9, 8, 8), labels=labels(9, 3)).read_bytes()[:-99])


def flipped(path: Path) -> None:
    content = bytearray(stored(path, images=pixels(9, 8, 8), labels=labels(9, 3)).read_bytes())
    content[300] ^= 255
    path.write_bytes(content)


def array(path: Path, header: str, name: str = "images") -> None:
    """Write images whose header is `header`, of 100 bytes, and labels."""
    stream = io.BytesIO()
    np.save(stream, labels(3))
    text = header.encode().ljust(117) + b"\n"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(
            f"{name}.npy",
            b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text + bytes(100),
        )
        archive.writestr("labels.npy", stream.getvalue())


def huge(path: Path) -> None:
    array(path, "{'descr': '|u1', 'fortran_order': False, 'shape': (1000000000000, 8, 8)}")


def negative(path: Path) -> None:
    array(path, "{'descr': '|u1', 'fortran_order': False, 'shape': (-10, -10)}")


def nested(path: Path) -> None:
    array(path, "(" * 5000)


def text_among_arrays(path: Path) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("images", "text")
        archive.writestr("labels.txt", "text")


def of_type(dtype: str) -> Callable[[Path], Path]:
    return lambda path: stored(path, images=pixels(3, 8, 8).astype(dtype), labels=labels(3))


BAD_ARRAYS = {
    "a header that claims too much": (
        huge,
        "claims 64,000,000,000,000 bytes of values and has 100",
    ),
    "a negative shape": (negative, "cannot be read"),
    "a nested header": (nested, "cannot be read"),
    "text": (text_among_arrays, "only nothing"),
    "images of uint64": (of_type("uint64"), "images of type uint64"),
    "complex images": (of_type("complex64"), "images of type complex64"),
    "images as truth values": (of_type("bool"), "images of type bool"),
    "images as text": (of_type("U3"), "images of type <U3"),
    "no pixels": (
        lambda path: stored(path, images=pixels(3, 0, 8), labels=labels(3)),
        "have no pixels",
    ),
    "no pixels of floats": (
        lambda path: stored(path, images=np.zeros((3, 8, 0)), labels=labels(3)),
        "have no pixels",
    ),
    "no columns of labels": (
        lambda path: stored(path, images=pixels(3, 8, 8), labels=np.zeros((3, 0), int)),
        "labels of type",
    ),
    "large floats": (
        lambda path: stored(path, images=np.full((3, 8, 8), 1e300), labels=labels(3)),
        "outside",
    ),
    "labels beyond int64": (
        lambda path: stored(
            path, images=pixels(3, 8, 8), labels=np.array([0, 1, 2**64 - 1], np.uint64)
        ),
        "a label 18446744073709551615",
    ),
    "labels as truth values": (
        lambda path: stored(path, images=pixels(3, 8, 8), labels=labels(3) > 0),
        "labels of type bool",
    ),
    "missing": (lambda path: None, "does not exist"),
    "objects that need code": (objects, "cannot be read"),
    "a pickle": (pickled, "cannot be read"),
    "a web page": (lambda path: path.write_text("<html>"), "is a web page"),
    "one array": (single, "a single array"),
    "other names": (lambda path: stored(path, data=pixels(3, 8, 8)), "only data"),
    "no labels": (
        lambda path: stored(path, images=pixels(3, 8, 8)),
        "images of 'all' have no labels",
    ),
    "too few labels": (
        lambda path: stored(path, images=pixels(3, 8, 8), labels=labels(2)),
        "images and labels of 'all'",
    ),
    "nothing": (
        lambda path: stored(path, images=pixels(0, 8, 8), labels=labels(0)),
        "images and labels of 'all'",
    ),
    "whole numbers": (
        lambda path: stored(path, images=np.ones((3, 8, 8), int), labels=labels(3)),
        "type int64",
    ),
    "vectors": (
        lambda path: stored(path, images=pixels(3, 64), labels=labels(3)),
        r"shape \(3, 64\)",
    ),
    "no channels": (
        lambda path: stored(path, images=pixels(3, 8, 8, 8), labels=labels(3)),
        "channels",
    ),
    "labels as floats": (
        lambda path: stored(path, images=pixels(3, 8, 8), labels=labels(3) / 2),
        "labels of type float64",
    ),
    "negative labels": (
        lambda path: stored(path, images=pixels(3, 8, 8), labels=labels(3) - 1),
        "a label -1",
    ),
    "cut short": (cut_short, "cannot be read"),
    "flipped": (flipped, "cannot be read"),
    "single numbers": (
        lambda path: stored(path, images=np.array(1), labels=np.array(2)),
        "images and labels of 'all'",
    ),
    "one class": (
        lambda path: stored(path, images=pixels(3, 8, 8), labels=labels(3, 1)),
        "are of one class",
    ),
    "a huge label": (
        lambda path: stored(path, images=pixels(3, 8, 8), labels=labels(3) + 10**6),
        "a label 1000002 among 3",
    ),
    "floats up to 255": (
        lambda path: stored(path, images=pixels(3, 8, 8) * 1.0, labels=labels(3)),
        "outside",
    ),
    "a NaN": (
        lambda path: stored(path, images=pixels(3, 8, 8) * np.nan, labels=labels(3)),
        "outside",
    ),
    "two shapes": (
        lambda path: stored(
            path,
            x_train=pixels(9, 8, 8),
            y_train=labels(9, 3),
            x_test=pixels(9, 7, 7),
            y_test=labels(9, 3),
        ),
        "different shapes",
    ),
}


@pytest.mark.parametrize("case", BAD_ARRAYS)
def test_invalid_arrays_are_refused(make: Callable[..., Any], tmp_path: Path, case: str) -> None:
    damage, problem = BAD_ARRAYS[case]
    damage(tmp_path / "data.npz")
    with pytest.raises(BadFile, match=problem) as caught:
        make(f"arrays:path={tmp_path / 'data.npz'}")
    assert caught.value.hint


def test_labels_of_all_integer_types_are_read(make: Callable[..., Any], tmp_path: Path) -> None:
    path = stored(
        tmp_path / "data.npz", images=pixels(30, 8, 8), labels=labels(30, 3).astype(np.uint64)
    )
    assert make(f"arrays:path={path}").num_classes == 3


@pytest.mark.parametrize("ending", [".npz", ".safetensors"])
@pytest.mark.parametrize("make_file", IRREGULAR.values(), ids=IRREGULAR)
def test_irregular_array_file_is_refused(
    make: Callable[..., Any], tmp_path: Path, ending: str, make_file: Callable[..., Any]
) -> None:
    make_file(tmp_path / f"data{ending}")
    with (
        time_limit(60),
        pytest.raises(BadFile) as caught,
    ):
        make(f"arrays:path={tmp_path / f'data{ending}'}")
    assert caught.value.hint


def test_decompression_bomb_is_refused(
    make: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "data.npz"
    np.savez_compressed(path, images=np.zeros((400, 64, 64), np.uint8), labels=labels(400, 3))
    assert make(f"arrays:path={path}").num_classes == 3
    monkeypatch.setattr("wmr_cli.builtins.datasets.arrays.MAX_UNPACKED_BYTES", 10**6)
    with pytest.raises(BadFile, match="claims to hold"):
        make(f"arrays:path={path}")


@pytest.mark.parametrize(
    "params",
    ["classes=1", "classes=-3", "classes=1000000000000000000", "holdout=0.9999", "test=0.9999"],
)
def test_invalid_settings_of_arrays_are_refused(
    make: Callable[..., Any], tmp_path: Path, params: str
) -> None:
    path = stored(tmp_path / "data.npz", images=pixels(30, 8, 8), labels=labels(30, 3))
    with pytest.raises(BadInput) as caught:
        make(f"arrays:path={path},{params}")
    assert caught.value.hint

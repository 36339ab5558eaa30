"""Datasets that the package `datasets` has saved or reads from folders, without network."""

import json
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import PIL.Image
import pytest
import torch

from conftest import CLASSES, Run, make_pixels
from wmr_cli import BadFile, BadInput, Spec, UnknownName, create
from wmr_cli.testing import check_dataset
from wmr_huggingface.datasets import from_hub
from wmr_huggingface.hub import pin_dataset


def save(folder: Path, splits: dict[str, dict[str, Any]], features: dict[str, Any]) -> Path:
    made = {
        name: datasets.Dataset.from_dict(columns, features=datasets.Features(features))
        for name, columns in splits.items()
    }
    datasets.DatasetDict(made).save_to_disk(str(folder))
    return folder


def images(count: int, size: int = 12) -> list[PIL.Image.Image]:
    return [PIL.Image.fromarray(pixels) for pixels in make_pixels(count, size)]


def test_a_saved_dataset_meets_the_contract(saved_dataset: Path) -> None:
    source = create("dataset", f"hf:path={saved_dataset}")
    check_dataset(source)
    assert source.class_names == CLASSES
    assert source.input_shape == (3, 12, 12)
    assert {name: len(split) for name, split in source.splits.items()} == {
        "train": 54,
        "val": 6,
        "test": 30,
    }
    assert source.random_split_sha256 is None
    batch = source.splits["test"].batch(torch.arange(30))
    expected = torch.from_numpy(make_pixels(30)).permute(0, 3, 1, 2) / 255
    assert torch.equal(batch.images, expected)
    assert batch.labels.tolist() == [number % 3 for number in range(30)]
    assert batch.index.tolist() == list(range(60, 90))


def test_image_folders_and_parquet_files_are_read(image_folder: Path, tmp_path: Path) -> None:
    source = from_hub(path=image_folder)
    check_dataset(source)
    assert source.class_names == CLASSES
    loaded = datasets.load_dataset(str(image_folder))
    (tmp_path / "parquet").mkdir()
    for name, table in loaded.items():
        table.to_parquet(str(tmp_path / "parquet" / f"{name}.parquet"))
    other = from_hub(path=tmp_path / "parquet")
    for name in ("train", "val", "test"):
        assert other.splits[name].sha256 == source.splits[name].sha256


def test_split_names_choose_the_test_images(saved_dataset: Path) -> None:
    source = from_hub(path=saved_dataset, split="train")
    assert source.splits["test"].batch(torch.arange(60)).index.tolist() == list(range(60))
    assert "train" not in source.splits
    with pytest.raises(UnknownName) as refusal:
        from_hub(path=saved_dataset, split="tset")
    assert "test" in refusal.value.hint
    with pytest.raises(UnknownName, match="trian"):
        from_hub(path=saved_dataset, train="trian")
    with pytest.raises(UnknownName, match="validation"):
        from_hub(path=saved_dataset, val="validation")


def test_a_validation_split_is_the_test_set_if_there_is_none(tmp_path: Path) -> None:
    columns = {
        "train": {"image": images(30), "label": [0, 1, 2] * 10},
        "validation": {"image": images(12), "label": [0, 1, 2] * 4},
    }
    features = {"image": datasets.Image(), "label": datasets.ClassLabel(names=list(CLASSES))}
    source = from_hub(path=save(tmp_path / "saved", columns, features))
    assert len(source.splits["test"]) == 12
    assert len(source.splits["val"]) == 3
    assert source.random_split_sha256 is None


def test_without_a_test_split_a_hash_identifies_the_training_images(tmp_path: Path) -> None:
    columns = {"train": {"image": images(60), "label": [0, 1, 2] * 20}}
    features = {"image": datasets.Image(), "label": datasets.ClassLabel(names=list(CLASSES))}
    folder = save(tmp_path / "saved", columns, features)
    source, same, other = (from_hub(path=folder, split_seed=seed) for seed in (0, 0, 1))
    check_dataset(source)
    assert source.random_split_sha256 == same.random_split_sha256
    assert source.random_split_sha256 is not None
    assert source.random_split_sha256 != other.random_split_sha256


@pytest.mark.parametrize(
    ("kind", "values", "names"),
    [
        (datasets.Value("string"), ["b", "a", "c"], ("a", "b", "c")),
        (datasets.Value("int64"), [1, 0, 2], None),
    ],
    ids=["text", "numbers"],
)
def test_labels_may_be_text_or_numbers(
    tmp_path: Path, kind: datasets.Value, values: list[Any], names: tuple[str, ...] | None
) -> None:
    columns = {name: {"photo": images(12), "kind": values * 4} for name in ("train", "test")}
    folder = save(tmp_path / "saved", columns, {"photo": datasets.Image(), "kind": kind})
    with pytest.raises(BadInput, match="label") as refusal:
        from_hub(path=folder)
    assert "kind" in refusal.value.hint
    source = from_hub(path=folder, label="kind")
    assert source.class_names == names
    assert source.splits["test"].labels.tolist() == [1, 0, 2] * 4


def test_images_of_different_sizes_need_a_size(tmp_path: Path) -> None:
    mixed = [*images(2), *images(1, size=20)]
    columns = {name: {"image": mixed, "label": [0, 1, 2]} for name in ("train", "test")}
    features = {"image": datasets.Image(), "label": datasets.ClassLabel(names=list(CLASSES))}
    folder = save(tmp_path / "saved", columns, features)
    with pytest.raises(BadFile, match="different sizes") as refusal:
        _ = from_hub(path=folder).splits["test"]
    assert "size=12" in refusal.value.hint
    assert from_hub(path=folder, size=10).splits["test"].batch(torch.arange(3)).images.shape == (
        3,
        3,
        10,
        10,
    )
    assert from_hub(path=folder, size=10, channels=1).input_shape == (1, 10, 10)


def test_images_without_label_and_of_16_bits_are_refused(tmp_path: Path) -> None:
    names = datasets.ClassLabel(names=list(CLASSES))
    columns = {
        "train": {"image": images(3), "label": [0, 1, 2]},
        "test": {"image": images(3), "label": [-1, -1, -1]},
    }
    features = {"image": datasets.Image(), "label": names}
    with pytest.raises(BadFile, match="without a label"):
        _ = from_hub(path=save(tmp_path / "unlabelled", columns, features)).splits["test"]
    deep = PIL.Image.fromarray(np.zeros((12, 12), dtype=np.uint16))
    columns = {"test": {"image": [deep], "label": [0]}}
    with pytest.raises(BadFile, match="8 bits"):
        from_hub(path=save(tmp_path / "deep", columns, features))


def test_partly_transparent_images_need_a_background(tmp_path: Path) -> None:
    clear = PIL.Image.new("RGBA", (12, 12), (200, 100, 50, 0))
    features = {"image": datasets.Image(), "label": datasets.ClassLabel(names=list(CLASSES))}
    folder = save(tmp_path / "clear", {"test": {"image": [clear], "label": [0]}}, features)
    with pytest.raises(BadFile, match="transparent"):
        from_hub(path=folder)
    split = from_hub(path=folder, background="#0a141e").splits["test"]
    pixels = split.batch(torch.arange(1)).images * 255
    assert pixels.amax((0, 2, 3)).round().tolist() == [10, 20, 30]


def test_a_folder_without_a_dataset_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for folder in (tmp_path / "empty", tmp_path / "missing"):
        with pytest.raises(BadFile):
            from_hub(path=folder)


def test_a_dataset_is_pinned_to_its_absolute_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    pinned = pin_dataset(Spec.parse("hf:./saved,split=train"))
    assert str(pinned) == f"hf:path={tmp_path / 'saved'},split=train"
    commit = "0" * 40
    assert (
        str(pin_dataset(Spec.parse(f"hf:me/x,revision={commit}"))) == f"hf:me/x,revision={commit}"
    )


def test_a_network_is_trained_on_a_saved_dataset_and_evaluated(
    saved_dataset: Path, wmr: Run
) -> None:
    wmr(
        "train", "--dataset", "hf:./saved,size=16", "--model", "small-cnn", "--epochs", "1",
        "--steps", "1", "--eps", "8/255", "--augment", "none", "--out", "run", "-q",
    )  # fmt: skip
    words = ("evaluate", "run", "--attack", "pgd:steps=1", "--metrics", "nat,rob")
    (record,) = json.loads(wmr(*words, "--format", "json").stdout)
    assert record["dataset"]["n"] == 30
    assert str(saved_dataset) in record["dataset"]["name"]
    assert record["plugins"] == {"wmr-huggingface": "0.1.0"}

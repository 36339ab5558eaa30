"""Files of the official layout, small and made on the spot: no set of MedMNIST is needed, nor a network."""

import dataclasses
import hashlib
import importlib.util
import io
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch

from wmr_cli import create
from wmr_cli.core import downloads
from wmr_cli.errors import BadFile, BadInput, MissingData
from wmr_cli.testing import check_dataset
from wmr_medmnist.data import medmnist
from wmr_medmnist.facts import SETS

COUNTS = {"train": 60, "val": 12, "test": 24}


def arrays(facts, size, counts):
    """Images whose first pixel is the number of the image in its split, labels in turn."""
    made = {}
    for seed, (part, count) in enumerate(counts.items()):
        shape = (count, size, size, 3) if facts.channels == 3 else (count, size, size)
        images = np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)
        images.reshape(count, -1)[:, 0] = np.arange(count)
        made |= {f"{part}_images": images, f"{part}_labels": (np.arange(count) % len(facts.classes)).astype(np.uint8)[:, None]}
    return made


@pytest.fixture
def publish(tmp_path, monkeypatch):
    """Put a file where the official one belongs, and let its hash be the official one."""

    def publish(name, size=28, counts=COUNTS, **changed):
        facts = dataclasses.replace(SETS[name], images=counts)
        stream = io.BytesIO()
        np.savez_compressed(stream, **(arrays(facts, size, counts) | changed))
        path = tmp_path / facts.file(size)
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(stream.getvalue())
        digest = hashlib.md5(stream.getvalue()).hexdigest()
        monkeypatch.setitem(SETS, name, dataclasses.replace(facts, md5={**facts.md5, str(size): digest}))
        return path

    return publish


@pytest.fixture
def offline(monkeypatch):
    asked = []

    def refuse(request, **_):
        asked.append(request.full_url)
        raise OSError("there is no network")

    monkeypatch.setattr(downloads.urllib.request, "urlopen", refuse)
    return asked


SINGLE = sorted(name for name, facts in SETS.items() if facts.is_single_label)


@pytest.mark.parametrize("name", SINGLE)
def test_every_set_meets_the_contract(name, publish, tmp_path):
    publish(name)
    source = create("dataset", name, root=tmp_path)
    check_dataset(source)
    assert source.input_shape == (SETS[name].channels, 28, 28)
    assert source.class_names == SETS[name].classes
    assert source.num_classes == len(set(SETS[name].classes))


@pytest.mark.parametrize("size", [64, 128, 224])
def test_larger_images_are_other_files(size, publish, tmp_path):
    path = publish("bloodmnist", size)
    assert path.name == f"bloodmnist_{size}.npz"
    source = create("dataset", f"bloodmnist:size={size}", root=tmp_path)
    check_dataset(source)
    assert source.input_shape == (3, size, size)


def test_splits_are_the_published_ones_and_an_index_is_an_image(publish, tmp_path):
    path = publish("pathmnist")
    splits = medmnist(tmp_path, "pathmnist").splits
    first = 0
    with np.load(path) as file:
        for part, count in COUNTS.items():
            batch = splits[part].batch(torch.arange(count))
            assert batch.index.tolist() == list(range(first, first + count))
            assert batch.labels.tolist() == file[f"{part}_labels"][:, 0].tolist()
            expected = torch.from_numpy(file[f"{part}_images"]).permute(0, 3, 1, 2) / 255
            assert torch.equal(batch.images, expected)
            first += count


def test_a_split_is_read_when_it_is_asked_for(publish, tmp_path):
    spoilt = {"train_images": np.zeros((2, 2), dtype=np.uint8)}
    publish("octmnist", **spoilt)
    splits = medmnist(tmp_path, "octmnist").splits
    assert len(splits["test"]) == COUNTS["test"]
    with pytest.raises(BadFile, match="for 'train'"):
        splits["train"]


def test_many_labels_are_refused_with_the_reason(tmp_path, offline):
    with pytest.raises(BadInput, match="chestmnist has several labels per image: 14 findings") as refusal:
        create("dataset", "chestmnist", root=tmp_path)
    assert "one class per image" in refusal.value.hint
    assert offline == []


@pytest.mark.parametrize("size", ["32", "-1", "large"])
def test_other_sizes_are_refused(size, tmp_path):
    with pytest.raises(BadInput, match="none of 28, 64, 128, 224"):
        create("dataset", f"pathmnist:size={size}", root=tmp_path)


def test_a_file_with_another_hash_is_never_read(publish, tmp_path, monkeypatch):
    path = publish("breastmnist")
    path.write_bytes(path.read_bytes() + b"x")
    monkeypatch.setattr(np, "load", lambda *_, **__: pytest.fail("the file was read"))
    with pytest.raises(BadFile, match="with MD5"):
        medmnist(tmp_path, "breastmnist")


def test_without_network_the_error_names_the_file_and_the_folder(tmp_path, offline):
    with pytest.raises(MissingData, match=r"cannot download dermamnist_64\.npz") as missing:
        medmnist(tmp_path, "dermamnist", size=64)
    assert offline == ["https://zenodo.org/records/10519652/files/dermamnist_64.npz?download=1"]
    assert str(tmp_path / "medmnist") in missing.value.hint


def test_a_download_is_proved_before_it_is_there(tmp_path, monkeypatch):
    class Answer(io.BytesIO):
        status, headers = 200, {}

    monkeypatch.setattr(downloads.urllib.request, "urlopen", lambda *_, **__: Answer(b"PK something else"))
    with pytest.raises(MissingData, match="MD5"):
        medmnist(tmp_path, "dermamnist")
    assert not (tmp_path / SETS["dermamnist"].file(28)).exists()


def test_pickled_objects_are_not_run(publish, tmp_path):
    class Bomb:
        def __reduce__(self):
            return (Path.write_text, (tmp_path / "ran", "boom"))

    labels = np.array([Bomb()] * COUNTS["test"], dtype=object)[:, None]
    publish("bloodmnist", test_labels=labels)
    with pytest.raises(BadFile, match="cannot be read"):
        medmnist(tmp_path, "bloodmnist").splits["test"]
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    ("spoilt", "problem"),
    [
        ({"test_images": np.zeros((24, 28, 28, 3), dtype=np.float32)}, "float32 images"),
        ({"test_images": np.zeros((23, 28, 28, 3), dtype=np.uint8)}, r"\(23, 28, 28, 3\)"),
        ({"test_images": np.zeros((24, 28, 28), dtype=np.uint8)}, r"\(24, 28, 28\)"),
        ({"test_labels": np.zeros((24, 2), dtype=np.uint8)}, r"\(24, 2\)"),
        ({"test_labels": np.zeros(24, dtype=np.float32)}, "float32 labels"),
        ({"test_labels": np.full((24, 1), 8, dtype=np.uint8)}, "labels outside 0…7"),
    ],
)
def test_another_layout_is_refused(spoilt, problem, publish, tmp_path):
    publish("bloodmnist", **spoilt)
    with pytest.raises(BadFile, match=problem):
        medmnist(tmp_path, "bloodmnist").splits["test"]


def test_a_missing_array_is_refused(publish, tmp_path, monkeypatch):
    path = publish("bloodmnist")
    with zipfile.ZipFile(path) as whole, zipfile.ZipFile(tmp_path / "part.npz", "w") as part:
        part.writestr("train_images.npy", whole.read("train_images.npy"))
    path.write_bytes((tmp_path / "part.npz").read_bytes())
    digest = hashlib.md5(path.read_bytes()).hexdigest()
    monkeypatch.setitem(SETS, "bloodmnist", dataclasses.replace(SETS["bloodmnist"], md5={"28": digest}))
    with pytest.raises(BadFile, match="test_images"):
        medmnist(tmp_path, "bloodmnist").splits["test"]


def test_the_names_are_listed_with_what_is_there(wmr, publish, tmp_path):
    publish("pneumoniamnist")
    listed = wmr("list", "datasets", "mnist", "--data-dir", str(tmp_path))
    assert listed.returncode == 0, listed.stderr
    files = {words[1]: words[-1] for line in listed.stdout.splitlines() if len(words := line.split()) > 1}
    assert {name: files.get(name) for name in SETS} == dict.fromkeys(SETS, "missing") | {"pneumoniamnist": "present"}
    assert wmr("plugins", "--check").returncode == 0


def test_listing_imports_neither_torch_nor_numpy():
    code = "import sys, wmr_medmnist; wmr_medmnist.wmr_datasets(); print({'torch', 'numpy'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


@pytest.mark.skipif(importlib.util.find_spec("medmnist") is None, reason="the medmnist package is not installed")
def test_the_table_is_that_of_the_medmnist_package(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))  # its import makes a folder there
    location = Path(importlib.util.find_spec("medmnist").origin).with_name("info.py")
    spec = importlib.util.spec_from_file_location("medmnist_info", location)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    flat = {name: info for name, info in module.INFO.items() if not name.endswith("3d")}
    assert set(SETS) == set(flat)
    for name, info in flat.items():
        facts = SETS[name]
        assert (facts.task, facts.channels, facts.images) == (info["task"], info["n_channels"], info["n_samples"])
        assert list(facts.classes) == [info["label"][str(number)] for number in range(len(info["label"]))]
        assert facts.licence == info["license"]
        for size in (28, 64, 128, 224):
            mark = "" if size == 28 else f"_{size}"
            assert (facts.url(size), facts.md5[str(size)]) == (info[f"url{mark}"], info[f"MD5{mark}"])

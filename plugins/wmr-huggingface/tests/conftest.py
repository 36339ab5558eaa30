"""Tiny models and datasets, a stand-in of the hub, and the `wmr` command in an empty folder."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import numpy as np
import PIL.Image
import pytest
import torch
from hub_server import Hub

from wmr_cli.core import torchvision_compat

_ = torchvision_compat.torchvision  # before transformers, which imports it

CLASSES = ("cat", "dog", "fish")
Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(autouse=True)
def _offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Cut off the real hub, in this process and in commands."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf-home"))
    monkeypatch.setenv("WMR_DATA_DIR", str(tmp_path / "data"))
    for name in ("HF_ENDPOINT", "HF_TOKEN"):
        monkeypatch.delenv(name, raising=False)


def run_wmr(folder: Path, *arguments: object, status: int = 0) -> subprocess.CompletedProcess[str]:
    """Run `wmr` in a folder and check its exit status."""
    command = [sys.executable, "-m", "wmr_cli", *map(str, arguments)]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == status, done.stderr
    return done


@pytest.fixture
def wmr(tmp_path: Path) -> Run:
    return partial(run_wmr, tmp_path)


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """Run a hub, which commands use instead of the real one."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "0")
    monkeypatch.setenv("HF_TOKEN", "hf_test")
    monkeypatch.setenv("HF_HUB_DISABLE_XET", "1")
    with Hub() as server:
        monkeypatch.setenv("HF_ENDPOINT", server.url)
        yield server


def make_vit(folder: Path, *, classes: int = 10, size: int = 16, resample: int = 2) -> Path:
    """Save a tiny vision transformer with random weights and its processor."""
    from transformers import ViTConfig, ViTForImageClassification

    torch.manual_seed(0)
    config = ViTConfig(
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=32,
        image_size=size,
        patch_size=8,
        num_labels=classes,
    )
    network = ViTForImageClassification(config)
    with torch.no_grad():
        network.classifier.weight.mul_(20)
    network.save_pretrained(folder)
    processor = {
        "image_processor_type": "ViTImageProcessor",
        "do_resize": True,
        "size": {"height": size, "width": size},
        "resample": resample,
        "do_rescale": True,
        "rescale_factor": 1 / 255,
        "do_normalize": True,
        "image_mean": [0.5, 0.4, 0.3],
        "image_std": [0.2, 0.3, 0.4],
    }
    (folder / "preprocessor_config.json").write_text(json.dumps(processor))
    return folder


@pytest.fixture
def vit(tmp_path: Path) -> Path:
    return make_vit(tmp_path / "vit")


@pytest.fixture
def timm_model(tmp_path: Path) -> Path:
    """Save a network of timm as `timm.models.push_to_hf_hub` does."""
    timm = torchvision_compat.timm
    torch.manual_seed(0)
    network = timm.create_model("test_resnet", num_classes=10)
    timm.models._hub.save_for_hf(network, tmp_path / "timm", safe_serialization=True)
    return tmp_path / "timm"


def make_pixels(count: int, size: int = 12) -> np.ndarray[tuple[int, ...], np.dtype[np.uint8]]:
    """Make images whose brightness depends on their class, which counts in rotation."""
    noise = np.random.default_rng(0).integers(0, 60, (count, size, size, 3))
    levels = 90 * (np.arange(count) % len(CLASSES))
    return (noise + levels[:, None, None, None]).astype(np.uint8)


@pytest.fixture
def saved_dataset(tmp_path: Path) -> Path:
    """Save a dataset with `save_to_disk`: columns image and label, splits train and test."""
    import datasets

    features = datasets.Features(
        {"image": datasets.Image(), "label": datasets.ClassLabel(names=list(CLASSES))}
    )
    splits = {}
    for name, count in {"train": 60, "test": 30}.items():
        images = [PIL.Image.fromarray(pixels) for pixels in make_pixels(count)]
        labels = [number % len(CLASSES) for number in range(count)]
        splits[name] = datasets.Dataset.from_dict(
            {"image": images, "label": labels}, features=features
        )
    folder = tmp_path / "saved"
    datasets.DatasetDict(splits).save_to_disk(str(folder))
    return folder


@pytest.fixture
def image_folder(tmp_path: Path) -> Path:
    """Write image files in a folder per class, inside train and test."""
    for split, count in {"train": 30, "test": 12}.items():
        for number, pixels in enumerate(make_pixels(count)):
            file = tmp_path / "images" / split / CLASSES[number % 3] / f"{number}.png"
            file.parent.mkdir(parents=True, exist_ok=True)
            PIL.Image.fromarray(pixels).save(file)
    return tmp_path / "images"


def list_children(folder: Path) -> set[str]:
    """Return the relative paths of all files in a folder."""
    return {
        os.path.relpath(Path(place) / name, folder)
        for place, _, names in os.walk(folder)
        for name in names
    }

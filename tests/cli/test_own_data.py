"""Folders of image files: train, evaluate, report, and changes of the data."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from PIL import Image
from safetensors import safe_open
from typer.testing import CliRunner, Result

from support.miniature_datasets import make_image_folder
from wmr_cli.cli import app
from wmr_cli.core.data import image_files
from wmr_cli.registry import Registry
from wmr_cli.storage import checkpoints

QUICK = (
    "--model",
    "digits-cnn:width=4,hidden=8",
    "--epochs",
    "6",
    "--batch-size",
    "16",
    "--steps",
    "2",
    "--lr",
    "0.02",
)


def wmr(*words: object, status: int = 0) -> Result:
    done = CliRunner().invoke(app, [str(word) for word in words], prog_name="wmr")
    assert done.exit_code == status, done.output
    return done


@pytest.fixture
def pics(tmp_path: Path) -> Path:
    return make_image_folder(tmp_path / "pics", ("cat", "dog", "owl"), count=30)


def test_a_folder_of_images_trains_evaluates_and_reports(pics: Path) -> None:
    trained = wmr(
        "train", "--dataset", "folder:pics", "--augment", "crop:1,flip", *QUICK, "--epochs", "15"
    )
    run = Path("runs/folder-pics-trades-a1-s0")
    assert trained.stdout.strip() == str(run / "last.safetensors")
    (record,) = json.loads(
        wmr("evaluate", run, "--limit", "12", "--steps", "2", "--format", "json").stdout
    )
    assert record["dataset"]["name"] == f"folder:path={pics}"
    assert record["dataset"]["n"] == 12
    assert record["a_nat"]["value"] > 0.8, "bright, medium and dark images are easy to classify"
    assert str(run.name) in wmr("report", "runs").stdout


def test_the_checkpoint_finds_its_images_from_any_folder(
    pics: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wmr("train", "--dataset", "folder:path=pics", *QUICK, "--epochs", "1", "--out", "run")
    with safe_open("run/last.safetensors", framework="pt") as file:
        assert file.metadata()["dataset"] == f"folder:path={pics}"
        assert json.loads(file.metadata()["class_names"]) == ["cat", "dog", "owl"]
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    wmr("evaluate", tmp_path / "run", "--metrics", "nat")
    assert (
        json.loads((tmp_path / "run" / "config.json").read_text())["dataset"]
        == f"folder:path={pics}"
    )


def test_a_checkpoint_is_evaluated_on_the_background_of_its_training(pics: Path) -> None:
    for number, path in enumerate(sorted(pics.rglob("*.png"))):
        image = Image.open(path).convert("RGBA")
        image.putalpha(200 + number % 50)
        image.save(path)
    dataset = f"folder:path={pics},background=#80ff00"
    refused = wmr("train", "--dataset", f"folder:path={pics}", *QUICK, status=2)
    assert "background=" in refused.stderr
    assert not Path("runs").exists()
    wmr("train", "--dataset", dataset, *QUICK, "--epochs", "1", "--out", "run")
    command = ("evaluate", "run", "--metrics", "nat", "--format", "json")
    (record,) = json.loads(wmr(*command).stdout)
    assert record["dataset"]["name"] == dataset
    (other,) = json.loads(wmr(*command, "--dataset", dataset.replace("#80ff00", "white")).stdout)
    assert other["dataset"]["sha256"] != record["dataset"]["sha256"]


def test_test_images_are_not_trained_on_for_any_seed(pics: Path, registry: Registry) -> None:
    wmr(
        "train",
        "--dataset",
        "folder:pics",
        *QUICK,
        "--epochs",
        "1",
        "--split-seed",
        "7",
        "--out",
        "run",
    )
    (record,) = json.loads(wmr("evaluate", "run", "--metrics", "nat", "--format", "json").stdout)
    chosen = {
        seed: registry.create("dataset", "folder:pics", root=Path(), split_seed=seed).splits["test"]
        for seed in (0, 7)
    }
    assert record["dataset"]["sha256"] == chosen[7].sha256 != chosen[0].sha256


def test_changed_data_are_refused_for_the_test_split(pics: Path) -> None:
    wmr("train", "--dataset", "folder:pics", *QUICK, "--epochs", "1", "--out", "run")
    wmr("evaluate", "run", "--metrics", "nat")
    (pics / "cat" / "029.png").unlink()
    for flags in ((), ("--dataset", "folder:pics")):
        failed = wmr("evaluate", "run", "--metrics", "nat", *flags, status=2)
        assert "run/last.safetensors" in failed.stderr
    everything = wmr(
        "evaluate", "run", "--metrics", "nat", "--split", "all", "--format", "json"
    ).stdout
    assert json.loads(everything)[0]["dataset"]["n"] == 89
    failed = wmr(
        "train",
        "--dataset",
        "folder:pics",
        *QUICK,
        "--epochs",
        "1",
        "--out",
        "run",
        "--resume",
        status=2,
    )
    assert "--overwrite" in failed.stderr


def test_another_test_fraction_of_the_same_data_is_refused(pics: Path) -> None:
    wmr("train", "--dataset", "folder:pics", *QUICK, "--epochs", "1", "--out", "run")
    wmr("evaluate", "run", "--dataset", "folder:pics,test=0.9", status=2)


def test_other_classes_are_refused_even_if_they_are_as_many(pics: Path, tmp_path: Path) -> None:
    wmr("train", "--dataset", "folder:pics", *QUICK, "--epochs", "1", "--out", "run")
    make_image_folder(tmp_path / "others", ("cat", "dog", "fox"), count=10)
    failed = wmr("evaluate", "run", "--dataset", "folder:others", status=2)
    assert "'owl'" in failed.stderr
    assert "'fox'" in failed.stderr


def test_all_images_can_be_evaluated(pics: Path) -> None:
    wmr("train", "--dataset", "folder:pics", *QUICK, "--epochs", "1", "--out", "run")
    (record,) = json.loads(
        wmr("evaluate", "run", "--metrics", "nat", "--split", "all", "--format", "json").stdout
    )
    assert record["dataset"]["n"] == 90


def test_an_unknown_split_is_named(pics: Path) -> None:
    wmr("train", "--dataset", "folder:pics", *QUICK, "--epochs", "1", "--out", "run")
    failed = wmr("evaluate", "run", "--split", "tset", status=2)
    error, hint = failed.stderr.splitlines()
    assert "'tset'" in error
    assert "'test'" in hint


@pytest.mark.parametrize(
    ("spoil", "named"),
    [
        (lambda pics: shutil.rmtree(pics), "pics"),
        (lambda pics: (pics / "ant").mkdir(), "ant"),
        (lambda pics: Image.new("RGB", (5, 5)).save(pics / "cat" / "x.png"), "x.png"),
        (lambda pics: Image.new("CMYK", (16, 16)).save(pics / "owl" / "x.jpg"), "CMYK"),
        (lambda pics: Image.new("I;16", (16, 16)).save(pics / "owl" / "x.png"), "x.png"),
        (
            lambda pics: [
                file.write_bytes(file.read_bytes()[:-30]) for file in pics.rglob("*.png")
            ],
            ".png",
        ),
    ],
)
def test_damaged_data_give_one_error_and_one_hint_and_no_run(
    pics: Path, spoil: Callable[[Path], object], named: str
) -> None:
    spoil(pics)
    failed = wmr("train", "--dataset", "folder:pics", *QUICK, status=2)
    error, hint = failed.stderr.splitlines()[-2:]
    assert error.startswith("error: ")
    assert named in error
    assert hint.startswith("hint: ")
    assert "Traceback" not in failed.stderr
    assert not Path("runs").exists()


@pytest.mark.parametrize(
    ("dataset", "flags", "named"),
    [
        ("folder:pics,holdout=0", (), ""),
        ("folder:single", (), ""),
        ("folder:pics", ("--augment", "crop:40"), "40"),
        ("folder:pics", ("--augment", "crp:4"), "crp"),
        ("folder:pics", ("--model", "broken.py:Raises"), "KeyError"),
        ("folder:pics", ("--model", "broken.py:Late"), "AttributeError"),
        ("folder:pics", ("--model", "wrn-28-10:width=100000"), "wrn-28-10"),
    ],
)
def test_invalid_combinations_are_refused_before_anything_is_written(
    pics: Path, tmp_path: Path, dataset: str, flags: tuple[str, ...], named: str
) -> None:
    make_image_folder(tmp_path / "single", count=1)
    Path("broken.py").write_text(
        "from torch import nn\nclass Raises(nn.Module):\n    def __init__(self):\n        {}['x']\n"
        "class Late(nn.Module):\n    def forward(self, images):\n        return images.nothing\n"
    )
    failed = wmr("train", "--dataset", dataset, *QUICK[2:], *flags, status=2)
    assert named in failed.stderr
    assert "Traceback" not in failed.stderr
    assert not Path("runs").exists()
    wmr("train", "--dataset", dataset, *QUICK[2:], *flags, "--dry-run", status=2)


def test_large_folders_stream_and_train_to_the_same_weights(
    pics: Path, monkeypatch: pytest.MonkeyPatch, registry: Registry, tmp_path: Path
) -> None:
    from support.training import train
    from wmr_cli.config import resolve

    settings = {
        "dataset": f"folder:path={pics}",
        "model": "digits-cnn:width=4,hidden=8",
        "epochs": 2,
        "steps": 1,
        "augment": "flip",
    }
    config, weights = resolve(settings), []
    for place, large in (("memory", image_files.MAX_BYTES_IN_MEMORY), ("stream", 0)):
        monkeypatch.setattr(image_files, "MAX_BYTES_IN_MEMORY", large)
        list(train(config, tmp_path / place, registry, data_dir=tmp_path, device="cpu"))
        weights.append(checkpoints.load(tmp_path / place).sha256)
    assert weights[0] == weights[1]
    (tmp_path / "again").mkdir()
    list(
        train(
            resolve({**settings, "augment": "none"}),
            tmp_path / "plain",
            registry,
            data_dir=tmp_path,
            device="cpu",
        )
    )
    assert checkpoints.load(tmp_path / "plain").sha256 != weights[0], (
        "augmentation changes what is trained on"
    )


def test_without_data_and_network_the_error_names_files_and_folder() -> None:
    failed = wmr("train", "--dataset", "svhn", "--data-dir", "empty", status=2)
    error, hint = failed.stderr.splitlines()[-2:]
    assert "train_32x32.mat" in error
    assert "test_32x32.mat" in hint
    assert str(Path("empty").absolute()) in hint


NETWORK = """
from types import SimpleNamespace
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU())
        self.head = nn.Linear(4 * 6 * 6, 10)

    def forward(self, images):
        return OUTPUT
"""
LOGITS = "self.head(self.features(images).flatten(1))"


@pytest.mark.parametrize("defense", ["trades", "yopo", "iaat:warmup=0"])
@pytest.mark.parametrize("model", ["net.py:Net", "net.py:Net,mean=0.3,std=0.4"])
def test_a_network_may_return_an_object_with_logits(
    defense: str, model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def train_and_evaluate(name: str, output: str) -> tuple[Path, list[object]]:
        (tmp_path / name).mkdir()
        monkeypatch.chdir(tmp_path / name)
        Path("net.py").write_text(NETWORK.replace("OUTPUT", output))
        training = ("--model", model, "--defense", defense, "--steps", 2, "--batch-size", 200)
        wmr("train", *training, "--epochs", 1, "--out", "run", "-q")
        attack = ("--attack", "pgd:steps=2", "--limit", 50, "--format", "json", "-q")
        (record,) = json.loads(wmr("evaluate", "run", *attack).stdout)
        return Path("run").absolute(), [record[key] for key in ("a_nat", "a_rob", "by_alpha")]

    plain, numbers = train_and_evaluate("plain", LOGITS)
    other, other_numbers = train_and_evaluate("other", f"SimpleNamespace(logits={LOGITS})")
    weights = [checkpoints.load(run).tensors for run in (plain, other)]
    assert weights[0].keys() == weights[1].keys()
    assert all(torch.equal(tensor, weights[1][name]) for name, tensor in weights[0].items())
    assert other_numbers == numbers

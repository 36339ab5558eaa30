"""The smallest model of the zoo, loaded from files that have the quirks of the published one."""

import importlib.util
import json
import os
import subprocess
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from wmr_cli import BadFile, BadInput, MissingData, UnknownName
from wmr_cli.testing import check_model, tiny_batch
from wmr_robustbench import zoo
from wmr_robustbench.__main__ import main
from wmr_robustbench.models import robustbench

if importlib.util.find_spec("robustbench") is None:
    pytest.skip(
        "robustbench is not installed: `make test` in this folder creates an environment with it",
        allow_module_level=True,
    )

SHAPE = (3, 32, 32)
SMALL = "Hendrycks2020AugMix_WRN"
RELATIVE_PATH = f"models/cifar10/corruptions/{SMALL}.pt"


def make_small(
    path: Path | None = None, root: Path | None = None, pretrained: bool = True
) -> nn.Module:
    return robustbench(
        10, SHAPE, SMALL, threat="corruptions", path=path, root=root, pretrained=pretrained
    )


def save(path: Path, content: object) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    torch.save(content, path)
    return path


@pytest.fixture(scope="module")
def trained() -> nn.Module:
    """Return a model whose weights differ from those of any new one."""
    torch.manual_seed(7)
    network = make_small(pretrained=False).eval()
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(0.01 * torch.randn_like(parameter))
    return network


@pytest.fixture
def published(trained: nn.Module) -> dict[str, object]:
    """Return the content of a published file: names with a prefix, no normalisation constants."""
    kept = {
        name: tensor for name, tensor in trained.state_dict().items() if name not in ("mu", "sigma")
    }
    return {"epoch": 3, "state_dict": {f"module.{name}": tensor for name, tensor in kept.items()}}


def has_same_weights(one: nn.Module, other: nn.Module) -> bool:
    return all(
        torch.equal(tensor, other.state_dict()[name]) for name, tensor in one.state_dict().items()
    )


def test_weights_are_found_under_the_data_folder(
    tmp_path: Path, trained: nn.Module, published: dict[str, object]
) -> None:
    save(tmp_path / RELATIVE_PATH, published)
    network = make_small(root=tmp_path)
    assert has_same_weights(network, trained)
    images = tiny_batch(3, 10, SHAPE).images
    assert torch.equal(network(images), trained(images))


def test_weights_are_found_by_path_as_a_file_and_as_a_folder(
    tmp_path: Path, trained: nn.Module, published: dict[str, object]
) -> None:
    file, folder = (
        save(tmp_path / "mine.pt", published),
        save(tmp_path / RELATIVE_PATH, published).parents[2],
    )
    assert has_same_weights(make_small(path=file), trained)
    assert has_same_weights(make_small(path=folder, root=Path("nowhere")), trained)


def test_the_model_meets_the_contract() -> None:
    check_model(partial(robustbench, name=SMALL, threat="corruptions", pretrained=False), 10, SHAPE)


def test_a_missing_file_is_named_with_the_command_that_fetches_it(tmp_path: Path) -> None:
    with pytest.raises(MissingData, match="missing") as caught:
        robustbench(10, SHAPE, "Carmon2019Unlabeled", root=tmp_path)
    file = tmp_path / "models/cifar10/Linf/Carmon2019Unlabeled.pt"
    assert str(file) in str(caught.value)
    assert caught.value.hint.endswith(f"gdown 15tUx-gkZMYx7BfEOw1GY5OKC-jECIsPQ -O {file}")


def test_every_file_of_an_ensemble_is_needed(tmp_path: Path) -> None:
    with pytest.raises(MissingData, match=r"Chen2020Adversarial.pt_m0.pt"):
        robustbench(10, SHAPE, "Chen2020Adversarial", root=tmp_path)
    with pytest.raises(BadInput, match="3 files"):
        robustbench(10, SHAPE, "Chen2020Adversarial", path=save(tmp_path / "one.pt", {}))


class Hostile:
    def __reduce__(self) -> tuple[object, tuple[object, ...]]:
        return os.mkdir, (os.environ["HOSTILE"],)


@pytest.mark.parametrize("by_path", [True, False])
def test_a_file_that_would_run_code_is_refused_and_runs_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, published: dict[str, object], by_path: bool
) -> None:
    monkeypatch.setenv("HOSTILE", str(tmp_path / "created"))
    file = save(tmp_path / RELATIVE_PATH, {**published, "extra": Hostile()})
    with pytest.raises(BadFile, match=r"needs to run code: posix\.mkdir") as caught:
        make_small(path=file) if by_path else make_small(root=tmp_path)
    assert str(file) in str(caught.value)
    assert not (tmp_path / "created").exists()


def test_robustbench_itself_runs_no_code_either(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, published: dict[str, object]
) -> None:
    """Torch refuses pickled code even if the check before it misses some."""
    monkeypatch.setenv("HOSTILE", str(tmp_path / "created"))
    monkeypatch.setattr(
        torch.serialization, "_default_to_weights_only", lambda module: False, raising=False
    )  # as before 2.6
    save(tmp_path / RELATIVE_PATH, {**published, "extra": Hostile()})
    network = zoo.list_models("cifar10", "corruptions")[SMALL]
    with pytest.raises(Exception, match=r"(?i)weights.only"):
        zoo.load_model(network, tmp_path / "models")
    assert not (tmp_path / "created").exists()
    assert "TORCH_FORCE_WEIGHTS_ONLY_LOAD" not in os.environ


def test_a_web_page_and_other_weights_are_refused(
    tmp_path: Path, published: dict[str, object]
) -> None:
    page = tmp_path / "page.pt"
    page.write_text("<!DOCTYPE html><html>Sign in</html>")
    with pytest.raises(BadFile, match=r"page.pt is a web page"):
        make_small(path=page)
    other = save(tmp_path / "other.pt", {"state_dict": {"fc.weight": torch.zeros(2, 2)}})
    with pytest.raises(BadFile, match=rf"other.pt does not hold the weights of {SMALL}"):
        make_small(path=other)


def test_unknown_names_are_refused_with_a_suggestion() -> None:
    with pytest.raises(UnknownName) as caught:
        robustbench(10, SHAPE, "Carmon2019Unlabelled")
    assert caught.value.hint == "did you mean 'Carmon2019Unlabeled'?"
    with pytest.raises(UnknownName) as caught:
        robustbench(10, SHAPE, SMALL)
    assert caught.value.hint == f"write robustbench:{SMALL},dataset=cifar10,threat=corruptions"


def test_a_model_for_another_number_of_classes_is_refused() -> None:
    with pytest.raises(BadInput, match="100 classes"):
        robustbench(10, SHAPE, "Wu2020Adversarial", dataset="cifar100")


def test_a_model_that_would_be_downloaded_is_refused() -> None:
    with pytest.raises(BadInput, match="downloads"):
        robustbench(10, SHAPE, "Debenedetti2022Light_XCiT-S12")


def test_names_are_listed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["wmr_robustbench", "cifar10"])
    assert main() == 0
    names = capsys.readouterr().out.splitlines()
    assert "robustbench:Carmon2019Unlabeled" in names
    assert "robustbench:Debenedetti2022Light_XCiT-S12" not in names
    assert len(names) == len(set(names)) > 50
    monkeypatch.setattr("sys.argv", ["wmr_robustbench", "cifar10", "corruptions"])
    assert main() == 0
    assert f"robustbench:{SMALL},threat=corruptions" in capsys.readouterr().out.splitlines()


def wmr(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "wmr_cli", *words]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


@pytest.fixture
def images(tmp_path: Path) -> str:
    """Return the spec of a dataset with ten classes of random images, instead of CIFAR-10."""
    labels = np.arange(40) % 10
    pixels = np.random.default_rng(0).integers(0, 256, (40, 32, 32, 3), dtype=np.uint8)
    np.savez(tmp_path / "images.npz", images=pixels, labels=labels)
    return f"arrays:path={tmp_path / 'images.npz'}"


FLAGS = ("--attack", "noise", "--eps", "8/255", "--metrics", "nat,rob", "--format", "json")


def test_it_is_evaluated_by_name(tmp_path: Path, published: dict[str, object], images: str) -> None:
    words = (
        "evaluate",
        "--model",
        f"robustbench:{SMALL},threat=corruptions",
        "--dataset",
        images,
        *FLAGS,
        "--data-dir",
        "data",
    )
    missing = wmr(tmp_path, *words)
    assert missing.returncode == 2, missing.stderr
    assert f"data/{RELATIVE_PATH}" in missing.stderr.replace("\n", "")
    save(tmp_path / "data" / RELATIVE_PATH, published)
    measured = wmr(tmp_path, *words)
    assert measured.returncode == 0, measured.stderr
    assert "random" not in measured.stderr
    (record,) = json.loads(measured.stdout)
    assert record["plugins"] == {"wmr-robustbench": "0.1.0"}


def test_imported_weights_need_no_file_of_the_zoo(
    tmp_path: Path, trained: nn.Module, images: str
) -> None:
    save(tmp_path / "own.pt", trained.state_dict())
    imported = wmr(
        tmp_path,
        "import",
        "own.pt",
        "--model",
        f"robustbench:{SMALL},threat=corruptions",
        "--dataset",
        images,
    )
    assert imported.returncode == 0, imported.stderr
    measured = wmr(tmp_path, "evaluate", "own.safetensors", *FLAGS)
    assert measured.returncode == 0, measured.stderr

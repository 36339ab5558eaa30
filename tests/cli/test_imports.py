"""`wmr import`, and `--model` of evaluate and attack, as a user meets them."""

import csv
import json
import shutil
from pathlib import Path

import pytest
import safetensors.torch
import torch
from typer.testing import CliRunner, Result

from wmr_cli.cli import app
from wmr_cli.storage import checkpoints

NETWORK = ("--model", "digits-cnn", "--dataset", "digits")
TINY = ("--limit", 20, "--steps", 2)


def wmr(*args: object, status: int = 0) -> Result:
    result = CliRunner().invoke(app, [str(arg) for arg in args], prog_name="wmr")
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    assert result.exit_code == status, result.stderr
    return result


def refused(*args: object) -> tuple[str, str]:
    """Run a command that must fail, and return its error and hint."""
    result = wmr(*args, status=2)
    assert result.stdout == ""
    error, hint = result.stderr.splitlines()
    return error.removeprefix("error: "), hint.removeprefix("hint: ")


@pytest.fixture
def weights(tiny_run: Path) -> Path:
    """Return the weights of a run, as another program would have saved them."""
    state = {
        f"module.{name}": tensor for name, tensor in checkpoints.load(tiny_run).tensors.items()
    }
    torch.save({"state_dict": state, "epoch": 2, "best_prec1": 97.0}, "net.pth")
    return Path("net.pth")


def test_the_checkpoint_is_named_on_stdout_and_all_else_on_stderr(weights: Path) -> None:
    result = wmr("import", weights, *NETWORK)
    assert result.stdout == "net.safetensors\n"
    matched, next_step = result.stderr.splitlines()
    for fact in ("net.pth", "38,282", "'module.'", "'state_dict'"):
        assert fact in matched
    assert "wmr evaluate net.safetensors" in next_step


def test_quiet_leaves_stderr_empty(weights: Path) -> None:
    assert wmr("import", weights, *NETWORK, "--out", "a/b.safetensors", "--quiet").stderr == ""
    assert checkpoints.load(Path("a/b.safetensors")).model == "digits-cnn"


def test_an_imported_checkpoint_needs_no_flags(weights: Path, tiny_run: Path) -> None:
    wmr("import", weights, *NETWORK, "-q")
    (record,) = json.loads(
        wmr("evaluate", "net.safetensors", *TINY, "--format", "json", "-q").stdout
    )
    (own,) = json.loads(
        wmr("evaluate", tiny_run, *TINY, "--out", "own", "--format", "json", "-q").stdout
    )
    same = ("a_nat", "a_rob", "by_alpha", "threat", "attack", "dataset")
    assert {name: record[name] for name in same} == {name: own[name] for name in same}
    assert (record["checkpoint"]["defense"], record["checkpoint"]["alpha_train"]) == (
        "imported",
        None,
    )
    assert (record["checkpoint"]["config"], record["checkpoint"]["epoch"]) == (None, None)
    assert "imported" in wmr("report", "net.evaluations").stdout
    assert "net.safetensors" in wmr("attack", "net.safetensors", *TINY).stdout


def test_the_label_of_a_record_is_the_same_in_every_folder(
    weights: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wmr("import", weights, *NETWORK, "-q")
    wmr("evaluate", "net.safetensors", *TINY, "--metrics", "nat", "--out", tmp_path / "out", "-q")
    labels = set()
    for folder in (tmp_path / "h", tmp_path / "zz"):
        folder.mkdir()
        monkeypatch.chdir(folder)
        table = wmr("report", tmp_path / "out", "--format", "csv").stdout
        labels |= {row["run"] for row in csv.DictReader(table.splitlines())}
    assert labels == {"net.safetensors"}


@pytest.mark.parametrize(
    ("folder", "path"), [(".", "."), (".", "last.safetensors"), ("evaluations", "..")]
)
def test_a_run_that_is_evaluated_from_inside_is_labelled_by_its_folder(
    folder: str, path: str, tiny_run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Path(shutil.copytree(tiny_run, "mine")).absolute()
    (run / "evaluations").mkdir(exist_ok=True)
    monkeypatch.chdir(run / folder)
    wmr("evaluate", path, *TINY, "--metrics", "nat", "--out", "out", "-q")
    found = Path("out").absolute()
    monkeypatch.chdir("/")
    table = wmr("report", found, "--format", "csv").stdout
    assert [row["run"] for row in csv.DictReader(table.splitlines())] == ["mine"]


def test_foreign_weights_are_evaluated_and_attacked_without_importing(weights: Path) -> None:
    first = json.loads(wmr("evaluate", weights, *NETWORK, *TINY, "--format", "json").stdout)
    again = wmr("evaluate", weights, *NETWORK, *TINY, "--format", "json")
    assert json.loads(again.stdout) == first
    assert f"net.evaluations/{first[0]['id']}.json" in again.stderr
    assert "'module.'" in again.stderr
    summary = json.loads(wmr("attack", weights, *NETWORK, *TINY, "--format", "json").stdout)
    assert summary["checkpoint"] == "net.pth"
    assert not Path("net.safetensors").exists()


def test_a_network_without_weights_is_evaluated_as_it_is_built() -> None:
    result = wmr("evaluate", *NETWORK, *TINY, "--format", "json")
    assert "warning: " in result.stderr
    assert json.loads(result.stdout)[0]["checkpoint"]["path"] == "digits-cnn"
    assert list(Path("digits-cnn.evaluations").glob("*.json"))


def test_one_bad_file_of_several_is_skipped(weights: Path) -> None:
    Path("page.pt").write_text("<html>")
    result = wmr("evaluate", "page.pt", weights, *NETWORK, *TINY, "--format", "json", status=1)
    assert len(json.loads(result.stdout)) == 1
    assert "page.pt" in result.stderr


@pytest.mark.parametrize("command", ["evaluate", "attack"])
def test_foreign_weights_without_a_model_are_refused(command: str, weights: Path) -> None:
    safetensors.torch.save_file({"weight": torch.zeros(3)}, "net.safetensors")
    for path in (weights, "net.safetensors"):
        error, hint = refused(command, path)
        assert str(path) in error
        assert "--model" in hint
        assert "wmr import" in hint


@pytest.mark.parametrize("command", ["import", "evaluate", "attack"])
def test_weights_need_a_dataset(command: str, weights: Path) -> None:
    _, hint = refused(command, weights, "--model", "digits-cnn")
    assert "--dataset" in hint
    assert "wmr list datasets" in hint


@pytest.mark.parametrize("command", ["import", "evaluate", "attack"])
def test_a_checkpoint_of_wmr_takes_no_model(command: str, tiny_run: Path) -> None:
    error, hint = refused(command, tiny_run, *NETWORK)
    assert str(tiny_run) in error
    assert f"wmr evaluate {tiny_run}" in hint


@pytest.mark.parametrize(
    ("args", "error", "remedy"),
    [
        (
            ("import", "net.pth", "--dataset", "digits"),
            "'--model'",
            "wmr import --help",
        ),
        (
            ("import", "net.pth", *NETWORK, "--match", "shap"),
            "'shap'",
            "'shape'",
        ),
        (("import", "net.pth", *NETWORK, "--eps", "nan"), "--eps", ""),
        (
            ("import", "net.pth", "--model", "digit-cnn", "--dataset", "digits"),
            "'digit-cnn'",
            "'digits-cnn'",
        ),
        (
            ("import", "net.pth", "--model", "digits-cnn:widht=3", "--dataset", "digits"),
            "'widht'",
            "'width'",
        ),
        (
            ("import", "net.pth", "--model", "digits-cnn", "--dataset", "digit"),
            "'digit'",
            "'digits'",
        ),
        (
            ("import", "net.pth", "--model", "digits-cnn:width=8", "--dataset", "digits"),
            "net.pth",
            "--model",
        ),
        (
            ("import", "net.pth", *NETWORK, "--out", "net.pt"),
            "net.pt",
            "safetensors",
        ),
        (("evaluate",), "checkpoint", "--model"),
        (("evaluate", "--model", "digits-cnn"), "", "--dataset"),
    ],
)
def test_invalid_input_is_refused_with_a_remedy(
    weights: Path, tmp_path: Path, args: tuple[str, ...], error: str, remedy: str
) -> None:
    printed, hint = refused(*args)
    assert error in printed
    assert remedy in hint
    assert list(tmp_path.iterdir()) == [tmp_path / "net.pth"]

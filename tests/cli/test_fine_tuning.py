"""`wmr train --init`: what a user sees, and how messages name the flags."""

from pathlib import Path

import pytest
import torch

from support.cli_runner import wmr
from wmr_cli.config import TrainConfig
from wmr_cli.storage import checkpoints

BRIEF = ("--epochs", "1", "--steps", "1", "--validate-every", "0")


def lines(text: str) -> str:
    """Return a message without the line breaks of the terminal."""
    return " ".join(text.split())


def test_a_run_is_fine_tuned_and_resumed_without_its_initial_weights(
    tiny_run: Path, tmp_path: Path
) -> None:
    weights = tmp_path / "start.safetensors"
    weights.write_bytes((tiny_run / "last.safetensors").read_bytes())
    words = ("train", *BRIEF, "--init", weights.name, "--freeze", "features,classifier.1")
    started = wmr(*words, "--out", "tuned")
    text = lines(started.stderr)
    assert "digits-cnn from start.safetensors" in text
    assert "start.safetensors: 8 of 8 tensors of the model" in text
    assert "37,632 of 38,282 parameters are frozen" in text
    checkpoint = checkpoints.load(Path("tuned"))
    assert checkpoint.config.init == "start.safetensors"
    assert checkpoint.config.freeze == ("features", "classifier.1")
    weights.unlink()
    resumed = wmr(*words, "--out", "tuned", "--resume")
    assert "tensors of the model" not in resumed.stderr
    again = wmr("train", "--config", "tuned/config.json", "--out", "again", status=2)
    assert "start.safetensors" in again.stderr
    evaluated = wmr("evaluate", "tuned", "--metrics", "nat", "--format", "json", "--quiet")
    assert checkpoint.sha256 in evaluated.stdout
    assert "A_nat" in wmr("report", "tuned").stdout


def test_a_config_repeats_a_run_from_the_same_weights_only(tiny_run: Path) -> None:
    torch.save(checkpoints.load(tiny_run).tensors, "start.pt")
    wmr("train", *BRIEF, "--init", "start.pt", "--out", "tuned", "--quiet")
    wmr("train", "--config", "tuned/config.json", "--out", "again", "--quiet")
    assert checkpoints.load(Path("again")).sha256 == checkpoints.load(Path("tuned")).sha256
    tensors = {name: each + 1 for name, each in checkpoints.load(tiny_run).tensors.items()}
    torch.save(tensors, "start.pt")
    refused = wmr("train", "--config", "tuned/config.json", "--out", "third", status=2)
    assert "other weights" in refused.stderr


@pytest.mark.parametrize(
    ("words", "message", "hint"),
    [
        (("--model", "digits-cnn:width=8"), "of another shape", "--model digits-cnn"),
        (("--freeze", "featurs"), "--freeze: no layer is called", "features"),
        (("--init-match", "shape"), "order", "--model"),
        (("--freeze", "backbone", "--backbone-lr-scale", "0.1"), "--backbone-lr-scale", "--freeze"),
        (("--backbone-lr-scale", "0"), "--backbone-lr-scale", "more than 0"),
        (("--init-match", "names"), "names", "did you mean"),
    ],
)
def test_a_mistake_is_refused_with_the_flags_to_change(
    words: tuple[str, ...], message: str, hint: str, tiny_run: Path
) -> None:
    refused = wmr("train", *BRIEF, "--init", tiny_run, *words, "--out", "run", "-q", status=2)
    error, _, advice = lines(refused.stderr).partition("hint:")
    assert message in error
    assert hint in advice
    assert not Path("run").exists()


def test_a_dry_run_checks_the_initial_weights(tiny_run: Path) -> None:
    done = wmr("train", *BRIEF, "--init", tiny_run, "--dry-run")
    assert "8 of 8 tensors" in lines(done.stderr)
    assert TrainConfig.from_json(done.stdout).init == str(tiny_run)
    wmr("train", *BRIEF, "--init", "missing", "--dry-run", status=2)

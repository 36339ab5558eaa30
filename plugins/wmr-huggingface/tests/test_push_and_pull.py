"""A run goes to the hub and comes back, through a stand-in that speaks the hub's HTTP interface."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from hub_server import Hub
from huggingface_hub import ModelCard, ModelCardData

from conftest import Run, run_wmr

EVALUATION = ("--attack", "pgd:steps=2", "--alpha-test", "2")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Train one epoch and evaluate."""
    folder = tmp_path_factory.mktemp("trained")
    run_wmr(folder, "train", "--epochs", "1", "--out", "runs/mine", "-q")
    run_wmr(folder, "evaluate", "runs/mine", *EVALUATION, "-q")
    return folder / "runs" / "mine"


@pytest.fixture
def run(trained: Path, tmp_path: Path) -> Path:
    """Return a copy of the trained run."""
    return Path(shutil.copytree(trained, tmp_path / "runs" / "mine"))


def read_records(folder: Path) -> dict[str, Any]:
    files = (folder / "evaluations").glob("*.json")
    return {file.stem: json.loads(file.read_text()) for file in files}


def test_a_run_that_is_pushed_and_pulled_has_the_same_records(
    run: Path, tmp_path: Path, wmr: Run, hub: Hub
) -> None:
    pushed = wmr("push", "runs/mine", "me/robust")
    files = hub.repositories["me/robust"].commits[hub.repositories["me/robust"].head]
    (record_id,) = read_records(run)
    assert set(files) == {
        "README.md",
        "last.safetensors",
        "config.json",
        "log.jsonl",
        f"evaluations/{record_id}.json",
        f"evaluations/{record_id}.safetensors",
    }
    assert pushed.stdout.strip().endswith(hub.repositories["me/robust"].head)
    assert not hub.unknown

    wmr("pull", "me/robust", "--out", "pulled")
    assert read_records(tmp_path / "pulled") == read_records(run)
    assert (tmp_path / "pulled/last.safetensors").read_bytes() == files["last.safetensors"]
    # measured again from the hub, elsewhere: the same id, and the same numbers
    wmr("evaluate", "hf:me/robust", *EVALUATION, "--out", "again", "-q")
    again = json.loads((tmp_path / "again" / f"{record_id}.json").read_text())
    stored = read_records(run)[record_id]
    for key in ("a_nat", "a_rob", "by_alpha", "dataset", "threat", "attack"):
        assert again[key] == stored[key]
    # without --out its own record is found, also without network
    found = wmr("evaluate", "hf:me/robust", *EVALUATION)
    assert "already recorded" in found.stderr


def test_the_card_is_the_readme(run: Path, wmr: Run, hub: Hub) -> None:
    wmr("push", "runs/mine", "me/robust", "--private")
    repository = hub.repositories["me/robust"]
    assert repository.private
    card = ModelCard(repository.commits[repository.head]["README.md"].decode())
    assert isinstance(card.data, ModelCardData)
    assert card.data.model_name == "me/robust"
    assert card.data.eval_results is not None
    (record,) = read_records(run).values()
    values = {result.metric_value for result in card.data.eval_results}
    assert {record["a_nat"]["value"], record["a_rob"]["value"]} <= values
    assert "wmr evaluate hf:me/robust" in card.text
    assert "POST /api/validate-yaml" in hub.requests


def test_records_of_earlier_weights_are_replaced(run: Path, wmr: Run, hub: Hub) -> None:
    wmr("push", "runs/mine", "me/robust")
    (first,) = read_records(run)
    wmr("train", "--epochs", "1", "--seed", "1", "--out", "runs/mine", "--overwrite", "-q")
    assert "no records" in wmr("push", "runs/mine", "me/robust", status=2).stderr
    wmr("evaluate", "runs/mine", *EVALUATION, "-q")
    wmr("push", "runs/mine", "me/robust")
    files = hub.repositories["me/robust"].commits[hub.repositories["me/robust"].head]
    (second,) = read_records(run)
    assert first != second
    assert f"evaluations/{second}.json" in files
    assert f"evaluations/{first}.json" not in files


def test_what_cannot_be_pulled_is_explained(tmp_path: Path, wmr: Run, hub: Hub) -> None:
    hub.add("me/other", {"README.md": b"# nothing"})
    assert "is not a run" in wmr("pull", "me/other", status=2).stderr
    assert "is not on" in wmr("pull", "me/missing", status=2).stderr
    assert "not the name" in wmr("pull", "missing", status=2).stderr
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine.txt").write_text("keep")
    assert "exists" in wmr("pull", "me/other", "--out", "full", status=2).stderr
    assert (tmp_path / "full" / "mine.txt").read_text() == "keep"


def test_without_network_the_error_says_so(
    run: Path, wmr: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    missing = wmr("evaluate", "hf:me/robust", status=2)
    assert "cannot be reached" in missing.stderr
    monkeypatch.setenv("HF_HUB_OFFLINE", "0")
    # a port on which nothing listens
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    assert "cannot be reached" in wmr("push", run, "me/robust", status=2).stderr

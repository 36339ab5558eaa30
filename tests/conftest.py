"""Shared fixtures: the registry, a short training run, and isolation of the tests."""

import signal
from pathlib import Path

import pytest
import torch

from support.training import train
from wmr_cli import local_code
from wmr_cli.config import TrainConfig, resolve
from wmr_cli.plugins import load_plugins
from wmr_cli.registry import Registry

torch.set_num_threads(1)  # tests run in parallel
# a background job of a shell ignores Ctrl-C, and the commands under test would inherit that
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def _run_in_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run each test in an empty folder."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture(autouse=True)
def _forget_trusted_code(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Start each test without trusted local code, from this process or an earlier one."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
    monkeypatch.setattr(local_code, "_granted", set())
    monkeypatch.setattr(local_code, "_named_files", {})
    monkeypatch.delenv(local_code.TRUST_CODE, raising=False)


@pytest.fixture
def trusts_local_code(monkeypatch: pytest.MonkeyPatch) -> None:
    """Trust all local code, as if the user had named it."""
    monkeypatch.setattr(local_code, "_is_trusted", lambda sha256, what: True)


@pytest.fixture(scope="session")
def registry() -> Registry:
    return load_plugins().registry


@pytest.fixture(scope="session")
def tiny_config() -> TrainConfig:
    return resolve({"epochs": 2, "validate_every": 1, "steps": 2})


@pytest.fixture(scope="session")
def tiny_run(
    tmp_path_factory: pytest.TempPathFactory, registry: Registry, tiny_config: TrainConfig
) -> Path:
    """Return a run folder of two short epochs on digits. Tests that write use a copy."""
    path = tmp_path_factory.mktemp("session") / "runs" / "tiny"
    list(train(tiny_config, path, registry, data_dir=Path(), device="cpu"))
    return path

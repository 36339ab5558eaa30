"""Shared fixtures: the registry of this environment, and one tiny run that many tests look at."""

import signal
from pathlib import Path

import pytest
import torch

from support.training import train
from wmr_cli import local_code
from wmr_cli.config import TrainConfig, resolve
from wmr_cli.plugins import load_plugins
from wmr_cli.registry import Registry

torch.set_num_threads(1)  # tests run side by side
# a job in the background of a shell ignores Ctrl-C, and would hand that on to the commands under test
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No test sees, or leaves, a run in the folder it was started from."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture(autouse=True)
def _trusts_no_code(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every test starts as a user who has named no local code before, in this process or in an earlier one."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
    monkeypatch.setattr(local_code, "_granted", set())
    monkeypatch.setattr(local_code, "_named_files", {})
    monkeypatch.delenv(local_code.TRUST_CODE, raising=False)


@pytest.fixture
def trusts_local_code(monkeypatch: pytest.MonkeyPatch) -> None:
    """For tests below the command line, where the user has named the local classes."""
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
    """A run folder of two short epochs on digits. Tests that write use a copy."""
    path = tmp_path_factory.mktemp("session") / "runs" / "tiny"
    list(train(tiny_config, path, registry, data_dir=Path(), device="cpu"))
    return path

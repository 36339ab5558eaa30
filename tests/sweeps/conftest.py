"""Child processes that are replaced by fake ones."""

import pytest

from support.fake_sweep import FakeProcess
from wmr_cli.sweeps import runner
from wmr_cli.sweeps.process import Failure


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> type[FakeProcess]:
    """Replace the child processes of a sweep."""
    FakeProcess.commands = []
    FakeProcess.failing = ""
    FakeProcess.failure = Failure("test failure", "test hint")
    FakeProcess.running = 0
    FakeProcess.most_running = 0
    monkeypatch.setattr(runner, "ChildProcess", FakeProcess)
    monkeypatch.setattr(runner, "sleep_before_poll", lambda: None)
    monkeypatch.setattr(runner, "RETRY_SECONDS", 0.01)
    return FakeProcess

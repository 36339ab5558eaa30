"""A sweep continues where it stopped, and one failure does not stop other runs."""

import json
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from support import synthetic
from wmr_cli.registry import Registry
from wmr_cli.storage import records
from wmr_cli.storage.atomic import lock_folder
from wmr_cli.storage.runs import RunFolder
from wmr_cli.sweeps import ledger, runner
from wmr_cli.sweeps.process import ChildCommand, CommandResult, Failure
from wmr_cli.sweeps.runner import (
    RunDone,
    RunFailed,
    RunStarted,
    RunWaiting,
    SweepEvent,
    find_leftover_runs,
    read_status,
    record_files,
    run_study,
)
from wmr_cli.sweeps.study import Study, read_study

TEXT = """
folder = "runs/small"
{keep}
[train]
epochs = {epochs}
[[grid]]
alpha = {alphas}
[[evaluate]]
limit = 20
[[evaluate]]
only = {{ alpha = 2 }}
attack = "pgd-margin"
"""


def write_study(
    registry: Registry, *, alphas: str = "[0, 2]", epochs: int = 2, keep: str = ""
) -> Study:
    Path("small.toml").write_text(TEXT.format(alphas=alphas, epochs=epochs, keep=keep))
    return read_study(Path("small.toml"), registry)


class FakeProcess:
    """A command that is done at once: training leaves weights, an evaluation leaves a record.

    A command whose arguments contain `failing` fails.
    """

    log: list[tuple[str, ...]]
    failing: str
    running: int
    most_running: int

    def __init__(self, command: ChildCommand, log: Path, *, threads: int) -> None:
        self.command = command
        self._polls = 0
        self._record_ids: list[str] = []
        FakeProcess.log.append(command.arguments)
        FakeProcess.running += 1
        FakeProcess.most_running = max(FakeProcess.most_running, FakeProcess.running)

    @property
    def status(self) -> int | None:
        self._polls += 1
        if self._polls == 1:
            return None
        if self._polls == 2:
            FakeProcess.running -= 1
            if not self._fails():
                self._work()
        return int(self._fails())

    def _fails(self) -> bool:
        return bool(self.failing) and self.failing in " ".join(self.command.arguments)

    def _work(self) -> None:
        arguments = self.command.arguments
        if arguments[0] == "train":
            folder = RunFolder(Path(arguments[arguments.index("--out") + 1]))
            synthetic.stored_weights(folder.last)
            folder.write_log([{"epoch": 2}])
        else:
            rows = synthetic.rows(20, logits=True)
            record_id = records.record_id({"words": list(arguments)})
            record = msgspec.structs.replace(synthetic.record(rows), id=record_id)
            synthetic.stored(Path(arguments[1]).parent / "evaluations", record, rows)
            self._record_ids = [record_id]

    def read_result(self) -> CommandResult | Failure:
        if self._fails():
            return Failure("test failure", "test hint")
        return CommandResult(status=0, record_ids=self._record_ids)

    def terminate(self) -> None: ...

    def wait(self) -> None: ...


@pytest.fixture(autouse=True)
def fake(monkeypatch: pytest.MonkeyPatch) -> type[FakeProcess]:
    FakeProcess.log = []
    FakeProcess.failing = ""
    FakeProcess.running = 0
    FakeProcess.most_running = 0
    monkeypatch.setattr(runner, "ChildProcess", FakeProcess)
    monkeypatch.setattr(runner, "sleep_before_poll", lambda: None)
    monkeypatch.setattr(runner, "RETRY_SECONDS", 0.01)
    return FakeProcess


def outcomes(events: Iterable[SweepEvent]) -> dict[str, str]:
    return {
        event.run.name: type(event).__name__
        for event in events
        if isinstance(event, RunDone | RunFailed)
    }


def test_every_run_is_trained_and_evaluated_once(
    registry: Registry, fake: type[FakeProcess]
) -> None:
    small = write_study(registry)
    assert outcomes(run_study(small, jobs=1)) == dict.fromkeys(
        ["digits-trades-a0-s0", "digits-trades-a2-s0"], "RunDone"
    )
    assert [words[0] for words in fake.log] == [
        "train",
        "evaluate",
        "train",
        "evaluate",
        "evaluate",
    ]
    assert all("--resume" in words for words in fake.log)
    assert fake.log[1][1] == "runs/small/digits-trades-a0-s0/last.safetensors"
    assert (
        json.loads(Path("runs/small/logs/digits-trades-a0-s0/config.json").read_text())["alpha"]
        == 0
    )
    assert [str(read_status(small, run)) for run in small.runs] == ["done", "done"]
    assert sum(len(record_files(small, run)) for run in small.runs) == 3
    events = list(run_study(small, jobs=1))
    assert [isinstance(event, RunDone) and event.was_done for event in events] == [True, True]
    assert len(fake.log) == 5


def test_as_many_runs_as_jobs_are_active_at_a_time(
    registry: Registry, fake: type[FakeProcess]
) -> None:
    assert len(outcomes(run_study(write_study(registry, alphas="[0, 1, 2, 3, 4]"), jobs=3))) == 5
    assert fake.most_running == 3


def test_a_failure_stops_no_other_run_and_is_repeated_by_the_next_sweep(
    registry: Registry, fake: type[FakeProcess]
) -> None:
    small = write_study(registry)
    fake.failing = "a0-s0/last"
    events = list(run_study(small, jobs=1))
    assert outcomes(events) == {
        "digits-trades-a0-s0": "RunFailed",
        "digits-trades-a2-s0": "RunDone",
    }
    (failed,) = [event.failure for event in events if isinstance(event, RunFailed)]
    assert (failed.reason, failed.hint) == ("test failure", "test hint")
    assert str(read_status(small, small.runs[0])) == "trained, 1 evaluation to do"
    fake.failing, fake.log = "", []
    assert set(outcomes(run_study(small, jobs=1)).values()) == {"RunDone"}
    assert [words[0] for words in fake.log] == ["evaluate"]


def test_a_run_with_other_settings_is_refused_with_the_difference(
    registry: Registry, fake: type[FakeProcess]
) -> None:
    list(run_study(write_study(registry), jobs=1))
    before = Path("runs/small/digits-trades-a0-s0/sweep.json").read_text()
    fake.log = []
    events = list(run_study(write_study(registry, epochs=3), jobs=1))
    assert set(outcomes(events).values()) == {"RunFailed"}
    assert isinstance(events[0], RunFailed)
    assert "epochs" in events[0].failure.reason
    assert not fake.log
    assert Path("runs/small/digits-trades-a0-s0/sweep.json").read_text() == before


def test_runs_that_a_study_no_longer_covers_are_named_and_left(registry: Registry) -> None:
    list(run_study(write_study(registry), jobs=1))
    less = write_study(registry, alphas="[0]")
    assert find_leftover_runs(less) == ["digits-trades-a2-s0"]
    assert Path("runs/small/digits-trades-a2-s0/last.safetensors").exists()
    assert sum(len(record_files(less, run)) for run in less.runs) == 1


def test_weights_of_another_origin_are_trained_and_evaluated_again(
    registry: Registry, fake: type[FakeProcess]
) -> None:
    small = write_study(registry, alphas="[0]")
    list(run_study(small, jobs=1))
    synthetic.stored_weights(Path("runs/small/digits-trades-a0-s0/last.safetensors"), value=1.0)
    shutil.rmtree("runs/small/digits-trades-a0-s0/evaluations")
    fake.log = []
    list(run_study(small, jobs=1))
    assert [words[0] for words in fake.log] == ["train", "evaluate"]


def test_a_study_is_done_when_its_kept_records_exist(
    registry: Registry, fake: type[FakeProcess]
) -> None:
    small = write_study(registry, keep='keep = "kept"')
    list(run_study(small, jobs=1))
    shutil.rmtree("runs")
    fake.log = []
    assert [str(read_status(small, run)) for run in small.runs] == ["done", "done"]
    events = list(run_study(small, jobs=1))
    assert [isinstance(event, RunDone) and event.was_done for event in events] == [True, True]
    assert not fake.log
    files = record_files(small, small.runs[1])
    assert [file.parts[0] for file in files] == ["kept", "kept"]
    whole = synthetic.rows(20, logits=True)
    for file in files:
        kept = records.load_record_rows(file, records.load(file))
        assert (kept["uniform/margin"] == whole["uniform/margin"]).all()
        assert {name for name in kept if name.endswith("logits")} == {"uniform/logits"}
        assert kept["label"].dtype.itemsize == 1


@pytest.mark.parametrize("held", ["", "evaluations/one.partial", "../logs/digits-trades-a0-s0"])
def test_a_run_in_use_is_claimed_when_it_is_free(
    registry: Registry, fake: type[FakeProcess], held: str
) -> None:
    small = write_study(registry)
    events: list[Any] = []
    with lock_folder(Path("runs/small/digits-trades-a0-s0") / held):
        walk = run_study(small, jobs=1)
        while "RunDone" not in outcomes(events).values():
            events.append(next(walk))
        assert [event.run.name for event in events if isinstance(event, RunWaiting)] == [
            "digits-trades-a0-s0"
        ]
        assert outcomes(events) == {"digits-trades-a2-s0": "RunDone"}
    assert outcomes(walk) == {"digits-trades-a0-s0": "RunDone"}


def test_closing_a_sweep_terminates_its_processes(
    registry: Registry, fake: type[FakeProcess], monkeypatch: pytest.MonkeyPatch
) -> None:
    small = write_study(registry)
    terminated: list[str] = []
    monkeypatch.setattr(
        FakeProcess, "terminate", lambda self: terminated.append(self.command.title)
    )
    walk = run_study(small, jobs=2)
    events = [next(walk), next(walk)]
    assert all(isinstance(event, RunStarted) for event in events)
    walk.close()
    assert terminated == ["training", "training"]
    with lock_folder(Path("runs/small/logs/digits-trades-a0-s0")):
        pass  # the lock was released


def test_sweeps_of_one_study_at_the_same_time_share_its_runs(
    registry: Registry, fake: type[FakeProcess]
) -> None:
    small = write_study(registry, alphas="[0, 1, 2, 3]")
    first, second = run_study(small, jobs=2), run_study(small, jobs=2)
    assert [next(first).run.name, next(first).run.name] == [
        "digits-trades-a0-s0",
        "digits-trades-a1-s0",
    ]
    events: list[Any] = []
    while len(outcomes(events)) < 2:
        events.append(next(second))
    assert [event.run.name[:16] for event in events if isinstance(event, RunWaiting)] == [
        "digits-trades-a0",
        "digits-trades-a1",
    ]
    assert set(outcomes(events)) == {"digits-trades-a2-s0", "digits-trades-a3-s0"}
    for walk in (first, second):
        events += walk
    assert set(outcomes(events).values()) == {"RunDone"}
    assert sum(words[0] == "train" for words in fake.log) == 4


def test_a_run_that_another_sweep_holds_is_not_probed(
    registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    small, looked = write_study(registry, alphas="[0]"), []

    def record_probe(folder: Path) -> bool:
        looked.append(folder)
        return True

    monkeypatch.setattr(ledger, "is_free", record_probe)
    with lock_folder(runner.log_folder(small, small.runs[0])):
        assert isinstance(runner.claim_run(small, small.runs[0], 0, None), RunWaiting)
    assert not looked


def test_a_folder_that_cannot_be_written_to_is_a_failure_and_not_waited_for(
    registry: Registry,
) -> None:
    Path("runs/small").mkdir(parents=True)
    Path("runs/small/logs").write_text("no folder")
    (first, second) = run_study(write_study(registry), jobs=1)
    assert isinstance(first, RunFailed)
    assert "runs/small" in first.failure.reason
    assert isinstance(second, RunFailed)


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        (ledger.FILE_NAME, "{", "sweep.json cannot be read"),
        ("log.jsonl", '{"epoch": 1}\n{"ep\n{}\n', "log.jsonl cannot be read"),
    ],
)
def test_a_damaged_run_is_reported_and_stops_no_other(
    registry: Registry, name: str, text: str, said: str
) -> None:
    small, path = write_study(registry), Path("runs/small/digits-trades-a0-s0")
    path.mkdir(parents=True)
    (path / name).write_text(text)
    assert str(read_status(small, small.runs[0])) == "refused"
    events = list(run_study(small, jobs=1))
    assert outcomes(events) == {
        "digits-trades-a0-s0": "RunFailed",
        "digits-trades-a2-s0": "RunDone",
    }
    assert isinstance(events[0], RunFailed)
    assert said in events[0].failure.reason


def test_an_evaluation_without_records_is_a_failure_of_its_run(
    registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FakeProcess, "_work", lambda self: None)
    small = write_study(registry, alphas="[0]")
    (failed,) = [event for event in run_study(small, jobs=1) if isinstance(event, RunFailed)]
    assert "no records" in failed.failure.reason
    assert failed.failure.hint


def test_records_that_cannot_be_kept_are_a_failure_of_their_run(registry: Registry) -> None:
    Path("kept").write_text("no folder")
    small = write_study(registry, alphas="[0]", keep='keep = "kept"')
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            ledger, "load", lambda place: None
        )  # a file in the place of a folder is told at once
        (failed,) = [event for event in run_study(small, jobs=1) if isinstance(event, RunFailed)]
    assert "cannot write kept" in failed.failure.reason

"""A sweep continues where it stopped, and one failure does not stop other runs."""

import json
import shutil
from collections.abc import Iterable
from pathlib import Path

import pytest

from support import synthetic
from support.fake_sweep import FakeProcess, write_study
from wmr_cli.registry import Registry
from wmr_cli.storage.atomic import lock_folder
from wmr_cli.sweeps import runner
from wmr_cli.sweeps.ledger import LEDGER_NAME, list_records, log_folder, read_status
from wmr_cli.sweeps.process import Failure
from wmr_cli.sweeps.runner import (
    RunDone,
    RunFailed,
    RunStarted,
    RunWaiting,
    SweepEvent,
    run_study,
)

pytestmark = pytest.mark.usefixtures("fake")


def outcomes(events: Iterable[SweepEvent]) -> dict[str, type[SweepEvent]]:
    """Return how each run ended, by name."""
    ends = [event for event in events if isinstance(event, RunDone | RunFailed)]
    return {event.run.name: type(event) for event in ends}


def failures(events: Iterable[SweepEvent]) -> list[Failure]:
    return [event.failure for event in events if isinstance(event, RunFailed)]


def waiting_names(events: Iterable[SweepEvent]) -> list[str]:
    return [event.run.name for event in events if isinstance(event, RunWaiting)]


def were_done_before(events: Iterable[SweepEvent]) -> list[bool]:
    return [isinstance(event, RunDone) and event.was_done for event in events]


def test_every_run_is_trained_and_evaluated_once(
    registry: Registry, fake: type[FakeProcess]
) -> None:
    study = write_study(registry)
    assert outcomes(run_study(study, jobs=1)) == {
        "digits-trades-a0-s0": RunDone,
        "digits-trades-a2-s0": RunDone,
    }
    names = [words[0] for words in fake.commands]
    assert names == ["train", "evaluate", "train", "evaluate", "evaluate"]
    assert all("--resume" in words for words in fake.commands)
    assert fake.commands[1][1] == "runs/small/digits-trades-a0-s0/last.safetensors"
    config = json.loads(Path("runs/small/logs/digits-trades-a0-s0/config.json").read_text())
    assert config["alpha"] == 0
    assert [str(read_status(study, run)) for run in study.runs] == ["done", "done"]
    assert sum(len(list_records(study, run)) for run in study.runs) == 3

    assert were_done_before(run_study(study, jobs=1)) == [True, True]
    assert len(fake.commands) == 5


def test_as_many_runs_as_jobs_are_active_at_a_time(
    registry: Registry, fake: type[FakeProcess]
) -> None:
    study = write_study(registry, alphas="[0, 1, 2, 3, 4]")
    assert len(outcomes(run_study(study, jobs=3))) == 5
    assert fake.most_running == 3


def test_a_failure_stops_no_other_run_and_is_repeated_by_the_next_sweep(
    registry: Registry, fake: type[FakeProcess]
) -> None:
    study = write_study(registry)
    fake.failing = "a0-s0/last"
    events = list(run_study(study, jobs=1))
    assert outcomes(events) == {"digits-trades-a0-s0": RunFailed, "digits-trades-a2-s0": RunDone}
    assert failures(events) == [fake.failure]
    assert str(read_status(study, study.runs[0])) == "trained, 1 evaluation to do"

    fake.failing = ""
    fake.commands = []
    assert set(outcomes(run_study(study, jobs=1)).values()) == {RunDone}
    assert [words[0] for words in fake.commands] == ["evaluate"]


def test_a_run_that_another_process_locks_after_its_claim_is_tried_again(
    registry: Registry, fake: type[FakeProcess]
) -> None:
    study = write_study(registry)
    fake.failing = "train"
    fake.failure = Failure("test is in use", error_class="FolderInUse")
    sweep = run_study(study, jobs=1)
    events: list[SweepEvent] = []
    while not waiting_names(events):
        events.append(next(sweep))
    fake.failing = ""
    assert waiting_names(events) == ["digits-trades-a0-s0"]
    assert outcomes(sweep) == {"digits-trades-a0-s0": RunDone, "digits-trades-a2-s0": RunDone}


def test_a_run_that_stays_locked_is_reported_once(
    registry: Registry, fake: type[FakeProcess], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("wmr_cli.sweeps.runner.RETRY_SECONDS", 0.0)
    study = write_study(registry)
    fake.failing = "train"
    fake.failure = Failure("test is in use", error_class="FolderInUse")
    events: list[SweepEvent] = []
    for event in run_study(study, jobs=1):
        events.append(event)
        if len(events) == 8:
            fake.failing = ""
    assert sorted(waiting_names(events)) == ["digits-trades-a0-s0", "digits-trades-a2-s0"]


def test_a_run_with_other_settings_is_refused_with_the_difference(
    registry: Registry, fake: type[FakeProcess]
) -> None:
    list(run_study(write_study(registry), jobs=1))
    ledger = Path("runs/small/digits-trades-a0-s0", LEDGER_NAME)
    before = ledger.read_bytes()
    fake.commands = []
    events = list(run_study(write_study(registry, epochs=3), jobs=1))
    assert set(outcomes(events).values()) == {RunFailed}
    assert all("`epochs`" in failure.reason for failure in failures(events))
    assert not fake.commands
    assert ledger.read_bytes() == before


def test_replaced_weights_are_trained_and_evaluated_again(
    registry: Registry, fake: type[FakeProcess]
) -> None:
    study = write_study(registry, alphas="[0]")
    list(run_study(study, jobs=1))
    synthetic.save_weights(Path("runs/small/digits-trades-a0-s0/last.safetensors"), value=1.0)
    shutil.rmtree("runs/small/digits-trades-a0-s0/evaluations")
    fake.commands = []
    list(run_study(study, jobs=1))
    assert [words[0] for words in fake.commands] == ["train", "evaluate"]


def test_a_study_is_done_when_its_kept_records_exist(
    registry: Registry, fake: type[FakeProcess]
) -> None:
    study = write_study(registry, keep='keep = "kept"')
    list(run_study(study, jobs=1))
    shutil.rmtree("runs")
    fake.commands = []
    assert were_done_before(run_study(study, jobs=1)) == [True, True]
    assert not fake.commands
    assert [file.parts[0] for file in list_records(study, study.runs[1])] == ["kept", "kept"]


@pytest.mark.parametrize(
    "locked",
    [
        "runs/small/digits-trades-a0-s0",
        "runs/small/digits-trades-a0-s0/evaluations/one.partial",
        "runs/small/logs/digits-trades-a0-s0",
    ],
)
def test_a_run_in_use_is_claimed_when_it_is_free(registry: Registry, locked: str) -> None:
    study = write_study(registry)
    sweep = run_study(study, jobs=1)
    events: list[SweepEvent] = []
    with lock_folder(Path(locked)):
        while RunDone not in outcomes(events).values():
            events.append(next(sweep))
        assert waiting_names(events) == ["digits-trades-a0-s0"]
        assert outcomes(events) == {"digits-trades-a2-s0": RunDone}
    assert outcomes(sweep) == {"digits-trades-a0-s0": RunDone}


def test_closing_a_sweep_terminates_its_processes_and_releases_its_runs(
    registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    study = write_study(registry)
    terminated: list[str] = []
    monkeypatch.setattr(
        FakeProcess, "terminate", lambda self: terminated.append(self.command.title)
    )
    sweep = run_study(study, jobs=2)
    events = [next(sweep), next(sweep)]
    assert all(isinstance(event, RunStarted) for event in events)
    sweep.close()
    assert terminated == ["training", "training"]
    # raises if the lock is still held
    with lock_folder(log_folder(study, study.runs[0])):
        pass


def test_sweeps_of_one_study_at_the_same_time_share_its_runs(
    registry: Registry, fake: type[FakeProcess]
) -> None:
    study = write_study(registry, alphas="[0, 1, 2, 3]")
    first = run_study(study, jobs=2)
    second = run_study(study, jobs=2)
    claimed = ["digits-trades-a0-s0", "digits-trades-a1-s0"]
    assert [next(first).run.name, next(first).run.name] == claimed
    events: list[SweepEvent] = []
    while len(outcomes(events)) < 2:
        events.append(next(second))
    assert waiting_names(events) == claimed
    assert set(outcomes(events)) == {"digits-trades-a2-s0", "digits-trades-a3-s0"}
    events += [*first, *second]
    assert set(outcomes(events).values()) == {RunDone}
    assert sum(words[0] == "train" for words in fake.commands) == 4


def test_the_run_folder_is_not_locked_while_another_sweep_holds_the_run(
    registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    study = write_study(registry, alphas="[0]")
    probed: list[Path] = []

    def record_probe(folder: Path) -> bool:
        probed.append(folder)
        return True

    monkeypatch.setattr(runner, "is_free", record_probe)
    with lock_folder(log_folder(study, study.runs[0])):
        assert isinstance(runner.claim_run(study, study.runs[0], 0, None), RunWaiting)
    assert not probed


def test_a_folder_that_cannot_be_written_to_is_a_failure_and_not_waited_for(
    registry: Registry,
) -> None:
    Path("runs/small").mkdir(parents=True)
    Path("runs/small/logs").write_text("not a folder")
    first, second = failures(run_study(write_study(registry), jobs=1))
    assert "runs/small" in first.reason
    assert "runs/small" in second.reason


@pytest.mark.parametrize(
    ("name", "text"), [(LEDGER_NAME, "{"), ("log.jsonl", '{"epoch": 1}\n{"ep\n{}\n')]
)
def test_a_damaged_run_is_refused_and_stops_no_other(
    registry: Registry, name: str, text: str
) -> None:
    study = write_study(registry)
    folder = study.path(study.runs[0])
    folder.mkdir(parents=True)
    (folder / name).write_text(text)
    assert str(read_status(study, study.runs[0])) == "refused"
    events = list(run_study(study, jobs=1))
    assert outcomes(events) == {"digits-trades-a0-s0": RunFailed, "digits-trades-a2-s0": RunDone}
    (failure,) = failures(events)
    assert str(folder / name) in failure.reason
    assert failure.error_class == "BadFile"
    # a sweep does not have this setting of `wmr train`
    assert "overwrite" not in failure.hint


def test_an_evaluation_without_records_is_a_failure_of_its_run(
    registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FakeProcess, "work", lambda self: None)
    (failure,) = failures(run_study(write_study(registry, alphas="[0]"), jobs=1))
    assert "evaluation 1 of 1" in failure.reason
    assert failure.hint


def test_records_that_cannot_be_kept_are_a_failure_of_their_run(
    registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = FakeProcess.work

    def work_and_block_folder(self: FakeProcess) -> None:
        work(self)
        Path("kept").write_text("not a folder")

    monkeypatch.setattr(FakeProcess, "work", work_and_block_folder)
    study = write_study(registry, alphas="[0]", keep='keep = "kept"')
    (failure,) = failures(run_study(study, jobs=1))
    assert "kept" in failure.reason
    assert failure.hint

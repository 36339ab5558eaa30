"""A sweep goes on where it stopped, keeps what is done, and does not let one failure stop the rest."""

import json
import shutil
from pathlib import Path

import msgspec
import pytest

import made
from wmr_cli.storage import ledgers, records
from wmr_cli.storage.files import locked
from wmr_cli.storage.runs import RunFolder
from wmr_cli.workflows import sweep as sweeping
from wmr_cli.workflows.jobs import Failure, reason
from wmr_cli.workflows.study import Study
from wmr_cli.workflows.study_file import read_study
from wmr_cli.workflows.sweep import RunDone, RunFailed, RunStarted, RunWaits, no_longer_covered, record_files, standing, sweep

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


def study(registry, *, alphas: str = "[0, 2]", epochs: int = 2, keep: str = "") -> Study:
    Path("small.toml").write_text(TEXT.format(alphas=alphas, epochs=epochs, keep=keep))
    return read_study(Path("small.toml"), registry)


class Pretended:
    """A command that is done at once: training leaves weights, an evaluation leaves a record; `fails` says which does not."""

    log: list[tuple[str, ...]]
    fails: str
    running: int
    most: int

    def __init__(self, command, log, *, threads):
        self.command, self._looks = command, 0
        Pretended.log.append(command.words)
        Pretended.running += 1
        Pretended.most = max(Pretended.most, Pretended.running)

    @property
    def status(self):
        self._looks += 1
        if self._looks == 1:
            return None
        if self._looks == 2:
            Pretended.running -= 1
            self._work()
        return int(self.failure() is not None)

    def _work(self):
        words = self.command.words
        if self.failure() is not None:
            return
        if words[0] == "train":
            folder = RunFolder(Path(words[words.index("--out") + 1]))
            made.stored_weights(folder.last)
            folder.write_log([{"epoch": 2}])
        else:
            rows, path = made.rows(20, logits=True), Path(words[1]).parent / "evaluations"
            record = msgspec.structs.replace(made.record(rows), id=records.record_id({"words": list(words)}))
            made.stored(path, record, rows)
            self.command.output.write_text(f"a plugin says [hello] {json.dumps([{'id': record.id}])}\n[and goodbye]")

    def failure(self):
        is_bad = Pretended.fails and Pretended.fails in " ".join(self.command.words)
        return Failure("it was pretended", "do not") if is_bad else None

    def end(self): ...

    def wait(self): ...


@pytest.fixture(autouse=True)
def pretended(monkeypatch):
    Pretended.log, Pretended.fails, Pretended.running, Pretended.most = [], "", 0, 0
    monkeypatch.setattr(sweeping, "Child", Pretended)
    monkeypatch.setattr(sweeping, "pause", lambda: None)
    monkeypatch.setattr(sweeping, "PATIENCE", 0.01)
    return Pretended


def ended(events) -> dict[str, str]:
    return {event.run.name: type(event).__name__ for event in events if isinstance(event, RunDone | RunFailed)}


def test_every_run_is_trained_and_evaluated_once(registry, pretended):
    asked = study(registry)
    assert ended(sweep(asked, jobs=1)) == dict.fromkeys(["digits-trades-a0-s0", "digits-trades-a2-s0"], "RunDone")
    assert [words[0] for words in pretended.log] == ["train", "evaluate", "train", "evaluate", "evaluate"]
    assert all("--resume" in words for words in pretended.log)
    assert pretended.log[1][1] == "runs/small/digits-trades-a0-s0/last.safetensors"
    assert json.loads(Path("runs/small/logs/digits-trades-a0-s0/config.json").read_text())["alpha"] == 0
    assert [str(standing(asked, run)) for run in asked.runs] == ["done", "done"]
    assert sum(len(record_files(asked, run)) for run in asked.runs) == 3
    events = list(sweep(asked, jobs=1))
    assert [event.was_done for event in events] == [True, True]
    assert len(pretended.log) == 5


def test_as_many_runs_as_there_are_jobs_work_at_a_time(registry, pretended):
    assert len(ended(sweep(study(registry, alphas="[0, 1, 2, 3, 4]"), jobs=3))) == 5
    assert pretended.most == 3


def test_a_failure_stops_no_other_run_and_is_done_again(registry, pretended):
    asked = study(registry)
    pretended.fails = "a0-s0/last"
    events = list(sweep(asked, jobs=1))
    assert ended(events) == {"digits-trades-a0-s0": "RunFailed", "digits-trades-a2-s0": "RunDone"}
    (failed,) = [event.failure for event in events if isinstance(event, RunFailed)]
    assert (failed.reason, failed.hint) == ("it was pretended", "do not")
    assert str(standing(asked, asked.runs[0])) == "trained, 1 evaluation to do"
    pretended.fails, pretended.log = "", []
    assert set(ended(sweep(asked, jobs=1)).values()) == {"RunDone"}
    assert [words[0] for words in pretended.log] == ["evaluate"]


def test_a_run_with_other_settings_is_refused_with_the_difference(registry, pretended):
    list(sweep(study(registry), jobs=1))
    before = Path("runs/small/digits-trades-a0-s0/sweep.json").read_text()
    pretended.log = []
    events = list(sweep(study(registry, epochs=3), jobs=1))
    assert set(ended(events).values()) == {"RunFailed"}
    assert "epochs was 2, is 3" in events[0].failure.reason
    assert not pretended.log
    assert Path("runs/small/digits-trades-a0-s0/sweep.json").read_text() == before


def test_runs_that_a_study_no_longer_covers_are_named_and_left(registry):
    list(sweep(study(registry), jobs=1))
    less = study(registry, alphas="[0]")
    assert no_longer_covered(less) == ["digits-trades-a2-s0"]
    assert Path("runs/small/digits-trades-a2-s0/last.safetensors").exists()
    assert sum(len(record_files(less, run)) for run in less.runs) == 1


def test_weights_that_are_not_those_of_the_sweep_are_trained_and_measured_again(registry, pretended):
    asked = study(registry, alphas="[0]")
    list(sweep(asked, jobs=1))
    made.stored_weights(Path("runs/small/digits-trades-a0-s0/last.safetensors"), value=1.0)
    shutil.rmtree("runs/small/digits-trades-a0-s0/evaluations")
    pretended.log = []
    list(sweep(asked, jobs=1))
    assert [words[0] for words in pretended.log] == ["train", "evaluate"]


def test_small_records_are_kept_and_a_study_goes_on_from_them(registry, pretended):
    asked = study(registry, keep='keep = "kept"')
    list(sweep(asked, jobs=1))
    shutil.rmtree("runs")
    pretended.log = []
    assert [str(standing(asked, run)) for run in asked.runs] == ["done", "done"]
    assert [event.was_done for event in sweep(asked, jobs=1)] == [True, True]
    assert not pretended.log
    files = record_files(asked, asked.runs[1])
    assert [file.parts[0] for file in files] == ["kept", "kept"]
    whole = made.rows(20, logits=True)
    for file in files:
        kept = records.rows_of(file, records.load(file))
        assert (kept["uniform/margin"] == whole["uniform/margin"]).all()
        assert {name for name in kept if name.endswith("logits")} == {"uniform/logits"}
        assert kept["label"].dtype.itemsize == 1


@pytest.mark.parametrize("held", ["", "evaluations/one.partial", "../logs/digits-trades-a0-s0"])
def test_a_run_that_another_process_uses_is_waited_for(registry, pretended, held):
    asked, events = study(registry), []
    with locked(Path("runs/small/digits-trades-a0-s0") / held):
        walk = sweep(asked, jobs=1)
        while "RunDone" not in ended(events).values():
            events.append(next(walk))
        assert [event.run.name for event in events if isinstance(event, RunWaits)] == ["digits-trades-a0-s0"]
        assert ended(events) == {"digits-trades-a2-s0": "RunDone"}
    assert ended(walk) == {"digits-trades-a0-s0": "RunDone"}


def test_what_ends_a_sweep_ends_its_processes(registry, pretended, monkeypatch):
    asked, told = study(registry), []
    monkeypatch.setattr(Pretended, "end", lambda self: told.append(self.command.what))
    walk = sweep(asked, jobs=2)
    events = [next(walk), next(walk)]
    assert all(isinstance(event, RunStarted) for event in events)
    walk.close()
    assert told == ["training", "training"]
    with locked(Path("runs/small/logs/digits-trades-a0-s0")):
        pass  # nobody holds it any more


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        (["epoch 1", "error: no data", "hint: put them there"], Failure("no data", "put them there")),
        (["error: first", "error: last"], Failure("last")),
        (["Traceback", "  in x", "ValueError: 3", ""], Failure("ValueError: 3")),
        ([], Failure("nothing was said")),
    ],
)
def test_the_reason_of_a_failure_is_the_last_error_or_the_last_line(lines, said):
    assert reason(lines) == said


def test_sweeps_of_one_study_at_the_same_time_share_its_runs(registry, pretended):
    asked = study(registry, alphas="[0, 1, 2, 3]")
    first, second = sweep(asked, jobs=2), sweep(asked, jobs=2)
    assert [next(first).run.name, next(first).run.name] == ["digits-trades-a0-s0", "digits-trades-a1-s0"]
    events = []
    while len(ended(events)) < 2:
        events.append(next(second))
    assert [event.run.name[:16] for event in events if isinstance(event, RunWaits)] == ["digits-trades-a0", "digits-trades-a1"]
    assert set(ended(events)) == {"digits-trades-a2-s0", "digits-trades-a3-s0"}
    for walk in (first, second):
        events += walk
    assert set(ended(events).values()) == {"RunDone"}
    assert sum(words[0] == "train" for words in pretended.log) == 4


def test_nobody_looks_at_a_run_that_another_sweep_has_in_hand(registry, monkeypatch):
    asked, looked = study(registry, alphas="[0]"), []
    monkeypatch.setattr(ledgers, "is_free", lambda folder: looked.append(folder) or True)
    with locked(sweeping.logs(asked, asked.runs[0])):
        assert isinstance(sweeping.take(asked, asked.runs[0], 0, None), RunWaits)
    assert not looked


def test_a_folder_that_cannot_be_written_to_is_a_failure_and_not_waited_for(registry):
    Path("runs/small").mkdir(parents=True)
    Path("runs/small/logs").write_text("no folder")
    (first, second) = sweep(study(registry), jobs=1)
    assert "cannot write to" in first.failure.reason
    assert isinstance(second, RunFailed)


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [(ledgers.NAME, "{", "sweep.json cannot be read"), ("log.jsonl", '{"epoch": 1}\n{"ep\n{}\n', "log.jsonl cannot be read")],
)
def test_a_damaged_run_is_told_and_stops_no_other(registry, name, text, said):
    asked, path = study(registry), Path("runs/small/digits-trades-a0-s0")
    path.mkdir(parents=True)
    (path / name).write_text(text)
    assert str(standing(asked, asked.runs[0])) == "refused"
    events = list(sweep(asked, jobs=1))
    assert ended(events) == {"digits-trades-a0-s0": "RunFailed", "digits-trades-a2-s0": "RunDone"}
    assert said in events[0].failure.reason


def test_results_that_cannot_be_read_or_kept_are_failures_of_their_run(registry, monkeypatch):
    monkeypatch.setattr(Pretended, "_work", lambda self: self.command.output.write_text('[1, {"id": 2}] nothing'))
    asked = study(registry, alphas="[0]")
    (failed,) = [event for event in sweep(asked, jobs=1) if isinstance(event, RunFailed)]
    assert "evaluate.json lists no records" in failed.failure.reason


def test_small_records_that_find_no_room_are_a_failure_of_their_run(registry):
    Path("kept").write_text("no folder")
    asked = study(registry, alphas="[0]", keep='keep = "kept"')
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ledgers, "load", lambda place: None)  # a file in the place of a folder is told at once
        (failed,) = [event for event in sweep(asked, jobs=1) if isinstance(event, RunFailed)]
    assert "cannot write kept" in failed.failure.reason

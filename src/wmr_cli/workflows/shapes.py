"""What a study would cost, and what of it cannot be carried out. One run of each shape is asked for all; no torch here."""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from ..config import EvaluateConfig, TrainConfig, default_data_dir
from ..errors import BrokenContract
from ..storage.files import write_text
from .jobs import Failure, reason
from .study import Run, Study
from .sweep import Standing

ALIKE = {
    "seed": 0, "split_seed": 0, "lr": 0.1, "momentum": 0.9, "weight_decay": 0.0, "label_smoothing": 0.0, "milestones": (),
    "gamma": 0.1, "warmup": 0.0, "eps_ramp": 0.0, "alpha_ramp": 0.0, "eps": 1.0, "step_size": None, "select": "none",
}  # fmt: skip
"""Settings that do not change how long a run takes. Any alpha takes the same time as any other."""


STARTS = 4
"""A process measures as many shapes as take this many times as long as its start, so that there is progress to report."""
Progress = Callable[[int, int, TrainConfig], None]
"""Called before shapes are measured: how many are done, how many there are, and the next one."""


class Request(msgspec.Struct, frozen=True):
    """A shape to measure, or only to build."""

    config: TrainConfig
    evaluations: list[EvaluateConfig]
    device: str
    devices: int | None
    compiles: bool
    data_dir: str
    is_timed: bool


class Answer(msgspec.Struct, frozen=True):
    """Seconds of training and of each evaluation, or what is wrong."""

    training: float = 0.0
    evaluations: list[float] = []
    problem: str = ""
    hint: str = ""


class Answers(msgspec.Struct, frozen=True):
    """One for each request, and the seconds that the measuring took."""

    answers: list[Answer]
    seconds: float


@dataclass(frozen=True)
class Cost:
    """Seconds that are left of a run's training and of its evaluations, or why nobody can tell."""

    training: float = 0.0
    evaluation: float = 0.0
    problem: Failure | None = None


def _silent(done: int, total: int, config: TrainConfig) -> None:
    """Report no progress."""


def costs(
    study: Study, standings: Mapping[str, Standing], data_dir: Path | None = None, progress: Progress = _silent
) -> dict[str, Cost]:
    """What is left of every run that is not done, by name."""
    answers, start = _answers(study, standings, data_dir, progress, is_timed=True)
    return {run.name: _left(answers[run.name], run, standings[run.name], start) for run in study.runs if run.name in answers}


def mistakes(
    study: Study, standings: Mapping[str, Standing], data_dir: Path | None = None, progress: Progress = _silent
) -> dict[str, Failure]:
    """Runs that cannot be carried out as the study has them, by name: an evaluation's mistake is known before the training."""
    untrained = replace(study, runs=tuple(run for run in study.runs if not standings[run.name].is_trained))
    try:
        answers, _ = _answers(untrained, standings, data_dir, progress, is_timed=False)
    except BrokenContract:  # whatever ended the rehearsal ends a run, too, and that one says so
        return {}
    return {name: Failure(answer.problem, answer.hint) for name, answer in answers.items() if answer.problem}


def _answers(
    study: Study, standings: Mapping[str, Standing], data_dir: Path | None, progress: Progress, *, is_timed: bool
) -> tuple[dict[str, Answer], float]:
    """For every run that is not done, and how long a process takes to begin."""
    left = [run for run in study.runs if not standings[run.name].is_done and standings[run.name].refused is None]
    requests: dict[bytes, Request] = {}
    shapes = {run.name: _shape(run, standings[run.name], is_timed=is_timed) for run in left}
    for run in left:
        requests.setdefault(shapes[run.name], _request(study, run, standings[run.name], data_dir, is_timed=is_timed))
    if not requests:
        return {}, 0.0
    measured, start = _in_parts(list(requests.values()), study.machine.threads, progress)
    answers = dict(zip(requests, measured, strict=True))
    return {run.name: answers[shapes[run.name]] for run in left}, start


def _in_parts(requests: Sequence[Request], threads: int, progress: Progress) -> tuple[list[Answer], float]:
    """Measure the first shape, then the others in parts of a bounded time, with progress between them."""
    answers: list[Answer] = []
    start, size = 0.0, 1
    while len(answers) < len(requests):
        progress(len(answers), len(requests), requests[len(answers)].config)
        made, start = _measured(requests[len(answers) : len(answers) + size], threads)
        answers += made.answers
        seconds_each = made.seconds / len(made.answers)
        size = max(1, round(STARTS * start / seconds_each)) if seconds_each > 0 else len(requests)
    return answers, start


def _left(answer: Answer, run: Run, found: Standing, start: float) -> Cost:
    """What is left; every command takes its time to `start`."""
    if answer.problem:
        return Cost(problem=Failure(answer.problem, answer.hint))
    share = 1 - min(found.epochs / run.config.epochs, 1)
    training = 0.0 if found.is_trained else start + share * answer.training
    return Cost(training, sum(answer.evaluations) + start * len(answer.evaluations))


def _request(study: Study, run: Run, found: Standing, data_dir: Path | None, *, is_timed: bool) -> Request:
    machine = study.machine
    evaluations = [evaluation.config() for evaluation in found.missing]
    place = str(data_dir or default_data_dir())
    return Request(run.config, evaluations, machine.device[0], machine.devices, machine.compile, place, is_timed)


def _shape(run: Run, found: Standing, *, is_timed: bool) -> bytes:
    """What runs must share to take the same time; to be possible or not, all but the seed."""
    alike = {**ALIKE, "alpha": None if run.config.alpha is None else 1.0} if is_timed else {"seed": 0}
    return msgspec.json.encode([msgspec.structs.replace(run.config, **alike), [evaluation.key for evaluation in found.missing]])


def _measured(requests: Sequence[Request], threads: int) -> tuple[Answers, float]:
    """Ask a process of its own; the answers, and how long a process takes to begin."""
    started = time.perf_counter()
    environment = {**os.environ, **dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS"), str(threads))}
    with tempfile.TemporaryDirectory() as folder:
        asked, answered = Path(folder) / "requests.json", Path(folder) / "answers.json"
        write_text(asked, msgspec.json.encode(list(requests)).decode())
        words = [sys.executable, "-m", "wmr_cli.workflows.rehearsal", str(asked), str(answered)]
        done = subprocess.run(words, env=environment, capture_output=True, text=True, errors="replace", check=False)
        if done.returncode:
            said = reason(done.stderr.splitlines())
            raise BrokenContract(f"the rehearsal failed: {said.reason}", hint=said.hint or "try one run by `wmr train`")
        answers = msgspec.json.decode(answered.read_bytes(), type=Answers)
    return answers, time.perf_counter() - started - answers.seconds

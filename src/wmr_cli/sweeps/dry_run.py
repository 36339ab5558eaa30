"""Estimate how long a study takes, and find runs that cannot be carried out. No torch.

Building and measuring networks needs torch, so it is done by `cost_probe` in a child process. One
run stands for all that have the same cost.
"""

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
from ..storage.atomic import write_text
from .ledger import RunStatus
from .process import Failure, last_line, limit_threads
from .study import Run, Study

COST_NEUTRAL_SETTINGS = {
    "seed": 0, "split_seed": 0, "lr": 0.1, "momentum": 0.9, "weight_decay": 0.0,
    "label_smoothing": 0.0, "milestones": (), "gamma": 0.1, "warmup": 0.0, "eps_ramp": 0.0,
    "alpha_ramp": 0.0, "eps": 1.0, "step_size": None, "select": "none",
}  # fmt: skip
"""Settings that do not change how long a run takes, with a common value. Any alpha takes the same
time as any other."""
STARTUPS_PER_CHUNK = 4
"""A probe measures as many runs as take this many times its own start-up time, so that there is
progress to report."""
ProbeProgress = Callable[[int, int, TrainConfig], None]
"""Called before runs are measured: how many are done, how many there are, and the next one."""


class ProbeRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A run to measure, or only to build."""

    config: TrainConfig
    evaluations: list[EvaluateConfig]
    device: str
    devices: int | None
    compile: bool
    data_dir: str
    is_timed: bool


class ProbeResult(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds of training and of each evaluation of one run, or why it cannot be carried out."""

    training: float = 0.0
    evaluations: list[float] = []
    error: str = ""
    hint: str = ""


class ProbeReport(msgspec.Struct, frozen=True, kw_only=True):
    """The result file of a probe: one result per request, and the seconds that measuring took."""

    results: list[ProbeResult]
    seconds: float


@dataclass(frozen=True)
class RemainingCost:
    """Remaining seconds of a run's training and evaluations, or why it cannot be carried out."""

    training: float = 0.0
    evaluation: float = 0.0
    failure: Failure | None = None


def _report_nothing(done: int, total: int, config: TrainConfig) -> None:
    pass


@dataclass(frozen=True, kw_only=True)
class DryRun:
    """A study, how far its runs are, and how to report progress."""

    study: Study
    statuses: Mapping[str, RunStatus]
    data_dir: Path | None = None
    report_progress: ProbeProgress = _report_nothing


def estimate_costs(dry_run: DryRun) -> dict[str, RemainingCost]:
    """Return what remains of every run that is not done, by name."""
    results, startup = _probe_runs(dry_run, is_timed=True)
    return {
        run.name: _remaining_cost(results[run.name], run, dry_run.statuses[run.name], startup)
        for run in dry_run.study.runs
        if run.name in results
    }


def find_impossible_runs(dry_run: DryRun) -> dict[str, Failure]:
    """Return untrained runs that cannot be carried out, by name.

    Evaluations are checked before training, too.
    """
    # a trained run has been built before, so its settings are possible
    untrained = [run for run in dry_run.study.runs if not dry_run.statuses[run.name].is_trained]
    study = replace(dry_run.study, runs=tuple(untrained))
    try:
        results, _ = _probe_runs(replace(dry_run, study=study), is_timed=False)
    except BrokenContract:
        # whatever ended the probe ends a run as well, and the run reports it best
        return {}
    return {
        name: Failure(result.error, result.hint) for name, result in results.items() if result.error
    }


def _probe_runs(dry_run: DryRun, *, is_timed: bool) -> tuple[dict[str, ProbeResult], float]:
    """Return a result for every run that is not done, and the start-up seconds of a process."""
    requests: dict[bytes, ProbeRequest] = {}
    keys: dict[str, bytes] = {}
    for run in dry_run.study.runs:
        status = dry_run.statuses[run.name]
        if status.is_done or status.refusal is not None:
            continue
        keys[run.name] = _cost_key(run, status, is_timed=is_timed)
        requests.setdefault(keys[run.name], _make_request(dry_run, run, status, is_timed=is_timed))
    if not requests:
        return {}, 0.0
    measured, startup = _probe_in_chunks(
        list(requests.values()), dry_run.study.machine.threads, dry_run.report_progress
    )
    results = dict(zip(requests, measured, strict=True))
    return {name: results[key] for name, key in keys.items()}, startup


def _probe_in_chunks(
    requests: Sequence[ProbeRequest], threads: int, report_progress: ProbeProgress
) -> tuple[list[ProbeResult], float]:
    """Measure the first request, then the others in chunks of a bounded time.

    Report progress before every chunk.
    """
    results: list[ProbeResult] = []
    startup = 0.0
    # a single request first, because the time of one is not known before
    chunk_size = 1
    while len(results) < len(requests):
        done = len(results)
        report_progress(done, len(requests), requests[done].config)
        report, startup = probe(requests[done : done + chunk_size], threads)
        results += report.results
        # the latest chunk only: later runs may be larger than the first one
        seconds_each = report.seconds / len(report.results)
        chunk_size = len(requests)
        if seconds_each > 0:
            chunk_size = max(1, round(STARTUPS_PER_CHUNK * startup / seconds_each))
    return results, startup


def _remaining_cost(
    result: ProbeResult, run: Run, status: RunStatus, startup: float
) -> RemainingCost:
    """Return what remains of a run; each of its commands takes `startup` seconds to begin."""
    if result.error:
        return RemainingCost(failure=Failure(result.error, result.hint))
    training = 0.0
    if not status.is_trained:
        # a study file that was edited can ask for fewer epochs than are done
        remaining = 1 - min(status.epochs_done / run.config.epochs, 1)
        training = startup + remaining * result.training
    # every evaluation is a process of its own
    evaluation = sum(result.evaluations) + startup * len(result.evaluations)
    return RemainingCost(training, evaluation)


def _make_request(dry_run: DryRun, run: Run, status: RunStatus, *, is_timed: bool) -> ProbeRequest:
    machine = dry_run.study.machine
    return ProbeRequest(
        config=run.config,
        evaluations=[evaluation.config() for evaluation in status.missing],
        # all devices of a study are taken to be equally fast
        device=machine.device[0],
        devices=machine.devices,
        compile=machine.compile,
        data_dir=str(dry_run.data_dir or default_data_dir()),
        is_timed=is_timed,
    )


def _cost_key(run: Run, status: RunStatus, *, is_timed: bool) -> bytes:
    """Return what runs must share to have the same cost.

    Without timing, all settings but the seed.
    """
    # a seed cannot make a run impossible, but any other setting can
    common: dict[str, object] = {"seed": 0}
    if is_timed:
        alpha = None if run.config.alpha is None else 1.0
        common = {**COST_NEUTRAL_SETTINGS, "alpha": alpha}
    config = msgspec.structs.replace(run.config, **common)
    return msgspec.json.encode([config, [evaluation.key for evaluation in status.missing]])


def probe(requests: Sequence[ProbeRequest], threads: int) -> tuple[ProbeReport, float]:
    """Answer requests in a child process.

    Return its report and the seconds that it took to start.
    """
    started = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        request_file = Path(folder) / "requests.json"
        report_file = Path(folder) / "report.json"
        write_text(request_file, msgspec.json.encode(list(requests)).decode())
        command = [sys.executable, "-m", "wmr_cli.sweeps.cost_probe"]
        # another process, because torch would stay in the memory of this one for hours
        process = subprocess.run(
            [*command, str(request_file), str(report_file)],
            env=limit_threads(threads),
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
        )
        # the report is written last, so a killed probe leaves none
        if process.returncode or not report_file.exists():
            reason = last_line(process.stderr.splitlines())
            raise BrokenContract(
                f"the dry run failed: {reason}", hint="try one run with `wmr train`"
            )
        report = msgspec.json.decode(report_file.read_bytes(), type=ProbeReport)
    return report, time.perf_counter() - started - report.seconds

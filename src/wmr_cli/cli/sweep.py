"""wmr sweep"""

import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..config import SweepConfig
from ..errors import BadFile, BadInput, WmrError, did_you_mean
from ..sweeps.process import current_report
from .console import Terminated, format_duration, say, say_error, show, width
from .flags import with_flags
from .setup import load_components, trust_code

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ..config import TrainConfig
    from ..reporting.tables.text_table import TextTable
    from ..sweeps.dry_run import RemainingCost
    from ..sweeps.ledger import RunStatus
    from ..sweeps.process import Failure
    from ..sweeps.study import Study


@with_flags
def sweep(
    file: Annotated[
        Path,
        typer.Argument(
            metavar="STUDY.toml", help="Runs, their evaluations, and what the report shows."
        ),
    ],
    config: SweepConfig,
) -> None:
    """Train and evaluate every run of a study, then write one report.

    It can be stopped and repeated at any time: finished runs are kept, interrupted ones continue.
    """
    from ..sweeps.study import read_study
    from .output import find_format

    quiet = config.quiet
    data_dir = config.data_dir
    slurm = config.slurm
    trust_code([], config.trust_code, quiet=quiet)
    registry = load_components(quiet)
    if config.dry_run:
        say(f"reading {file}", quiet=quiet)
    whole_study = read_study(file, registry)
    study = select_runs(whole_study, config.run)
    warn_about_study(whole_study, study, quiet)
    for name in study.report.out:
        # an unknown format is an error before hours of work
        find_format(Path(name))
    if slurm:
        from ..sweeps.slurm import check_slurm_settings

        check_slurm_settings(study)
    # a flag of the command wins over the study, which may be written for another machine
    jobs = config.jobs or study.machine.default_jobs
    if config.dry_run:
        show_plan(study, jobs, data_dir, slurm=slurm, quiet=quiet)
        return
    failures = run_and_follow(study, jobs, data_dir, slurm=slurm, quiet=quiet)
    try:
        needs_report = not config.run and bool(study.evaluations)
        is_complete = not needs_report or write_report(study, quiet, has_failures=bool(failures))
    finally:  # also if the report fails
        print_failures(failures)
    if failures or not is_complete:
        report_failure(failures)
        raise typer.Exit(1)


def warn_about_study(whole_study: "Study", study: "Study", quiet: bool) -> None:
    """Warn about unused evaluations and leftover folders; `study` holds the selected runs."""
    from ..sweeps.ledger import find_leftover_runs, find_runs_known_from_records

    file = whole_study.file
    for number in whole_study.unused_evaluations():
        problem = f"{file}: evaluate {number}: no run matches its `only`, so it is never done"
        say(problem, quiet=quiet, is_warning=True)
    if study is whole_study:
        for name in find_leftover_runs(study):
            problem = f"{study.folder / name} is not a run of this study any more; it is kept"
            say(problem, quiet=quiet, is_warning=True)
    known = len(find_runs_known_from_records(study))
    if known:
        done = f"{known} of {len(study.runs)} runs are done according to records in {study.keep}"
        say(f"{done}; to repeat them, copy {file} to another folder", quiet=quiet)


def select_runs(study: "Study", names: Sequence[str]) -> "Study":
    """Return the study with the named runs only, or unchanged without names."""
    if not names:
        return study
    runs = {run.name: run for run in study.runs}
    for name in names:
        if name not in runs:
            raise BadInput(f"`run`: the study has no run {name!r}", hint=did_you_mean(name, runs))
    return replace(study, runs=tuple(runs[name] for name in dict.fromkeys(names)))


def show_plan(
    study: "Study", jobs: int, data_dir: Path | None, *, slurm: bool, quiet: bool
) -> None:
    """Show every run, how far it is, and how long the rest takes on this machine."""
    from ..sweeps.dry_run import DryRun, estimate_costs
    from ..sweeps.ledger import read_status

    say(f"{count_runs(study)}; reading how far each is", quiet=quiet)
    statuses = {run.name: read_status(study, run) for run in study.runs}
    costs: dict[str, RemainingCost] = {}
    if not slurm:
        # Slurm jobs run on other machines, whose speed is unknown here
        progress = partial(say_measured, quiet=quiet)
        dry_run = DryRun(
            study=study, statuses=statuses, data_dir=data_dir, report_progress=progress
        )
        costs = estimate_costs(dry_run)
    show(make_plan_table(study, statuses, costs, jobs).to_rich_table(width()))
    failures = {
        name: status.refusal for name, status in statuses.items() if status.refusal is not None
    }
    failures |= {name: cost.failure for name, cost in costs.items() if cost.failure is not None}
    print_failures(failures)
    if failures:
        raise typer.Exit(1)


def make_plan_table(
    study: "Study",
    statuses: "Mapping[str, RunStatus]",
    costs: "Mapping[str, RemainingCost]",
    jobs: int,
) -> "TextTable":
    """Return a table with state and remaining time of every run; `costs` is empty with Slurm."""
    from ..reporting.tables.text_table import TextTable

    rows: list[tuple[str, ...]] = []
    for run in study.runs:
        cost = costs.get(run.name)
        times = ("-", "-")
        if cost is not None and cost.failure is None:
            times = (format_duration(cost.training), format_duration(cost.evaluation))
        rows.append((run.name, str(statuses[run.name]), *times))
    done = sum(status.is_done for status in statuses.values())
    caption = f"{count_runs(study)}, {done} done"
    if costs:
        seconds = sum(cost.training + cost.evaluation for cost in costs.values())
        # at the end fewer runs are left than could run at the same time
        parallel = min(jobs, max(len(study.runs) - done, 1))
        caption += (
            f"; about {format_duration(seconds / parallel)} with {jobs} at a time\n"
            "from a few steps of an untrained network; attacks that skip misclassified images"
            " take longer on a trained one"
        )
    elif done < len(study.runs):
        caption += "; the Slurm settings are valid"
    columns = ("run", "state", "training", "evaluation")
    return TextTable(columns, rows, caption, study.summary, text_columns=("run", "state"))


def count_runs(study: "Study") -> str:
    """Return `1 run` or `12 runs`."""
    total = len(study.runs)
    return f"{total:,} run{'s' * (total != 1)}"


def say_measured(done: int, total: int, config: "TrainConfig", *, quiet: bool) -> None:
    """Report which run is measured next; it stands for all that take the same time."""
    title = f"{config.model} on {config.dataset}, {config.defense}, batch {config.batch_size}"
    say(f"measuring configuration {done + 1} of {total}: {title}", quiet=quiet)


def say_checked(done: int, total: int, config: "TrainConfig", *, quiet: bool) -> None:
    """Report how many configurations have been checked."""
    if done:
        say(f"checked {done} of {total} configurations", quiet=quiet)


def print_failures(failures: "Mapping[str, Failure]") -> None:
    """Print one error per reason; runs with the same reason share a line."""
    names: dict[Failure, list[str]] = {}
    for name, failure in failures.items():
        names.setdefault(failure, []).append(name)
    for failure, runs in names.items():
        label = runs[0]
        if len(runs) > 1:
            label += f" and {len(runs) - 1:,} other run{'s' * (len(runs) > 2)}"
        hint = failure.hint or "try one run with `wmr train --dry-run` and its settings"
        say_error(f"{label}: {failure.reason}", hint)


def report_failure(failures: "Mapping[str, Failure]") -> None:
    """Pass the first failure on to the sweep that submitted this one as a Slurm job."""
    for failure in failures.values():
        current_report().set_error(failure.reason, failure.hint, failure.error_class)
        return


def run_and_follow(
    study: "Study", jobs: int, data_dir: Path | None, *, slurm: bool, quiet: bool
) -> "dict[str, Failure]":
    """Carry out the runs and print their progress; return those that failed."""
    from ..sweeps.runner import RunDone, RunFailed, RunStarted, RunWaiting, claim_folder, run_study

    total = len(study.runs)
    claim_folder(study)
    failures: dict[str, Failure] = {}
    if slurm:
        from ..sweeps.slurm import submit_study

        events = submit_study(study, data_dir)
    else:
        # not with Slurm: this machine may lack the devices of its jobs
        failures = check_runs(study, data_dir, quiet)
        study = replace(study, runs=tuple(run for run in study.runs if run.name not in failures))
        events = run_study(study, jobs=jobs, data_dir=data_dir)
    remaining = RemainingTime(study)
    # runs that failed the check count as ended, so that the count reaches the total
    ended = len(failures)
    try:
        # closing: an interruption ends the child processes before this one
        with closing(events):
            for event in events:
                ended += isinstance(event, RunDone | RunFailed)
                name = event.run.name
                prefix = f"[{ended}/{total}] {name}"
                match event:
                    case RunStarted():
                        say(f"{prefix}: {event.command}", quiet=quiet)
                    case RunWaiting():
                        say(f"{prefix}: waiting, another process uses it", quiet=quiet)
                    case RunDone():
                        remaining.finish(name)
                        seconds = 0.0 if event.was_done else remaining.seconds()
                        left = f", about {format_duration(seconds)} left" if seconds else ""
                        say(f"{prefix}: done{' before' * event.was_done}{left}", quiet=quiet)
                    case RunFailed():
                        failures[name] = event.failure
                        remaining.drop(name)
                        say(f"{prefix}: {event.failure.reason}", quiet=quiet, is_warning=True)
    except (KeyboardInterrupt, Terminated):
        say("interrupted; progress is saved, repeat the command to continue", quiet=quiet)
        raise
    return failures


class RemainingTime:
    """Estimates the rest of a sweep from the epochs and evaluations done since it began."""

    def __init__(self, study: "Study") -> None:
        from ..sweeps.ledger import count_remaining_parts

        self._count_parts = partial(count_remaining_parts, study)
        self._unfinished = {run.name: run for run in study.runs}
        self._parts_at_start = {
            name: self._count_parts(run) for name, run in self._unfinished.items()
        }
        self._started = time.monotonic()

    def finish(self, name: str) -> None:
        """Count this run as done."""
        del self._unfinished[name]

    def drop(self, name: str) -> None:
        """Ignore this run; it has failed."""
        # its parts would count as done, and the estimate would be too short
        del self._unfinished[name]
        del self._parts_at_start[name]

    def seconds(self) -> float:
        """Return the estimate; 0 if nothing remains, or nothing has been done to estimate from."""
        remaining = sum(self._count_parts(run) for run in self._unfinished.values())
        done = sum(self._parts_at_start.values()) - remaining
        if not done:
            return 0.0
        return (time.monotonic() - self._started) / done * remaining


def check_runs(study: "Study", data_dir: Path | None, quiet: bool) -> "dict[str, Failure]":
    """Return runs that cannot be trained or evaluated, before hours of work."""
    from ..sweeps.dry_run import DryRun, find_impossible_runs
    from ..sweeps.ledger import read_status

    statuses = {run.name: read_status(study, run) for run in study.runs}
    if not all(status.is_trained for status in statuses.values()):
        say("checking that every run can be carried out", quiet=quiet)
    progress = partial(say_checked, quiet=quiet)
    dry_run = DryRun(study=study, statuses=statuses, data_dir=data_dir, report_progress=progress)
    failures = find_impossible_runs(dry_run)
    for name, failure in failures.items():
        say(f"{name}: {failure.reason}", quiet=quiet, is_warning=True)
    return failures


def write_report(study: "Study", quiet: bool, *, has_failures: bool) -> bool:
    """Write one report of all records; return whether everything could be read and drawn."""
    from ..reporting.report import build_report, gather_records
    from ..storage.atomic import write_text
    from ..sweeps.ledger import list_records
    from .output import draw_all_figures, find_format, list_remarks, put_report

    settings = study.report
    files: list[Path] = []
    problems: dict[str, WmrError] = {}
    for run in study.runs:
        try:
            files += list_records(study, run)
        except BadFile as damaged:
            # by text: the same file may fail in every format
            problems[str(damaged)] = damaged
    if not files:
        if has_failures:
            # the failures are printed as errors next
            say("no records to report", quiet=quiet, is_warning=True)
        else:
            hint = "remove the folder of the study and repeat the sweep"
            say_error("no run has a record", hint)
        return False
    gathered = gather_records(
        files, settings.alpha_test, settings.rho, calibrated=settings.calibrated
    )
    for name in settings.out:
        out = study.folder / name
        output = find_format(Path(name))
        is_csv = output == "csv"  # a CSV file holds one table
        document, unread = build_report(
            gathered,
            ranks=output not in ("csv", "json"),
            compare=settings.compare and not is_csv,
            paper=None if is_csv else settings.paper,
        )
        unread = [*unread, *put_report(document, output, out, write_text)]
        problems |= {str(problem): problem for problem in unread}
        say(f"wrote {out}", quiet=quiet)
    # stdout gets the main table, whatever files the study names
    document, _ = build_report(gathered)
    put_report(document, "table", None)
    for text in list_remarks(
        document, alphas=settings.alpha_test, radii=settings.rho, output="table"
    ):
        say(text, quiet=quiet, is_warning=True)
    is_drawn = True
    if settings.figures:
        folder = study.folder / settings.figures
        with_paper = settings.paper == "all"
        is_drawn = draw_all_figures(gathered.found, folder, with_paper=with_paper, quiet=quiet)
    for problem in problems.values():
        say_error(f"skipped: {problem}", problem.hint)
    return is_drawn and not problems

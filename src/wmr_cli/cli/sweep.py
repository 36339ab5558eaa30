"""wmr sweep"""

import time
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..errors import BadFile, BadInput, WmrError, did_you_mean
from .console import Terminated, say, say_error, show, width
from .options import DataDir, Quiet, TrustCode, allow_code, components
from .train import duration

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ..config import TrainConfig
    from ..workflows.jobs import Failure
    from ..workflows.study import Study


def sweep(
    file: Annotated[Path, typer.Argument(metavar="STUDY.toml", help="Which runs, how each is evaluated, what the report shows.")],
    jobs: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=1,
            help="Runs at the same time.",
            show_default='as many as cores allow where the study says device = "cpu", otherwise one for each of its devices',
        ),
    ] = None,
    run: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Only this run, without the report; may be given several times.")
    ] = None,
    slurm: Annotated[
        bool, typer.Option("--slurm", help="Submit every run as a job of Slurm's, by the settings of the study's [slurm].")
    ] = False,
    data_dir: DataDir = None,
    trust_code: TrustCode = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="List the runs, where each stands and how long it would take, and stop.")
    ] = False,
    quiet: Quiet = False,
) -> None:
    """Train and evaluate every run of a study, then write one report.

    It can be stopped and repeated at any time: what is done is kept, what was broken off goes on.
    """
    from ..workflows.study_file import read_study
    from .output import format_of

    allow_code([], trust_code, quiet=quiet)
    registry = components(quiet)
    if dry_run:
        say(f"reading {file}", quiet=quiet)
    whole = read_study(file, registry)
    study = chosen(whole, run)
    remark(whole, study, quiet)
    for name in study.report.out:
        format_of(Path(name))  # a report that nobody can write is refused before hours of work
    if slurm:
        from ..workflows.cluster import check

        check(study)
    at_once = jobs or study.machine.jobs
    if dry_run:
        rehearse(study, at_once, data_dir, slurm=slurm, quiet=quiet)
        return
    failed = carry_out(study, at_once, data_dir, slurm=slurm, quiet=quiet)
    try:
        is_whole = bool(run) or not study.evaluations or publish(study, quiet, failed=bool(failed))
    finally:  # whatever becomes of the report
        complain(failed)
    if failed or not is_whole:
        raise typer.Exit(1)


def remark(whole: "Study", study: "Study", quiet: bool) -> None:
    """What one would not expect of the study and its folders; `study` holds the runs that were asked for."""
    from ..workflows.sweep import known_by_records, no_longer_covered

    for number in whole.asked_of_nobody():
        say(f"{whole.file}: evaluate {number}: no run is as its `only` says, so it is never done", quiet=quiet, warns=True)
    for name in no_longer_covered(whole) if study is whole else ():
        say(f"{whole.folder / name} is no run of this study any more; it is left as it is", quiet=quiet, warns=True)
    if known := len(known_by_records(study)):
        done = f"{known} of {len(study.runs)} runs are done by their records in {study.keep}"
        say(f"{done}; to carry them out yourself, copy {study.file} to another folder", quiet=quiet)


def chosen(study: "Study", names: list[str] | None) -> "Study":
    """The study, or these runs of it."""
    known = {run.name: run for run in study.runs}
    for name in names or ():
        if name not in known:
            raise BadInput(f"--run: the study has no run {name!r}", hint=did_you_mean(name, known))
    return replace(study, runs=tuple(known[name] for name in dict.fromkeys(names))) if names else study


def rehearse(study: "Study", jobs: int, data_dir: Path | None, *, slurm: bool, quiet: bool) -> None:
    """Every run, where it stands, and how long what is left of it would take on this machine."""
    from ..reporting.sheets import Sheet
    from ..workflows.shapes import Cost, costs
    from ..workflows.sweep import standing

    say(f"{len(study.runs):,} run{'s' * (len(study.runs) != 1)}; looking where each stands", quiet=quiet)
    standings = {run.name: standing(study, run) for run in study.runs}
    expected = {} if slurm else costs(study, standings, data_dir, partial(measuring, quiet=quiet))
    rows, left = list[tuple[str, ...]](), 0.0
    for run in study.runs:
        cost = expected.get(run.name, Cost())
        left += cost.training + cost.evaluation
        times = (duration(cost.training), duration(cost.evaluation)) if run.name in expected and not cost.problem else ("-", "-")
        rows.append((run.name, str(standings[run.name]), *times))
    done = sum(found.is_done for found in standings.values())
    hours = duration(left / min(jobs, max(len(rows) - done, 1)))
    then = "the settings of Slurm are right" if slurm else f"about {hours} with {jobs} at a time"
    total = f"{len(rows)} run{'s' * (len(rows) != 1)}, {done} done; {then}"
    note = "from a few steps of an untrained network; attacks that leave fooled images alone take longer on a trained one"
    caption = f"{total}\n{note}" if expected else total
    sheet = Sheet(("run", "state", "training", "evaluation"), rows, caption, study.summary, texts=("run", "state"))
    show(sheet.table(width()))
    problems = {run.name: found.refused for run in study.runs if (found := standings[run.name]).refused is not None}
    problems |= {name: cost.problem for name, cost in expected.items() if cost.problem is not None}
    complain(problems)
    if problems:
        raise typer.Exit(1)


def measuring(done: int, total: int, config: "TrainConfig", *, quiet: bool) -> None:
    """Report which shape is measured next: runs that differ in nothing that takes time have one shape."""
    shape = f"{config.model} on {config.dataset}, {config.defense}, batch {config.batch_size}"
    say(f"measuring shape {done + 1} of {total}: {shape}", quiet=quiet)


def checking(done: int, total: int, config: "TrainConfig", *, quiet: bool) -> None:
    """Report which settings are tried next."""
    if done:
        say(f"{done} of {total} settings can be built or were refused", quiet=quiet)


def complain(problems: "Mapping[str, Failure]") -> None:
    """Print an error for every reason; runs that fail for the same one share a line."""
    names: dict[Failure, list[str]] = {}
    for name, problem in problems.items():
        names.setdefault(problem, []).append(name)
    for problem, runs in names.items():
        others = f" and {len(runs) - 1:,} other run{'s' * (len(runs) > 2)}" if len(runs) > 1 else ""
        hint = problem.hint or "try one run by `wmr train --dry-run` with its settings"
        say_error(f"{runs[0]}{others}: {problem.reason}", hint)


def carry_out(study: "Study", jobs: int, data_dir: Path | None, *, slurm: bool, quiet: bool) -> "dict[str, Failure]":
    """Follow the runs to their ends; those that failed, with the reason."""
    from ..workflows.sweep import RunDone, RunFailed, RunStarted, RunWaits, claim_folder, sweep

    total = len(study.runs)
    claim_folder(study)
    failed = {} if slurm else impossible(study, data_dir, quiet)  # the machine that submits need not be one that can
    study = replace(study, runs=tuple(run for run in study.runs if run.name not in failed))
    if slurm:
        from ..workflows.cluster import submitted

        events = submitted(study, data_dir)
    else:
        events = sweep(study, jobs=jobs, data_dir=data_dir)
    outlook, ended = Outlook(study), len(failed)
    try:
        with closing(events):
            for event in events:
                ended += isinstance(event, RunDone | RunFailed)
                name, place = event.run.name, f"[{ended}/{total}]"
                match event:
                    case RunStarted():
                        say(f"{place} {name}: {event.what}", quiet=quiet)
                    case RunWaits():
                        say(f"{place} {name}: waiting, another process uses it", quiet=quiet)
                    case RunDone():
                        outlook.done(name)
                        left = 0.0 if event.was_done else outlook.seconds()
                        then = f", about {duration(left)} left" if left else ""
                        say(f"{place} {name}: done{' before' * event.was_done}{then}", quiet=quiet)
                    case RunFailed():
                        failed[name] = event.failure
                        outlook.failed(name)
                        say(f"{place} {name}: {event.failure.reason}", quiet=quiet, warns=True)
    except (KeyboardInterrupt, Terminated):
        say("interrupted; what was done is saved, and the same command goes on", quiet=quiet)
        raise
    return failed


class Outlook:
    """How long a sweep may still take, guessed from the epochs and evaluations that have been done since it began."""

    def __init__(self, study: "Study") -> None:
        from ..workflows.sweep import parts_left

        self._left = partial(parts_left, study)
        self._going = {run.name: run for run in study.runs}
        self._wanted = {name: self._left(run) for name, run in self._going.items()}
        self._started = time.monotonic()

    def done(self, name: str) -> None:
        """Nothing is left of this run."""
        del self._going[name]

    def failed(self, name: str) -> None:
        """Nothing will come of this run."""
        del self._going[name], self._wanted[name]

    def seconds(self) -> float:
        """0 where nothing is left, or nothing has been done to guess by."""
        left = sum(self._left(run) for run in self._going.values())
        made = sum(self._wanted.values()) - left
        return (time.monotonic() - self._started) / made * left if made else 0.0


def impossible(study: "Study", data_dir: Path | None, quiet: bool) -> "dict[str, Failure]":
    """Runs that could not be trained or evaluated as the study has them, told before hours of work."""
    from ..workflows.shapes import mistakes
    from ..workflows.sweep import standing

    standings = {run.name: standing(study, run) for run in study.runs}
    if not all(found.is_trained for found in standings.values()):
        say("looking whether every run can be carried out", quiet=quiet)
    found = mistakes(study, standings, data_dir, partial(checking, quiet=quiet))
    for name, failure in found.items():
        say(f"{name}: {failure.reason}", quiet=quiet, warns=True)
    return found


def publish(study: "Study", quiet: bool, *, failed: bool) -> bool:
    """One report of all records that there are; whether everything could be read and drawn."""
    from ..storage.files import write_text
    from ..workflows.report import assembled, gather
    from ..workflows.sweep import record_files
    from .drawing import draw
    from .output import format_of, put_document
    from .report import remarks

    asked, files, problems = study.report, list[Path](), dict[str, WmrError]()
    for run in study.runs:
        try:
            files += record_files(study, run)
        except BadFile as damaged:
            problems[str(damaged)] = damaged
    if not files:
        if failed:
            say("there is nothing to report", quiet=quiet, warns=True)
        else:
            say_error("there is nothing to report", "no run has a record; remove the folder of the study and repeat the sweep")
        return False
    gathered = gather(files, asked.alpha_test, asked.rho)
    for name in asked.out:
        out, output = study.folder / name, format_of(Path(name))
        is_list = output == "csv"  # one CSV holds one table
        compare, paper = asked.compare and not is_list, None if is_list else asked.paper
        document, unread = assembled(gathered, ranks=output not in ("csv", "json"), compare=compare, paper=paper)
        problems |= {str(problem): problem for problem in [*unread, *put_document(document, output, out, write_text)]}
        say(f"wrote {out}", quiet=quiet)
    document, _ = assembled(gathered)
    put_document(document, "table", None)
    for text in remarks(document, alphas=asked.alpha_test, radii=asked.rho, output="table"):
        say(text, quiet=quiet, warns=True)
    folder, with_paper = study.folder / asked.figures, asked.paper == "all"
    is_drawn = not asked.figures or draw(gathered.found, folder, with_paper=with_paper, quiet=quiet)
    for problem in problems.values():
        say_error(f"skipped: {problem}", problem.hint)
    return is_drawn and not problems

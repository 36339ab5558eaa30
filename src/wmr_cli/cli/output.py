"""Records, reports and figures in the format that the user chose, on stdout or in files."""

from collections import Counter
from collections.abc import Callable, Sequence
from itertools import chain
from pathlib import Path

import msgspec

from ..config import EvaluateConfig, EvaluateFlags
from ..errors import BadFile, BadInput
from ..reporting.card import render_card
from ..reporting.costs import EvaluationCost, TaskCost, costs_to_csv, costs_to_json
from ..reporting.figures import (
    USUAL_LOOK,
    FigureFiles,
    FigureLook,
    draw_figures,
    draw_paper_figures,
)
from ..reporting.radii import load_critical_radii, radii_to_csv
from ..reporting.report import Report
from ..reporting.requirements import Judgement
from ..reporting.rows import name_attacks
from ..reporting.tables import main
from ..reporting.tables.details import make_detail_tables
from ..reporting.tables.latex import PREAMBLE, render_latex
from ..reporting.tables.requirements import describe_judgement, make_requirement_table
from ..reporting.tables.text_table import TextTable, render_text
from ..spec import format_number
from ..storage.atomic import write_output
from ..storage.records import Record
from .console import format_duration, say, say_error, show, width, write, write_json

FORMAT_BY_ENDING = {
    ".md": "markdown",
    ".tex": "latex",
    ".csv": "csv",
    ".json": "json",
    ".html": "html",
    ".htm": "html",
    ".txt": "table",
    "": "table",
}

MAX_LABELS = 3
"""Runs that a warning names; it counts further ones."""

COST_HEADINGS = ("run", "attack", "ε", "images", "forward", "backward", "time", "measured on")
COST_CAPTION = (
    "forward and backward passes of the model per image, over all α and restarts, with the clean "
    "pass; time on this machine, extrapolated from the images it was measured on"
)
STOPS_EARLY_NOTE = (
    "≤: upper bound, if the attack misclassifies no image; the number before it is the average of "
    "the measured images"
)
PART_NOTE = "part: a batch takes too long, so the time is extrapolated from its first passes"
MEBIBYTE = 2**20

WriteText = Callable[[str], None]


def find_format(out: Path | None) -> str:
    """Return the format that the ending of a file name stands for."""
    ending = "" if out is None else out.suffix.lower()
    if ending not in FORMAT_BY_ENDING:
        known = ", ".join(ending for ending in FORMAT_BY_ENDING if ending)
        raise BadInput(
            f"the ending of {out} is not that of a format", hint=f"use {known}, or set `format`"
        )
    return FORMAT_BY_ENDING[ending]


def print_records(
    found: Sequence[tuple[Path, Record]],
    output: str,
    judgements: Sequence[Judgement] | None = None,
) -> None:
    """Print records as they were measured: one row each, not ranked."""
    records = [record for _, record in found]
    if output == "csv":
        write(main.to_csv(records))
    elif output == "json":
        # without groups, so that nothing is said about training seeds
        write(_to_json(Report(found, judgements=judgements).to_json()))
    else:
        tables = [main.make_table(records), *make_detail_tables(records)]
        if judgements:
            tables.append(make_requirement_table(judgements, name_attacks(records)))
        put_tables(tables, output, write, is_printed=True)


def put_report(
    report: Report,
    output: str,
    out: Path | None,
    write_file: Callable[[Path, str], None] = write_output,
) -> list[BadFile]:
    """Print a report, or write it to `out`; return the files that could not be read."""

    def put(text: str) -> None:
        if out is None:
            write(text)
        else:
            write_file(out, text)

    # only the page reads the rows of records, so only it can fail to read a file
    problems: list[BadFile] = []
    if output == "csv":
        put(report.to_csv())
    elif output == "html":
        # only this format needs the template, the scripts and plotly.js
        from ..reporting.html.report import render_report

        text, problems = render_report(report.found, report.comparison_tables(), report.resampled)
        put(text)
    elif output == "json":
        put(_to_json(report.to_json()))
    elif output == "card":
        put(render_card(report.records))
    else:
        put_tables(report.tables(), output, put, is_printed=out is None)
    return problems


def put_tables(
    tables: Sequence[TextTable], output: str, put: WriteText, *, is_printed: bool
) -> None:
    """Write tables in a format for reading, on a terminal or as plain text."""
    if output == "markdown":
        put("\n".join(table.to_markdown() for table in tables))
    elif output == "latex":
        put(PREAMBLE + "\n".join(render_latex(table) for table in tables))
    elif is_printed:
        # a table that is too wide for the terminal is split into several
        parts = chain.from_iterable(table.to_rich_tables(width()) for table in tables)
        for number, part in enumerate(parts):
            if number:
                write("")
            show(part)
    else:
        put("\n".join(render_text([table.to_rich_table()]) for table in tables))


def print_costs(
    costs: Sequence[EvaluationCost], config: EvaluateConfig, flags: EvaluateFlags
) -> None:
    """Print what the attacks on every checkpoint would cost."""
    if flags.format == "csv":
        write(costs_to_csv(costs))
    elif flags.format == "json":
        write_json(costs_to_json(costs))
    else:
        put_tables([make_cost_table(costs)], flags.format, write, is_printed=True)
    for cost in costs:
        say(describe_total(cost), quiet=flags.quiet)
    if config.checks:
        say("the time of the checks is not included", quiet=flags.quiet)


def make_cost_table(costs: Sequence[EvaluationCost]) -> TextTable:
    """Return a table with a row per attack and eps."""
    tasks = [task for cost in costs for task in cost.tasks]
    notes = []
    if any(task.stops_early for task in tasks):
        notes.append(STOPS_EARLY_NOTE)
    if any(task.images and not task.measured_images for task in tasks):
        notes.append(PART_NOTE)
    return TextTable(
        headings=COST_HEADINGS,
        rows=[_list_cells(task) for task in tasks],
        caption=COST_CAPTION,
        text_columns=COST_HEADINGS[:2],
        shared_columns=COST_HEADINGS[:4],
        notes=tuple(notes),
    )


def describe_total(cost: EvaluationCost) -> str:
    """Return one line with the time of all tasks, the memory and the device."""
    total = _format_range(cost.seconds, cost.max_seconds)
    text = f"{cost.tasks[0].run}: {total} on {cost.device}"
    if cost.verifier_seconds:
        text += f", {format_duration(cost.verifier_seconds)} of it for the verifier"
    if cost.peak_memory is not None:
        memory = f"{cost.peak_memory / MEBIBYTE:,.0f} MiB"
        text += f"; peak memory {memory} at batches of up to {cost.batch_size} images"
    return text


def _list_cells(task: TaskCost) -> tuple[str, ...]:
    eps = format_number(task.eps)
    basis = f"{task.measured_images} images" if task.measured_images else "part"
    return (
        task.run,
        task.attack,
        eps if task.norm == "linf" else f"{eps} {task.norm}",
        str(task.images),
        _format_passes(task.forward, task.max_forward, stops_early=task.stops_early),
        _format_passes(task.backward, task.max_backward, stops_early=task.stops_early),
        "stored" if task.stored else _format_range(task.seconds, task.max_seconds),
        basis if task.images else "-",
    )


def _format_passes(measured: float | None, most: float, *, stops_early: bool) -> str:
    if not stops_early:
        return f"{most:,.0f}"
    known = "" if measured is None else f"{measured:,.0f} "
    return f"{known}≤ {most:,.0f}"


def _format_range(seconds: float | None, most: float) -> str:
    """Return `42 s`, `42 s ≤ 3.5 min`, or `≤ 3.5 min`."""
    if seconds is None:
        return f"≤ {format_duration(most)}"
    if most <= seconds:
        return f"about {format_duration(seconds)}"
    return f"about {format_duration(seconds)}, ≤ {format_duration(most)}"


def _to_json(value: object) -> str:
    return msgspec.json.format(msgspec.json.encode(value), indent=1).decode() + "\n"


def report_judgements(judgements: Sequence[Judgement], *, quiet: bool) -> bool:
    """Report which requirements are not met; return whether all are."""
    failed = [judgement for judgement in judgements if not judgement.is_met]
    for judgement in failed:
        say_error(describe_judgement(judgement))
    if judgements and not failed:
        say(f"all requirements are met ({len(judgements)} judged)", quiet=quiet)
    return not failed


def write_critical_eps(
    found: Sequence[tuple[Path, Record]], file: Path, *, quiet: bool
) -> list[BadFile]:
    """Write the critical eps of every image; return the files that could not be read."""
    loaded, problems = load_critical_radii(found)
    if not loaded and not problems:
        raise BadInput(
            "no model was measured at several radii under one attack",
            hint="evaluate with `eps=1/255..8/255`",
        )
    write_output(file, radii_to_csv(loaded))
    say(f"wrote {file}", quiet=quiet)
    return problems


def draw_all_figures(
    found: Sequence[tuple[Path, Record]],
    folder: Path,
    *,
    known: Sequence[Record] = (),
    look: FigureLook = USUAL_LOOK,
    with_paper: bool,
    quiet: bool,
) -> bool:
    """Draw all figures that the records allow; return whether all their files could be read.

    `known` are further records, which identify the attacks behind a worst case.
    """
    is_complete = True
    paper_figures = draw_paper_figures(folder, look) if with_paper else ()
    # both are generators: each file is announced as soon as it is written
    for part in chain(draw_figures(found, folder, known=known, look=look), paper_figures):
        if isinstance(part, FigureFiles):
            say(f"drew {part}", quiet=quiet)
        elif part.is_bad_file:
            say_error(f"not drawn: {part.text}", part.hint)
            is_complete = False
        else:
            say(part.text, quiet=quiet, is_warning=True)
    return is_complete


def list_remarks(
    report: Report,
    *,
    alphas: Sequence[float] | None,
    radii: Sequence[float] | None,
    output: str,
) -> list[str]:
    """Return caveats of the numbers in a report, and requests that it cannot fulfil."""
    from ..reporting.rows import describe_conditions, run_name
    from ..reporting.scoring import list_caveats

    # by text: a caveat that holds for many runs is one line
    labels: dict[str, list[str]] = {}
    evaluations = Counter(run_name(record) for record in report.records)
    for record in report.records:
        # a run name is enough unless the run was evaluated several times
        label = run_name(record)
        if evaluations[label] > 1:
            label = f"{label} {describe_conditions(record)}"
        texts = list(list_caveats(record))
        if alphas and not any(row.a_sa for row in record.by_alpha):
            texts.append("the stored rows have no weights at these values of alpha")
        if radii and not record.dro and "dro" not in record.config.get("metrics", ()):
            texts.append("the stored rows have no bounded losses for DRO")
        for text in texts:
            labels.setdefault(text, []).append(label)
    remarks = [f"{_join_labels(labels[text])}: {text}" for text in labels]
    remarks += _list_missing_differences(report)
    if report.comparisons is not None and not report.comparisons:
        remarks.append(
            "nothing can be compared: a comparison needs two models on the same images, with the"
            " same norm, eps and attack"
        )
    if radii and output == "csv":
        remarks.append("CSV does not contain DRO results: use `format=json`")
    if report.matches is not None and not report.matches and not report.shows_paper:
        remarks += [
            f"{_join_labels(labels)}: no row of the paper matches because of one condition: {text}"
            for text, labels in report.mismatches.items()
        ] or [
            "no row of the paper matches: dataset (test split), defense, kernel and alpha must be"
            " the same, eps and number of PGD steps similar"
        ]
    return remarks


def _join_labels(labels: Sequence[str]) -> str:
    """Name up to three runs, and say how many more there are."""
    shown = list(dict.fromkeys(labels))
    if len(shown) > MAX_LABELS:
        return f"{'; '.join(shown[: MAX_LABELS - 1])} and {len(shown) - MAX_LABELS + 1} more"
    return "; ".join(shown)


def _list_missing_differences(report: Report) -> list[str]:
    """Return a remark if A_cal has no difference because rows hold no logits."""
    unpaired = [
        comparison
        for comparison in report.comparisons or ()
        if comparison.row.accuracy("a_cal")
        and comparison.reference.accuracy("a_cal")
        and "a_cal" not in comparison.gaps
    ]
    if not unpaired:
        return []
    return ["a difference in A_cal needs the logits of both models: evaluate with `rows=full`"]

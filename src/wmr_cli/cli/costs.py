"""The estimated cost of an evaluation, for `wmr evaluate --dry-run`."""

from collections.abc import Sequence

from ..config import EvaluateConfig, EvaluateFlags
from ..reporting.costs import EvaluationCost, TaskCost, costs_to_csv, costs_to_json
from ..reporting.tables.text_table import TextTable
from ..spec import format_number
from .console import format_duration, say, write, write_json
from .output import put_tables

HEADINGS = ("run", "attack", "ε", "images", "forward", "backward", "time", "measured on")
CAPTION = (
    "forward and backward passes of the model per image, over all α and restarts, with the clean "
    "pass; time on this machine, extrapolated from the images it was measured on"
)
STOPS_EARLY_NOTE = (
    "≤: upper bound, if the attack misclassifies no image; the number before it is the average of "
    "the measured images"
)
PART_NOTE = "part: a batch takes too long, so the time is extrapolated from its first passes"
MEBIBYTE = 2**20


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
        headings=HEADINGS,
        rows=[_list_cells(task) for task in tasks],
        caption=CAPTION,
        text_columns=HEADINGS[:2],
        shared_columns=HEADINGS[:4],
        notes=tuple(notes),
    )


def describe_total(cost: EvaluationCost) -> str:
    """Return one line with the time of all tasks, the memory and the device."""
    total = _format_range(cost.seconds, cost.max_seconds)
    text = f"{cost.tasks[0].run}: {total} on {cost.device}"
    if cost.verifier_seconds:
        text += f", {format_duration(cost.verifier_seconds)} of it for the verifier"
    if cost.peak_memory is not None:
        whose = "of the process" if cost.device == "cpu" else "of tensors"
        memory = f"{cost.peak_memory / MEBIBYTE:,.0f} MiB"
        text += f"; peak memory {whose} {memory} at batches of up to {cost.batch_size} images"
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

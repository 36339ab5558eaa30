"""What stands after the main table where it was asked for: the worst case in a ball, every class by itself, the checks."""

from collections.abc import Iterator, Sequence

from ..spec import exact
from ..storage.records import ClassAlphaRow, ClassRow, Record
from .attacks import Attacks, attacks_among
from .doubts import rests_on_few
from .lines import ball_name, conditions, run_name
from .percents import in_percent, percent
from .sheets import Sheet

IN_A_BALL = (
    "the worst case over all weights in a chi-squared ball of radius ρ around equal ones: the largest mean loss, the accuracy"
    " in percent under the weights that reach it, and the least accuracy in the ball"
)
CHECKS = "a check fails where the attack may have been weak rather than the model strong; a note is only told"
BY_CLASS = (
    "percent, with 95 % intervals of each class by itself; the worst class has a second one, wide enough"
    " that those of all classes hold together; few: the weights leave A_sa on few images of the class"
)


def extras(records: Sequence[Record]) -> Iterator[Sheet]:
    """One sheet for the balls of all records, one for the classes and one for the checks of each."""
    attacks = attacks_among(records)
    in_balls = [cells for record in records for cells in _ball_cells(record, attacks)]
    if in_balls:
        headings = ("run", "attack", "ε", "loss", "ρ", "worst loss", "accuracy", "worst accuracy", "zero weights", "ESS")
        yield Sheet(headings, in_balls, IN_A_BALL, "worst case in a ball", texts=headings[:2], facts=headings[:4])
    yield from (_class_sheet(record, attacks) for record in records if record.per_class)
    yield from (_check_sheet(record, attacks) for record in records if record.checks)


def _ball_cells(record: Record, attacks: Attacks) -> Iterator[tuple[str, ...]]:
    for row in record.dro:
        yield (
            run_name(record), attacks.name(record), ball_name(record), row.attack_loss, exact(row.rho), f"{row.loss:.3f}",
            in_percent(row.accuracy), in_percent(row.worst_accuracy), str(row.zero_weights), f"{row.ess:.0f}",
        )  # fmt: skip


def _class_sheet(record: Record, attacks: Attacks) -> Sheet:
    """The classes of a record; of its alphas, the largest."""
    worst = min(record.per_class, key=lambda row: row.joint.value)
    last = _at_largest_alpha(worst)
    at = "" if last is None or last.alpha_test is None else f" at α {exact(last.alpha_test)}"
    title = f"classes of {run_name(record)} {conditions(record, attacks.name(record))}"
    headings = ("class", "n", "A_nat", "A_rob", f"A_sa{at}", "weight", "ESS")
    rows = [_class_cells(row, row is worst) for row in record.per_class]
    return Sheet(headings, rows, BY_CLASS, title, texts=("class",), shares=headings[2:5])


def _check_sheet(record: Record, attacks: Attacks) -> Sheet:
    """Every check with its number and its verdict."""
    title = f"checks of {run_name(record)} {conditions(record, attacks.name(record))}"
    headings = ("check", "number", "verdict", "the number is")
    rows: list[tuple[str, ...]] = [(check.name, f"{check.value:.4g}", check.verdict, check.text) for check in record.checks]
    return Sheet(headings, rows, CHECKS, title, texts=(headings[0], *headings[2:]))


def _at_largest_alpha(row: ClassRow) -> ClassAlphaRow | None:
    return max(row.by_alpha, key=lambda part: part.alpha_test or 0, default=None)


def _class_cells(row: ClassRow, is_worst: bool) -> tuple[str, ...]:
    last = _at_largest_alpha(row)
    ess = None if last is None or last.a_sa is None else last.a_sa.ess
    mark = f"; worst {percent(row.joint)}" if is_worst else ""
    few = " (few)" if ess is not None and rests_on_few(ess, row.n) else ""
    return (
        str(row.label) if row.name is None else f"{row.label} {row.name}",
        str(row.n),
        percent(row.a_nat) + (mark if row.a_rob is None else ""),
        percent(row.a_rob) + (mark if row.a_rob is not None else ""),
        "-" if last is None else percent(last.a_sa),
        "-" if last is None or last.share is None else in_percent(last.share),
        "-" if ess is None else f"{ess:.0f}{few}",
    )

"""What stands after the main table where it was asked for: the worst case in a ball, and every class by itself."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rich import box
from rich.markup import escape
from rich.table import Table

from ..spec import exact
from ..storage.records import ClassAlphaRow, ClassRow, Record
from .doubts import rests_on_few
from .tables import markdown_text, percent, pipes, run_name

IN_A_BALL = (
    "the worst case over all weights in a chi-squared ball of radius ρ around equal ones: the largest mean loss, the accuracy"
    " in percent under the weights that reach it, and the least accuracy in the ball"
)
BY_CLASS = (
    "percent, with 95 % intervals of each class by itself; in the line of the worst class the last interval is wide enough"
    " that those of all classes hold together; few: the weights leave A_sa on few images of the class"
)
WORST = "worst"


@dataclass(frozen=True)
class Sheet:
    """A table of texts; the first `texts` columns are words, the others numbers."""

    title: str
    headings: tuple[str, ...]
    rows: list[tuple[str, ...]]
    caption: str
    texts: int = 1

    def table(self) -> Table:
        """For the terminal. What comes from users is text, not markup."""
        made = Table(
            box=box.SIMPLE_HEAD, title=escape(self.title), caption=self.caption,
            title_justify="left", caption_justify="left", pad_edge=False,
        )  # fmt: skip
        for position, heading in enumerate(self.headings):
            made.add_column(heading, justify="left" if position < self.texts else "right", overflow="fold")
        for row in self.rows:
            made.add_row(*map(escape, row))
        return made

    def markdown(self) -> str:
        """Title, pipe table and caption."""
        return f"{markdown_text(self.title)}\n\n{pipes(self.headings, self.rows)}\n{self.caption}\n"


def sheets(records: Sequence[Record]) -> Iterator[Sheet]:
    """One sheet for the balls of all records, one for the classes of each."""
    in_balls = [cells for record in records for cells in _ball_cells(record)]
    if in_balls:
        headings = ("run", "attack", "ε", "loss", "ρ", "worst loss", "accuracy", "worst accuracy", "zero weights", "ESS")
        yield Sheet("worst case in a ball", headings, in_balls, IN_A_BALL, texts=2)
    yield from (_class_sheet(record) for record in records if record.per_class)


def _ball_cells(record: Record) -> Iterator[tuple[str, ...]]:
    for row in record.dro:
        yield (
            run_name(record), record.attack.spec, exact(record.threat.eps), row.attack_loss, exact(row.rho), f"{row.loss:.3f}",
            f"{100 * row.accuracy:.1f}", f"{100 * row.worst_accuracy:.1f}", str(row.zero_weights), f"{row.ess:.0f}",
        )  # fmt: skip


def _class_sheet(record: Record) -> Sheet:
    """The classes of a record; of its alphas, the largest."""
    worst = min(record.per_class, key=lambda row: row.joint.value)
    last = _at_largest_alpha(worst)
    at = "" if last is None or last.alpha_test is None else f" at α {exact(last.alpha_test)}"
    title = f"classes of {run_name(record)} under {record.attack.spec}, ε {exact(record.threat.eps)}"
    headings = ("class", "n", "A_nat", "A_rob", f"A_sa{at}", "weight", "ESS", "")
    return Sheet(title, headings, [_class_cells(row, row is worst) for row in record.per_class], BY_CLASS)


def _at_largest_alpha(row: ClassRow) -> ClassAlphaRow | None:
    return max(row.by_alpha, key=lambda part: part.alpha_test or 0, default=None)


def _class_cells(row: ClassRow, is_worst: bool) -> tuple[str, ...]:
    last = _at_largest_alpha(row)
    ess = None if last is None or last.a_sa is None else last.a_sa.ess
    few = " (few)" if ess is not None and rests_on_few(ess, row.n) else ""
    return (
        str(row.label) if row.name is None else f"{row.label} {row.name}",
        str(row.n),
        percent(row.a_nat),
        percent(row.a_rob),
        "-" if last is None else percent(last.a_sa),
        "-" if last is None or last.share is None else f"{100 * last.share:.1f}",
        "-" if ess is None else f"{ess:.0f}{few}",
        f"{WORST}: {percent(row.joint)}" if is_worst else "",
    )

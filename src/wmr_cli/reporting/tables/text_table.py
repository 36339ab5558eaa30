"""A table of texts, laid out for a terminal of any width or as Markdown."""

import io
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from .escaping import markdown_paragraph, markdown_text, printable

BEHIND = re.compile(r" \[|; ")
INTERVAL = re.compile(r" \[(\S+), (\S+)\]")
BESIDE, BELOW, BARE, STACKED = range(4)
"""Where an interval stands: beside its value, below it, below it without brackets, or in pieces, none of them cut."""
LONGEST = "distinguishable", "distin-\nguishable"
"""A word that is wider than a stacked column, and where it may be broken."""
NARROWEST = 6
"""A column of texts that is narrower than this cannot be read."""
UNLIMITED_WIDTH = 10_000
"""Off a terminal nothing is cut or wrapped."""


@dataclass(frozen=True)
class TextTable:
    """Rows of texts below their headings. Some columns are `facts` that all rows may share, some `shares` with intervals.

    A share reads `57.2 [53.1, 61.1]`, `57.2 ± 0.4 [53.1, 61.1]` or `57.2 [53.1, 61.1]; 57.0 ± 0.3`. In the cells of `strong`,
    given by row and heading, what stands before the interval is set in bold. A rule is drawn after the rows in `ends`.
    """

    headings: tuple[str, ...]
    rows: list[tuple[str, ...]]
    caption: str
    title: str = ""
    text_columns: tuple[str, ...] = ()
    shared_columns: tuple[str, ...] = ()
    interval_columns: tuple[str, ...] = ()
    bold: frozenset[tuple[int, str]] = frozenset()
    rules_after: frozenset[int] = frozenset()
    notes: tuple[str, ...] = ()
    can_split: bool = False

    def to_rich_tables(self, width: int | None = None) -> list[Table]:
        """For the terminal. Where that is too narrow, a sheet that `splits` gives a table for each part between rules."""
        fits = self._leaves_room(self.split_columns()[0], width)
        return (
            [self.to_rich_table(width)]
            if fits or not self.can_split
            else [part.to_rich_table(width) for part in self.split_at_rules()]
        )

    def to_rich_table(self, width: int | None = None) -> Table:
        """For the terminal, or for plain text where nothing limits the width. What comes from users is text, not markup.

        Where it would not fit, what all rows share moves into the title; then intervals go below their values; then they
        lose their brackets; then they are taken apart. In plain text a star stands for bold.
        """
        shown, shared = list(range(len(self.headings))), list[int]()
        if not self._fits(shown, width, BESIDE):
            shown, shared = self.split_columns()
        keeps = self._leaves_room(shown, width)
        form = next(
            (form for form in (BESIDE, BELOW) if self._fits(shown, width, form)),
            BARE if keeps else STACKED,
        )
        made = Table(
            box=box.SIMPLE_HEAD, caption_justify="left", title_justify="left", pad_edge=False
        )
        made.padding = (0, 0, 0, 1) if form in (BARE, STACKED) else (0, 1)
        made.caption = (
            "\n".join([self.caption, *(escape(printable(note)) for note in self.notes)]) or None
        )
        made.title = escape(printable(self.full_title(shared))) or None
        for position in shown:
            name = self.headings[position]
            is_text = name in self.text_columns
            made.add_column(
                name,
                justify="left" if is_text else "right",
                overflow="fold",
                no_wrap=keeps and not is_text,
            )
        for number in range(len(self.rows)):
            cells = (
                self._drawn(number, position, form, is_plain=width is None) for position in shown
            )
            made.add_row(*cells, end_section=number in self.rules_after)
        return made

    def to_markdown(self) -> str:
        """Title, pipe table, caption and notes. A sheet that `splits` gives a table for each part, below what sets it apart."""
        parts = self.split_at_rules() if self.can_split else [self]
        tables = [
            text
            for lead, part in zip(_leads(parts), parts, strict=True)
            for text in (lead, part._pipes())
        ]
        blocks = (
            markdown_paragraph(self.title),
            *tables,
            self.caption,
            *map(markdown_paragraph, self.notes),
        )
        return "\n\n".join(block for block in blocks if block) + "\n"

    def split_at_rules(self) -> list["TextTable"]:
        """The rows up to each rule by themselves; caption and notes stand below the last."""
        firsts = [0, *sorted(end + 1 for end in self.rules_after if end + 1 < len(self.rows))]
        lasts = [*firsts[1:], len(self.rows)]
        return [
            replace(
                self,
                rows=self.rows[first:last],
                bold=frozenset(
                    (number - first, name) for number, name in self.bold if first <= number < last
                ),
                rules_after=frozenset(),
                caption=self.caption if last == len(self.rows) else "",
                notes=self.notes if last == len(self.rows) else (),
            )
            for first, last in zip(firsts, lasts, strict=True)
        ]

    def split_columns(self) -> tuple[list[int], list[int]]:
        """The positions of columns that differ between rows, and of the facts that do not."""
        positions = range(len(self.headings))
        shared = [
            position
            for position in positions
            if self.headings[position] in self.shared_columns
            and len({row[position] for row in self.rows}) == 1
        ]
        return [position for position in positions if position not in shared], shared

    def full_title(self, shared: list[int]) -> str:
        """The title with what all rows share."""
        facts = (f"{self.headings[position]} {self.rows[0][position]}" for position in shared)
        return " · ".join(part for part in (self.title, *facts) if part)

    def split_cell(self, number: int, position: int) -> tuple[str, str, bool]:
        """A cell's value, the interval and what else stands behind it, and whether the value is strong."""
        cell, is_strong = (
            printable(self.rows[number][position]),
            (number, self.headings[position]) in self.bold,
        )
        if self.headings[position] not in self.interval_columns:
            return cell, "", is_strong
        end = next((found.start() for found in BEHIND.finditer(cell)), len(cell))
        return cell[:end], cell[end:], is_strong

    def _pipes(self) -> str:
        lines = [tuple(map(markdown_text, self.headings)), ("---",) * len(self.headings)]
        lines += [
            tuple(self._marked(number, position) for position in range(len(row)))
            for number, row in enumerate(self.rows)
        ]
        return "\n".join("| " + " | ".join(line) + " |" for line in lines)

    def _marked(self, number: int, position: int) -> str:
        value, rest, is_strong = self.split_cell(number, position)
        shown = f"**{markdown_text(value)}**" if is_strong else markdown_text(value)
        return shown + (" " if rest.startswith(" ") else "") + markdown_text(rest)

    def _drawn(self, number: int, position: int, form: int, *, is_plain: bool) -> Text:
        value, rest, is_strong = self.split_cell(number, position)
        shown = (
            _laid_out(value, form) if self.headings[position] in self.interval_columns else value
        )
        star = "*" if is_strong and is_plain else ""
        return Text.assemble((shown + star, "bold" if is_strong else ""), _laid_out(rest, form))

    def _fits(self, shown: list[int], width: int | None, form: int) -> bool:
        """Whether these columns fit side by side, three characters between them."""
        return width is None or sum(3 + self._widest(position, form) for position in shown) <= width

    def _leaves_room(self, shown: list[int], width: int | None) -> bool:
        """Whether numbers at their narrowest, two characters between columns, leave some room for the texts."""
        taken = (
            NARROWEST
            if self.headings[position] in self.text_columns
            else self._widest(position, BARE)
            for position in shown
        )
        return width is None or sum(2 + most for most in taken) <= width

    def _widest(self, position: int, form: int) -> int:
        cells = [self.split_cell(number, position) for number in range(len(self.rows))]
        lines = (
            line for value, rest, _ in cells for line in (value + _laid_out(rest, form)).split("\n")
        )
        return max(len(self.headings[position]), *map(len, lines), 0)


def _leads(parts: list[TextTable]) -> list[str]:
    """What sets each part of a sheet apart: the facts that all of its rows share and other parts do not. None of a single one."""
    if len(parts) == 1:
        return [""]
    shared = [dict(zip(part.headings, part.rows[0], strict=True)) for part in parts]
    alike = [{part.headings[position] for position in part.split_columns()[1]} for part in parts]
    telling = [
        name
        for name in parts[0].headings
        if all(name in names for names in alike) and len({facts[name] for facts in shared}) > 1
    ]
    said = [" · ".join(f"{name} {facts[name]}" for name in telling) for facts in shared]
    is_told = len(set(said)) == len(said)
    numbers = [
        "" if is_told else f"part {number} of {len(parts)}" for number in range(1, len(parts) + 1)
    ]
    return [
        markdown_paragraph(" · ".join(filter(None, both)))
        for both in zip(said, numbers, strict=True)
    ]


def _laid_out(text: str, form: int) -> str:
    """A value or what stands behind it, the interval where `form` puts it, and further parts below."""
    shown = text.replace("; ", "\n")
    if form == BELOW:
        return shown.replace(" [", "\n[")
    shown = INTERVAL.sub(r"\n\1…\2", shown) if form in (BARE, STACKED) else shown
    if form == STACKED:
        for whole, pieces in (("…", "…\n"), (" ± ", "\n± "), LONGEST):
            shown = shown.replace(whole, pieces)
    return shown


def render_text(tables: Iterable[Table], width: int = UNLIMITED_WIDTH) -> str:
    """Render tables as plain text, one below the other."""
    stream = io.StringIO()
    # FORCE_COLOR would make rich write escape codes into a file
    console = Console(
        file=stream,
        emoji=False,
        highlight=False,
        width=width,
        force_terminal=False,
        color_system=None,
    )
    for table in tables:
        console.print(table)
    return stream.getvalue()

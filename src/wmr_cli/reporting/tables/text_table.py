"""A table of texts, laid out for a terminal of any width or as Markdown."""

import io
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import Enum, auto

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from .escaping import markdown_paragraph, markdown_text, printable

END_OF_VALUE = re.compile(r" \[|; ")
INTERVAL = re.compile(r" \[(\S+), (\S+)\]")
# characters that a column of texts needs to be readable
MIN_TEXT_WIDTH = 6

# width of a file: nothing is cut or wrapped
UNLIMITED_WIDTH = 10_000
# plain text wider than this moves shared columns to the title, unless COLUMNS is set
PLAIN_WIDTH = 100


class IntervalLayout(Enum):
    """Where the interval of an accuracy is placed, from the widest layout to the narrowest."""

    # beside the value: `57.2 [53.1, 61.1]`
    BESIDE = auto()
    # below the value, in brackets
    BELOW = auto()
    # below the value, as `53.1…61.1`
    BARE = auto()
    # each number on a line of its own
    STACKED = auto()


@dataclass(frozen=True)
class TextTable:
    """Rows of texts with headings, a caption and notes.

    A cell of `interval_columns` reads `57.2 [53.1, 61.1]`, `57.2 ± 0.4 [53.1, 61.1]` or
    `57.2 [53.1, 61.1]; 57.0 ± 0.3`. Only the text before the interval is bold or broken.
    """

    headings: tuple[str, ...]
    rows: list[tuple[str, ...]]
    caption: str
    title: str = ""
    # left-aligned, and may be wrapped
    text_columns: tuple[str, ...] = ()
    # may move to the title if all rows are equal
    shared_columns: tuple[str, ...] = ()
    interval_columns: tuple[str, ...] = ()
    # cells by row number and heading
    bold: frozenset[tuple[int, str]] = frozenset()
    # numbers of rows that are followed by a rule
    rules_after: frozenset[int] = frozenset()
    notes: tuple[str, ...] = ()
    # whether the parts between rules may become tables of their own
    can_split: bool = False

    def to_rich_tables(self, width: int | None = None) -> list[Table]:
        """Return tables for a terminal of this width; a table that is too wide may be split."""
        # each part has fewer distinct values, so that more columns move to its title
        fits = self._fits_without_intervals(self.split_columns()[0], width)
        if fits or not self.can_split:
            return [self.to_rich_table(width)]
        return [part.to_rich_table(width) for part in self.split_at_rules()]

    def to_rich_table(self, width: int | None = None) -> Table:
        """Return a table for a terminal of this width; None is plain text, which is not cut.

        If it does not fit, shared columns move to the title, and on a terminal intervals then move
        below their values. In plain text a star stands for bold.
        """
        columns = list(range(len(self.headings)))
        shared: list[int] = []
        preferred_width = find_plain_width() if width is None else width
        if not self._fits(columns, preferred_width, IntervalLayout.BESIDE):
            columns, shared = self.split_columns()
        keeps_numbers_whole = self._fits_without_intervals(columns, width)
        layout = self._choose_layout(columns, width, keeps_numbers_whole)
        table = Table(
            box=box.SIMPLE_HEAD, caption_justify="left", title_justify="left", pad_edge=False
        )
        is_narrow = layout in (IntervalLayout.BARE, IntervalLayout.STACKED)
        table.padding = (0, 0, 0, 1) if is_narrow else (0, 1)
        # names in titles and notes come from users and must not be read as markup
        notes = [escape(printable(note)) for note in self.notes]
        table.caption = "\n".join([self.caption, *notes]) or None
        title = printable(self.full_title(shared))
        table.title = escape(title) or None
        if title and width is None:
            # rich would fold it to the width of the table
            table.title = Text(title, no_wrap=True, overflow="ignore")
        for position in columns:
            name = self.headings[position]
            is_text = name in self.text_columns
            table.add_column(
                name,
                justify="left" if is_text else "right",
                overflow="fold",
                no_wrap=keeps_numbers_whole and not is_text,
            )
        for number in range(len(self.rows)):
            cells = [
                self._render_cell(number, position, layout, is_plain=width is None)
                for position in columns
            ]
            table.add_row(*cells, end_section=number in self.rules_after)
        return table

    def to_markdown(self) -> str:
        """Return title, pipe table, caption and notes; a table that can split has several."""
        parts = self.split_at_rules() if self.can_split else [self]
        blocks = [markdown_paragraph(self.title)]
        for lead, part in zip(_list_leads(parts), parts, strict=True):
            blocks += [lead, part._to_pipe_table()]
        blocks += [self.caption, *map(markdown_paragraph, self.notes)]
        return "\n\n".join(block for block in blocks if block) + "\n"

    def split_at_rules(self) -> list["TextTable"]:
        """Return the parts between rules; the last one has the caption and the notes."""
        starts = [0, *sorted(end + 1 for end in self.rules_after if end + 1 < len(self.rows))]
        ends = [*starts[1:], len(self.rows)]
        parts = []
        for start, end in zip(starts, ends, strict=True):
            is_last = end == len(self.rows)
            bold = frozenset(
                (number - start, name) for number, name in self.bold if start <= number < end
            )
            parts.append(
                replace(
                    self,
                    rows=self.rows[start:end],
                    bold=bold,
                    rules_after=frozenset(),
                    caption=self.caption if is_last else "",
                    notes=self.notes if is_last else (),
                )
            )
        return parts

    def split_columns(self) -> tuple[list[int], list[int]]:
        """Return the positions of columns to show, and of shared columns for the title."""
        positions = range(len(self.headings))
        shared = [
            position
            for position in positions
            if self.headings[position] in self.shared_columns
            and len({row[position] for row in self.rows}) == 1
        ]
        return [position for position in positions if position not in shared], shared

    def full_title(self, shared: list[int]) -> str:
        """Return the title with the values of shared columns."""
        facts = (f"{self.headings[position]} {self.rows[0][position]}" for position in shared)
        return " · ".join(part for part in (self.title, *facts) if part)

    def split_cell(self, number: int, position: int) -> tuple[str, str, bool]:
        """Return a cell's value, the rest from its interval on, and whether the value is bold."""
        heading = self.headings[position]
        cell = printable(self.rows[number][position])
        is_bold = (number, heading) in self.bold
        end = END_OF_VALUE.search(cell) if heading in self.interval_columns else None
        if end is None:
            return cell, "", is_bold
        return cell[: end.start()], cell[end.start() :], is_bold

    def _to_pipe_table(self) -> str:
        lines = [tuple(map(markdown_text, self.headings)), ("---",) * len(self.headings)]
        for number, row in enumerate(self.rows):
            lines.append(tuple(self._markdown_cell(number, column) for column in range(len(row))))
        return "\n".join("| " + " | ".join(line) + " |" for line in lines)

    def _markdown_cell(self, number: int, position: int) -> str:
        value, rest, is_bold = self.split_cell(number, position)
        shown = f"**{markdown_text(value)}**" if is_bold else markdown_text(value)
        # `markdown_text` strips the space before the interval
        space = " " if rest.startswith(" ") else ""
        return shown + space + markdown_text(rest)

    def _render_cell(
        self, number: int, position: int, layout: IntervalLayout, *, is_plain: bool
    ) -> Text:
        value, rest, is_bold = self.split_cell(number, position)
        if self.headings[position] in self.interval_columns:
            value = _break_lines(value, layout)
        if is_bold and is_plain:
            value += "*"
        return Text.assemble((value, "bold" if is_bold else ""), _break_lines(rest, layout))

    def _choose_layout(
        self, columns: list[int], width: int | None, keeps_numbers_whole: bool
    ) -> IntervalLayout:
        for layout in (IntervalLayout.BESIDE, IntervalLayout.BELOW):
            if self._fits(columns, width, layout):
                return layout
        return IntervalLayout.BARE if keeps_numbers_whole else IntervalLayout.STACKED

    def _fits(self, columns: list[int], width: int | None, layout: IntervalLayout) -> bool:
        """Whether these columns fit side by side, with three characters between them."""
        if width is None:
            return True
        return sum(3 + self._column_width(position, layout) for position in columns) <= width

    def _fits_without_intervals(self, columns: list[int], width: int | None) -> bool:
        """Whether unbroken numbers leave room for the texts, two characters between columns."""
        if width is None:
            return True
        needed = 0
        for position in columns:
            is_text = self.headings[position] in self.text_columns
            bare_width = self._column_width(position, IntervalLayout.BARE)
            needed += 2 + (MIN_TEXT_WIDTH if is_text else bare_width)
        return needed <= width

    def _column_width(self, position: int, layout: IntervalLayout) -> int:
        # a column is at least as wide as its heading, which is not wrapped
        widest = len(self.headings[position])
        for number in range(len(self.rows)):
            value, rest, _ = self.split_cell(number, position)
            lines = (value + _break_lines(rest, layout)).split("\n")
            widest = max(widest, *map(len, lines))
        return widest


def find_plain_width() -> int:
    """Return the columns that plain text should fit: the variable COLUMNS, or 100."""
    columns = os.environ.get("COLUMNS", "")
    is_number = columns.isascii() and columns.isdigit() and int(columns) > 0
    return int(columns) if is_number else PLAIN_WIDTH


def _list_leads(parts: list[TextTable]) -> list[str]:
    """Return a line above each part: what its rows share and the other parts do not.

    Parts that this does not distinguish are numbered. A single part has no lead.
    """
    if len(parts) == 1:
        return [""]
    first_rows = [dict(zip(part.headings, part.rows[0], strict=True)) for part in parts]
    shared = [{part.headings[position] for position in part.split_columns()[1]} for part in parts]
    distinguishing = [
        name
        for name in parts[0].headings
        if all(name in names for names in shared) and len({row[name] for row in first_rows}) > 1
    ]
    leads = [" · ".join(f"{name} {row[name]}" for name in distinguishing) for row in first_rows]
    if len(set(leads)) < len(leads):
        numbers = [f"part {number} of {len(parts)}" for number in range(1, len(parts) + 1)]
        leads = [
            f"{lead} · {number}" if lead else number
            for lead, number in zip(leads, numbers, strict=True)
        ]
    return [markdown_paragraph(lead) for lead in leads]


def _break_lines(text: str, layout: IntervalLayout) -> str:
    """Break a cell's text where the layout does; remarks after `;` always get a line."""
    lines = text.replace("; ", "\n")
    if layout is IntervalLayout.BELOW:
        return lines.replace(" [", "\n[")
    if layout in (IntervalLayout.BARE, IntervalLayout.STACKED):
        lines = INTERVAL.sub(r"\n\1…\2", lines)
    if layout is IntervalLayout.STACKED:
        lines = lines.replace("…", "…\n").replace(" ± ", "\n± ")
        # the only word that is wider than a stacked column
        lines = lines.replace("distinguishable", "distin-\nguishable")
    return lines


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
        # in a notebook, rich would display the tables instead of writing them
        force_jupyter=False,
        color_system=None,
    )
    for table in tables:
        console.print(table)
    return stream.getvalue()

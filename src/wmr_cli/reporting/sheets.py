"""A table of texts, laid out for a terminal of any width or as markdown."""

from dataclasses import dataclass

from rich import box
from rich.markup import escape
from rich.table import Table


@dataclass(frozen=True)
class Sheet:
    """Rows of texts below their headings. Some columns are `facts` that all rows may share, some `shares` with intervals.

    A share reads `57.2 [53.1, 61.1]` or `57.2 [53.1, 61.1]; 57.0 ± 0.3`.
    """

    headings: tuple[str, ...]
    rows: list[tuple[str, ...]]
    caption: str
    title: str = ""
    texts: tuple[str, ...] = ()
    facts: tuple[str, ...] = ()
    shares: tuple[str, ...] = ()

    def table(self, width: int | None = None) -> Table:
        """For the terminal. What comes from users is text, not markup.

        Where it would not fit, what all rows share moves into the title, and then intervals go below their values.
        """
        shown, shared = list(range(len(self.headings))), list[int]()
        if not self._fits(shown, width):
            shared = [position for position in shown if self._is_shared(position)]
            shown = [position for position in shown if position not in shared]
        breaks = "\n[" if not self._fits(shown, width) else " ["
        said = [self.title, *(f"{self.headings[position]} {self.rows[0][position]}" for position in shared)]
        made = Table(box=box.SIMPLE_HEAD, caption=self.caption, caption_justify="left", title_justify="left", pad_edge=False)
        made.title = escape(" · ".join(part for part in said if part)) or None
        for position in shown:
            is_text = self.headings[position] in self.texts
            made.add_column(self.headings[position], justify="left" if is_text else "right", overflow="fold")
        for row in self.rows:
            made.add_row(*(escape(self._cell(row, position, breaks)) for position in shown))
        return made

    def markdown(self) -> str:
        """Title, pipe table and caption."""
        lines = [self.headings, ("---",) * len(self.headings), *self.rows]
        pipes = "".join("| " + " | ".join(markdown_text(cell) for cell in line) + " |\n" for line in lines)
        return (f"{markdown_text(self.title)}\n\n" if self.title else "") + f"{pipes}\n{self.caption}\n"

    def _is_shared(self, position: int) -> bool:
        return self.headings[position] in self.facts and len({row[position] for row in self.rows}) == 1

    def _fits(self, shown: list[int], width: int | None) -> bool:
        """Whether these columns fit side by side, three characters between them."""
        cells = [[self.headings[position], *(self._cell(row, position, " [") for row in self.rows)] for position in shown]
        widest = [max(len(line) for cell in column for line in cell.split("\n")) for column in cells]
        return width is None or sum(3 + most for most in widest) <= width

    def _cell(self, row: tuple[str, ...], position: int, breaks: str) -> str:
        """A cell's text; of a share, the spread over seeds below it and the interval where `breaks` puts it."""
        is_share = self.headings[position] in self.shares
        return row[position].replace(" [", breaks).replace("; ", "\n") if is_share else row[position]


def markdown_text(text: str) -> str:
    """User text stays text: no cell may end the row, open a tag or start emphasis."""
    for char in "\\`*_[]<>|":
        text = text.replace(char, "\\" + char)
    return " ".join(text.split())

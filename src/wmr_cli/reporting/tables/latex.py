"""A table as LaTeX tables: a fragment that compiles as it is where the packages booktabs and graphicx are loaded.

No table is wider than its line: a wide one spans both columns of a two-column page, and is scaled down where that is not
enough. No table is taller than a page: a tall one goes on in further floats under the same number.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from math import ceil

from .escaping import latex_heading, latex_text
from .text_table import TextTable

PREAMBLE = "% needs \\usepackage{booktabs,graphicx}\n"
NEGATIVE = re.compile(r"(?<![\w.])-(?=\d)")
"""A hyphen that is a minus."""
BREAKS = re.compile(r"(?<=[,:=/_-])(?=[^\s,:=/_-])|(?<= )")
"""Where a long name may be broken."""
RESIZE_TO_LINE = r"\resizebox{\ifdim\width>\linewidth\linewidth\else\width\fi}{!}{%"
SYMBOL = re.compile(r"((?:A|α|ε)_(?:nat|rob|sa|tr|train|test))([.,;:]?)")
"""A word of ours that is a symbol."""
CELL_WIDTH, INTERVAL_WIDTH = 28, 20
"""Characters in one line of a cell: of a text, and of what stands behind a value."""
CHARACTERS_PER_COLUMN = 58
"""Characters of a table, two between columns, that fit into one column of a two-column page."""
LINES_PER_PAGE = 42
"""Lines of a table, its caption and its notes that fit on a page, of letter paper and 12 pt, too."""
NOTE_WIDTH, CAPTION_WIDTH = 75, 65
"""Characters in a line."""


@dataclass(frozen=True)
class TableFloat:
    """What stands in one float: rows of the table by number, and notes."""

    rows: list[int]
    notes: list[str]


def latex(table: TextTable) -> str:
    """Floating tables. What all rows share stands in the caption, intervals in small print, notes below the last rule."""
    shown, shared = (
        table.split_columns() if len(table.rows) > 1 else (list(range(len(table.headings))), [])
    )
    said = table.full_title(shared)
    # what is said begins with a word of ours
    caption = " ".join(_sentence(text) for text in (said, table.caption) if text)
    parts = _parts(table, shown, ceil(len(said + table.caption) / CAPTION_WIDTH))
    kind = "table*" if _is_wide(table, shown) else "table"
    return "\n".join(
        "\n".join(_float(table, part, shown, kind, caption if number == 0 else None)) + "\n"
        for number, part in enumerate(parts)
    )


def _float(
    table: TextTable, part: TableFloat, shown: list[int], kind: str, caption: str | None
) -> Iterator[str]:
    yield rf"\begin{{{kind}}}"
    yield r"\centering"
    yield (
        r"\addtocounter{table}{-1}\caption{Continued.}"
        if caption is None
        else rf"\caption{{{caption}}}"
    )
    yield r"\footnotesize\setlength{\tabcolsep}{4pt}"
    if part.rows:
        yield from _tabular(table, part.rows, shown)
    yield from (
        rf"\par\smallskip\parbox{{\linewidth}}{{\raggedright {_sentence(note)}}}"
        for note in part.notes
    )
    yield rf"\end{{{kind}}}"


def _tabular(table: TextTable, rows: list[int], shown: list[int]) -> Iterator[str]:
    columns = "".join(
        "l" if table.headings[position] in table.text_columns else "r" for position in shown
    )
    yield RESIZE_TO_LINE
    yield rf"\begin{{tabular}}{{@{{}}{columns}@{{}}}}"
    yield r"\toprule"
    yield " & ".join(latex_heading(table.headings[position]) for position in shown) + r" \\"
    yield r"\midrule"
    for number in rows:
        yield " & ".join(_cell(table, number, position) for position in shown) + r" \\"
        if number in table.rules_after and number != rows[-1]:
            yield r"\midrule"
    yield r"\bottomrule"
    yield r"\end{tabular}}"


def _parts(table: TextTable, shown: list[int], caption: int) -> list[TableFloat]:
    """Rows and then notes, as many on each page as fit.

    Rows between two rules stay together where a page can hold them, and so do the last ones and the notes.
    """
    parts, left = [TableFloat([], [])], LINES_PER_PAGE - caption - 3
    noted = sum(ceil(len(note) / NOTE_WIDTH) for note in table.notes)
    for block in _blocks(table, shown):
        needed = sum(_lines(table, number, shown) for number in block) + 1
        is_last = block[-1] + 1 == len(table.rows) and needed + noted <= LINES_PER_PAGE - 4
        needed += noted if is_last else 0
        if needed > left and parts[-1].rows:
            parts.append(TableFloat([], []))
            left = LINES_PER_PAGE - 4
        parts[-1].rows.extend(block)
        left -= needed - (noted if is_last else 0)
    for note in table.notes:
        needed = ceil(len(note) / NOTE_WIDTH)
        if needed > left and (parts[-1].rows or parts[-1].notes):
            parts.append(TableFloat([], []))
            left = LINES_PER_PAGE - 4
        parts[-1].notes.append(note)
        left -= needed
    return parts


def _blocks(table: TextTable, shown: list[int]) -> Iterator[list[int]]:
    block: list[int] = []
    for number in range(len(table.rows)):
        block.append(number)
        if number in table.rules_after or number + 1 == len(table.rows):
            is_short = sum(_lines(table, row, shown) for row in block) <= LINES_PER_PAGE // 2
            yield from [block] if is_short else ([row] for row in block)
            block = []


def _lines(table: TextTable, number: int, shown: list[int]) -> int:
    return max(len(_cell_lines(table, number, position)) for position in shown)


def _is_wide(table: TextTable, shown: list[int]) -> bool:
    def widest(position: int) -> int:
        lines = (
            line
            for number in range(len(table.rows))
            for line in _cell_lines(table, number, position)
        )
        return max(len(table.headings[position]), *map(len, lines), 0)

    return sum(2 + widest(position) for position in shown) > CHARACTERS_PER_COLUMN


def _cell_lines(table: TextTable, number: int, position: int) -> list[str]:
    """The lines of a cell: a value and what stands behind it, or a long text in pieces."""
    value, rest, _ = table.split_cell(number, position)
    if table.headings[position] in table.interval_columns:
        return [
            value,
            *(
                line
                for part in rest.strip("; ").split("; ")
                if part
                for line in _fold(part, INTERVAL_WIDTH)
            ),
        ]
    return _fold(value, CELL_WIDTH) if table.headings[position] in table.text_columns else [value]


def _fold(text: str, longest: int) -> list[str]:
    lines = [""]
    for piece in _pieces(text) if len(text) > longest else [text]:
        if lines[-1] and len(lines[-1] + piece.rstrip()) > longest:
            lines.append("")
        lines[-1] += piece
    return [line.strip() for line in lines]


def _pieces(text: str) -> Iterable[str]:
    """Where a text may be broken; a piece that is too long even so is broken anywhere."""
    for piece in BREAKS.split(text):
        yield from (
            piece[first : first + CELL_WIDTH] for first in range(0, max(len(piece), 1), CELL_WIDTH)
        )


def _cell(table: TextTable, number: int, position: int) -> str:
    """A value in one line, what stands behind it in small print below; a long text in several lines."""
    first, *others = _cell_lines(table, number, position)
    _, _, is_strong = table.split_cell(number, position)
    is_share, side = (
        table.headings[position] in table.interval_columns,
        "l" if table.headings[position] in table.text_columns else "r",
    )
    if is_share:
        first, *others = (NEGATIVE.sub("−", text) for text in (first, *others))
    shown = rf"\textbf{{{latex_text(first)}}}" if is_strong else latex_text(first)
    below = [
        rf"\scriptsize {latex_text(text)}" if is_share else latex_text(text) for text in others
    ]
    stacked = r" \\ ".join([shown, *below])
    return rf"\begin{{tabular}}[t]{{@{{}}{side}@{{}}}}{stacked}\end{{tabular}}" if below else shown


def _sentence(text: str) -> str:
    """With a capital and a full stop; long words may be broken."""
    begun = text[:1].upper() + text[1:] if text[:1].isascii() else text
    return " ".join(map(_word, (begun + ("" if begun.endswith(".") else ".")).split(" ")))


def _word(text: str) -> str:
    symbol = SYMBOL.fullmatch(text)
    if symbol is not None:
        return latex_heading(symbol[1]) + symbol[2]
    return (
        latex_text(text)
        if len(text) <= CELL_WIDTH
        else r"\allowbreak{}".join(map(latex_text, _pieces(text)))
    )

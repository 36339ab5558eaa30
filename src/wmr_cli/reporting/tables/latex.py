"""Tables as LaTeX floats, for a document that loads booktabs and graphicx.

A wide table spans both columns of a two-column page, and is scaled down if that is not enough. A
tall table continues in further floats under the same number.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from math import ceil

from .escaping import latex_heading, latex_text
from .text_table import TextTable

PREAMBLE = "% needs \\usepackage{booktabs,graphicx}\n"
RESIZE_TO_LINE = r"\resizebox{\ifdim\width>\linewidth\linewidth\else\width\fi}{!}{%"
# a hyphen that is a minus sign
MINUS = re.compile(r"(?<![\w.])-(?=\d)")

# where a long name may be broken
LINE_BREAK = re.compile(r"(?<=[,:=/_-])(?=[^\s,:=/_-])|(?<= )")

# a word that is set as a symbol, with the punctuation after it
SYMBOL = re.compile(r"((?:A|α|ε)_(?:nat|rob|sa|cal|tr|train|test))([.,;:]?)")

# characters in a line of a text cell
TEXT_WIDTH = 28

# characters in a line of small print below a value
REMARK_WIDTH = 20

# characters of a table, two between columns, that fit one column of a two-column page
COLUMN_WIDTH = 58

NOTE_WIDTH = 75
CAPTION_WIDTH = 65
# lines of a table with caption and notes that fit on a page, even in 12 pt on letter paper
PAGE_LINES = 42

# lines that rules and headings take
FRAME_LINES = 3


@dataclass(frozen=True)
class TableFloat:
    """The contents of one float: numbers of table rows, and notes."""

    rows: list[int] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def render_latex(table: TextTable) -> str:
    """Render a table; columns that are equal in all rows move to the caption."""
    columns = list(range(len(table.headings)))
    shared: list[int] = []
    # with a single row every column would be shared
    if len(table.rows) > 1:
        columns, shared = table.split_columns()
    title = table.full_title(shared)
    caption = " ".join(_format_sentence(text) for text in (title, table.caption) if text)
    caption_lines = ceil(len(title + table.caption) / CAPTION_WIDTH)
    environment = "table*" if _is_wide(table, columns) else "table"
    floats = []
    for number, part in enumerate(_split_into_floats(table, columns, caption_lines)):
        lines = _render_float(table, part, columns, environment, caption if number == 0 else None)
        floats.append("\n".join(lines) + "\n")
    return "\n".join(floats)


def _render_float(
    table: TextTable, part: TableFloat, columns: list[int], environment: str, caption: str | None
) -> Iterator[str]:
    """Yield the lines of a float; without a caption it continues the one before."""
    yield rf"\begin{{{environment}}}"
    yield r"\centering"
    if caption is None:
        # `longtable` would not work in two columns
        yield r"\addtocounter{table}{-1}\caption{Continued.}"
    else:
        yield rf"\caption{{{caption}}}"
    yield r"\footnotesize\setlength{\tabcolsep}{4pt}"
    if part.rows:
        yield from _render_tabular(table, part.rows, columns)
    for note in part.notes:
        yield rf"\par\smallskip\parbox{{\linewidth}}{{\raggedright {_format_sentence(note)}}}"
    yield rf"\end{{{environment}}}"


def _render_tabular(table: TextTable, rows: list[int], columns: list[int]) -> Iterator[str]:
    alignment = "".join(_alignment(table, position) for position in columns)
    yield RESIZE_TO_LINE
    yield rf"\begin{{tabular}}{{@{{}}{alignment}@{{}}}}"
    yield r"\toprule"
    yield " & ".join(latex_heading(table.headings[position]) for position in columns) + r" \\"
    yield r"\midrule"
    for number in rows:
        yield " & ".join(_render_cell(table, number, position) for position in columns) + r" \\"
        if number in table.rules_after and number != rows[-1]:
            yield r"\midrule"
    yield r"\bottomrule"
    yield r"\end{tabular}}"


def _alignment(table: TextTable, position: int) -> str:
    return "l" if table.headings[position] in table.text_columns else "r"


def _split_into_floats(
    table: TextTable, columns: list[int], caption_lines: int
) -> list[TableFloat]:
    """Distribute rows and then notes over pages.

    Rows between two rules stay together if a page can hold them, and so do the last rows and all
    notes.
    """
    floats = [TableFloat()]
    lines_left = PAGE_LINES - caption_lines - FRAME_LINES
    lines_of_empty_page = PAGE_LINES - 1 - FRAME_LINES  # its caption is "Continued."
    note_lines = sum(_count_note_lines(note) for note in table.notes)
    for block in _list_blocks(table, columns):
        block_lines = 1 + sum(_count_row_lines(table, number, columns) for number in block)
        needed = block_lines
        is_last = block[-1] + 1 == len(table.rows)
        if is_last and block_lines + note_lines <= lines_of_empty_page:
            needed += note_lines
        if needed > lines_left and floats[-1].rows:
            floats.append(TableFloat())
            lines_left = lines_of_empty_page
        floats[-1].rows.extend(block)
        lines_left -= block_lines
    for note in table.notes:
        needed = _count_note_lines(note)
        if needed > lines_left and (floats[-1].rows or floats[-1].notes):
            floats.append(TableFloat())
            lines_left = lines_of_empty_page
        floats[-1].notes.append(note)
        lines_left -= needed
    return floats


def _count_note_lines(note: str) -> int:
    return ceil(len(note) / NOTE_WIDTH)


def _list_blocks(table: TextTable, columns: list[int]) -> Iterator[list[int]]:
    """Yield the row numbers between two rules; single rows where these are too many."""
    block: list[int] = []
    for number in range(len(table.rows)):
        block.append(number)
        if number in table.rules_after or number + 1 == len(table.rows):
            lines = sum(_count_row_lines(table, row, columns) for row in block)
            # a larger block would leave half a page empty before it
            if lines <= PAGE_LINES // 2:
                yield block
            else:
                yield from ([row] for row in block)
            block = []


def _count_row_lines(table: TextTable, number: int, columns: list[int]) -> int:
    return max(len(_cell_lines(table, number, position)) for position in columns)


def _is_wide(table: TextTable, columns: list[int]) -> bool:
    """Whether the table needs both columns of a two-column page."""
    width = 0
    for position in columns:
        lines = [
            line
            for number in range(len(table.rows))
            for line in _cell_lines(table, number, position)
        ]
        width += 2 + max(map(len, [table.headings[position], *lines]))
    return width > COLUMN_WIDTH


def _cell_lines(table: TextTable, number: int, position: int) -> list[str]:
    """Return a value with its interval and remarks below it, or a folded text."""
    value, rest, _ = table.split_cell(number, position)
    heading = table.headings[position]
    if heading in table.interval_columns:
        remarks = [part for part in rest.strip("; ").split("; ") if part]
        return [value, *(line for part in remarks for line in _fold(part, REMARK_WIDTH))]
    if heading in table.text_columns:
        return _fold(value, TEXT_WIDTH)
    return [value]


def _fold(text: str, width: int) -> list[str]:
    """Break text into lines of at most this many characters."""
    if len(text) <= width:
        return [text.strip()]
    lines = [""]
    for piece in _split_at_breaks(text):
        if lines[-1] and len(lines[-1] + piece.rstrip()) > width:
            lines.append("")
        lines[-1] += piece
    return [line.strip() for line in lines]


def _split_at_breaks(text: str) -> Iterator[str]:
    """Split text where it may be broken; a piece that is still too long is cut anywhere."""
    for piece in LINE_BREAK.split(text):
        for start in range(0, max(len(piece), 1), TEXT_WIDTH):
            yield piece[start : start + TEXT_WIDTH]


def _render_cell(table: TextTable, number: int, position: int) -> str:
    """Render a cell; several lines become a table of their own, remarks in small print."""
    first, *others = _cell_lines(table, number, position)
    _, _, is_bold = table.split_cell(number, position)
    if table.headings[position] in table.interval_columns:
        first = MINUS.sub("−", first)
        below = [rf"\scriptsize {latex_text(MINUS.sub('−', text))}" for text in others]
    else:
        below = [latex_text(text) for text in others]
    value = rf"\textbf{{{latex_text(first)}}}" if is_bold else latex_text(first)
    if not below:
        return value
    stacked = r" \\ ".join([value, *below])
    side = _alignment(table, position)
    return rf"\begin{{tabular}}[t]{{@{{}}{side}@{{}}}}{stacked}\end{{tabular}}"


def _format_sentence(text: str) -> str:
    """Add a capital and a full stop, and escape; long words may be broken."""
    # a Greek symbol keeps its case
    sentence = text[:1].upper() + text[1:] if text[:1].isascii() else text
    if not sentence.endswith("."):
        sentence += "."
    return " ".join(_format_word(word) for word in sentence.split(" "))


def _format_word(text: str) -> str:
    symbol = SYMBOL.fullmatch(text)
    if symbol is not None:
        return latex_heading(symbol[1]) + symbol[2]
    if len(text) <= TEXT_WIDTH:
        return latex_text(text)
    return r"\allowbreak{}".join(map(latex_text, _split_at_breaks(text)))

"""Escape user text for terminals, Markdown, LaTeX and CSV."""

import csv
import io
import re
import unicodedata
from collections.abc import Iterable, Sequence

# Every dialect accepts the first group behind a backslash. Python-Markdown would show the backslash
# before the second group, which is written by number.
MARKDOWN = {
    **{char: f"\\{char}" for char in "\\*_[]{"},
    **{char: f"&#{ord(char)};" for char in "`|~$"},
    "<": "&lt;",
    ">": "&gt;",
    "&": "&amp;",
}
# brackets and stars are wrapped: after `\\` LaTeX would read them as its arguments
LATEX = {
    "\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}",
    "<": r"\textless{}", ">": r"\textgreater{}", "|": r"\textbar{}",
    '"': r"\texttt{\char34}", "`": r"\`{}", "[": "{[}", "]": "{]}", "*": "{*}",
    **{char: f"\\{char}" for char in "_%&#${}"},
    "α": r"$\alpha$", "β": r"$\beta$", "ε": r"$\varepsilon$", "λ": r"$\lambda$", "ρ": r"$\rho$",
    "χ": r"$\chi$", "²": "$^2$", "±": r"$\pm$", "×": r"$\times$", "·": r"$\cdot$",
    "≥": r"$\geq$", "≤": r"$\leq$", "−": "$-$", "–": r"\textendash{}", "…": r"\ldots{}",
    "†": r"\dag{}", "‡": r"\ddag{}", "§": r"\S{}", "¶": r"\P{}", "Δ": r"$\Delta$",
}  # fmt: skip
# the only accent on Latin letters that the standard fonts of LaTeX (OT1) do not have
OGONEK = "\u0328"
# Spreadsheets skip spaces and quotes before a formula, and some read `;` as the end of a cell.
# The last four characters are full-width forms of the first four.
_FORMULA = re.compile(r"(^|;)(?=[\s\"']*[=+\-@\uff1d\uff0b\uff0d\uff20])")
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")
SYMBOL = re.compile(r"(?P<symbol>A|α|ε|ρ)(?:_(?P<index>[a-z]+))?")


def printable(text: str) -> str:
    """Escape control characters, so that the text is one line: a newline becomes `\\n`."""
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape").decode("ascii")
        for char in text
    )


def markdown_text(text: str) -> str:
    """Escape a cell, so that it cannot end the row, open a tag or start emphasis."""
    shown = "".join(MARKDOWN.get(char, char) for char in printable(text))
    return " ".join(shown.split())


def markdown_paragraph(text: str) -> str:
    """Escape a line, so that its first character does not start a heading, a list or a rule."""
    numbered = re.sub(r"^(\d{1,9})(?=[.)])", r"\1\\", markdown_text(text))
    return re.sub(r"^[-#+=!?:]", lambda first: f"&#{ord(first[0])};", numbered)


def latex_text(text: str) -> str:
    """Escape text for any LaTeX. Letters without a glyph become their code: `[U+540D]`."""
    escaped = "".join(_latex_char(char) for char in unicodedata.normalize("NFC", printable(text)))
    return re.sub("-(?=-)", "-{}", escaped)  # two hyphens would become a dash


def latex_heading(text: str) -> str:
    """Write a heading of ours: `A_nat` and `α_train` are symbols, other words are text."""
    symbol = SYMBOL.fullmatch(text)
    if symbol is None:
        return latex_text(text)
    index = f"_{{\\mathrm{{{symbol['index']}}}}}" if symbol["index"] else ""
    return f"${LATEX.get(symbol['symbol'], symbol['symbol']).strip('$')}{index}$"


def _latex_char(char: str) -> str:
    if char in LATEX:
        return LATEX[char]
    parts = unicodedata.normalize("NFD", char)
    is_accented = len(parts) == 2 and parts[1] != OGONEK and ord(char) < 0x180
    if char.isascii() or is_accented or char in "ßæøÆØłŁœŒı":
        return char
    return f"{{[}}U+{ord(char):04X}{{]}}"


def csv_text(headings: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return rows as CSV below one line of headings: numbers in full, None as an empty cell."""
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(map(_csv_cell, headings))
    writer.writerows(map(_csv_cell, row) for row in rows)
    return stream.getvalue()


def inert_text(text: str) -> str:
    """Return text that no spreadsheet runs as a formula; a number is returned unchanged.

    Names and paths in a record may come from anyone, and a spreadsheet runs a cell that begins
    with `=`, `+`, `-` or `@`. An apostrophe in front prevents it, and is not shown.
    """
    if _NUMBER.fullmatch(text):
        return text
    # a leading tab or carriage return also starts a formula in some spreadsheets; its escape
    # does not
    return _FORMULA.sub(r"\1'", printable(text))


def _csv_cell(value: object) -> object:
    if value is None:
        return ""
    return value if isinstance(value, int | float) else inert_text(str(value))

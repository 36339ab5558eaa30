"""Text that users gave, as text: in a terminal, in Markdown and in LaTeX."""

import re
import unicodedata

MARKDOWN = {
    **{char: f"\\{char}" for char in "\\*_[]{"},
    **{char: f"&#{ord(char)};" for char in "`|~$"},
    "<": "&lt;",
    ">": "&gt;",
    "&": "&amp;",
}
"""Those that every Markdown takes behind a backslash; of the others, which Python-Markdown would show with it, the reference."""
LATEX = {
    "\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": r"\textless{}", ">": r"\textgreater{}",
    "|": r"\textbar{}", '"': r"\texttt{\char34}", "`": r"\`{}", "[": "{[}", "]": "{]}", "*": "{*}",
    **{char: f"\\{char}" for char in "_%&#${}"},
    "α": r"$\alpha$", "β": r"$\beta$", "ε": r"$\varepsilon$", "λ": r"$\lambda$", "ρ": r"$\rho$", "χ": r"$\chi$", "²": "$^2$",
    "±": r"$\pm$", "×": r"$\times$", "·": r"$\cdot$", "≥": r"$\geq$", "≤": r"$\leq$", "−": "$-$", "–": r"\textendash{}",
    "…": r"\ldots{}", "†": r"\dag{}", "‡": r"\ddag{}", "§": r"\S{}", "¶": r"\P{}", "Δ": r"$\Delta$",
}  # fmt: skip
"""Brackets and stars are wrapped: after the end of a row LaTeX would read them as its own."""
OGONEK = "\u0328"
"""The one accent of these letters that the standard fonts of LaTeX (OT1) do not have."""
SYMBOL = re.compile(r"(?P<symbol>A|α|ε|ρ)(?:_(?P<index>[a-z]+))?")


def printable(text: str) -> str:
    """One line without control characters: a newline is written `\\n`."""
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode("ascii") for char in text)


def markdown_text(text: str) -> str:
    """User text stays text: no cell may end the row, open a tag or start emphasis."""
    shown = "".join(MARKDOWN.get(char, char) for char in printable(text))
    return " ".join(shown.split())


def markdown_paragraph(text: str) -> str:
    """The same for a line by itself, which no first character may turn into a heading, a list or a rule."""
    numbered = re.sub(r"^(\d{1,9})(?=[.)])", r"\1\\", markdown_text(text))
    return re.sub(r"^[-#+=!?:]", lambda first: f"&#{ord(first[0])};", numbered)


def latex_text(text: str) -> str:
    """Text that any LaTeX can set. A letter that plain LaTeX has no glyph for is named by its code: `[U+540D]`."""
    made = "".join(_latex_char(char) for char in unicodedata.normalize("NFC", printable(text)))
    return re.sub("-(?=-)", "-{}", made)  # two hyphens would become a dash


def latex_heading(text: str) -> str:
    """Our own headings: `A_nat` and `α_train` are symbols, the rest is text."""
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
    return char if char.isascii() or is_accented or char in "ßæøÆØłŁœŒı" else f"{{[}}U+{ord(char):04X}{{]}}"

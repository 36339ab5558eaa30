"""A sheet as a LaTeX table: a fragment that compiles as it is where the booktabs package is loaded."""

import re

from .markup import latex_heading, latex_text
from .sheets import Sheet

NEGATIVE = re.compile(r"(?<![\w.])-(?=\d)")
"""A hyphen that is a minus."""


def latex(sheet: Sheet) -> str:
    """A floating table. What all rows share stands in the caption, intervals in small print, notes below the rules."""
    shown, shared = sheet.unshared() if len(sheet.rows) > 1 else (list(range(len(sheet.headings))), [])
    columns = "".join("l" if sheet.headings[position] in sheet.texts else "r" for position in shown)
    said = latex_text(sheet.said(shared))
    lines = [
        r"\begin{table}",
        r"\centering",
        rf"\caption{{{f'{said}. ' if said else ''}{_sentence(sheet.caption)}}}",
        r"\footnotesize\setlength{\tabcolsep}{4pt}",
        rf"\begin{{tabular}}{{@{{}}{columns}@{{}}}}",
        r"\toprule",
        " & ".join(latex_heading(sheet.headings[position]) for position in shown) + r" \\",
        r"\midrule",
    ]
    for number in range(len(sheet.rows)):
        lines.append(" & ".join(_cell(sheet, number, position) for position in shown) + r" \\")
        if number in sheet.ends and number + 1 < len(sheet.rows):
            lines.append(r"\midrule")
    lines += [r"\bottomrule", r"\end{tabular}"]
    lines += [rf"\par\smallskip\parbox{{\linewidth}}{{\raggedright {_sentence(note)}}}" for note in sheet.notes]
    return "\n".join([*lines, r"\end{table}"]) + "\n"


def _cell(sheet: Sheet, number: int, position: int) -> str:
    """A value in one line, what stands behind it in small print below."""
    value, rest, is_strong = sheet.halves(number, position)
    if sheet.headings[position] in sheet.shares:
        value, rest = (NEGATIVE.sub("−", text) for text in (value, rest))
    shown = rf"\textbf{{{latex_text(value)}}}" if is_strong else latex_text(value)
    below = [rf"\scriptsize {latex_text(part)}" for part in rest.strip("; ").split("; ") if part]
    stacked = r" \\ ".join([shown, *below])
    return rf"\begin{{tabular}}[t]{{@{{}}r@{{}}}}{stacked}\end{{tabular}}" if below else shown


def _sentence(text: str) -> str:
    return latex_text(text[:1].upper() + text[1:] + ("" if text.endswith(".") else "."))

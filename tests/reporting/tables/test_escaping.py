"""User text is shown as text in every format."""

import csv
import io
import re
import shutil
import subprocess
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from markdown_it import MarkdownIt
from rich.console import Console

from support import synthetic
from support.typed import instance_of, not_none
from wmr_cli.reporting.grouping import group_by_setting
from wmr_cli.reporting.report import Report, build_report, gather_records
from wmr_cli.reporting.tables import main
from wmr_cli.reporting.tables.escaping import (
    csv_text,
    latex_heading,
    latex_text,
    markdown_text,
    printable,
)
from wmr_cli.reporting.tables.latex import render_latex
from wmr_cli.reporting.tables.text_table import TextTable

HOSTILE = [
    "<script>alert(1)</script>",
    "\"quoted\" 'too'",
    "[bold]x[/bold]",
    "[/x]",
    "two\nlines",
    "_ % & # $ { } ~ ^ \\",
    "*starred*",
    "[2pt]",
    "**a** `b` | c",
    "&lt;",
    "a--b---c",
    "x^2_3",
    "\x1b[31mred",
    "tab\there",
    "名前",
    "grün ß",
    "<<>>",
    "~~no~~ $y$",
]


def table_of(text: str) -> TextTable:
    return TextTable(
        headings=("run", "α_test", "A_nat"),
        rows=[(text, "1", "57.2 [53.1, 61.1]"), (text, "2", "50.0 ± 0.4 [47.0, 53.0]; 49.9 ± 0.3")],
        caption="percent, with 95 % intervals",
        title=f"about {text}",
        text_columns=("run",),
        interval_columns=("A_nat",),
        bold=frozenset({(0, "A_nat")}),
        rules_after=frozenset({0, 1}),
        notes=(f"† {text}",),
    )


@pytest.mark.parametrize("text", HOSTILE)
def test_terminal_shows_the_text(text: str) -> None:
    console = Console(width=500, record=True, force_terminal=True)
    with console.capture() as captured:
        console.print(table_of(text).to_rich_table(500))
    shown = re.sub(r"\x1b\[[\d;]*m", "", captured.get())
    assert shown.count(printable(text)) == 4
    assert "\x1b[1m57.2" in captured.get()
    assert "\x1b[31m" not in captured.get()


@pytest.mark.parametrize("text", HOSTILE)
def test_markdown_renders_the_text(text: str) -> None:
    tokens = (
        MarkdownIt("commonmark")
        .enable(["table", "strikethrough"])
        .parse(table_of(text).to_markdown())
    )
    cells = [token.children or [] for token in tokens if token.type == "inline"]
    plain = ["".join(child.content for child in children) for children in cells]
    assert plain[0] == f"about {' '.join(printable(text).split())}"
    assert plain[4:7] == [" ".join(printable(text).split()), "1", "57.2 [53.1, 61.1]"]
    kinds = {child.type for children in cells for child in children}
    assert kinds == {"text", "strong_open", "strong_close", "text_special"} - (
        {"text_special"} - kinds
    )
    assert len([token for token in tokens if token.type == "tr_open"]) == 3


class Rendered(HTMLParser):
    """The paragraphs and cells of some HTML as texts, and all of its tags."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.texts: list[Any] = []
        self.tags: list[Any] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[Any]) -> None:
        self.tags.append(tag)
        if tag in ("p", "th", "td"):
            self.texts.append("")

    def handle_data(self, data: str) -> None:
        if self.texts and data.strip():
            self.texts[-1] += data


EXTENSIONS = ["tables", "attr_list", "admonition", "def_list", "md_in_html"]


@pytest.mark.parametrize(
    "text",
    [
        *HOSTILE,
        "{: .x }",
        "!!! note",
        ": term",
        "=== tab",
        "??? more",
        "1. one",
        "- a",
        "`a` | `b`",
    ],
)
def test_mkdocs_renders_the_text(text: str) -> None:
    markdown = pytest.importorskip("markdown", reason="mkdocs brings it: pip install -e '.[docs]'")
    one = replace(table_of(text), title=text, notes=(text,))
    rendered = Rendered(markdown.markdown(one.to_markdown(), extensions=EXTENSIONS))
    plain = " ".join(printable(text).split())
    assert rendered.texts[0] == rendered.texts[-1] == plain
    assert rendered.texts[4:7] == [plain, "1", "57.2 [53.1, 61.1]"]
    assert set(rendered.tags) == {"p", "table", "thead", "tbody", "tr", "th", "td", "strong"}
    assert rendered.tags.count("tr") == 3


def test_mkdocs_renders_split_tables() -> None:
    markdown = pytest.importorskip("markdown", reason="mkdocs brings it: pip install -e '.[docs]'")
    records = [
        synthetic.make_record(synthetic.make_rows(60), "a|b `c`", eps=eps)
        for eps in (0.1, 0.15, 0.2)
    ]
    rendered = Rendered(
        markdown.markdown(
            main.make_ranked_table(group_by_setting(records), {}).to_markdown(),
            extensions=["tables"],
        )
    )
    assert rendered.tags.count("table") == 3
    assert rendered.tags.count("tr") == 3 * 3
    assert [text for text in rendered.texts if text.startswith("ε ")] == [
        "ε 0.1",
        "ε 0.15",
        "ε 0.2",
    ]


def is_balanced(text: str) -> bool:
    depth = 0
    for brace in re.findall(r"(?<!\\)(?:\\\\)*([{}])", text):
        depth += 1 if brace == "{" else -1
        assert depth >= 0
    return depth == 0


@pytest.mark.parametrize("text", HOSTILE)
def test_latex_escapes_special_characters(text: str) -> None:
    written = latex_text(text)
    assert is_balanced(written)
    plain = re.sub(r"\\(?:[_%&#${}]|`\{\}|[A-Za-z]+(?:\{\})?)|\$\^2\$|\\char34", "", written)
    assert not re.search(r"[%&#$~^_\\\n]", plain)
    assert not re.search(r"(?<!\{)[\[\]*]", plain)
    assert not re.search(r"--", plain)


@pytest.mark.parametrize("text", HOSTILE)
def test_latex_environments_are_balanced(text: str) -> None:
    fragment = render_latex(table_of(text))
    begun, ended = (re.findall(rf"\\{word}{{(\w+)}}", fragment) for word in ("begin", "end"))
    assert sorted(begun) == sorted(ended)
    assert is_balanced(fragment)
    body = fragment.partition(r"\midrule")[2].partition(r"\bottomrule")[0]
    rows = [line for line in body.splitlines() if line.endswith(r"\\")]
    assert [len(re.findall(r"(?<!\\)&", row)) for row in rows] == [2, 2]
    assert r"\textbf{57.2}" in rows[0]
    assert body.count(r"\midrule") == 1


needs_latex = pytest.mark.skipif(
    shutil.which("pdflatex") is None, reason="pdflatex is not installed"
)


def compile_latex(
    folder: Path, body: str, options: str = "", preamble: str = "\\usepackage{booktabs,graphicx}"
) -> str:
    """Return the log of LaTeX, which had no error."""
    document = (
        f"\\documentclass[{options}]{{article}}{preamble}\\begin{{document}}\n"
        f"{body}\\clearpage\\end{{document}}\n"
    )
    (folder / "x.tex").write_text(document, encoding="utf-8")
    command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "x.tex"]
    done = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, check=False, encoding="latin-1"
    )
    assert done.returncode == 0, done.stdout[-2000:]
    return (folder / "x.log").read_text(encoding="latin-1")


@needs_latex
def test_latex_compiles(tmp_path: Path) -> None:
    fragments = "\n".join(render_latex(table_of(text)) for text in HOSTILE)
    compile_latex(tmp_path, fragments)


@needs_latex
def test_latin_letters_compile(tmp_path: Path) -> None:
    letters = "".join(map(chr, range(0xA0, 0x180)))
    log = compile_latex(tmp_path, "\n\n".join(map(latex_text, letters)), preamble="")
    assert "Missing character" not in log
    assert latex_text("ąé e\u0301 Łódź") == "{[}U+0105{]}é é Łódź"


def tall_and_wide() -> list[TextTable]:
    """Return tables of many rows, of few rows with long texts, and of many notes."""
    facts = [
        ("digits-trades-a2-s0-a-rather-long-name-of-a-run", "trades:beta=6,terms=both"),
        ("x" * 70, "combined:lam=1"),
    ]
    attacks = [
        f"authors-eval:steps={number + 1},step=0.00{number + 1},loss=margin" for number in range(30)
    ]
    records = [
        synthetic.make_record(
            synthetic.make_rows(60, skill=0.01 * number, seed=number),
            f"{name}-{number}",
            defense=defense,
            kernel="exp-logit",
            alpha_train=0.25 * number,
            eps=0.05 * (1 + number % 3),
            attack=attack,
        )
        for number, attack in enumerate(attacks)
        for name, defense in facts
    ]
    notes = tuple(
        f"settings of {'run-' * 12}{number}: {'many words of it, ' * 8}" for number in range(60)
    )
    checks = TextTable(
        ("check", "the number is"),
        [("margin", "the fraction of images of which " * 6)] * 3,
        "a check fails",
        text_columns=("check", "the number is"),
    )
    one = main.make_ranked_table(group_by_setting(records), {})
    return [
        one,
        replace(one, rules_after=frozenset(), notes=notes),
        replace(main.make_table(records[:1]), notes=notes[:1]),
        checks,
    ]


@needs_latex
@pytest.mark.parametrize("options", ["", "a4paper,12pt", "twocolumn"])
def test_tables_fit_the_page(tmp_path: Path, options: str) -> None:
    log = compile_latex(tmp_path, "\n".join(map(render_latex, tall_and_wide())), options)
    assert "Float too large" not in log
    assert "Too many unprocessed" not in log
    too_wide = [
        float(points) for points in re.findall(r"Overfull \\hbox \(([\d.]+)pt too wide", log)
    ]
    assert max(too_wide, default=0) < 5, too_wide


def test_tall_table_continues_under_its_number() -> None:
    fragment = render_latex(tall_and_wide()[0])
    floats = fragment.split(r"\begin{table*}")[1:]
    assert len(floats) > 3
    assert [r"\addtocounter{table}{-1}\caption{Continued.}" in part for part in floats] == [
        False
    ] + [True] * (len(floats) - 1)
    assert [part.count(r"A_{\mathrm{nat}}") for part in floats] == [1] * len(floats)
    assert fragment.count("authors-eval:") == 120  # a line each


def test_notes_are_below_the_last_rows() -> None:
    # each row takes two lines
    rows: list[tuple[str, ...]] = [(f"run {number}", "57.2 [53.1, 61.1]") for number in range(19)]
    table = TextTable(
        ("run", "A_nat"),
        rows,
        "percent",
        text_columns=("run",),
        interval_columns=("A_nat",),
        notes=("one", "two"),
    )
    last = render_latex(table).split(r"\begin{table}")[-1]
    assert "run 18" in last
    assert "One." in last


def test_captions_start_with_a_capital() -> None:
    fragment = render_latex(
        TextTable(
            ("run",),
            [("mnist-05",)],
            "percent",
            "beside mnist-05",
            text_columns=("run",),
            notes=("α of it", "so A_sa, it is"),
        )
    )
    assert r"\caption{Beside mnist-05. Percent.}" in fragment
    assert r"\raggedright $\alpha$ of it." in fragment
    assert r"\raggedright So $A_{\mathrm{sa}}$, it is." in fragment


@pytest.mark.parametrize(
    "text",
    [
        "# head",
        "- item",
        "+ item",
        "1. first",
        "12) twelfth",
        "---",
        "===",
        "> said",
        "    code",
        "***",
    ],
)
def test_markdown_note_is_a_paragraph(text: str) -> None:
    one = TextTable(("run",), [("x",)], "percent", title=text, text_columns=("run",), notes=(text,))
    tokens = MarkdownIt("commonmark").enable("table").parse(one.to_markdown())
    kinds = [token.type for token in tokens if token.level == 0 and token.type != "inline"]
    assert kinds == [
        "paragraph_open",
        "paragraph_close",
        "table_open",
        "table_close",
        *["paragraph_open", "paragraph_close"] * 2,
    ]
    paragraphs = [
        "".join(child.content for child in not_none(token.children))
        for token in tokens
        if token.type == "inline"
    ]
    assert paragraphs[0] == paragraphs[-1] == text.strip()


def test_latex_headings_are_symbols() -> None:
    assert latex_heading("A_nat") == r"$A_{\mathrm{nat}}$"
    assert latex_heading("α_train") == r"$\alpha_{\mathrm{train}}$"
    assert latex_heading("ε") == r"$\varepsilon$"
    assert latex_heading("run") == "run"
    assert latex_heading("1/λ") == r"1/$\lambda$"


def test_latex_has_minus_signs() -> None:
    negative = TextTable(
        ("run", "A_nat"),
        [("a-1 -2", "-0.9 [-3.0, +1.3]; seeds -4.8 to +7.0")],
        "",
        text_columns=("run",),
        interval_columns=("A_nat",),
    )
    assert (
        r"a-1 -2 & \begin{tabular}[t]{@{}r@{}}$-$0.9 \\ \scriptsize {[}$-$3.0, +1.3{]} \\ "
        r"\scriptsize seeds $-$4.8" in render_latex(negative)
    )


def test_remark_without_interval_is_below_its_value() -> None:
    equal = TextTable(("A_nat",), [("0; not distinguishable",)], "", interval_columns=("A_nat",))
    assert r"0 \\ \scriptsize not distinguishable\end" in render_latex(equal)
    assert "| 0; not distinguishable |" in equal.to_markdown()


def test_letters_without_latex_glyph_become_codes() -> None:
    assert latex_text("é 名") == "é {[}U+540D{]}"
    assert markdown_text("é 名") == "é 名"


@pytest.mark.parametrize("text", [text for text in HOSTILE if "/" not in text])
def test_run_may_have_any_name(tmp_path: Path, text: str) -> None:
    for name in (text, "other"):
        synthetic.save_run_record(tmp_path, synthetic.make_rows(60), name)
    document, problems = build_report(gather_records([tmp_path]), compare=True)
    assert not problems
    assert isinstance(document, Report)
    assert printable(text) in document.to_csv() or '"' in text
    assert {
        one["checkpoint"]["path"] for one in instance_of(dict, document.to_json())["records"]
    } == {
        f"runs/{text}/last.safetensors",
        "runs/other/last.safetensors",
    }
    for one in document.tables():
        assert markdown_text(text) in one.to_markdown()
        assert latex_text(text) in render_latex(one)
        assert is_balanced(render_latex(one))


def csv_cells(*values: object) -> list[str]:
    return list(csv.reader(io.StringIO(csv_text(["x"] * len(values), [values]))))[1]


FORMULAS = [
    "=1+1",
    "+1+1",
    "-cmd|' /C calc'!A0",
    "@SUM(A1)",
    "  =1+1",
    "'=1+1",
    '"=1+1"',
    ' "=1+1',
    "＝1+1",
    "-run",
]


@pytest.mark.parametrize("text", FORMULAS)
def test_formula_gets_an_apostrophe(text: str) -> None:
    assert csv_cells(text) == [f"'{text}"]


@pytest.mark.parametrize("text", FORMULAS)
def test_formula_in_a_heading_gets_an_apostrophe(text: str) -> None:
    assert next(csv.reader(io.StringIO(csv_text([text], [])))) == [f"'{text}"]


def test_formula_after_a_semicolon_gets_an_apostrophe() -> None:
    """Where a comma is the mark of decimals, spreadsheets cut cells at semicolons."""
    assert csv_cells("a;=1+1; b") == ["a;'=1+1; b"]


@pytest.mark.parametrize(
    ("text", "written"),
    [("\t=1", r"\t=1"), ("\r=1", r"\r=1"), ("a\x1b[31m", r"a\x1b[31m"), ("a\nb", r"a\nb")],
)
def test_control_characters_become_escapes(text: str, written: str) -> None:
    assert csv_cells(text) == [written]


@pytest.mark.parametrize(
    ("value", "written"),
    [
        (-1.5, "-1.5"),
        (3, "3"),
        (None, ""),
        (True, "True"),
        ("-1.5", "-1.5"),
        ("+2e-3", "+2e-3"),
        ("a-b", "a-b"),
    ],
)
def test_numbers_and_plain_text_are_unchanged(
    value: bool | float | str | None, written: str
) -> None:
    assert csv_cells(value) == [written]

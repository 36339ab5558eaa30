"""Tables on terminals of any width: no number is cut, and parts can be split."""

import io
import re
from dataclasses import replace

import msgspec
import pytest
from rich.console import Console
from rich.text import Text

from support import synthetic
from support.typed import instance_of
from wmr_cli.reporting.grouping import group_by_setting
from wmr_cli.reporting.rows import ACCURACIES
from wmr_cli.reporting.tables import main
from wmr_cli.reporting.tables.escaping import markdown_paragraph
from wmr_cli.reporting.tables.text_table import TextTable, render_text
from wmr_cli.storage.records import Record

SEEDS = [
    synthetic.make_record(
        synthetic.make_rows(2000, skill=0.3 * seed), f"digits-trades-a2-s{seed}", seed=seed
    )
    for seed in range(2)
]
OTHERS = [
    synthetic.make_record(
        synthetic.make_rows(2000), "digits-trades-a0-s0", eps=eps, alpha_train=0.0
    )
    for eps in (0.1, 0.15)
]


def render(table: TextTable, width: int) -> str:
    stream = io.StringIO()
    for part in table.to_rich_tables(width):
        Console(file=stream, width=width).print(part)
    return stream.getvalue()


@pytest.mark.parametrize("width", [66, 80, 100, 120, 160, 250])
@pytest.mark.parametrize("records", [SEEDS, OTHERS, SEEDS + OTHERS], ids=["seeds", "radii", "both"])
def test_numbers_are_not_cut_and_lines_fit(records: list[Record], width: int) -> None:
    table = main.make_ranked_table(group_by_setting(records), {})
    text = render(table, width)
    assert max(map(len, text.splitlines())) <= width
    cells = [
        cell
        for row in table.rows
        for name, cell in zip(table.headings, row, strict=True)
        if name in table.interval_columns
    ]
    for number in {number for cell in cells for number in re.findall(r"\d+\.\d+", cell)}:
        assert re.search(rf"(?<![\d.]){re.escape(number)}(?![\d.])", text), number


@pytest.mark.parametrize("width", [66, 80, 100, 160])
def test_verdict_is_broken_between_syllables(width: int) -> None:
    headings = tuple(ACCURACIES.values())
    rows = [
        (
            "digits-trades-a2-s0",
            "1.5",
            *["+3.4 [+1.9, +5.0]; seeds -25.0 to +35.0; not distinguishable"] * len(headings),
        )
    ]
    text = render(
        TextTable(
            ("run", "α_test", *headings), rows, "", text_columns=("run",), interval_columns=headings
        ),
        width,
    )
    verdict = ["not distinguishable"] if width > 100 else ["distin-", "guishable"]
    assert [text.count(part) for part in verdict] == [len(headings)] * len(verdict)


def test_narrow_terminal_gets_a_table_per_radius() -> None:
    table = main.make_ranked_table(group_by_setting(OTHERS), {})
    assert len(table.to_rich_tables(200)) == 1
    first, second = table.to_rich_tables(60)
    assert ("ε 0.1 " in f"{first.title} ", "ε 0.15 " in f"{second.title} ") == (True, True)
    assert first.caption is None
    assert table.notes[-1] in str(second.caption)


def tables_of(text: str) -> list[str]:
    """Return the pipe tables in Markdown, each with the paragraph before it."""
    blocks = text.split("\n\n")
    return [
        f"{before}\n{block}"
        for before, block in zip(["", *blocks], blocks, strict=False)
        if block.startswith("|")
    ]


def test_markdown_has_a_table_per_radius() -> None:
    table = main.make_ranked_table(group_by_setting([*SEEDS, *OTHERS]), {})
    first, second = tables_of(table.to_markdown())
    assert (first.splitlines()[0], second.splitlines()[0]) == ("ε 0.15", "ε 0.1")
    assert [part.count("\n| digits") for part in (first, second)] == [4, 2]
    assert table.to_markdown().endswith(
        f"{table.caption}\n\n" + "\n\n".join(map(markdown_paragraph, table.notes)) + "\n"
    )
    assert "the others differ in ε" in table.notes[-1]


def test_markdown_of_one_setting_is_one_table() -> None:
    table = main.make_ranked_table(group_by_setting(SEEDS), {})
    assert len(tables_of(table.to_markdown())) == 1
    assert table.to_markdown().startswith("| run")


def test_parts_without_distinguishing_column_are_numbered() -> None:
    data = [msgspec.structs.replace(OTHERS[0].dataset, sha256=name) for name in ("one", "other")]
    records = [msgspec.structs.replace(OTHERS[0], id=facts.sha256, dataset=facts) for facts in data]
    text = main.make_ranked_table(group_by_setting(records), {}).to_markdown()
    assert [table.splitlines()[0] for table in tables_of(text)] == ["part 1 of 2", "part 2 of 2"]
    assert "the others differ in test images" in text


def test_table_that_cannot_split_is_one_in_markdown() -> None:
    table = TextTable(("x",), [("1",), ("2",)], "", rules_after=frozenset({0, 1}))
    assert len(tables_of(table.to_markdown())) == 1


def test_bold_cells_stay_with_their_row_in_a_split_table() -> None:
    table = main.make_ranked_table(group_by_setting(OTHERS), {})
    marked = replace(table, bold=frozenset({(2, "A_rob")}))
    styles = [
        [instance_of(Text, cell).spans for cell in table.columns[-4].cells]
        for table in marked.to_rich_tables(60)
    ]
    assert [[bool(spans) for spans in table] for table in styles] == [[False, False], [True, False]]


def test_plain_text_has_a_star_for_bold() -> None:
    table = TextTable(
        ("x",), [("1.5 [1.0, 2.0]",)], "", interval_columns=("x",), bold=frozenset({(0, "x")})
    )
    assert "1.5 [1.0, 2.0]" in render(table, 40)
    stream = io.StringIO()
    Console(file=stream, width=40).print(table.to_rich_table(None))
    assert "1.5* [1.0, 2.0]" in stream.getvalue()


PLAIN_WIDTHS = [(None, False), ("100", False), ("400", True), ("0", False), ("wide", False)]


@pytest.mark.parametrize(("columns", "is_wide"), PLAIN_WIDTHS)
def test_wide_plain_text_has_shared_columns_in_the_title(
    monkeypatch: pytest.MonkeyPatch, columns: str | None, is_wide: bool
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    if columns is not None:
        monkeypatch.setenv("COLUMNS", columns)
    table = main.make_ranked_table(group_by_setting(OTHERS), {})
    text = render_text([table.to_rich_table()])
    title, headings = (
        text.splitlines()[0],
        next(line for line in text.splitlines() if "A_nat" in line),
    )
    assert ("run" in headings.split()) == is_wide
    assert ("run digits-trades-a0-s0" in title) == (not is_wide)
    # eps differs between the rows
    assert "ε" in headings.split()
    # no interval is broken
    assert all(cell in text for row in table.rows for cell in row)
    assert "| run |" in table.to_markdown()


def test_narrow_plain_text_keeps_its_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    table = TextTable(("run", "x"), [("a", "1"), ("a", "2")], "", shared_columns=("run",))
    assert render_text([table.to_rich_table()]).split()[0] == "run"

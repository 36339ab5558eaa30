"""A worst case over several attacks names them, in every format."""

import csv
import io
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from support import synthetic
from wmr_cli.config import EvaluateConfig
from wmr_cli.reporting.caveats import list_caveats
from wmr_cli.reporting.figures.data import load_figure_data
from wmr_cli.reporting.html.report import render_report
from wmr_cli.reporting.report import Report, build_report, gather_records, records_to_json
from wmr_cli.reporting.rows import list_combined_attacks, name_attacks
from wmr_cli.reporting.tables import main as tables
from wmr_cli.reporting.tables.escaping import markdown_paragraph
from wmr_cli.reporting.tables.latex import latex
from wmr_cli.storage.records import Record

PGD, SQUARE = "pgd:steps=20,step=0.015", "square:queries=50"
NOTE = f"worst of all: every image as the most harmful of these attacks left it: {PGD} + {SQUARE}"
ROWS = synthetic.rows(60)


def measured(name: str, *attacks: str, **facts: Any) -> list[Record]:
    """A record for each attack and one for their worst case."""
    parts = [synthetic.record(ROWS, name, attack=attack, **facts) for attack in attacks]
    return [*parts, synthetic.worst(name, parts, ROWS, **facts)]


@pytest.fixture
def document(tmp_path: Path) -> Report:
    """Two models under two attacks."""
    for skill, name in enumerate("ab"):
        given = synthetic.rows(skill=0.3 * skill)
        parts = [
            synthetic.record(given, name, attack=attack, training={"lr": 1 + skill})
            for attack in (SQUARE, PGD)
        ]
        for record in (*parts, synthetic.worst(name, parts, given, training={"lr": 1 + skill})):
            synthetic.stored(tmp_path / name / "evaluations", record, given)
    return build_report(gather_records([tmp_path]), compare=True)[0]


def test_a_note_below_the_table_names_them(document: Report) -> None:
    main, *_ = document.tables()
    assert main.notes[0] == NOTE
    assert main.notes.count(NOTE) == 1
    assert f"\n\n{markdown_paragraph(NOTE)}\n" in main.to_markdown()
    assert SQUARE in latex(main).partition("Worst of all: every image as")[2]
    assert NOTE in str(main.to_rich_table(None).caption)
    alone = tables.make_table(measured("a", SQUARE, PGD))
    assert alone.notes == (NOTE,)
    assert tables.make_table(measured("a", SQUARE, PGD)[:1]).notes == ()


def test_a_comparison_names_them_too(document: Report) -> None:
    noted = {
        sheet.title.partition(" under ")[2].partition(",")[0]: sheet.notes
        for sheet in document.comparison_tables()
    }
    assert noted["worst of all"] == (NOTE,)
    assert noted["square:queries=50"] == ()


def test_the_page_names_them_in_its_headings(document: Report) -> None:
    text, _ = render_report(document.found, document.comparison_tables())
    assert f"worst of {PGD} + {SQUARE}</h3>" in text
    assert NOTE in text  # below the comparison


def test_csv_and_json_name_them(document: Report) -> None:
    lines = list(csv.DictReader(io.StringIO(tables.to_csv(document.records))))
    assert {(line["attack"], line["worst_of"]) for line in lines} == {
        (PGD, ""),
        (SQUARE, ""),
        ("worst of all", f"{PGD} + {SQUARE}"),
    }
    compared = csv.DictReader(io.StringIO(document.to_csv()))
    assert {line["worst_of"] for line in compared} == {"", f"{PGD} + {SQUARE}"}
    data = json.loads(msgspec.json.encode(document.to_json()))["records"]
    assert [one.get("worst_of") for one in data if one["attack"]["spec"] == "worst"] == [
        [PGD, SQUARE]
    ] * 2
    assert all("worst_of" not in one for one in data if one["attack"]["spec"] != "worst")
    assert [one.get("worst_of") for one in records_to_json(document.found)] == [
        one.get("worst_of") for one in data
    ]


def test_figures_name_them_above_the_panel(document: Report) -> None:
    headings = {group.facts["attack"] for group in load_figure_data(document.found).groups}
    assert headings == {PGD, SQUARE, f"worst of {PGD} + {SQUARE}"}


def test_worst_cases_stand_behind_their_attacks(document: Report) -> None:
    assert [record.attack.spec for record in document.records] == [PGD, SQUARE, "worst"] * 2


def test_evaluations_of_a_run_are_in_the_order_of_their_balls(tmp_path: Path) -> None:
    radii = (0.3, 0.05, 0.2, 0.1)
    for name in "ba":
        for eps in radii:
            synthetic.saved(tmp_path, ROWS, name, eps=eps)
    found = gather_records([tmp_path / "b", tmp_path]).records
    assert [record.threat.eps for record in found] == sorted(radii) * 2
    assert [record.checkpoint.path[5] for record in found] == ["b"] * 4 + ["a"] * 4


def test_a_worst_case_says_why_it_has_none_in_a_ball() -> None:
    asked = EvaluateConfig(metrics=("nat", "rob", "dro"))
    *_, worst = measured("a", PGD, SQUARE, asked=asked, alphas=())
    assert list(list_caveats(worst)) == [
        "of several attacks the image of lowest margin is kept, which need not be that of largest loss:"
        " there is no worst case in a ball but that of --dro-loss zero-one"
    ]


def test_worst_cases_of_different_attacks_are_numbered() -> None:
    records = [
        *measured("a", PGD, SQUARE),
        *measured("b", PGD, "fgsm"),
        *measured("c", SQUARE, PGD),
    ]
    attacks = name_attacks(records)
    named = [attacks.name(record) for record in records if record.attack.of]
    assert named == ["worst of all (1)", "worst of all (2)", "worst of all (1)"]
    sheet = tables.make_table(records)
    assert sheet.notes == (
        NOTE.replace("all:", "all (1):"),
        NOTE.replace("all:", "all (2):").replace(f"{PGD} + {SQUARE}", f"fgsm + {PGD}"),
    )
    shown = {row[sheet.headings.index("attack")] for row in sheet.rows}
    assert shown == {PGD, SQUARE, "fgsm", "worst of all (1)", "worst of all (2)"}


def test_attacks_without_their_records_are_named_as_they_were_asked_for() -> None:
    asked = EvaluateConfig(attacks=("pgd", "square:queries=50"))
    *parts, worst = measured("a", PGD, SQUARE, asked=asked)
    assert list_combined_attacks(worst, {parts[1].id: parts[1]}) == ("pgd", SQUARE)
    assert list_combined_attacks(worst, {}) == ("pgd", "square:queries=50")
    unasked = msgspec.structs.replace(worst, config={"attacks": 5})
    assert list_combined_attacks(unasked, {}) == tuple(
        sorted(f"record {part.id}" for part in parts)
    )
    assert list_combined_attacks(parts[0], {}) == ()

"""A worst case over several attacks names them, in every format."""

import csv
import io
import json

import msgspec
import pytest

import made
from wmr_cli.config import EvaluateConfig
from wmr_cli.reporting import tables
from wmr_cli.reporting.attacks import attacks_among, attacks_behind
from wmr_cli.reporting.documents import Document, listed
from wmr_cli.reporting.doubts import doubts
from wmr_cli.reporting.figures.material import gathered
from wmr_cli.reporting.latex import latex
from wmr_cli.reporting.markup import markdown_paragraph
from wmr_cli.reporting.page import drawn
from wmr_cli.workflows.report import assembled, gather

PGD, SQUARE = "pgd:steps=20,step=0.015", "square:queries=50"
NOTE = f"worst of all: every image as the most harmful of these attacks left it: {PGD} + {SQUARE}"
ROWS = made.rows(60)


def measured(name, *attacks, **facts):
    """A record for each attack and one for their worst case."""
    parts = [made.record(ROWS, name, attack=attack, **facts) for attack in attacks]
    return [*parts, made.worst(name, parts, ROWS, **facts)]


@pytest.fixture
def document(tmp_path) -> Document:
    """Two models under two attacks."""
    for skill, name in enumerate("ab"):
        given = made.rows(skill=0.3 * skill)
        parts = [made.record(given, name, attack=attack, training={"lr": 1 + skill}) for attack in (SQUARE, PGD)]
        for record in (*parts, made.worst(name, parts, given, training={"lr": 1 + skill})):
            made.stored(tmp_path / name / "evaluations", record, given)
    return assembled(gather([tmp_path]), compare=True)[0]


def test_a_note_below_the_table_names_them(document):
    main, *_ = document.sheets()
    assert main.notes[0] == NOTE
    assert main.notes.count(NOTE) == 1
    assert f"\n\n{markdown_paragraph(NOTE)}\n" in main.markdown()
    assert SQUARE in latex(main).partition("Worst of all: every image as")[2]
    assert NOTE in main.table(None).caption
    alone = tables.sheet(measured("a", SQUARE, PGD))
    assert alone.notes == (NOTE,)
    assert tables.sheet(measured("a", SQUARE, PGD)[:1]).notes == ()


def test_a_comparison_names_them_too(document):
    noted = {sheet.title.partition(" under ")[2].partition(",")[0]: sheet.notes for sheet in document.beside()}
    assert noted["worst of all"] == (NOTE,)
    assert noted["square:queries=50"] == ()


def test_the_page_names_them_in_its_headings(document):
    text, _ = drawn(document.found, document.beside())
    assert f"worst of {PGD} + {SQUARE}</h3>" in text
    assert NOTE in text  # below the comparison


def test_csv_and_json_name_them(document):
    lines = list(csv.DictReader(io.StringIO(tables.comma_separated(document.records))))
    assert {(line["attack"], line["worst_of"]) for line in lines} == {
        (PGD, ""),
        (SQUARE, ""),
        ("worst of all", f"{PGD} + {SQUARE}"),
    }
    compared = csv.DictReader(io.StringIO(document.comma_separated()))
    assert {line["worst_of"] for line in compared} == {"", f"{PGD} + {SQUARE}"}
    data = json.loads(msgspec.json.encode(document.as_data()))["records"]
    assert [one.get("worst_of") for one in data if one["attack"]["spec"] == "worst"] == [[PGD, SQUARE]] * 2
    assert all("worst_of" not in one for one in data if one["attack"]["spec"] != "worst")
    assert [one.get("worst_of") for one in listed(document.found)] == [one.get("worst_of") for one in data]


def test_figures_name_them_above_the_panel(document):
    headings = {group.facts["attack"] for group in gathered(document.found).groups}
    assert headings == {PGD, SQUARE, f"worst of {PGD} + {SQUARE}"}


def test_worst_cases_stand_behind_their_attacks(document):
    assert [record.attack.spec for record in document.records] == [PGD, SQUARE, "worst"] * 2


def test_evaluations_of_a_run_are_in_the_order_of_their_balls(tmp_path):
    radii = (0.3, 0.05, 0.2, 0.1)
    for name in "ba":
        for eps in radii:
            made.saved(tmp_path, ROWS, name, eps=eps)
    found = gather([tmp_path / "b", tmp_path]).records
    assert [record.threat.eps for record in found] == sorted(radii) * 2
    assert [record.checkpoint.path[5] for record in found] == ["b"] * 4 + ["a"] * 4


def test_a_worst_case_says_why_it_has_none_in_a_ball():
    asked = EvaluateConfig(metrics=("nat", "rob", "dro"))
    *_, worst = measured("a", PGD, SQUARE, asked=asked, alphas=())
    assert list(doubts(worst)) == [
        "of several attacks the image of lowest margin is kept, which need not be that of largest loss:"
        " there is no worst case in a ball but that of --dro-loss zero-one"
    ]


def test_worst_cases_of_different_attacks_are_numbered():
    records = [*measured("a", PGD, SQUARE), *measured("b", PGD, "fgsm"), *measured("c", SQUARE, PGD)]
    attacks = attacks_among(records)
    named = [attacks.name(record) for record in records if record.attack.of]
    assert named == ["worst of all (1)", "worst of all (2)", "worst of all (1)"]
    sheet = tables.sheet(records)
    assert sheet.notes == (
        NOTE.replace("all:", "all (1):"),
        NOTE.replace("all:", "all (2):").replace(f"{PGD} + {SQUARE}", f"fgsm + {PGD}"),
    )
    shown = {row[sheet.headings.index("attack")] for row in sheet.rows}
    assert shown == {PGD, SQUARE, "fgsm", "worst of all (1)", "worst of all (2)"}


def test_attacks_without_their_records_are_named_as_they_were_asked_for():
    asked = EvaluateConfig(attacks=("pgd", "square:queries=50"))
    *parts, worst = measured("a", PGD, SQUARE, asked=asked)
    assert attacks_behind(worst, {parts[1].id: parts[1]}) == ("pgd", SQUARE)
    assert attacks_behind(worst, {}) == ("pgd", "square:queries=50")
    unasked = msgspec.structs.replace(worst, config={"attacks": 5})
    assert attacks_behind(unasked, {}) == tuple(sorted(f"record {part.id}" for part in parts))
    assert attacks_behind(parts[0], {}) == ()

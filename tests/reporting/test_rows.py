"""Names of attacks: a worst case over several attacks lists them in every format."""

import csv
import io
import json
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest

from support import synthetic
from wmr_cli.config import EvaluateConfig
from wmr_cli.reporting.figures.data import load_figure_data
from wmr_cli.reporting.html.report import render_report
from wmr_cli.reporting.report import Report, build_report, gather_records, records_to_json
from wmr_cli.reporting.rows import list_combined_attacks, name_attacks, run_name
from wmr_cli.reporting.tables import main as tables
from wmr_cli.reporting.tables.escaping import markdown_paragraph
from wmr_cli.reporting.tables.latex import render_latex
from wmr_cli.storage.records import Record

PGD = "pgd:steps=20,step=0.015"
SQUARE = "square:queries=50"
BOTH = f"{PGD} + {SQUARE}"
ROWS = synthetic.make_rows(60)


def evaluate_with(name: str, *attacks: str, **facts: Any) -> list[Record]:
    """Return a record per attack and one of their worst case."""
    records = [synthetic.make_record(ROWS, name, attack=attack, **facts) for attack in attacks]
    return [*records, synthetic.make_worst_record(name, records, ROWS, **facts)]


@pytest.fixture
def report(tmp_path: Path) -> Report:
    """Two models under two attacks."""
    for skill, name in enumerate("ab"):
        rows = synthetic.make_rows(skill=0.3 * skill)
        training = {"lr": 1 + skill}
        records = [
            synthetic.make_record(rows, name, attack=attack, training=training)
            for attack in (SQUARE, PGD)
        ]
        worst = synthetic.make_worst_record(name, records, rows, training=training)
        for record in (*records, worst):
            synthetic.save_record(tmp_path / name / "evaluations", record, rows)
    return build_report(gather_records([tmp_path]), compare=True)[0]


def test_note_below_the_main_table_lists_combined_attacks(report: Report) -> None:
    main, *_ = report.tables()
    (note,) = [note for note in main.notes if BOTH in note]
    assert note.startswith("worst case over attacks: ")
    assert f"\n\n{markdown_paragraph(note)}\n" in main.to_markdown()
    assert SQUARE in render_latex(main).partition(r"\end{tabular}}")[2]
    assert note in str(main.to_rich_table(None).caption)
    assert tables.make_table(evaluate_with("a", SQUARE, PGD)).notes == (note,)
    assert tables.make_table(evaluate_with("a", SQUARE, PGD)[:1]).notes == ()


def test_note_below_a_comparison_lists_combined_attacks(report: Report) -> None:
    notes = {
        table.title.partition(" under ")[2].partition(",")[0]: table.notes
        for table in report.comparison_tables()
    }
    (note,) = notes["worst case over attacks"]
    assert BOTH in note
    assert notes["square:queries=50"] == ()


def test_headings_of_the_page_list_combined_attacks(report: Report) -> None:
    text, _ = render_report(report.found, report.comparison_tables())
    assert f"worst of {BOTH}</h3>" in text
    assert re.search(rf'<p class="note">worst case over attacks: .*{re.escape(BOTH)}</p>', text)


def test_csv_and_json_list_combined_attacks(report: Report) -> None:
    lines = list(csv.DictReader(io.StringIO(tables.to_csv(report.records))))
    assert {(line["attack"], line["worst_of"]) for line in lines} == {
        (PGD, ""),
        (SQUARE, ""),
        ("worst case over attacks", BOTH),
    }
    compared = csv.DictReader(io.StringIO(report.to_csv()))
    assert {line["worst_of"] for line in compared} == {"", BOTH}
    data = json.loads(msgspec.json.encode(report.to_json()))["records"]
    assert [one.get("worst_of") for one in data if one["attack"]["spec"] == "worst"] == [
        [PGD, SQUARE]
    ] * 2
    assert all("worst_of" not in one for one in data if one["attack"]["spec"] != "worst")
    assert [one.get("worst_of") for one in records_to_json(report.found)] == [
        one.get("worst_of") for one in data
    ]


def test_titles_of_figures_list_combined_attacks(report: Report) -> None:
    headings = {group.facts["attack"] for group in load_figure_data(report.found).groups}
    assert headings == {PGD, SQUARE, f"worst of {BOTH}"}


def test_worst_case_comes_after_its_attacks(report: Report) -> None:
    assert [record.attack.spec for record in report.records] == [PGD, SQUARE, "worst"] * 2


def test_evaluations_of_a_run_are_sorted_by_radius(tmp_path: Path) -> None:
    radii = (0.3, 0.05, 0.2, 0.1)
    for name in "ba":
        for eps in radii:
            synthetic.save_run_record(tmp_path, ROWS, name, eps=eps)
    found = gather_records([tmp_path / "b", tmp_path]).records
    assert [record.threat.eps for record in found] == sorted(radii) * 2
    assert [record.checkpoint.path[5] for record in found] == ["b"] * 4 + ["a"] * 4


def test_different_worst_cases_are_numbered() -> None:
    records = [
        *evaluate_with("a", PGD, SQUARE),
        *evaluate_with("b", PGD, "fgsm"),
        *evaluate_with("c", SQUARE, PGD),
    ]
    attacks = name_attacks(records)
    names = [attacks.name(record) for record in records if record.attack.of]
    assert names == [
        "worst case over attacks (1)",
        "worst case over attacks (2)",
        "worst case over attacks (1)",
    ]
    table = tables.make_table(records)
    first, second = table.notes
    assert first.startswith("worst case over attacks (1): ")
    assert first.endswith(BOTH)
    assert second.startswith("worst case over attacks (2): ")
    assert second.endswith(f"fgsm + {PGD}")
    shown = {row[table.headings.index("attack")] for row in table.rows}
    assert shown == {
        PGD,
        SQUARE,
        "fgsm",
        "worst case over attacks (1)",
        "worst case over attacks (2)",
    }


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("runs/mine/last.safetensors", "mine"),
        ("/data/runs/mine/last.safetensors", "mine"),
        ("runs/mine/best.safetensors", "mine/best.safetensors"),
        ("net.safetensors", "net.safetensors"),
        ("../net.safetensors", "net.safetensors"),
        ("resnet18", "resnet18"),
        # as wmr 0.1 recorded a run that was evaluated from inside
        ("last.safetensors", "digits-trades-a2-s0"),
    ],
)
def test_a_run_is_named_by_its_record_alone(path: str, name: str) -> None:
    record = synthetic.make_record(ROWS)
    facts = msgspec.structs.replace(record.checkpoint, path=path)
    assert run_name(msgspec.structs.replace(record, checkpoint=facts)) == name


def test_attacks_without_records_are_named_by_the_config() -> None:
    config = EvaluateConfig(attacks=("pgd", "square:queries=50"))
    *parts, worst = evaluate_with("a", PGD, SQUARE, evaluation=config)
    assert list_combined_attacks(worst, {parts[1].id: parts[1]}) == ("pgd", SQUARE)
    assert list_combined_attacks(worst, {}) == ("pgd", "square:queries=50")
    without_attacks = msgspec.structs.replace(worst, config={"attacks": 5})
    assert list_combined_attacks(without_attacks, {}) == tuple(
        sorted(f"record {part.id}" for part in parts)
    )
    assert list_combined_attacks(parts[0], {}) == ()

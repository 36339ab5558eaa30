"""The main table: one row for attacks without margins, and a note for groups without bold."""

import csv
from pathlib import Path

import pytest

from support import synthetic
from wmr_cli.reporting.grouping import group_by_setting
from wmr_cli.reporting.report import Report, build_report, gather_records
from wmr_cli.reporting.tables import main
from wmr_cli.storage.records import Rows

ALPHAS = (0.5, 1.0, 2.0)
SEPARATE_TRAINING = [{"lr": 0.1}, {"lr": 0.2}]


def without_margins(rows: Rows) -> Rows:
    names = ("label", "index", "clean/prediction", "uniform/prediction")
    return {name: rows[name] for name in names}


@pytest.fixture
def report(tmp_path: Path) -> Report:
    """Two models of different accuracy, under PGD and under an attack without margins."""
    for skill, training in enumerate(SEPARATE_TRAINING):
        rows = synthetic.make_rows(skill=float(skill))
        for attack, kept in (("pgd", rows), ("autoattack", without_margins(rows))):
            synthetic.save_run_record(
                tmp_path, kept, f"model{skill}", attack=attack, alphas=ALPHAS, training=training
            )
    return build_report(gather_records([tmp_path]))[0]


def test_attack_without_margins_has_one_row(report: Report) -> None:
    table = main.make_ranked_table(report.groups, report.resampled or {})
    by_heading = [dict(zip(table.headings, row, strict=True)) for row in table.rows]
    bare = [row for row in by_heading if row["attack"] == "autoattack"]
    assert [(row["run"], row["α_test"], row["A_sa"]) for row in bare] == [
        ("model0", "-", "-"),
        ("model1", "-", "-"),
    ]
    assert all(row["A_rob"] != "-" for row in bare)
    assert len(by_heading) - len(bare) == 2 * len(ALPHAS)
    assert main.NO_MARGINS_NOTE.format("autoattack") in table.notes
    # each group ends with a rule
    ends = [table.rows[end][table.headings.index("attack")] for end in sorted(table.rules_after)]
    assert sorted(ends) == ["autoattack", "pgd"]


def test_merged_rows_are_ranked(report: Report) -> None:
    table = main.make_ranked_table(report.groups, report.resampled or {})
    bold = {
        table.rows[number][table.headings.index("run")]
        for number, name in table.bold
        if name == "A_rob" and "autoattack" in table.rows[number]
    }
    assert bold == {"model1"}


def test_csv_keeps_a_line_per_alpha(report: Report) -> None:
    lines = list(csv.DictReader(report.to_csv().splitlines()))
    bare = [line["alpha_test"] for line in lines if line["attack"] == "autoattack"]
    assert bare == [str(alpha) for alpha in ALPHAS] * 2


def test_no_note_on_margins_where_all_attacks_have_them() -> None:
    record = synthetic.make_record(synthetic.make_rows(60))
    assert main.make_table([record]).notes == ()
    unweighted = synthetic.make_record(without_margins(synthetic.make_rows(60)), alphas=())
    assert main.make_table([unweighted]).notes == ()


def test_group_without_bold_is_noted_beside_one_with_bold() -> None:
    records = [
        synthetic.make_record(
            synthetic.make_rows(skill=skill), f"{eps}-{skill}", eps=eps, training={"lr": 1 + skill}
        )
        for eps, skills in ((0.1, (0.0, 3.0)), (0.2, (1.0, 1.0001)))
        for skill in skills
    ]
    groups = group_by_setting(records)
    both = main.make_ranked_table(groups, {}).notes
    assert (main.BOLD_NOTE in both, main.NO_BOLD_NOTE in both) == (True, True)
    ranked = main.make_ranked_table(groups[:1], {}).notes
    assert (main.BOLD_NOTE in ranked, main.NO_BOLD_NOTE in ranked) == (True, False)

"""Filters of a report keep the named records, and groups stay as they are without filters."""

import csv
import json
from pathlib import Path
from typing import Any

import pytest

from support import synthetic
from support.cli_runner import wmr
from wmr_cli.config import RecordFilter
from wmr_cli.errors import BadInput
from wmr_cli.reporting.figures.data import load_figure_data
from wmr_cli.reporting.report import build_report, gather_records

PGD = "pgd:steps=20,step=0.015"
SQUARE = "square:queries=50"
RADII = (8 / 255, 0.1)


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """Two models under two attacks and their worst case, at two radii."""
    for skill, name in enumerate(("a", "b")):
        rows = synthetic.make_rows(60, skill=0.3 * skill)
        for eps in RADII:
            facts: dict[str, Any] = {"eps": eps, "defense": ("trades:beta=6", "pgd")[skill]}
            parts = [
                synthetic.make_record(rows, name, attack=attack, training={"lr": skill}, **facts)
                for attack in (PGD, SQUARE)
            ]
            worst = synthetic.make_worst_record(name, parts, rows, **facts)
            for record in (*parts, worst):
                synthetic.save_record(tmp_path / name / "evaluations", record, rows)
    return tmp_path


SELECTIONS = [
    (RecordFilter(), 12),
    (RecordFilter(attack=("pgd",)), 4),
    (RecordFilter(attack=("pgd:steps=20",)), 4),
    (RecordFilter(attack=("worst", "square")), 8),
    (RecordFilter(eps=(8 / 255,)), 6),
    (RecordFilter(eps=RADII), 12),
    (RecordFilter(defense=("trades",)), 6),
    (RecordFilter(attack=("pgd",), eps=(0.1,), defense=("trades:beta=6",)), 1),
]


@pytest.mark.parametrize(("wanted", "count"), SELECTIONS)
def test_filters_keep_records_with_one_of_each_value(
    runs: Path, wanted: RecordFilter, count: int
) -> None:
    gathered = gather_records([runs], filters=wanted)
    assert len(gathered.found) == count
    assert len({record.id for record in (*gathered.records, *gathered.known)}) == 12
    for record in gathered.records:
        assert not wanted.eps or record.threat.eps in wanted.eps


UNKNOWN = [
    (RecordFilter(attack=("pdg",)), "did you mean 'pgd'? available: pgd, square, worst"),
    (RecordFilter(attack=("pgd:steps=7",)), PGD),
    (RecordFilter(defense=("mart",)), "available: pgd, trades"),
    (RecordFilter(eps=(0.2,)), "available: 8/255, 0.1"),
]


@pytest.mark.parametrize(("wanted", "hint"), UNKNOWN)
def test_unknown_value_lists_those_of_the_records(
    runs: Path, wanted: RecordFilter, hint: str
) -> None:
    with pytest.raises(BadInput, match="no record has") as caught:
        gather_records([runs], filters=wanted)
    assert hint in caught.value.hint


def test_filters_that_exclude_each_other_are_refused(tmp_path: Path) -> None:
    for eps, attack in ((0.1, PGD), (0.2, SQUARE)):
        synthetic.save_run_record(tmp_path, synthetic.make_rows(60), eps=eps, attack=attack)
    with pytest.raises(BadInput, match="all filters"):
        gather_records([tmp_path], filters=RecordFilter(attack=("pgd",), eps=(0.2,)))


def test_worst_cases_stay_comparable_without_their_attacks(runs: Path) -> None:
    gathered = gather_records([runs], filters=RecordFilter(attack=("worst",)))
    report, _ = build_report(gathered)
    assert [len(group.entries) for group in report.groups] == [2, 2]
    lines = list(csv.DictReader(report.to_csv().splitlines()))
    assert len({line["peers"] for line in lines}) == 2
    data = load_figure_data(gathered.found, gathered.known)
    assert [len(group.models) for group in data.groups] == [2, 2]


def test_flags_are_repeatable_and_read_fractions(runs: Path) -> None:
    flags = ("--attack", "pgd", "--attack", "square", "--eps", "8/255", "--defense", "pgd")
    data = json.loads(wmr("report", runs, *flags, "--format", "json").stdout)
    assert {record["attack"]["spec"] for record in data} == {PGD, SQUARE}
    assert {record["threat"]["eps"] for record in data} == {8 / 255}
    refused = wmr("report", runs, "--attack", "pdg", status=2).stderr
    assert "--attack: no record has 'pdg'" in refused
    assert "did you mean 'pgd'?" in refused

"""DRO, classes, repeats and intervals as a user meets them."""

import csv
import json
import re
import shutil
from pathlib import Path

import pytest

from support.cli_runner import wmr
from wmr_cli import measures
from wmr_cli.storage import records

FLAGS = (
    "--limit",
    60,
    "--steps",
    2,
    "--alpha-test",
    "1,2",
    "--repeats",
    2,
    "--per-class",
    "--ci",
    "bootstrap",
    "--rho",
    "0.1,1",
)


@pytest.fixture(scope="module")
def run(tiny_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a run with one record of all metrics; it is read-only."""
    folder = Path(shutil.copytree(tiny_run, tmp_path_factory.mktemp("measures") / "tiny"))
    wmr("evaluate", folder, *FLAGS, "-q")
    return folder


def test_the_record_contains_all_requested_metrics(run: Path) -> None:
    (record,) = json.loads(wmr("evaluate", run, *FLAGS, "--format", "json").stdout)
    assert [row["rho"] for row in record["dro"]] == [0.1, 1.0]
    assert set(record["dro"][0]) >= {"rho", "attack_loss", "loss", "accuracy", "worst_accuracy"}
    assert {row["attack_loss"] for row in record["dro"]} == {"ce"}
    assert [row["label"] for row in record["per_class"]] == list(range(10))
    assert [part["seed"] for part in record["repeats"]] == [0, 1]
    requested = {
        "ci": "bootstrap",
        "repeats": 2,
        "per_class": True,
        "rho": [0.1, 1.0],
        "dro_loss": "ce",
    }
    assert {name: record["config"][name] for name in requested} == requested
    assert record["config"]["metrics"] == ["nat", "rob", "sa", "tr", "dro"]


def test_further_tables_follow_the_main_one(run: Path) -> None:
    for text in (wmr("evaluate", run, *FLAGS).stdout, wmr("report", run).stdout):
        assert (
            text.index("A_sa")
            < text.index("worst case in the χ² ball")
            < text.index("classes of tiny")
        )
        assert len(re.findall(r"worst \d", text)) == 1  # the worst class
        assert " ± " in text
    markdown = wmr("report", run, "--format", "markdown").stdout
    assert len([line for line in markdown.splitlines() if line.startswith("| --- |")]) == 3


def test_csv_stays_one_table(run: Path) -> None:
    lines = list(csv.DictReader(wmr("report", run, "--format", "csv").stdout.splitlines()))
    assert [line["alpha_test"] for line in lines] == ["1.0", "2.0"]
    (record,) = json.loads(wmr("report", run, "--format", "json").stdout)
    values = [part["a_rob"] for part in record["repeats"]]
    assert float(lines[0]["a_rob_mean"]) == pytest.approx(sum(values) / 2)


def test_a_report_takes_radii_without_a_new_attack(run: Path) -> None:
    (stored,) = json.loads(wmr("report", run, "--format", "json").stdout)
    (record,) = json.loads(wmr("report", run, "--rho", "0,0.1,3", "--format", "json").stdout)
    assert [row["rho"] for row in record["dro"]] == [0.0, 0.1, 3.0]
    assert record["dro"][1] == stored["dro"][0]
    assert {**record, "dro": 0} == {**stored, "dro": 0}
    rows = records.load_rows(Path(record["rows"]))
    assert record["dro"][2]["loss"] == measures.worst_case(rows["uniform/loss"], 3.0).value


def test_a_report_at_other_alphas_keeps_to_the_intervals_and_classes_of_the_record(
    run: Path,
) -> None:
    (stored,) = json.loads(wmr("report", run, "--format", "json").stdout)
    (record,) = json.loads(wmr("report", run, "--alpha-test", "0,2", "--format", "json").stdout)
    assert record["by_alpha"][1] == stored["by_alpha"][1]  # the same resamples
    assert record["by_alpha"][0]["a_sa"]["value"] == record["a_rob"]["value"]
    assert (
        record["by_alpha"][0]["a_sa"]["low"] == record["a_rob"]["low"]
    )  # equal weights, equal resamples
    assert [part["alpha_test"] for part in record["per_class"][0]["by_alpha"]] == [0.0, 2.0]


@pytest.mark.parametrize(
    ("flags", "loss"), [(("--metrics", "rob,dro"), "ce"), (("--dro-loss", "margin"), "margin")]
)
def test_the_loss_of_the_worst_case_can_be_chosen(
    run: Path, tmp_path: Path, flags: tuple[str, str], loss: str
) -> None:
    tiny = ("--limit", 20, "--steps", 1, "--out", tmp_path, "--format", "json")
    (record,) = json.loads(wmr("evaluate", run, *tiny, *flags).stdout)
    assert [row["rho"] for row in record["dro"]] == list(measures.RHOS)
    assert {row["attack_loss"] for row in record["dro"]} == {loss}


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        (("--rho", "-1"), "--rho"),
        (("--rho", "x"), "--rho"),
        (("--dro-loss", "cee"), "'ce'"),
        (("--ci", "boot"), "'boot'"),
        (("--metrics", "nat,drop"), "'dro'"),
        (("--repeats", "0"), "repeats"),
        (("--repeats", "2", "--metrics", "nat"), "--repeats"),
    ],
)
def test_invalid_settings_of_measures_are_refused(
    run: Path, flags: tuple[str, ...], named: str
) -> None:
    assert named in wmr("evaluate", run, *flags, status=2).stderr
    if flags[0] == "--rho":
        assert named in wmr("report", run, *flags, status=2).stderr


def test_a_config_of_another_version_is_named(run: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(run, tmp_path / "tiny"))
    (file,) = (folder / "evaluations").glob("*.json")
    record = json.loads(file.read_text())
    file.write_text(json.dumps({**record, "config": {**record["config"], "dro_loss": "new"}}))
    assert "dro_loss" in wmr("report", folder, "--rho", "1", status=1).stderr

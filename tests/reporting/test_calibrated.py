"""A_cal in records, tables, CSV and JSON, computed at evaluation or from stored rows."""

import csv
import json
from pathlib import Path

import msgspec
import pytest

from support.page_data import make_logit_rows, save_evaluation
from support.typed import instance_of, not_none
from wmr_cli import Result, measures
from wmr_cli.cli.output import list_remarks
from wmr_cli.config import EvaluateConfig
from wmr_cli.reporting.html.report import render_report
from wmr_cli.reporting.report import Report, build_report, gather_records
from wmr_cli.reporting.scoring import list_caveats
from wmr_cli.reporting.tables.latex import render_latex
from wmr_cli.storage import records
from wmr_cli.storage.records import Record, Rows

PLAIN = EvaluateConfig(metrics=("nat", "rob", "sa"))
WITH_CAL = EvaluateConfig(metrics=("nat", "rob", "sa", "cal"))


def save_run(folder: Path, name: str, config: EvaluateConfig, *, seed: int = 0) -> Rows:
    """Save a run whose logits have their own noise, and return its rows."""
    rows = make_logit_rows(seed)
    save_evaluation(folder, name, rows, config, training={"name": name})
    return rows


def report_on(folder: Path, *, calibrated: bool = False, compare: bool = False) -> Report:
    report, problems = build_report(
        gather_records([folder], calibrated=calibrated), compare=compare
    )
    assert problems == []
    return report


def only_record(folder: Path) -> Record:
    (record,) = gather_records([folder]).records
    return record


def drop_logits(folder: Path) -> None:
    """Make the stored rows compact."""
    for file in folder.rglob("*.safetensors"):
        records.save_rows(file, records.drop_logits(records.load_rows(file)))


def test_a_record_stores_a_cal_and_its_temperature(tmp_path: Path) -> None:
    rows = save_run(tmp_path, "a", WITH_CAL)
    record = only_record(tmp_path)
    assert record.temperature == measures.calibrate(rows).temperature
    for row in record.by_alpha:
        assert row.a_cal == measures.calibrated_accuracy(rows, not_none(row.alpha_test))
    assert Record.from_json(record.to_json()) == record


def test_a_record_without_a_cal_is_written_as_before(tmp_path: Path) -> None:
    save_run(tmp_path, "a", PLAIN)
    record = only_record(tmp_path)
    stored = json.loads(record.to_json())
    assert "calibration" not in stored
    assert set(stored["by_alpha"][0]) == {"alpha_test", "a_sa", "a_tr"}
    report = report_on(tmp_path)
    assert {"A_cal", "T"}.isdisjoint(report.tables()[0].headings)
    assert '"a_cal"' not in json.dumps(report.to_json())
    assert "a_cal" not in report.to_csv().splitlines()[0]


def test_a_report_computes_a_cal_from_stored_logits(tmp_path: Path) -> None:
    save_run(tmp_path / "with", "a", WITH_CAL)
    save_run(tmp_path / "without", "a", PLAIN)
    (computed,) = gather_records([tmp_path / "without"], calibrated=True).records
    stored = only_record(tmp_path / "with")
    assert (computed.by_alpha, computed.calibration) == (stored.by_alpha, stored.calibration)
    (other,) = gather_records([tmp_path / "with"], [0.0, 3.0]).records
    assert not_none(other.by_alpha[0].a_cal).value == not_none(other.a_rob).value
    assert not_none(other.by_alpha[1].a_cal).value < not_none(stored.by_alpha[-1].a_cal).value


def test_bootstrap_intervals_include_the_fit(tmp_path: Path) -> None:
    save_run(tmp_path / "delta", "a", WITH_CAL)
    save_run(tmp_path / "bootstrap", "a", msgspec.structs.replace(WITH_CAL, ci="bootstrap"))
    delta, bootstrap = (only_record(tmp_path / name) for name in ("delta", "bootstrap"))
    for one, other in zip(delta.by_alpha, bootstrap.by_alpha, strict=True):
        own, resampled = not_none(one.a_cal), not_none(other.a_cal)
        assert own.value == resampled.value
        assert (resampled.low, resampled.high) == pytest.approx((own.low, own.high), abs=0.01)
        assert (resampled.low, resampled.high) != (own.low, own.high)


def test_compact_rows_keep_the_stored_numbers(tmp_path: Path) -> None:
    rows = save_run(tmp_path, "a", WITH_CAL)
    before = only_record(tmp_path)
    drop_logits(tmp_path)
    (same, added) = gather_records([tmp_path], [2.0, 3.0]).records[0].by_alpha
    assert same.a_cal == measures.calibrated_accuracy(rows, 2.0)
    assert added.a_cal is None
    rescored = gather_records([tmp_path], [2.0, 3.0]).records[0]
    assert rescored.calibration == before.calibration
    assert any("A_cal" in text and "α 3:" in text for text in list_caveats(rescored))
    (file,) = tmp_path.rglob("*.json")
    result = Result.load(file)
    assert result.a_cal(2.0) == same.a_cal
    assert result.temperature == before.temperature


def test_compact_rows_without_stored_numbers_give_a_caveat(tmp_path: Path) -> None:
    save_run(tmp_path, "a", PLAIN)
    drop_logits(tmp_path)
    (record,) = gather_records([tmp_path], calibrated=True).records
    assert {row.a_cal for row in record.by_alpha} == {None}
    assert any("A_cal" in text and "compact" in text for text in list_caveats(record))


def test_a_record_without_alphas_gives_a_caveat(tmp_path: Path) -> None:
    save_run(tmp_path, "a", EvaluateConfig(metrics=("nat", "rob")))
    (record,) = gather_records([tmp_path], calibrated=True).records
    assert any("A_cal" in text and "alpha_test" in text for text in list_caveats(record))


def test_tables_show_a_cal_with_its_temperature(tmp_path: Path) -> None:
    for name, seed in (("a", 0), ("b", 1)):
        save_run(tmp_path, name, WITH_CAL, seed=seed)
    report = report_on(tmp_path, compare=True)
    table = report.tables()[0]
    position = table.headings.index("A_cal")
    assert table.headings[position - 1] == "A_sa"
    assert all("[" in row[position] for row in table.rows)
    temperature = f"{not_none(report.records[0].temperature):.3g}"
    assert table.rows[0][table.headings.index("T")] == temperature
    assert r"A_{\mathrm{cal}}" in render_latex(table)
    assert r"A\_cal" in table.to_markdown()
    (reader, *_) = [list(csv.DictReader(report_on(tmp_path).to_csv().splitlines()))]
    assert float(reader[0]["temperature"]) == report.records[0].temperature
    assert float(reader[0]["a_cal_low"]) < float(reader[0]["a_cal"])
    page, problems = render_report(report.found, report.comparison_tables())
    assert problems == []
    assert '<th scope="col">A_cal</th>' in page


def test_a_rescaled_network_is_not_better_calibrated(tmp_path: Path) -> None:
    rows = make_logit_rows(0)
    cautious = dict(rows)
    cautious["uniform/logits"] = rows["uniform/logits"] / 3
    cautious["uniform/margin"] = measures.probability_margins(
        cautious["uniform/logits"], rows["label"]
    )
    for name, each in (("confident", rows), ("timid", cautious)):
        save_evaluation(tmp_path, name, each, WITH_CAL, training={"name": name})
    comparisons = not_none(report_on(tmp_path, compare=True).comparisons)
    for comparison in comparisons:
        assert comparison.gaps["a_sa"].is_distinguishable
        difference = comparison.gaps["a_cal"].over_images
        assert [difference.value, difference.low, difference.high] == pytest.approx(
            [0, 0, 0], abs=1e-6
        )
    bold = report_on(tmp_path).tables()[0].bold
    assert {name for _, name in bold} == {"A_sa"}


def test_a_better_network_is_marked(tmp_path: Path) -> None:
    for name, skill in (("good", 4.0), ("bad", 1.5)):
        save_evaluation(
            tmp_path, name, make_logit_rows(1, skill=skill), WITH_CAL, training={"name": name}
        )
    table = report_on(tmp_path).tables()[0]
    runs = {table.rows[number][0] for number, name in table.bold if name == "A_cal"}
    assert runs == {"good"}


def test_seeds_of_training_have_mean_and_deviation(tmp_path: Path) -> None:
    for seed in (0, 1):
        rows = make_logit_rows(seed)
        config = WITH_CAL
        save_evaluation(tmp_path, f"run-s{seed}", rows, config, training={"seed": seed})
    for file in tmp_path.rglob("*.json"):
        record = records.load(file)
        number = int(record.checkpoint.path.split("-s")[1][0])
        checkpoint = msgspec.structs.replace(record.checkpoint, seed=number)
        file.write_text(msgspec.structs.replace(record, checkpoint=checkpoint).to_json())
    report = report_on(tmp_path)
    table = report.tables()[0]
    assert all("±" in row[table.headings.index("A_cal")] for row in table.rows)
    (first, _) = instance_of(list, report.to_json())
    assert first["over_seeds"]["by_alpha"][0]["a_cal"]["seeds"] == 2


def test_differences_without_logits_are_explained(tmp_path: Path) -> None:
    for name, seed in (("a", 0), ("b", 1)):
        save_run(tmp_path, name, WITH_CAL, seed=seed)
    drop_logits(tmp_path)
    report = report_on(tmp_path, compare=True)
    assert all("a_cal" not in one.gaps for one in not_none(report.comparisons))
    remarks = list_remarks(report, alphas=None, radii=None, output="table")
    assert any("A_cal" in text and "rows=full" in text for text in remarks)

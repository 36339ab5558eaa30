"""Bold cells and paired differences between models in one measurement setting."""

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from support import synthetic
from support.typed import instance_of, not_none
from wmr_cli.reporting.comparison import (
    FEW_DIFFERING_IMAGES,
    INDISTINGUISHABLE,
    NO_DIFFERING_IMAGE,
    Gap,
    find_bold_cells,
)
from wmr_cli.reporting.grouping import group_by_setting
from wmr_cli.reporting.report import Report, build_report, gather_records
from wmr_cli.reporting.rows import ACCURACIES
from wmr_cli.reporting.tables import main
from wmr_cli.storage import records


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    return tmp_path / "runs"


def report_on(folder: Path, **options: Any) -> Report:
    report, problems = build_report(gather_records([folder]), **options)
    assert problems == []
    return report


def bold_runs(folder: Path) -> dict[tuple[str, str], list[str]]:
    """Return the runs that are bold, by accuracy and alpha."""
    (table, *_) = report_on(folder).tables()
    run = table.headings.index("run")
    alpha = table.headings.index("α_test")
    found: dict[tuple[str, str], list[str]] = {}
    for number, name in sorted(table.bold):
        row = table.rows[number]
        found.setdefault((name, row[alpha]), []).append(row[run])
    return found


def test_best_and_indistinguishable_values_are_bold(runs: Path) -> None:
    for name, skill, seed in (("good", 0.5, 0), ("close", 0.5, 1), ("bad", 0.0, 2)):
        synthetic.save_run_record(runs, synthetic.make_rows(skill=skill, seed=seed), name)
    assert bold_runs(runs)["A_rob", "1"] == bold_runs(runs)["A_sa", "2"] == ["close", "good"]


def test_paired_test_distinguishes_overlapping_intervals(runs: Path) -> None:
    good, bad = (
        synthetic.save_run_record(runs, synthetic.make_rows(skill=skill), name)
        for name, skill in (("good", 0.15), ("bad", 0.0))
    )
    assert not_none(good.a_rob).low < not_none(bad.a_rob).high
    assert bold_runs(runs)["A_rob", "1"] == ["good"]
    for rows in runs.rglob("*.safetensors"):
        rows.unlink()
    assert bold_runs(runs) == {}  # without rows the intervals must not overlap


def test_without_rows_intervals_that_do_not_overlap_are_distinguished(runs: Path) -> None:
    for name, skill in (("good", 1.0), ("bad", 0.0)):
        synthetic.save_run_record(runs, synthetic.make_rows(skill=skill), name)
    (rows, *_) = runs.rglob("*.safetensors")
    rows.unlink()
    assert bold_runs(runs)["A_rob", "1"] == ["good"]


def test_interval_of_zero_width_does_not_distinguish(runs: Path) -> None:
    for name, skill in (("all correct", 90.0), ("some", 0.0)):
        synthetic.save_run_record(runs, synthetic.make_rows(100, skill=skill), name)
    assert ("A_sa", "1") in bold_runs(runs)
    for rows in runs.rglob("*.safetensors"):
        rows.unlink()
    assert ("A_sa", "1") not in bold_runs(runs)


def test_nothing_is_bold_if_all_rows_are_indistinguishable(runs: Path) -> None:
    for seed in range(3):
        synthetic.save_run_record(
            runs,
            synthetic.make_rows(100, seed=seed),
            f"run{seed}",
            training={"lr": 0.1 * (seed + 1)},
        )
    assert bold_runs(runs) == {}
    assert main.NO_BOLD_NOTE in report_on(runs).tables()[0].notes


def test_single_model_is_not_ranked(runs: Path) -> None:
    synthetic.save_run_record(runs, synthetic.make_rows(), "only")
    assert bold_runs(runs) == {}
    assert report_on(runs).tables()[0].notes == ()


def test_different_radii_are_not_ranked_together(runs: Path) -> None:
    synthetic.save_run_record(runs, synthetic.make_rows(skill=1.0), "small", eps=0.05)
    synthetic.save_run_record(runs, synthetic.make_rows(skill=0.0), "large", eps=0.15)
    assert bold_runs(runs) == {}
    (table, *_) = report_on(runs).tables()
    assert table.notes == (main.GROUPS_NOTE.format("ε"),)
    assert table.rules_after == {1, 3}


def test_each_group_has_its_own_best(runs: Path) -> None:
    for eps in (0.05, 0.15):
        for name, skill in (("good", 0.5), ("bad", 0.0)):
            synthetic.save_run_record(
                runs, synthetic.make_rows(skill=skill + (0.15 - eps) * 3), name, eps=eps
            )
    (table, *_) = report_on(runs).tables()
    assert (
        sorted(table.rows[number][0] for number, name in table.bold if name == "A_rob")
        == ["good"] * 4
    )


def test_difference_must_exceed_the_spread_over_seeds(runs: Path) -> None:
    for seed, skill in enumerate((0.2, 0.6)):
        synthetic.save_run_record(
            runs, synthetic.make_rows(skill=skill), f"good-s{seed}", seed=seed
        )
        synthetic.save_run_record(
            runs,
            synthetic.make_rows(skill=0.4 * seed),
            f"bad-s{seed}",
            seed=1 - seed,
            alpha_train=0.0,
        )
    groups = group_by_setting(gather_records([runs]).records)
    assert [len(entry) for entry in groups[0].entries] == [2, 2]
    report = report_on(runs, compare=True)
    gap = not_none(report.comparisons)[0].gaps["a_rob"]
    assert gap.over_images.is_distinguishable
    assert not_none(gap.over_seeds)[0] < 0 < not_none(gap.over_seeds)[1]
    assert not gap.is_distinguishable
    assert not find_bold_cells(groups[0], not_none(report.resampled))


def gaps_by_run(folder: Path) -> dict[tuple[str, float], dict[str, Gap]]:
    comparisons = not_none(report_on(folder, compare=True).comparisons)
    return {
        (
            comparison.row.record.checkpoint.path.split("/")[1],
            not_none(comparison.row.alpha_test),
        ): comparison.gaps
        for comparison in comparisons
    }


def test_differences_join_rows_by_image_index(runs: Path) -> None:
    better = synthetic.make_rows(skill=0.3)
    reference = synthetic.make_rows()
    order = np.random.default_rng(1).permutation(len(better["index"]))
    synthetic.save_run_record(runs, reference, "a")
    synthetic.save_run_record(runs, {name: values[order] for name, values in better.items()}, "b")
    gaps = gaps_by_run(runs)["b", 2.0]
    synthetic.save_run_record(runs, better, "b")
    assert gaps == gaps_by_run(runs)["b", 2.0]
    correct = better["uniform/prediction"] == better["label"]
    reference_correct = reference["uniform/prediction"] == reference["label"]
    difference = gaps["a_rob"].over_images
    assert difference.value == pytest.approx(correct.mean() - reference_correct.mean())
    assert difference.effective_images == (correct != reference_correct).sum()
    assert set(gaps) == {"a_nat", "a_rob", "a_sa", "a_tr"}


def test_first_record_is_the_reference(runs: Path) -> None:
    for name in "abc":
        synthetic.save_run_record(runs, synthetic.make_rows(seed=ord(name)), name)
    assert {key[0] for key in gaps_by_run(runs)} == {"b", "c"}
    report, _ = build_report(gather_records([runs / "c", runs / "a", runs / "b"]), compare=True)
    assert {
        comparison.reference.record.checkpoint.path for comparison in not_none(report.comparisons)
    } == {"runs/c/last.safetensors"}


def test_seeds_of_a_single_model_are_compared(runs: Path) -> None:
    for seed in range(3):
        synthetic.save_run_record(
            runs, synthetic.make_rows(skill=0.4 * seed), f"a-s{seed}", seed=seed
        )
    gaps = gaps_by_run(runs)
    assert sorted(gaps) == [("a-s1", 1.0), ("a-s1", 2.0), ("a-s2", 1.0), ("a-s2", 2.0)]
    assert gaps["a-s2", 1.0]["a_rob"].is_distinguishable


def comparison_rows(folder: Path) -> list[dict[str, str]]:
    (table,) = report_on(folder, compare=True).comparison_tables()
    return [dict(zip(table.headings, row, strict=True)) for row in table.rows]


def test_no_weighted_image_makes_a_difference_at_large_alpha(runs: Path) -> None:
    # at a large alpha only misclassified images have weight, in both models
    for skill, name in ((0.0, "a"), (0.6, "b")):
        synthetic.save_run_record(
            runs, synthetic.make_rows(skill=skill), name, training={"lr": 1 + skill}, alphas=(1e9,)
        )
    (row,) = comparison_rows(runs)
    assert row["A_sa"] == f"0; {NO_DIFFERING_IMAGE}"
    assert "distinguishable" not in row["A_rob"]


def test_equal_models_have_no_differing_image(runs: Path) -> None:
    for name in "ab":
        synthetic.save_run_record(runs, synthetic.make_rows(), name)
    assert {row["A_sa"] for row in comparison_rows(runs)} == {f"0; {NO_DIFFERING_IMAGE}"}


def test_indistinguishable_models_are_marked(runs: Path) -> None:
    for seed, name in enumerate("ab"):
        synthetic.save_run_record(runs, synthetic.make_rows(100, seed=seed), name)
    assert all(INDISTINGUISHABLE in row["A_rob"] for row in comparison_rows(runs))


def test_single_image_does_not_distinguish_models(runs: Path) -> None:
    for name, skill in (("a", 9.0), ("b", -9.0)):
        synthetic.save_run_record(runs, synthetic.make_rows(1, skill=skill), name)
    assert {row["A_rob"] for row in comparison_rows(runs)} == {f"-100; {FEW_DIFFERING_IMAGES}"}


def test_accuracy_missing_on_one_side_is_left_out(runs: Path) -> None:
    synthetic.save_run_record(runs, synthetic.make_rows(), "a")
    synthetic.save_run_record(runs, synthetic.make_rows(alphas=()), "b")
    assert {row["A_tr"] for row in comparison_rows(runs)} == {"-"}


def test_differences_are_computed_at_other_alphas(runs: Path) -> None:
    for name, skill in (("a", 0.0), ("b", 0.3)):
        synthetic.save_run_record(runs, synthetic.make_rows(skill=skill), name)
    report, _ = build_report(gather_records([runs], [0.0, 7.0]), compare=True)
    at_0, at_7 = not_none(report.comparisons)
    assert at_0.gaps["a_sa"] == at_0.gaps["a_rob"]
    assert at_7.gaps["a_sa"] != at_0.gaps["a_sa"]
    assert "a_tr" not in at_7.gaps


def test_csv_and_json_have_every_difference(runs: Path) -> None:
    for name, skill in (("a", 0.0), ("b", 0.3)):
        synthetic.save_run_record(runs, synthetic.make_rows(skill=skill), name)
    report = report_on(runs, compare=True)
    lines = list(csv.DictReader(report.to_csv().splitlines()))
    assert [(line["share"], line["alpha_test"]) for line in lines[:4]] == [
        (name, "1.0") for name in ACCURACIES
    ]
    data = instance_of(dict, report.to_json())
    (first, _) = data["comparisons"]
    assert float(lines[1]["low"]) == first["a_rob"]["low"]
    assert (first["reference"]["run"], first["run"], first["a_rob"]["verdict"]) == (
        "a",
        "b",
        "distinguishable",
    )
    assert len(data["records"]) == 2


def test_csv_and_json_have_every_seed_and_their_mean(runs: Path) -> None:
    for seed in range(2):
        synthetic.save_run_record(
            runs, synthetic.make_rows(skill=0.2 * seed), f"a-s{seed}", seed=seed
        )
    synthetic.save_run_record(runs, synthetic.make_rows(), "b", alpha_train=0.0)
    report = report_on(runs)
    lines = list(csv.DictReader(report.to_csv().splitlines()))
    columns = ("run", "train_seed", "model", "train_seeds")
    assert [tuple(line[name] for name in columns) for line in lines[::2]] == [
        ("a-s0", "0", "1", "2"),
        ("a-s1", "1", "1", "2"),
        ("b", "0", "2", "1"),
    ]
    assert {line["peers"] for line in lines} == {"1"}
    mean = sum(float(line["a_rob"]) for line in lines[0:4:2]) / 2
    assert (
        float(lines[0]["a_rob_train_mean"])
        == float(lines[2]["a_rob_train_mean"])
        == pytest.approx(mean)
    )
    assert lines[4]["a_rob_train_sd"] == ""
    first, second, other = instance_of(list, report.to_json())
    assert first["over_seeds"] == second["over_seeds"]
    assert first["over_seeds"]["by_alpha"][0]["a_rob"]["mean"] == pytest.approx(mean)
    assert "over_seeds" not in other


def test_rows_of_other_images_are_a_problem(runs: Path) -> None:
    synthetic.save_run_record(runs, synthetic.make_rows(), "a")
    rows = synthetic.make_rows()
    synthetic.save_run_record(runs, {**rows, "index": rows["index"] + 1}, "b")
    report, problems = build_report(gather_records([runs]), compare=True)
    assert report.comparisons == []
    assert len(problems) == 1


def test_rows_are_read_only_where_needed(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synthetic.save_run_record(runs, synthetic.make_rows(), "a")
    synthetic.save_run_record(runs, synthetic.make_rows(), "b", eps=0.05)
    monkeypatch.setattr(records, "load_rows", lambda path: pytest.fail("rows were read"))
    assert len(report_on(runs).tables()[0].rows) == 4
    synthetic.save_run_record(runs, synthetic.make_rows(), "c")
    assert len(report_on(runs, ranks=False).to_json()) == 3

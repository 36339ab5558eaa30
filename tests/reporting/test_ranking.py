"""Bold is for the best and for what cannot be told from it, among lines measured alike, and only where it says something."""

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from support import synthetic
from support.typed import not_none
from wmr_cli.reporting.grouping import group_by_setting
from wmr_cli.reporting.ranking import (
    FEW_DIFFERING_IMAGES,
    INDISTINGUISHABLE,
    NO_DIFFERING_IMAGE,
    Gap,
    find_bold_cells,
)
from wmr_cli.reporting.report import Report, build_report, gather_records
from wmr_cli.reporting.rows import ACCURACIES
from wmr_cli.reporting.tables import main
from wmr_cli.storage import records


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    return tmp_path / "runs"


def document(folder: Path, **asked: Any) -> Report:
    made_of, problems = build_report(gather_records([folder]), **asked)
    assert problems == []
    return made_of


def bold(folder: Path) -> dict[tuple[str, str], list[str]]:
    """The runs that are bold, by share and alpha."""
    (sheet, *_) = document(folder).tables()
    at = {name: sheet.headings.index(name) for name in ("run", "α_test")}
    found: dict[tuple[str, str], list[str]] = {}
    for number, name in sorted(sheet.bold):
        row = sheet.rows[number]
        found.setdefault((name, row[at["α_test"]]), []).append(row[at["run"]])
    return found


def test_the_best_is_bold_and_so_is_what_cannot_be_told_from_it(runs: Path) -> None:
    for name, skill, seed in (("good", 0.5, 0), ("close", 0.5, 1), ("bad", 0.0, 2)):
        synthetic.saved(runs, synthetic.rows(skill=skill, seed=seed), name)
    assert bold(runs)["A_rob", "1"] == bold(runs)["A_sa", "2"] == ["close", "good"]


def test_two_overlapping_intervals_can_be_told_apart_by_pairs(runs: Path) -> None:
    good, bad = (
        synthetic.saved(runs, synthetic.rows(skill=skill), name)
        for name, skill in (("good", 0.15), ("bad", 0.0))
    )
    assert not_none(good.a_rob).low < not_none(bad.a_rob).high
    assert bold(runs)["A_rob", "1"] == ["good"]
    for rows in runs.rglob("*.safetensors"):
        rows.unlink()
    assert bold(runs) == {}  # without rows the intervals must not overlap


def test_without_rows_lines_are_told_apart_where_their_intervals_do_not_overlap(runs: Path) -> None:
    for name, skill in (("good", 1.0), ("bad", 0.0)):
        synthetic.saved(runs, synthetic.rows(skill=skill), name)
    (rows, *_) = runs.rglob("*.safetensors")
    rows.unlink()
    assert bold(runs)["A_rob", "1"] == ["good"]


def test_an_interval_without_width_tells_nothing(runs: Path) -> None:
    for name, skill in (("all right", 90.0), ("some", 0.0)):
        given = synthetic.rows(100, skill=skill)
        synthetic.saved(runs, given, name)
    assert ("A_sa", "1") in bold(runs)
    for rows in runs.rglob("*.safetensors"):
        rows.unlink()
    assert ("A_sa", "1") not in bold(runs)


def test_where_nothing_can_be_told_apart_nothing_is_bold(runs: Path) -> None:
    for seed in range(3):
        synthetic.saved(
            runs, synthetic.rows(100, seed=seed), f"run{seed}", training={"lr": 0.1 * (seed + 1)}
        )
    assert bold(runs) == {}
    assert main.NO_BOLD_NOTE in document(runs).tables()[0].notes


def test_a_single_model_is_not_ranked(runs: Path) -> None:
    synthetic.saved(runs, synthetic.rows(), "only")
    assert bold(runs) == {}
    assert document(runs).tables()[0].notes == ()


def test_different_balls_are_never_ranked_together(runs: Path) -> None:
    synthetic.saved(runs, synthetic.rows(skill=1.0), "small", eps=0.05)
    synthetic.saved(runs, synthetic.rows(skill=0.0), "large", eps=0.15)
    assert bold(runs) == {}
    (sheet, *_) = document(runs).tables()
    assert sheet.notes == (main.GROUPS_NOTE.format("ε"),)
    assert sheet.rules_after == {1, 3}


def test_each_group_has_its_own_best(runs: Path) -> None:
    for eps in (0.05, 0.15):
        for name, skill in (("good", 0.5), ("bad", 0.0)):
            synthetic.saved(runs, synthetic.rows(skill=skill + (0.15 - eps) * 3), name, eps=eps)
    (sheet, *_) = document(runs).tables()
    assert (
        sorted(sheet.rows[number][0] for number, name in sheet.bold if name == "A_rob")
        == ["good"] * 4
    )


def test_seeds_must_agree_before_a_method_is_better(runs: Path) -> None:
    for seed, skill in enumerate((0.2, 0.6)):
        synthetic.saved(runs, synthetic.rows(skill=skill), f"good-s{seed}", seed=seed)
        synthetic.saved(
            runs, synthetic.rows(skill=0.4 * seed), f"bad-s{seed}", seed=1 - seed, alpha_train=0.0
        )
    peers = group_by_setting(gather_records([runs]).records)
    assert [len(entry) for entry in peers[0].entries] == [2, 2]
    whole = document(runs, compare=True)
    gap = not_none(whole.comparisons)[0].gaps["a_rob"]
    assert gap.images.is_distinguishable
    assert not_none(gap.seeds)[0] < 0 < not_none(gap.seeds)[1]
    assert not gap.is_distinguishable
    assert not find_bold_cells(peers[0], not_none(whole.resampled))


def compared(folder: Path, **asked: Any) -> dict[tuple[str, float], dict[str, Gap]]:
    comparisons = not_none(document(folder, compare=True, **asked).comparisons)
    return {
        (
            comparison.line.record.checkpoint.path.split("/")[1],
            not_none(comparison.line.alpha_test),
        ): comparison.gaps
        for comparison in comparisons
    }


def test_differences_are_those_of_the_rows_joined_by_index(runs: Path) -> None:
    this, other = synthetic.rows(skill=0.3), synthetic.rows()
    order = np.random.default_rng(1).permutation(len(this["index"]))
    synthetic.saved(runs, other, "a")
    synthetic.saved(runs, {name: values[order] for name, values in this.items()}, "b")
    gaps = compared(runs)["b", 2.0]
    synthetic.saved(runs, this, "b")
    assert gaps == compared(runs)["b", 2.0]
    right = {
        name: rows["uniform/prediction"] == rows["label"]
        for name, rows in (("this", this), ("other", other))
    }
    assert gaps["a_rob"].images.value == pytest.approx(right["this"].mean() - right["other"].mean())
    assert gaps["a_rob"].images.images == (right["this"] != right["other"]).sum()
    assert set(gaps) == {"a_nat", "a_rob", "a_sa", "a_tr"}


def test_the_first_record_is_the_reference(runs: Path) -> None:
    for name in "abc":
        synthetic.saved(runs, synthetic.rows(seed=ord(name)), name)
    assert {key[0] for key in compared(runs)} == {"b", "c"}
    whole, _ = build_report(gather_records([runs / "c", runs / "a", runs / "b"]), compare=True)
    assert {
        comparison.reference.record.checkpoint.path for comparison in not_none(whole.comparisons)
    } == {"runs/c/last.safetensors"}


def test_where_only_seeds_differ_the_seeds_are_compared(runs: Path) -> None:
    for seed in range(3):
        synthetic.saved(runs, synthetic.rows(skill=0.4 * seed), f"a-s{seed}", seed=seed)
    gaps = compared(runs)
    assert sorted(gaps) == [("a-s1", 1.0), ("a-s1", 2.0), ("a-s2", 1.0), ("a-s2", 2.0)]
    assert gaps["a-s2", 1.0]["a_rob"].is_distinguishable


def texts(folder: Path) -> list[dict[str, str]]:
    (sheet,) = document(folder, compare=True).comparison_tables()
    return [dict(zip(sheet.headings, row, strict=True)) for row in sheet.rows]


def test_models_that_differ_are_not_said_to_be_equal_where_weights_vanish(runs: Path) -> None:
    """At a large alpha only images that are wrong have any weight, in both."""
    for skill, name in ((0.0, "a"), (0.6, "b")):
        synthetic.saved(
            runs, synthetic.rows(skill=skill), name, training={"lr": 1 + skill}, alphas=(1e9,)
        )
    (row,) = texts(runs)
    assert row["A_sa"] == "0; not distinguishable (no image makes a difference)"
    assert "distinguishable" not in row["A_rob"]


def test_equal_models_are_said_to_be_equal(runs: Path) -> None:
    for name in "ab":
        synthetic.saved(runs, synthetic.rows(), name)
    assert {row["A_sa"] for row in texts(runs)} == {f"0; {NO_DIFFERING_IMAGE}"}


def test_what_cannot_be_told_apart_is_said(runs: Path) -> None:
    for seed, name in enumerate("ab"):
        synthetic.saved(runs, synthetic.rows(100, seed=seed), name)
    assert all(INDISTINGUISHABLE in row["A_rob"] for row in texts(runs))


def test_a_single_image_cannot_tell_models_apart(runs: Path) -> None:
    for name, skill in (("a", 9.0), ("b", -9.0)):
        synthetic.saved(runs, synthetic.rows(1, skill=skill), name)
    assert {row["A_rob"] for row in texts(runs)} == {f"-100; {FEW_DIFFERING_IMAGES}"}


def test_a_share_that_one_side_lacks_is_left_out(runs: Path) -> None:
    synthetic.saved(runs, synthetic.rows(), "a")
    synthetic.saved(runs, synthetic.rows(alphas=()), "b")
    assert {row["A_tr"] for row in texts(runs)} == {"-"}


def test_differences_follow_other_alphas(runs: Path) -> None:
    for name, skill in (("a", 0.0), ("b", 0.3)):
        synthetic.saved(runs, synthetic.rows(skill=skill), name)
    whole, _ = build_report(gather_records([runs], [0.0, 7.0]), compare=True)
    at_0, at_7 = not_none(whole.comparisons)
    assert at_0.gaps["a_sa"] == at_0.gaps["a_rob"]
    assert at_7.gaps["a_sa"] != at_0.gaps["a_sa"]
    assert "a_tr" not in at_7.gaps


def test_csv_and_json_hold_every_difference(runs: Path) -> None:
    for name, skill in (("a", 0.0), ("b", 0.3)):
        synthetic.saved(runs, synthetic.rows(skill=skill), name)
    whole = document(runs, compare=True)
    lines = list(csv.DictReader(whole.to_csv().splitlines()))
    assert [(line["share"], line["alpha_test"]) for line in lines[:4]] == [
        (name, "1.0") for name in ACCURACIES
    ]
    (first, _) = whole.to_json()["comparisons"]
    assert float(lines[1]["low"]) == first["a_rob"]["low"]
    assert (first["reference"]["run"], first["run"], first["a_rob"]["verdict"]) == (
        "a",
        "b",
        "distinguishable",
    )
    assert len(whole.to_json()["records"]) == 2


def test_csv_keeps_every_seed_and_says_what_they_give_together(runs: Path) -> None:
    for seed in range(2):
        synthetic.saved(runs, synthetic.rows(skill=0.2 * seed), f"a-s{seed}", seed=seed)
    synthetic.saved(runs, synthetic.rows(), "b", alpha_train=0.0)
    whole = document(runs)
    lines = list(csv.DictReader(whole.to_csv().splitlines()))
    assert [(line["run"], line["train_seed"], line["model"], line["train_seeds"]) for line in lines[::2]] == [
        ("a-s0", "0", "1", "2"), ("a-s1", "1", "1", "2"), ("b", "0", "2", "1"),
    ]  # fmt: skip
    assert {line["peers"] for line in lines} == {"1"}
    mean = sum(float(line["a_rob"]) for line in lines[0:4:2]) / 2
    assert (
        float(lines[0]["a_rob_train_mean"])
        == float(lines[2]["a_rob_train_mean"])
        == pytest.approx(mean)
    )
    assert lines[4]["a_rob_train_sd"] == ""
    first, second, other = whole.to_json()
    assert first["over_seeds"] == second["over_seeds"]
    assert first["over_seeds"]["by_alpha"][0]["a_rob"]["mean"] == pytest.approx(mean)
    assert "over_seeds" not in other


def test_rows_of_other_images_are_refused(runs: Path) -> None:
    synthetic.saved(runs, synthetic.rows(), "a")
    rows = synthetic.rows()
    synthetic.saved(runs, {**rows, "index": rows["index"] + 1}, "b")
    whole, problems = build_report(gather_records([runs]), compare=True)
    assert whole.comparisons == []
    assert "other images" in str(problems[0])


def test_rows_are_opened_only_where_they_are_needed(
    runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synthetic.saved(runs, synthetic.rows(), "a")
    synthetic.saved(runs, synthetic.rows(), "b", eps=0.05)
    monkeypatch.setattr(records, "load_rows", lambda path: pytest.fail("rows were read"))
    assert len(document(runs).tables()[0].rows) == 4
    synthetic.saved(runs, synthetic.rows(), "c")
    assert len(document(runs, ranks=False).to_json()) == 3

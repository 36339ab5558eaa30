"""Groups of comparable records, and rows over the training seeds of one model."""

import json
from typing import Any

import msgspec
import pytest

from support import synthetic
from support.typed import not_none
from wmr_cli.measures import Estimate
from wmr_cli.reporting.grouping import group_by_setting, list_differing_fields
from wmr_cli.reporting.rows import ReportRow, make_group_rows, row_name
from wmr_cli.storage.records import AttackFacts, DatasetFacts, Record

ROWS = synthetic.make_rows(60)


def record(name: str = "a-s0", **facts: Any) -> Record:
    return synthetic.make_record(ROWS, name, **facts)


def seed_counts(records: list[Record]) -> list[list[int]]:
    """Return the number of seeds of each entry of each group."""
    return [[len(entry) for entry in group.entries] for group in group_by_setting(records)]


def test_runs_that_differ_only_in_the_seed_are_one_entry() -> None:
    assert seed_counts([record("a-s0"), record("a-s1", seed=1), record("a-s2", seed=2)]) == [[3]]


@pytest.mark.parametrize(
    "other",
    [
        {"training": {"lr": 0.1}},
        {"training": {"epochs": 31}},
        {"alpha_train": 1.0},
        {"epoch": 29},
        {"weights": "best.safetensors"},
        {"config": None},
    ],
    ids=str,
)
def test_runs_with_other_differences_are_separate_entries(
    other: dict[str, dict[str, float] | float | str | None],
) -> None:
    assert seed_counts([record(), record("a-s1", seed=1, **other)]) == [[1, 1]]


def test_best_weights_of_seeds_are_one_entry_whatever_their_epoch() -> None:
    best = [
        record(f"a-s{seed}", seed=seed, weights="best.safetensors", epoch=10 + seed)
        for seed in range(2)
    ]
    assert seed_counts(best) == [[2]]


def test_second_checkpoint_of_a_seed_is_a_separate_entry() -> None:
    assert seed_counts([record("a"), record("b"), record("c", seed=1)]) == [[2, 1]]


def test_records_without_training_settings_are_separate_entries() -> None:
    assert seed_counts(
        [record("a-s0", config=None, epoch=None), record("a-s1", seed=1, config=None, epoch=None)]
    ) == [[1, 1]]


def test_record_without_epoch_and_config_is_loaded() -> None:
    stored = json.loads(record().to_json())
    for name in ("epoch", "config"):
        del stored["checkpoint"][name]
    old = Record.from_json(json.dumps(stored))
    assert (old.checkpoint.epoch, old.checkpoint.config) == (None, None)
    assert Record.from_json(old.to_json()) == old


def change_record(**parts: Any) -> Record:
    return msgspec.structs.replace(record("b"), id="b", **parts)


@pytest.mark.parametrize(
    ("other", "field"),
    [
        (record("b", eps=0.1), "eps"),
        (record("b", norm="l2"), "norm"),
        (record("b", attack="pgd:steps=40"), "attack"),
        (record("b", dataset="mnist"), "data"),
        (
            change_record(
                dataset=DatasetFacts(
                    name="digits", split="test", n=60, sha256="digits", indices=list(range(60))
                )
            ),
            "data",
        ),
        (
            change_record(attack=AttackFacts(spec="pgd:steps=20,step=0.015", seed=1, restarts=1)),
            "attack",
        ),
        (
            change_record(attack=AttackFacts(spec="pgd:steps=20,step=0.015", seed=0, restarts=2)),
            "attack",
        ),
        (change_record(kernel="mail"), "kernel"),
    ],
    ids=["eps", "norm", "attack", "data", "subset", "attack seed", "restarts", "kernel"],
)
def test_records_of_other_settings_are_separate_groups(other: Record, field: str) -> None:
    groups = group_by_setting([record("a"), other])
    assert len(groups) == 2
    assert list_differing_fields([group.setting for group in groups]) == [field]


def worst(name: str, parts: list[Record]) -> Record:
    return synthetic.make_worst_record(name, parts, ROWS)


def test_worst_cases_of_the_same_attacks_are_comparable() -> None:
    parts = {name: [record(name), record(name, attack="fgsm")] for name in ("a", "b")}
    worst_cases = [worst(name, members) for name, members in parts.items()]
    assert seed_counts([*parts["a"], *parts["b"], *worst_cases])[-1] == [1, 1]
    other_parts = [record("c"), record("c", attack="square")]
    other = worst("c", other_parts)
    groups = group_by_setting([*parts["a"], worst_cases[0], *other_parts, other])
    assert len(groups) == 5


def test_worst_cases_without_the_records_of_their_attacks_are_separate() -> None:
    worst_cases = [worst(name, [record(name)]) for name in ("a", "b")]
    assert seed_counts(worst_cases) == [[1], [1]]


def rows_of(records: list[Record]) -> list[ReportRow]:
    return [
        row
        for group in group_by_setting(records)
        for entry in group.entries
        for row in make_group_rows(entry)
    ]


def test_row_over_seeds_has_mean_interval_and_spread() -> None:
    skills = (0.0, 0.3)
    each = [
        synthetic.make_record(synthetic.make_rows(60, skill=skill), f"a-s{seed}", seed=seed)
        for seed, skill in enumerate(skills)
    ]
    at_1, at_2 = rows_of(each)
    estimates = [not_none(one.by_alpha[1].a_sa) for one in each]
    assert (at_1.alpha_test, at_2.alpha_test, at_2.seeds) == (1.0, 2.0, 2)
    mean = not_none(at_2.accuracy("a_sa"))
    first, second = estimates
    assert mean.value == pytest.approx((first.value + second.value) / 2)
    assert mean.low == pytest.approx((first.low + second.low) / 2)
    assert mean.ess == min(not_none(first.ess), not_none(second.ess))
    spread = not_none(at_2.training_spread("a_sa"))
    assert spread.sd == pytest.approx(abs(first.value - second.value) / 2**0.5)
    assert at_2.by_training_seed("a_sa") == {0: first.value, 1: second.value}


def test_seeds_are_joined_at_each_alpha() -> None:
    found = rows_of([record("a-s0", alphas=(1.0, 2.0)), record("a-s1", seed=1, alphas=(2.0, 5.0))])
    assert [(row.alpha_test, row.seeds) for row in found] == [(1.0, 1), (2.0, 2), (5.0, 1)]


def test_records_of_one_checkpoint_are_one_model() -> None:
    found = rows_of([record("a-s0"), record("a-s0", alphas=(5.0,)), record("a-s1", seed=1)])
    assert [(row.alpha_test, row.seeds) for row in found] == [(1.0, 2), (2.0, 2), (5.0, 1)]
    alone = rows_of([record("a-s0"), record("a-s0", alphas=(2.0, 5.0))])
    assert [row.alpha_test for row in alone] == [1.0, 2.0, 2.0, 5.0]  # all are shown


def test_accuracy_missing_for_one_seed_is_left_out() -> None:
    one = record("a-s0")
    other = record("a-s1", seed=1)
    rows = [msgspec.structs.replace(row, a_tr=None) for row in other.by_alpha]
    (row, _) = rows_of([one, msgspec.structs.replace(other, by_alpha=rows)])
    assert isinstance(row.accuracy("a_sa"), Estimate)
    assert row.accuracy("a_tr") is None
    assert row.training_spread("a_tr") is None


@pytest.mark.parametrize(
    ("names", "shown"),
    [
        (("x-s0", "x-s1"), "x-s*"),
        (("x-s0-b", "x-s1-b"), "x-s*-b"),
        (("x", "y"), "x and 1 more"),
        (("x-s0",), "x-s0"),
    ],
)
def test_name_of_a_row_over_seeds(names: tuple[str, ...], shown: str) -> None:
    assert (
        row_name(rows_of([record(name, seed=seed) for seed, name in enumerate(names)])[0]) == shown
    )

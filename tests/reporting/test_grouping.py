"""Which records may be compared, and which are one model trained with several seeds."""

import json
from typing import Any

import msgspec
import pytest

from support import synthetic
from support.typed import not_none
from wmr_cli.measures import Estimate
from wmr_cli.reporting.grouping import differing, group_by_setting
from wmr_cli.reporting.rows import ReportRow, make_group_rows, row_name
from wmr_cli.storage.records import AttackFacts, DatasetFacts, Record

ROWS = synthetic.rows(60)


def record(name: str = "a-s0", **facts: Any) -> Record:
    return synthetic.record(ROWS, name, **facts)


def sizes(records: list[Record]) -> list[list[int]]:
    """How many models each entry of each peers has."""
    return [[len(entry) for entry in peers.entries] for peers in group_by_setting(records)]


def test_runs_that_differ_in_the_seed_alone_are_one_entry() -> None:
    assert sizes([record("a-s0"), record("a-s1", seed=1), record("a-s2", seed=2)]) == [[3]]


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
def test_any_other_difference_is_another_entry(
    other: dict[str, dict[str, float] | float | str | None],
) -> None:
    assert sizes([record(), record("a-s1", seed=1, **other)]) == [[1, 1]]


def test_the_best_weights_of_each_seed_belong_together_whatever_their_epoch() -> None:
    best = [
        record(f"a-s{seed}", seed=seed, weights="best.safetensors", epoch=10 + seed)
        for seed in range(2)
    ]
    assert sizes(best) == [[2]]


def test_other_weights_of_the_same_seed_are_never_taken_for_a_seed() -> None:
    assert sizes([record("a"), record("b"), record("c", seed=1)]) == [[2, 1]]


def test_records_without_settings_stay_by_themselves() -> None:
    assert sizes(
        [record("a-s0", config=None, epoch=None), record("a-s1", seed=1, config=None, epoch=None)]
    ) == [[1, 1]]


def test_a_record_of_an_earlier_version_is_read() -> None:
    stored = json.loads(record().to_json())
    for name in ("epoch", "config"):
        del stored["checkpoint"][name]
    old = Record.from_json(json.dumps(stored))
    assert (old.checkpoint.epoch, old.checkpoint.config) == (None, None)
    assert Record.from_json(old.to_json()) == old


def changed(**parts: Any) -> Record:
    return msgspec.structs.replace(record("b"), id="b", **parts)


@pytest.mark.parametrize(
    ("other", "word"),
    [
        (record("b", eps=0.1), "eps"),
        (record("b", norm="l2"), "norm"),
        (record("b", attack="pgd:steps=40"), "attack"),
        (record("b", dataset="mnist"), "data"),
        (
            changed(
                dataset=DatasetFacts(
                    name="digits", split="test", n=60, sha256="digits", indices=list(range(60))
                )
            ),
            "data",
        ),
        (changed(attack=AttackFacts(spec="pgd:steps=20,step=0.015", seed=1, restarts=1)), "attack"),
        (changed(attack=AttackFacts(spec="pgd:steps=20,step=0.015", seed=0, restarts=2)), "attack"),
        (changed(kernel="mail"), "kernel"),
    ],
    ids=["eps", "norm", "attack", "data", "subset", "seed of the attack", "restarts", "kernel"],
)
def test_what_was_not_measured_alike_is_not_compared(other: Record, word: str) -> None:
    found = group_by_setting([record("a"), other])
    assert len(found) == 2
    assert differing([peers.setting for peers in found]) == [word]


def worst(name: str, parts: list[Record]) -> Record:
    return synthetic.worst(name, parts, ROWS)


def test_worst_cases_of_the_same_attacks_are_compared() -> None:
    parts = {name: [record(name), record(name, attack="fgsm")] for name in ("a", "b")}
    alike = [worst(name, members) for name, members in parts.items()]
    assert sizes([*parts["a"], *parts["b"], *alike])[-1] == [1, 1]
    other = worst("c", [record("c"), record("c", attack="square")])
    assert (
        len(
            group_by_setting(
                [*parts["a"], alike[0], record("c"), record("c", attack="square"), other]
            )
        )
        == 5
    )


def test_worst_cases_whose_parts_are_not_there_stand_alone() -> None:
    alike = [worst(name, [record(name)]) for name in ("a", "b")]
    assert sizes(alike) == [[1], [1]]


def lines(records: list[Record]) -> list[ReportRow]:
    return [
        line
        for peers in group_by_setting(records)
        for entry in peers.entries
        for line in make_group_rows(entry)
    ]


def test_a_line_over_seeds_has_their_mean_and_keeps_the_spread_apart_from_the_interval() -> None:
    skills = (0.0, 0.3)
    each = [
        synthetic.record(synthetic.rows(60, skill=skill), f"a-s{seed}", seed=seed)
        for seed, skill in enumerate(skills)
    ]
    at_1, at_2 = lines(each)
    shares = [one.by_alpha[1].a_sa for one in each]
    assert (at_1.alpha_test, at_2.alpha_test, at_2.seeds) == (1.0, 2.0, 2)
    found = at_2.accuracy("a_sa")
    assert not_none(found).value == pytest.approx(
        sum(not_none(share).value for share in shares) / 2
    )
    assert not_none(found).low == pytest.approx(sum(not_none(share).low for share in shares) / 2)
    assert not_none(found).ess == min(not_none(not_none(share).ess) for share in shares)
    spread = at_2.training_spread("a_sa")
    assert not_none(spread).sd == pytest.approx(
        abs(not_none(shares[0]).value - not_none(shares[1]).value) / 2**0.5
    )
    assert at_2.by_training_seed("a_sa") == {
        0: not_none(shares[0]).value,
        1: not_none(shares[1]).value,
    }


def test_seeds_are_joined_alpha_by_alpha() -> None:
    found = lines([record("a-s0", alphas=(1.0, 2.0)), record("a-s1", seed=1, alphas=(2.0, 5.0))])
    assert [(line.alpha_test, line.seeds) for line in found] == [(1.0, 1), (2.0, 2), (5.0, 1)]


def test_several_records_of_the_same_weights_are_one_model() -> None:
    found = lines([record("a-s0"), record("a-s0", alphas=(5.0,)), record("a-s1", seed=1)])
    assert [(line.alpha_test, line.seeds) for line in found] == [(1.0, 2), (2.0, 2), (5.0, 1)]
    alone = lines([record("a-s0"), record("a-s0", alphas=(2.0, 5.0))])
    assert [line.alpha_test for line in alone] == [1.0, 2.0, 2.0, 5.0]  # all are shown


def test_a_share_that_one_seed_lacks_is_left_out() -> None:
    one, other = record("a-s0"), record("a-s1", seed=1)
    rows = [msgspec.structs.replace(row, a_tr=None) for row in other.by_alpha]
    (line, _) = lines([one, msgspec.structs.replace(other, by_alpha=rows)])
    assert isinstance(line.accuracy("a_sa"), Estimate)
    assert line.accuracy("a_tr") is None
    assert line.training_spread("a_tr") is None


@pytest.mark.parametrize(
    ("names", "shown"),
    [
        (("x-s0", "x-s1"), "x-s*"),
        (("x-s0-b", "x-s1-b"), "x-s*-b"),
        (("x", "y"), "x and 1 more"),
        (("x-s0",), "x-s0"),
    ],
)
def test_seeds_are_called_by_what_their_names_share(names: tuple[str, ...], shown: str) -> None:
    assert row_name(lines([record(name, seed=seed) for seed, name in enumerate(names)])[0]) == shown

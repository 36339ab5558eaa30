"""Requirements: their grammar, and which records and which end of an interval they judge."""

from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np
import pytest

from support import synthetic
from support.page_data import make_logit_rows
from wmr_cli.errors import BadInput
from wmr_cli.measures import Estimate, sampled_accuracy, wilson, worst_rows
from wmr_cli.reporting.requirements import Judgement, judge, parse_requirements
from wmr_cli.storage.records import Record, Rows

GRAMMAR = [
    ("a_rob>=0.45", ("a_rob", None, ">=", 0.45)),
    ("a_rob >= 45%", ("a_rob", None, ">=", 0.45)),
    ("a_rob>=9/20", ("a_rob", None, ">=", 0.45)),
    ("a_sa@2>=.3", ("a_sa", 2.0, ">=", 0.3)),
    ("a_tr @ 1.5 <= 29%", ("a_tr", 1.5, "<=", 0.29)),
    ("a_cal@1/2>=0", ("a_cal", 0.5, ">=", 0.0)),
    ("a_nat>=100%", ("a_nat", None, ">=", 1.0)),
]


@pytest.mark.parametrize(("text", "meaning"), GRAMMAR)
def test_the_grammar_of_a_requirement(
    text: str, meaning: tuple[str, float | None, str, float]
) -> None:
    (parsed,) = parse_requirements([text])
    assert (parsed.metric, parsed.alpha, parsed.sign, parsed.threshold) == meaning
    # what messages show is the same requirement
    assert parse_requirements([str(parsed)]) == [parsed]


def test_lists_and_repeated_flags_join_and_repetitions_count_once() -> None:
    joined = parse_requirements(["a_nat>=0.9, a_rob>=0.4", "a_rob>=40%"])
    assert [one.metric for one in joined] == ["a_nat", "a_rob"]


WRONG = (
    "", "a_rob", "a_rob>0.4", "a_rob=>0.4", "a_rob>=", "a_rob>=45", "a_rob>=-0.1", "a_rob>=nan",
    "a_rob>=1/0", "a_rob@2>=0.4", "a_sa@x>=0.4", "a_sa@-1>=0.4", "rob>=0.4", "a_rob>=0.4,",
    "a_rob>=0.4>=0.3", "a_sa@>=0.4", "a_rob>=4%%",
)  # fmt: skip


@pytest.mark.parametrize("text", WRONG)
def test_other_texts_are_refused_with_a_hint(text: str) -> None:
    with pytest.raises(BadInput, match="`require`") as refused:
        parse_requirements([text])
    assert refused.value.hint


def _judge(text: str, found: Sequence[tuple[Path, Record]]) -> list[Judgement]:
    return judge(parse_requirements([text]), found)


def _save(folder: Path, rows: Rows, **facts: object) -> tuple[Path, Record]:
    return synthetic.save_record(folder, synthetic.make_record(rows, **facts), rows)  # type: ignore[arg-type]


def test_the_end_of_the_interval_decides(tmp_path: Path) -> None:
    found = [_save(tmp_path, synthetic.make_rows())]
    a_rob = found[0][1].a_rob
    assert a_rob is not None
    assert a_rob.low < a_rob.value < a_rob.high
    for sign, end in ((">=", a_rob.low), ("<=", a_rob.high)):
        outside = np.nextafter(end, 2.0 if sign == ">=" else -1.0)
        assert [one.is_met for one in _judge(f"a_rob{sign}{end!r}", found)] == [True]
        assert [one.is_met for one in _judge(f"a_rob{sign}{float(outside)!r}", found)] == [False]
        # the estimate itself is not enough
        assert [one.is_met for one in _judge(f"a_rob{sign}{a_rob.value!r}", found)] == [False]


def test_a_weighted_accuracy_counts_at_every_alpha_or_at_one_from_the_rows(tmp_path: Path) -> None:
    rows = synthetic.make_rows()
    found = [_save(tmp_path, rows)]
    alphas = [one.requirement.alpha for one in _judge("a_sa>=0.1", found)]
    assert alphas == [1.0, 2.0]
    (other,) = _judge("a_sa@0.7>=0.1", found)
    assert other.estimate == sampled_accuracy(rows, "exp", 0.7)
    with pytest.raises(BadInput, match=r"a_tr@0\.7") as refused:
        _judge("a_tr@0.7>=0.1", found)
    assert refused.value.hint


def test_a_cal_is_fitted_where_rows_have_logits(tmp_path: Path) -> None:
    found = [_save(tmp_path, make_logit_rows(0))]
    assert not found[0][1].calibration
    assert [one.requirement.alpha for one in _judge("a_cal>=0", found)] == [1.0, 2.0]
    assert [one.requirement.alpha for one in _judge("a_cal@3>=0", found)] == [3.0]
    without = [_save(tmp_path, synthetic.make_rows(), attack="pgd:steps=7")]
    with pytest.raises(BadInput):
        _judge("a_cal@1>=0", without)


def test_the_worst_case_replaces_its_attacks_where_it_has_the_metric(tmp_path: Path) -> None:
    weak, strong = synthetic.make_rows(skill=0.6), synthetic.make_rows(seed=1)
    stops_early = {
        name: values
        for name, values in synthetic.make_rows(skill=0.1, seed=2).items()
        if not name.startswith(("uniform/", "weighted@")) or name == "uniform/prediction"
    }
    parts = [
        _save(tmp_path, weak, attack="fgsm"),
        _save(tmp_path, strong, attack="pgd:steps=9"),
        _save(tmp_path, stops_early, attack="autoattack"),
    ]
    rows = worst_rows([weak, strong, stops_early])
    worst = synthetic.make_worst_record("digits-trades-a2-s0", [one for _, one in parts], rows)
    found = [*parts, synthetic.save_record(tmp_path, worst, rows)]
    (on_worst,) = _judge("a_rob>=0.1", found)
    assert on_worst.record == worst
    # the worst case has no margins, so A_sa counts for each attack that has it
    on_parts = _judge("a_sa@2>=0.1", found)
    assert [one.record.attack.spec for one in on_parts] == ["fgsm", "pgd:steps=9"]
    # an attack that is not part of the worst case counts as well
    other = _save(tmp_path, synthetic.make_rows(seed=3), attack="pgd:steps=1")
    specs = {one.record.attack.spec for one in _judge("a_rob>=0.1", [*found, other])}
    assert specs == {"worst", "pgd:steps=1"}
    # the same images are clean under every attack
    assert len(_judge("a_nat>=0.1", [*found, other])) == 1


def test_every_model_and_radius_needs_a_measurement(tmp_path: Path) -> None:
    rows = synthetic.make_rows()
    both = [_save(tmp_path, rows, eps=0.1), _save(tmp_path, rows, eps=0.2)]
    assert len(_judge("a_rob>=0.1", both)) == 2
    assert len(_judge("a_nat>=0.1", both)) == 1
    clean_only = msgspec.structs.replace(both[1][1], a_rob=None)
    with pytest.raises(BadInput, match=r"ε 0\.2"):
        _judge("a_rob>=0.1", [both[0], (both[1][0], clean_only)])
    other = synthetic.make_record(rows, "other")
    both.append(synthetic.save_record(tmp_path, other, rows))
    assert len(_judge("a_nat>=0.1", both)) == 2


def test_an_interval_without_width_is_replaced_by_wilson_of_the_effective_images(
    tmp_path: Path,
) -> None:
    found = [_save(tmp_path, synthetic.make_rows(60, skill=90.0))]
    (judged,) = _judge("a_sa@2>=0.99", found)
    stored = found[0][1].by_alpha[1].a_sa
    assert stored is not None
    assert stored.degenerate
    assert stored.ess is not None
    expected = wilson(int(stored.ess), int(stored.ess))
    assert judged.estimate == Estimate(1.0, expected.low, 1.0, stored.ess)
    assert not judged.is_met
    assert _judge("a_sa@2>=0.9", found)[0].is_met

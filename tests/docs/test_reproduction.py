"""Verdicts on the paper's claims follow from stored records, and the page follows from both."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import claims
import reproduce
from claims import WORST_CASE_CLAIM, check_claims, check_orders
from logit_scale import check_scale, check_worst_cases
from support import synthetic
from verdicts import (
    Finding,
    RecordFile,
    Sign,
    combine_signs,
    format_points,
    judge_no_loss,
    select_defense,
)
from wmr_cli import measures
from wmr_cli.measures import Difference
from wmr_cli.reporting.comparison import Gap
from wmr_cli.storage.records import Rows

ROOT = Path(__file__).parents[2]


PGD = "pgd:steps=20,step=0.015"
PGD_MARGIN = "pgd-margin:steps=20,step=0.015"


def save_records(
    folder: Path, skill: float, attack: str = PGD, **other_skills: float
) -> list[RecordFile]:
    """Save records of three seeds without weights, and of three with alpha 2 and this skill.

    `other_skills` add further alphas, such as `a1=0.3`.
    """
    skills = {2.0: skill, 0.0: 0.0}
    skills |= {float(name[1:]): other for name, other in other_skills.items()}
    return [
        save_record(folder, alpha, seed, attack, synthetic_rows(of_alpha, seed))
        for alpha, of_alpha in skills.items()
        for seed in range(3)
    ]


def synthetic_rows(skill: float, seed: int) -> Rows:
    return synthetic.make_rows(300, skill=skill + 0.001 * seed, seed=seed, logits=True)


def save_record(folder: Path, alpha: float, seed: int, attack: str, rows: Rows) -> RecordFile:
    record = synthetic.make_record(
        rows,
        f"digits-trades-a{alpha:g}-s{seed}",
        seed=seed,
        attack=attack,
        evaluation=synthetic.WITH_DRO,
        alpha_train=alpha,
        training={"eps": 0.15},
    )
    return synthetic.save_record(folder / f"{alpha}-{seed}" / "evaluations", record, rows)


def verdicts(records: list[RecordFile]) -> dict[str, str]:
    return {finding.claim: finding.verdict for finding in check_claims(records)}


@pytest.mark.parametrize(
    ("skill", "gain", "loss"),
    [
        (0.6, "holds", "holds"),
        (-0.6, "does not hold", "does not hold"),
        (0.0, "not distinguishable", "not distinguishable"),
    ],
)
def test_a_verdict_follows_from_the_differences(
    tmp_path: Path, skill: float, gain: str, loss: str
) -> None:
    said = verdicts(save_records(tmp_path, skill))
    assert said["A_sa is higher with weights"] == gain
    assert said["A_tr is higher with weights"] == gain
    assert said["no loss of A_rob under the uniform attack"] == loss
    assert not {"A_rob gains under PGD-margin", WORST_CASE_CLAIM} & set(said)
    assert "A_sa rises from one α_train to the next" not in said  # there is only one


@pytest.mark.parametrize(("between", "verdict"), [(0.6, "holds"), (1.8, "does not hold")])
def test_a_rise_needs_a_gain_from_each_alpha_to_the_next(
    tmp_path: Path, between: float, verdict: str
) -> None:
    said = verdicts(save_records(tmp_path, 1.2, a1=between))
    assert said["A_sa is higher with weights"] == "holds"
    assert said["A_sa rises from one α_train to the next"] == verdict


def test_one_seed_of_training_gives_no_verdict(tmp_path: Path) -> None:
    records = [one for one in save_records(tmp_path, 0.6) if one[1].checkpoint.seed == 0]
    said = verdicts(records)
    assert [said.pop(claim) for claim in claims.ORDERS] == ["holds"] * 3
    assert set(said.values()) == {"one seed, no verdict"}
    assert "A_sa is higher with weights" in said


def test_each_attack_is_judged_by_its_own_records(tmp_path: Path) -> None:
    said = verdicts(
        [*save_records(tmp_path / "pgd", 0.6), *save_records(tmp_path / "margin", -0.6, PGD_MARGIN)]
    )
    assert said["A_sa is higher with weights"] == "holds"
    assert said["A_rob gains under PGD-margin"] == "does not hold"
    assert said[WORST_CASE_CLAIM] == "does not hold"


def test_an_image_that_fails_under_two_attacks_counts_once(tmp_path: Path) -> None:
    records = [
        *save_records(tmp_path / "pgd", 0.6),
        *save_records(tmp_path / "margin", 0.6, PGD_MARGIN),
    ]  # both attacks succeed on the same images
    found = {finding.claim: finding.found for finding in check_claims(records)}
    of_margin = found["A_rob gains under PGD-margin"].removeprefix("α 2: ")
    of_both = found[WORST_CASE_CLAIM].removeprefix(f"α 2, {PGD_MARGIN}, {PGD}: ")
    assert of_margin == of_both


def test_a_training_without_reference_is_not_compared(tmp_path: Path) -> None:
    records = [
        *save_records(tmp_path / "pgd", 0.6, a1=0.3),
        *save_records(tmp_path / "margin", 0.6, PGD_MARGIN, a1=0.3),
    ]
    partial = [
        one
        for one in records
        if one[1].checkpoint.alpha_train or not one[1].attack.spec.startswith("pgd-margin")
    ]
    assert "A_rob gains under PGD-margin" in verdicts(records)
    assert "A_rob gains under PGD-margin" not in verdicts(partial)


@pytest.mark.parametrize(
    ("images", "seeds", "number", "verdict"),
    [
        ((-0.009, 0.02), (-0.005, 0.01), 50, "holds"),
        ((-0.009, 0.02), None, 50, "one seed, no verdict"),
        ((0.0, 0.0), (0.0, 0.0), 0, "not distinguishable"),
        ((-0.02, 0.02), (-0.005, 0.01), 50, "not distinguishable"),
        ((-0.009, 0.02), (-0.03, 0.03), 50, "not distinguishable"),
        ((-0.03, -0.01), (-0.03, -0.01), 50, "does not hold"),
        ((-0.008, -0.001), (-0.006, -0.001), 50, "does not hold"),
        ((-0.03, -0.01), (-0.05, 0.01), 50, "not distinguishable"),
    ],
)
def test_no_loss_holds_if_the_intervals_exclude_one_point(
    images: tuple[float, float], seeds: tuple[float, float] | None, number: int, verdict: str
) -> None:
    low, high = images
    one = Gap(Difference((low + high) / 2, low, high, effective_images=number), seeds)
    harmless = Gap(Difference(0.05, 0.04, 0.06, effective_images=50), (0.01, 0.09))
    assert judge_no_loss([harmless, one]) == verdict


@pytest.mark.parametrize(
    ("spared", "verdict", "text"),
    [
        (0, "holds", None),
        (1, "not distinguishable", "significant in 0"),
        (60, "does not hold", "significant in 1"),
    ],
)
def test_an_order_is_violated_by_a_significant_difference_only(
    tmp_path: Path, spared: int, verdict: str, text: str | None
) -> None:
    records = save_records(tmp_path, 0.0)
    rows = synthetic.make_rows(300)
    prefix = measures.at_alpha("weighted", 2.0)
    for name in ("prediction", "margin"):
        rows[f"{prefix}/{name}"] = rows[f"uniform/{name}"].copy()
    # misclassified under the uniform attack, correct under the weighted one
    better = np.flatnonzero(rows["uniform/margin"] < 0)[:spared]
    rows[f"{prefix}/prediction"][better] = rows["label"][better]
    rows[f"{prefix}/margin"][better] = 0.01
    record = synthetic.make_record(
        rows, "other", attack=PGD, alphas=(2.0,), alpha_train=2.0, training={"eps": 0.15}
    )
    records.append(synthetic.save_record(tmp_path / "other" / "evaluations", record, rows))
    said = {finding.claim: finding for finding in check_orders(records, "trades")}
    assert said["A_sa ≤ A_rob (a theorem)"].verdict == "holds"
    assert said["A_tr ≤ A_sa"].verdict == verdict
    assert text is None or text in said["A_tr ≤ A_sa"].found


def test_a_violated_theorem_is_reported(tmp_path: Path) -> None:
    rows = synthetic.make_rows(300)
    # no model misclassifies the images with the largest margins
    rows["uniform/margin"] = -rows["uniform/margin"]
    record = synthetic.make_record(rows, attack=PGD, alphas=(2.0,))
    (said,) = [
        one
        for one in check_orders([synthetic.save_record(tmp_path, record, rows)], "trades")
        if "theorem" in one.claim
    ]
    assert (said.found.partition(";")[0], said.verdict) == ("in 0 of 1 lines", "does not hold")


def save_rescaled_records(folder: Path, skill: float) -> list[RecordFile]:
    """Save records of weighted models whose logits are 0.3 times those of unweighted ones."""
    records = []
    for alpha, factor in ((2.0, 0.3), (0.0, 1.0)):
        for seed in range(3):
            rows = synthetic.make_rows(300, skill=(skill if alpha else 0.0), seed=seed)
            margin = rows["uniform/logit_margin"][:, None]
            is_label = np.eye(10)[rows["label"]]
            is_rival = np.roll(is_label, 1, axis=1)
            # the label has the margin, one rival has 0, all others have -5
            rows["uniform/logits"] = factor * (margin * is_label - 5 * (1 - is_label - is_rival))
            rows["uniform/loss"] = np.log1p(np.exp(-factor * margin[:, 0]))
            records.append(save_record(folder, alpha, seed, PGD, rows))
    return select_defense(records, "trades")


WITHOUT_AND_WITH_SKILL = pytest.mark.parametrize(
    ("skill", "verdict"), [(0.0, "not distinguishable"), (0.6, "holds")]
)


@WITHOUT_AND_WITH_SKILL
def test_a_gain_from_scale_vanishes_with_calibration(
    tmp_path: Path, skill: float, verdict: str
) -> None:
    kept, taken = check_scale(save_rescaled_records(tmp_path, skill), "pgd", "trades")
    assert (kept.verdict, taken.verdict) == (verdict, "holds")
    gained = float(kept.found.split("A_sa(2) ")[1].split(" ")[0])
    assert gained > 5  # as it is, the other scale looks like a gain


@WITHOUT_AND_WITH_SKILL
def test_a_better_worst_case_from_scale_vanishes_with_calibration(
    tmp_path: Path, skill: float, verdict: str
) -> None:
    said = {
        finding.claim: finding.verdict
        for finding in check_worst_cases(save_rescaled_records(tmp_path, skill), "ce", "trades")
    }
    assert said["DRO: loss, calibrated, of the worst case by cross-entropy"] == verdict
    assert said["DRO: loss of the worst case by cross-entropy"] == "holds"


@pytest.mark.parametrize(
    ("signs", "verdict"),
    [
        ([(True, True), (True, True)], "holds"),
        ([(True, False), (True, False)], "does not hold"),
        ([(True, False), (False, True)], "does not hold in 1 of 2"),
        ([(True, True), (True, False), (False, True)], "does not hold in 1 of 3, holds in 1 of 3"),
        ([(True, True), (False, False)], "holds in 1 of 2"),
        ([(False, True), (False, False)], "not distinguishable"),
    ],
)
def test_a_verdict_needs_all_differences(signs: list[tuple[bool, bool]], verdict: str) -> None:
    assert combine_signs([Sign(*sign) for sign in signs]) == verdict


def test_one_seed_of_one_attack_gives_no_verdict_on_it(tmp_path: Path) -> None:
    margin = [
        one
        for one in save_records(tmp_path / "margin", -0.6, PGD_MARGIN)
        if one[1].checkpoint.seed == 0
    ]
    said = verdicts([*save_records(tmp_path / "pgd", 0.6), *margin])
    assert said["A_rob gains under PGD-margin"] == "one seed, no verdict"
    assert said["A_sa is higher with weights"] == "holds"


@pytest.mark.parametrize(
    ("value", "said"),
    [(0.0123, "+1.2"), (-0.0004, "-0.04"), (0.0, "+0.0"), (0.0006, "+0.1"), (-1e-9, "-0.00")],
)
def test_percentage_points_have_a_sign_and_a_second_digit_near_zero(
    value: float, said: str
) -> None:
    assert format_points(value) == said


def test_verdicts_of_all_studies_are_one_table(monkeypatch: pytest.MonkeyPatch) -> None:
    findings = {
        "large": [
            Finding("order", "trades", "", "holds"),
            Finding("gain", "trades", "", "does not hold"),
        ],
        "small": [
            Finding("gain", "pgd", "", "holds in 1 of 2"),
            Finding("loss", "trades", "", "not distinguishable"),
        ],
    }
    monkeypatch.setattr(reproduce, "find_results", findings.__getitem__)
    monkeypatch.setattr(reproduce, "count_seeds", lambda name, defense: "3 seeds")
    (table,) = reproduce.verdict_table(["large", "small"])
    assert [
        [cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()
    ] == [
        ["claim", "large, trades, 3 seeds", "small, pgd, 3 seeds", "small, trades, 3 seeds"],
        ["---"] * 4,
        ["order", "holds", "-", "-"],
        ["gain", "does not hold", "holds in 1 of 2", "-"],
        ["loss", "-", "-", "not distinguishable"],
    ]


@pytest.mark.slow
def test_the_page_is_current() -> None:
    done = subprocess.run(
        [sys.executable, ROOT / "docs" / "reproduce.py", "--check"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")

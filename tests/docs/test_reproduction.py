"""The page What we found: verdicts follow from records, and the page from both."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from support import synthetic
from wmr_cli import measures
from wmr_cli.measures import Difference
from wmr_cli.reporting.ranking import Gap

ROOT = Path(__file__).parents[2]


def of_docs(name: str):
    """A program of the folder docs, which is no package."""
    location = importlib.util.spec_from_file_location(name, ROOT / "docs" / f"{name}.py")
    module = importlib.util.module_from_spec(location)
    sys.modules[name] = module  # dataclasses look for their own module, and one program for another
    location.loader.exec_module(module)
    return module


judging, scale, claims, reproduce = (
    of_docs(name) for name in ("judging", "scale", "claims", "reproduce")
)

PGD, MARGIN = "pgd:steps=20,step=0.015", "pgd-margin:steps=20,step=0.015"


def found(folder: Path, skill: float, attack: str = PGD, **others: float):
    """Three seeds without weights, and three with them, of more or less skill; other alphas by name, as `a1=0.3`."""
    made_of = []
    for alpha, extra in (
        (2.0, skill),
        (0.0, 0.0),
        *((float(name[1:]), extra) for name, extra in others.items()),
    ):
        for seed in range(3):
            rows = synthetic.rows(300, skill=extra + 0.001 * seed, seed=seed, logits=True)
            record = synthetic.record(
                rows, f"digits-trades-a{alpha:g}-s{seed}", seed=seed, attack=attack, asked=synthetic.WITH_BALLS,
                alpha_train=alpha, training={"eps": 0.15},
            )  # fmt: skip
            made_of.append(
                synthetic.stored(folder / f"{alpha}-{seed}" / "evaluations", record, rows)
            )
    return made_of


def verdicts(records) -> dict[str, str]:
    return {finding.claim: finding.verdict for finding in claims.findings(records)}


@pytest.mark.parametrize(
    ("skill", "gain", "loss"),
    [
        (0.6, "holds", "holds"),
        (-0.6, "does not hold", "does not hold"),
        (0.0, "not distinguishable", "not distinguishable"),
    ],
)
def test_a_claim_is_judged_by_its_differences(
    tmp_path: Path, skill: float, gain: str, loss: str
) -> None:
    said = verdicts(found(tmp_path, skill))
    assert (said["A_sa is higher with weights"], said["A_tr is higher with weights"]) == (
        gain,
        gain,
    )
    assert said["no loss of A_rob under the uniform attack"] == loss
    assert not {"A_rob gains under PGD-margin", "A_rob gains under the worst of all attacks"} & set(
        said
    )
    assert "A_sa rises from one α_train to the next" not in said  # there is only one


@pytest.mark.parametrize(("between", "verdict"), [(0.6, "holds"), (1.8, "does not hold")])
def test_a_rise_is_asked_from_one_alpha_to_the_next(
    tmp_path: Path, between: float, verdict: str
) -> None:
    said = verdicts(found(tmp_path, 1.2, a1=between))
    assert said["A_sa is higher with weights"] == "holds"
    assert said["A_sa rises from one α_train to the next"] == verdict


def test_one_seed_of_training_gives_no_verdict(tmp_path: Path) -> None:
    records = [one for one in found(tmp_path, 0.6) if one[1].checkpoint.seed == 0]
    said = verdicts(records)
    assert [said.pop(claim) for claim in claims.ORDERS] == ["holds"] * 3
    assert set(said.values()) == {"one seed, no verdict"}
    assert "A_sa is higher with weights" in said


def test_an_attack_is_judged_by_its_own_records(tmp_path: Path) -> None:
    said = verdicts([*found(tmp_path / "pgd", 0.6), *found(tmp_path / "margin", -0.6, MARGIN)])
    assert said["A_sa is higher with weights"] == "holds"
    assert said["A_rob gains under PGD-margin"] == "does not hold"
    assert said["A_rob gains under the worst of all attacks"] == "does not hold"


def test_the_worst_of_all_attacks_counts_an_image_once(tmp_path: Path) -> None:
    records = [
        *found(tmp_path / "pgd", 0.6),
        *found(tmp_path / "margin", 0.6, MARGIN),
    ]  # the same images fall to both
    said = {finding.claim: finding for finding in claims.findings(records)}
    alone, all_of_them = (
        said[f"A_rob gains under {name}"].found
        for name in ("PGD-margin", "the worst of all attacks")
    )
    assert alone.partition(": ")[2] == all_of_them.partition(": ")[2].removeprefix(
        f"steps=20,step=0.015, {PGD}: "
    )


def test_a_training_without_a_reference_is_compared_with_nothing(tmp_path: Path) -> None:
    records = [
        *found(tmp_path / "pgd", 0.6, a1=0.3),
        *found(tmp_path / "margin", 0.6, MARGIN, a1=0.3),
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
def test_that_nothing_is_lost_holds_where_a_loss_of_a_point_is_ruled_out(
    images: tuple[float, float], seeds: tuple[float, float] | None, number: int, verdict: str
) -> None:
    low, high = images
    one = Gap(Difference((low + high) / 2, low, high, images=number), seeds)
    harmless = Gap(Difference(0.05, 0.04, 0.06, images=50), (0.01, 0.09))
    assert judging.verdict_on_loss([harmless, one]) == verdict


@pytest.mark.parametrize(
    ("spared", "verdict", "told"),
    [
        (0, "holds", None),
        (1, "not distinguishable", "beyond chance in 0"),
        (60, "does not hold", "beyond chance in 1"),
    ],
)
def test_an_order_is_broken_where_images_tell(
    tmp_path: Path, spared: int, verdict: str, told: str | None
) -> None:
    records, rows = found(tmp_path, 0.0), synthetic.rows(300)
    before, prefix = "uniform", measures.at_alpha("weighted", 2.0)
    wrong = np.flatnonzero(rows[f"{before}/margin"] < 0)[
        :spared
    ]  # fooled by the usual attack, and not by the other
    for name in ("prediction", "margin"):
        rows[f"{prefix}/{name}"] = rows[f"{before}/{name}"].copy()
    rows[f"{prefix}/prediction"][wrong] = rows["label"][wrong]
    rows[f"{prefix}/margin"][wrong] = 0.01
    record = synthetic.record(
        rows, "other", attack=PGD, alphas=(2.0,), alpha_train=2.0, training={"eps": 0.15}
    )
    records.append(synthetic.stored(tmp_path / "other" / "evaluations", record, rows))
    said = {finding.claim: finding for finding in claims.ordered(records, "trades")}
    assert said["A_sa ≤ A_rob (a theorem)"].verdict == "holds"
    assert said["A_tr ≤ A_sa"].verdict == verdict
    assert told is None or told in said["A_tr ≤ A_sa"].found


def test_a_broken_theorem_is_told(tmp_path: Path) -> None:
    rows = synthetic.rows(300)
    rows["uniform/margin"] = -rows[
        "uniform/margin"
    ]  # no network has wrong images of the largest margins
    record = synthetic.record(rows, attack=PGD, alphas=(2.0,))
    (said,) = [
        one
        for one in claims.ordered([synthetic.stored(tmp_path, record, rows)], "trades")
        if "theorem" in one.claim
    ]
    assert (said.found.partition(";")[0], said.verdict) == ("in 0 of 1 lines", "does not hold")


def rescaled(folder: Path, skill: float):
    """Three seeds without weights, and three with them, of more skill or none, and of less than a third of the logits."""
    records = []
    for alpha, factor in ((2.0, 0.3), (0.0, 1.0)):
        for seed in range(3):
            rows = synthetic.rows(300, skill=(skill if alpha else 0.0), seed=seed)
            margin, label = rows["uniform/logit_margin"][:, None], np.eye(10)[rows["label"]]
            rows["uniform/logits"] = factor * (
                margin * label - 5 * (1 - label - np.roll(label, 1, axis=1))
            )  # one rival to each
            rows["uniform/loss"] = np.log1p(np.exp(-factor * margin[:, 0]))
            record = synthetic.record(
                rows, f"a{alpha:g}-s{seed}", seed=seed, attack=PGD, asked=synthetic.WITH_BALLS,
                alpha_train=alpha, training={"eps": 0.15},
            )  # fmt: skip
            records.append(
                synthetic.stored(folder / f"{alpha}-{seed}" / "evaluations", record, rows)
            )
    return judging.trained_with(records, "trades")


WITHOUT_SCALE = pytest.mark.parametrize(
    ("skill", "verdict"), [(0.0, "not distinguishable"), (0.6, "holds")]
)


@WITHOUT_SCALE
def test_a_gain_that_is_one_of_scale_does_not_survive_calibration(
    tmp_path: Path, skill: float, verdict: str
) -> None:
    kept, taken = scale.scale(rescaled(tmp_path, skill), "pgd", "trades")
    assert (kept.verdict, taken.verdict) == (verdict, "holds")
    gained = float(kept.found.split("A_sa(2) ")[1].split(" ")[0])
    assert gained > 5  # as it is, the other scale looks like a gain


@WITHOUT_SCALE
def test_a_worst_case_that_is_one_of_scale_does_not_survive_calibration(
    tmp_path: Path, skill: float, verdict: str
) -> None:
    said = {
        finding.claim: finding.verdict
        for finding in scale.worst_cases(rescaled(tmp_path, skill), "ce", "trades")
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
def test_a_verdict_asks_for_all_differences(signs: list[tuple[bool, bool]], verdict: str) -> None:
    assert judging.verdict_of(signs) == verdict


def test_one_seed_of_one_attack_gives_no_verdict_on_it(tmp_path: Path) -> None:
    margin = [
        one for one in found(tmp_path / "margin", -0.6, MARGIN) if one[1].checkpoint.seed == 0
    ]
    said = verdicts([*found(tmp_path / "pgd", 0.6), *margin])
    assert said["A_rob gains under PGD-margin"] == "one seed, no verdict"
    assert said["A_sa is higher with weights"] == "holds"


@pytest.mark.parametrize(
    ("value", "said"),
    [(0.0123, "+1.2"), (-0.0004, "-0.04"), (0.0, "+0.0"), (0.0006, "+0.1"), (-1e-9, "-0.00")],
)
def test_points_have_a_sign_and_a_second_digit_near_zero(value: float, said: str) -> None:
    assert judging.points(value) == said


def test_all_verdicts_stand_in_one_table(monkeypatch: pytest.MonkeyPatch) -> None:
    said = {
        "large": [
            judging.Finding("order", "trades", "", "holds"),
            judging.Finding("gain", "trades", "", "does not hold"),
        ],
        "small": [
            judging.Finding("gain", "pgd", "", "holds in 1 of 2"),
            judging.Finding("loss", "trades", "", "not distinguishable"),
        ],
    }
    monkeypatch.setattr(reproduce, "findings_in", said.__getitem__)
    monkeypatch.setattr(reproduce, "seeds", lambda name, defense: "3 seeds")
    (table,) = reproduce.verdicts(["large", "small"])
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
def test_the_page_is_what_its_records_say() -> None:
    done = subprocess.run(
        [sys.executable, ROOT / "docs" / "reproduce.py", "--check"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")

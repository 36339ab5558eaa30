"""The page What we found: verdicts follow from records, and the page from both."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

import made
from wmr_cli.measures import Difference
from wmr_cli.reporting.ranking import Gap

ROOT = Path(__file__).parents[1]
location = importlib.util.spec_from_file_location("claims", ROOT / "docs" / "claims.py")
claims = importlib.util.module_from_spec(location)
sys.modules["claims"] = claims  # its dataclass looks for its own module
location.loader.exec_module(claims)

PGD, MARGIN = "pgd:steps=20,step=0.015", "pgd-margin:steps=20,step=0.015"


def found(folder: Path, skill: float, attack: str = PGD):
    """Three seeds without weights, and three with them, of more or less skill."""
    made_of = []
    for alpha, extra in ((2.0, skill), (0.0, 0.0)):
        for seed in range(3):
            rows = made.rows(300, skill=extra + 0.001 * seed, seed=seed, logits=True)
            record = made.record(
                rows, f"digits-trades-a{alpha:g}-s{seed}", seed=seed, attack=attack, asked=made.WITH_BALLS,
                alpha_train=alpha, training={"eps": 0.15},
            )  # fmt: skip
            made_of.append(made.stored(folder / f"{alpha}-{seed}" / "evaluations", record, rows))
    return made_of


def verdicts(records) -> dict[str, str]:
    return {finding.claim: finding.verdict for finding in claims.findings(records)}


@pytest.mark.parametrize(
    ("skill", "gain", "loss"),
    [(0.6, "holds", "holds"), (-0.6, "does not hold", "does not hold"), (0.0, "not distinguishable", "no loss seen")],
)
def test_a_claim_is_judged_by_its_differences(tmp_path, skill, gain, loss):
    said = verdicts(found(tmp_path, skill))
    assert (said["A_sa rises with α_train"], said["A_tr rises with α_train"]) == (gain, gain)
    assert said["no loss of A_rob under the uniform attack"] == loss
    assert "A_rob gains under PGD-margin" not in said


def test_one_seed_of_training_gives_no_verdict(tmp_path):
    records = [one for one in found(tmp_path, 0.6) if one[1].checkpoint.seed == 0]
    said = verdicts(records)
    assert said.pop("A_sa ≤ A_rob") == "holds"
    assert said.pop("A_tr ≤ A_sa") == "holds"
    assert set(said.values()) == {"one seed, no verdict"}
    assert "A_sa rises with α_train" in said


def test_an_attack_is_judged_by_its_own_records(tmp_path):
    said = verdicts([*found(tmp_path / "pgd", 0.6), *found(tmp_path / "margin", -0.6, MARGIN)])
    assert said["A_sa rises with α_train"] == "holds"
    assert said["A_rob gains under PGD-margin"] == "does not hold"


@pytest.mark.parametrize(
    ("images", "seeds", "number", "verdict"),
    [
        ((-0.009, 0.02), (-0.005, 0.01), 50, "holds"),
        ((-0.009, 0.02), None, 50, "holds"),
        ((0.0, 0.0), (0.0, 0.0), 0, "no loss seen"),
        ((-0.02, 0.02), (-0.005, 0.01), 50, "no loss seen"),
        ((-0.009, 0.02), (-0.03, 0.03), 50, "no loss seen"),
        ((-0.03, -0.01), (-0.03, -0.01), 50, "does not hold"),
        ((-0.008, -0.001), (-0.006, -0.001), 50, "does not hold"),
        ((-0.03, -0.01), (-0.05, 0.01), 50, "no loss seen"),
    ],
)
def test_that_nothing_is_lost_holds_where_a_loss_of_a_point_is_ruled_out(images, seeds, number, verdict):
    low, high = images
    one = Gap(Difference((low + high) / 2, low, high, images=number), seeds)
    harmless = Gap(Difference(0.05, 0.04, 0.06, images=50), (0.01, 0.09))
    assert claims.verdict_on_loss([harmless, one]) == verdict


def test_an_order_that_is_broken_is_counted(tmp_path):
    records = found(tmp_path, 0.0)
    kept = {finding.claim: finding for finding in claims.ordered(records)}
    assert (kept["A_sa ≤ A_rob"].found, kept["A_sa ≤ A_rob"].verdict) == ("in 12 of 12 lines", "holds")
    file, record = records[0]
    row = record.by_alpha[0]
    more = msgspec.structs.replace(record.a_rob, value=record.a_rob.value + 0.03)
    rows = [msgspec.structs.replace(row, a_sa=more), *record.by_alpha[1:]]
    broken = [(file, msgspec.structs.replace(record, by_alpha=rows)), *records[1:]]
    said = {finding.claim: finding for finding in claims.ordered(broken)}
    assert said["A_sa ≤ A_rob"].found == "in 11 of 12 lines; at most +3.0 the other way"
    assert (said["A_sa ≤ A_rob"].verdict, said["A_tr ≤ A_sa"].verdict) == ("does not hold", "holds")


@pytest.mark.parametrize(
    ("signs", "verdict"),
    [
        ([(True, True), (True, True)], "holds"),
        ([(True, True), (True, False)], "does not hold"),
        ([(True, True), (False, False)], "holds in 1 of 2, otherwise not distinguishable"),
        ([(False, True), (False, False)], "not distinguishable"),
    ],
)
def test_a_verdict_asks_for_all_differences(signs, verdict):
    assert claims.verdict_of(signs) == verdict


@pytest.mark.slow
def test_the_page_is_what_its_records_say():
    done = subprocess.run(
        [sys.executable, ROOT / "docs" / "reproduce.py", "--check"], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")

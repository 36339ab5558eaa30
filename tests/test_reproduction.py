"""The page What we found: verdicts follow from records, and the page from both."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import made
from wmr_cli import measures
from wmr_cli.measures import Difference
from wmr_cli.reporting.ranking import Gap

ROOT = Path(__file__).parents[1]


def of_docs(name: str):
    """A program of the folder docs, which is no package."""
    location = importlib.util.spec_from_file_location(name, ROOT / "docs" / f"{name}.py")
    module = importlib.util.module_from_spec(location)
    sys.modules[name] = module  # dataclasses look for their own module, and one program for another
    location.loader.exec_module(module)
    return module


claims, reproduce = of_docs("claims"), of_docs("reproduce")

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
    [(0.6, "holds", "holds"), (-0.6, "does not hold", "does not hold"), (0.0, "not distinguishable", "not distinguishable")],
)
def test_a_claim_is_judged_by_its_differences(tmp_path, skill, gain, loss):
    said = verdicts(found(tmp_path, skill))
    assert (said["A_sa rises with α_train, against 0"], said["A_tr rises with α_train, against 0"]) == (gain, gain)
    assert said["no loss of A_rob under the uniform attack"] == loss
    assert "A_rob gains under PGD-margin" not in said


def test_one_seed_of_training_gives_no_verdict(tmp_path):
    records = [one for one in found(tmp_path, 0.6) if one[1].checkpoint.seed == 0]
    said = verdicts(records)
    assert [said.pop(claim) for claim in claims.ORDERS] == ["holds"] * 3
    assert set(said.values()) == {"one seed, no verdict"}
    assert "A_sa rises with α_train, against 0" in said


def test_an_attack_is_judged_by_its_own_records(tmp_path):
    said = verdicts([*found(tmp_path / "pgd", 0.6), *found(tmp_path / "margin", -0.6, MARGIN)])
    assert said["A_sa rises with α_train, against 0"] == "holds"
    assert said["A_rob gains under PGD-margin"] == "does not hold"


@pytest.mark.parametrize(
    ("images", "seeds", "number", "verdict"),
    [
        ((-0.009, 0.02), (-0.005, 0.01), 50, "holds"),
        ((-0.009, 0.02), None, 50, "holds"),
        ((0.0, 0.0), (0.0, 0.0), 0, "not distinguishable"),
        ((-0.02, 0.02), (-0.005, 0.01), 50, "not distinguishable"),
        ((-0.009, 0.02), (-0.03, 0.03), 50, "not distinguishable"),
        ((-0.03, -0.01), (-0.03, -0.01), 50, "does not hold"),
        ((-0.008, -0.001), (-0.006, -0.001), 50, "does not hold"),
        ((-0.03, -0.01), (-0.05, 0.01), 50, "not distinguishable"),
    ],
)
def test_that_nothing_is_lost_holds_where_a_loss_of_a_point_is_ruled_out(images, seeds, number, verdict):
    low, high = images
    one = Gap(Difference((low + high) / 2, low, high, images=number), seeds)
    harmless = Gap(Difference(0.05, 0.04, 0.06, images=50), (0.01, 0.09))
    assert claims.verdict_on_loss([harmless, one]) == verdict


@pytest.mark.parametrize(
    ("spared", "verdict", "told"),
    [(0, "holds", None), (1, "not distinguishable", "beyond chance in 0"), (60, "does not hold", "beyond chance in 1")],
)
def test_an_order_is_broken_where_images_tell(tmp_path, spared, verdict, told):
    records, rows = found(tmp_path, 0.0), made.rows(300)
    before, prefix = "uniform", measures.at_alpha("weighted", 2.0)
    wrong = np.flatnonzero(rows[f"{before}/margin"] < 0)[:spared]  # fooled by the usual attack, and not by the other
    for name in ("prediction", "margin"):
        rows[f"{prefix}/{name}"] = rows[f"{before}/{name}"].copy()
    rows[f"{prefix}/prediction"][wrong] = rows["label"][wrong]
    rows[f"{prefix}/margin"][wrong] = 0.01
    record = made.record(rows, "other", attack=PGD, alphas=(2.0,), alpha_train=2.0, training={"eps": 0.15})
    records.append(made.stored(tmp_path / "other" / "evaluations", record, rows))
    said = {finding.claim: finding for finding in claims.ordered(records)}
    assert said["A_sa ≤ A_rob (a theorem)"].verdict == "holds"
    assert said["A_tr ≤ A_sa"].verdict == verdict
    assert told is None or told in said["A_tr ≤ A_sa"].found


def test_a_broken_theorem_is_told(tmp_path):
    rows = made.rows(300)
    rows["uniform/margin"] = -rows["uniform/margin"]  # no network has wrong images of the largest margins
    record = made.record(rows, attack=PGD, alphas=(2.0,))
    (said,) = [one for one in claims.ordered([made.stored(tmp_path, record, rows)]) if "theorem" in one.claim]
    assert (said.found.partition(";")[0], said.verdict) == ("in 0 of 1 lines", "does not hold")


@pytest.mark.parametrize(("skill", "verdict"), [(0.0, "not distinguishable"), (0.6, "holds")])
def test_a_gain_that_is_one_of_scale_does_not_survive_calibration(tmp_path, skill, verdict):
    records = []
    for alpha, scale in ((2.0, 0.3), (0.0, 1.0)):
        for seed in range(3):
            rows = made.rows(300, skill=(skill if alpha else 0.0), seed=seed)
            margin, label = rows["uniform/logit_margin"][:, None], np.eye(10)[rows["label"]]
            rows["uniform/logits"] = scale * (margin * label - 5 * (1 - label - np.roll(label, 1, axis=1)))  # one rival to each
            record = made.record(rows, f"a{alpha:g}-s{seed}", seed=seed, attack=PGD, alpha_train=alpha, training={"eps": 0.15})
            records.append(made.stored(tmp_path / f"{alpha}-{seed}" / "evaluations", record, rows))
    (finding,) = claims.scale(claims.of_defense(records, "trades"), "trades")
    assert finding.verdict == verdict
    gained = float(finding.found.split("A_sa(2) ")[1].split(" ")[0])
    assert gained > 5  # as it is, the other scale looks like a gain


@pytest.mark.parametrize(
    ("signs", "verdict"),
    [
        ([(True, True), (True, True)], "holds"),
        ([(True, False), (False, True)], "does not hold"),
        ([(True, True), (True, False), (False, True)], "does not hold in 1 of 3, holds in 1"),
        ([(True, True), (False, False)], "holds in 1 of 2"),
        ([(False, True), (False, False)], "not distinguishable"),
    ],
)
def test_a_verdict_asks_for_all_differences(signs, verdict):
    assert claims.verdict_of(signs) == verdict


def test_all_verdicts_stand_in_one_table(monkeypatch):
    said = {
        "large": [claims.Finding("order", claims.ALL, "", "holds"), claims.Finding("gain", "trades", "", "does not hold")],
        "small": [
            claims.Finding("gain", "pgd", "", "holds in 1 of 2"),
            claims.Finding("loss", "trades", "", "not distinguishable"),
        ],
    }
    monkeypatch.setattr(reproduce, "findings_in", said.__getitem__)
    (table,) = reproduce.verdicts(["large", "small"])
    assert [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()] == [
        ["claim", "large, trades", "small, pgd", "small, trades"],
        ["---"] * 4,
        ["order", "holds", "-", "-"],
        ["gain", "does not hold", "holds in 1 of 2", "-"],
        ["loss", "-", "-", "not distinguishable"],
    ]


@pytest.mark.slow
def test_the_page_is_what_its_records_say():
    done = subprocess.run(
        [sys.executable, ROOT / "docs" / "reproduce.py", "--check"], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")

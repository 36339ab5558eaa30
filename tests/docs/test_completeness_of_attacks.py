"""The stored completeness of attacks agrees with the proofs, and its sentences with the numbers."""

import pytest

import attack_completeness
import published
from wmr_cli.numerics.reference import EPS, load_reference

RESULTS = published.load_completeness()
FOUND = {
    (network, attack): one["found"] / result["vulnerable"]
    for network, result in RESULTS.items()
    for attack, one in result["attacks"].items()
}


def test_the_digits_results_belong_to_the_network_in_the_package() -> None:
    target = attack_completeness.make_digits()
    stored = RESULTS["digits"]
    assert stored["vulnerable"] == target.vulnerable
    assert stored["attacked"] == len(target.correct.labels)
    assert stored["eps"] == EPS
    assert set(stored["attacks"]) == set(attack_completeness.FULL_GRID)


def test_a_short_attack_finds_the_stored_number_of_images() -> None:
    target = attack_completeness.make_digits()
    for spec in ("pgd:steps=20,restarts=1", "pgd-margin:steps=20,restarts=10", "apgd-t:steps=20"):
        measured = attack_completeness.measure(target, spec)
        assert measured["found"] == RESULTS["digits"]["attacks"][spec]["found"]


def test_no_attack_finds_more_than_is_vulnerable() -> None:
    assert max(FOUND.values()) <= 1
    assert (load_reference().lowest_margins < 0).sum() >= RESULTS["digits"]["vulnerable"]


@pytest.mark.parametrize("attack", ["pgd", "pgd-margin"])
def test_what_the_page_concludes_about_steps_and_restarts(attack: str) -> None:
    few, many = (FOUND["digits", f"{attack}:steps={steps},restarts=1"] for steps in (40, 400))
    restarted = FOUND["digits", f"{attack}:steps=40,restarts=10"]
    assert abs(many - few) * RESULTS["digits"]["vulnerable"] <= 1
    assert restarted > many


@pytest.mark.parametrize(
    "attack", ["apgd-t:steps=20", "fab-t:steps=20", "autoattack", "autoattack:steps=20,queries=500"]
)
def test_what_the_page_concludes_about_targets(attack: str) -> None:
    assert FOUND["digits", attack] == 1


def test_what_the_page_concludes_about_one_published_network() -> None:
    network = "LPD_MLP_B_0.4"
    by_targets = FOUND[network, "apgd-t:steps=20"]
    others = ("pgd:steps=40,restarts=10", "pgd-margin:steps=40,restarts=10", "apgd-ce:steps=100")
    assert round(by_targets, 2) == 0.97
    assert max(FOUND[network, attack] for attack in others) < by_targets


@pytest.mark.parametrize("network", [name for name in RESULTS if name != "digits"])
def test_what_the_page_concludes_about_a_few_targeted_steps(network: str) -> None:
    if (network, "apgd-t:steps=20") in FOUND:
        assert 0.955 <= FOUND[network, "apgd-t:steps=20"] < 0.975


@pytest.mark.parametrize("network", ["LPD_MLP_B_0.1", "LPD_MLP_B_0.4"])
def test_what_the_page_concludes_about_autoattack(network: str) -> None:
    by_attack = {attack: found for (name, attack), found in FOUND.items() if name == network}
    assert round(by_attack["autoattack"], 3) == 0.986
    assert max(by_attack, key=by_attack.__getitem__) == "autoattack"
    assert round(FOUND["LPD_MLP_B_0.4", "autoattack:steps=20,queries=500"], 3) == 0.982


def test_neither_loss_is_always_better() -> None:
    gains = [
        FOUND[name, "pgd-margin:steps=40,restarts=1"] - FOUND[name, "pgd:steps=40,restarts=1"]
        for name in RESULTS
    ]
    assert min(gains) < 0 < max(gains)

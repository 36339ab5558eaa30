"""Every built-in defense with an attack is more robust on the digits than natural training."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from wmr_cli.plugins import load_plugins
from wmr_cli.registry import OWN_DISTRIBUTION

PROGRAM = Path(__file__).parents[2] / "studies" / "digits_defenses.py"
MIN_GAIN = 0.25
"""The smallest gain of three seeds is 0.35, seeds differ by about 0.02: one seed is enough."""

Study = dict[str, dict[str, Any]]
"""By defense: accuracies with one value per seed, and `cost`."""


def builtin_defenses() -> set[str]:
    registry = load_plugins().registry
    names = registry.names("defense")
    return {name for name in names if registry.find("defense", name).owner == OWN_DISTRIBUTION}


def test_the_published_study_has_every_defense_with_three_seeds() -> None:
    published: Study = json.loads(PROGRAM.with_suffix(".json").read_text(encoding="utf-8"))
    assert set(published) == builtin_defenses()
    for values in published.values():
        assert {len(values[name]) for name in ("a_nat", "a_rob", "a_sa", "a_tr")} == {3}


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Study:
    """Return the same study with one seed."""
    out = tmp_path_factory.mktemp("study") / "found.json"
    subprocess.run([sys.executable, PROGRAM, out, "--seeds", "1"], check=True)
    found: Study = json.loads(out.read_text(encoding="utf-8"))
    return found


@pytest.mark.slow
def test_every_adversarial_defense_is_more_robust_than_natural_training(study: Study) -> None:
    assert set(study) == builtin_defenses()
    (natural,) = study["natural"]["a_rob"]
    gains = {name: found["a_rob"][0] - natural for name, found in study.items()}
    del gains["natural"]
    assert min(gains.values()) >= MIN_GAIN, gains


@pytest.mark.slow
@pytest.mark.parametrize("defense", ["free", "fgsm-rs"])
def test_a_fast_defense_takes_less_than_half_the_time_of_pgd(study: Study, defense: str) -> None:
    assert study[defense]["cost"] < study["pgd"]["cost"] / 2

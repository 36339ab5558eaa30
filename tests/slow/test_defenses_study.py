"""Every defense on the embedded data, by its preset, over three seeds: those with an attack withstand one."""

import json
import subprocess
import sys
from pathlib import Path
from statistics import mean
from typing import Any

import pytest

from wmr_cli.plugins import installed
from wmr_cli.registry import OWN_DISTRIBUTION

pytestmark = pytest.mark.slow
Study = dict[str, dict[str, Any]]
"""By defense: its cost, and the measures of its runs."""
STUDY = Path(__file__).parents[2] / "studies" / "digits_defenses.py"


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Study:
    out = tmp_path_factory.mktemp("study") / "found.json"
    subprocess.run([sys.executable, STUDY, out], check=True)
    study: Study = json.loads(out.read_text(encoding="utf-8"))
    return study


def test_every_defense_of_ours_is_there(study: Study) -> None:
    registry = installed().registry
    assert set(study) == {
        name
        for name in registry.names("defense")
        if registry.find("defense", name).owner == OWN_DISTRIBUTION
    }
    assert {
        len(values) for found in study.values() for name, values in found.items() if name != "cost"
    } == {3}


def test_every_adversarial_defense_beats_natural_training_by_25_points(
    study: Study,
) -> None:
    natural = mean(study["natural"]["a_rob"])
    gains = {
        defense: mean(found["a_rob"]) - natural
        for defense, found in study.items()
        if defense != "natural"
    }
    assert min(gains.values()) >= 0.25, gains


def test_the_cheap_defenses_are_cheap(study: Study) -> None:
    dear = study["pgd"]["cost"]
    assert {defense: study[defense]["cost"] < dear / 2 for defense in ("free", "fgsm-rs")} == {
        "free": True,
        "fgsm-rs": True,
    }

"""Numbers and examples in the guides follow from presets and from the paper's tables."""

import math
import re
from pathlib import Path
from typing import Any

import pytest
import torch

import wmr_cli
from support.typed import not_none
from wmr_cli import presets, testing
from wmr_cli.config import resolve
from wmr_cli.paper.errata import load_corrected_rows

DOCS = Path(__file__).parents[2] / "docs"


def read_page(name: str) -> str:
    return (DOCS / name).read_text(encoding="utf-8")


PASSES = {"pgd": (1, 1), "trades": (1, 3), "free": (0, 1), "yopo": (0, 5), "iaat": (3, 2)}
"""Passes per attack step and further passes, as in docs/defenses.md."""
FREE_REPLAYS = 8
TRAINING_IMAGES = {"paper/mnist": 58_801, "paper/cifar10": 49_000, "paper/tiny-imagenet": 98_000}
"""Training images without the validation set, which has 2 % of each class."""
COSTS = re.findall(
    r"^\| `(paper/[\w-]+)` \| `(\w+)` \| (.+) \|$", read_page("reproducing.md"), re.MULTILINE
)


@pytest.mark.parametrize(("preset", "defense", "numbers"), COSTS)
def test_the_costs_of_the_paper_follow_from_its_presets(
    preset: str, defense: str, numbers: str
) -> None:
    config = resolve({"preset": preset, "defense": defense})
    replays = FREE_REPLAYS if defense == "free" else 1
    epochs = math.ceil(config.epochs / replays)
    steps = epochs * replays * math.ceil(TRAINING_IMAGES[preset] / config.batch_size)
    per_attack_step, further = PASSES[defense]
    passes = per_attack_step * not_none(config.steps) + further
    expected = [epochs, config.batch_size, steps, passes, steps * passes]
    assert [int(text.replace(",", "")) for text in numbers.split(" | ")] == expected


def test_all_presets_of_the_paper_have_costs() -> None:
    assert {preset for preset, _, _ in COSTS} == {
        name for name in presets.names() if name.startswith("paper/")
    }


ALPHAS = re.findall(
    r"^\| (MNIST|CIFAR-10|Tiny ImageNet) \| ([\d., ]+) \| ([\d., ]+) \|",
    read_page("choosing-alpha.md"),
    re.MULTILINE,
)
DATASETS = {"MNIST": "mnist", "CIFAR-10": "cifar10", "Tiny ImageNet": "tiny-imagenet"}


def test_all_datasets_of_the_paper_are_listed() -> None:
    assert [dataset for dataset, _, _ in ALPHAS] == list(DATASETS)


@pytest.mark.parametrize(("dataset", "pgd", "trades"), ALPHAS)
def test_the_alphas_of_the_paper_are_those_of_its_tables(
    dataset: str, pgd: str, trades: str
) -> None:
    for family, alphas in {"PGD": pgd, "TRADES": trades}.items():
        in_tables = {
            corrected.row.alpha_train
            for corrected in load_corrected_rows()
            if (corrected.dataset, corrected.family) == (DATASETS[dataset], family)
            and corrected.row.alpha_train is not None
        }
        assert [float(alpha) for alpha in alphas.split(", ")] == sorted(in_tables)


@pytest.mark.parametrize(("dataset", "pgd", "trades"), ALPHAS)
def test_the_commands_for_the_paper_use_all_alphas(dataset: str, pgd: str, trades: str) -> None:
    for defense, alphas in {"pgd": pgd, "trades": trades}.items():
        command = f"wmr train --preset paper/{DATASETS[dataset]} --defense {defense}"
        loop = rf"for alpha in 0 ([\d. ]+);\s+do {command} --alpha \$alpha; done"
        (found,) = re.findall(loop, read_page("reproducing.md"))
        assert found.split() == alphas.split(", ")


def test_the_model_with_masked_gradients_has_the_same_predictions(tiny_run: Path) -> None:
    (example,) = re.findall(r"```python\n(.*?)```", read_page("honest-evaluation.md"), re.DOTALL)
    names: dict[str, Any] = {}
    exec(example, names)
    images = testing.tiny_batch().images
    masked = names["Loud"](run=str(tiny_run))
    torch.testing.assert_close(masked(images), 100 * wmr_cli.load(tiny_run)(images))

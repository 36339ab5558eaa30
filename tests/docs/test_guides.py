"""Numbers and examples of the guides follow from presets and tables."""

import math
import re
from pathlib import Path

import pytest
import torch

import wmr_cli
from wmr_cli import presets, testing
from wmr_cli.config import resolve
from wmr_cli.paper.errata import load_corrected_rows

DOCS = Path(__file__).parents[2] / "docs"


def page(name: str) -> str:
    return (DOCS / name).read_text(encoding="utf-8")


PASSES = {"pgd": (1, 1), "trades": (1, 3), "free": (0, 1), "yopo": (0, 5), "iaat": (3, 2)}
"""As docs/defenses.md counts them: so many per step of the attack, and so many more."""
IMAGES = {"paper/mnist": 58_801, "paper/cifar10": 49_000, "paper/tiny-imagenet": 98_000}
"""What is left of the training images when 2 % of each class are held out."""
COSTS = re.findall(
    r"^\| `(paper/[\w-]+)` \| `(\w+)` \| (.+) \|$", page("reproducing.md"), re.MULTILINE
)


@pytest.mark.parametrize(("preset", "defense", "numbers"), COSTS)
def test_the_costs_of_the_paper_follow_from_its_presets(
    preset: str, defense: str, numbers: str
) -> None:
    config, replays = resolve({"preset": preset, "defense": defense}), 8 if defense == "free" else 1
    epochs = math.ceil(config.epochs / replays)
    steps = epochs * replays * math.ceil(IMAGES[preset] / config.batch_size)
    per_step, more = PASSES[defense]
    passes = per_step * config.steps + more
    expected = [epochs, config.batch_size, steps, passes, steps * passes]
    assert [int(text.replace(",", "")) for text in numbers.split(" | ")] == expected


def test_every_preset_of_the_paper_has_its_costs() -> None:
    assert {preset for preset, _, _ in COSTS} == {
        name for name in presets.names() if name.startswith("paper/")
    }


ALPHAS = re.findall(
    r"^\| (MNIST|CIFAR-10|Tiny ImageNet) \| ([\d., ]+) \| ([\d., ]+) \|",
    page("choosing-alpha.md"),
    re.MULTILINE,
)
NAMES = {"MNIST": "mnist", "CIFAR-10": "cifar10", "Tiny ImageNet": "tiny-imagenet"}


@pytest.mark.parametrize(("data", "pgd", "trades"), ALPHAS)
def test_the_alphas_of_the_paper_are_those_of_its_tables(data: str, pgd: str, trades: str) -> None:
    for defense, alphas in {"PGD": pgd, "TRADES": trades}.items():
        rows = (
            made
            for made in load_corrected_rows()
            if (made.dataset, made.family) == (NAMES[data], defense)
        )
        assert [float(alpha) for alpha in alphas.split(", ")] == sorted(
            {made.row.alpha_train for made in rows} - {None}
        )


@pytest.mark.parametrize(("data", "pgd", "trades"), ALPHAS)
def test_the_commands_for_the_paper_use_every_alpha(data: str, pgd: str, trades: str) -> None:
    for defense, alphas in {"pgd": pgd, "trades": trades}.items():
        loop = rf"for alpha in 0 ([\d. ]+);\s+do wmr train --preset paper/{NAMES[data]} --defense {defense} --alpha \$alpha; done"
        (found,) = re.findall(loop, page("reproducing.md"))
        assert found.split() == alphas.split(", ")


def test_all_datasets_of_the_paper_are_listed() -> None:
    assert [data for data, _, _ in ALPHAS] == list(NAMES)


def test_the_model_with_masked_gradients_predicts_the_same(tiny_run: Path) -> None:
    (example,) = re.findall(r"```python\n(.*?)```", page("honest-evaluation.md"), re.DOTALL)
    names: dict = {}
    exec(example, names)
    images = testing.tiny_batch().images
    loud, plain = names["Loud"](run=str(tiny_run)), wmr_cli.load(tiny_run)
    torch.testing.assert_close(loud(images), 100 * plain(images))

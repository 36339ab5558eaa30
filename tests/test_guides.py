"""The guides quote the program: its messages, its presets, what a run costs."""

import ast
import math
import re
from functools import cache
from pathlib import Path

import pytest
import torch

import wmr_cli
from wmr_cli import presets, testing
from wmr_cli.config import resolve
from wmr_cli.reporting.paper.corrections import corrected_rows

DOCS = Path(__file__).parents[1] / "docs"
SOURCE = Path(wmr_cli.__file__).parent
HOLE = "\0"
"""Where a value goes into a text of the program."""
OF_TWO = {"left the ball of radius …": (f"{HOLE} left {HOLE}", f"the ball of radius {HOLE}")}
"""Messages that the program puts together."""
TELLING = 12
"""Fewer letters than these say nothing."""


def page(name: str) -> str:
    return (DOCS / name).read_text(encoding="utf-8")


OURS = page("troubleshooting.md").partition("\n## Messages of other programs")[0]
HEADINGS = re.findall(r"^### (.+)$", OURS, re.MULTILINE)
ALSO = [
    text for part in re.findall(r"^Also: (.+?)\n\n", OURS, re.MULTILINE | re.DOTALL) for text in re.findall(r"`([^`]+)`", part)
]
SHOWN = re.findall(r"^(?:error|warning|hint): (.+)$", OURS, re.MULTILINE)
ENDINGS = (".pt", ".pth")


@cache
def texts() -> frozenset[str]:
    """Every text of the program but docstrings, with a hole for every value."""
    found = set()
    for file in SOURCE.rglob("*.py"):
        tree = ast.parse(file.read_text(encoding="utf-8"))
        documenting = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in documenting:
                found.add(node.value)
            if isinstance(node, ast.JoinedStr):
                found.add("".join(part.value if isinstance(part, ast.Constant) else HOLE for part in node.values))
    return frozenset(found)


def is_said(quoted: str) -> bool:
    """Whether a text of the program holds these words, with anything in place of `…`."""
    pattern = re.compile(".+?".join(map(re.escape, quoted.split("…"))), re.DOTALL)
    return any(pattern.search(text) for text in texts())


def could_be_said(line: str) -> bool:
    """Whether a line holds a text of the program, with values in its holes."""
    telling = [text for text in texts() if len(text.replace(HOLE, "")) >= TELLING]
    return any(re.search(".+?".join(map(re.escape, text.split(HOLE))), line) for text in telling)


@pytest.mark.parametrize("message", [text for text in (*HEADINGS, *ALSO) if text not in (*OF_TWO, *ENDINGS)])
def test_every_message_of_troubleshooting_is_the_programs(message):
    assert is_said(message)


@pytest.mark.parametrize(("message", "parts"), OF_TWO.items())
def test_every_message_in_two_parts_is_the_programs(message, parts):
    outer, inner = parts
    assert {outer, inner} <= texts()
    assert outer.replace(HOLE, inner).endswith(message.replace("…", HOLE))


@pytest.mark.parametrize("line", SHOWN)
def test_every_message_that_is_shown_could_be_the_programs(line):
    assert could_be_said(line)


def test_there_is_something_to_compare():
    assert min(len(HEADINGS), len(ALSO)) > 20
    assert len(SHOWN) >= 4
    assert not is_said("already holds a walk")
    assert not is_said("no … is called … twice")
    assert not could_be_said("runs/digits-trades-a2-s0 already holds a walk")


PASSES = {"pgd": (1, 1), "trades": (1, 3), "free": (0, 1), "yopo": (0, 5), "iaat": (3, 2)}
"""As docs/defenses.md counts them: so many per step of the attack, and so many more."""
IMAGES = {"paper/mnist": 58_801, "paper/cifar10": 49_000, "paper/tiny-imagenet": 98_000}
"""What is left of the training images when 2 % of each class are held out."""
COSTS = re.findall(r"^\| `(paper/[\w-]+)` \| `(\w+)` \| (.+) \|$", page("reproducing.md"), re.MULTILINE)


@pytest.mark.parametrize(("preset", "defense", "numbers"), COSTS)
def test_the_costs_of_the_paper_follow_from_its_presets(preset, defense, numbers):
    config, replays = resolve({"preset": preset, "defense": defense}), 8 if defense == "free" else 1
    epochs = math.ceil(config.epochs / replays)
    steps = epochs * replays * math.ceil(IMAGES[preset] / config.batch_size)
    per_step, more = PASSES[defense]
    passes = per_step * config.steps + more
    expected = [epochs, config.batch_size, steps, passes, steps * passes]
    assert [int(text.replace(",", "")) for text in numbers.split(" | ")] == expected


def test_every_preset_of_the_paper_has_its_costs():
    assert {preset for preset, _, _ in COSTS} == {name for name in presets.names() if name.startswith("paper/")}


ALPHAS = re.findall(r"^\| (MNIST|CIFAR-10|Tiny ImageNet) \| ([\d., ]+) \| ([\d., ]+) \|", page("choosing-alpha.md"), re.MULTILINE)
NAMES = {"MNIST": "mnist", "CIFAR-10": "cifar10", "Tiny ImageNet": "tiny-imagenet"}


@pytest.mark.parametrize(("data", "pgd", "trades"), ALPHAS)
def test_the_alphas_of_the_paper_are_those_of_its_tables(data, pgd, trades):
    for defense, alphas in {"PGD": pgd, "TRADES": trades}.items():
        rows = (made for made in corrected_rows() if (made.dataset, made.family) == (NAMES[data], defense))
        assert [float(alpha) for alpha in alphas.split(", ")] == sorted({made.row.alpha_train for made in rows} - {None})


@pytest.mark.parametrize(("data", "pgd", "trades"), ALPHAS)
def test_the_commands_for_the_paper_train_with_every_alpha_of_its(data, pgd, trades):
    for defense, alphas in {"pgd": pgd, "trades": trades}.items():
        loop = rf"for alpha in 0 ([\d. ]+);\s+do wmr train --preset paper/{NAMES[data]} --defense {defense} --alpha \$alpha; done"
        (found,) = re.findall(loop, page("reproducing.md"))
        assert found.split() == alphas.split(", ")


def test_all_data_sets_of_the_paper_are_there():
    assert [data for data, _, _ in ALPHAS] == list(NAMES)


def test_the_network_that_hides_decides_as_the_other_does(tiny_run):
    (example,) = re.findall(r"```python\n(.*?)```", page("honest-evaluation.md"), re.DOTALL)
    names: dict = {}
    exec(example, names)
    images = testing.tiny_batch().images
    loud, plain = names["Loud"](run=str(tiny_run)), wmr_cli.load(tiny_run)
    torch.testing.assert_close(loud(images), 100 * plain(images))

"""All public names are documented, all links resolve, and all pages are in the navigation."""

import dataclasses
import inspect
import re
from collections.abc import Iterable
from pathlib import Path

import pytest
import torch

import wmr_cli
from support.builtin_names import list_builtins
from wmr_cli import hookspecs, testing
from wmr_cli.builtins.attacks.pgd import Pgd
from wmr_cli.builtins.kernels.exp import Exponential
from wmr_cli.config import TrainConfig
from wmr_cli.core.data.splits import MemorySource, MemorySplit
from wmr_cli.core.protocols import Learner, StepReport
from wmr_cli.core.traits import AttackTraits, DefenseTraits, KernelTraits, VerifierTraits
from wmr_cli.evaluation.evaluator import Evaluator
from wmr_cli.storage import checkpoints
from wmr_cli.training.monitoring import EpochStatistics

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = sorted(DOCS.rglob("*.md"))


def read_page(name: str) -> str:
    return (DOCS / name).read_text(encoding="utf-8")


def undocumented(names: Iterable[str], page: str, template: str) -> list[str]:
    """Return the names for which a page lacks the text `template.format(name)`."""
    text = read_page(page)
    return [name for name in names if template.format(name) not in text]


def test_hooks_checks_and_the_learner_are_documented() -> None:
    # `wmr_losses` is an old name of `wmr_defenses`
    hooks = {name for name in vars(hookspecs) if name.startswith("wmr_")} - {"wmr_losses"}
    checks = [name for name in vars(testing) if name.startswith("check_")]
    of_learner = {*inspect.get_annotations(Learner), *vars(Learner)}
    public = [name for name in of_learner if not name.startswith("_")]
    assert undocumented(hooks, "hooks.md", "### {}\n") == []
    assert undocumented(checks, "hooks.md", "`{}(") == []
    assert undocumented(public, "hooks.md", "`learner.{}") == []


@pytest.mark.parametrize("traits", [AttackTraits, KernelTraits, DefenseTraits, VerifierTraits])
def test_traits_are_documented(
    traits: type[AttackTraits | KernelTraits | DefenseTraits | VerifierTraits],
) -> None:
    names = [field.name for field in dataclasses.fields(traits)]
    assert f"| trait of `{traits.__name__}` |" in read_page("hooks.md")
    assert undocumented(names, "hooks.md", "\n| `{}` |") == []


def test_public_names_are_documented() -> None:
    for_users = undocumented(wmr_cli.__all__, "python.md", "#### `{}`\n")
    for_plugins = re.findall(r"`(?:wmr_cli\.)?(\w+)[`(]", read_page("hooks.md"))
    assert set(for_users) <= {*for_plugins, "__version__"}


def test_built_in_models_are_documented() -> None:
    names = [name for name in list_builtins("model") if name != "timm"]
    assert undocumented([*names, "timm:NAME"], "models.md", "| `{}` |") == []


def test_built_in_datasets_are_documented() -> None:
    # those of your own files are written with their path
    own_files = {"arrays": "arrays:path=", "folder": "folder:path="}
    names = [own_files.get(name, f"| `{name}` |") for name in list_builtins("dataset")]
    assert undocumented(names, "data.md", "{}") == []


def test_built_in_attacks_are_compared() -> None:
    assert undocumented(list_builtins("attack"), "attacks.md", "\n| `{}` |") == []


def test_columns_of_an_evaluation_are_documented() -> None:
    evaluator = Evaluator(
        model=testing.tiny_model(),
        attack=Pgd(eps=0.1, steps=1),
        norm="linf",
        eps=0.1,
        num_classes=testing.CLASSES,
        seed=0,
        kernels={2.0: Exponential(2.0)},
        stores_log_weights=True,
    )
    columns = evaluator.evaluate_batch(testing.tiny_batch())
    names = {re.sub(r"@[\d.]+", "", column).rpartition("/")[2] for column in columns}
    assert undocumented(names, "record.md", "| `{}` |") == []


def test_keys_of_a_checkpoint_header_are_documented(tmp_path: Path) -> None:
    path = tmp_path / "net.safetensors"
    save_tiny_checkpoint(path)
    _, header = checkpoints.load_tensors(path)
    assert undocumented(header, "checkpoints.md", "`{}`") == []


def save_tiny_checkpoint(path: Path) -> None:
    images = MemorySplit(torch.zeros(1, *testing.SHAPE), torch.zeros(1), torch.zeros(1))
    source = MemorySource(testing.CLASSES, {"train": images})
    tensors = testing.tiny_model().state_dict()
    checkpoints.save(path, tensors, TrainConfig(), source, alpha_train=None, epoch=1)


def test_keys_of_the_log_are_documented() -> None:
    values = torch.ones(2)
    correct = torch.tensor([True, False])
    statistics = EpochStatistics()
    statistics.add(StepReport(values, values, values, correct))
    statistics.collect()
    assert undocumented(statistics.summary(), "checkpoints.md", "`{}`") == []


def test_relative_links_resolve() -> None:
    assert [
        link for page in [*PAGES, ROOT / "CONTRIBUTING.md"] for link in broken_links(page)
    ] == []


def broken_links(page: Path) -> list[str]:
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    targets = [target.partition("#")[0] for target in re.findall(r"\]\(([^)\s]+)\)", text)]
    relative = [target for target in targets if target and "://" not in target]
    missing = [target for target in relative if not (page.parent / target).is_file()]
    return [f"{page.relative_to(ROOT)}: {target}" for target in missing]


def test_all_pages_are_in_the_navigation() -> None:
    navigation = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("\nnav:")[2]
    names = [str(page.relative_to(DOCS)) for page in PAGES]
    assert [name for name in names if f": {name}\n" not in navigation] == []

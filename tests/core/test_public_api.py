"""The names that plugins may import, and a check that nothing else is imported by them."""

import ast
import inspect
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

import wmr_cli
from wmr_cli import core, measures, testing, torchmetrics

ROOT = Path(__file__).parents[2]
PUBLIC_MODULES = {
    "wmr_cli": wmr_cli,
    "wmr_cli.core": core,
    "wmr_cli.measures": measures,
    "wmr_cli.testing": testing,
    "wmr_cli.torchmetrics": torchmetrics,
}
PLUGIN_MODULES = {"wmr_cli", "wmr_cli.core"}
PYTHON_BLOCK = re.compile(r"^( *)```python[^\n]*\n(.*?)^\1```", re.MULTILINE | re.DOTALL)

CORE_NAMES = """
Attack AttackResult AttackTraits Batch CountsWeightedImages DataSource Decoder Defense
DefenseTraits EvaluationTable Evidence HasIndex HasNote HasRemarks HasState HoldsRows
ImageFileSplit Kernel KernelTraits KlObjective LazySplits Learner LoggedRun Logger LogitBounds
LogsFiles Losses MemorySource MemorySplit NORMS Norm Normalized OBJECTIVES Objective
ObservesValidation PgdSettings Preparable RanksImages Remote Resized SecondLabels Source Split
StepReport StreamsImages UniformStartPgd Verifier VerifierTraits attack_until_misclassified
average_draws backward_weighted balanced_subset batch_limit cross_entropy cw_loss dlr_loss
evaluating fetch get_objective holdout_mask input_gradient kernel_loss kl_divergence
log_probabilities logit_margin margin margin_loss parse_background pgd_steps pick_stronger
pick_lower_margin probability_margin project_to_ball ranking_scores report_progress
returning_logits rng run_pgd run_restarts select_rows start_images step_weighted
torchvision_compat unpack upcast_half weight_terms weighted_objective widest_float_dtype
with_logits
"""

TOP_LEVEL_NAMES = """
BadFile BadInput BrokenContract Entry MissingData PluginError Result Spec UnknownName WmrError
__version__ core create did_you_mean errors evaluate hookimpl load make_card measures read_rows
read_saved testing
"""


def test_core_exports_exactly_the_documented_names() -> None:
    assert sorted(core.__all__) == sorted(CORE_NAMES.split())


def test_the_package_exports_exactly_the_documented_names() -> None:
    assert sorted(wmr_cli.__all__) == sorted(TOP_LEVEL_NAMES.split())


@pytest.mark.parametrize("module", PUBLIC_MODULES.values(), ids=list(PUBLIC_MODULES))
def test_every_exported_name_exists_and_is_documented(module: ModuleType) -> None:
    for name in module.__all__:
        value = getattr(module, name)
        if inspect.isclass(value) or inspect.isroutine(value) or inspect.ismodule(value):
            assert inspect.getdoc(value), f"{module.__name__}.{name} has no docstring"


def test_the_package_can_be_imported_without_torch() -> None:
    script = "import sys, wmr_cli; wmr_cli.BadInput; wmr_cli.Entry; wmr_cli.Spec; wmr_cli.hookimpl"
    script += "; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", script], check=True)


def find_private_imports(code: str, allowed: set[str]) -> list[str]:
    """List the imports of `wmr_cli` in this code that are not exported by an allowed module."""
    private = []
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Import):
            modules = [alias.name for alias in node.names if alias.name.split(".")[0] == "wmr_cli"]
            private += [module for module in modules if module not in allowed]
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "wmr_cli":
            module = node.module or ""
            exported = PUBLIC_MODULES[module].__all__ if module in allowed else []
            names = [alias.name for alias in node.names]
            private += [f"{module}.{name}" for name in names if name not in exported]
    return private


def read_template(path: Path) -> str:
    """Return a scaffold template as Python, its placeholders turned into identifiers."""
    return re.sub(r"\$\{?(\w+)\}?", r"\1", path.read_text(encoding="utf-8"))


def read_python_blocks(path: Path) -> Iterator[str]:
    """Yield the Python blocks of a page. Included files are checked with the plugins."""
    for block in PYTHON_BLOCK.finditer(path.read_text(encoding="utf-8")):
        lines = [line.removeprefix(block[1]) for line in block[2].splitlines()]
        yield "\n".join(line for line in lines if not line.startswith("--8<--"))


def list_files(pattern: str) -> list[Path]:
    return sorted(path for path in ROOT.glob(pattern) if ".venv" not in str(path))


def relative_path(value: object) -> str:
    return str(value.relative_to(ROOT)) if isinstance(value, Path) else ""


PLUGIN_FILES = list_files("plugins/*/src/**/*.py")
PLUGIN_TESTS = list_files("plugins/*/tests/**/*.py")
TEMPLATES = list_files("src/wmr_cli/scaffold/templates/**/*.py.txt")
PAGES = [*list_files("docs/**/*.md"), *list_files("*.md"), *list_files("plugins/*/*.md")]


def test_the_files_to_check_are_found() -> None:
    assert min(map(len, (PLUGIN_FILES, PLUGIN_TESTS, TEMPLATES, PAGES))) >= 10


@pytest.mark.parametrize("path", PLUGIN_FILES, ids=relative_path)
def test_plugins_import_public_names_only(path: Path) -> None:
    assert find_private_imports(path.read_text(encoding="utf-8"), PLUGIN_MODULES) == []


@pytest.mark.parametrize("path", PLUGIN_TESTS, ids=relative_path)
def test_tests_of_plugins_import_public_names_only(path: Path) -> None:
    assert find_private_imports(path.read_text(encoding="utf-8"), set(PUBLIC_MODULES)) == []


@pytest.mark.parametrize("path", TEMPLATES, ids=relative_path)
def test_templates_import_public_names_only(path: Path) -> None:
    allowed = PLUGIN_MODULES | ({"wmr_cli.testing"} if path.name == "test.py.txt" else set())
    assert find_private_imports(read_template(path), allowed) == []


@pytest.mark.parametrize("path", PAGES, ids=relative_path)
def test_examples_in_the_docs_import_public_names_only(path: Path) -> None:
    for code in read_python_blocks(path):
        assert find_private_imports(code, set(PUBLIC_MODULES)) == []


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("from wmr_cli.core.pgd import box", ["wmr_cli.core.pgd.box"]),
        ("from wmr_cli.core import pgd", ["wmr_cli.core.pgd"]),
        ("import wmr_cli.storage", ["wmr_cli.storage"]),
        ("from wmr_cli.core import Batch", []),
        ("import torch", []),
    ],
)
def test_private_imports_are_found(code: str, expected: list[str]) -> None:
    assert find_private_imports(code, set(PUBLIC_MODULES)) == expected

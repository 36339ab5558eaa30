"""The pages say what the program says."""

import dataclasses
import importlib.util
import inspect
import re
import shutil
import subprocess
import sys
import tomllib
import types
from importlib.metadata import EntryPoint
from pathlib import Path

import numpy as np
import pytest
import torch

import wmr_cli
from wmr_cli import hookspecs, testing
from wmr_cli.builtins.attacks.pgd import Pgd
from wmr_cli.builtins.kernels.exp import Exponential
from wmr_cli.config import TrainConfig
from wmr_cli.core.data.splits import MemorySource, MemorySplit
from wmr_cli.core.protocols import Learner, StepReport
from wmr_cli.core.traits import AttackTraits, DefenseTraits, KernelTraits
from wmr_cli.evaluation.evaluator import Evaluator
from wmr_cli.measures import plain_accuracy
from wmr_cli.plugins import collect, installed
from wmr_cli.registry import Registry
from wmr_cli.scaffold import scaffold
from wmr_cli.storage import checkpoints
from wmr_cli.storage.records import Record
from wmr_cli.training.monitoring import EpochStatistics

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = sorted(DOCS.rglob("*.md"))
NAV = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("\nnav:")[2]
HOOKS = sorted(name for name in vars(hookspecs) if name.startswith("wmr_"))


def imported(path: Path) -> types.ModuleType:
    location = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(location)
    location.loader.exec_module(module)
    return module


generate = imported(DOCS / "generate.py")
badges = imported(DOCS / "badges.py")
STRUCTS = generate.structs(Record)
DESCRIBED = [
    (kind, entry.name) for kind in ("defense", "kernel") for entry, _ in generate.ours(kind)
]


def page(name: str) -> str:
    return (DOCS / name).read_text(encoding="utf-8")


def blocks(name: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", page(name), re.DOTALL)


def test_generated_parts_are_current() -> None:
    assert generate.stale() == [], "run `python docs/generate.py`"


@pytest.mark.parametrize(
    "surroundings",
    [
        {"COLUMNS": "40", "TERMINAL_WIDTH": "40"},
        {"FORCE_COLOR": "1", "GITHUB_ACTIONS": "1", "CI": "1", "TERM": "xterm-256color"},
    ],
    ids=["narrow", "coloured"],
)
def test_the_check_does_not_depend_on_the_terminal(
    surroundings: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in surroundings.items():
        monkeypatch.setenv(name, value)
    done = subprocess.run(
        [sys.executable, DOCS / "generate.py", "--check"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_the_check_notices_a_stale_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old = re.sub(generate.BLOCK, r"\g<begin>old\n\g<end>", page("presets.md"))
    (tmp_path / "presets.md").write_text(old, encoding="utf-8")
    monkeypatch.setattr(generate, "DOCS", tmp_path)
    monkeypatch.setattr(sys, "argv", ["generate.py", "--check"])
    with pytest.raises(SystemExit, match=r"out of date: presets\.md"):
        generate.main()
    monkeypatch.setattr(sys, "argv", ["generate.py"])
    generate.main()
    assert (tmp_path / "presets.md").read_text(encoding="utf-8") == page("presets.md")


@pytest.mark.parametrize(
    ("file", "text"), badges.draw_badges().items(), ids=lambda value: getattr(value, "stem", "")
)
def test_badges_are_true_and_shown(file: Path, text: str) -> None:
    assert file.read_text(encoding="utf-8") == text, "run `python docs/badges.py`"
    assert f"({file.relative_to(ROOT).as_posix()})" in (ROOT / "README.md").read_text(
        encoding="utf-8"
    )


def test_there_are_no_other_badges() -> None:
    assert sorted(badges.FOLDER.iterdir()) == sorted(badges.draw_badges())


@pytest.mark.parametrize("hook", HOOKS)
def test_every_hook_is_documented(hook: str) -> None:
    assert f"### {hook}\n" in page("hooks.md")


@pytest.mark.parametrize("name", sorted({*inspect.get_annotations(Learner), *vars(Learner)}))
def test_everything_that_a_defense_may_touch_is_documented(name: str) -> None:
    assert name.startswith("_") or f"`learner.{name}" in page("hooks.md")


@pytest.mark.parametrize("traits", [AttackTraits, KernelTraits, DefenseTraits])
def test_every_trait_is_documented(
    traits: type[AttackTraits] | type[KernelTraits] | type[DefenseTraits],
) -> None:
    names = [field.name for field in dataclasses.fields(traits)]
    table = page("hooks.md").partition(f"| trait of `{traits.__name__}` |")[2].partition("\n\n")[0]
    assert [name for name in names if f"\n| `{name}` |" not in table] == []


@pytest.mark.parametrize(
    "check", sorted(name for name in vars(testing) if name.startswith("check_"))
)
def test_every_check_is_documented(check: str) -> None:
    assert f"`{check}(" in page("hooks.md")


@pytest.mark.parametrize("command", [path for path, _ in generate.helps()])
def test_every_command_is_documented(command: str) -> None:
    assert f"## {command}\n" in page("cli.md")
    assert "\x1b" not in page("cli.md")


@pytest.mark.parametrize(("kind", "name"), DESCRIBED)
def test_every_defense_and_kernel_describes_itself(kind: str, name: str) -> None:
    needed = {"defense": {"Objective", "Cost", "Good for"}, "kernel": {"Weight", "Good for"}}[kind]
    sourced = {"Reference"} if name not in ("natural", "none", "table") else set()
    prose, fields = generate.fields(inspect.getdoc(installed().registry.target(kind, name)))
    assert prose
    assert set(fields) == needed | sourced
    assert all(fields.values())


@pytest.mark.parametrize(("kind", "name"), DESCRIBED)
def test_every_defense_and_kernel_is_in_its_table(kind: str, name: str) -> None:
    table = (
        page("defenses.md")
        .partition(f"<!-- generated: {kind}s -->")[2]
        .partition("<!-- end -->")[0]
    )
    rows = [
        line for line in table.splitlines() if line.startswith(f"| [`{name}`](methods.md#{name}) |")
    ]
    assert [len(re.findall(r"(?<!\\)\|", row)) for row in rows] == [7 if kind == "defense" else 6]


def test_a_field_of_a_docstring_may_go_on_on_the_next_line() -> None:
    docstring = "What it is.\n\nMore: words.\n\nObjective: a\n    + b\nCost: K + 1\n"
    assert generate.fields(docstring) == (
        "What it is.\n\nMore: words.",
        {"Objective": "a + b", "Cost": "K + 1"},
    )


@pytest.mark.parametrize(
    ("kernel", "uses"),
    [
        ("exp", ["training", "weighted attack", "evaluate"]),
        ("chi2", ["training over the batch", "evaluate over all images"]),
        ("mail", ["training after 75 epochs", "evaluate"]),
        ("gairat", ["training after 60 epochs with a defense that knows steps survived"]),
        ("table", ["training", "evaluate"]),
        ("wat", ["training"]),
    ],
)
def test_a_kernel_is_told_where_it_can_be_used(kernel: str, uses: list[str]) -> None:
    assert list(generate.uses(installed().registry.target("kernel", kernel))) == uses


@pytest.mark.parametrize("struct", STRUCTS, ids=lambda struct: struct.__name__)
def test_every_field_of_a_record_is_documented(struct) -> None:
    section = page("record.md").partition(f"### {struct.__name__}\n")[2].partition("\n#")[0]
    assert re.findall(r"^\| `(\w+)`", section, re.MULTILINE) == list(struct.__struct_fields__)


def test_every_row_of_an_evaluation_is_documented() -> None:
    kernels = {2.0: Exponential(2.0)}
    evaluator = Evaluator(
        model=testing.tiny_model(),
        attack=Pgd(eps=0.1, steps=1),
        norm="linf",
        eps=0.1,
        num_classes=testing.CLASSES,
        seed=0,
        kernels=kernels,
        stores_log_weights=True,
    )
    names = {
        re.sub(r"@[\d.]+", "", name).rpartition("/")[2]
        for name in evaluator.evaluate_batch(testing.tiny_batch())
    }
    assert {name for name in names if f"| `{name}` |" not in page("record.md")} == set()


@pytest.fixture
def checkpoint(tmp_path: Path):
    path = tmp_path / "net.safetensors"
    images = MemorySplit(torch.zeros(1, *testing.SHAPE), torch.zeros(1), torch.zeros(1))
    source = MemorySource(testing.CLASSES, {"train": images})
    checkpoints.save(
        path, testing.tiny_model().state_dict(), TrainConfig(), source, alpha_train=None, epoch=1
    )
    return path


def test_every_line_of_a_checkpoint_header_is_documented(checkpoint) -> None:
    _, header = checkpoints.load_tensors(checkpoint)
    assert {name for name in header if f"`{name}`" not in page("checkpoints.md")} == set()


def test_the_documented_hash_is_the_stored_one(checkpoint) -> None:
    (recipe,) = [
        block for block in blocks("checkpoints.md", "python") if "def content_hash" in block
    ]
    names: dict = {}
    exec(recipe, names)
    assert names["content_hash"](checkpoint) == checkpoints.load(checkpoint).sha256


def test_every_field_of_the_log_is_documented() -> None:
    statistics = EpochStatistics()
    statistics.add(
        StepReport(*(torch.ones(2) for _ in range(3)), correct=torch.tensor([True, False]))
    )
    assert {
        name for name in statistics.summary() if f"`{name}`" not in page("checkpoints.md")
    } == set()


def test_the_example_plugin_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (described,) = blocks("hooks.md", "toml")
    project = tomllib.loads(described)
    ((name, module),) = project["project"]["entry-points"]["wmr"].items()
    (written,) = [block for block in blocks("hooks.md", "python") if "@hookimpl" in block]
    (tmp_path / f"{module}.py").write_text(written, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    found = collect([EntryPoint(name, module, "wmr")])
    assert not found.broken
    testing.check_attack(found.registry.create("attack", "brightness", eps=0.1))


def test_the_new_plugin_of_the_guide_is_the_one_that_is_written(
    tmp_path: Path, registry: Registry
) -> None:
    guide = page("hooks.md").partition("## By hand")[0]
    folder = scaffold("mine", ["attack"], tmp_path / "wmr-mine", registry)
    files = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    assert set(re.findall(r"^[├└]── (\S+)", guide, re.MULTILINE)) == files
    readme = (folder / "README.md").read_text(encoding="utf-8")
    commands = re.findall(
        r"^(?:wmr (?!plugins new)|pip install -e|python -m pytest).*$", guide, re.MULTILINE
    )
    assert len(commands) == 6
    assert [command for command in commands if f"\n{command}\n" not in readme] == []


def test_the_example_model_keeps_the_contract() -> None:
    (example,) = blocks("models.md", "python")
    names: dict = {}
    exec(example, names)
    testing.check_model(names["MyNet"])


def test_every_built_in_model_has_its_line() -> None:
    ours = [
        owned.entry.name
        for kind, owned in installed().registry
        if kind == "model" and owned.owner == "wmr-cli"
    ]
    listed = page("models.md").replace("`timm:NAME`", "`timm`")
    assert [name for name in ours if f"| `{name}` |" not in listed] == []


def test_the_examples_for_notebooks_run(
    tiny_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(tiny_run, tmp_path / "runs" / "digits-trades-a2-s0")
    names: dict = {}
    for example in blocks("python.md", "python"):
        exec(example, names)
    assert capsys.readouterr().out.startswith("Estimate(value=")
    assert names["found"].record.checkpoint.path == "linear"
    assert names["again"].record == names["result"].record
    assert names["attacked"].images.shape == (200, 1, 8, 8)
    assert names["running"].compute().plain == plain_accuracy(names["right"])


@pytest.mark.parametrize("name", sorted({*wmr_cli.__all__} - {"__version__"}))
def test_every_public_name_is_documented(name: str) -> None:
    for_plugins = page("hooks.md").partition("A plugin imports from three modules:")[2]
    for_plugins = for_plugins.partition("## The five hooks")[0]
    assert (
        f"#### `{name}`\n" in page("python.md")
        or f"`{name}`" in for_plugins
        or f"`{name}(" in for_plugins
        or f"`wmr_cli.{name}`" in for_plugins
    )


def test_the_example_of_the_metrics_runs(capsys: pytest.CaptureFixture[str]) -> None:
    (example,) = [
        block for block in blocks("metrics.md", "python") if "plain_accuracy(right)" in block
    ]
    exec(example, {})
    assert "value=0.75" in capsys.readouterr().out


def test_the_example_of_the_worst_case_runs(capsys: pytest.CaptureFixture[str]) -> None:
    (example,) = [block for block in blocks("metrics.md", "python") if "worst_case(" in block]
    exec(example, {})
    assert capsys.readouterr().out.startswith("2.207")


def test_the_example_of_a_difference_runs(capsys: pytest.CaptureFixture[str]) -> None:
    (example,) = [block for block in blocks("metrics.md", "python") if "Resamples(" in block]
    exec(example, {})
    assert capsys.readouterr().out.endswith("images=20.0) True\n")


def test_the_temperature_example_runs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (example,) = [block for block in blocks("metrics.md", "python") if "temperature" in block]
    rng = np.random.default_rng(0)
    logits, label = rng.normal(size=(50, 4)), rng.integers(4, size=50)
    rows = {"label": label, "uniform/logits": logits, "uniform/prediction": logits.argmax(axis=1)}
    monkeypatch.setattr("safetensors.numpy.load_file", lambda path: rows)
    exec(example, {})
    values = [float(value) for value in re.findall(r"value=([\d.]+)", capsys.readouterr().out)]
    assert values == sorted(values), "a higher temperature brings A_sa nearer to A_rob"
    assert len(values) == 3


@pytest.mark.parametrize(
    "path", [*PAGES, ROOT / "CONTRIBUTING.md"], ids=lambda path: str(path.relative_to(ROOT))
)
def test_relative_links_resolve(path: Path) -> None:
    text = re.sub(r"```.*?```", "", path.read_text(encoding="utf-8"), flags=re.DOTALL)
    targets = [target.partition("#")[0] for target in re.findall(r"\]\(([^)\s]+)\)", text)]
    relative = [target for target in targets if target and "://" not in target]
    assert [target for target in relative if not (path.parent / target).is_file()] == []


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(DOCS)))
def test_every_page_is_in_the_navigation(path: Path) -> None:
    assert f": {path.relative_to(DOCS)}\n" in NAV

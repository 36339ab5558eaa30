"""Code that only a file names is never run; code that the user has named is, also later."""

import hashlib
import json
import os
import py_compile
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from typer.testing import CliRunner, Result

import wmr_cli
from wmr_cli import local_code
from wmr_cli.cli import app
from wmr_cli.config import EvaluationSettings, TrainConfig, resolve
from wmr_cli.errors import BadFile, BadInput, UntrustedCode
from wmr_cli.local_code import state_folder
from wmr_cli.registry import Registry
from wmr_cli.spec import Spec
from wmr_cli.storage import checkpoints
from wmr_cli.sweeps import ledger
from wmr_cli.sweeps.ledger import Ledger

NET = """
from torch import nn
from os import system

class Net(nn.Sequential):
    def __init__(self, num_classes, input_shape):
        super().__init__(nn.Flatten(), nn.Linear(64, num_classes))
"""
RAN = Path("ran")
"""A file that untrusted code creates when it is run."""
UNTRUSTED_NET = f"import pathlib\npathlib.Path({str(RAN)!r}).write_text('')\n{NET}"


def wmr(*words: object) -> Result:
    return CliRunner().invoke(app, [str(word) for word in words], prog_name="wmr")


def forget_grants() -> None:
    """Clear the grants of this process, as if a new one started: the state folder stays."""
    local_code._granted.clear()
    local_code._named_files.clear()
    os.environ.pop(local_code.TRUST_CODE, None)


def sha256(path: str | Path) -> str:
    return hashlib.sha256(Path(path).read_bytes()).hexdigest()


class Digits:
    num_classes, input_shape = 10, (1, 8, 8)
    class_names = None
    random_split_sha256 = None


def save_checkpoint(path: str, **settings: Any) -> str:
    """Save a checkpoint of a linear model that names these components."""
    config = msgspec.structs.replace(TrainConfig(steps=1, epochs=1), **settings)
    tensors = {"1.weight": torch.zeros(10, 64), "1.bias": torch.zeros(10)}
    checkpoints.save(Path(path), tensors, config, Digits(), alpha_train=2.0, epoch=1)
    return path


@pytest.fixture
def untrusted(tmp_path: Path) -> Path:
    """Write a Python file that the user has not named."""
    folder = tmp_path / "downloads"
    folder.mkdir()
    (folder / "untrusted.py").write_text(UNTRUSTED_NET)
    return folder / "untrusted.py"


def assert_refused(result: Result, untrusted: Path) -> None:
    assert result.exit_code == 2, result.output
    lines = result.stderr.splitlines()
    assert sum(line.startswith("error: ") for line in lines) == 1
    assert sum(line.startswith("hint: ") for line in lines) == 1
    assert untrusted.name in result.stderr
    assert f"--trust-code {sha256(untrusted)}" in result.stderr
    assert not RAN.exists()


CHECKPOINTS: dict[str, Callable[[Path], dict[str, Any]]] = {
    "model": lambda untrusted: {"model": f"{untrusted}:Net"},
    "model by a relative path": lambda untrusted: {"model": "downloads/untrusted.py:Net"},
    "model by a path with dots": lambda untrusted: {
        "model": f"{untrusted.parent}/../downloads/./untrusted.py:Net"
    },
    "model with parameters": lambda untrusted: {"model": f"{untrusted}:Net,mean=0.5"},
    "dataset": lambda untrusted: {"dataset": f"{untrusted}:Net"},
    "attack of its evaluation": lambda untrusted: {
        "evaluate": EvaluationSettings(attack=f"{untrusted}:Net")
    },
    "nested in its model": lambda untrusted: {"model": f"timm:resnet18,base=({untrusted}:Net)"},
    "nested in its dataset": lambda untrusted: {"dataset": f"folder:path=({untrusted}:Net)"},
    "twice nested in its attack": lambda untrusted: {
        "evaluate": EvaluationSettings(attack=f"pgd:start=(pgd:loss=({untrusted}:Net))")
    },
    "text in its attack": lambda untrusted: {
        "evaluate": EvaluationSettings(attack=f'pgd:loss="{untrusted}:Net"')
    },
}


@pytest.mark.parametrize("command", ["evaluate", "attack"])
@pytest.mark.parametrize("name", CHECKPOINTS)
def test_a_checkpoint_cannot_name_code(name: str, command: str, untrusted: Path) -> None:
    assert_refused(
        wmr(command, save_checkpoint("net.safetensors", **CHECKPOINTS[name](untrusted))), untrusted
    )


def test_a_symbolic_link_to_code_is_refused(untrusted: Path, tmp_path: Path) -> None:
    (tmp_path / "net.py").symlink_to(untrusted)
    assert_refused(
        wmr("evaluate", save_checkpoint("net.safetensors", model="net.py:Net")), tmp_path / "net.py"
    )


def test_a_run_folder_cannot_name_code(untrusted: Path) -> None:
    Path("run").mkdir()
    save_checkpoint("run/last.safetensors", model=f"{untrusted}:Net")
    Path("run/config.json").write_text(TrainConfig(model=f"{untrusted}:Net").to_json())
    assert_refused(wmr("evaluate", "run"), untrusted)


@pytest.mark.parametrize("kind", ["model", "dataset", "defense", "kernel", "attack"])
@pytest.mark.parametrize("command", [["train"], ["train", "--dry-run"]], ids=" ".join)
def test_a_config_cannot_name_code(kind: str, command: list[str], untrusted: Path) -> None:
    Path("config.json").write_text(json.dumps({kind: f"{untrusted}:Net"}))
    assert_refused(wmr(*command, "--config", "config.json", "--out", "run"), untrusted)


@pytest.mark.parametrize("kind", ["model", "dataset", "defense", "kernel", "attack"])
def test_a_run_that_is_resumed_cannot_name_code(kind: str, untrusted: Path) -> None:
    Path("run").mkdir()
    config = resolve({kind: f"{untrusted}:Net"})
    Path("run/config.json").write_text(config.to_json())
    save_checkpoint("run/last.safetensors", model=f"{untrusted}:Net")
    shutil.copy("run/last.safetensors", "run/resume.safetensors")
    assert_refused(
        wmr("train", "--config", "run/config.json", "--out", "run", "--resume"), untrusted
    )


STUDIES = {
    "model": '[train]\nmodel = "{untrusted}:Net"',
    "grid": '[[grid]]\ndefense = ["trades", "{untrusted}:Net"]',
    "attack": '[[evaluate]]\nattack = ["pgd", "{untrusted}:Net"]',
    "kernel": '[[evaluate]]\nkernel = "{untrusted}:Net"',
    "nested": '[train]\nattack = "pgd:start=({untrusted}:Net)"',
}


@pytest.mark.parametrize("flags", [[], ["--dry-run"]], ids=["sweep", "dry run"])
@pytest.mark.parametrize("name", STUDIES)
def test_a_study_cannot_name_code(name: str, flags: list[str], untrusted: Path) -> None:
    Path("study.toml").write_text(STUDIES[name].format(untrusted=untrusted))
    assert_refused(wmr("sweep", "study.toml", *flags), untrusted)


COMMANDS = [
    'slurm_setup = ["touch ran"]',
    'slurm_srun_args = ["--task-prolog=evil"]',
    'slurm_teardown = ["touch ran"]',
]


@pytest.mark.parametrize("command", [*COMMANDS, 'slurm_additional_parameters = {prolog = "evil"}'])
@pytest.mark.parametrize("flags", [[], ["--dry-run"]], ids=["sweep", "dry run"])
def test_a_study_cannot_name_commands_for_slurm(command: str, flags: list[str]) -> None:
    Path("study.toml").write_text(f"[slurm]\ncluster = 'local'\n{command}\n")
    result = wmr("sweep", "study.toml", "--slurm", *flags)
    assert result.exit_code == 2, result.output
    assert f"--trust-code {sha256('study.toml')}" in result.stderr
    assert not RAN.exists()


def test_a_trusted_study_may_name_commands_for_slurm() -> None:
    Path("study.toml").write_text(
        f"[train]\nepochs = 1\n[slurm]\ncluster = 'local'\n{COMMANDS[0]}\n"
    )
    result = wmr(
        "sweep", "study.toml", "--slurm", "--dry-run", "--trust-code", sha256("study.toml")
    )
    assert result.exit_code == 0, result.output


def test_a_setting_of_slurm_cannot_add_a_line_to_the_script() -> None:
    Path("study.toml").write_text('[slurm]\ncluster = "local"\nslurm_comment = "x\\ntouch ran"\n')
    result = wmr("sweep", "study.toml", "--slurm", "--dry-run")
    assert result.exit_code == 2
    assert "slurm_comment" in result.stderr


@pytest.mark.parametrize(
    "setting",
    [
        "out = '../report.md'",
        "out = '/tmp/report.md'",
        "figures = 'a/../../b'",
        "out = '.bashrc'",
        "out = '.ssh/x.md'",
        "out = 'x'",
    ],
)
def test_a_study_cannot_write_its_report_elsewhere_or_as_another_file(setting: str) -> None:
    Path("study.toml").write_text(f"[report]\n{setting}\n")
    result = wmr("sweep", "study.toml", "--dry-run")
    assert result.exit_code == 2
    assert "[report]: " in result.stderr


def test_a_study_refuses_a_folder_with_files_of_the_user() -> None:
    Path("project/logs").mkdir(parents=True)
    Path("project/README.md").write_text("precious")
    Path("study.toml").write_text("folder = 'project'\n[report]\nout = 'README.md'\n")
    result = wmr("sweep", "study.toml")
    assert result.exit_code == 2
    assert "README.md" in result.stderr
    assert not list(Path("project/logs").iterdir())
    assert Path("project/README.md").read_text() == "precious"


@pytest.mark.parametrize("link", ["sub", "figures", "logs", "report.md"])
def test_a_link_in_the_folder_of_a_study_is_refused(link: str) -> None:
    Path("victim").mkdir()
    Path("runs").mkdir()
    Path("runs", link).symlink_to("../victim")
    Path("study.toml").write_text(
        "folder = 'runs'\n[report]\nout = ['report.md', 'sub/report.md']\n"
    )
    result = wmr("sweep", "study.toml")
    assert result.exit_code == 2
    assert f"runs/{link}" in result.stderr
    assert not list(Path("victim").iterdir())


@pytest.mark.parametrize(
    "name", ["../../../victim", "/tmp/victim", "0123456789abcdef\n", "0123456789abcde/"]
)
def test_the_ledger_of_a_sweep_cannot_name_files_other_than_records(name: str) -> None:
    Path("run").mkdir()
    ledger.save_ledger(
        Path("run"), Ledger(settings=TrainConfig(), evaluations={"key": ["0123456789abcdef"]})
    )
    assert ledger.load_ledger(Path("run")) is not None
    Path("run/sweep.json").write_text(
        Path("run/sweep.json").read_text().replace('"0123456789abcdef"', json.dumps(name))
    )
    with pytest.raises(BadFile):
        ledger.load_ledger(Path("run"))


def test_the_ledger_of_a_sweep_cannot_name_code(untrusted: Path) -> None:
    Path("study.toml").write_text("[train]\nepochs = 1\n[[evaluate]]\nlimit = 10")
    run = Path("runs/study/digits-trades-a2-s0")
    run.mkdir(parents=True)
    ledger.save_ledger(run, Ledger(settings=TrainConfig(model=f"{untrusted}:Net")))
    assert wmr("sweep", "study.toml", "--dry-run").exit_code == 1
    assert not RAN.exists()


def test_a_record_cannot_name_code(tiny_run: Path, untrusted: Path) -> None:
    run = shutil.copytree(tiny_run, "run")
    assert wmr("evaluate", run, "--limit", 20, "--steps", 1).exit_code == 0
    (file,) = Path(run, "evaluations").glob("*.json")
    record = json.loads(file.read_text())
    record["kernel"] = record["attack"]["spec"] = record["dataset"]["name"] = f"{untrusted}:Net"
    record["checkpoint"] |= {
        "model": f"{untrusted}:Net",
        "defense": f"{untrusted}:Net",
        "kernel": f"{untrusted}:Net",
    }
    record["config"]["kernel"] = f"{untrusted}:Net"
    file.write_text(json.dumps(record))
    assert wmr(
        "report", run, "--alpha-test", "3", "--paper", "auto", "--out", "report.html"
    ).exit_code in (0, 1)
    assert not RAN.exists()


def test_python_cannot_load_code_that_only_a_checkpoint_names(untrusted: Path) -> None:
    path = save_checkpoint("net.safetensors", model=f"{untrusted}:Net")
    with pytest.raises(UntrustedCode) as caught:
        wmr_cli.load(path)
    assert sha256(untrusted) in caught.value.hint
    assert not RAN.exists()
    wmr_cli.load(path, trust_code=sha256(untrusted))
    assert RAN.exists()


def test_a_class_named_in_python_can_be_loaded_and_is_not_remembered(tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text(NET)
    wmr_cli.create("model", "net.py:Net", num_classes=10, input_shape=(1, 8, 8))
    wmr_cli.load(save_checkpoint("net.safetensors", model="net.py:Net"))
    assert not state_folder().exists()


@pytest.mark.parametrize("text", ["", "0" * 63, "0" * 65, "g" * 64, "md5:" + "0" * 32])
def test_text_that_is_not_a_hash_is_refused(text: str, untrusted: Path) -> None:
    result = wmr(
        "evaluate",
        save_checkpoint("net.safetensors", model=f"{untrusted}:Net"),
        "--trust-code",
        text,
    )
    assert result.exit_code == 2
    assert "--trust-code: " in result.stderr
    assert not RAN.exists()


def test_the_hash_of_another_file_grants_nothing(untrusted: Path, tmp_path: Path) -> None:
    (tmp_path / "other.py").write_text(NET)
    path = save_checkpoint("net.safetensors", model=f"{untrusted}:Net")
    assert_refused(wmr("evaluate", path, "--trust-code", sha256("other.py")), untrusted)


EVALUATE = ("--limit", "10", "--steps", "1", "--alpha-test", "1")


def test_a_hash_that_the_user_gives_is_remembered(tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text(NET)
    path = save_checkpoint("net.safetensors", model="net.py:Net")
    result = wmr("evaluate", path, *EVALUATE, "--trust-code", sha256("net.py").upper())
    assert result.exit_code == 0, result.output
    forget_grants()
    assert wmr("evaluate", path, *EVALUATE).exit_code == 0


def test_a_class_named_for_training_is_trusted_in_later_commands(tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text(NET)
    done = wmr(
        "train", "--model", "net.py:Net", "--epochs", 1, "--validate-every", 0, "--out", "run", "-q"
    )
    assert done.exit_code == 0, done.output
    forget_grants()
    assert wmr("evaluate", "run", *EVALUATE).exit_code == 0
    forget_grants()
    again = wmr("train", "--config", "run/config.json", "--out", "run", "--resume", "-q")
    assert again.exit_code == 0, again.output


def test_a_file_that_changed_since_it_was_named_is_refused(tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text(NET)
    wmr(
        "train", "--model", "net.py:Net", "--epochs", 1, "--validate-every", 0, "--out", "run", "-q"
    )
    forget_grants()
    (tmp_path / "net.py").write_text(UNTRUSTED_NET)
    assert_refused(wmr("evaluate", "run"), tmp_path / "net.py")


def test_the_user_can_name_another_file_for_the_class_of_a_checkpoint(tmp_path: Path) -> None:
    path = save_checkpoint("net.safetensors", model="gone/net.py:Net")
    assert wmr("evaluate", path).exit_code == 2
    (tmp_path / "here.py").write_text(NET + "Other = Net")
    done = wmr("evaluate", path, "--model", "here.py:Net", *EVALUATE)
    assert done.exit_code == 0, done.output
    assert "'Other'" in wmr("evaluate", path, "--model", "here.py:Other").stderr


@pytest.mark.parametrize("other", ["system", "nn", "Flatten"])
def test_only_the_class_that_was_named_is_allowed(other: str, tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text(NET)
    local_code.trust_named(["net.py:Net"], remember=True)
    assert_refused(
        wmr("evaluate", save_checkpoint("net.safetensors", model=f"net.py:{other},touch ran")),
        tmp_path / "net.py",
    )


def write_copies(text: str, neighbour: str) -> None:
    """Write the same file to two folders; in `theirs` it imports an untrusted neighbour."""
    for folder, content in (("mine", neighbour), ("theirs", UNTRUSTED_NET)):
        Path(folder).mkdir()
        Path(folder, "net.py").write_text(text)
        Path(folder, "neighbour.py").write_text(content)


def test_a_trusted_file_cannot_import_an_untrusted_neighbour(
    registry: Registry, tmp_path: Path
) -> None:
    write_copies("from neighbour import Net\n", NET)
    local_code.trust_named(["mine/net.py:Net"], remember=True)
    registry.target("model", "mine/net.py:Net")
    forget_grants()
    del sys.modules["neighbour"]
    assert_refused(
        wmr("evaluate", save_checkpoint("net.safetensors", model="theirs/net.py:Net")),
        tmp_path / "theirs" / "neighbour.py",
    )


def test_neighbours_of_a_named_file_are_remembered_with_it(registry: Registry) -> None:
    write_copies("from neighbour import Net\n", NET)
    shutil.copytree("mine", "copy")
    local_code.trust_named(["mine/net.py:Net"], remember=True)
    registry.target("model", "mine/net.py:Net")
    forget_grants()
    del sys.modules["neighbour"]
    registry.target("model", "copy/net.py:Net")
    del sys.modules["neighbour"]


def test_a_linked_folder_does_not_bypass_the_check(registry: Registry, tmp_path: Path) -> None:
    Path("mine/neighbour").mkdir(parents=True)
    Path("mine/net.py").write_text("from neighbour import part\n" + NET)
    Path("mine/neighbour/part.py").write_text("")
    local_code.trust_named(["mine/net.py:Net"], remember=True)
    registry.target("model", "mine/net.py:Net")
    forget_grants()
    Path("theirs").mkdir()
    Path("elsewhere").mkdir()
    Path("elsewhere/part.py").write_text(UNTRUSTED_NET)
    shutil.copy("mine/net.py", "theirs/net.py")
    Path("theirs/neighbour").symlink_to("../elsewhere")
    assert_refused(
        wmr("evaluate", save_checkpoint("net.safetensors", model="theirs/net.py:Net")),
        Path("theirs/neighbour/part.py"),
    )


def test_a_namespace_folder_on_the_search_path_is_checked(
    registry: Registry, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    Path("nspart").mkdir()
    Path("nspart/part.py").write_text(UNTRUSTED_NET)
    Path("net.py").write_text("import nspart.part\n" + NET)
    monkeypatch.syspath_prepend(str(tmp_path))
    local_code.trust_hashes([sha256("net.py")], remember=False)
    with pytest.raises(UntrustedCode, match=r"part\.py"):
        registry.target("model", "net.py:Net")
    assert not RAN.exists()


def test_a_named_file_may_import_from_a_package_that_another_file_imported(
    registry: Registry,
) -> None:
    Path("shared_package").mkdir()
    for name in ("__init__", "blocks", "attacks"):
        Path("shared_package", f"{name}.py").write_text("")
    Path("net.py").write_text("import shared_package.blocks\n" + NET)
    Path("attack.py").write_text("import shared_package.attacks\nclass A: ...\n")
    # __init__.py is empty like blocks.py, so that both have the same hash
    hashes = [sha256(file) for file in ("net.py", "shared_package/blocks.py")]
    local_code.trust_hashes(hashes, remember=False)
    Path("shared_package/attacks.py").write_text("VALUE = 1\n")
    registry.target("model", "net.py:Net")
    local_code.trust_named(["attack.py:A"], remember=False)
    assert registry.target("attack", "attack.py:A") is not None


FAILING = [("x = (\n\n", 1), ("\nraise ValueError\n", 2), ("\n\nimport no_such_neighbour", 3)]


@pytest.mark.parametrize(("text", "line"), FAILING)
def test_the_hint_names_the_line_that_failed(
    text: str, line: int, registry: Registry, tmp_path: Path
) -> None:
    Path("net.py").write_text(text)
    local_code.trust_named(["net.py:Net"], remember=False)
    with pytest.raises(BadInput) as caught:
        registry.target("model", "net.py:Net")
    assert f"line {line}" in caught.value.hint
    assert str(tmp_path / "net.py") in caught.value.hint


def test_naming_one_file_does_not_trust_what_another_imports(
    registry: Registry, tmp_path: Path
) -> None:
    write_copies("from neighbour import Net\n", NET)
    local_code.trust_named(["mine/net.py:Net"], remember=True)
    registry.target("model", "mine/net.py:Net")
    forget_grants()
    Path("attack.py").write_text(
        "from wmr_cli.core import AttackTraits\n"
        "class A:\n"
        "    traits = AttackTraits()\n"
        "    def __call__(self, model, batch, objective, *, seed, need_logits=True): ...\n"
    )
    result = wmr(
        "evaluate",
        save_checkpoint("net.safetensors", model="theirs/net.py:Net"),
        "--attack",
        "attack.py:A",
    )
    assert_refused(result, tmp_path / "theirs" / "neighbour.py")


def test_an_installed_package_has_priority_over_a_folder_of_its_name(
    registry: Registry, tmp_path: Path
) -> None:
    Path("email").mkdir()
    Path("xml").mkdir()
    Path("net.py").write_text("from xml.dom import Node\n" + NET)
    sys.modules.pop("xml", None)
    local_code.trust_named(["net.py:Net"], remember=False)
    registry.target("model", "net.py:Net")


def test_two_files_do_not_share_modules_of_the_same_name(registry: Registry) -> None:
    for folder, value in (("a-b", 1), ("a_b", 2)):
        Path(folder).mkdir()
        Path(folder, "neighbour.py").write_text(f"VALUE = {value}\n")
        Path(folder, "net.py").write_text(
            "from neighbour import VALUE\nclass Net:\n    value = VALUE\n"
        )
        local_code.trust_named([f"{folder}/net.py:Net"], remember=False)
    assert vars(registry.target("model", "a-b/net.py:Net"))["value"] == 1
    assert vars(registry.target("model", "a_b/net.py:Net"))["value"] == 2


def test_a_file_that_was_edited_is_imported_again(registry: Registry) -> None:
    for value in (1, 2):
        Path("net.py").write_text(f"class Net:\n    value = {value}\n")
        local_code.trust_named(["net.py:Net"], remember=False)
        assert vars(registry.target("model", "net.py:Net"))["value"] == value


def test_packages_installed_below_the_folder_are_not_checked(
    registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("site/installed").mkdir(parents=True)
    Path("site/installed/__init__.py").write_text("")
    Path("site/installed/later.py").write_text("VALUE = 1")
    Path("net.py").write_text("import installed\n" + NET)
    monkeypatch.syspath_prepend("site")
    local_code.trust_named(["net.py:Net"], remember=True)
    registry.target("model", "net.py:Net")
    forget_grants()
    assert len(list(state_folder().iterdir())) == 1
    assert __import__("importlib").import_module("installed.later").VALUE == 1


def test_an_unknown_home_folder_or_an_unreadable_state_folder_remembers_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    Path("net.py").write_text(NET)
    (tmp_path / "file").write_text("")
    for home in (str(tmp_path / "file"), str(tmp_path / ("x" * 300))):
        monkeypatch.setenv("XDG_STATE_HOME", home)
        assert local_code.trust_named(["net.py:Net"], remember=True)
        local_code.check(Spec.parse("net.py:Net"))


@pytest.mark.slow
def test_a_sweep_works_without_a_state_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("net.py").write_text(NET)
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    Path("study.toml").write_text('[train]\nmodel = "net.py:Net"\nepochs = 1\n')
    result = wmr("sweep", "study.toml", "--dry-run", "--trust-code", sha256("net.py"))
    assert result.exit_code == 0, result.output


def test_compiled_files_beside_a_trusted_one_are_not_read(
    registry: Registry, tmp_path: Path
) -> None:
    file = tmp_path / "net.py"
    file.write_text(UNTRUSTED_NET)
    py_compile.compile(str(file), invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH)
    file.write_text(NET)
    local_code.trust_named(["net.py:Net"], remember=False)
    registry.target("model", "net.py:Net")
    assert not RAN.exists()


def test_a_state_folder_that_cannot_be_written_is_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "net.py").write_text(NET)
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    result = wmr(
        "evaluate",
        save_checkpoint("net.safetensors", model="net.py:Net"),
        "--model",
        "net.py:Net",
        *EVALUATE,
    )
    assert result.exit_code == 0, result.output
    assert "warning: " in result.stderr


@pytest.mark.slow
def test_child_processes_of_a_sweep_inherit_trust(tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text(NET)
    Path("study.toml").write_text(
        '[train]\nmodel = "net.py:Net"\nepochs = 1\nsteps = 1\nvalidate_every = 0\n'
        "[[evaluate]]\nlimit = 10\nsteps = 1\nalpha_test = 1\n"
        '[report]\nout = "report.md"\nfigures = ""\n'
    )
    result = wmr("sweep", "study.toml", "--trust-code", sha256("net.py"))
    assert result.exit_code == 0, result.output


def test_a_relative_state_home_is_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", "here")
    assert state_folder() == Path.home() / ".local" / "state" / "wmr" / "trusted-code"


def test_a_file_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    (tmp_path / "net.py").write_bytes(b"0" * (70 * 2**20))
    with pytest.raises(BadInput, match="larger than"):
        local_code.check(Spec.parse("net.py:Net"))

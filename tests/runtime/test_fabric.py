"""No device is named in the code, but where devices are chosen; so it runs on any."""

import ast
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import wmr_cli
from wmr_cli.cli.console import say_error
from wmr_cli.errors import BadInput
from wmr_cli.runtime.distributed import read_launcher
from wmr_cli.runtime.fabric import single_process

SOURCE = Path(wmr_cli.__file__).parent
NAMES = ("cpu", "cuda", "mps", "xpu", "hip", "xla")
MAY_NAME = {
    "runtime/fabric.py": "chooses the device that the user names",
    "cli/doctor.py": "lists the devices of this machine",
    "sweeps/study.py": "shares out cores where a study names the processor",
}
ALLOWED = {"storage/torch_files.py": ['map_location="cpu"']}
"""A foreign file is read wherever it was written."""


def named(source: str) -> list[str]:
    """Devices that code names: in a string, as a method that moves a tensor there, or as a module of torch's."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if (
            isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and node.value.split(":")[0] in NAMES
        ):
            found.append(node.value)
        if isinstance(node, ast.Attribute) and node.attr in NAMES and node.attr != "cpu":
            found.append(f".{node.attr}")
    return found


def test_no_device_is_named() -> None:
    guilty = {}
    for file in sorted(SOURCE.rglob("*.py")):
        name, source = file.relative_to(SOURCE).as_posix(), file.read_text(encoding="utf-8")
        for text in ALLOWED.get(name, []):
            assert text in source
            source = source.replace(text, "map_location=None")
        if name not in MAY_NAME and (found := named(source)):
            guilty[name] = found
    assert guilty == {}


def test_the_lint_sees_what_it_looks_for() -> None:
    assert named('model.to("cuda:0")') == ["cuda:0"]
    assert named("model.cuda()") == [".cuda"]
    assert named("torch.backends.mps.is_available()") == [".mps"]
    assert named("rows = tensor.cpu().numpy()") == [], "results come back to the processor"
    assert all((SOURCE / name).exists() for name in (*MAY_NAME, *ALLOWED))


def test_only_one_place_makes_fabric() -> None:
    """Fabric warns wherever Slurm is installed, unless it is made with the environment that `devices.fabric` gives it."""
    calls = re.compile(r"(?<![\w.])Fabric\(")
    files = [*SOURCE.rglob("*.py"), *Path(__file__).parents[1].rglob("*.py")]
    makers = {file.name for file in files if calls.search(file.read_text(encoding="utf-8"))}
    assert makers == {"fabric.py"}


@pytest.fixture
def slurm_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with an `srun`, first on the PATH, and no job of Slurm's."""
    srun = tmp_path / "bin" / "srun"
    srun.parent.mkdir()
    srun.write_text("#!/bin/sh\nexit 1\n")
    srun.chmod(0o755)
    monkeypatch.setenv("PATH", f"{srun.parent}:{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONWARNINGS", "error::UserWarning")
    for name in [name for name in os.environ if name.startswith("SLURM_")]:
        monkeypatch.delenv(name)
    return srun


@pytest.mark.parametrize("devices", [1, 2])
def test_an_installed_slurm_that_is_not_used_warns_of_nothing(
    slurm_installed: Path, devices: int, tmp_path: Path
) -> None:
    words = [
        "train",
        "--epochs",
        "1",
        "--steps",
        "1",
        "--validate-every",
        "0",
        "--model",
        "digits-cnn",
        "--device",
        "cpu",
        "--quiet",
    ]
    done = subprocess.run(
        [sys.executable, "-m", "wmr_cli", *words, "--devices", str(devices), "--out", str(tmp_path / "run")],
        capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip
    assert shutil.which("srun") == str(slurm_installed)
    assert (done.returncode, done.stderr) == (0, "")
    assert (tmp_path / "run" / "last.safetensors").is_file()


@pytest.mark.parametrize(
    "environment",
    [
        {"TORCHELASTIC_RUN_ID": "x"},
        {"TORCHELASTIC_RUN_ID": "x", "LOCAL_WORLD_SIZE": "two", "WORLD_SIZE": "2"},
        {"TORCHELASTIC_RUN_ID": "x", "LOCAL_WORLD_SIZE": "0", "WORLD_SIZE": "2"},
        {"SLURM_NTASKS": "x", "SLURM_PROCID": "0", "SLURM_STEP_ID": "0"},
        {
            "SLURM_NTASKS": "2",
            "SLURM_PROCID": "0",
            "SLURM_STEP_ID": "0",
            "SLURM_NTASKS_PER_NODE": "9" * 30,
        },
    ],
    ids=str,
)
def test_a_count_of_processes_that_is_not_a_number_is_refused(
    environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(BadInput, match="in the environment, not a count") as caught:
        read_launcher()
    assert caught.value.hint
    say_error("printed all the same")


@pytest.mark.parametrize("device", ["cuda:²", "cuda:" + "9" * 5000, "cuda:-1"])
def test_a_device_number_that_is_not_one_is_refused(device: str) -> None:
    with pytest.raises(BadInput, match="device"):
        single_process(device)


def uses_fabric(source: str) -> bool:
    """Whether code imports lightning_fabric, or imports or names torch.distributed."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            modules = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            modules = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Attribute):
            modules = [ast.unparse(node)]
        else:
            continue
        if any(re.match(r"lightning_fabric\b|torch\.distributed\b", name) for name in modules):
            return True
    return False


def test_only_runtime_uses_fabric_and_torch_distributed() -> None:
    files = [file.relative_to(SOURCE) for file in sorted(SOURCE.rglob("*.py"))]
    users = {
        file.as_posix()
        for file in files
        if uses_fabric((SOURCE / file).read_text(encoding="utf-8"))
    }
    assert users == {"runtime/distributed.py", "runtime/fabric.py"}
    assert uses_fabric("from lightning_fabric import Fabric")
    assert uses_fabric("from torch import distributed")
    assert not uses_fabric("from torch.nn import functional")

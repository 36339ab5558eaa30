"""Devices and Fabric are selected in one module; all other code runs on any device."""

import ast
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from lightning_fabric.utilities.rank_zero import rank_zero_only
from torch import Tensor, nn

import wmr_cli
from wmr_cli.cli.console import say_error
from wmr_cli.errors import BadInput
from wmr_cli.runtime import fabric
from wmr_cli.runtime.distributed import Ranks, read_launcher
from wmr_cli.runtime.fabric import Hardware, launch, single_process

SOURCE = Path(wmr_cli.__file__).parent
NAMES = ("cpu", "cuda", "mps", "xpu", "hip", "xla")
MAY_NAME = {
    "runtime/fabric.py": "selects the device that the user names",
    "runtime/accelerators.py": "knows what each kind of device can do",
    "core/contexts.py": "distinguishes the CPU from accelerators",
    "core/nn/fusion.py": "selects the memory format that is faster on a device",
    "cli/installation.py": "lists the devices of this machine",
    "sweeps/study.py": "distributes cores among the runs of a study on the CPU",
}
ALLOWED = {"storage/torch_files.py": ['map_location="cpu"']}
"""A file from another machine may name a device that this one does not have."""


def find_device_names(source: str) -> list[str]:
    """Find devices in strings, in methods such as `.cuda()`, and in modules of torch."""
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


def test_only_listed_modules_name_a_device() -> None:
    named = {}
    for file in sorted(SOURCE.rglob("*.py")):
        name = file.relative_to(SOURCE).as_posix()
        source = file.read_text(encoding="utf-8")
        for text in ALLOWED.get(name, []):
            assert text in source
            source = source.replace(text, "map_location=None")
        if name not in MAY_NAME and (found := find_device_names(source)):
            named[name] = found
    assert named == {}


def test_device_names_are_found_in_code() -> None:
    assert find_device_names('model.to("cuda:0")') == ["cuda:0"]
    assert find_device_names("model.cuda()") == [".cuda"]
    assert find_device_names("torch.backends.mps.is_available()") == [".mps"]
    assert find_device_names("rows = tensor.cpu().numpy()") == [], "NumPy needs CPU tensors"
    assert all((SOURCE / name).exists() for name in (*MAY_NAME, *ALLOWED))


def test_only_one_module_makes_fabric() -> None:
    """Fabric warns if Slurm is installed but unused, unless it gets an explicit environment."""
    calls = re.compile(r"(?<![\w.])Fabric\(")
    files = [*SOURCE.rglob("*.py"), *Path(__file__).parents[1].rglob("*.py")]
    makers = {file.name for file in files if calls.search(file.read_text(encoding="utf-8"))}
    assert makers == {"fabric.py"}


@pytest.fixture
def slurm_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Put a folder with an `srun` first on the PATH, outside any Slurm job."""
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
def test_an_unused_slurm_causes_no_warning(
    slurm_installed: Path, devices: int, tmp_path: Path
) -> None:
    flags = "--epochs 1 --steps 1 --validate-every 0 --model digits-cnn --device cpu --quiet"
    done = subprocess.run(
        [
            *(sys.executable, "-m", "wmr_cli", "train", *flags.split()),
            *("--devices", str(devices), "--out", str(tmp_path / "run")),
        ],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert shutil.which("srun") == str(slurm_installed)
    assert done.stderr == ""
    assert done.returncode == 0
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
def test_an_invalid_count_of_processes_is_refused(
    environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(BadInput, match=r"LOCAL_WORLD_SIZE|SLURM_NTASKS") as caught:
        read_launcher()
    assert caught.value.hint
    # `say_error` reads the rank from the same variables, and must not fail
    say_error("the error itself")


TORCHRUN = {
    "TORCHELASTIC_RUN_ID": "none",
    "LOCAL_WORLD_SIZE": "4",
    "WORLD_SIZE": "8",
    "RANK": "6",
    "LOCAL_RANK": "2",
    "GROUP_RANK": "1",
    "MASTER_ADDR": "127.0.0.1",
    "MASTER_PORT": "29500",
}
SRUN = {
    "SLURM_NTASKS": "8",
    "SLURM_NTASKS_PER_NODE": "4",
    "SLURM_NNODES": "2",
    "SLURM_NODEID": "1",
    "SLURM_PROCID": "6",
    "SLURM_LOCALID": "2",
    "SLURM_JOB_ID": "1",
    "SLURM_STEP_ID": "0",
    "SLURM_JOB_NAME": "train",
    "SLURM_NODELIST": "node[1-2]",
}


@pytest.fixture
def set_gpus(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Return a function that makes torch report a number of GPUs."""

    def set_count(count: int) -> None:
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
        monkeypatch.setattr("lightning_fabric.accelerators.cuda.num_cuda_devices", lambda: count)

    for name in (*TORCHRUN, *SRUN):
        monkeypatch.delenv(name, raising=False)
    # what Fabric and `wmr` set for the whole process is restored at the end
    monkeypatch.setattr(rank_zero_only, "rank", 0)
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    return set_count


@pytest.mark.parametrize("environment", [TORCHRUN, SRUN], ids=["torchrun", "srun"])
@pytest.mark.parametrize(("visible", "index"), [(1, 0), (4, 2)])
@pytest.mark.parametrize("device", ["auto", "cuda"])
def test_a_process_uses_the_only_gpu_it_sees_or_that_of_its_local_rank(
    device: str,
    visible: int,
    index: int,
    environment: dict[str, str],
    set_gpus: Callable[[int], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    set_gpus(visible)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    # as `launch` does, without the processes
    made = fabric._make_fabric(Hardware(device), "32", timedelta(minutes=1))
    assert made.device == torch.device("cuda", index)
    assert (made.world_size, made.global_rank, made.local_rank) == (8, 6, 2)


def test_more_processes_than_visible_gpus_are_refused(
    set_gpus: Callable[[int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    set_gpus(1)
    with pytest.raises(BadInput, match="GPU"):
        launch(Hardware("cuda", devices=2))
    set_gpus(2)
    for name, value in TORCHRUN.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(BadInput, match="GPU"):
        launch(Hardware("cuda"))


@pytest.mark.parametrize(
    ("gpus", "is_refused"),
    [(["0 a", "0 b"], False), (["0 a", "0 a"], True), (["0 a", "1 a"], False)],
)
def test_processes_of_a_machine_that_share_a_gpu_are_refused(
    gpus: list[str], is_refused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = {"wmr-value-0": gpus[0].encode()}
    store = SimpleNamespace(
        set=lambda key, value: values.update({key: value.encode()}), get=values.__getitem__
    )
    own_node, own_gpu = gpus[1].split()
    properties = SimpleNamespace(uuid=own_gpu)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
    monkeypatch.setattr(torch.distributed.distributed_c10d, "_get_default_store", lambda: store)
    ranks = Ranks(1, 2, local_index=1, node=int(own_node), device=torch.device("cuda", 0))
    if is_refused:
        with pytest.raises(BadInput, match="GPU") as caught:
            fabric._check_gpus(ranks)
        assert caught.value.hint
    else:
        fabric._check_gpus(ranks)


def test_two_processes_with_one_gpu_are_refused_by_nccl_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class FakeFabric:
        def launch(self) -> None:
            raise RuntimeError("NCCL error: Duplicate GPU detected : rank 1 and rank 0")

    monkeypatch.setattr(fabric, "_make_fabric", lambda *settings: FakeFabric())
    with pytest.raises(BadInput, match="GPU"):
        launch.__wrapped__(Hardware("cpu", 1))


@pytest.mark.parametrize("device", ["cuda:²", "cuda:" + "9" * 5000, "cuda:-1"])
def test_an_invalid_device_number_is_refused(device: str) -> None:
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


@pytest.mark.parametrize("precision", ["32", "bf16"])
def test_a_model_sees_images_that_are_not_rounded(precision: str) -> None:
    seen: list[Tensor] = []

    class Recorder(nn.Linear):
        def forward(self, input: Tensor) -> Tensor:
            seen.append(input)
            return super().forward(input)

    model = Recorder(6, 2)
    runtime = single_process("cpu", precision)
    wrapped, _ = runtime.setup(model, torch.optim.SGD(model.parameters(), lr=0.1))
    images = torch.rand(4, 6)
    logits = wrapped(images)
    assert torch.equal(seen[0], images)
    assert logits.dtype == torch.float32
    # the arithmetic is still that of the precision
    assert torch.equal(logits, model(images)) == (precision == "32")

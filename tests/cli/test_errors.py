"""A mistake of the user gives one error, one hint and exit status 2, without a traceback."""

import errno
import os
import random
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Never

import pytest
import torch
from typer.testing import CliRunner

from wmr_cli.cli import app
from wmr_cli.config import TrainConfig
from wmr_cli.errors import BadInput
from wmr_cli.storage import checkpoints


@dataclass(frozen=True)
class Complaint:
    """The error and the hint that `wmr` printed."""

    error: str
    hint: str


def refused(*args: object) -> Complaint:
    """Run `wmr`, which must fail, and return its error and hint."""
    result = CliRunner().invoke(app, [str(arg) for arg in args], prog_name="wmr")
    lines = result.stderr.splitlines()
    errors = [line.removeprefix("error: ") for line in lines if line.startswith("error:")]
    hints = [line.removeprefix("hint: ") for line in lines if line.startswith("hint:")]
    assert isinstance(result.exception, SystemExit)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert "Traceback" not in result.stderr
    assert len(errors) == 1
    assert len(hints) == 1
    return Complaint(errors[0], hints[0])


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a run of one epoch."""
    folder = tmp_path_factory.mktemp("runs") / "tiny"
    result = CliRunner().invoke(
        app, ["train", "--epochs", "1", "--validate-every", "0", "--out", str(folder), "-q"]
    )
    assert result.exit_code == 0, result.output
    return folder


@pytest.fixture(autouse=True)
def in_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run in an empty folder, because commands without --out write to ./runs."""
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    ("flags", "error", "nearest"),
    [
        (["--defense", "tradse"], "'tradse'", "'trades'"),
        (["--model", "smal-cnn"], "'smal-cnn'", "'small-cnn'"),
        (["--dataset", "digit"], "'digit'", "'digits'"),
        (["--attack", "pgdd"], "'pgdd'", "'pgd'"),
        (["--kernel", "expp"], "'expp'", "'exp'"),
        (["--preset", "digts"], "'digts'", "'digits'"),
        (["--attack", "pgd:stps=3"], "'stps'", "'steps'"),
        (["--defense", "trades:bta=3"], "'bta'", "'beta'"),
        (["--epoch", "3"], "--epoch", "'--epochs'"),
        (["--overwrit"], "--overwrit", "'--overwrite'"),
    ],
)
def test_a_misspelt_name_key_or_flag_is_refused_with_the_nearest(
    flags: list[str], error: str, nearest: str
) -> None:
    complaint = refused("train", *flags)
    assert error in complaint.error
    assert nearest in complaint.hint


@pytest.mark.parametrize(
    ("args", "error", "nearest"),
    [
        (["evaluate", "--attack", "pgd:stps=3"], "'stps'", "'steps'"),
        (["evaluate", "--attack", "pgdd"], "'pgdd'", "'pgd'"),
        (["evaluate", "--kernel", "expp"], "'expp'", "'exp'"),
        (["evaluate", "--split", "tset"], "'tset'", "'test'"),
        (["evaluate", "--limt", "3"], "--limt", "'--limit'"),
        (["attack", "--attack", "fgms"], "'fgms'", "'fgsm'"),
    ],
)
def test_a_misspelt_name_is_refused_for_a_checkpoint_too(
    run: Path, args: list[str], error: str, nearest: str
) -> None:
    complaint = refused(*args, run)
    assert error in complaint.error
    assert nearest in complaint.hint


def test_a_misspelt_command_is_refused_with_the_nearest() -> None:
    complaint = refused("trian")
    assert "'trian'" in complaint.error
    assert "'train'" in complaint.error + complaint.hint


def test_a_misspelt_kind_to_list_is_refused_with_the_nearest() -> None:
    assert "'attacks'" in refused("list", "atacks").hint


@pytest.mark.parametrize(
    ("flags", "error"),
    [
        (["--eps", "-1"], "--eps"),
        (["--eps", "8/0"], "'8/0'"),
        (["--eps", "nan"], "'nan'"),
        (["--eps", "inf"], "'inf'"),
        (["--eps", "eight"], "'eight'"),
        (["--alpha", "nan"], "'nan'"),
        (["--alpha", "-1"], "--alpha"),
        (["--alpha", "1000"], "1000"),
        (["--alpha", "2", "--kernel", "exp:alpha=1"], "alpha"),
        (["--alpha", "2", "--kernel", "none"], "'none'"),
        (["--kernel", "exp:alpha=-1"], "alpha"),
        (["--attack", "fgsm", "--steps", "3"], "--steps"),
        (["--attack", "pgd:start=middle"], "'middle'"),
        (["--steps", "-1"], "--steps"),
        (["--step-size", "-1"], "--step-size"),
        (["--epochs", "0"], "--epochs"),
        (["--epochs", "x"], "--epochs"),
        (["--epochs"], "--epochs"),
        (["--batch-size", "0"], "--batch-size"),
        (["--lr", "0"], "--lr"),
        (["--seed", "-1"], "--seed"),
        (["--weight-grad", "sometimes"], "--weight-grad"),
        (["--normalize", "sometimes"], "--normalize"),
        (["--attack-mode", "sleep"], "--attack-mode"),
        (["--select", "luck"], "--select"),
        (["--precision", "64"], "--precision"),
        (["--defense", "trades:beta=-1"], "beta"),
        (["--defense", "trades:beta="], "trades:beta="),
        (["--defense", ""], "''"),
        (["--model", "mine.py:Net"], "mine.py"),
        (["--config", "none.toml"], "none.toml"),
        (["--device", "tpu"], "'tpu'"),
        (["--device", "cuda:x"], "'cuda:x'"),
        (["surprise"], "surprise"),
    ],
)
def test_an_invalid_setting_is_refused(flags: list[str], error: str, tmp_path: Path) -> None:
    assert error in refused("train", *flags).error
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
@pytest.mark.parametrize("device", ["cuda", "cuda:0"])
def test_a_device_that_is_not_available_is_refused(device: str) -> None:
    complaint = refused("train", "--device", device)
    assert repr(device) in complaint.error
    assert "wmr doctor" in complaint.hint


@pytest.mark.parametrize(
    ("flags", "error"),
    [
        (["--eps", "nan"], "--eps"),
        (["--eps", "0.1", "--attack", "pgd:eps=0.2"], "eps"),
        (["--steps", "3", "--attack", "pgd:steps=2"], "steps"),
        (["--steps", "3", "--attack", "fgsm"], "--steps"),
        (["--alpha-test", "1,x"], "'x'"),
        (["--alpha-test", "-1"], "--alpha-test"),
        (["--alpha-test", "1", "--kernel", "none"], "'none'"),
        (["--metrics", "nat,luck"], "'luck'"),
        (["--format", "xml"], "'xml'"),
        (["--limit", "0"], "--limit"),
        (["--restarts", "0"], "--restarts"),
        (["--batch-size", "0"], "--batch-size"),
        (["--attack", "pgd:norm=l2"], "l2"),
        (["--device", "tpu"], "'tpu'"),
    ],
)
def test_an_evaluation_with_invalid_settings_is_refused(
    run: Path, flags: list[str], error: str
) -> None:
    assert error in refused("evaluate", run, *flags).error
    assert not (run / "evaluations").exists()


def test_an_attack_with_invalid_settings_is_refused(run: Path, tmp_path: Path) -> None:
    assert "--save" in refused("attack", run, "--save-uint8").hint
    assert "--alpha" in refused("attack", run, "--alpha", "nan").error
    assert "--format" in refused("attack", run, "--format", "csv").error
    assert list(tmp_path.iterdir()) == []


def test_a_missing_checkpoint_is_refused(tmp_path: Path) -> None:
    for path in ("none.safetensors", tmp_path):
        complaint = refused("evaluate", path)
        assert str(path) in complaint.error


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"These are not the weights you are looking for.\n" * 100,
        random.Random(0).randbytes(10_000),
        b"\x00" * 64,
    ],
    ids=["empty", "text", "random", "zeros"],
)
@pytest.mark.parametrize("command", ["evaluate", "attack"])
def test_a_file_that_is_not_a_checkpoint_is_refused(command: str, content: bytes) -> None:
    Path("odd.safetensors").write_bytes(content)
    assert "odd.safetensors" in refused(command, "odd.safetensors").error


@pytest.mark.parametrize("kept", [0.001, 0.01, 0.5, 0.999])
def test_a_truncated_checkpoint_is_refused(run: Path, kept: float) -> None:
    whole = (run / "last.safetensors").read_bytes()
    Path("half.safetensors").write_bytes(whole[: int(kept * len(whole))])
    assert "half.safetensors" in refused("evaluate", "half.safetensors").error


def pick_bits(size: int, header: int, seed: int) -> list[int]:
    """Pick bits of the length field, of the header, which is small, and of the tensors."""
    rng = random.Random(seed)
    return [
        *(rng.randrange(8 * 8) for _ in range(4)),
        *(rng.randrange(8 * 8, 8 * (8 + header)) for _ in range(20)),
        *(rng.randrange(8 * (8 + header), 8 * size) for _ in range(16)),
    ]


def test_one_flipped_bit_is_detected_at_any_position(run: Path) -> None:
    whole = (run / "last.safetensors").read_bytes()
    header = int.from_bytes(whole[:8], "little")
    for bit in pick_bits(len(whole), header, seed=20):
        damaged = bytearray(whole)
        damaged[bit // 8] ^= 1 << bit % 8
        Path("flipped.safetensors").write_bytes(damaged)
        assert "flipped.safetensors" in refused("evaluate", "flipped.safetensors").error
    assert not Path("flipped.evaluations").exists()


@dataclass(frozen=True)
class StoredShape:
    """The number of classes and the image shape that a checkpoint stores."""

    num_classes: int = 10
    input_shape: tuple[int, int, int] = (1, 8, 8)
    class_names: tuple[str, ...] | None = None
    random_split_sha256: str | None = None


def write_checkpoint(config: TrainConfig, stored_shape: StoredShape | None = None) -> str:
    weights = {"weight": torch.zeros(3)}
    checkpoints.save(
        Path("made.safetensors"),
        weights,
        config,
        stored_shape or StoredShape(),
        alpha_train=None,
        epoch=1,
    )
    return "made.safetensors"


def test_a_checkpoint_of_an_unknown_model_is_refused() -> None:
    assert (
        "'no-such-model'"
        in refused("evaluate", write_checkpoint(TrainConfig(model="no-such-model"))).error
    )


def test_a_checkpoint_of_an_unknown_dataset_is_refused() -> None:
    assert (
        "'no-such-data'"
        in refused("evaluate", write_checkpoint(TrainConfig(dataset="no-such-data"))).error
    )


def test_a_checkpoint_whose_weights_do_not_fit_is_refused() -> None:
    assert (
        "'digits-cnn'"
        in refused("evaluate", write_checkpoint(TrainConfig(model="digits-cnn"))).error
    )


@pytest.mark.parametrize(
    "stored_shape", [StoredShape(num_classes=3), StoredShape(input_shape=(3, 32, 32))], ids=str
)
def test_a_checkpoint_of_another_dataset_is_refused(stored_shape: StoredShape) -> None:
    complaint = refused("evaluate", write_checkpoint(TrainConfig(model="digits-cnn"), stored_shape))
    assert "made.safetensors" in complaint.error
    assert "'digits'" in complaint.error + complaint.hint


def test_weights_without_a_header_of_wmr_are_refused() -> None:
    import safetensors.torch

    safetensors.torch.save_file({"weight": torch.zeros(3)}, "foreign.safetensors")
    assert "foreign.safetensors" in refused("evaluate", "foreign.safetensors").error


def test_a_folder_that_holds_a_run_is_refused(run: Path) -> None:
    before = {file: file.read_bytes() for file in run.iterdir() if file.is_file()}
    complaint = refused("train", "--out", run, "--epochs", "1")
    assert str(run) in complaint.error
    assert "--resume" in complaint.hint
    assert "--overwrite" in complaint.hint
    assert {file: file.read_bytes() for file in run.iterdir() if file.is_file()} == before


def test_resume_and_overwrite_contradict_each_other(run: Path) -> None:
    complaint = refused("train", "--out", run, "--resume", "--overwrite")
    assert "resume" in complaint.error
    assert "overwrite" in complaint.error


def test_resuming_with_other_settings_names_them(run: Path) -> None:
    complaint = refused(
        "train", "--out", run, "--resume", "--epochs", "1", "--validate-every", "0", "--lr", "0.25"
    )
    assert {"lr", "0.005", "0.25"} <= set(re.findall(r"[\w.]+", complaint.error))
    assert f"--config {run / 'config.json'}" in complaint.hint


@pytest.mark.parametrize("name", ["config.json", "resume.safetensors"])
def test_resuming_from_a_damaged_file_is_refused(run: Path, name: str) -> None:
    shutil.copytree(run, "copy")
    Path("copy", name).write_bytes(b"{")
    assert (
        f"copy/{name}"
        in refused(
            "train", "--out", "copy", "--resume", "--epochs", "1", "--validate-every", "0"
        ).error
    )


def test_an_output_path_that_cannot_be_written_is_refused(run: Path) -> None:
    Path("file").write_text("not a folder")
    assert "file/run" in refused("train", "--out", "file/run", "--epochs", "1").error
    assert (
        "file/records"
        in refused("evaluate", run, "--out", "file/records", "--limit", "10", "--steps", "0").error
    )
    assert (
        "file/images"
        in refused(
            "attack", run, "--save", "file/images.safetensors", "--limit", "10", "--steps", "0"
        ).error
    )


def test_a_report_without_records_is_refused(tmp_path: Path) -> None:
    assert "none" in refused("report", "none").error
    refused("report", tmp_path)
    assert "--alpha-test" in refused("report", tmp_path, "--alpha-test", "nan").error
    assert "--format" in refused("report", tmp_path, "--format", "xml").error


MARKUP = ["[/red]", "[bold]x", "[/]", "[link=x]y", "x\\[/red]"]


@pytest.mark.parametrize("text", MARKUP)
@pytest.mark.parametrize(
    "flag", ["--defense", "--model", "--dataset", "--attack", "--kernel", "--preset"]
)
def test_text_of_the_user_in_a_name_is_not_markup(flag: str, text: str) -> None:
    assert repr(text) in refused("train", flag, text).error


@pytest.mark.parametrize("text", MARKUP)
def test_text_of_the_user_in_a_path_is_not_markup(run: Path, text: str) -> None:
    name = text.replace("/", "")
    assert name in refused("evaluate", name).error
    assert name in refused("report", name).error
    assert name in refused("train", "--config", name).error
    shutil.copytree(run, name)
    assert name in refused("train", "--out", name).error


def test_text_of_the_user_in_a_flag_is_not_markup() -> None:
    assert "[/red]" in refused("train", "--[/red]").error
    assert "[/red]" in refused("[/red]").error
    assert "'[bold]x'" in refused("list", "[bold]x").error


@pytest.mark.parametrize(
    ("problem", "amount"),
    [
        (
            torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0"),
            "20.00 MiB",
        ),
        (
            RuntimeError("CPUAllocator: can't allocate memory: you tried to allocate 9 bytes."),
            "9 bytes",
        ),
        (MemoryError(), None),
        (RuntimeError("cuDNN error: CUDNN_STATUS_ALLOC_FAILED"), None),
        (RuntimeError("CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED"), None),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `f(h)`"), None),
    ],
    ids=["device", "processor", "python", "cudnn", "cudnn 9", "cublas"],
)  # fmt: skip
@pytest.mark.parametrize("command", ["train", "evaluate", "attack", "bench"])
def test_out_of_memory_names_the_flag_to_change(
    command: str, problem: Exception, amount: str | None, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def forward(*args: object, **more: object) -> Never:
        raise problem

    args = {
        "train": ["train", "--model", "digits-cnn"],
        "bench": ["bench", "--model", "digits-cnn", "--only"],
    }
    monkeypatch.setattr("wmr_cli.builtins.attacks.pgd.run_pgd", forward)
    complaint = refused(*args.get(command, [command, run]))
    assert "memory" in complaint.error
    assert (amount or "") in complaint.error
    assert "--batch-size" in complaint.hint


def test_another_runtime_error_is_not_reported_as_out_of_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def forward(*args: object, **more: object) -> Never:
        raise RuntimeError("shapes do not fit")

    monkeypatch.setattr("wmr_cli.builtins.attacks.pgd.run_pgd", forward)
    result = CliRunner().invoke(app, ["train"], prog_name="wmr")
    assert isinstance(result.exception, RuntimeError)
    assert str(result.exception) == "shapes do not fit"


def test_a_failed_allocation_on_this_machine_is_out_of_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def forward(*args: object, **more: object) -> torch.Tensor:
        return torch.empty(2**60)

    monkeypatch.setattr("wmr_cli.builtins.attacks.pgd.run_pgd", forward)
    assert "memory" in refused("train").error


LONG, HUGE = "a" * 300, "9" * 30


@pytest.mark.parametrize(
    ("args", "error"),
    [
        *(
            (["train", flag, HUGE], flag)
            for flag in ("--epochs", "--batch-size", "--steps", "--seed", "--split-seed")
        ),
        *(
            (["train", flag, HUGE], flag)
            for flag in ("--validate-every", "--milestones", "--devices", "--nodes")
        ),
        *(
            (["evaluate", "x", flag, HUGE], flag)
            for flag in ("--steps", "--restarts", "--repeats", "--limit", "--batch-size")
        ),
        *((["evaluate", "x", flag, HUGE], flag) for flag in ("--seed", "--devices", "--nodes")),
        *(
            (["attack", "x", flag, HUGE], flag)
            for flag in ("--steps", "--restarts", "--limit", "--batch-size", "--seed")
        ),
        *(
            (["bench", flag, HUGE], flag)
            for flag in ("--steps", "--batch-size", "--devices", "--seconds")
        ),
        (["sweep", "x.toml", "--jobs", HUGE], "--jobs"),
        (["train", "--attack", f"pgd:steps={HUGE}"], "steps"),
        *(
            (["train", "--save-minutes", text], "--save-minutes")
            for text in ("inf", "nan", "1e300")
        ),
        *((["bench", "--seconds", text], "--seconds") for text in ("inf", "nan")),
        (["train", "--attack", "pgd:steps=2.5"], "2.5"),
        (["train", "--attack", "pgd:steps=1,steps=2"], "steps"),
        (["train", "--defense", "awp:base=(" * 500 + "pgd" + ")" * 500], "spec"),
    ],
    ids=lambda value: " ".join(value)[:40] if isinstance(value, list) else None,
)
def test_a_number_or_spec_out_of_bounds_is_refused(
    args: list[str], error: str, tmp_path: Path
) -> None:
    assert error in refused(*args).error
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("args", "error", "hint"),
    [
        (["evaluate", "run", "--limit", "0"], "--limit", "1 or more"),
        (["report", "--rho=-1"], "--rho: expected a number >= 0, got -1", "0 or more"),
        (["sweep", "study.toml", "--jobs", "0"], "--jobs", "1 or more"),
        (["bench", "--seconds=-3"], "--seconds", "from 0 to 86400"),
        (["train", "--epochs", "x"], "--epochs: 'x' is not a whole number", "whole number"),
    ],
)
def test_a_hint_names_the_bound_and_no_other_command(
    args: list[str], error: str, hint: str
) -> None:
    complaint = refused(*args)
    assert error in complaint.error
    assert hint in complaint.hint
    assert "wmr train" not in complaint.hint


PATHS_BY_COMMAND = {
    "train": ["--config", "--data-dir", "--out"],
    "evaluate x": ["--data-dir", "--out"],
    "evaluate": ["CHECKPOINT"],
    "attack x": ["--data-dir", "--save", "--grid"],
    "attack": ["CHECKPOINT"],
    "import x --model m": ["--out", "--data-dir"],
    "import --model m": ["WEIGHTS"],
    "report": ["--out", "--figures", "PATH"],
    "sweep x": ["--data-dir"],
    "sweep": ["STUDY.toml"],
    "plugins new x --kind attack": ["--out"],
    "list": ["--data-dir"],
    "doctor": ["--data-dir"],
    "bench": ["--data-dir"],
}
PATHS = [(command, flag) for command, flags in PATHS_BY_COMMAND.items() for flag in flags]


@pytest.mark.parametrize(
    "text", ["", LONG, "a\0b", "\udcff"], ids=["empty", "long", "NUL", "bytes"]
)
@pytest.mark.parametrize(("command", "flag"), PATHS)
def test_an_invalid_path_is_refused_by_the_name_of_its_flag(
    command: str, flag: str, text: str, tmp_path: Path
) -> None:
    complaint = refused(*command.split(), *([flag] if flag.startswith("--") else []), text)
    assert complaint.error.startswith(f"{flag}: ")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("flag", ["--model", "--attack", "--dataset", "--preset", "--augment"])
def test_text_that_is_not_utf_8_is_refused(flag: str) -> None:
    assert "UTF-8" in refused("train", flag, "\udcff").error


@pytest.mark.parametrize("text", ["'\\ud800'", "'folder:path=\\ud800'"])
def test_text_of_a_file_that_is_not_unicode_is_refused(text: str) -> None:
    Path("c.json").write_text(f'{{"dataset": {text}}}'.replace("'", '"'))
    assert "c.json: dataset" in refused("train", "--config", "c.json").error


@pytest.mark.parametrize("path", [LONG, "a\\u0000b"], ids=["long", "NUL"])
def test_a_path_inside_a_file_that_cannot_be_one_is_refused(path: str) -> None:
    Path("c.json").write_text(f'{{"dataset": "folder:path={path}"}}')
    assert "path of dataset 'folder'" in refused("train", "--config", "c.json").error


def test_the_name_of_a_local_class_that_is_too_long_is_refused() -> None:
    complaint = refused("train", "--model", f"{LONG}.py:Net")
    assert LONG[:50] in complaint.error


@pytest.mark.parametrize(
    "number",
    [errno.ENOSPC, errno.EACCES, errno.EROFS, errno.EMFILE, errno.EIO, errno.ELOOP, errno.ENOTDIR],
)
def test_an_error_of_the_system_is_one_line_with_the_file(
    number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "wmr_cli.cli.train.resolve", raising(OSError(number, os.strerror(number), "some/file"))
    )
    complaint = refused("train")
    assert "some/file" in complaint.error
    assert os.strerror(number) in complaint.error


@pytest.mark.parametrize(
    "problem",
    [OSError(errno.EINVAL, "odd", "file"), OSError(errno.ENOSPC, "full"), OSError("odd")],
    ids=str,
)
def test_any_other_error_of_the_system_keeps_its_traceback(
    problem: OSError, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("wmr_cli.cli.train.resolve", raising(problem))
    assert CliRunner().invoke(app, ["train"], prog_name="wmr").exception is problem


def test_a_folder_whose_name_is_not_utf_8_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("wmr_cli.cli.train.resolve", lambda *args: "\udcff".encode())
    assert "UTF-8" in refused("train").error


def test_an_error_of_a_plugin_without_a_hint_gets_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("wmr_cli.cli.train.resolve", raising(BadInput("odd")))
    assert "--help" in refused("train").hint


def test_a_huge_error_loses_its_middle(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "wmr_cli.cli.train.resolve",
        raising(BadInput("begin" + "x" * 10**6 + "end", hint="y" * 10**6)),
    )
    complaint = refused("train")
    assert complaint.error.startswith("begin")
    assert complaint.error.endswith("end")
    assert len(complaint.error) < 2100 > len(complaint.hint)


def raising(problem: Exception) -> Callable[..., None]:
    """Return a function that raises this."""

    def function(*args: object, **more: object) -> None:
        raise problem

    return function


@pytest.mark.parametrize(
    ("args", "hint"),
    [
        (["evaluate", "--init", "x"], "wmr evaluate --help"),
        (["train", "--x"], "wmr train --help"),
        (["plugins", "new", "--nothing-like-it"], "wmr plugins new --help"),
        (["train", "--no-flod"], "'--no-fold'"),
        (["train", "--epochz"], "'--epochs'"),
    ],
)
def test_only_a_similar_flag_is_suggested(args: list[str], hint: str) -> None:
    assert hint in refused(*args).hint


@pytest.mark.parametrize(
    "args",
    [["list", "attacks", "xyz-no-match"], ["doctor", "--data-dir", "file"]],
    ids=["list", "doctor"],
)
def test_a_check_that_fails_prints_one_error_and_one_hint(args: list[str]) -> None:
    Path("file").write_text("")
    result = CliRunner().invoke(app, args, prog_name="wmr")
    assert result.exit_code == 1
    assert [line.partition(":")[0] for line in result.stderr.splitlines()] == ["error", "hint"]


def test_a_check_of_the_attack_that_fails_prints_one_error_and_one_hint(
    run: Path, tmp_path: Path
) -> None:
    words = [
        "evaluate",
        str(run),
        "--limit",
        "20",
        "--steps",
        "0",
        "--metrics",
        "nat,rob",
        "--strict",
        "--out",
        str(tmp_path),
        "-q",
    ]
    result = CliRunner().invoke(app, words, prog_name="wmr")
    assert result.exit_code == 1
    assert [line.partition(":")[0] for line in result.stderr.splitlines()] == ["error", "hint"]


SIGNALLED = """
import os
import signal
import sys
from wmr_cli.cli.app import main

def signal_itself(**given):
    os.kill(os.getpid(), signal.Signals[sys.argv[1]])


# instead of a command
sys.modules["wmr_cli.cli.app"].app = signal_itself
main()
"""


@pytest.mark.parametrize("name", ["SIGTERM", "SIGUSR1", "SIGUSR2"])
def test_every_signal_of_a_scheduler_ends_a_command_with_the_same_status(name: str) -> None:
    words = [sys.executable, "-c", SIGNALLED, name]
    assert subprocess.run(words, check=False, timeout=120).returncode == 143

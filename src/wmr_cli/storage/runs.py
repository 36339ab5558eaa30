"""A run folder: config.json, log.jsonl, the weights, resume.safetensors, evaluations/. One process uses it at a time."""

import json
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..config import TrainConfig
from ..errors import BadFile, BadInput, RunFolderError
from ..spec import Spec, exact
from .files import STRAY, locked, write_text


@dataclass(frozen=True)
class RunFolder:
    """The paths of one run."""

    path: Path

    @property
    def config(self) -> Path:
        return self.path / "config.json"

    @property
    def log(self) -> Path:
        return self.path / "log.jsonl"

    @property
    def last(self) -> Path:
        return self.path / "last.safetensors"

    @property
    def best(self) -> Path:
        return self.path / "best.safetensors"

    @property
    def ema(self) -> Path:
        return self.path / "ema.safetensors"

    @property
    def resume(self) -> Path:
        return self.path / "resume.safetensors"

    def read_log(self) -> list[dict[str, Any]]:
        """One entry per epoch; a line that a crash cut short is left out."""
        try:
            lines = self.log.read_text(encoding="utf-8").split("\n")
            entries = [json.loads(line) for line in lines[:-1]]
            if not all(isinstance(entry, dict) for entry in entries):
                raise ValueError("a line is no entry of an epoch")
        except (FileNotFoundError, NotADirectoryError):
            return []
        except (OSError, ValueError) as error:
            raise BadFile(f"{self.log} cannot be read: {error}", hint="mend the line, or train anew with --overwrite") from None
        return entries

    def write_log(self, entries: list[dict[str, Any]]) -> None:
        """Replace the log; one line per epoch."""
        write_text(self.log, "".join(json.dumps(entry, allow_nan=False) + "\n" for entry in entries))


def default_name(config: TrainConfig) -> str:
    """`digits-trades-a2-s0`: data set, defense, alpha, seed."""
    alpha = "" if config.alpha is None else f"-a{exact(config.alpha)}"
    kernel = "" if config.kernel == "exp" else f"-{Spec.parse(config.kernel).short}"
    dataset, defense = Spec.parse(config.dataset), Spec.parse(config.defense).short
    data = dataset.short + (f"-{Path(str(dataset.params['path'])).stem}" if "path" in dataset.params else "")
    return re.sub(r"[^\w.+-]+", "_", f"{data}-{defense}{kernel}{alpha}-s{config.seed}")


def refuse_taken(path: Path, *, resume: bool, overwrite: bool) -> None:
    """A folder that holds a run is refused unless the user resumes or overwrites it."""
    if resume and overwrite:
        raise BadInput("--resume and --overwrite contradict each other", hint="keep one of the two")
    folder = RunFolder(path)
    kept = (folder.resume, folder.last, folder.best, folder.path / "evaluations")  # before these a run has nothing to lose
    if not (resume or overwrite) and any(file.exists() for file in kept):
        raise RunFolderError(f"{path} already holds a run", hint="add --resume to go on with it, or --overwrite to start anew")
    if resume and folder.last.exists() and not folder.resume.exists():
        raise RunFolderError(f"{path} has weights but no resume.safetensors to go on from", hint="--overwrite starts anew")


@contextmanager
def opened(path: Path, config: TrainConfig, *, resume: bool = False, overwrite: bool = False) -> Iterator[RunFolder]:
    """The folder of this run, locked while it is in use."""
    refuse_taken(path, resume=resume, overwrite=overwrite)
    folder = RunFolder(path)
    with locked(path):
        for stray in path.glob(f".*{STRAY}"):
            stray.unlink()
        if resume and folder.config.exists():
            _check_same(folder, config)
        else:
            _clear(folder)
            write_text(folder.config, config.to_json() + "\n")
        yield folder


def _check_same(folder: RunFolder, config: TrainConfig) -> None:
    """Resuming with other settings would be another run."""
    try:
        stored = TrainConfig.from_json(folder.config.read_bytes())
    except ValueError as error:
        raise BadFile(f"{folder.config} is damaged: {error}", hint="start anew with --overwrite") from None
    differences = [
        f"{name} was {getattr(stored, name)!r}, is {getattr(config, name)!r}"
        for name in TrainConfig.__struct_fields__
        if getattr(stored, name) != getattr(config, name)
    ]
    if differences:
        raise RunFolderError(
            f"{folder.path} was trained with other settings: {'; '.join(differences)}",
            hint=f"resume with --config {folder.config}, or choose another --out",
        )


def _clear(folder: RunFolder) -> None:
    """Remove what an earlier run left here, and nothing that is not ours."""
    for file in (folder.config, folder.log, folder.last, folder.best, folder.ema, folder.resume):
        file.unlink(missing_ok=True)
    for name in ("evaluations", "tensorboard", "csv"):
        shutil.rmtree(folder.path / name, ignore_errors=True)

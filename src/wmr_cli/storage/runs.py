"""A run folder: config.json, log.jsonl, the weights, resume.safetensors, evaluations/. One process uses it at a time."""

import contextlib
import json
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..config import TrainConfig
from ..errors import BadFile, BadInput, RunFolderError
from ..reading import parse_json, read_bytes, read_text
from ..spec import Spec, exact
from .files import STRAY, locked, write_text

LOGGER_FOLDERS = ("tensorboard", "csv")
OUR_STRAY = re.compile(r"\.(config\.json|log\.jsonl|(last|best|ema|resume)\.safetensors)\.\w{8}" + re.escape(STRAY))
"""Temporary files that a killed process leaves in a run folder."""


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
            entries = [parse_json(line) for line in read_text(self.log).split("\n")[:-1]]
            for number, entry in enumerate(entries, 1):
                epoch = entry.get("epoch") if isinstance(entry, dict) else None
                if not isinstance(epoch, int) or isinstance(epoch, bool) or epoch < 1:
                    raise ValueError(f"line {number} is not the entry of an epoch")
        except (FileNotFoundError, NotADirectoryError):
            return []
        except (OSError, ValueError) as error:
            raise BadFile(
                f"{self.log} cannot be read: {error}", hint="repair the line, or start again with --overwrite"
            ) from None
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
    results = (folder.resume, folder.last, folder.best, folder.ema, folder.path / "evaluations")
    found = [file.name for file in results if os.path.lexists(file)]
    if folder.log.is_file() and folder.log.stat().st_size:  # an empty log is written before the first step
        found.append(folder.log.name)
    if overwrite:
        return
    if not found:
        _refuse_foreign(folder)
        return
    if not resume:
        raise RunFolderError(f"{path} already holds a run", hint="add --resume to go on with it, or --overwrite to start anew")
    missing = [file.name for file in (folder.config, folder.resume) if not file.is_file()]
    if missing:
        problem = f"{path} holds {', '.join(found)}, but not {' and '.join(missing)}, which --resume needs"
        raise RunFolderError(problem, hint="put it back, or add --overwrite to delete this run and start again")


def _refuse_foreign(folder: RunFolder) -> None:
    """Refuse a folder whose files have our names, but which is not a run."""
    with contextlib.suppress(OSError, ValueError):
        TrainConfig.from_json(read_bytes(folder.config))
        return
    files = (folder.config, *(folder.path / name for name in LOGGER_FOLDERS))
    if names := [file.name for file in files if os.path.lexists(file)]:
        problem = f"{folder.path} is not a run, but holds {', '.join(names)}"
        raise RunFolderError(problem, hint="choose another --out, or add --overwrite to delete them")


@contextmanager
def opened(path: Path, config: TrainConfig, *, resume: bool = False, overwrite: bool = False) -> Iterator[RunFolder]:
    """The folder of this run, locked while it is in use."""
    refuse_taken(path, resume=resume, overwrite=overwrite)
    folder = RunFolder(path)
    with locked(path):
        refuse_taken(path, resume=resume, overwrite=overwrite)  # again: another process may have used it since
        for stray in path.glob(f".*{STRAY}"):
            if OUR_STRAY.fullmatch(stray.name) and stray.is_file() and not stray.is_symlink():
                stray.unlink()
        if overwrite:
            _clear(folder)
        if resume and folder.config.exists():
            _check_same(folder, config)
        else:
            write_text(folder.config, config.to_json() + "\n")
        yield folder


def _check_same(folder: RunFolder, config: TrainConfig) -> None:
    """Resuming with other settings would be another run."""
    try:
        stored = TrainConfig.from_json(read_bytes(folder.config))
    except (OSError, ValueError) as error:
        raise BadFile(f"{folder.config} cannot be read: {error}", hint="start again with --overwrite") from None
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
    """Remove the files of an earlier run, and no others."""
    for file in (folder.config, folder.log, folder.last, folder.best, folder.ema, folder.resume):
        try:
            file.unlink(missing_ok=True)
        except OSError as error:
            raise RunFolderError(f"cannot remove {file}: {error.strerror}", hint="remove it, or choose another --out") from None
    for name in ("evaluations", *LOGGER_FOLDERS):
        if (folder.path / name).is_symlink():
            (folder.path / name).unlink()
        shutil.rmtree(folder.path / name, ignore_errors=True)

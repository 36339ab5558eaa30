"""Run folders: config.json, log.jsonl, weights, resume.safetensors and evaluations/.

One process at a time uses a run folder.
"""

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

import msgspec

from ..config import TrainConfig
from ..errors import BadFile, BadInput, RunFolderError
from ..reading import parse_json, read_bytes, read_text
from ..spec import Spec, format_number
from .atomic import TEMPORARY_SUFFIX, lock_folder, write_text

LOGGER_FOLDERS = ("tensorboard", "csv")
LEFTOVER_FILE = re.compile(
    r"\.((config|loggers)\.json|log\.jsonl|(last|best|ema|resume)\.safetensors)\.\w{8}"
    + re.escape(TEMPORARY_SUFFIX)
)
"""Temporary files that a killed process leaves behind. Other hidden files may be the user's."""


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
    def loggers(self) -> Path:
        return self.path / "loggers.json"

    @property
    def resume(self) -> Path:
        return self.path / "resume.safetensors"

    def read_log(self) -> list[dict[str, Any]]:
        """Return one entry per epoch."""
        try:
            # the part after the last newline is empty, or a line that a crash has cut short
            entries = [parse_json(line) for line in read_text(self.log).split("\n")[:-1]]
            for number, entry in enumerate(entries, 1):
                epoch = entry.get("epoch") if isinstance(entry, dict) else None
                # bool is a subclass of int
                if not isinstance(epoch, int) or isinstance(epoch, bool) or epoch < 1:
                    raise ValueError(f"line {number} is not the entry of an epoch")
        except (FileNotFoundError, NotADirectoryError):
            return []
        except (OSError, ValueError) as error:
            raise BadFile(
                f"{self.log} cannot be read: {error}",
                hint="repair the line, or start again with `overwrite=True`",
            ) from None
        return entries

    def write_log(self, entries: list[dict[str, Any]]) -> None:
        """Replace the log, with one line per epoch."""
        # rewritten as a whole: an append can be cut short, a rename cannot
        write_text(
            self.log, "".join(json.dumps(entry, allow_nan=False) + "\n" for entry in entries)
        )


def default_run_name(config: TrainConfig) -> str:
    """Return dataset, defense, kernel, alpha and seed as a name, such as `digits-trades-a2-s0`."""
    dataset = Spec.parse(config.dataset)
    parts = [dataset.short]
    if "path" in dataset.params:
        parts.append(Path(str(dataset.params["path"])).stem)
    parts.append(Spec.parse(config.defense).short)
    # the default kernel is left out, as in the names of runs of wmr 0.1
    if config.kernel != TrainConfig().kernel:
        parts.append(Spec.parse(config.kernel).short)
    if config.alpha is not None:
        parts.append(f"a{format_number(config.alpha)}")
    parts.append(f"s{config.seed}")
    return re.sub(r"[^\w.+-]+", "_", "-".join(parts))


def check_available(path: Path, *, resume: bool, overwrite: bool) -> None:
    """Raise RunFolderError for a folder that holds a run, unless it is resumed or overwritten."""
    if resume and overwrite:
        raise BadInput("`resume` and `overwrite` contradict each other", hint="keep one of the two")
    folder = RunFolder(path)
    results = (folder.resume, folder.last, folder.best, folder.ema, folder.path / "evaluations")
    # lexists: a broken link is in the way as well
    found = [file.name for file in results if os.path.lexists(file)]
    # an empty log is written before the first step and holds nothing worth keeping
    if folder.log.is_file() and folder.log.stat().st_size:
        found.append(folder.log.name)
    if overwrite:
        return
    if not found:
        _refuse_other_files(folder)
        return
    if not resume:
        raise RunFolderError(
            f"{path} already holds a run",
            hint="continue it with `resume=True`, or replace it with `overwrite=True`",
        )
    missing = [file.name for file in (folder.config, folder.resume) if not file.is_file()]
    if missing:
        raise RunFolderError(
            f"{path} holds {', '.join(found)}, but not {' and '.join(missing)}, "
            "which `resume` needs",
            hint="restore it, or delete this run and start again with `overwrite=True`",
        )


def _refuse_other_files(folder: RunFolder) -> None:
    """Refuse a folder that is not a run, but holds files that a run would replace."""
    with contextlib.suppress(OSError, ValueError):
        TrainConfig.from_json(read_bytes(folder.config))
        return
    files = (folder.config, folder.loggers, *(folder.path / name for name in LOGGER_FOLDERS))
    if names := [file.name for file in files if os.path.lexists(file)]:
        raise RunFolderError(
            f"{folder.path} is not a run, but holds {', '.join(names)}",
            hint="choose another `out`, or delete them with `overwrite=True`",
        )


@contextmanager
def open_run(
    path: Path, config: TrainConfig, *, resume: bool = False, overwrite: bool = False
) -> Iterator[RunFolder]:
    """Yield the folder of a run, locked while it is in use."""
    # before the lock, which creates the folder
    check_available(path, resume=resume, overwrite=overwrite)
    folder = RunFolder(path)
    with lock_folder(path):
        # again under the lock: another process may have used the folder in between
        check_available(path, resume=resume, overwrite=overwrite)
        for stray in path.glob(f".*{TEMPORARY_SUFFIX}"):
            if LEFTOVER_FILE.fullmatch(stray.name) and stray.is_file() and not stray.is_symlink():
                stray.unlink()
        if overwrite:
            _remove_run(folder)
        if resume and folder.config.exists():
            _check_same_settings(folder, config)
        if not (resume and folder.resume.exists()):
            # of an attempt that has ended before its first epoch
            folder.loggers.unlink(missing_ok=True)
            write_text(folder.config, config.to_json() + "\n")
        yield folder


def restore_init_hash(path: Path, config: TrainConfig) -> TrainConfig:
    """Return the settings of a resumed run with the hash of the weights that it started from.

    The file that `init` names may have changed or gone since.
    """
    folder = RunFolder(path)
    if config.init is None or not folder.config.exists():
        return config
    return msgspec.structs.replace(config, init_sha256=_read_config(folder).init_sha256)


def _check_same_settings(folder: RunFolder, config: TrainConfig) -> None:
    """Raise RunFolderError if the settings of a resumed run have changed."""
    stored = _read_config(folder)
    differences = [
        f"{name} was {getattr(stored, name)!r}, is {getattr(config, name)!r}"
        for name in TrainConfig.__struct_fields__
        # a result of the start, not a choice of the user
        if name != "init_sha256" and getattr(stored, name) != getattr(config, name)
    ]
    if differences:
        raise RunFolderError(
            f"{folder.path} was trained with other settings: {'; '.join(differences)}",
            hint=f"resume with `config={folder.config}`, or choose another `out`",
        )


def _read_config(folder: RunFolder) -> TrainConfig:
    try:
        return TrainConfig.from_json(read_bytes(folder.config))
    except (OSError, ValueError) as error:
        raise BadFile(
            f"{folder.config} cannot be read: {error}", hint="start again with `overwrite=True`"
        ) from None


def _remove_run(folder: RunFolder) -> None:
    """Remove the files of an earlier run; other files in the folder are the user's."""
    files = (folder.config, folder.log, folder.last, folder.best, folder.ema, folder.resume)
    for file in (*files, folder.loggers):
        try:
            file.unlink(missing_ok=True)
        except OSError as error:
            raise RunFolderError(
                f"cannot remove {file}: {error.strerror}", hint="remove it, or choose another `out`"
            ) from None
    for name in ("evaluations", *LOGGER_FOLDERS):
        # only the link is removed: it may lead to files of the user
        if (folder.path / name).is_symlink():
            (folder.path / name).unlink()
        shutil.rmtree(folder.path / name, ignore_errors=True)

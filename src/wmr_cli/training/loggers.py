"""The log of a run where other tools look for it: Fabric's loggers, filled from the entries of log.jsonl."""

import importlib.util
import shutil
from pathlib import Path
from typing import Any

from ..errors import BadFile, BadInput, RunFolderError
from ..reporting.tables.escaping import inert_text
from ..runtime.fabric import make_logger
from ..storage.atomic import refuse_link


def check_loggers(names: tuple[str, ...]) -> None:
    """What they need is installed."""
    if "tensorboard" in names and not any(
        map(importlib.util.find_spec, ("tensorboard", "tensorboardX"))
    ):
        raise BadInput(
            "tensorboard is not installed",
            hint="pip install 'wmr-cli[tensorboard]', or leave out --logger tensorboard",
        )


class Loggers:
    """Written anew from all earlier entries when a run goes on, so that they never hold an epoch twice."""

    def __init__(self, names: tuple[str, ...], folder: Path, entries: list[dict[str, Any]]) -> None:
        for name in names:
            refuse_link(folder / name)
            shutil.rmtree(folder / name, ignore_errors=True)
        self._loggers = [make_logger(name, folder) for name in names]
        for entry in entries:
            self.log(entry)

    def log(self, entry: dict[str, Any]) -> None:
        """Take in an epoch."""
        # earlier entries come from log.jsonl, which may hold anything
        if not isinstance(entry.get("epoch"), int):
            raise BadFile(
                "log.jsonl has a line without the number of its epoch",
                hint="repair the line, or train anew with --overwrite",
            )
        numbers = {
            inert_text(name): value
            for name, value in entry.items()
            if name != "epoch" and isinstance(value, int | float)
        }
        try:
            for logger in self._loggers:
                logger.log_metrics(numbers, step=entry["epoch"])
                logger.save()
        except OSError as error:
            problem = f"cannot write the log for --logger: {error.strerror or error}"
            raise RunFolderError(problem, hint="make room there, or leave out --logger") from error

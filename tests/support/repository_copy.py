"""A copy of the repository where commands of the pages run, shortened and without network."""

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from support.virtualenvs import OFFLINE, ROOT, Environment, clean_variables

SMALLER = {
    "train": ["--epochs", "1"],
    "evaluate": ["--limit", "60", "--alpha-test", "2"],
    "attack": ["--limit", "60"],
}
SHORT = {"square": "square:queries=100", "autoattack": "autoattack:steps=10,queries=100"}
IS_SMALL = {"--dry-run", "--help", "--limit"}
# rich takes this for a terminal without colours
TERMINAL = {"TTY_COMPATIBLE": "1", "TERM": "dumb", "COLUMNS": "100", "LINES": "50"}
DOWNLOADED = {"mnist", "fashion-mnist", "cifar10", "cifar100", "svhn", "tiny-imagenet"}


def smaller(words: Sequence[str]) -> list[str]:
    """Append flags for few epochs and images. The last of two equal flags wins."""
    if not words or IS_SMALL & set(words):
        return list(words)
    words = [SHORT.get(word, word) for word in words]
    if words[0] == "train" and DOWNLOADED & set(words):  # an epoch of these takes hours here
        return [*words, "--dry-run"]
    return [*words, *SMALLER.get(words[0], [])]


WMR = """\
#!{python}
import os, sys
sys.path.insert(0, {tests!r})
from support.repository_copy import smaller
os.execv({program!r}, ["wmr", *smaller(sys.argv[1:])])
"""
PIP = """\
#!/bin/sh
[ "$1" = install ] || {{ echo "only pip install is known here"; exit 96; }}
exec {pip} "$@" {offline}
"""


class Workspace:
    """A copy of the tracked files, with a virtual environment in .venv as `make` creates it."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "wmr"
        _copy_repository(self.root)
        self.environment = Environment(self.root / ".venv")
        self._shims = folder / "shims"
        pip = PIP.format(pip=" ".join(self.environment.pip), offline=" ".join(OFFLINE))
        _program(self._shims / "pip", pip)
        _program(self.environment.bin / "pip", pip)  # `make` calls it by its path
        program = str(self.environment.bin / "wmr")
        _program(
            self._shims / "wmr",
            WMR.format(python=sys.executable, tests=str(ROOT / "tests"), program=program),
        )

    def variables(self, data: str | None = None) -> dict[str, str]:
        """Return the environment variables of a shell in this copy. Downloads fail."""
        return {
            **clean_variables(),
            "PATH": os.pathsep.join(
                [str(self._shims), str(self.environment.bin), os.environ["PATH"]]
            ),
            "HOME": str(self._shims.parent),
            **TERMINAL,
            "MAKEFLAGS": "WMR=wmr",
            "WMR_DATA_DIR": data or str(self._shims.parent / "data"),
            **dict.fromkeys(
                ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"), "http://127.0.0.1:9"
            ),
        }


def _copy_repository(target: Path) -> None:
    known = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(known, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for path in map(Path, filter(None, listed.split("\0"))):
        if (ROOT / path).is_file():
            (target / path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / path, target / path)


def _program(path: Path, text: str) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(text, encoding="utf-8")
    path.chmod(0o755)

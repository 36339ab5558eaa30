"""Virtual environments for tests that install `wmr` and plugins as a user would."""

import os
import shlex
import subprocess
import sys
import venv
from pathlib import Path

ROOT = Path(__file__).parents[2]
OFFLINE = [
    "--quiet",
    "--no-deps",
    "--no-build-isolation",
    "--no-index",
    "--disable-pip-version-check",
]


class Environment:
    """A virtual environment with the dependencies of this one, so that nothing is downloaded."""

    def __init__(self, folder: Path) -> None:
        venv.create(folder, symlinks=True)
        self.bin = folder / "bin"
        (site,) = folder.glob("lib/python*/site-packages")
        ours = [path for path in sys.path if path.endswith("-packages")]
        (site / "borrowed.pth").write_text("\n".join([*ours, ""]))
        self.pip = [sys.executable, "-m", "pip", "--python", str(self.bin / "python")]

    def install(self, package: Path) -> None:
        subprocess.run([*self.pip, "install", *OFFLINE, package], check=True, env=clean_variables())

    def run(self, folder: Path, *words: object) -> str:
        """Run a program of this environment and return its stdout."""
        command = [str(word) for word in words]
        command[0] = str(self.bin / command[0])
        done = subprocess.run(
            command, cwd=folder, env=clean_variables(), capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, f"{shlex.join(command)}\n{done.stdout}\n{done.stderr}"
        return done.stdout


def clean_variables() -> dict[str, str]:
    """Return the variables of this process without those that point to its own environment."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if name not in ("PYTHONPATH", "VIRTUAL_ENV")
    }
    return {**kept, "OMP_NUM_THREADS": "1", "COLUMNS": "200"}

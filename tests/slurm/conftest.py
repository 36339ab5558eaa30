"""Fixtures of tests on a real Slurm cluster."""

import os
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from support.slurm_cluster import (
    PROGRAMS,
    find_program,
    list_jobs,
    start_daemons,
    wait_until,
    write_configuration,
)


@pytest.fixture(scope="session")
def slurm_cluster() -> Iterator[Path]:
    """Start the cluster and return its folder."""
    missing = [name for name in PROGRAMS if find_program(name) is None]
    if missing:
        pytest.skip(f"Slurm is not installed: {', '.join(missing)}")
    with ExitStack() as stack:
        # a short path: that of a socket has at most 107 characters
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="wmr-slurm-")))
        configuration = write_configuration(folder)
        start_daemons(stack, folder, configuration)
        yield folder


@pytest.fixture
def slurm(slurm_cluster: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Let the commands of Slurm find the cluster; cancel the jobs of the test at its end."""
    for name in [name for name in os.environ if name.startswith(("SLURM_", "SBATCH_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("SLURM_CONF", str(slurm_cluster / "slurm.conf"))
    yield slurm_cluster
    subprocess.run(["scancel", "--full", f"--user={os.getuid()}"], check=False)
    wait_until(lambda: not list_jobs(), "the jobs have ended")

"""A Slurm cluster of one node in a temporary folder, with its own ports, key and configuration.

It leaves a Slurm of this machine alone: every command finds the configuration by `SLURM_CONF`.
"""

import os
import secrets
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from wmr_cli.runtime.processes import end_with_parent

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "squeue", "scancel", "scontrol")
START_SECONDS = 60
CPUS = 4
"""CPUs that Slurm counts, whatever the machine has: jobs must not wait for each other."""
CONFIGURATION = """
ClusterName=wmr
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller_port}
SlurmdPort={node_port}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket,cred_expire=5
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
AccountingStorageType=accounting_storage/none
JobCompType=jobcomp/none
MpiDefault=none
SlurmdParameters=config_overrides
ReturnToService=2
KillWait=20
NodeName={host} NodeAddr=127.0.0.1 CPUs={cpus} State=UNKNOWN
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


def find_program(name: str) -> str | None:
    """Return the path of a program; daemons are not on the PATH of all users."""
    return shutil.which(name, path=f"{os.environ['PATH']}:/usr/sbin:/sbin")


def write_configuration(folder: Path) -> Path:
    """Write the configuration and the key of a cluster."""
    for name in ("state", "spool"):
        (folder / name).mkdir()
    key = folder / "munge.key"
    key.write_bytes(secrets.token_bytes(128))
    key.chmod(0o400)
    ports = []
    with ExitStack() as stack:
        for _ in range(2):
            unused = stack.enter_context(socket.socket())
            unused.bind(("127.0.0.1", 0))
            ports.append(unused.getsockname()[1])
    (folder / "cgroup.conf").write_text(f"CgroupPlugin={unused_cgroups()}\n")
    file = folder / "slurm.conf"
    file.write_text(
        CONFIGURATION.format(
            host=host_name(),
            controller_port=ports[0],
            node_port=ports[1],
            user=Path("/").owner() if os.getuid() == 0 else os.environ.get("USER", "root"),
            folder=folder,
            cpus=CPUS,
        )
    )
    return file


def unused_cgroups() -> str:
    """Return the setting by which Slurm does not touch the control groups of this machine."""
    text = subprocess.run(
        [str(find_program("slurmd")), "-V"], capture_output=True, text=True, check=True
    ).stdout
    major, minor = text.split()[-1].split(".")[:2]
    # older versions cannot disable them; this plugin then has nothing to do
    return "disabled" if (int(major), int(minor)) >= (23, 2) else "cgroup/v1"


def host_name() -> str:
    """Return the name by which Slurm knows this machine."""
    return socket.gethostname().partition(".")[0]


def start_daemons(stack: ExitStack, folder: Path, configuration: Path) -> None:
    """Start munge, controller and node; the stack stops them in the opposite order."""
    munged = ["munged", "--foreground", "--force", f"--key-file={folder}/munge.key"]
    names = ("socket", "pid-file", "log-file", "seed-file")
    munged += [f"--{name}={folder}/munge.{name.removesuffix('-file')}" for name in names]
    stack.enter_context(running(munged, folder, configuration))
    wait_until(lambda: (folder / "munge.socket").exists(), "munge listens", folder)
    stack.enter_context(running(["slurmctld", "-D", "-c"], folder, configuration))
    node = ["slurmd", "-D", "-c", "-N", host_name()]
    stack.enter_context(running(node, folder, configuration))
    environment = {**os.environ, "SLURM_CONF": str(configuration)}

    def is_idle() -> bool:
        done = subprocess.run(
            ["sinfo", "--noheader", "--format=%T"],
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        return done.stdout.strip() == "idle"

    wait_until(is_idle, "the node is idle", folder)


@contextmanager
def running(command: list[str], folder: Path, configuration: Path) -> Iterator[None]:
    """Run a daemon in the foreground, and stop it at the end, whatever happens."""
    program = find_program(command[0])
    assert program is not None
    with open(folder / f"{command[0]}.out", "wb") as output:
        daemon = subprocess.Popen(
            [program, *command[1:]],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env={**os.environ, "SLURM_CONF": str(configuration)},
            start_new_session=True,
            # tests that are killed stop their daemons, too
            preexec_fn=end_with_parent(signal.SIGTERM),
        )
    try:
        yield
    finally:
        daemon.terminate()
        try:
            daemon.wait(timeout=20)
        except subprocess.TimeoutExpired:
            daemon.kill()
            daemon.wait()


def wait_until(
    is_true: Callable[[], bool],
    what: str,
    folder: Path | None = None,
    seconds: float = START_SECONDS,
) -> None:
    """Wait for a condition; fail with the logs of the cluster if it does not become true."""
    deadline = time.monotonic() + seconds
    while not is_true():
        if time.monotonic() > deadline:
            logs = [] if folder is None else [*folder.glob("*.out"), *folder.glob("*.log")]
            texts = [f"{log.name}:\n{log.read_text(errors='replace')[-2000:]}" for log in logs]
            pytest.fail("\n".join([f"not within {seconds} s: {what}", *texts]))
        time.sleep(0.2)


def list_jobs() -> dict[str, str]:
    """Return the states of all jobs that have not ended."""
    listed = subprocess.run(
        ["squeue", "--noheader", "--format=%i %T"], capture_output=True, text=True, check=True
    )
    return dict(line.split() for line in listed.stdout.splitlines())

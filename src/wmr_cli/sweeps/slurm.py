"""Run a study as Slurm jobs, through submitit.

Each job is `wmr sweep STUDY --run NAME`. A job that reaches its time limit saves its state, is
queued again and resumes. No torch.
"""

import logging
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from subprocess import SubprocessError
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from .. import local_code
from ..config import check_value
from ..errors import BadInput, PluginError, RunFolderError, WmrError
from .ledger import read_status
from .process import RESULT_FILE_VARIABLE, Failure, last_line, read_result, sleep_before_poll
from .runner import RunDone, RunFailed, RunStarted, SweepEvent, SweepEvents
from .study import Run, Study

if TYPE_CHECKING:
    from submitit import AutoExecutor, Job
    from submitit.core.utils import DelayedSubmission

CLUSTER_KEY = "cluster"
"""The one setting of [slurm] that is not a parameter of submitit. `local` and `debug` try a study
without Slurm."""
SHARED_SETTINGS = (
    "name",
    "timeout_min",
    "mem_gb",
    "nodes",
    "cpus_per_task",
    "gpus_per_node",
    "tasks_per_node",
    "stderr_to_stdout",
)
SLURM_SETTINGS = (
    "account", "array_parallelism", "comment", "constraint", "cpus_per_gpu", "dependency",
    "exclude", "exclusive", "gpus_per_task", "gres", "job_name", "mail_type", "mail_user",
    "max_num_timeout", "mem", "mem_per_cpu", "mem_per_gpu", "nodelist", "num_gpus", "partition",
    "qos", "signal_delay_s", "time", "use_srun", "wckey",
)  # fmt: skip
SAFE_SETTINGS = frozenset(
    [
        CLUSTER_KEY,
        *SHARED_SETTINGS,
        *SLURM_SETTINGS,
        *(f"slurm_{name}" for name in SLURM_SETTINGS),
    ]
)
"""Settings that run no command. Others may, such as slurm_setup, slurm_srun_args and
slurm_additional_parameters."""

MAX_TIMEOUTS_KEY = "slurm_max_num_timeout"
MAX_TIMEOUTS = 10
"""How often a job is queued again after its time limit, by default."""
QUEUE_SECONDS = 5.0
"""Interval of `squeue`, which asks the controller that all users share."""
READS_WITHOUT_JOB = 2
"""A job that is missing from this many answers has ended. The first may precede its start."""
ENDED_STATES = frozenset(
    [
        "BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY",
        "PREEMPTED", "REVOKED", "TIMEOUT",
    ]
)  # fmt: skip


@dataclass(frozen=True)
class JobCommand:
    """Run a command as a job; submitit pickles this object and calls it on the node."""

    words: tuple[str, ...]
    result: Path

    def __call__(self) -> None:
        """Run the command until it ends."""
        # an attempt before this one may have left it
        self.result.unlink(missing_ok=True)
        environment = {**os.environ, RESULT_FILE_VARIABLE: str(self.result)}
        _children[:] = [subprocess.Popen(self.words, env=environment)]
        _wait_without_reaping(_children[0])
        if status := _children[0].wait():
            raise RuntimeError(f"the command ended with status {status}")

    def checkpoint(self) -> "DelayedSubmission":
        """Let the command save its state and end; return what the next attempt must call.

        submitit calls this before the time limit, then queues the job again.
        """
        from submitit.helpers import DelayedSubmission

        for child in _children:
            # Slurm signals every process of a step, but not those of other launchers
            child.send_signal(signal.SIGUSR2)
            _wait_without_reaping(child)
        return DelayedSubmission(self)


_children: "list[subprocess.Popen[bytes]]" = []
"""The command of this job. Not a field of `JobCommand`, which is pickled."""


def _wait_without_reaping(child: "subprocess.Popen[bytes]") -> None:
    """Wait until a child has ended, also inside a signal handler that interrupts such a wait."""
    # Popen.wait holds a lock, on which the wait of the handler would block forever
    if child.returncode is None:
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)


class JobQueue:
    """States of the user's jobs by `squeue`, which works on clusters without accounting."""

    def __init__(self) -> None:
        self._states: dict[str, str] = {}
        self._reads = 0
        self._first_reads: dict[str, int] = {}
        """How often the queue had been read when a job was looked for the first time."""
        self._read_at = float("-inf")

    def has_ended(self, job_id: str, result: Path) -> bool:
        """Whether a job has ended, by its result file or by its state."""
        if result.exists():
            return True
        first_read = self._first_reads.setdefault(job_id, self._reads)
        self._read_if_due()
        if job_id not in self._states:
            # it ended, and was forgotten, before the first answer of the controller
            return self._reads - first_read >= READS_WITHOUT_JOB
        return self.state(job_id) in ENDED_STATES

    def state(self, job_id: str) -> str:
        """Return the newest state that is known of a job."""
        return self._states.get(job_id, "PENDING")

    def _read_if_due(self) -> None:
        if time.monotonic() - self._read_at < QUEUE_SECONDS:
            return
        self._read_at = time.monotonic()
        done = subprocess.run(
            ["squeue", f"--user={os.getuid()}", "--states=all", "--noheader", "--format=%i %T"],
            capture_output=True,
            text=True,
            check=False,
        )
        # a controller that does not answer will do so later
        if done.returncode:
            return
        states = dict(line.split() for line in done.stdout.splitlines() if line.strip())
        for name in self._states.keys() - states.keys():
            # Slurm forgets a job some minutes after its end
            states[name] = "COMPLETED"
        self._states = states
        self._reads += 1


def submit_study(study: Study, data_dir: Path | None) -> SweepEvents:
    """Submit every run that is not done and follow the jobs.

    When this ends early, it cancels the remaining jobs.
    """
    # raises for bad settings before the first job is submitted
    executor = make_executor(study, _job_folder(study))
    active: dict[str, tuple[Run, Job[None]]] = {}
    try:
        for run in study.runs:
            status = read_status(study, run)
            # finished runs are found here, because a job may wait for hours before it starts
            if status.refusal is not None:
                yield RunFailed(run, status.refusal)
            elif status.is_done:
                yield RunDone(run, was_done=True)
            else:
                job = _submit(executor, study, run, data_dir)
                active[run.name] = (run, job)
                yield RunStarted(run, f"job {job.job_id}")
        queue = JobQueue()
        while active:
            for run, job in list(active.values()):
                state = _end_state(executor, job, queue)
                if state is not None:
                    del active[run.name]
                    yield _describe_end(study, run, job, state)
            sleep_before_poll()
    finally:
        # nothing would follow the remaining jobs or report how they end
        for _, job in active.values():
            # unchecked: a job that has just ended cannot be cancelled
            job.cancel(check=False)


def _end_state(executor: "AutoExecutor", job: "Job[None]", queue: JobQueue) -> str | None:
    """Return the state of a job that has ended, None before that."""
    if executor.cluster != "slurm":
        return job.state if job.done() else None
    # not `job.done`: submitit asks `sacct`, which fails on clusters without accounting
    if not queue.has_ended(job.job_id, job.paths.result_pickle):
        return None
    return queue.state(job.job_id)


def check_slurm_settings(study: Study) -> None:
    """Raise for settings of [slurm] that cannot be submitted. Nothing is submitted."""
    with TemporaryDirectory() as folder:
        make_executor(study, Path(folder))


def _job_folder(study: Study) -> Path:
    return study.folder / "logs" / "slurm"


def _result_file(study: Study, run: Run) -> Path:
    return _job_folder(study) / f"{run.name}.result.json"


def _submit(executor: "AutoExecutor", study: Study, run: Run, data_dir: Path | None) -> "Job[None]":
    result = _result_file(study, run)
    # a job is a sweep of one run, so that it resumes and locks like any other
    words = [sys.executable, "-m", "wmr_cli", "sweep", str(study.file), "--run", run.name]
    words += ["--jobs", "1"]
    if data_dir is not None:
        words += ["--data-dir", str(data_dir)]
    try:
        # the result of an earlier job would be taken for that of this one
        result.unlink(missing_ok=True)
    except OSError as error:
        raise RunFolderError(
            f"cannot remove {result}: {error.strerror}", hint="check owner and permissions"
        ) from None
    try:
        return executor.submit(JobCommand(tuple(words), result.absolute()))
    except (OSError, RuntimeError, SubprocessError) as error:
        # submitit raises RuntimeError for a failure of sbatch
        text = " ".join(str(error).split())
        raise BadInput(
            f"{study.file}, [slurm]: a job could not be submitted: {text}",
            hint="try `sbatch` by hand",
        ) from None


def _describe_end(study: Study, run: Run, job: "Job[None]", state: str) -> SweepEvent:
    """Return how a job ended.

    The files of the run say whether it is done, whatever the job's state.
    """
    if read_status(study, run).is_done:
        return RunDone(run)
    try:
        result = read_result(_result_file(study, run))
    except WmrError as error:
        return RunFailed(run, Failure.from_error(error))
    hint = ""
    if result is not None and result.error:
        reason = result.error
        hint = result.hint
    else:
        # no result file: the job was cancelled, ran out of time, or could not start
        reason = last_line((job.stderr() or job.stdout() or "").splitlines())
    # the result of a job exists before its state changes
    outcome = f"ended as {state}" if state in ENDED_STATES else "failed"
    problem = f"job {job.job_id} {outcome}: {reason}"
    return RunFailed(run, Failure(problem, hint or f"see {job.paths.stderr}"))


def make_executor(study: Study, folder: Path) -> "AutoExecutor":
    """Make a submitit executor with the settings of the study.

    Its scripts and messages go to this folder.
    """
    try:
        import submitit
    except ImportError:
        raise PluginError(
            "Slurm jobs need submitit, which is not installed", hint="pip install 'wmr-cli[slurm]'"
        ) from None
    place = f"{study.file}, [slurm]"
    settings = dict(study.slurm)
    cluster = check_value(settings.pop(CLUSTER_KEY, "slurm"), str, f"{place}: {CLUSTER_KEY}")
    if not cluster:  # submitit would choose one itself
        raise BadInput(
            f"{place}: {CLUSTER_KEY} is empty", hint='leave it out, or write "slurm" or "local"'
        )
    # its warnings and progress would appear between the lines of the sweep
    logging.getLogger("submitit").setLevel(logging.ERROR)
    timeouts = settings.pop(MAX_TIMEOUTS_KEY, MAX_TIMEOUTS)
    max_timeouts = check_value(timeouts, int, f"{place}: {MAX_TIMEOUTS_KEY}")
    hint = 'submit from a machine of the cluster, or try the study with cluster = "local"'
    try:
        executor = submitit.AutoExecutor(
            folder=folder, cluster=cluster, slurm_max_num_timeout=max_timeouts
        )
        hint = (
            "[slurm] takes the parameters of submitit's update_parameters,"
            " such as slurm_partition, timeout_min, gpus_per_node"
        )
        executor.update_parameters(**{"name": f"wmr-{study.file.stem}", **settings})
    except (NameError, TypeError, ValueError, RuntimeError, AssertionError) as error:
        # AssertionError: a value of another type. Some messages contain a line break as `\n` in
        # letters.
        text = re.split(r"\n|\\n", str(error))[0]
        raise BadInput(f"{place}: {text}", hint=hint) from None
    _check_commands(study)  # after submitit has refused unknown names
    return executor


def _check_commands(study: Study) -> None:
    """Raise for settings that run commands, unless the user trusts the study file."""
    commands = [key for key in study.slurm if key not in SAFE_SETTINGS]
    if commands:
        local_code.check_commands(study.file, f"{commands[0]} of [slurm]")
    for key, value in study.slurm.items():
        # submitit writes each setting as a line of a shell script
        if key in SAFE_SETTINGS and isinstance(value, str) and not value.isprintable():
            raise BadInput(
                f"{study.file}, [slurm]: {key} contains a control character",
                hint="write it in one line",
            )

"""Run a study as Slurm jobs, through submitit.

Each job is `wmr sweep STUDY --run NAME`. No torch.
"""

import re
import sys
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


def submit_study(study: Study, data_dir: Path | None) -> SweepEvents:
    """Submit every run that is not done and follow the jobs.

    When this ends early, it cancels the remaining jobs.
    """
    # raises for bad settings before the first job is submitted
    executor = make_executor(study, _job_folder(study))
    active: dict[str, tuple[Run, Job[str]]] = {}
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
        while active:
            for run, job in list(active.values()):
                if job.done():
                    del active[run.name]
                    yield _describe_end(study, run, job)
            sleep_before_poll()
    finally:
        # nothing would follow the remaining jobs or report how they end
        for _, job in active.values():
            job.cancel()


def check_slurm_settings(study: Study) -> None:
    """Raise for settings of [slurm] that cannot be submitted. Nothing is submitted."""
    with TemporaryDirectory() as folder:
        make_executor(study, Path(folder))


def _job_folder(study: Study) -> Path:
    return study.folder / "logs" / "slurm"


def _result_file(study: Study, run: Run) -> Path:
    return _job_folder(study) / f"{run.name}.result.json"


def _submit(executor: "AutoExecutor", study: Study, run: Run, data_dir: Path | None) -> "Job[str]":
    from submitit.helpers import CommandFunction

    result = _result_file(study, run)
    # through `env`, because CommandFunction replaces the whole environment of the job
    words = ["env", f"{RESULT_FILE_VARIABLE}={result.absolute()}", sys.executable, "-m", "wmr_cli"]
    # a job is a sweep of one run, so that it resumes and locks like any other
    words += ["sweep", str(study.file), "--run", run.name, "--jobs", "1"]
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
        return executor.submit(CommandFunction(words, verbose=False))
    except (OSError, RuntimeError, SubprocessError) as error:
        # submitit raises RuntimeError for a failure of sbatch
        text = " ".join(str(error).split())
        raise BadInput(
            f"{study.file}, [slurm]: a job could not be submitted: {text}",
            hint="try `sbatch` by hand",
        ) from None


def _describe_end(study: Study, run: Run, job: "Job[str]") -> SweepEvent:
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
    problem = f"job {job.job_id} ended as {job.state}: {reason}"
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
    hint = 'submit from a machine of the cluster, or try the study with cluster = "local"'
    try:
        executor = submitit.AutoExecutor(folder=folder, cluster=cluster)
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

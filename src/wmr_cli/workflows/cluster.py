"""The runs of a study as jobs of Slurm's, through submitit: each is `wmr sweep STUDY --run NAME` on whatever machine it gets."""

import re
import sys
from pathlib import Path
from subprocess import SubprocessError
from tempfile import TemporaryDirectory
from typing import Any

from .. import local_code
from ..config import typed
from ..errors import BadInput, PluginError
from .jobs import Failure, pause, reason
from .study import Run, Study
from .sweep import RunDone, RunFailed, RunStarted, SweepEvent, Walk, standing

CLUSTER = "cluster"
"""The one setting of [slurm] that is not submitit's own: `local` and `debug` take its place, for trying a study out."""


SHARED = ("name", "timeout_min", "mem_gb", "nodes", "cpus_per_task", "gpus_per_node", "tasks_per_node", "stderr_to_stdout")
OF_SLURM = (
    "account", "array_parallelism", "comment", "constraint", "cpus_per_gpu", "dependency", "exclude", "exclusive",
    "gpus_per_task", "gres", "job_name", "mail_type", "mail_user", "max_num_timeout", "mem", "mem_per_cpu", "mem_per_gpu",
    "nodelist", "num_gpus", "partition", "qos", "signal_delay_s", "time", "use_srun", "wckey",
)  # fmt: skip
HARMLESS = frozenset([CLUSTER, *SHARED, *OF_SLURM, *(f"slurm_{name}" for name in OF_SLURM)])
"""Settings that run no command. Others may, such as slurm_setup, slurm_srun_args and slurm_additional_parameters."""


def submitted(study: Study, data_dir: Path | None) -> Walk:
    """Submit every run that is not done and follow the jobs; whatever ends this cancels those that are left."""
    executor, function = _executor(study, study.folder / "logs" / "slurm")
    waiting: dict[str, tuple[Run, Any]] = {}
    try:
        for run in study.runs:
            found = standing(study, run)
            if found.refused is not None:
                yield RunFailed(run, found.refused)
            elif found.is_done:
                yield RunDone(run, was_done=True)
            else:
                waiting[run.name] = run, _submitted(executor, function(_words(study, run, data_dir), verbose=False), study)
                yield RunStarted(run, f"job {waiting[run.name][1].job_id}")
        while waiting:
            for run, job in list(waiting.values()):
                if job.done():
                    del waiting[run.name]
                    yield _ended(study, run, job)
            pause()
    finally:
        for _, job in waiting.values():
            job.cancel()


def _submitted(executor: Any, call: Any, study: Study) -> Any:
    try:
        return executor.submit(call)
    except (OSError, RuntimeError, SubprocessError) as error:  # what submitit makes of sbatch's is a RuntimeError
        said = " ".join(str(error).split())
        raise BadInput(f"{study.file}, [slurm]: a job could not be submitted: {said}", hint="try `sbatch` by hand") from None


def _words(study: Study, run: Run, data_dir: Path | None) -> list[str]:
    words = [sys.executable, "-m", "wmr_cli", "sweep", str(study.file), "--run", run.name, "--jobs", "1"]
    return [*words, *(() if data_dir is None else ("--data-dir", str(data_dir)))]


def _ended(study: Study, run: Run, job: Any) -> SweepEvent:
    """The files say whether it is done; the words of the job say why not."""
    if standing(study, run).is_done:
        return RunDone(run)
    said = reason((job.stderr() or job.stdout() or "").splitlines())
    return RunFailed(
        run, Failure(f"job {job.job_id} ended as {job.state}: {said.reason}", said.hint or f"see {job.paths.stderr}")
    )


def check(study: Study) -> None:
    """Refuse settings of [slurm] that no job could be submitted with; nothing is."""
    with TemporaryDirectory() as folder:
        _executor(study, Path(folder))


def _check_commands(study: Study) -> None:
    """Refuse settings that run commands, unless the user trusts the study file."""
    if commands := [key for key in study.slurm if key not in HARMLESS]:
        local_code.check_commands(study.file, f"{commands[0]} of [slurm]")
    for key, value in study.slurm.items():
        # submitit writes each setting as a line of a shell script
        if key in HARMLESS and isinstance(value, str) and not value.isprintable():
            raise BadInput(f"{study.file}, [slurm]: {key} contains a control character", hint="write it in one line")


def _executor(study: Study, folder: Path) -> tuple[Any, Any]:
    """What submits by the settings of the study, with scripts and messages in this folder, and what makes words a job."""
    try:
        import submitit
    except ImportError:
        problem = "Slurm is reached through submitit, which is not installed"
        raise PluginError(problem, hint="pip install 'wmr-cli[slurm]'") from None
    settings, hint = dict(study.slurm), 'submit from a machine of the cluster, or try the study out with cluster = "local"'
    cluster = typed(settings.pop(CLUSTER, "slurm"), str, f"{study.file}, [slurm]: {CLUSTER}")
    if not cluster:  # submitit would choose one itself
        raise BadInput(f"{study.file}, [slurm]: {CLUSTER} is empty", hint='leave it out, or write "slurm" or "local"')
    try:
        executor = submitit.AutoExecutor(folder=folder, cluster=cluster)
        hint = "[slurm] takes what submitit's update_parameters takes, such as slurm_partition, timeout_min, gpus_per_node"
        executor.update_parameters(**{"name": f"wmr-{study.file.stem}", **settings})
    except (NameError, TypeError, ValueError, RuntimeError, AssertionError) as error:  # the last for a value of another type
        said = re.split(r"\n|\\n", str(error))[0]  # submitit also writes a line break as it is typed
        raise BadInput(f"{study.file}, [slurm]: {said}", hint=hint) from None
    _check_commands(study)  # after submitit has refused unknown names
    return executor, submitit.helpers.CommandFunction

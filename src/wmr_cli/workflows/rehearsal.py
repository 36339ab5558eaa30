"""How long the runs of a study would take, or only whether they can be carried out, asked in a process of its own.

Of each shape a few steps and a batch are measured once; or everything is built, and nothing done.

`python -m wmr_cli.workflows.rehearsal REQUESTS ANSWERS`: a list of what to measure in one JSON file, seconds or the reason
why there are none in the other. A study asks this of a process of its own, as it needs torch itself for nothing.
"""

import os
import sys
import time
from pathlib import Path

import msgspec
import torch

from ..config import EvaluateConfig, TrainConfig
from ..core.lean import CHECKED
from ..core.noise import derive
from ..errors import WmrError
from ..plugins import installed
from ..registry import Registry
from ..storage.checkpoints import Checkpoint
from ..storage.files import write_text
from .assembly import Assembly, assemble
from .estimate import estimate
from .evaluate import examination_of
from .planning import Task, plan
from .ranks import launched, leave_the_others
from .shapes import Answer, Answers, Request

PICTURES = 64
"""So many images are attacked to see how long one takes."""


def measured(request: Request, registry: Registry) -> Answer:
    """Seconds of training, and of every evaluation, of an untrained network, if asked for; or what is wrong with the settings."""
    try:
        fabric = launched(request.device, request.devices, None, request.config.precision)
        run = assemble(request.config, registry, Path(request.data_dir), fabric, compiles=request.compiles)
        evaluations = [_tasks(run, each, registry, Path(request.data_dir)) for each in request.evaluations]
        if not request.is_timed:
            return Answer()
        return Answer(estimate(run, registry).run, [sum(_seconds(run, task) for task in tasks) for tasks in evaluations])
    except WmrError as problem:
        return Answer(problem=str(problem), hint=problem.hint)
    except Exception:
        if request.is_timed:
            raise
        return Answer()  # no mistake of the study's: whatever it is, the run itself says it best


def _tasks(run: Assembly, config: EvaluateConfig, registry: Registry, data_dir: Path) -> list[Task]:
    """All attacks in all balls."""
    same_data = config.dataset is None
    return list(plan(_untrained(run), config, registry, data_dir, run.source if same_data else None))


def _seconds(run: Assembly, task: Task) -> float:
    """What a task would take, from one batch."""
    batch = task.split.batch(task.positions[: min(PICTURES, task.config.batch_size)]).to(run.fabric.device)
    examination = examination_of(task, run.model, batch.images[:CHECKED])
    batch = batch.to(run.fabric.device, examination.memory_format)
    started = time.perf_counter()
    examination.rows(batch)
    per_image = (time.perf_counter() - started) / len(batch.labels)
    return per_image * len(task.positions) * task.config.repeats / run.fabric.world_size


def _untrained(run: Assembly) -> Checkpoint:
    """The network as it is, as if it had been saved."""
    config: TrainConfig = run.config
    return Checkpoint(
        path=Path("untrained.safetensors"), sha256="", model=config.model, num_classes=run.source.num_classes,
        input_shape=run.source.input_shape, dataset=config.dataset, defense=config.defense, kernel=config.kernel,
        alpha_train=config.alpha, norm=config.norm, eps=config.eps, epoch=0, seed=config.seed, config=config, tensors={},
        class_names=getattr(run.source, "class_names", None), drawn=getattr(run.source, "drawn", None),
    )  # fmt: skip


def main(requests: Path, answers: Path) -> None:
    """Answer every request of one file in another."""
    started = time.perf_counter()
    torch.manual_seed(derive("rehearsal"))
    registry = installed().registry
    asked = msgspec.json.decode(requests.read_bytes(), type=list[Request])
    found = Answers([measured(request, registry) for request in asked], time.perf_counter() - started)
    if os.environ.get("LOCAL_RANK", "0") == "0":  # the first of several processes speaks for all
        write_text(answers, msgspec.json.encode(found).decode())


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
    leave_the_others(0)

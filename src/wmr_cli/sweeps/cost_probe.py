"""Build runs of a study and measure a few steps of each.

Usage: `python -m wmr_cli.sweeps.cost_probe REQUESTS REPORT`.

A sweep itself needs no torch, so it starts this module as a child process. Both files are JSON; see
`dry_run`.
"""

import os
import sys
import time
from pathlib import Path

import msgspec
import torch

from ..config import EvaluateConfig, TrainConfig
from ..core.nn.fusion import SAMPLE_SIZE
from ..core.rng import derive_seed
from ..errors import WmrError
from ..evaluation.evaluator import make_evaluator
from ..evaluation.tasks import EvaluationTask, plan_tasks
from ..plugins import load_plugins
from ..registry import Registry
from ..runtime.distributed import exit_rank
from ..runtime.fabric import Hardware, launch
from ..storage.atomic import write_text
from ..storage.checkpoints import Checkpoint
from ..training.estimate import estimate
from ..training.setup import TrainingSetup, set_up_training
from .dry_run import ProbeReport, ProbeRequest, ProbeResult

TIMED_IMAGES = 64
"""Number of images that are attacked to measure the time per image."""


def answer_request(request: ProbeRequest, registry: Registry) -> ProbeResult:
    """Build a run with an untrained network, and measure it if requested.

    Or return what is wrong with its settings.
    """
    data_dir = Path(request.data_dir)
    try:
        hardware = Hardware(request.device, request.devices)
        runtime = launch(hardware, request.config.precision)
        run = set_up_training(
            request.config, registry, data_dir, runtime, compile_model=request.compile
        )
        evaluations = [
            _plan_evaluation(run, config, registry, data_dir) for config in request.evaluations
        ]
        if not request.is_timed:
            return ProbeResult()
        return ProbeResult(
            training=estimate(run).run,
            evaluations=[sum(_time_task(run, task) for task in tasks) for tasks in evaluations],
        )
    except WmrError as error:
        return ProbeResult(error=str(error), hint=error.hint)
    except Exception:
        if request.is_timed:
            raise
        # not a mistake in the settings; the run itself reports it best
        return ProbeResult()


def _plan_evaluation(
    run: TrainingSetup, config: EvaluateConfig, registry: Registry, data_dir: Path
) -> list[EvaluationTask]:
    """Return the tasks of an evaluation: all attacks at all radii."""
    # the dataset of the training is in memory already
    source = run.source if config.dataset is None else None
    return list(plan_tasks(_untrained_checkpoint(run), config, registry, data_dir, source))


def _time_task(run: TrainingSetup, task: EvaluationTask) -> float:
    """Return the seconds that a task takes, extrapolated from one batch."""
    device = run.runtime.device
    # at most one batch, because a larger one may not fit into memory
    count = min(TIMED_IMAGES, task.config.batch_size)
    batch = task.images.first(count).to(device)
    evaluator = make_evaluator(task, run.model, batch.images[:SAMPLE_SIZE])
    batch = batch.to(device, evaluator.memory_format)
    # started after fusion and transfer, which happen once and not per image
    started = time.perf_counter()
    evaluator.evaluate_batch(batch)
    seconds_per_image = (time.perf_counter() - started) / len(batch.labels)
    images = len(task.images) * task.config.repeats
    return seconds_per_image * images / run.runtime.ranks.count


def _untrained_checkpoint(run: TrainingSetup) -> Checkpoint:
    """Return the header that a checkpoint of this network would have, without tensors."""
    config: TrainConfig = run.config
    return Checkpoint(
        path=Path("untrained.safetensors"),
        sha256="",
        model=config.model,
        num_classes=run.source.num_classes,
        input_shape=run.source.input_shape,
        dataset=config.dataset,
        defense=config.defense,
        kernel=config.kernel,
        alpha_train=config.alpha,
        norm=config.norm,
        eps=config.eps,
        epoch=0,
        seed=config.seed,
        config=config,
        tensors={},
        class_names=run.source.class_names,
        drawn=run.source.random_split_sha256,
    )


def main(request_file: Path, report_file: Path) -> None:
    """Answer every request of one file in another."""
    started = time.perf_counter()
    # a fixed seed: an untrained network has the same weights, and so the same cost, every time
    torch.manual_seed(derive_seed("rehearsal"))
    registry = load_plugins().registry
    requests = msgspec.json.decode(request_file.read_bytes(), type=list[ProbeRequest])
    results = [answer_request(request, registry) for request in requests]
    report = ProbeReport(results=results, seconds=time.perf_counter() - started)
    if os.environ.get("LOCAL_RANK", "0") == "0":  # all ranks get here; rank 0 writes
        write_text(report_file, msgspec.json.encode(report).decode())


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
    # without interpreter shutdown, which can abort in threads of torch
    exit_rank(0)

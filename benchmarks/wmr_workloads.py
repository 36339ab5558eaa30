"""Workloads of `wmr`: the calls that `wmr train` and `wmr evaluate` make, and no others."""

import shutil
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import nn

from wmr_cli.config import METRICS, EvaluateConfig, Metric
from wmr_cli.core.losses import cross_entropy
from wmr_cli.core.nn.fusion import to_memory_format
from wmr_cli.core.protocols import Batch
from wmr_cli.evaluation.run import evaluate
from wmr_cli.plugins import load_plugins
from wmr_cli.runtime import components
from wmr_cli.runtime.accelerators import synchronize
from wmr_cli.runtime.fabric import Hardware, launch
from wmr_cli.spec import Spec
from wmr_cli.storage import checkpoints
from wmr_cli.training.loop import train_step
from wmr_cli.training.optimization import StepSettings
from wmr_cli.training.setup import TrainingSetup, set_up_training

from .cases import BETA, CLASSES, LR, Case, write_data

ALPHAS = (1.0, 1.5, 2.0)


@dataclass(frozen=True)
class TrainingWorkload:
    """A training before its first step, one batch, and an unmodified copy of its network."""

    run: TrainingSetup
    batch: Batch
    plain: nn.Module

    def attack(self) -> object:
        """Run the attack of a training step, and compute the logits of its result."""
        self._begin(measure_success=True)
        attacked = self.run.learner.attack(self.batch, cross_entropy)
        synchronize(self.batch.images.device)
        return attacked

    def step(self) -> object:
        """Run a whole training step, including the statistics of the log."""
        self._begin(measure_success=False)
        batch = next(self.run.batches.read([torch.arange(len(self.batch.labels))], epoch=0))
        return train_step(self.run, batch)

    def _begin(self, *, measure_success: bool) -> None:
        self.run.learner.begin_step(
            0, 0, StepSettings(LR), len(self.batch.labels), measure_success=measure_success
        )


def make_training(case: Case, folder: Path, defense: str, attack: str) -> TrainingWorkload:
    """Set up the training of a case like `wmr train`."""
    registry = load_plugins().registry
    data = folder / f"{case.model}.npz"
    if not data.exists():
        write_data(case, data, images=case.batch)
    run = set_up_training(case.config(data, defense, attack), registry, folder, launch(Hardware()))
    reset_zero_layers(run.model)
    # peers must not run the model that `wmr` has fused and moved to another memory format
    plain = components.build_model(registry, case.model, CLASSES, case.shape)
    plain.load_state_dict(run.model.state_dict())
    batch = run.split.batch(torch.arange(case.batch)).to(run.runtime.device)
    batch = replace(batch, images=to_memory_format(batch.images, run.memory_format))
    return TrainingWorkload(run, batch, plain.to(run.runtime.device))


def reset_zero_layers(model: nn.Module) -> None:
    """Initialise linear layers whose weights are zero."""
    # their input gradient is zero too, which the first training steps would change
    for module in model.modules():
        if isinstance(module, nn.Linear) and not module.weight.any():
            module.reset_parameters()


def make_trades(case: Case, folder: Path) -> TrainingWorkload:
    """Set up TRADES with the settings of its authors."""
    return make_training(case, folder, f"trades:beta={BETA:g}", "pgd:start=gauss:0.001")


def make_pgd_training(case: Case, folder: Path) -> TrainingWorkload:
    """Set up adversarial training of Madry et al.; its attack is the PGD of the libraries."""
    return make_training(case, folder, "pgd", "pgd:start=uniform")


@dataclass(frozen=True)
class EvaluationWorkload:
    """A checkpoint of random weights, and test images."""

    case: Case
    folder: Path
    training: TrainingWorkload

    @property
    def checkpoint(self) -> Path:
        """The file of the weights."""
        return self.folder / f"{self.case.model}.safetensors"

    def evaluate(self, metrics: tuple[Metric, ...] = METRICS) -> None:
        """Run `wmr evaluate`, from reading the checkpoint to writing the record."""
        config = EvaluateConfig(
            attacks=("pgd",),
            eps=(self.case.eps,),
            steps=self.case.steps,
            step_size=self.case.step,
            alpha_test=ALPHAS,
            metrics=metrics,
            batch_size=self.case.batch,
        )
        out = self.folder / "evaluations"
        for _ in evaluate(
            self.checkpoint, config, load_plugins().registry, data_dir=self.folder, out=out
        ):
            pass
        # stored records would be found instead of measured in the next round
        shutil.rmtree(out)

    def evaluate_robust(self) -> None:
        """Evaluate A_nat and A_rob only: a clean pass and one attack."""
        self.evaluate(("nat", "rob"))

    def attack(self) -> None:
        """Run one attack on the same images, batch by batch."""
        registry = load_plugins().registry
        case = self.case
        run = self.training.run
        pgd = components.build_attack(
            registry, Spec("pgd"), norm="linf", eps=case.eps, steps=case.steps, step_size=case.step
        )
        split = run.source.splits["test"]
        for positions in torch.arange(len(split)).split(case.batch):
            batch = split.batch(positions).to(run.runtime.device)
            batch = replace(batch, images=to_memory_format(batch.images, run.memory_format))
            run.learner.attack(batch, cross_entropy, own=pgd)
        synchronize(run.runtime.device)


def make_evaluation(case: Case, folder: Path, images: int) -> EvaluationWorkload:
    """Save a checkpoint to evaluate on this many images."""
    inside = folder / f"{case.model}-{images}-{case.steps}"
    inside.mkdir()
    write_data(case, inside / f"{case.model}.npz", images)
    training = make_pgd_training(case, inside)
    made = EvaluationWorkload(case, inside, training)
    checkpoints.save(
        made.checkpoint,
        training.run.model.state_dict(),
        training.run.config,
        training.run.source,
        alpha_train=None,
        epoch=1,
    )
    return made


def with_steps(case: Case, steps: int) -> Case:
    """Return the same case with another number of steps."""
    return replace(case, steps=steps)

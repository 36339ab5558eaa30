"""What users of `wmr` get: the calls that `wmr train` and `wmr evaluate` make, and no others."""

import shutil
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import nn

from wmr_cli.config import EvaluateConfig
from wmr_cli.core.contracts import Batch
from wmr_cli.core.layouts import arranged
from wmr_cli.core.losses import cross_entropy
from wmr_cli.plugins import installed
from wmr_cli.spec import Spec
from wmr_cli.storage import checkpoints
from wmr_cli.workflows import parts
from wmr_cli.workflows.assembly import Assembly, assemble
from wmr_cli.workflows.devices import settle
from wmr_cli.workflows.evaluate import evaluate
from wmr_cli.workflows.optimization import Pace
from wmr_cli.workflows.ranks import launched

from .cases import BETA, CLASSES, LR, Case, write_data

ALPHAS = (1.0, 1.5, 2.0)


@dataclass(frozen=True)
class Ours:
    """A training that is about to begin, one batch of it, and the network as others would have it."""

    run: Assembly
    batch: Batch
    plain: nn.Module

    def attack(self) -> object:
        """The attack of a training step, with the logits of what it made."""
        self._begin(judged=True)
        attacked = self.run.learner.attack(self.batch, cross_entropy)
        settle(self.batch.images.device)
        return attacked

    def step(self) -> object:
        """A whole step: attack, losses, weights, gradient, optimizer, and what the log counts. One in ten counts more."""
        self._begin(judged=False)
        return self.run.step(self.batch, epoch=0)

    def _begin(self, *, judged: bool) -> None:
        self.run.learner.begin_step(0, 0, Pace(LR), len(self.batch.labels), judged=judged)


def training(case: Case, folder: Path, defense: str, attack: str) -> Ours:
    """The training of a case, as `wmr train` puts it together."""
    registry, data = installed().registry, folder / f"{case.model}.npz"
    if not data.exists():
        write_data(case, data, images=case.batch)
    run = assemble(case.config(data, defense, attack), registry, folder, launched("auto"))
    wake(run.model)
    plain = parts.model(registry, case.model, CLASSES, case.shape)
    plain.load_state_dict(run.model.state_dict())
    batch = run.split.batch(torch.arange(case.batch)).to(run.fabric.device)
    batch = replace(batch, images=arranged(batch.images, run.memory_format))
    return Ours(run, batch, plain.to(run.fabric.device))


def wake(model: nn.Module) -> None:
    """A last layer that starts at zero gives no gradient to climb; after its first steps it is like any other."""
    for module in model.modules():
        if isinstance(module, nn.Linear) and not module.weight.any():
            module.reset_parameters()


def trades(case: Case, folder: Path) -> Ours:
    """TRADES as its authors train it."""
    return training(case, folder, f"trades:beta={BETA:g}", "pgd:start=gauss:0.001")


def adversarial(case: Case, folder: Path) -> Ours:
    """Adversarial training as Madry et al. do it; its attack is the PGD that libraries offer."""
    return training(case, folder, "pgd", "pgd:start=uniform")


@dataclass(frozen=True)
class Evaluated:
    """A checkpoint of random weights and so many test images."""

    case: Case
    folder: Path
    ours: Ours

    @property
    def checkpoint(self) -> Path:
        """Where its weights are."""
        return self.folder / f"{self.case.model}.safetensors"

    def whole(self, metrics: tuple[str, ...] = ("nat", "rob", "sa", "tr")) -> None:
        """Everything that `wmr evaluate` does, from reading the checkpoint to writing the record."""
        asked = EvaluateConfig(
            attacks=("pgd",),
            eps=(self.case.eps,),
            steps=self.case.steps,
            step_size=self.case.step,
            alpha_test=ALPHAS,
            metrics=metrics,
            batch_size=self.case.batch,
        )
        out = self.folder / "evaluations"
        for _ in evaluate(self.checkpoint, asked, installed().registry, data_dir=self.folder, out=out):
            pass
        shutil.rmtree(out)

    def robust(self) -> None:
        """The same for A_nat and A_rob alone: a clean pass and one attack."""
        self.whole(("nat", "rob"))

    def one_attack(self) -> None:
        """One attack on the same images, batch by batch."""
        registry, case, learner = installed().registry, self.case, self.ours.run.learner
        pgd = parts.attack(registry, Spec("pgd"), norm="linf", eps=case.eps, steps=case.steps, step_size=case.step)
        split = self.ours.run.source.splits["test"]
        for positions in torch.arange(len(split)).split(case.batch):
            batch = split.batch(positions).to(self.ours.run.fabric.device)
            batch = replace(batch, images=arranged(batch.images, self.ours.run.memory_format))
            learner.attack(batch, cross_entropy, own=pgd)
        settle(self.ours.run.fabric.device)


def evaluated(case: Case, folder: Path, images: int) -> Evaluated:
    """A checkpoint to evaluate, on so many images in batches of the case."""
    inside = folder / f"{case.model}-{images}-{case.steps}"
    inside.mkdir()
    write_data(case, inside / f"{case.model}.npz", images)
    ours = adversarial(case, inside)
    made = Evaluated(case, inside, ours)
    checkpoints.save(made.checkpoint, ours.run.model.state_dict(), ours.run.config, ours.run.source, alpha_train=None, epoch=1)
    return made


def shortened(case: Case, steps: int) -> Case:
    """The same with another number of steps."""
    return replace(case, steps=steps)

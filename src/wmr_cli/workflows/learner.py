"""What a defense may touch during a step, on top of Lightning Fabric."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from ..config import TrainConfig
from ..core.contracts import Attack, Attacked, Batch, Evidence, Kernel, Objective
from ..core.guards import guarded
from ..core.modes import evaluating
from ..core.noise import derive
from ..core.norms import NORMS
from ..core.objectives import Weighted

if TYPE_CHECKING:
    from lightning_fabric import Fabric


class FabricLearner:
    """Meets `core.contracts.Learner`: attacks use the plain module, parameter gradients go through Fabric's wrapper."""

    def __init__(
        self,
        fabric: "Fabric",
        module: nn.Module,
        optimizer: torch.optim.Optimizer,
        attack: Attack,
        kernel: Kernel,
        config: TrainConfig,
        num_classes: int,
    ) -> None:
        self._fabric = fabric
        self._wrapped, self._optimizer = fabric.setup(module, optimizer)
        self._attack = attack
        self._config = config
        self._num_classes = num_classes
        self.model = module
        self.kernel = kernel
        self.seed = config.seed
        self.epoch = 0
        self.step_index = 0

    def begin_step(self, epoch: int, step_index: int, learning_rate: float) -> None:
        """Everything random in a step follows from (seed, step, rank): no generator's state needs saving."""
        self.epoch, self.step_index = epoch, step_index
        torch.manual_seed(derive("step", self.seed, step_index, self._fabric.global_rank))
        for group in self._optimizer.param_groups:
            group["lr"] = learning_rate
        self.model.train()
        self._optimizer.zero_grad()

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self._wrapped(images)
        return logits

    @contextmanager
    def attack_mode(self) -> Iterator[None]:
        with self._fabric.autocast():
            if self._config.attack_mode == "train":
                yield
            else:
                with evaluating(self.model):
                    yield

    def attack(self, batch: Batch, objective: Objective) -> Attacked:
        # a detached weight cancels in the attack, so "outer" and "none" are the plain objective
        if self._config.weight_grad in ("both", "attack"):
            objective = Weighted(objective, self.kernel)
        seed = derive("attack", self.seed, self.step_index)
        with self.attack_mode():
            return guarded(
                self._attack, self.model, batch, objective, seed, NORMS[self._config.norm], self._config.eps, self._num_classes
            )

    def weights(self, evidence: Evidence) -> Tensor:
        log_weights = self.kernel(evidence)
        if self._config.weight_grad in ("attack", "none"):
            log_weights = log_weights.detach()
        if self._config.normalize == "none":
            return log_weights.exp()
        weights = (log_weights - log_weights.detach().max()).exp()  # the scale cancels, so none can overflow
        return weights / weights.detach().mean()

    def backward(self, loss: Tensor) -> None:
        self._fabric.backward(loss)

    def optimizer_step(self) -> None:
        self._optimizer.step()

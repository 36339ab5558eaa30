"""What a defense may touch during a step, on top of Lightning Fabric."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import fields
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from ..config import TrainConfig
from ..core.contracts import Attack, Batch, Crafted, Evidence, Kernel, Objective
from ..core.guards import crafted, guarded
from ..core.lean import Twin
from ..core.losses import cross_entropy
from ..core.modes import evaluating
from ..core.noise import derive
from ..core.norms import NORMS
from ..core.objectives import Weighted
from .combining import check_evidence
from .optimization import Pace
from .parts import scaled
from .ranks import meet, pooled, share

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
        self._full_attack, self._full_kernel = attack, kernel
        self._config = config
        self._num_classes = num_classes
        self.norm = NORMS[config.norm]
        self.model = module
        self.seed = config.seed
        self.twin: Twin | None = None
        """a lean twin of the network, which attacks see instead"""
        self.fooling: tuple[Tensor, Tensor] | None = None
        """of the last attack in a step that is judged: who was right before its first step, and who of those is wrong after it"""
        self.begin_step(0, 0, Pace(config.lr), count=1)

    def begin_step(self, epoch: int, step_index: int, pace: Pace, count: int, *, judged: bool = True) -> None:
        """Everything random in a step follows from (seed, step, rank): no generator's state needs saving.

        `count` images are in the batch of all ranks. Only where an attack is `judged` it is asked whom it fooled.
        """
        self.epoch, self.step_index, self._count, self.fooling = epoch, step_index, count, None
        # in train mode every pass leaves its trace in the network, and what is logged must not
        self._judges = judged and self._config.attack_mode == "eval"
        self.eps = pace.eps_share * self._config.eps
        self._attack = scaled(self._full_attack, pace.eps_share, "eps", "step")
        burns_in = epoch < getattr(self._full_kernel, "start_epoch", 0)
        self.kernel: Kernel = alike if burns_in else scaled(self._full_kernel, pace.alpha_share, "alpha")
        torch.manual_seed(derive("step", self.seed, step_index, self._fabric.global_rank))
        for group in self._optimizer.param_groups:
            group["lr"] = pace.learning_rate
        self.model.train()

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self._wrapped(images)
        return logits

    @contextmanager
    def attack_mode(self) -> Iterator[nn.Module]:
        # half precision loses the small gradients of confident images; in training a scale saves them, here there is none
        with nullcontext() if self._config.precision == "16" else self._fabric.autocast():
            if self._config.attack_mode == "train":
                yield self.model
            else:
                with evaluating(self.model):
                    yield self._lean()

    def _lean(self) -> nn.Module:
        """The twin as the network is now, or the network."""
        if self.twin is None:
            return self.model
        self.twin.refresh()  # the last step moved weights and statistics
        return self.twin.module

    def attack(self, batch: Batch, objective: Objective, own: Attack | None = None) -> Crafted:
        # a detached weight cancels in the attack, so "outer" and "none" are the plain objective
        if self._config.weight_grad in ("both", "attack") and not getattr(self.kernel, "detached", False):
            objective = Weighted(objective, self.kernel)
        attack, eps = (self._attack, self.eps) if own is None else (own, getattr(own, "eps", self.eps))
        seed = derive("attack", self.seed, self.step_index)
        with self.attack_mode() as model:
            if not self._judges and hasattr(attack, "craft"):
                return crafted(attack, model, batch, objective, seed, self.norm, eps)
            attacked = guarded(attack, model, batch, objective, seed, self.norm, eps, self._num_classes)
        began = attacked.steps_survived > 0
        self.fooling = began, began & (attacked.logits.argmax(dim=1) != batch.labels)
        return Crafted(attacked.images, attacked.steps_survived)

    def weights(self, evidence: Evidence) -> Tensor:
        log_weights = self._log_weights(evidence)
        if self._config.weight_grad in ("attack", "none") or getattr(self.kernel, "detached", False):
            log_weights = log_weights.detach()
        if self._config.normalize == "none" and not getattr(self.kernel, "mean_one", False):
            weights = log_weights.exp()
        else:
            meet(self._fabric)
            # the scale cancels, so none can overflow; where no image has any weight it is 0 that is divided
            smallest = torch.finfo(log_weights.dtype).min
            largest = self._over_ranks(log_weights.detach().max(), "max").clamp(min=smallest)
            relative = (log_weights - largest).exp()
            mean = self._mean_over_ranks(relative.detach())
            weights = relative / torch.where(mean > 0, mean, 1)
        return weights if self._config.max_weight is None else weights.clamp(max=self._config.max_weight)

    def _log_weights(self, evidence: Evidence) -> Tensor:
        check_evidence(self.kernel, evidence)
        if self._fabric.world_size == 1 or not getattr(self.kernel, "compares", False):
            return self.kernel(evidence)
        known = {field.name: getattr(evidence, field.name) for field in fields(evidence)}
        everyones: dict[str, Any] = {name: part if part is None else self.gather(part.detach()) for name, part in known.items()}
        return share(self.kernel(Evidence(**everyones)), self._fabric)

    def label_loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        return cross_entropy(logits, labels, self._config.label_smoothing)

    def mean(self, values: Tensor) -> Tensor:
        # the wrapper takes the mean of the ranks' gradients, and their shares may differ by one image
        ranks = self._fabric.world_size
        return values.mean() if ranks == 1 else values.sum() * (ranks / self._count)

    def gather(self, values: Tensor) -> Tensor:
        meet(self._fabric)
        return pooled(self._fabric, values, self._count)

    def backward(self, loss: Tensor) -> None:
        meet(self._fabric)  # the gradients of all ranks are about to be added
        self._fabric.backward(loss)

    def add_gradients(self, gradients: Mapping[nn.Parameter, Tensor]) -> None:
        meet(self._fabric)
        for parameter, gradient in gradients.items():
            mean = self._over_ranks(gradient, "mean")
            parameter.grad = mean if parameter.grad is None else parameter.grad + mean

    def optimizer_step(self) -> None:
        if self._config.clip_grad is not None:
            limit = self._config.clip_grad
            self._fabric.clip_gradients(self._wrapped, self._optimizer, max_norm=limit, error_if_nonfinite=False)
        self._optimizer.step()
        self._optimizer.zero_grad()
        self._average_buffers()

    def _mean_over_ranks(self, values: Tensor) -> Tensor:
        return values.mean() if self._fabric.world_size == 1 else self._over_ranks(values.sum(), "sum") / self._count

    def _over_ranks(self, value: Tensor, reduction: str) -> Tensor:
        return value if self._fabric.world_size == 1 else torch.as_tensor(self._fabric.all_reduce(value, reduce_op=reduction))

    def _average_buffers(self) -> None:
        """Each rank's batch statistics are those of its share; after a step all ranks hold the same network again."""
        buffers = [buffer for buffer in self.model.buffers() if buffer.is_floating_point()]
        if self._fabric.world_size > 1 and buffers:
            flat = self._over_ranks(torch.cat([buffer.flatten() for buffer in buffers]), "mean")
            for buffer, mean in zip(buffers, flat.split([buffer.numel() for buffer in buffers]), strict=True):
                buffer.copy_(mean.view_as(buffer))


def alike(evidence: Evidence) -> Tensor:
    """The kernel before another begins: every image counts the same."""
    return evidence.logits.new_zeros(len(evidence.labels))

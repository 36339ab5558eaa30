"""What a defense may touch during a step, on top of Lightning Fabric."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import fields
from typing import Any

import torch
from torch import Tensor, nn

from ..config import TrainConfig
from ..core.contexts import evaluating
from ..core.losses import cross_entropy
from ..core.nn.fusion import PreparedModel
from ..core.norms import NORMS
from ..core.objectives import WeightedObjective
from ..core.protocols import Attack, AttackResult, Batch, Evidence, Kernel, Objective
from ..core.rng import derive_seed
from ..core.run_attack import ThreatModel, run_attack
from ..core.traits import KernelTraits, read_parameter
from ..runtime.compatibility import check_evidence
from ..runtime.components import scale_params
from ..runtime.fabric import Runtime
from .monitoring import AttackOutcome
from .optimization import StepSettings


class FabricLearner:
    """Meets `core.contracts.Learner`: attacks use the plain module, parameter gradients go through Fabric's wrapper."""

    def __init__(
        self,
        runtime: Runtime,
        module: nn.Module,
        optimizer: torch.optim.Optimizer,
        attack: Attack,
        kernel: Kernel,
        config: TrainConfig,
        num_classes: int,
        *,
        attack_model: PreparedModel | None = None,
    ) -> None:
        self._runtime = runtime
        self._ranks = runtime.ranks
        self._wrapped, self._optimizer = runtime.setup(module, optimizer)
        self._full_attack, self._full_kernel = attack, kernel
        self._config = config
        self._num_classes = num_classes
        self.norm = NORMS[config.norm]
        self.model = module
        self.seed = config.seed
        self.attack_model = attack_model or PreparedModel(module)
        """the model that eval-mode attacks see, fused if possible"""
        self.attack_outcome: AttackOutcome | None = None
        """Set by the last attack of a step that measures attack success."""
        self.begin_step(0, 0, StepSettings(config.lr), count=1)

    def begin_step(
        self,
        epoch: int,
        step_index: int,
        settings: StepSettings,
        count: int,
        *,
        judged: bool = True,
    ) -> None:
        """Everything random in a step follows from (seed, step, rank): no generator's state needs saving.

        `count` images are in the batch of all ranks. Only where an attack is `judged` it is asked whom it fooled.
        """
        self.epoch, self.step_index, self._count = epoch, step_index, count
        self.attack_outcome = None
        # in train mode every pass leaves its trace in the network, and what is logged must not
        self._judges = judged and self._config.attack_mode == "eval"
        self.eps = settings.eps_fraction * self._config.eps
        self._attack = scale_params(self._full_attack, settings.eps_fraction, "eps", "step")
        burns_in = epoch < self._full_kernel.traits.start_epoch
        self.kernel: Kernel = (
            EqualWeights()
            if burns_in
            else scale_params(self._full_kernel, settings.alpha_fraction, "alpha")
        )
        torch.manual_seed(derive_seed("step", self.seed, step_index, self._ranks.index))
        for group in self._optimizer.param_groups:
            group["lr"] = settings.learning_rate
        self.model.train()

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self._wrapped(images)
        return logits

    @contextmanager
    def attack_mode(self) -> Iterator[nn.Module]:
        # half precision loses the small gradients of confident images; in training a scale saves them, here there is none
        with nullcontext() if self._config.precision == "16" else self._runtime.autocast():
            if self._config.attack_mode == "train":
                yield self.model
            else:
                with evaluating(self.model):
                    # the last step changed weights and statistics
                    yield self.attack_model.refresh()

    def attack(self, batch: Batch, objective: Objective, own: Attack | None = None) -> AttackResult:
        # a detached weight cancels in the attack, so "outer" and "none" are the plain objective
        if self._config.weight_grad in ("both", "attack") and self.kernel.traits.differentiable:
            objective = WeightedObjective(objective, self.kernel)
        attack = self._attack if own is None else own
        eps = None if own is None else read_parameter(own, "eps")
        if eps is None:
            eps = self.eps
        seed = derive_seed("attack", self.seed, self.step_index)
        with self.attack_mode() as model:
            result = run_attack(
                attack,
                model,
                batch,
                objective,
                ThreatModel(self.norm, eps, self._num_classes),
                seed=seed,
                need_logits=self._judges,
            )
        if result.logits is not None:
            was_correct = result.steps_survived > 0
            is_misclassified = result.logits.argmax(dim=1) != batch.labels
            self.attack_outcome = AttackOutcome(was_correct, was_correct & is_misclassified)
        return result

    def weights(self, evidence: Evidence) -> Tensor:
        log_weights = self._log_weights(evidence)
        if self._config.weight_grad in ("attack", "none") or not self.kernel.traits.differentiable:
            log_weights = log_weights.detach()
        if self._config.normalize == "none" and not self.kernel.traits.normalized:
            weights = log_weights.exp()
        else:
            self._ranks.sync_errors()
            # the scale cancels, so none can overflow; where no image has any weight it is 0 that is divided
            smallest = torch.finfo(log_weights.dtype).min
            largest = self._ranks.all_reduce(log_weights.detach().max(), "max").clamp(min=smallest)
            relative = (log_weights - largest).exp()
            mean = self._mean_over_ranks(relative.detach())
            weights = relative / torch.where(mean > 0, mean, 1)
        return (
            weights
            if self._config.max_weight is None
            else weights.clamp(max=self._config.max_weight)
        )

    def _log_weights(self, evidence: Evidence) -> Tensor:
        check_evidence(self.kernel, evidence)
        if self._ranks.count == 1 or not self.kernel.traits.compares_images:
            return self.kernel(evidence)
        known = {field.name: getattr(evidence, field.name) for field in fields(evidence)}
        everyones: dict[str, Any] = {
            name: part if part is None else self.gather(part.detach())
            for name, part in known.items()
        }
        return self._ranks.share(self.kernel(Evidence(**everyones)))

    def label_loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        return cross_entropy(logits, labels, self._config.label_smoothing)

    def mean(self, values: Tensor) -> Tensor:
        # the wrapper takes the mean of the ranks' gradients, and their shares may differ by one image
        ranks = self._ranks.count
        return values.mean() if ranks == 1 else values.sum() * (ranks / self._count)

    def gather(self, values: Tensor) -> Tensor:
        self._ranks.sync_errors()
        return self._ranks.all_gather_varying(values, self._count)

    def backward(self, loss: Tensor) -> None:
        self._ranks.sync_errors()  # the gradients of all ranks are about to be added
        self._runtime.backward(loss)

    def add_gradients(self, gradients: Mapping[nn.Parameter, Tensor]) -> None:
        self._ranks.sync_errors()
        for parameter, gradient in gradients.items():
            mean = self._ranks.all_reduce(gradient, "mean")
            parameter.grad = mean if parameter.grad is None else parameter.grad + mean

    def optimizer_step(self) -> None:
        if self._config.clip_grad is not None:
            limit = self._config.clip_grad
            self._runtime.clip_gradients(self._wrapped, self._optimizer, limit)
        self._optimizer.step()
        self._optimizer.zero_grad()
        self._average_buffers()

    def _mean_over_ranks(self, values: Tensor) -> Tensor:
        return (
            values.mean()
            if self._ranks.count == 1
            else self._ranks.all_reduce(values.sum(), "sum") / self._count
        )

    def _average_buffers(self) -> None:
        """Each rank's batch statistics are those of its share; after a step all ranks hold the same network again."""
        buffers = [buffer for buffer in self.model.buffers() if buffer.is_floating_point()]
        if self._ranks.count > 1 and buffers:
            flat = self._ranks.all_reduce(
                torch.cat([buffer.flatten() for buffer in buffers]), "mean"
            )
            for buffer, mean in zip(
                buffers, flat.split([buffer.numel() for buffer in buffers]), strict=True
            ):
                buffer.copy_(mean.view_as(buffer))


class EqualWeights:
    """The kernel before the start epoch of the configured one: all images have the same weight."""

    traits = KernelTraits()

    def __call__(self, evidence: Evidence) -> Tensor:
        return evidence.logits.new_zeros(len(evidence.labels))

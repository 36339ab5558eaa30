"""The learner: what a defense may use during one training step."""

import dataclasses
from collections.abc import Collection, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from ..config import TrainConfig
from ..core.contexts import compiling_steps, evaluating
from ..core.losses import WeightedObjective, cross_entropy, mix_objective
from ..core.nn.compilation import Compiler
from ..core.nn.fusion import PreparedModel
from ..core.norms import NORMS
from ..core.protocols import (
    Attack,
    AttackResult,
    Batch,
    Evidence,
    Kernel,
    Objective,
    SecondLabels,
)
from ..core.rng import derive_seed
from ..core.run_attack import ThreatModel, run_attack
from ..core.traits import KernelTraits, read_parameter
from ..errors import BadInput
from ..runtime.fabric import Runtime
from .monitoring import AttackOutcome
from .optimization import LR_SCALE, StepSettings

Component = TypeVar("Component", Attack, Kernel)


class FabricLearner:
    """Implements `core.protocols.Learner` for one or several ranks.

    Attacks use the plain module, parameter gradients go through Fabric's wrapper.
    """

    def __init__(  # noqa: PLR0913 - the keyword-only parts of a run, see `set_up_training`
        self,
        runtime: Runtime,
        config: TrainConfig,
        *,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        attack: Attack,
        kernel: Kernel,
        num_classes: int,
        attack_model: PreparedModel | None = None,
        compiler: Compiler | None = None,
        frozen: Collection[nn.Module] = (),
    ) -> None:
        self._runtime = runtime
        self._ranks = runtime.ranks
        self._config = config
        self.compiler = compiler
        """Compiles the passes of training and the steps of attacks, but no other passes."""
        trained = model if compiler is None else compiler.compile_network(model)
        self._wrapped_model, self._optimizer = runtime.setup(trained, optimizer)
        self._full_attack = attack
        self._full_kernel = kernel
        self._num_classes = num_classes
        self._frozen = frozen
        """Modules that keep their statistics."""
        self.model = model
        self.attack_model = attack_model or PreparedModel(model)
        """The model that attacks in eval mode use, fused if possible."""
        self.norm = NORMS[config.norm]
        self.seed = config.seed

        # the state of one step, which `begin_step` replaces
        self.epoch = 0
        self.step_index = 0
        self.eps = config.eps
        self.kernel = kernel
        self.attack_outcome: AttackOutcome | None = None
        """Set by the last attack of a step that measures attack success."""
        self._attack = attack
        self._batch_size = 1
        self._measure_success = False
        self._kernel_is_scaled = False

    def begin_step(
        self,
        epoch: int,
        step_index: int,
        settings: StepSettings,
        batch_size: int,
        *,
        measure_success: bool = True,
    ) -> None:
        """Set the state of a step. `batch_size` counts the images of all ranks.

        Measuring attack success costs a forward pass.
        """
        self.epoch = epoch
        self.step_index = step_index
        self._batch_size = batch_size
        self.attack_outcome = None
        # in train mode an additional pass would change the batch-norm statistics
        self._measure_success = measure_success and self._config.attack_mode == "eval"
        self.eps = settings.eps_fraction * self._config.eps
        self._attack = scale_params(self._full_attack, settings.eps_fraction, "eps", "step")
        if epoch < self._full_kernel.traits.start_epoch:
            self.kernel = EqualWeights()
            self._kernel_is_scaled = False
        else:
            self._kernel_is_scaled = settings.alpha_fraction != 1
            self.kernel = scale_params(self._full_kernel, settings.alpha_fraction, "alpha")
        # dropout and the like follow from (seed, step, rank): checkpoints need no generator state
        torch.manual_seed(derive_seed("step", self.seed, step_index, self._ranks.index))
        for group in self._optimizer.param_groups:
            group["lr"] = settings.learning_rate * group.get(LR_SCALE, 1.0)
        self.model.train()
        for module in self._frozen:
            # not `eval`, which would include the modules inside
            module.training = False

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor
        if self.compiler is None:
            logits = self._wrapped_model(images)
        else:
            logits = self.compiler.run(self._wrapped_model, images)
        return logits

    def attack_autocast(self) -> AbstractContextManager[None]:
        """Compute in the precision of attacks inside."""
        # float16 rounds the small gradients of confident images to zero, and the loss scale
        # that prevents this applies to parameter gradients only
        if self._config.precision == "16":
            return nullcontext()
        return self._runtime.autocast()

    @contextmanager
    def attack_mode(self) -> Iterator[nn.Module]:
        with self.attack_autocast():
            if self._config.attack_mode == "train":
                yield self.model
            else:
                with evaluating(self.model):
                    # the last step changed weights and statistics
                    yield self.attack_model.refresh()

    def attack(self, batch: Batch, objective: Objective, own: Attack | None = None) -> AttackResult:
        objective = mix_objective(objective, batch.second)
        # a constant weight does not change the sign of a gradient, so "outer" and "none" attack
        # the plain objective
        if self._config.weight_grad in ("both", "attack") and self.kernel.traits.differentiable:
            objective = WeightedObjective(objective, self.kernel)
        attack = self._attack
        eps = self.eps
        if own is not None:
            attack = own
            own_eps = read_parameter(own, "eps")
            eps = self.eps if own_eps is None else own_eps
        # a ramp of the kernel gives every step another objective
        is_ramping = isinstance(objective, WeightedObjective) and self._kernel_is_scaled
        compiler = None if is_ramping else self.compiler
        with self.attack_mode() as model, compiling_steps(compiler):
            result = run_attack(
                attack,
                model,
                batch,
                objective,
                ThreatModel(self.norm, eps, self._num_classes),
                seed=derive_seed("attack", self.seed, self.step_index),
                need_logits=self._measure_success,
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
            weights = self._divide_by_mean(log_weights)
        if self._config.max_weight is not None:
            weights = weights.clamp(max=self._config.max_weight)
        return weights

    def _divide_by_mean(self, log_weights: Tensor) -> Tensor:
        """Return weights whose mean over the batch of all ranks is 1."""
        # the largest weight cancels; subtracted first, so that exp cannot overflow.
        # It is -inf where all weights are 0, hence the clamp, and the mean is then 0
        smallest = torch.finfo(log_weights.dtype).min
        largest = self._ranks.all_reduce(log_weights.detach().max(), "max").clamp(min=smallest)
        relative = (log_weights - largest).exp()
        mean = self._mean_over_ranks(relative.detach())
        return relative / torch.where(mean > 0, mean, 1)

    def _log_weights(self, evidence: Evidence) -> Tensor:
        check_evidence(self.kernel, evidence)
        if self._ranks.count == 1 or not self.kernel.traits.compares_images:
            return self.kernel(evidence)
        # a kernel that compares images needs the whole batch, and each rank uses its part
        gathered: dict[str, Any] = {}
        for field in dataclasses.fields(evidence):
            values = getattr(evidence, field.name)
            gathered[field.name] = None if values is None else self.gather(values.detach())
        return self._ranks.share(self.kernel(Evidence(**gathered)))

    def label_loss(
        self, logits: Tensor, labels: Tensor, second: SecondLabels | None = None
    ) -> Tensor:
        smoothing = self._config.label_smoothing
        loss = cross_entropy(logits, labels, smoothing)
        if second is None:
            return loss
        return second.mix(loss, cross_entropy(logits, second.labels, smoothing))

    def mean(self, values: Tensor) -> Tensor:
        ranks = self._ranks.count
        if ranks == 1:
            return values.mean()
        # Fabric averages gradients over ranks, whose parts of the batch may differ by one image
        return values.sum() * (ranks / self._batch_size)

    def gather(self, values: Tensor) -> Tensor:
        return self._ranks.all_gather_varying(values, self._batch_size)

    def backward(self, loss: Tensor) -> None:
        self._runtime.backward(loss)

    def add_gradients(self, gradients: Mapping[nn.Parameter, Tensor]) -> None:
        for parameter, gradient in gradients.items():
            mean = self._ranks.all_reduce(gradient, "mean")
            parameter.grad = mean if parameter.grad is None else parameter.grad + mean

    def optimizer_step(self) -> None:
        if self._config.clip_grad is not None:
            limit = self._config.clip_grad
            self._runtime.clip_gradients(self._wrapped_model, self._optimizer, limit)
        self._optimizer.step()
        self._optimizer.zero_grad()
        self._average_buffers()

    def _mean_over_ranks(self, values: Tensor) -> Tensor:
        if self._ranks.count == 1:
            return values.mean()
        return self._ranks.all_reduce(values.sum(), "sum") / self._batch_size

    def _average_buffers(self) -> None:
        """Average the batch-norm statistics of all ranks, so that their models stay equal."""
        if self._ranks.count == 1:
            return
        # a mean of equal values is rounded, and would change the statistics of frozen layers
        fixed = {buffer for module in self._frozen for buffer in module.buffers(recurse=False)}
        buffers = [
            buffer
            for buffer in self.model.buffers()
            if buffer.is_floating_point() and buffer not in fixed
        ]
        if not buffers:
            return
        # one exchange for all buffers instead of one for each
        flat = torch.cat([buffer.flatten() for buffer in buffers])
        means = self._ranks.all_reduce(flat, "mean").split([buffer.numel() for buffer in buffers])
        for buffer, mean in zip(buffers, means, strict=True):
            buffer.copy_(mean.view_as(buffer))


class EqualWeights:
    """The kernel before the start epoch of the configured one: all images have the same weight."""

    traits = KernelTraits()

    def __call__(self, evidence: Evidence) -> Tensor:
        return evidence.logits.new_zeros(len(evidence.labels))


def scale_params(component: Component, factor: float, *names: str) -> Component:
    """Return an attack or kernel with these parameters, where it has them, times a factor."""
    # without a ramp it is the same object: a component without dataclass fields cannot be copied
    if factor == 1:
        return component
    values = {name: read_parameter(component, name) for name in names}
    scaled = {name: factor * value for name, value in values.items() if value is not None}
    assert dataclasses.is_dataclass(component)  # see `compatibility.check_ramps`
    return dataclasses.replace(component, **scaled)


def check_evidence(kernel: Kernel, evidence: Evidence) -> None:
    """Raise if the defense does not provide what the kernel needs."""
    for name in sorted(kernel.traits.needs):
        if getattr(evidence, name) is None:
            words = name.replace("_", " ")
            raise BadInput(
                f"kernel {type(kernel).__name__} needs {words}, which the defense does not provide",
                hint="choose another kernel, or a defense with a training attack such as pgd",
            )

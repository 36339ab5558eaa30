"""YOPO: attack steps through the first layer alone."""

from contextlib import nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ...core.contexts import evaluating
from ...core.nn.hooks import find_first_layer, forward_up_to, record_outputs
from ...core.nn.small_channel_conv import matmul_input_gradient
from ...core.pgd import project_to_ball, start_images
from ...core.protocols import Batch, Evidence, Learner, Losses, StepReport
from ...core.rng import derive_seed
from ...core.traits import DefenseTraits
from ...core.weighted_step import backward_weighted
from ...errors import BadInput, did_you_mean


@dataclass
class Yopo:
    """YOPO-m-n: m full passes; after each the gradient at the first layer is kept for n steps through that layer.

    The parameters of the other layers get the gradients of the m passes, added up, those of the first layer the gradient at
    the images after the n steps; `legacy=true` adds the ordinary one, as the authors' code does. A step is `sigma` times
    eps. `layer` names the first layer; without it the layer is found by a forward pass.

    Objective: the sum over m passes of `weight(x') * CE(x')`
    Cost: m
    Good for: most of PGD training's robustness for a fraction of its passes
    Reference: Zhang et al. 2019, arXiv:1905.00877
    """

    m: int = 5
    n: int = 3
    sigma: float = 0.25
    layer: str = ""
    legacy: bool = False

    traits = DefenseTraits(uses_attack=False, shares_gradient=True)

    def __post_init__(self) -> None:
        if self.m < 1 or self.n < 1 or self.sigma <= 0:
            problem = f"yopo cannot take m {self.m}, n {self.n} and sigma {self.sigma:g}"
            raise BadInput(problem, hint="m and n are 1 or more, sigma is positive")

    def step(self, learner: Learner, batch: Batch) -> StepReport:
        layer = self._first(learner.model, batch.images)
        first = _parameters_up_to(learner.model, layer, batch.images[:1])
        seed = derive_seed("yopo", learner.seed, learner.step_index)
        images = start_images("uniform", batch, learner.norm, learner.eps, seed=seed)
        for _ in range(self.m):
            before = {
                parameter: None if parameter.grad is None else parameter.grad.clone()
                for parameter in first
            }
            with record_outputs(layer) as seen:
                logits = learner.forward(images)
            loss = learner.label_loss(logits, batch.labels)
            report = backward_weighted(
                learner, batch, Losses(loss, Evidence(logits, batch.labels, batch.index, loss=loss))
            )
            slope = seen[0].grad
            assert slope is not None  # the layer was watched
            for _ in range(self.n):
                (gradient,) = _through(learner.model, layer, images, slope, towards=None)
                # a scaled loss in half precision may overflow, and its step is then skipped
                moved = images + self.sigma * learner.eps * learner.norm.direction(
                    gradient.nan_to_num()
                )
                images = project_to_ball(batch.images, moved, learner.norm, learner.eps)
            if not self.legacy:
                for parameter, gradient_before in before.items():
                    parameter.grad = gradient_before
            learner.add_gradients(
                dict(
                    zip(
                        first,
                        _through(learner.model, layer, images, slope, towards=first),
                        strict=True,
                    )
                )
            )
        learner.optimizer_step()
        return report

    def _first(self, model: nn.Module, images: Tensor) -> nn.Module:
        if not self.layer:
            return find_first_layer(model, images[:1])
        layers: dict[str, nn.Module] = {
            name: module for name, module in model.named_modules() if name
        }
        if self.layer not in layers:
            raise BadInput(
                f"the network has no layer {self.layer!r}", hint=did_you_mean(self.layer, layers)
            )
        return layers[self.layer]


def _parameters_up_to(model: nn.Module, layer: nn.Module, image: Tensor) -> list[nn.Parameter]:
    """The parameters that what the layer gives depends on: its own, and those of layers before it."""
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    with torch.enable_grad(), evaluating(model):
        output = forward_up_to(model, layer, image)
        if not output.requires_grad:
            raise BadInput(
                "no parameters are trained up to the layer that yopo goes through",
                hint="name another with yopo:layer=…",
            )
        gradients = torch.autograd.grad(output.sum(), parameters, allow_unused=True)
    return [
        parameter
        for parameter, gradient in zip(parameters, gradients, strict=True)
        if gradient is not None
    ]


def _through(
    model: nn.Module,
    layer: nn.Module,
    images: Tensor,
    slope: Tensor,
    towards: list[nn.Parameter] | None,
) -> tuple[Tensor, ...]:
    """The gradient of <slope, what the layer gives>, with respect to the images or to these parameters."""
    images = images.detach().requires_grad_(towards is None)
    with torch.enable_grad(), matmul_input_gradient(layer) if towards is None else nullcontext():
        return torch.autograd.grad(
            forward_up_to(model, layer, images), [images] if towards is None else towards, slope
        )

"""`yopo`: attack steps through the first layer only."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ...core.contexts import evaluating
from ...core.nn.fusion import matmul_input_gradient
from ...core.nn.hooks import find_first_layer, forward_up_to, record_outputs
from ...core.pgd import project_to_ball, start_images
from ...core.protocols import Batch, Learner, Losses, StepReport
from ...core.rng import derive_seed
from ...core.traits import DefenseTraits
from ...core.weighted_step import backward_weighted
from ...errors import BadInput, did_you_mean


@dataclass
class Yopo:
    """YOPO-m-n: m full passes, each followed by n attack steps through the first layer.

    The gradient at the first layer's output is fixed during the n steps of `sigma` times eps. The
    gradients of the m passes are summed; that of the first layer is taken after the n steps, and
    `legacy=true` adds the ordinary one, as the authors' code does. `layer` names the first layer;
    by default a forward pass finds it.

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

    traits = DefenseTraits(uses_attack=False, shares_gradient=True, mixes_labels=True)

    def __post_init__(self) -> None:
        if self.m < 1 or self.n < 1 or self.sigma <= 0:
            raise BadInput(
                f"yopo: `m` is {self.m}, `n` is {self.n}, `sigma` is {self.sigma:g}",
                hint="`m` and `n` are at least 1, `sigma` is positive",
            )

    def step(self, learner: Learner, batch: Batch) -> StepReport:
        layer = self._find_layer(learner.model, batch.images)
        parameters = _find_parameters(learner.model, layer, batch.images[:1])
        seed = derive_seed("yopo", learner.seed, learner.step_index)
        images = start_images("uniform", batch, learner.norm, learner.eps, seed=seed)
        for _ in range(self.m):
            gradients_before = {
                parameter: None if parameter.grad is None else parameter.grad.clone()
                for parameter in parameters
            }
            with record_outputs(layer) as outputs:
                logits = learner.forward(images)
            loss = learner.label_loss(logits, batch.labels, batch.second)
            evidence = batch.evidence(logits)
            report = backward_weighted(learner, batch, Losses(weighted=loss, evidence=evidence))
            output_gradient = outputs[0].grad
            assert output_gradient is not None  # the hook retains it
            images = self._attack_first_layer(learner, batch, layer, images, output_gradient)
            if not self.legacy:
                # drop the ordinary gradient of the first layer: that at the new images replaces it
                for parameter, gradient in gradients_before.items():
                    parameter.grad = gradient
            new_gradients = _parameter_gradients(
                learner.model, layer, images, output_gradient, parameters
            )
            learner.add_gradients(dict(zip(parameters, new_gradients, strict=True)))
        learner.optimizer_step()
        return report

    def _attack_first_layer(
        self,
        learner: Learner,
        batch: Batch,
        layer: nn.Module,
        images: Tensor,
        output_gradient: Tensor,
    ) -> Tensor:
        """Take n steps with the gradient at the layer's output fixed."""
        step = self.sigma * learner.eps
        for _ in range(self.n):
            gradient = _image_gradient(learner.model, layer, images, output_gradient)
            # a scaled loss in half precision may overflow; the optimizer then skips its step
            moved = images + step * learner.norm.direction(gradient.nan_to_num())
            images = project_to_ball(batch.images, moved, learner.norm, learner.eps)
        return images

    def _find_layer(self, model: nn.Module, images: Tensor) -> nn.Module:
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


def _find_parameters(model: nn.Module, layer: nn.Module, image: Tensor) -> list[nn.Parameter]:
    """Return the parameters that the layer's output depends on: its own and those before it."""
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    with torch.enable_grad(), evaluating(model):
        output = forward_up_to(model, layer, image)
        if not output.requires_grad:
            raise BadInput(
                "no parameters are trained up to the first layer of yopo",
                hint="set another `layer` of yopo",
            )
        gradients = torch.autograd.grad(output.sum(), parameters, allow_unused=True)
    return [
        parameter
        for parameter, gradient in zip(parameters, gradients, strict=True)
        if gradient is not None
    ]


def _image_gradient(
    model: nn.Module, layer: nn.Module, images: Tensor, output_gradient: Tensor
) -> Tensor:
    """Return the gradient of <output_gradient, output of the layer> with respect to the images."""
    images = images.detach().requires_grad_()
    with torch.enable_grad(), matmul_input_gradient(layer):
        output = forward_up_to(model, layer, images)
        (gradient,) = torch.autograd.grad(output, [images], output_gradient)
    return gradient


def _parameter_gradients(
    model: nn.Module,
    layer: nn.Module,
    images: Tensor,
    output_gradient: Tensor,
    parameters: list[nn.Parameter],
) -> tuple[Tensor, ...]:
    """Return the gradients of <output_gradient, output of the layer> by these parameters."""
    with torch.enable_grad():
        output = forward_up_to(model, layer, images.detach())
        return torch.autograd.grad(output, parameters, output_gradient)

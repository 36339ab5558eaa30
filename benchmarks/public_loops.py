"""Training steps as public scripts write them, in the default memory format.

They keep the redundant passes of those scripts, because these are what is compared.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional

from .cases import BETA, Case


def trades_step(
    model: nn.Module, optimizer: torch.optim.Optimizer, images: Tensor, labels: Tensor, case: Case
) -> None:
    """Run a TRADES step."""
    divergence = nn.KLDivLoss(reduction="sum")
    model.eval()
    perturbed = images.detach() + 0.001 * torch.randn(images.shape, device=images.device)
    for _ in range(case.steps):
        perturbed.requires_grad_()
        with torch.enable_grad():
            # the public script recomputes the clean probabilities in every step
            loss = divergence(
                functional.log_softmax(model(perturbed), dim=1),
                functional.softmax(model(images), dim=1),
            )
        gradient = torch.autograd.grad(loss, [perturbed])[0]
        perturbed = perturbed.detach() + case.step * torch.sign(gradient.detach())
        perturbed = torch.min(torch.max(perturbed, images - case.eps), images + case.eps)
        perturbed = torch.clamp(perturbed, 0.0, 1.0)
    model.train()
    perturbed = torch.clamp(perturbed, 0.0, 1.0).detach()
    optimizer.zero_grad()
    natural = functional.cross_entropy(model(images), labels)
    robust = divergence(
        functional.log_softmax(model(perturbed), dim=1), functional.softmax(model(images), dim=1)
    ) / len(images)
    (natural + BETA * robust).backward()
    optimizer.step()


def pgd_training_step(
    model: nn.Module, optimizer: torch.optim.Optimizer, images: Tensor, labels: Tensor, case: Case
) -> None:
    """Run a step of adversarial training."""
    model.eval()
    delta = torch.empty_like(images).uniform_(-case.eps, case.eps)
    delta = (torch.clamp(images + delta, 0.0, 1.0) - images).detach().requires_grad_()
    for _ in range(case.steps):
        # `backward()` computes weight gradients too, although the attack needs none
        functional.cross_entropy(model(images + delta), labels).backward()
        assert delta.grad is not None
        perturbed = torch.clamp(delta + case.step * torch.sign(delta.grad), -case.eps, case.eps)
        delta.data = torch.clamp(images + perturbed.detach(), 0.0, 1.0) - images
        delta.grad.zero_()
    model.train()
    optimizer.zero_grad()
    functional.cross_entropy(model(images + delta.detach()), labels).backward()
    optimizer.step()

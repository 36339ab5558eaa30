"""Training steps as public scripts write them: plain, in the default layout, with whatever they compute on the way."""

import torch
from torch import Tensor, nn
from torch.nn import functional

from .cases import BETA, Case


def trades_step(model: nn.Module, optimizer: torch.optim.Optimizer, images: Tensor, labels: Tensor, case: Case) -> None:
    """TRADES: the attack asks for the natural probabilities anew in every step, and the loss once more."""
    divergence = nn.KLDivLoss(reduction="sum")
    model.eval()
    moved = images.detach() + 0.001 * torch.randn(images.shape, device=images.device)
    for _ in range(case.steps):
        moved.requires_grad_()
        with torch.enable_grad():
            loss = divergence(functional.log_softmax(model(moved), dim=1), functional.softmax(model(images), dim=1))
        gradient = torch.autograd.grad(loss, [moved])[0]
        moved = moved.detach() + case.step * torch.sign(gradient.detach())
        moved = torch.min(torch.max(moved, images - case.eps), images + case.eps)
        moved = torch.clamp(moved, 0.0, 1.0)
    model.train()
    moved = torch.clamp(moved, 0.0, 1.0).detach()
    optimizer.zero_grad()
    natural = functional.cross_entropy(model(images), labels)
    robust = divergence(functional.log_softmax(model(moved), dim=1), functional.softmax(model(images), dim=1)) / len(images)
    (natural + BETA * robust).backward()
    optimizer.step()


def pgd_training_step(model: nn.Module, optimizer: torch.optim.Optimizer, images: Tensor, labels: Tensor, case: Case) -> None:
    """Adversarial training: `loss.backward()` inside the attack, so that every step of it pays for weight gradients, too."""
    model.eval()
    delta = torch.empty_like(images).uniform_(-case.eps, case.eps)
    delta = (torch.clamp(images + delta, 0.0, 1.0) - images).detach().requires_grad_()
    for _ in range(case.steps):
        functional.cross_entropy(model(images + delta), labels).backward()
        assert delta.grad is not None
        moved = torch.clamp(delta + case.step * torch.sign(delta.grad), -case.eps, case.eps)
        delta.data = torch.clamp(images + moved.detach(), 0.0, 1.0) - images
        delta.grad.zero_()
    model.train()
    optimizer.zero_grad()
    functional.cross_entropy(model(images + delta.detach()), labels).backward()
    optimizer.step()

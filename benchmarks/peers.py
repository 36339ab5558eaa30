"""What `wmr` is compared with: PGD of other libraries, and training steps of public scripts.

PGD is in L-infinity, with a random start and the same steps. Each attack is followed by a forward
pass of its result, because `wmr` returns these logits, too. Training steps keep the redundant
passes of public scripts, and the default memory format, because these are what is compared.
"""

import warnings

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from wmr_cli.benchmarking.timing import Work
from wmr_cli.core import torchvision_compat

from .cases import BETA, CLASSES, Case

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    # imported first: torchattacks imports torchvision, which may need our workaround
    assert torchvision_compat.torchvision
    import foolbox
    import torchattacks
    from art.attacks.evasion import ProjectedGradientDescentPyTorch
    from art.estimators.classification import PyTorchClassifier


def make_peer_attacks(
    model: nn.Module, images: Tensor, labels: Tensor, case: Case
) -> dict[str, Work]:
    """Return the attack of every library on this batch, by name."""
    model.eval()
    return {
        "torchattacks": make_torchattacks_attack(model, images, labels, case),
        "Foolbox": make_foolbox_attack(model, images, labels, case),
        "ART": make_art_attack(model, images, labels, case),
    }


def make_torchattacks_attack(model: nn.Module, images: Tensor, labels: Tensor, case: Case) -> Work:
    """Return `torchattacks.PGD`."""
    attack = torchattacks.PGD(
        model, eps=case.eps, alpha=case.step, steps=case.steps, random_start=True
    )
    return lambda: compute_logits(model, attack(images, labels))


def make_foolbox_attack(model: nn.Module, images: Tensor, labels: Tensor, case: Case) -> Work:
    """Return `LinfPGD` of Foolbox."""
    attack = foolbox.attacks.LinfPGD(abs_stepsize=case.step, steps=case.steps, random_start=True)
    network = foolbox.PyTorchModel(model, bounds=(0, 1), device=images.device)
    return lambda: compute_logits(model, attack(network, images, labels, epsilons=case.eps)[1])


def make_art_attack(model: nn.Module, images: Tensor, labels: Tensor, case: Case) -> Work:
    """Return projected gradient descent of ART, on NumPy arrays."""
    device_type = "cpu" if images.device.type == "cpu" else "gpu"
    # ART needs a loss and the value range for its wrapper of the network
    classifier = PyTorchClassifier(
        model,
        nn.CrossEntropyLoss(),
        input_shape=case.shape,
        nb_classes=CLASSES,
        clip_values=(0, 1),
        device_type=device_type,
    )
    attack = ProjectedGradientDescentPyTorch(
        classifier,
        norm=np.inf,
        eps=case.eps,
        eps_step=case.step,
        max_iter=case.steps,
        num_random_init=1,
        batch_size=case.batch,
        verbose=False,
    )
    arrays = images.cpu().numpy()
    targets = torch.eye(CLASSES)[labels.cpu()].numpy()
    return lambda: compute_logits(
        model, torch.from_numpy(attack.generate(arrays, targets)).to(images.device)
    )


@torch.no_grad()
def compute_logits(model: nn.Module, images: Tensor) -> Tensor:
    """Return the logits of adversarial images."""
    logits: Tensor = model(images)
    return logits


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

"""PGD of other libraries: L-infinity, a random start, the same steps.

Each attack is followed by a forward pass of its result, because ours returns these logits.
"""

import warnings

import numpy as np
import torch
from torch import Tensor, nn

from wmr_cli.benchmarking.timing import Work
from wmr_cli.core import torchvision_compat

from .cases import CLASSES, Case

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

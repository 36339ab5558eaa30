"""PGD as other libraries give it to their users: L-infinity, a random start, the same steps.

Our attack ends with the logits of what it made, so everybody does: who attacks wants to know whom it fooled.
"""

import warnings
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor, nn

from wmr_cli.core import vision

from .cases import CLASSES, Case

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    assert vision.torchvision  # torchattacks imports it, and it may need our help
    import foolbox
    import torchattacks
    from art.attacks.evasion import ProjectedGradientDescentPyTorch
    from art.estimators.classification import PyTorchClassifier

Run = Callable[[], object]


def peers(model: nn.Module, images: Tensor, labels: Tensor, case: Case) -> dict[str, Run]:
    """Every library's attack on this batch, by name; all on one network in eval mode."""
    model.eval()
    return {
        "torchattacks": of_torchattacks(model, images, labels, case),
        "Foolbox": of_foolbox(model, images, labels, case),
        "ART": of_art(model, images, labels, case),
    }


def of_torchattacks(model: nn.Module, images: Tensor, labels: Tensor, case: Case) -> Run:
    """torchattacks.PGD."""
    attack = torchattacks.PGD(model, eps=case.eps, alpha=case.step, steps=case.steps, random_start=True)
    return lambda: judged(model, attack(images, labels))


def of_foolbox(model: nn.Module, images: Tensor, labels: Tensor, case: Case) -> Run:
    """Foolbox's LinfPGD."""
    attack = foolbox.attacks.LinfPGD(abs_stepsize=case.step, steps=case.steps, random_start=True)
    network = foolbox.PyTorchModel(model, bounds=(0, 1), device=images.device)
    return lambda: judged(model, attack(network, images, labels, epsilons=case.eps)[1])


def of_art(model: nn.Module, images: Tensor, labels: Tensor, case: Case) -> Run:
    """ART's projected gradient descent for PyTorch; it takes and gives NumPy arrays."""
    kind = "cpu" if images.device.type == "cpu" else "gpu"
    classifier = PyTorchClassifier(
        model, nn.CrossEntropyLoss(), input_shape=case.shape, nb_classes=CLASSES, clip_values=(0, 1), device_type=kind
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
    arrays, targets = images.cpu().numpy(), torch.eye(CLASSES)[labels.cpu()].numpy()
    return lambda: judged(model, torch.from_numpy(attack.generate(arrays, targets)).to(images.device))


@torch.no_grad()
def judged(model: nn.Module, images: Tensor) -> Tensor:
    """The logits of crafted images."""
    logits: Tensor = model(images)
    return logits

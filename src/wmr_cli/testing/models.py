"""What a model promises."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from ..core.losses import cross_entropy
from ..errors import WmrError
from .assertions import all_close, batch_unchanged, copy_state, require, tensors_equal
from .fixtures import tiny_batch

FEW = 3
"""Another number of classes, which a model has to heed as well, or to refuse."""


def check_model(
    make: Callable[..., nn.Module],
    num_classes: int = 10,
    input_shape: tuple[int, int, int] = (1, 28, 28),
) -> None:
    """Finite logits (N, classes) from images in [0, 1], differentiable to the input, the same image by image in eval mode;
    a function of the seed when it is built and of its state dict ever after.
    """
    model = _built(make, num_classes, input_shape)
    require(
        tensors_equal(copy_state(model), copy_state(_built(make, num_classes, input_shape))),
        "two models of one seed differ",
    )
    batch = tiny_batch(4, num_classes, input_shape)
    with batch_unchanged(batch, "the model"):
        _check_training(model.train(), batch.images, batch.labels, num_classes)
    before = copy_state(model.eval())
    logits = _check_logits(model, batch.images, num_classes)
    _check_image_by_image(model, batch.images, logits)
    require(
        tensors_equal(before, copy_state(model)), "a forward pass in eval mode changes the model"
    )
    _check_restorable(make, model, batch.images, logits)
    _check_other_classes(make, batch.images)


def _built(
    make: Callable[..., nn.Module],
    num_classes: int,
    input_shape: tuple[int, int, int],
    seed: int = 0,
) -> nn.Module:
    torch.manual_seed(seed)
    return make(num_classes=num_classes, input_shape=input_shape)


def _check_other_classes(make: Callable[..., nn.Module], images: Tensor) -> None:
    """It heeds another number of classes, or says that it cannot, as a published network does."""
    try:
        model = _built(make, FEW, tuple(images.shape[1:]))  # type: ignore[arg-type]
    except WmrError:
        return
    few = model.eval()(images)
    require(
        few.shape == (4, FEW),
        f"with num_classes={FEW} its outputs have the shape {tuple(few.shape)}",
    )


def _check_training(model: nn.Module, images: Tensor, labels: Tensor, num_classes: int) -> None:
    logits = model(images)
    require(
        logits.shape == (4, num_classes),
        f"outputs of shape {tuple(logits.shape)} instead of {(4, num_classes)}",
    )
    require(logits.requires_grad, "no gradient reaches the parameters")
    cross_entropy(logits, labels).mean().backward()
    gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    require(gradients, "no gradient reaches the parameters")  # type: ignore[arg-type]
    require(
        all(bool(gradient.isfinite().all()) for gradient in gradients),
        "gradients of the parameters are not finite",
    )


def _check_logits(model: nn.Module, given: Tensor, num_classes: int) -> Tensor:
    images = given.clone().requires_grad_()
    logits: Tensor = model(images)
    require(
        logits.shape == (4, num_classes),
        f"outputs of shape {tuple(logits.shape)} instead of {(4, num_classes)}",
    )
    require(
        logits.dtype == given.dtype,
        f"logits of type {logits.dtype} from images of type {given.dtype}",
    )
    require(logits.isfinite().all(), "logits are not finite")
    require(logits.requires_grad, "no gradient reaches the input")
    # weighted, as the logits of one image may add up to a constant
    slopes = torch.arange(1.0, num_classes + 1)
    (gradient,) = torch.autograd.grad((logits * slopes).sum(), images, allow_unused=True)
    require(gradient is not None, "no gradient reaches the input")
    require(gradient.isfinite().all(), "gradients of the input are not finite")
    return logits.detach()


def _check_image_by_image(model: nn.Module, images: Tensor, logits: Tensor) -> None:
    with torch.no_grad():
        require(
            torch.equal(model(images), logits), "in eval mode the same images give other logits"
        )
        alone = torch.cat([model(image[None]) for image in images])
    require(
        all_close(alone, logits, rtol=1e-4), "in eval mode an image's logits depend on its batch"
    )


def _check_restorable(
    make: Callable[..., nn.Module], model: nn.Module, images: Tensor, logits: Tensor
) -> None:
    again = _built(make, logits.shape[1], tuple(images.shape[1:]), seed=1).eval()  # type: ignore[arg-type]
    again.load_state_dict(model.state_dict())
    with torch.no_grad():
        restored = again(images)
    require(
        all_close(restored, logits, atol=1e-6, rtol=1e-5),
        "a model with the same state dict gives other logits",
    )

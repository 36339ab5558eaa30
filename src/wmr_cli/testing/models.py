"""The contract of a model."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from ..core.contexts import return_logits
from ..core.losses import cross_entropy
from ..errors import WmrError
from .fixtures import all_close, batch_unchanged, copy_state, require, tensors_equal, tiny_batch

OTHER_NUM_CLASSES = 3
"""Another number of classes, which a model has to support or to refuse."""


def check_model(
    make: Callable[..., nn.Module],
    num_classes: int = 10,
    input_shape: tuple[int, int, int] = (1, 28, 28),
) -> None:
    """Check the logits, gradients and state dict of a model.

    Logits (N, classes) of images in [0, 1] are finite and differentiable. In eval mode they do not
    depend on the batch. A new model depends on the seed only, its predictions on its state dict.
    """
    model = _build(make, num_classes, input_shape)
    require(
        tensors_equal(copy_state(model), copy_state(_build(make, num_classes, input_shape))),
        "two models of one seed differ",
    )
    batch = tiny_batch(4, num_classes, input_shape)
    with batch_unchanged(batch, "the model"):
        _check_training(model.train(), batch.images, batch.labels, num_classes)
    before = copy_state(model.eval())
    logits = _check_logits(model, batch.images, num_classes)
    _check_independent_images(model, batch.images, logits)
    require(
        tensors_equal(before, copy_state(model)), "a forward pass in eval mode changes the model"
    )
    _check_restorable(make, model, batch.images, logits)
    _check_other_classes(make, batch.images)


def _build(
    make: Callable[..., nn.Module],
    num_classes: int,
    input_shape: tuple[int, ...],
    seed: int = 0,
) -> nn.Module:
    torch.manual_seed(seed)
    model = make(num_classes=num_classes, input_shape=input_shape)
    # as `wmr` does
    return_logits(model)
    return model


def _check_other_classes(make: Callable[..., nn.Module], images: Tensor) -> None:
    """Check that the model supports another number of classes, or refuses it."""
    try:
        model = _build(make, OTHER_NUM_CLASSES, tuple(images.shape[1:]))
    except WmrError:  # as published networks do
        return
    shape = tuple(model.eval()(images).shape)
    require(
        shape == (4, OTHER_NUM_CLASSES),
        f"with num_classes={OTHER_NUM_CLASSES} its outputs have the shape {shape}",
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
    require(bool(gradients), "no gradient reaches the parameters")
    require(
        all(bool(gradient.isfinite().all()) for gradient in gradients),
        "gradients of the parameters are not finite",
    )


def _check_logits(model: nn.Module, images: Tensor, num_classes: int) -> Tensor:
    inputs = images.clone().requires_grad_()
    logits: Tensor = model(inputs)
    require(
        logits.shape == (4, num_classes),
        f"outputs of shape {tuple(logits.shape)} instead of {(4, num_classes)}",
    )
    require(
        logits.dtype == images.dtype,
        f"logits of type {logits.dtype} from images of type {images.dtype}",
    )
    require(logits.isfinite().all(), "logits are not finite")
    require(logits.requires_grad, "no gradient reaches the input")
    # different factors, as the logits of one image may add up to a constant
    factors = torch.arange(1.0, num_classes + 1)
    (gradient,) = torch.autograd.grad((logits * factors).sum(), inputs, allow_unused=True)
    require(gradient is not None, "no gradient reaches the input")
    require(gradient.isfinite().all(), "gradients of the input are not finite")
    return logits.detach()


def _check_independent_images(model: nn.Module, images: Tensor, logits: Tensor) -> None:
    with torch.no_grad():
        is_repeatable = torch.equal(model(images), logits)
        require(is_repeatable, "in eval mode the same images give other logits")
        alone = torch.cat([model(image[None]) for image in images])
    is_independent = all_close(alone, logits, rtol=1e-4)
    require(is_independent, "in eval mode an image's logits depend on its batch")


def _check_restorable(
    make: Callable[..., nn.Module], model: nn.Module, images: Tensor, logits: Tensor
) -> None:
    # another seed, so that only the state dict can make the two equal
    restored = _build(make, logits.shape[1], tuple(images.shape[1:]), seed=1).eval()
    restored.load_state_dict(model.state_dict())
    with torch.no_grad():
        restored_logits = restored(images)
    require(
        all_close(restored_logits, logits, atol=1e-6, rtol=1e-5),
        "a model with the same state dict gives other logits",
    )

"""`check_model` passes a model that keeps its promises, and names the one promise that another breaks."""

import math
import time

import pytest
import torch
from torch import Tensor, nn

from wmr_cli.errors import BadInput
from wmr_cli.testing import check_model


class Plain(nn.Module):
    """One linear layer. Each method is a promise that a mutant below breaks."""

    def __init__(self, num_classes: int, input_shape: tuple[int, int, int]) -> None:
        super().__init__()
        self.layer = nn.Linear(math.prod(input_shape), self.outputs(num_classes))

    def outputs(self, num_classes: int) -> int:
        return num_classes

    def forward(self, images: Tensor) -> Tensor:
        return self.finished(self.layer(self.prepared(images).flatten(1)))

    def prepared(self, images: Tensor) -> Tensor:
        return images

    def finished(self, logits: Tensor) -> Tensor:
        return logits


class OneTooMany(Plain):
    def outputs(self, num_classes: int) -> int:
        return num_classes + 1


class AlwaysTen(Plain):
    def outputs(self, num_classes: int) -> int:
        return 10


class FlatOutputs(Plain):
    def finished(self, logits: Tensor) -> Tensor:
        return logits.flatten()


class NotFinite(Plain):
    def finished(self, logits: Tensor) -> Tensor:
        return logits if self.training else logits / 0


class DoubleLogits(Plain):
    def finished(self, logits: Tensor) -> Tensor:
        return logits.double()


class DividesByBlack(Plain):
    """The slope of the norm at a black image is 0 / 0."""

    def prepared(self, images: Tensor) -> Tensor:
        return images / (1 + images.flatten(1).square().sum(dim=1).sqrt()[:, None, None, None])


class WithoutGraph(Plain):
    def forward(self, images: Tensor) -> Tensor:
        with torch.no_grad():
            return super().forward(images)


class Quantises(Plain):
    def prepared(self, images: Tensor) -> Tensor:
        return images.detach()


class StopsInEval(Plain):
    def finished(self, logits: Tensor) -> Tensor:
        return logits if self.training else logits.detach()


class LooksAtBatch(Plain):
    def finished(self, logits: Tensor) -> Tensor:
        return logits - logits.mean(dim=0)


class NeverDry(Plain):
    def prepared(self, images: Tensor) -> Tensor:
        return nn.functional.dropout(images, 0.5, training=True)


class Counts(Plain):
    seen: Tensor

    def __init__(self, num_classes: int, input_shape: tuple[int, int, int]) -> None:
        super().__init__(num_classes, input_shape)
        self.register_buffer("seen", torch.zeros(()))

    def prepared(self, images: Tensor) -> Tensor:
        self.seen += len(images)
        return images


class Hides(Plain):
    """A random projection that the state dict does not know."""

    def __init__(self, num_classes: int, input_shape: tuple[int, int, int]) -> None:
        super().__init__(num_classes, input_shape)
        self.signs = torch.randn(input_shape)

    def prepared(self, images: Tensor) -> Tensor:
        return images * self.signs


class SeedsItself(Plain):
    def __init__(self, num_classes: int, input_shape: tuple[int, int, int]) -> None:
        torch.manual_seed(time.perf_counter_ns())
        super().__init__(num_classes, input_shape)


class WritesImages(Plain):
    def prepared(self, images: Tensor) -> Tensor:
        return images if images.requires_grad else images.sub_(0.5)


class Parameterless(nn.Module):
    def __init__(self, num_classes: int, input_shape: tuple[int, int, int]) -> None:
        super().__init__()
        self.classes = num_classes

    def forward(self, images: Tensor) -> Tensor:
        return images.flatten(1)[:, : self.classes]


MUTANTS = {
    OneTooMany: r"outputs of shape \(4, 11\) instead of \(4, 10\)",
    AlwaysTen: r"with num_classes=3 its outputs have the shape \(4, 10\)",
    FlatOutputs: r"outputs of shape \(40,\)",
    NotFinite: "logits are not finite",
    DoubleLogits: "logits of type torch.float64",
    DividesByBlack: "gradients of the input are not finite",
    WithoutGraph: "no gradient reaches the parameters",
    Parameterless: "no gradient reaches the parameters",
    Quantises: "no gradient reaches the input",
    StopsInEval: "no gradient reaches the input",
    LooksAtBatch: "an image's logits depend on its batch",
    NeverDry: "the same images give other logits",
    Counts: "a forward pass in eval mode changes the model",
    Hides: "same state dict gives other logits",
    SeedsItself: "two models of one seed differ",
    WritesImages: "wrote into the images",
}


@pytest.mark.parametrize("shape", [(1, 28, 28), (3, 9, 7)])
def test_a_model_that_keeps_its_promises_passes(shape: tuple[int, int, int]) -> None:
    check_model(Plain, input_shape=shape)


def test_a_model_may_refuse_another_number_of_classes() -> None:
    def published(num_classes: int, input_shape: tuple[int, int, int]) -> nn.Module:
        if num_classes != 10:
            raise BadInput("it tells 10 classes apart")
        return Plain(num_classes, input_shape)

    check_model(published)


@pytest.mark.parametrize(
    ("mutant", "broken"), MUTANTS.items(), ids=lambda part: getattr(part, "__name__", "")
)
def test_a_broken_promise_is_named(mutant: type[nn.Module], broken: str) -> None:
    with pytest.raises(AssertionError, match=broken):
        check_model(mutant)

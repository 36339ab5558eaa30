"""`check_model` accepts a correct model and names the rule that each mutant violates."""

import math
import time

import pytest
import torch
from torch import Tensor, nn

from wmr_cli.errors import BadInput
from wmr_cli.testing import check_model


class CorrectModel(nn.Module):
    """One linear layer. Each mutant below overrides one method."""

    def __init__(self, num_classes: int, input_shape: tuple[int, int, int]) -> None:
        super().__init__()
        self.layer = nn.Linear(math.prod(input_shape), self.outputs(num_classes))

    def outputs(self, num_classes: int) -> int:
        return num_classes

    def forward(self, images: Tensor) -> Tensor:
        return self.change_logits(self.layer(self.change_images(images).flatten(1)))

    def change_images(self, images: Tensor) -> Tensor:
        return images

    def change_logits(self, logits: Tensor) -> Tensor:
        return logits


class OneOutputTooMany(CorrectModel):
    def outputs(self, num_classes: int) -> int:
        return num_classes + 1


class AlwaysTenOutputs(CorrectModel):
    def outputs(self, num_classes: int) -> int:
        return 10


class FlatOutputs(CorrectModel):
    def change_logits(self, logits: Tensor) -> Tensor:
        return logits.flatten()


class NotFinite(CorrectModel):
    def change_logits(self, logits: Tensor) -> Tensor:
        return logits if self.training else logits / 0


class DoubleLogits(CorrectModel):
    def change_logits(self, logits: Tensor) -> Tensor:
        return logits.double()


class InfiniteInputGradient(CorrectModel):
    """The gradient of the norm at a black image is 0 / 0."""

    def change_images(self, images: Tensor) -> Tensor:
        return images / (1 + images.flatten(1).square().sum(dim=1).sqrt()[:, None, None, None])


class WithoutGraph(CorrectModel):
    def forward(self, images: Tensor) -> Tensor:
        with torch.no_grad():
            return super().forward(images)


class DetachesImages(CorrectModel):
    def change_images(self, images: Tensor) -> Tensor:
        return images.detach()


class DetachesInEvalMode(CorrectModel):
    def change_logits(self, logits: Tensor) -> Tensor:
        return logits if self.training else logits.detach()


class UsesBatchMean(CorrectModel):
    def change_logits(self, logits: Tensor) -> Tensor:
        return logits - logits.mean(dim=0)


class DropoutInEvalMode(CorrectModel):
    def change_images(self, images: Tensor) -> Tensor:
        return nn.functional.dropout(images, 0.5, training=True)


class CountsImages(CorrectModel):
    seen: Tensor

    def __init__(self, num_classes: int, input_shape: tuple[int, int, int]) -> None:
        super().__init__(num_classes, input_shape)
        self.register_buffer("seen", torch.zeros(()))

    def change_images(self, images: Tensor) -> Tensor:
        self.seen += len(images)
        return images


class HidesState(CorrectModel):
    """A random projection that is not in the state dict."""

    def __init__(self, num_classes: int, input_shape: tuple[int, int, int]) -> None:
        super().__init__(num_classes, input_shape)
        self.signs = torch.randn(input_shape)

    def change_images(self, images: Tensor) -> Tensor:
        return images * self.signs


class SeedsItself(CorrectModel):
    def __init__(self, num_classes: int, input_shape: tuple[int, int, int]) -> None:
        torch.manual_seed(time.perf_counter_ns())
        super().__init__(num_classes, input_shape)


class WritesImages(CorrectModel):
    def change_images(self, images: Tensor) -> Tensor:
        return images if images.requires_grad else images.sub_(0.5)


class Parameterless(nn.Module):
    def __init__(self, num_classes: int, input_shape: tuple[int, int, int]) -> None:
        super().__init__()
        self.classes = num_classes

    def forward(self, images: Tensor) -> Tensor:
        return images.flatten(1)[:, : self.classes]


MUTANTS = {
    OneOutputTooMany: r"outputs of shape \(4, 11\) instead of \(4, 10\)",
    AlwaysTenOutputs: r"with num_classes=3 its outputs have the shape \(4, 10\)",
    FlatOutputs: r"outputs of shape \(40,\)",
    NotFinite: "logits are not finite",
    DoubleLogits: "logits of type torch.float64",
    InfiniteInputGradient: "gradients of the input are not finite",
    WithoutGraph: "no gradient reaches the parameters",
    Parameterless: "no gradient reaches the parameters",
    DetachesImages: "no gradient reaches the input",
    DetachesInEvalMode: "no gradient reaches the input",
    UsesBatchMean: "an image's logits depend on its batch",
    DropoutInEvalMode: "the same images give other logits",
    CountsImages: "a forward pass in eval mode changes the model",
    HidesState: "same state dict gives other logits",
    SeedsItself: "two models of one seed differ",
    WritesImages: "wrote into the images",
}


@pytest.mark.parametrize("shape", [(1, 28, 28), (3, 9, 7)])
def test_a_correct_model_passes(shape: tuple[int, int, int]) -> None:
    check_model(CorrectModel, input_shape=shape)


def test_a_model_may_refuse_another_number_of_classes() -> None:
    def published(num_classes: int, input_shape: tuple[int, int, int]) -> nn.Module:
        if num_classes != 10:
            raise BadInput("it has 10 classes")
        return CorrectModel(num_classes, input_shape)

    check_model(published)


@pytest.mark.parametrize(
    ("mutant", "problem"), MUTANTS.items(), ids=lambda part: getattr(part, "__name__", "")
)
def test_the_check_names_the_violated_rule(mutant: type[nn.Module], problem: str) -> None:
    with pytest.raises(AssertionError, match=problem):
        check_model(mutant)

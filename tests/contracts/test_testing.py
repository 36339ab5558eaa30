"""The checks of `wmr_cli.testing` notice broken promises."""

from dataclasses import dataclass, replace

import pytest
import torch
from torch import nn

from wmr_cli.core.contracts import Attacked, StepReport
from wmr_cli.core.splits import MemorySource, MemorySplit
from wmr_cli.testing import check_attack, check_dataset, check_kernel, check_loss, check_model


@dataclass(frozen=True)
class Still:
    """Returns the images as they are, with one promise broken at will."""

    eps: float = 0.1
    breaks: str = ""

    def __call__(self, model, images, labels, objective, index, seed):
        moved = images
        if self.breaks == "ball":
            moved = (images + 0.5).clamp(0, 1)
        if self.breaks == "range":
            moved = images + 0.05
        if self.breaks == "batch":
            moved = (images + 0.05 * torch.linspace(0, 1, len(images))[:, None, None, None]).clamp(0, 1)
        if self.breaks == "seed":
            moved = (images + 0.01 * torch.rand_like(images)).clamp(0, 1)
        if self.breaks == "mode":
            model.train()
        if self.breaks == "gradients":
            model(images).sum().backward()
        if self.breaks == "shape":
            moved = images[1:]
        logits = model(moved).detach() + (1 if self.breaks == "logits" else 0) * torch.arange(4)
        return Attacked(moved, logits, torch.zeros_like(labels))


def test_an_attack_that_keeps_its_promises_passes():
    check_attack(Still())


@pytest.mark.parametrize("breaks", ["ball", "range", "batch", "seed", "mode", "gradients", "shape", "logits"])
def test_an_attack_that_breaks_one_is_noticed(breaks):
    with pytest.raises(AssertionError):
        check_attack(Still(breaks=breaks))


class Outputs(nn.Module):
    def __init__(self, num_classes, input_shape, extra=0, scale=1.0, mixes=False):
        super().__init__()
        self.layer = nn.Linear(input_shape[0] * input_shape[1] * input_shape[2], num_classes + extra)
        self.scale, self.mixes = scale, mixes

    def forward(self, images):
        logits = self.layer(images.flatten(1)) * self.scale
        return logits - logits.mean(dim=0) if self.mixes else logits


@pytest.mark.parametrize("broken", [{"extra": 1}, {"scale": float("nan")}, {"mixes": True}])
def test_a_model_with_bad_outputs_is_noticed(broken):
    check_model(Outputs)
    with pytest.raises(AssertionError):
        check_model(lambda **given: Outputs(**given, **broken))


def sound_source() -> MemorySource:
    def split(first: int) -> MemorySplit:
        return MemorySplit(torch.rand(6, 1, 4, 4), torch.arange(6) % 2, first + torch.arange(6))

    return MemorySource(2, {"train": split(0), "val": split(6), "test": split(12)})


@pytest.mark.parametrize(
    "damage",
    [
        lambda split: replace(split, images=split.images + 1),
        lambda split: replace(split, labels=split.labels + 1),
        lambda split: replace(split, index=split.index - 6),
        lambda split: replace(split, index=torch.zeros_like(split.index) + 50),
        lambda split: replace(split, images=split.images.double()),
    ],
)
def test_a_data_set_with_bad_rows_is_noticed(damage):
    source = sound_source()
    check_dataset(source)
    with pytest.raises(AssertionError):
        check_dataset(MemorySource(2, {**source.splits, "test": damage(source.splits["test"])}))


def test_a_kernel_that_no_attack_can_climb_says_that_it_is_detached():
    class Comparing:
        compares = True

        def __call__(self, evidence):
            return evidence.logits[:, 0]

    class Counting:
        needs = ("steps_survived",)

        def __call__(self, evidence):
            return -evidence.steps_survived.float()

    for kind in (Comparing, Counting):
        with pytest.raises(AssertionError, match="detached"):
            check_kernel(kind())
        kind.detached = True
        check_kernel(kind())


@pytest.mark.parametrize("kernel", [lambda e: e.logits, lambda e: e.logits[:, 0] / 0, lambda e: e.logits.mean()])
def test_a_kernel_without_one_finite_value_per_image_is_noticed(kernel):
    with pytest.raises(AssertionError):
        check_kernel(kernel)


class Idle:
    def step(self, learner, batch):
        zeros = torch.zeros(len(batch.labels))
        return StepReport(zeros, zeros, zeros, zeros > 0)


def test_a_defense_that_never_steps_is_noticed():
    with pytest.raises(AssertionError, match="optimizer step"):
        check_loss(Idle())

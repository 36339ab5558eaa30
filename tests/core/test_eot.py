"""Draws of stochastic models: mean gradients, rules that decide, and seeded generators."""

import math

import pytest
import torch
from torch import Tensor, nn

from wmr_cli.core.contexts import seeding_generators
from wmr_cli.core.eot import average_draws, combine_draws
from wmr_cli.core.losses import cross_entropy
from wmr_cli.core.norms import NORMS
from wmr_cli.core.pgd import PgdSettings, input_gradient, run_pgd
from wmr_cli.core.protocols import Batch

DRAWS = 3
CPU = torch.device("cpu")


class Scaled(nn.Module):
    """A linear model whose input is multiplied by a random factor per image."""

    def __init__(self) -> None:
        super().__init__()
        self.passes = 0
        self.register_buffer("weight", torch.tensor([[1.0, -2.0, 0.5], [0.5, 3.0, -1.0]]))

    def forward(self, images: Tensor) -> Tensor:
        self.passes += 1
        factors = torch.rand(len(images), 1)
        logits: Tensor = (images.flatten(1) * factors) @ self.get_buffer("weight")
        return logits


@pytest.fixture
def batch() -> Batch:
    images = torch.tensor([[0.2, 0.9], [0.7, 0.4]]).reshape(2, 1, 1, 2)
    return Batch(images, torch.tensor([0, 2]), torch.arange(2))


def test_a_gradient_is_the_mean_over_the_draws(batch: Batch) -> None:
    model = Scaled()
    with seeding_generators(CPU, 1):
        gradient, logits = input_gradient(
            average_draws(model, DRAWS), batch.images, batch.labels, cross_entropy
        )
    with seeding_generators(CPU, 1):
        factors = torch.stack([torch.rand(2, 1) for _ in range(DRAWS)])
    # by hand: the gradient of the cross-entropy of W^T (f x) is f W (p - y)
    weight = model.get_buffer("weight")
    draws = torch.softmax((batch.images.flatten(1) * factors) @ weight, dim=2)
    errors = draws - nn.functional.one_hot(batch.labels, 3)
    expected = (factors * (errors @ weight.T)).mean(dim=0)
    torch.testing.assert_close(gradient.flatten(1), expected)
    torch.testing.assert_close(logits.exp(), draws.mean(dim=0))


def test_one_draw_is_the_model_itself(batch: Batch) -> None:
    model = Scaled()
    assert average_draws(model, 1) is model
    settings = PgdSettings(NORMS["linf"], 0.1, 0.02, steps=4)
    run_pgd(average_draws(model, 1), batch, cross_entropy, batch.images, settings)
    assert model.passes == 5, "one pass per step, and one for the logits"


def test_pgd_follows_the_mean_gradient(batch: Batch) -> None:
    model = Scaled()
    settings = PgdSettings(NORMS["l2"], 0.5, 0.1, steps=2)
    with seeding_generators(CPU, 2):
        found = run_pgd(average_draws(model, DRAWS), batch, cross_entropy, batch.images, settings)
    current = batch.images
    with seeding_generators(CPU, 2):
        for _ in range(2):
            total = sum(
                input_gradient(model, current, batch.labels, cross_entropy)[0] for _ in range(DRAWS)
            )
            assert isinstance(total, Tensor)
            length = total.flatten(1).norm(dim=1)[:, None, None, None]
            current = (current + 0.1 * total / length).clamp(0, 1)
    torch.testing.assert_close(found.images, current)
    assert model.passes == 2 * (2 * DRAWS) + DRAWS


def test_rules_decide_by_the_mean_probability_or_by_the_worst_draw() -> None:
    # probabilities of the true class 0: 0.9 and 0.4 for the first image, 0.3 twice for the second
    draws = [
        torch.tensor([[0.9, 0.1], [0.3, 0.7]]).log(),
        torch.tensor([[0.4, 0.6], [0.3, 0.7]]).log() + 5,
    ]
    labels = torch.tensor([0, 0])
    mean = combine_draws(draws, labels, "mean")
    torch.testing.assert_close(mean, torch.tensor([[0.65, 0.35], [0.3, 0.7]]).log())
    worst = combine_draws(draws, labels, "worst")
    torch.testing.assert_close(worst[0], draws[1][0])
    assert worst.argmax(dim=1).tolist() == [1, 1]


@pytest.mark.parametrize("rule", ["mean", "worst"])
def test_a_single_draw_decides_as_it_is(rule: str) -> None:
    logits = torch.tensor([[7.0, 3.0]])
    combined = combine_draws([logits], torch.tensor([0]), "worst" if rule == "worst" else "mean")
    assert combined is logits


def test_the_mean_does_not_overflow_for_certain_draws() -> None:
    draws = [torch.tensor([[1e4, 0.0]]), torch.tensor([[0.0, 1e4]])]
    mean = combine_draws(draws, torch.tensor([0]), "mean")
    torch.testing.assert_close(mean, torch.full((1, 2), math.log(0.5)))


def test_generators_are_seeded_inside_and_restored_outside() -> None:
    torch.manual_seed(0)
    expected = torch.rand(2).tolist()
    torch.manual_seed(0)
    with seeding_generators(CPU, 5):
        first = torch.rand(3).tolist()
    assert torch.rand(2).tolist() == expected
    with seeding_generators(CPU, 5):
        assert torch.rand(3).tolist() == first
    with seeding_generators(CPU, 6):
        assert torch.rand(3).tolist() != first


def test_generators_are_restored_after_an_error() -> None:
    torch.manual_seed(0)
    state = torch.get_rng_state()
    with pytest.raises(RuntimeError), seeding_generators(CPU, 5):
        raise RuntimeError
    assert torch.equal(torch.get_rng_state(), state)

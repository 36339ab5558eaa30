"""Philox against its published answers; the noise against what noise should be."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from wmr_cli.core import rng

INDEX = torch.tensor([4, 0, 977, 31, 12])
LIKE = torch.empty(5, 3, 4, 4)


@pytest.mark.parametrize(
    ("counter", "key", "answer"),
    [
        (
            "00000000 00000000 00000000 00000000",
            "00000000 00000000",
            "6627e8d5 e169c58d bc57ac4c 9b00dbd8",
        ),
        (
            "ffffffff ffffffff ffffffff ffffffff",
            "ffffffff ffffffff",
            "408f276d 41c83b0e a20bc7c6 6d5451fd",
        ),
        (
            "243f6a88 85a308d3 13198a2e 03707344",
            "a4093822 299f31d0",
            "d16cfe09 94fdcceb 5001e420 24126ea1",
        ),
    ],
)
def test_philox_matches_published_vectors(counter: str, key: str, answer: str) -> None:
    first_word, second_word, third_word, fourth_word = (
        torch.tensor([int(word, 16)]) for word in counter.split()
    )
    counters = (first_word, second_word, third_word, fourth_word)
    first, second = (int(word, 16) for word in key.split())
    found = rng.philox(counters, (first, second))
    assert " ".join(f"{word.item():08x}" for word in found) == answer


def test_words_are_philox_over_block_image_restart_and_step() -> None:
    found = rng.random_words(torch.tensor([9]), 6, seed=(5 << 32) + 7, restart=2, step=3)[
        0
    ].tolist()
    expected = []
    for block in (0, 1):
        counter = (torch.tensor([block]), torch.tensor([9]), torch.tensor([2]), torch.tensor([3]))
        expected += [word.item() for word in rng.philox(counter, (7, 5))]
    assert found == expected[:6]


@pytest.mark.parametrize("draw", [rng.uniform, rng.normal])
def test_noise_of_an_image_is_equal_in_any_batch_and_order(draw: Callable[..., Any]) -> None:
    together = draw(LIKE, INDEX, seed=1, restart=2, step=3)
    order = torch.tensor([2, 4, 0, 3, 1])
    assert torch.equal(draw(LIKE, INDEX[order], 1, 2, 3), together[order])
    for row, index in enumerate(INDEX):
        assert torch.equal(draw(LIKE[:1], index[None], 1, 2, 3)[0], together[row])


@pytest.mark.parametrize("draw", [rng.uniform, rng.normal])
@pytest.mark.parametrize(
    "change", [{"seed": 2}, {"seed": 1 + 2**32}, {"seed": 1 + 2**62}, {"restart": 1}, {"step": 1}]
)
def test_seed_restart_and_step_change_the_noise_of_every_image(
    draw: Callable[..., Any], change: dict[str, int]
) -> None:
    settings = {"seed": 1, "restart": 0, "step": 0}
    first, second = draw(LIKE, INDEX, **settings), draw(LIKE, INDEX, **(settings | change))
    assert (first != second).flatten(1).float().mean(dim=1).min() > 0.9


@pytest.mark.parametrize("draw", [rng.uniform, rng.normal])
def test_no_two_images_share_their_noise(draw: Callable[..., Any]) -> None:
    rows = draw(torch.empty(200, 8), torch.arange(200), seed=0)
    assert len(rows.unique()) > 0.999 * rows.numel()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_uniform_noise_lies_in_the_half_open_unit_interval(dtype: torch.dtype) -> None:
    values = rng.uniform(torch.empty(500, 1000, dtype=dtype), torch.arange(500), seed=3)
    assert values.dtype == dtype
    assert values.min() >= 0
    assert values.max() < 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_normal_noise_is_finite(dtype: torch.dtype) -> None:
    values = rng.normal(torch.empty(500, 1000, dtype=dtype), torch.arange(500), seed=3)
    assert values.dtype == dtype
    assert values.isfinite().all()


def largest_gap(values: Tensor, distribution: Callable[..., Any]) -> float:
    """Kolmogorov and Smirnov's distance between values and a distribution function."""
    ordered = distribution(values.flatten().double().sort().values)
    steps = torch.arange(len(ordered) + 1, dtype=torch.float64) / len(ordered)
    return float(max((steps[1:] - ordered).max().item(), (ordered - steps[:-1]).max().item()))


@pytest.mark.parametrize("seed", [0, 1, 2**40])
def test_noise_follows_its_distribution(seed: int) -> None:
    like, index = torch.empty(100, 1000), torch.arange(100)
    flat, bell = rng.uniform(like, index, seed), rng.normal(like, index, seed)
    bound = 1.95 / math.sqrt(like.numel())  # passed by chance once in a thousand draws
    assert largest_gap(flat, lambda x: x) < bound
    assert largest_gap(bell, lambda x: 0.5 * (1 + torch.erf(x / math.sqrt(2)))) < bound


def test_moments_are_those_of_uniform_and_normal_numbers() -> None:
    like, index = torch.empty(1000, 300, dtype=torch.float64), torch.arange(1000)
    flat, bell = rng.uniform(like, index, seed=5), rng.normal(like, index, seed=5)
    assert [flat.mean().item(), flat.var().item()] == pytest.approx([1 / 2, 1 / 12], abs=0.003)
    assert [bell.mean().item(), bell.var().item()] == pytest.approx([0, 1], abs=0.01)
    assert [bell.pow(3).mean().item(), bell.pow(4).mean().item()] == pytest.approx([0, 3], abs=0.05)


def test_neighbouring_pixels_and_images_are_not_correlated() -> None:
    bell = rng.normal(torch.empty(400, 400, dtype=torch.float64), torch.arange(400), seed=6)
    assert (bell[:, 1:] * bell[:, :-1]).mean().abs() < 0.012
    assert (bell[1:] * bell[:-1]).mean().abs() < 0.012


def test_derived_seeds_are_fixed_distinct_and_of_63_bits() -> None:
    parts = [
        ("attack", 0, 0),
        ("attack", 0, 1),
        ("attack", 1, 0),
        ("step", 0, 0),
        ("attack", 0),
        ("attack", "0", 0),
        (1, 11),
        (11, 1),
    ]
    seeds = [rng.derive_seed(*part) for part in parts]
    assert seeds == [rng.derive_seed(*part) for part in parts]
    assert len(set(seeds)) == len(seeds)
    assert all(0 <= seed < 2**63 for seed in seeds)

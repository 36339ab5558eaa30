"""Random numbers as a pure function of (seed, image index, restart, step): no generator, no state, no order.

Philox4x32-10 (Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3") over integer tensors. The key is the
seed, the counter is (block, index, restart, step); an image gets the same noise in any batch and on any
rank; on another device normal noise may differ in its last bit.
"""

import hashlib
import math

import torch
from torch import Tensor

_WORD = 0xFFFFFFFF
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_KEY_STEPS = (0x9E3779B9, 0xBB67AE85)


def philox(
    counter: tuple[Tensor, Tensor, Tensor, Tensor], key: tuple[int, int]
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Four words of 32 random bits for each counter of four words; all int64 tensors of one shape."""
    a, b, c, d = counter
    for turn in range(10):
        first, second = a * _MULTIPLIERS[0], c * _MULTIPLIERS[1]  # wraps at 64 bits, as it should
        keys = [(word + turn * step) & _WORD for word, step in zip(key, _KEY_STEPS, strict=True)]
        a, b, c, d = (
            ((second >> 32) & _WORD) ^ b ^ keys[0],
            second & _WORD,
            ((first >> 32) & _WORD) ^ d ^ keys[1],
            first & _WORD,
        )
    return a, b, c, d


def random_words(index: Tensor, count: int, seed: int, restart: int = 0, step: int = 0) -> Tensor:
    """`count` words of 32 random bits for each image. (N,) to (N, count) int64."""
    blocks = torch.arange(-(-count // 4), device=index.device, dtype=torch.int64)
    block, image = torch.broadcast_tensors(blocks[None, :], index.to(torch.int64)[:, None] & _WORD)
    counter = (block, image, torch.full_like(block, restart), torch.full_like(block, step))
    stacked = torch.stack(philox(counter, (seed & _WORD, (seed >> 32) & _WORD)), dim=-1)
    return stacked.flatten(1)[:, :count]


def uniform(like: Tensor, index: Tensor, seed: int, restart: int = 0, step: int = 0) -> Tensor:
    """Uniform on [0, 1), 24 bits each, in the shape of `like` (N, ...)."""
    bits = random_words(index, math.prod(like.shape[1:]), seed, restart, step) >> 8
    return (bits.to(like.dtype) * 2**-24).reshape(like.shape)


def normal(like: Tensor, index: Tensor, seed: int, restart: int = 0, step: int = 0) -> Tensor:
    """Standard normal (Box-Muller), in the shape of `like` (N, ...)."""
    count = math.prod(like.shape[1:])
    bits = random_words(index, 2 * count, seed, restart, step) >> 8
    radius, angle = ((bits.to(like.dtype) + 0.5) * 2**-24).chunk(2, dim=1)
    return ((-2 * radius.log()).sqrt() * (2 * math.pi * angle).cos()).reshape(like.shape)


def derive_seed(*parts: int | str) -> int:
    """A seed of 63 bits from several parts: a run's seed with an epoch or a step."""
    digest = hashlib.blake2b(repr(parts).encode(), digest_size=8).digest()
    return int.from_bytes(digest) >> 1

"""Random numbers as a pure function of (seed, image index, restart, step), without a generator.

Philox4x32-10 (Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3") over integer
tensors. The key is the seed, the counter is (block, index, restart, step). An image gets the same
noise in any batch and on any rank. Normal noise may differ in its last bit between devices.
"""

import hashlib
import math

import torch
from torch import Tensor

# constants of Philox4x32: round multipliers, and Weyl increments of the key
_WORD_MASK = 0xFFFFFFFF
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_KEY_INCREMENTS = (0x9E3779B9, 0xBB67AE85)
_ROUNDS = 10


def philox(
    counter: tuple[Tensor, Tensor, Tensor, Tensor], key: tuple[int, int]
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return four words of 32 random bits per counter of four words, as int64 of one shape."""
    a, b, c, d = counter
    for number in range(_ROUNDS):
        # 32 x 32 bits: int64 overflow wraps, and keeps exactly the 64 bits of the product
        first = a * _MULTIPLIERS[0]
        second = c * _MULTIPLIERS[1]
        first_key = (key[0] + number * _KEY_INCREMENTS[0]) & _WORD_MASK
        second_key = (key[1] + number * _KEY_INCREMENTS[1]) & _WORD_MASK
        # in place, because allocations take longer than the arithmetic; the mask is applied
        # after the shift, which copies the sign bit
        a = (second >> 32).bitwise_and_(_WORD_MASK).bitwise_xor_(b).bitwise_xor_(first_key)
        c = (first >> 32).bitwise_and_(_WORD_MASK).bitwise_xor_(d).bitwise_xor_(second_key)
        b = second.bitwise_and_(_WORD_MASK)
        d = first.bitwise_and_(_WORD_MASK)
    return a, b, c, d


def random_words(
    index: Tensor, count: int, seed: int, restart: int = 0, step: int | Tensor = 0
) -> Tensor:
    """Return `count` words of 32 random bits per image. (N,) to (N, count) int64.

    The step may be one per image, (N,).
    """
    # a block is one call of Philox, which gives four words
    blocks = torch.arange(-(-count // 4), device=index.device, dtype=torch.int64)
    images = index.to(torch.int64)[:, None] & _WORD_MASK
    block, image = torch.broadcast_tensors(blocks[None, :], images)
    steps = (
        step[:, None].expand_as(block)
        if isinstance(step, Tensor)
        else block.new_full(block.shape, step)
    )
    counter = (block, image, torch.full_like(block, restart), steps)
    key = (seed & _WORD_MASK, (seed >> 32) & _WORD_MASK)
    return torch.stack(philox(counter, key), dim=-1).flatten(1)[:, :count]


def uniform(
    like: Tensor, index: Tensor, seed: int, restart: int = 0, step: int | Tensor = 0
) -> Tensor:
    """Uniform on [0, 1), 24 bits each, in the shape of `like` (N, ...)."""
    # 24 bits are the significand of float32: more could round up to 1
    bits = random_words(index, math.prod(like.shape[1:]), seed, restart, step) >> 8
    return (bits.to(like.dtype) * 2**-24).reshape(like.shape)


def normal(like: Tensor, index: Tensor, seed: int, restart: int = 0, step: int = 0) -> Tensor:
    """Return standard normal values (Box-Muller) in the shape of `like` (N, ...)."""
    count = math.prod(like.shape[1:])
    bits = random_words(index, 2 * count, seed, restart, step) >> 8
    # shifted by half a unit: the logarithm of 0 would be infinite
    radius, angle = ((bits.to(like.dtype) + 0.5) * 2**-24).chunk(2, dim=1)
    return ((-2 * radius.log()).sqrt() * (2 * math.pi * angle).cos()).reshape(like.shape)


def derive_seed(*parts: int | str) -> int:
    """Return a seed of 63 bits for several parts, such as a run's seed and a step."""
    # the repr of the parts is fixed: another text would change every random number of 0.1
    digest = hashlib.blake2b(repr(parts).encode(), digest_size=8).digest()
    # 63 bits, because torch.manual_seed takes a signed 64-bit number
    return int.from_bytes(digest) >> 1

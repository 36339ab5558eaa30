"""Numbers on their way into the page: little-endian, each array once, all of them in one compressed piece of text."""

import base64
import gzip
import hashlib
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

SIZE = 8
"""Every array starts at a multiple of so many bytes: scripts view them in place."""


@dataclass
class Arrays:
    """Arrays by number. What is added twice, such as the labels that models share, is kept once."""

    parts: list[bytes] = field(default_factory=list)
    described: list[dict[str, Any]] = field(default_factory=list)
    known: dict[str, int] = field(default_factory=dict)
    length: int = 0

    def add(self, values: NDArray[Any]) -> int:
        """The number by which the page finds these values, flattened."""
        kind = f"{values.dtype.kind}{values.dtype.itemsize}"
        content = np.ascontiguousarray(values, dtype=values.dtype.newbyteorder("<")).tobytes()
        name = f"{kind} {hashlib.sha256(content).hexdigest()}"
        if name not in self.known:
            self.known[name] = len(self.described)
            self.described.append({"type": kind, "start": self.length, "length": values.size})
            padding = bytes(-len(content) % SIZE)
            self.parts += [content, padding]
            self.length += len(content) + len(padding)
        return self.known[name]

    def text(self) -> str:
        """Everything, for a script to inflate."""
        return packed(b"".join(self.parts))


def packed(content: bytes) -> str:
    """Compressed, as base64; the same bytes give the same text."""
    return base64.b64encode(gzip.compress(content, compresslevel=9, mtime=0)).decode("ascii")


def smallest_whole(values: ArrayLike) -> NDArray[Any]:
    """Whole numbers that are not negative, in as few bytes as hold them."""
    numbers = np.asarray(values)
    return numbers.astype(np.min_scalar_type(int(numbers.max(initial=0))))


def below_largest(logits: ArrayLike) -> NDArray[np.float16]:
    """Logits (N, C) less the largest of their image, in half precision: fine where a class has any share of the probability."""
    values = np.asarray(logits, dtype=np.float64)
    # no half may overflow to infinity; so far below, a share is 0 anyway
    return np.asarray(np.maximum(values - values.max(axis=1, keepdims=True), -6e4), dtype=np.float16)

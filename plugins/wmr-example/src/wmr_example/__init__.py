"""One small component of every kind. This module is imported by `wmr list`, so it holds names and strings only."""

from collections.abc import Iterable

from wmr_cli import Entry, hookimpl


@hookimpl
def wmr_datasets() -> Iterable[Entry]:
    return [
        Entry(
            "stripes",
            "wmr_example.parts:stripes",
            "noisy stripes in four directions, made on the spot",
        )
    ]


@hookimpl
def wmr_models() -> Iterable[Entry]:
    return [Entry("linear", "wmr_example.parts:Linear", "one linear layer")]


@hookimpl
def wmr_losses() -> Iterable[Entry]:
    return [
        Entry(
            "half-half",
            "wmr_example.parts:HalfHalf",
            "the mean of clean and weighted adversarial cross-entropy",
        )
    ]


@hookimpl
def wmr_kernels() -> Iterable[Entry]:
    return [Entry("fooled", "wmr_example.parts:Fooled", "images classified wrong count more")]


@hookimpl
def wmr_attacks() -> Iterable[Entry]:
    return [
        Entry(
            "random-corners",
            "wmr_example.parts:RandomCorners",
            "the worst of a few random corners of the ball",
        )
    ]

"""One small component of every kind.

`wmr list` imports this module, so it imports nothing heavy.
"""

from collections.abc import Iterable

from wmr_cli import Entry, hookimpl


@hookimpl
def wmr_datasets() -> Iterable[Entry]:
    return [
        Entry(
            "stripes",
            "wmr_example.parts:stripes",
            "noisy stripes in four directions, computed without files",
        )
    ]


@hookimpl
def wmr_models() -> Iterable[Entry]:
    return [Entry("linear", "wmr_example.parts:Linear", "one linear layer")]


@hookimpl
def wmr_defenses() -> Iterable[Entry]:
    return [
        Entry(
            "half-half",
            "wmr_example.parts:HalfHalf",
            "the mean of clean and weighted adversarial cross-entropy",
        )
    ]


@hookimpl
def wmr_kernels() -> Iterable[Entry]:
    return [
        Entry(
            "misclassified",
            "wmr_example.parts:Misclassified",
            "more weight on misclassified images",
        )
    ]


@hookimpl
def wmr_attacks() -> Iterable[Entry]:
    return [
        Entry(
            "random-corners",
            "wmr_example.parts:RandomCorners",
            "the strongest of a few random corners of the ε-ball",
        )
    ]


@hookimpl
def wmr_verifiers() -> Iterable[Entry]:
    return [
        Entry(
            "dual-norm",
            "wmr_example.parts:DualNorm",
            "exact bounds of a model that is one linear layer",
        )
    ]

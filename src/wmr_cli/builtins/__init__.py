"""Our own plugin. It enters by the same door as anybody's: an entry point, five hooks, names and strings only."""

from collections.abc import Iterable

from ..hookspecs import hookimpl
from ..registry import Entry

HERE = __name__


@hookimpl
def wmr_models() -> Iterable[Entry]:
    return [
        Entry("digits-cnn", f"{HERE}.models.digits_cnn:DigitsCnn", "two convolutions and a hidden layer, for very small images"),
        Entry("small-cnn", f"{HERE}.models.small_cnn:SmallCnn", "the MNIST network of TRADES, 312,202 parameters"),
    ]


@hookimpl
def wmr_datasets() -> Iterable[Entry]:
    return [
        Entry("digits", f"{HERE}.datasets.digits:digits", "1,797 handwritten digits of 8x8 pixels, embedded (scikit-learn)"),
    ]


@hookimpl
def wmr_losses() -> Iterable[Entry]:
    return [
        Entry("natural", f"{HERE}.defenses.natural:Natural", "cross-entropy on clean images: no defense"),
        Entry("pgd", f"{HERE}.defenses.pgd:PgdTraining", "cross-entropy on attacked images (Madry et al. 2018)"),
        Entry("trades", f"{HERE}.defenses.trades:Trades", "clean cross-entropy plus beta times a divergence (Zhang et al. 2019)"),
    ]


@hookimpl
def wmr_kernels() -> Iterable[Entry]:
    return [
        Entry("exp", f"{HERE}.kernels.exp:Exponential", "exp(-alpha * margin), the paper's choice"),
        Entry("none", f"{HERE}.kernels.none:Uniform", "every image counts the same"),
    ]


@hookimpl
def wmr_attacks() -> Iterable[Entry]:
    return [
        Entry("fgsm", f"{HERE}.attacks.fgsm:Fgsm", "one gradient step to the edge of the ball"),
        Entry("pgd", f"{HERE}.attacks.pgd:Pgd", "projected gradient ascent on the cross-entropy"),
        Entry("pgd-margin", f"{HERE}.attacks.pgd:Pgd", "projected gradient ascent on the logit margin", {"loss": "margin"}),
    ]

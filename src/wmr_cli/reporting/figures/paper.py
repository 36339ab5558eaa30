"""The paper's own Figures 3 and 4 from the numbers that come with the program."""

from collections.abc import Iterator

from ...spec import exact
from .. import paper
from .printed import Panel, Picture, Series
from .words import A_SA, ALPHA_TEST, RHO

NAMES = {"F3": "paper-figure-3", "F4": "paper-figure-4"}
TITLES = {
    "F3": "the paper's Figure 3: CIFAR-10, single runs",
    "F4": "the paper's Figure 4: CIFAR-10, the worst case in a ball; the paper does not name the defense, TRADES is inferred",
}
X_LABELS = {"alpha_test": ALPHA_TEST, "rho": RHO}
Y_LABELS = {"a_sa": f"{A_SA}, %", "accuracy": "accuracy, %", "loss": "loss"}
LOSSES = {"ce": "cross-entropy", "margin": "margin loss"}


def pictures() -> Iterator[tuple[str, Picture]]:
    """Each figure with a name for its files; shares in percent."""
    for name, file in NAMES.items():
        yield file, Picture(TITLES[name], [_panel(panel) for panel in paper.figure(name).panels])


def _panel(panel: paper.Panel) -> Panel:
    scale = 1 if panel.metric == "loss" else 100
    return Panel(
        title=_title(panel),
        x_label=X_LABELS[panel.x_is],
        y_label=Y_LABELS[panel.metric],
        series=[_series(series, scale) for series in panel.series],
        is_log=panel.x_is == "rho",
    )


def _title(panel: paper.Panel) -> str:
    """What tells the panel from the others: the radius of the attack, or the loss that is worst."""
    what = f"ε {exact(panel.eps_test)}" if panel.eps_test is not None else LOSSES[panel.attack_loss or "ce"]
    return f"({panel.name}) {what}"


def _series(series: paper.Series, scale: float) -> Series:
    return Series(
        label=series.defense if series.alpha_train is None else f"{series.defense}, α {exact(series.alpha_train)}",
        x=series.x,
        y=[scale * value for value in series.y],
        suspect=[x for x, is_suspect in zip(series.x, series.is_suspect, strict=True) if is_suspect],
    )

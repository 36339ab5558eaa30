"""How training went: what was paid, held-out accuracies, and the health of the weights."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from ...spec import Spec, exact
from .layout import Drawing, Made, entry, framed
from .material import Material, Training, Undrawn
from .style import WIDTH, blank, opacity
from .words import A_NAT, A_ROB, A_SA, ball, literal

COLUMNS, SPARSE = 4, 15
NOTE = "bands: 95 % intervals over held-out images"
PANELS = {
    "loss": ("training loss", 1.0),
    "val_a_nat": (f"held-out {A_NAT} (%)", 100.0),
    "val_a_rob": (f"held-out {A_ROB} (%)", 100.0),
    "val_a_sa": (f"held-out {A_SA} (%)", 100.0),
    "attack_success": ("attack success (%)", 100.0),
    "weight_mean": ("mean weight", 1.0),
    "weight_max": ("largest weight", 1.0),
    "weight_ess": ("ESS of weights (%)", 100.0),
}
"""A field of the log, its axis, and its unit."""


def figures(material: Material) -> Iterator[Made]:
    """A figure for the runs that held-out numbers can be compared of, a line for each run."""
    together: dict[tuple[Any, ...], list[Training]] = {}
    for training in material.trainings:
        together.setdefault(_comparable(training), []).append(training)
    for trainings in together.values():
        logged = [training for training in trainings if training.entries]
        for training in trainings:
            if not training.entries:
                yield Undrawn(f"the log of {training.folder} is empty, so there is no training to draw")
        if logged:
            yield Drawing(f"training-{Spec.parse(logged[0].config.dataset).short}", _figure(logged))


def series(training: Training, field: str) -> list[tuple[int, dict[str, Any]]]:
    """The epochs that know this field."""
    return [(entry["epoch"], entry) for entry in training.entries if entry.get(field) is not None]


def _comparable(training: Training) -> tuple[Any, ...]:
    config = training.config
    return config.dataset, config.split_seed, config.norm, config.eps, config.evaluate


def _figure(trainings: Sequence[Training]) -> Figure:
    config = trainings[0].config
    shown = [field for field in PANELS if any(series(training, field) for training in trainings)]
    rows = -(-len(shown) // COLUMNS)
    facts = {
        "data": literal(config.dataset),
        "eps": ball(config.norm, config.eps),
        "alpha": rf"held-out {A_SA} at $\alpha$ = {exact(max(config.evaluate.alpha_test))}" if "val_a_sa" in shown else "",
    }
    named = {training.look.number: training for training in trainings}
    entries = [entry(training.look, training.label) for training in named.values()]
    figure = framed(WIDTH, 1.65 * rows, [facts], entries, NOTE if "val_a_nat" in shown else "")
    for number, axes in enumerate(figure.subplots(rows, COLUMNS, squeeze=False, sharex=True).flat):
        if number >= len(shown):
            blank(axes)
            continue
        draw(axes, trainings, shown[number])
        if number + COLUMNS >= len(shown):
            axes.set_xlabel("epoch")
            axes.tick_params(labelbottom=True)
    return figure


def draw(axes: Axes, trainings: Sequence[Training], field: str) -> None:
    """A field against the epoch, with its band where the log has one."""
    name, unit = PANELS[field]
    for training in trainings:
        found = series(training, field)
        epochs = [epoch for epoch, _ in found]
        values = [unit * entry[field] for _, entry in found]
        look = training.look.marked | ({"markevery": 1} if len(found) <= SPARSE else {})
        axes.plot(epochs, values, **look, label=training.label)
        if found and f"{field}_low" in found[0][1]:
            low, high = (np.array([unit * entry[f"{field}_{end}"] for _, entry in found]) for end in ("low", "high"))
            axes.fill_between(epochs, low, high, color=training.look.colour, alpha=opacity(len(trainings)), linewidth=0)
    axes.set_title(name)
    axes.xaxis.set_major_locator(MaxNLocator(4, integer=True))
    axes.margins(x=0.03)

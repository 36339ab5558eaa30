"""Populations of attacked images with a known A_cal, and how often intervals of samples hold it."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wmr_cli import measures
from wmr_cli.measures import Calibration, Outcome

CLASSES = 10
TRUTH_IMAGES = 50_000
RESAMPLES = 200


@dataclass(frozen=True)
class Network:
    """A network whose logits are `scale` times signal and noise.

    `signal` and `spread` are mean and standard deviation of the margin before noise: images differ
    in difficulty. `rivalry` strengthens one wrong class per image, as attacks do.
    """

    signal: float
    spread: float = 1.0
    rivalry: float = 0.0
    scale: float = 1.0


POPULATIONS = {
    "A_rob 36 %": Network(signal=1.0, spread=1.5, rivalry=1.0),
    "A_rob 56 %": Network(signal=2.0, spread=1.5, rivalry=1.0),
    "A_rob 92 %": Network(signal=5.0, spread=2.0, rivalry=1.0),
}


def draw_rows(networks: Sequence[Network], images: int, seed: int) -> list[dict[str, NDArray[Any]]]:
    """Draw images at random; return their rows for every network. Difficulty is shared."""
    rng = np.random.default_rng(seed)
    label = rng.integers(CLASSES, size=images)
    rival = (label + rng.integers(1, CLASSES, size=images)) % CLASSES
    difficulty = rng.normal(size=images)
    shared = rng.normal(size=(images, CLASSES))
    every = np.arange(images)
    found = []
    for network in networks:
        logits = np.sqrt(0.5) * (shared + rng.normal(size=(images, CLASSES)))
        logits[every, label] += network.signal + network.spread * difficulty
        logits[every, rival] += network.rivalry
        logits *= network.scale
        found.append(
            {
                "index": every,
                "label": label,
                "uniform/logits": logits,
                "uniform/prediction": logits.argmax(axis=1),
            }
        )
    return found


@cache
def find_truth(networks: tuple[Network, ...], alphas: tuple[float, ...]) -> NDArray[np.float64]:
    """Return A_cal of each network in the population, (networks, alphas)."""
    calibrations = map(measures.calibrate, draw_rows(networks, TRUTH_IMAGES, seed=10**6))
    values = [
        [make_outcome(one, alpha).estimate().value for alpha in alphas] for one in calibrations
    ]
    return np.array(values)


def make_outcome(calibration: Calibration, alpha: float, *, has_fit: bool = True) -> Outcome:
    """Return the outcome for A_cal; without its fit, the temperature is taken as given."""
    outcome = calibration.outcome(alpha)
    assert outcome is not None
    return outcome if has_fit else replace(outcome, fit=None)


def measure_coverage(
    network: Network, images: int, alphas: tuple[float, ...], samples: int
) -> NDArray[np.float64]:
    """Return how often intervals hold the truth, with the fit and without it, (2, alphas)."""
    (truth,) = find_truth((network,), alphas)
    hits = np.zeros((samples, 2, len(alphas)))
    for seed in range(samples):
        calibration = measures.calibrate(draw_rows((network,), images, seed)[0])
        for (side, number), _ in np.ndenumerate(hits[seed]):
            outcome = make_outcome(calibration, alphas[number], has_fit=side == 0)
            found = outcome.estimate()
            hits[seed, side, number] = found.low <= truth[number] <= found.high
    return np.asarray(hits.mean(axis=0))


def measure_paired_coverage(
    pair: tuple[Network, Network], images: int, alphas: tuple[float, ...], samples: int
) -> NDArray[np.float64]:
    """Return how often intervals of a difference on the same images hold the truth, (2, alphas).

    As in `measure_coverage`, with the fits and without them.
    """
    first, second = find_truth(pair, alphas)
    truth = first - second
    hits = np.zeros((samples, 2, len(alphas)))
    for seed in range(samples):
        calibrations = [measures.calibrate(rows) for rows in draw_rows(pair, images, seed)]
        resamples = measures.Resamples(images, seed, RESAMPLES)
        for (side, number), _ in np.ndenumerate(hits[seed]):
            one, other = resamples.of(
                [make_outcome(each, alphas[number], has_fit=side == 0) for each in calibrations]
            )
            found = one.minus(other)
            hits[seed, side, number] = found.low <= truth[number] <= found.high
    return np.asarray(hits.mean(axis=0))

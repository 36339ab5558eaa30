"""Compute the numbers of a record from its rows, and list caveats about them.

`evaluate` scores new rows, `report` scores stored rows at other alphas and radii. Arithmetic only:
no torch and no attack.
"""

from collections.abc import Hashable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from .. import measures
from ..config import EvaluateConfig
from ..errors import BadFile
from ..measures import AccuracyBounds, AlphaBounds, Bounds, Estimate, Outcome
from ..spec import format_number
from ..storage.records import (
    PASSES_CHECK,
    AlphaRow,
    CalibrationFacts,
    ClassAlphaRow,
    ClassRow,
    DroRow,
    Record,
    RepeatAlphaRow,
    RepeatRow,
    Rows,
)

OutcomeKey = TypeVar("OutcomeKey", bound=Hashable)
# None is the only alpha of a kernel without one
Alphas = Sequence[float | None]

Mask = NDArray[np.bool_]
# by metric and alpha: `("sa", 2.0)`, `("rob", None)`
Outcomes = dict[tuple[str, float | None], Outcome | None]

# with fewer effective images an interval of A_sa spans about 20 points
MIN_ESS = 100
MIN_ESS_FRACTION = 0.1


class Scores(NamedTuple):
    """Everything in a record that follows from its rows."""

    a_nat: Estimate | None
    a_rob: Estimate | None
    by_alpha: list[AlphaRow]
    dro: list[DroRow]
    per_class: list[ClassRow]


def compute_scores(
    rows: Rows, config: EvaluateConfig, alphas: Alphas, class_names: Mapping[int, str | None]
) -> Scores:
    """Compute what the metrics of `config` need; all else is None or empty."""
    outcomes = compute_outcomes(rows, config, alphas)
    estimates = estimate_outcomes(outcomes, config.ci, config.seed)
    scored_alphas = _list_alphas(outcomes)
    dro: list[DroRow] = []
    if "dro" in config.metrics:
        dro = score_dro(rows, config)
    per_class: list[ClassRow] = []
    if config.per_class:
        per_class = score_classes(rows, config, scored_alphas, class_names)
    return Scores(
        a_nat=estimates["nat", None],
        a_rob=estimates["rob", None],
        by_alpha=[
            AlphaRow(alpha_test=alpha, a_sa=estimates["sa", alpha], a_tr=estimates["tr", alpha])
            for alpha in scored_alphas
        ],
        dro=dro,
        per_class=per_class,
    )


def compute_outcomes(rows: Rows, config: EvaluateConfig, alphas: Alphas) -> Outcomes:
    """Return weights and correctness behind A_nat, A_rob, and A_sa and A_tr at each alpha.

    A metric that is not in `config`, or that the rows do not allow, is None.
    """
    metrics = set(config.metrics)
    outcomes: Outcomes = {("nat", None): measures.plain_outcome(rows, "clean"), ("rob", None): None}
    if "rob" in metrics:
        outcomes["rob", None] = measures.plain_outcome(rows, "uniform")
    if metrics.isdisjoint({"sa", "tr", "cal"}):
        return outcomes
    for alpha in alphas:
        outcomes["sa", alpha] = None
        outcomes["tr", alpha] = None
        if "sa" in metrics:
            outcomes["sa", alpha] = measures.sampled_outcome(rows, config.kernel, alpha)
        if "tr" in metrics:
            outcomes["tr", alpha] = measures.crafted_outcome(rows, config.kernel, alpha)
    return outcomes


def _list_alphas(outcomes: Outcomes) -> list[float | None]:
    return [alpha for name, alpha in outcomes if name == "sa"]


def estimate_outcomes(
    outcomes: Mapping[OutcomeKey, Outcome | None], ci: str, seed: int
) -> dict[OutcomeKey, Estimate | None]:
    """Estimate each outcome with its interval, by formula or by bootstrap; None stays None."""
    present = {name: outcome for name, outcome in outcomes.items() if outcome is not None}
    if ci == "bootstrap" and present:
        # one call: all outcomes are resampled on the same images
        resampled = measures.bootstrap(list(present.values()), seed)
        estimates = dict(zip(present, resampled, strict=True))
    else:
        estimates = {name: outcome.estimate() for name, outcome in present.items()}
    return {name: estimates.get(name) for name in outcomes}


def score_bounds(rows: Rows, config: EvaluateConfig, alphas: Alphas) -> Bounds | None:
    """Bound A_rob, and A_sa at each alpha, over all attacks; None for rows without a verifier."""
    if config.certify is None:
        return None
    margins = measures.VerifiedMargins.of(rows)
    if margins is None:
        return None
    # weights of other kernels do not follow from margins
    has_weights = config.kernel == measures.MARGIN_KERNEL
    pairs: dict[tuple[str, float | None], measures.BoundOutcomes] = {
        ("rob", None): margins.robust_outcomes()
    }
    for alpha in alphas if has_weights else ():
        if alpha is not None:
            pairs["sa", alpha] = margins.sampled_outcomes(alpha)
            fixed = margins.fixed_outcomes(alpha)
            if fixed is not None:
                pairs["fixed", alpha] = fixed
    outcomes = {
        (*name, i): outcome for name, pair in pairs.items() for i, outcome in enumerate(pair)
    }
    estimates = estimate_outcomes(outcomes, config.ci, config.seed)

    def bound(name: str, alpha: float | None) -> AccuracyBounds | None:
        lower = estimates.get((name, alpha, 0))
        upper = estimates.get((name, alpha, 1))
        if lower is None or upper is None:
            return None
        return measures.bound_accuracy(lower, upper, len(margins.lower))

    a_rob = bound("rob", None)
    assert a_rob is not None  # A_rob needs no weights
    certified = int(margins.certified.sum())
    broken = int(margins.broken.sum())
    return Bounds(
        verifier=config.certify,
        certified=certified,
        broken=broken,
        unknown=len(margins.lower) - certified - broken,
        a_rob=a_rob,
        by_alpha=[
            AlphaBounds(alpha_test=alpha, a_sa=bound("sa", alpha), a_sa_fixed=bound("fixed", alpha))
            for alpha in alphas
        ],
    )


def score_dro(rows: Rows, config: EvaluateConfig) -> list[DroRow]:
    """Compute the worst case at every radius; empty if the rows have no finite losses."""
    losses = measures.attacked_losses(rows, config.dro_loss)
    # one infinite loss would be the worst case at every radius
    if losses is None or not np.isfinite(losses).all():
        return []
    correct = measures.is_correct(rows, "uniform")
    rhos = measures.RHOS if config.rho is None else config.rho
    return [
        DroRow(
            rho=worst.rho,
            attack_loss=config.dro_loss,
            loss=worst.value,
            accuracy=worst.accuracy(correct),
            worst_accuracy=measures.worst_accuracy(correct, worst.rho),
            ess=worst.ess,
            zero_weights=worst.zero_weights,
            unique=worst.is_unique,
        )
        for worst in measures.worst_cases(losses, rhos)
    ]


def score_classes(
    rows: Rows, config: EvaluateConfig, alphas: Alphas, names: Mapping[int, str | None]
) -> list[ClassRow]:
    """Score every class that has images.

    Intervals come from formulas: the bootstrap does not reach the tails that simultaneous
    intervals of all classes need.
    """
    clean = measures.plain_outcome(rows, "clean")
    if clean is None:
        return []
    attacked = None
    if "rob" in config.metrics:
        attacked = measures.plain_outcome(rows, "uniform")
    sampled = {alpha: measures.sampled_outcome(rows, config.kernel, alpha) for alpha in alphas}
    # classes without images in the split have no accuracy
    labels = np.unique(rows["label"])
    class_rows = []
    for label in labels.tolist():
        members = rows["label"] == label
        correct = (attacked or clean).among(members).correct
        class_rows.append(
            ClassRow(
                label=label,
                name=names.get(label),
                n=int(members.sum()),
                a_nat=clean.among(members).estimate(),
                a_rob=None if attacked is None else attacked.among(members).estimate(),
                # Bonferroni over the classes: readers search for the worst one
                joint=measures.wilson(int(correct.sum()), len(correct), num_intervals=len(labels)),
                by_alpha=[
                    _score_class_at_alpha(alpha, outcome, members)
                    for alpha, outcome in sampled.items()
                ],
            )
        )
    return class_rows


def _score_class_at_alpha(
    alpha: float | None, outcome: Outcome | None, members: Mask
) -> ClassAlphaRow:
    """Score one class; `share` is its fraction of the total weight."""
    if outcome is None or outcome.log_weights is None:
        return ClassAlphaRow(alpha_test=alpha, a_sa=None, share=None)
    fraction = float(measures.normalized_weights(outcome.log_weights)[members].sum())
    # a kernel such as `cvar` may give a class no weight at all
    has_weight = bool((outcome.log_weights[members] > -np.inf).any())
    return ClassAlphaRow(
        alpha_test=alpha,
        a_sa=outcome.among(members).estimate() if has_weight else None,
        share=fraction,
    )


def score_repeat(rows: Rows, config: EvaluateConfig, alphas: Alphas, seed: int) -> RepeatRow:
    """Compute the values of one attack seed, without intervals."""
    outcomes = compute_outcomes(rows, config, alphas)
    values = {
        name: None if outcome is None else outcome.estimate().value
        for name, outcome in outcomes.items()
    }
    return RepeatRow(
        seed=seed,
        a_rob=values["rob", None],
        by_alpha=[
            RepeatAlphaRow(alpha_test=alpha, a_sa=values["sa", alpha], a_tr=values["tr", alpha])
            for alpha in _list_alphas(outcomes)
        ],
    )


def keep_scoring_rows(rows: Rows, *, needs_logits: bool = False) -> Rows:
    """Return the rows that the score of a repetition needs, to save memory between repetitions.

    A_cal, and the log-weights of a kernel that compares images, are computed last from logits.
    """
    needed = {"index", "label", "prediction", "margin"}
    if needs_logits:
        needed |= {"logits", "loss"}
    return {
        name: values
        for name, values in rows.items()
        if not name.startswith(("clean/", "certify/"))
        and (name.rpartition("/")[2] in needed or "/log_weight" in name)
    }


def rescore(
    record: Record,
    rows: Rows,
    config: EvaluateConfig,
    alphas: Alphas | None,
    rhos: Sequence[float] | None = None,
) -> Record:
    """Return the record at other alphas and radii; `config` comes from `stored_config`."""
    # of several attacks the image of lowest margin is stored, which need not be that of largest
    # loss: a worst case over attacks has DRO numbers only if they were computed with it
    if rhos is not None and (record.attack.of is None or record.dro):
        config = msgspec.structs.replace(config, rho=tuple(rhos))
        record = msgspec.structs.replace(record, dro=score_dro(rows, config))
    if alphas is not None:
        class_names = {row.label: row.name for row in record.per_class}
        scores = compute_scores(rows, config, alphas, class_names)
        record = msgspec.structs.replace(
            record,
            by_alpha=scores.by_alpha,
            per_class=scores.per_class,
            bounds=score_bounds(rows, config, alphas),
        )
    return record


def stored_config(file: Path, record: Record) -> EvaluateConfig:
    """Return the scoring settings of a record, with every accuracy that its rows allow."""
    settings: dict[str, Any] = {
        name: record.config[name] for name in ("ci", "dro_loss", "certify") if name in record.config
    }
    settings |= {
        "kernel": record.kernel,
        # the bootstrap is seeded by the attack seed, so that intervals come out equal
        "seed": record.attack.seed,
        "per_class": bool(record.per_class),
        "metrics": ("nat", "rob", "sa", "tr"),
    }
    try:
        return msgspec.convert(settings, EvaluateConfig)
    except msgspec.ValidationError as error:
        raise BadFile(
            f"the config in {file} is not valid in this version of wmr: {error}", hint="update wmr"
        ) from None


def add_calibrated(
    record: Record, rows: Rows, config: EvaluateConfig, stored: Record | None = None
) -> Record:
    """Return the record with A_cal at its alphas.

    Rows without logits allow only the numbers that `stored` has, from the evaluation.
    """
    calibration = measures.calibrate(rows, config.kernel)
    facts = CalibrationFacts(temperature=calibration.temperature, problem=calibration.problem)
    alphas = [row.alpha_test for row in record.by_alpha]
    outcomes = list_calibrated(calibration, alphas)
    estimates = estimate_outcomes(outcomes, config.ci, config.seed)
    if calibration.problem == measures.NO_LOGITS and stored is not None and stored.calibration:
        facts = stored.calibration
        estimates = {row.alpha_test: row.a_cal for row in stored.by_alpha}
    by_alpha = [
        msgspec.structs.replace(row, a_cal=estimates.get(row.alpha_test)) for row in record.by_alpha
    ]
    return msgspec.structs.replace(record, by_alpha=by_alpha, calibration=facts)


def add_calibrated_repeat(repeat: RepeatRow, rows: Rows, kernel: str) -> RepeatRow:
    """Return one seed of the attack with A_cal, at the temperature of this seed."""
    calibration = measures.calibrate(rows, kernel)
    outcomes = list_calibrated(calibration, [row.alpha_test for row in repeat.by_alpha])
    by_alpha = [
        msgspec.structs.replace(row, a_cal=None if outcome is None else outcome.estimate().value)
        for row, outcome in zip(repeat.by_alpha, outcomes.values(), strict=True)
    ]
    return msgspec.structs.replace(repeat, by_alpha=by_alpha)


def list_calibrated(
    calibration: measures.Calibration, alphas: Sequence[float | None]
) -> dict[float | None, Outcome | None]:
    """Return the outcome of A_cal at every alpha; None if it is not available."""
    # a kernel without alpha has weights that do not follow from margins
    return {alpha: None if alpha is None else calibration.outcome(alpha) for alpha in alphas}


def list_caveats(record: Record) -> Iterator[str]:
    """Yield what limits the numbers: few effective images, no interval, no DRO losses."""
    few_images: dict[str, float] = {}
    # one caveat for all accuracies with few effective images, not one for each alpha
    for name, estimate in _named_estimates(record):
        if estimate.degenerate:
            outcome = "correct" if estimate.value else "misclassified"
            yield f"{name}: all images are {outcome}, so the interval is not informative"
        elif estimate.ess is not None and has_low_ess(estimate.ess, record.dataset.n):
            few_images[name] = estimate.ess
    if "dro" in record.config.get("metrics", ()) and not record.dro:
        yield _explain_missing_dro(record)
    yield from _explain_missing_calibration(record)
    if any(check.name == PASSES_CHECK and check.verdict == "fail" for check in record.checks):
        yield (
            "the model is stochastic, and a gradient of one draw is weak: set `eot=20` to average"
            " over 20, and `draws=20` to decide about each image by 20"
        )
    if few_images:
        lowest = min(few_images.values())
        names = ", ".join(few_images)
        yield f"{names}: effective sample size down to {lowest:.0f} of {record.dataset.n} images"


def has_low_ess(ess: float, images: int) -> bool:
    """Whether the weights, not the size of the test set, make the effective sample small."""
    is_small_fraction = ess < MIN_ESS_FRACTION * images
    # of fewer images even equal weights would leave about that many
    is_small_number = ess < MIN_ESS and images >= 2 * MIN_ESS
    return is_small_fraction or is_small_number


def _explain_missing_dro(record: Record) -> str:
    if record.attack.of is None:
        reason = "the attack stores no losses, or a loss is not finite"
    else:
        reason = (
            "over several attacks the image of lowest margin is stored, which need not be that of "
            "largest loss"
        )
    return f"no worst case in the χ² ball: {reason}; `dro_loss=zero-one` is available"


def _explain_missing_calibration(record: Record) -> Iterator[str]:
    """Yield why A_cal was requested and is not available at some alpha."""
    if not record.calibration:
        return
    if not record.by_alpha:
        yield "A_cal is not available: the record has no values of α; set `alpha_test`"
    missing = [row.alpha_test for row in record.by_alpha if row.a_cal is None]
    if not missing:
        return
    alphas = ", ".join(format_number(alpha) for alpha in missing if alpha is not None)
    where = f" at α {alphas}" if alphas else ""
    # without a problem, the evaluation had logits that its compact rows do not hold
    yield f"A_cal is not available{where}: {record.calibration.problem or measures.NO_LOGITS}"


def _named_estimates(record: Record) -> Iterator[tuple[str, Estimate]]:
    """Yield every accuracy of a record with its heading."""
    named = [("A_nat", record.a_nat), ("A_rob", record.a_rob)]
    for row in record.by_alpha:
        at_alpha = "" if row.alpha_test is None else f"({row.alpha_test:g})"
        weighted = {"A_sa": row.a_sa, "A_cal": row.a_cal, "A_tr": row.a_tr}
        named += [(f"{name}{at_alpha}", estimate) for name, estimate in weighted.items()]
    for name, estimate in named:
        if estimate is not None:
            yield name, estimate

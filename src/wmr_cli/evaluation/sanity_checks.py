"""Sanity checks: was the attack weak rather than the model robust?

Each check is a number and a verdict, measured on a subset of the images. A check fails if an
attack that should be weaker reduces accuracy below the confidence interval of the attack that
was run. The reported robustness is then an artefact of the attack (gradient masking).

The names and texts of checks are stored in records: changing one changes stored files.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from .. import measures
from ..core.contexts import evaluating, exact_float32
from ..core.data.splits import balanced_subset
from ..core.losses import get_objective
from ..core.protocols import Attack, Batch, Objective
from ..core.run_attack import predictions
from ..core.traits import read_parameter
from ..measures import Estimate
from ..registry import Registry
from ..runtime import components
from ..spec import Spec
from ..storage.records import PASSES_CHECK, Check, Rows
from .evaluator import Evaluator
from .tasks import EvaluationTask

NUM_IMAGES = 256
"""Size of the class-balanced subset. All checks together then take seconds, not minutes."""
WEAKER_ATTACKS = {
    "noise does not win": "noise",
    "one step does not win": "fgsm",
    "a black box does not win": "square:queries=1000",
}
"""Attacks that need no gradient, or one only. Each should leave a higher accuracy."""
TEMPERATURES = (0.5, 1.0, 2.0)
EFFORT_PARAMS = ("steps", "queries", "restarts")
"""Parameters that strengthen an attack when they grow."""
MAX_ZERO_GRADIENT_FRACTION = 0.1
"""Largest fraction of images without a gradient that still passes."""
MAX_PASS_DIFFERENCE = 1e-4
"""Largest difference between two forward passes that still counts as deterministic."""
BACKWARD_FUNCTIONS = frozenset(
    {torch.autograd.grad, torch.autograd.backward, torch.Tensor.backward}
)


@dataclass(frozen=True)
class CheckedModel:
    """A model, the attack that it was evaluated with, and the images of the checks."""

    evaluator: Evaluator
    registry: Registry
    batches: list[Batch]
    task: EvaluationTask

    def accuracy(self, attack: Attack, eps: float) -> Estimate:
        """Robust accuracy of the subset under another attack."""
        evaluator = replace(self.evaluator, attack=attack, eps=eps)
        objective = get_objective(attack.traits.objective)
        correct = []
        for batch in self.batches:
            with evaluating(evaluator.model), exact_float32():
                logits = evaluator.attack_logits(objective, batch, int(batch.index[0]))
            correct.append(predictions(logits) == batch.labels)
        return measures.plain_accuracy(torch.cat(correct).cpu().numpy())

    def make_attack(self, spec: str, eps: float | None = None) -> Attack:
        """Create another attack with the same norm, and the same eps unless one is given."""
        if eps is None:
            eps = self.task.attack.eps
        return components.build_attack(
            self.registry, Spec.parse(spec), norm=self.task.attack.norm, eps=eps
        )


def run_checks(
    task: EvaluationTask, registry: Registry, evaluator: Evaluator, rows: Rows, device: torch.device
) -> Iterator[Check]:
    """Yield the results of all checks for one record."""
    # a fixed seed: records of one dataset are checked on the same images
    chosen = balanced_subset(task.images.split.labels[task.images.positions], NUM_IMAGES, seed=0)
    batches = [
        task.images.split.batch(part).to(device)
        for part in task.images.positions[chosen].split(task.config.batch_size)
    ]
    checked = CheckedModel(evaluator, registry, batches, task)
    # measured again on the subset: the record's accuracy is that of all images
    baseline = checked.accuracy(task.attack.component, task.attack.eps)
    yield _check_outputs(checked)
    yield _check_determinism(checked)
    yield _check_no_autograd(checked)
    yield _check_gradients(checked)
    yield from _check_weaker_attacks(checked, baseline)
    yield _check_more_effort(checked, baseline)
    yield from _check_more_draws(checked, baseline)
    yield _check_unbounded_attack(checked)
    yield from _measure_temperatures(task, rows)


def _check_outputs(checked: CheckedModel) -> Check:
    """Check that outputs are logits: probabilities flatten losses that expect logits."""
    model = checked.evaluator.model
    with torch.no_grad(), evaluating(model):
        logits = torch.cat([model(batch.images) for batch in checked.batches])
    is_in_range = ((logits >= 0) & (logits <= 1)).all(dim=1)
    sums_to_one = (logits.sum(dim=1) - 1).abs() < 1e-4
    # to the CPU first: not every device has float64
    fraction = float((is_in_range & sums_to_one).cpu().double().mean())
    # one image is enough to pass: logits may lie in [0, 1] and sum to one by chance
    return _make_check(
        "outputs are logits",
        fraction,
        fraction < 1,
        "fraction of images whose outputs are probabilities",
    )


def _check_determinism(checked: CheckedModel) -> Check:
    """Check that the model is not stochastic, or that the attack averages over its draws."""
    model = checked.evaluator.model
    largest = 0.0
    with torch.no_grad(), evaluating(model), exact_float32():
        for batch in checked.batches:
            largest = max(largest, float((model(batch.images) - model(batch.images)).abs().max()))
    # not exactly zero: some GPU kernels add in a varying order
    is_deterministic = largest < MAX_PASS_DIFFERENCE
    text = "largest difference between two passes"
    draws = checked.task.attack.component.traits.eot
    if is_deterministic or draws == 1:
        return _make_check(PASSES_CHECK, largest, is_deterministic, text)
    text = f"{text}: stochastic, so each gradient is the mean of {draws} draws"
    return Check(PASSES_CHECK, largest, "note", text)


class BackwardCounter(TorchFunctionMode):
    """Count the backward passes that are started while this mode is active.

    A mode sees calls by any imported name. Torch disables it inside its own functions, so that
    `Tensor.backward`, which calls `torch.autograd.backward`, counts once. Releases of torch that
    do not dispatch `torch.autograd.backward` to modes hide direct calls of that function. A mode
    belongs to one thread: calls in other threads that the model starts are not counted.
    """

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def __torch_function__(
        self,
        func: Callable[..., object],
        types: Sequence[type],
        args: Sequence[object] = (),
        kwargs: Mapping[str, object] | None = None,
    ) -> object:
        """Count a call of autograd, and run every function unchanged."""
        if func in BACKWARD_FUNCTIONS:
            self.calls += 1
        return func(*args, **(kwargs or {}))


def _check_no_autograd(checked: CheckedModel) -> Check:
    """Check that the forward pass does not optimise: the attack's gradient cannot follow that."""
    model = checked.evaluator.model
    # no_grad as in deployment: a model that optimises has to enable gradients by itself
    with evaluating(model), torch.no_grad(), BackwardCounter() as counter:
        model(checked.batches[0].images)
    return _make_check(
        "no autograd inside",
        float(counter.calls),
        counter.calls == 0,
        "calls of autograd in one forward pass",
    )


def _check_gradients(checked: CheckedModel) -> Check:
    """Check that the images have gradients: without one, gradient attacks stay at the start."""
    objective = get_objective(checked.task.attack.component.traits.objective)
    model = checked.evaluator.model
    unusable = [_has_no_gradient(model, batch, objective) for batch in checked.batches]
    fraction = float(torch.cat(unusable).cpu().double().mean())
    return _make_check(
        "gradients are there",
        fraction,
        fraction <= MAX_ZERO_GRADIENT_FRACTION,
        "fraction of images whose gradient is zero or not finite",
    )


def _has_no_gradient(model: nn.Module, batch: Batch, objective: Objective) -> Tensor:
    """Return for each image whether its gradient is zero or not finite, (N,)."""
    images = batch.images.clone().requires_grad_()
    with evaluating(model), exact_float32():
        (gradient,) = torch.autograd.grad(objective(model(images), batch.labels).sum(), images)
    flat = gradient.flatten(1)
    return (flat == 0).all(dim=1) | ~flat.isfinite().all(dim=1)


def _check_weaker_attacks(checked: CheckedModel, baseline: Estimate) -> Iterator[Check]:
    """Compare with attacks that should be weaker; a lower accuracy means masked gradients."""
    for name, spec in WEAKER_ATTACKS.items():
        accuracy = checked.accuracy(checked.make_attack(spec), checked.task.attack.eps).value
        text = f"accuracy under {spec}; {_describe_baseline(baseline)}"
        # the interval allows for chance: the two attacks differ in a few images anyway
        yield _make_check(name, accuracy, accuracy >= baseline.low, text)


def _check_more_effort(checked: CheckedModel, baseline: Estimate) -> Check:
    """Double the steps, queries and restarts: an attack that has converged gains nothing."""
    name = "more steps do not help"
    task = checked.task
    spec = Spec.parse(task.attack.spec)
    settable = [key for key in EFFORT_PARAMS if checked.registry.accepts("attack", spec.name, key)]
    # an attack that forwards its options accepts any key, so its attributes decide as well
    doubled = {
        key: 2 * value for key in settable if (value := read_parameter(task.attack.component, key))
    }
    if not doubled:
        return Check(name, baseline.value, "note", "the attack has no steps or restarts to double")
    # without its own step size, the attack derives one that suits the new number of steps
    stronger = spec.without("step", *doubled).with_params(
        **{key: str(value) for key, value in doubled.items()}
    )
    accuracy = checked.accuracy(checked.make_attack(str(stronger)), task.attack.eps).value
    efforts = ", ".join(f"{value} {key}" for key, value in doubled.items())
    text = f"accuracy with {efforts}; {_describe_baseline(baseline)}"
    return _make_check(name, accuracy, accuracy >= baseline.low, text)


def _check_more_draws(checked: CheckedModel, baseline: Estimate) -> Iterator[Check]:
    """Double the draws per gradient of an attack on a stochastic model."""
    task = checked.task
    spec = Spec.parse(task.attack.spec)
    draws = 2 * task.attack.component.traits.eot
    if draws == 2 or not checked.registry.accepts("attack", spec.name, "eot"):
        return
    stronger = str(spec.without("eot").with_params(eot=str(draws)))
    accuracy = checked.accuracy(checked.make_attack(stronger), task.attack.eps).value
    text = f"accuracy with {draws} draws per gradient; {_describe_baseline(baseline)}"
    yield _make_check("more draws do not help", accuracy, accuracy >= baseline.low, text)


def _check_unbounded_attack(checked: CheckedModel) -> Check:
    """Attack with an ε-ball that holds every image: accuracy has to fall to chance."""
    task = checked.task
    eps = 1.0
    if task.attack.norm != "linf":
        # the L2 diagonal of the unit cube of pixels
        eps = float(checked.batches[0].images[0].numel() ** 0.5)
    spec = str(Spec.parse(task.attack.spec).without("step"))
    found = checked.accuracy(checked.make_attack(spec, eps=eps), eps)
    chance = 1 / checked.evaluator.num_classes
    text = f"accuracy at eps {eps:g}, chance is {chance:g}"
    return _make_check("a huge ball leaves nothing", found.value, found.low <= chance, text)


def _describe_baseline(baseline: Estimate) -> str:
    return f"under the attack {baseline.value:.3f}, lower bound {baseline.low:.3f}"


def _measure_temperatures(task: EvaluationTask, rows: Rows) -> Iterator[Check]:
    """Measure how A_sa depends on the scale of the logits, which changes no prediction.

    A_sa does not depend on that scale at the temperature that fits best, which is A_cal, or by
    ranks.
    """
    alpha = max((alpha for alpha in task.kernels if alpha is not None), default=None)
    is_margin_kernel = task.config.kernel == measures.MARGIN_KERNEL
    if alpha is None or not is_margin_kernel or "uniform/logits" not in rows:
        return
    for temperature in TEMPERATURES:
        yield Check(
            f"A_sa({alpha:g}) at temperature {temperature:g}",
            measures.tempered_accuracy(rows, alpha, temperature).value,
            "note",
            "logits divided by it; no decision changes",
        )
    best = measures.calibrate(rows).temperature
    if best is not None:
        yield Check(
            "temperature that fits best",
            best,
            "note",
            "there A_sa does not depend on the scale of the logits: it is A_cal, the metric cal",
        )
    yield Check(
        f"A_sa({alpha:g}) by ranks",
        measures.ranked_accuracy(rows, alpha).value,
        "note",
        "margins replaced by their ranks: independent of scale, but determined by A_rob",
    )


def _make_check(name: str, value: float, is_passed: bool, text: str) -> Check:
    return Check(name, value, "pass" if is_passed else "fail", text)

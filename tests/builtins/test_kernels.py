"""Every kernel on three images with hand-computed weights, in training and alone."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from torch import Tensor, nn

from support.builtin_names import list_builtins
from support.special_files import IRREGULAR, time_limit
from wmr_cli.builtins.attacks.pgd import Pgd
from wmr_cli.builtins.kernels.exp import Exponential, ExponentialOfLogits, Uniform
from wmr_cli.builtins.kernels.focal import Focal
from wmr_cli.builtins.kernels.gairat import Gairat
from wmr_cli.builtins.kernels.mail import Mail
from wmr_cli.builtins.kernels.table import Table
from wmr_cli.builtins.kernels.wat import Wat
from wmr_cli.builtins.kernels.worst_case import ChiSquared, Cvar, Tilt
from wmr_cli.config import TrainConfig
from wmr_cli.core.losses import KlObjective, cross_entropy
from wmr_cli.core.pgd import input_gradient
from wmr_cli.core.protocols import AttackResult, Batch, Evidence, Kernel, Objective
from wmr_cli.core.traits import AttackTraits
from wmr_cli.errors import BadFile, BadInput
from wmr_cli.registry import Registry
from wmr_cli.runtime import components, fabric
from wmr_cli.testing import tiny_batch, tiny_model
from wmr_cli.training.learner import FabricLearner
from wmr_cli.training.optimization import StepSettings
from wmr_cli.training.setup import build_training_attack, build_training_kernel

LOGITS = [[2.0, 0.5, -1.0], [0.3, 0.9, 0.1], [-0.5, 0.2, 1.7]]
CLEAN = [[2.5, 0.1, -1.0], [0.8, 0.6, 0.1], [-0.5, 0.0, 2.2]]
LABELS = [0, 0, 2]
INDEX = [10, 42, 7]
LOSSES = [0.4, 2.5, 1.1]
"""Weighted losses of the images, as a defense reports them."""


def softmax(z: list[float]) -> list[float]:
    total = sum(math.exp(value) for value in z)
    return [math.exp(value) / total for value in z]


def ce(z: list[float], y: int) -> float:
    return -math.log(softmax(z)[y])


def best_other(values: list[float], y: int) -> float:
    return max(value for c, value in enumerate(values) if c != y)


def kl(z: list[float], a: list[float]) -> float:
    return sum(p * math.log(p / q) for p, q in zip(softmax(z), softmax(a), strict=True))


def sigmoid(value: float) -> float:
    return 1 / (1 + math.exp(-value))


def mean_one(values: list[float]) -> list[float]:
    return [value * len(values) / sum(values) for value in values]


MARGINS = [softmax(z)[y] - best_other(softmax(z), y) for z, y in zip(LOGITS, LABELS, strict=True)]
LOGIT_MARGINS = [1.5, -0.6, 1.5]
TRUE_PROBABILITIES = [softmax(z)[y] for z, y in zip(LOGITS, LABELS, strict=True)]


def evidence(
    logits: list[list[float]] = LOGITS,
    labels: list[int] = LABELS,
    survived: list[int] | None = None,
    loss: list[float] | None = LOSSES,
    index: list[int] | range = INDEX,
) -> Evidence:
    return Evidence(
        torch.tensor(logits, dtype=torch.float64, requires_grad=True),
        torch.tensor(labels),
        torch.tensor(index),
        clean_logits=torch.tensor(CLEAN, dtype=torch.float64),
        steps_survived=None if survived is None else torch.tensor(survived),
        loss=None if loss is None else torch.tensor(loss, dtype=torch.float64, requires_grad=True),
    )


def learner_of(kernel: Kernel, **settings: Any) -> FabricLearner:
    model = tiny_model().train()
    attack = Pgd(eps=0.1, steps=3, step=0.04, start="gauss:0.001")
    config = TrainConfig(eps=0.1, seed=5, **settings)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return FabricLearner(
        fabric.single_process("cpu"),
        config,
        model=model,
        optimizer=optimizer,
        attack=attack,
        kernel=kernel,
        num_classes=4,
    )


def log_weights(kernel: Kernel, seen: Evidence) -> list[float]:
    return kernel(seen).tolist()


def weights(kernel: Kernel, seen: Evidence) -> Tensor:
    """Return the weights of a training step after any burn-in."""
    learner = learner_of(kernel)
    learner.begin_step(1000, 0, StepSettings(0.1), batch_size=3)
    return learner.weights(seen)


@pytest.fixture
def table(tmp_path: Path) -> Callable[..., Any]:
    def write(text: str, **more: Any) -> Table:
        path = tmp_path / "weights.csv"
        path.write_text(text)
        return Table(path, **more)

    return write


WEIGHTS_BY_HAND: dict[Kernel, list[float]] = {
    Uniform(): [1.0, 1.0, 1.0],
    Exponential(0.0): [1.0, 1.0, 1.0],
    Exponential(2.0): [math.exp(-2 * m) for m in MARGINS],
    ExponentialOfLogits(): [math.exp(-m) for m in LOGIT_MARGINS],
    ExponentialOfLogits(1.5): [math.exp(-1.5 * m) for m in LOGIT_MARGINS],
    ExponentialOfLogits(1.5, clip=1.0): [math.exp(-1.5), math.exp(0.9), math.exp(-1.5)],
    ExponentialOfLogits(3.0, clip=0.25): [math.exp(-0.75), math.exp(0.75), math.exp(-0.75)],
    Mail(): [3 * sigmoid(10 * (-0.5 - m)) for m in MARGINS],
    Mail(slope=2, bias=0): [3 * sigmoid(-2 * m) for m in MARGINS],
    Mail(scale="const:1/2"): [sigmoid(10 * (-0.5 - m)) / 2 for m in MARGINS],
    Mail(scale="mean1"): mean_one([sigmoid(10 * (-0.5 - m)) for m in MARGINS]),
    Mail(slope=2, bias=0.3, scale="mean1"): mean_one([sigmoid(2 * (0.3 - m)) for m in MARGINS]),
    Focal(): [(1 - p) ** 2 for p in TRUE_PROBABILITIES],
    Focal(0.5): [(1 - p) ** 0.5 for p in TRUE_PROBABILITIES],
    Focal(0.0): [1.0, 1.0, 1.0],
    Tilt(): mean_one([math.exp(loss) for loss in LOSSES]),
    Tilt(0.3): mean_one([math.exp(0.3 * loss) for loss in LOSSES]),
    Tilt(0.0): [1.0, 1.0, 1.0],
    Cvar(1 / 3): [0.0, 3.0, 0.0],
    Cvar(): [0.0, 2.0, 1.0],  # 1.5 images: the worst, and half of the next
    Cvar(0.8): [0.5, 1.25, 1.25],  # 2.4 images: two, and two fifths of the last
    Cvar(0.1): [0.0, 3.0, 0.0],  # a third of one image
    Cvar(1.0): [1.0, 1.0, 1.0],
    ChiSquared(0.0): [1.0, 1.0, 1.0],
    ChiSquared(1.0): [0.0, 3.0, 0.0],  # beyond the largest radius of three images
}


@pytest.mark.parametrize("kernel", WEIGHTS_BY_HAND, ids=str)
def test_weights_agree_with_hand_computed_ones(kernel: Kernel) -> None:
    assert weights(kernel, evidence()).tolist() == pytest.approx(WEIGHTS_BY_HAND[kernel], rel=1e-9)


@pytest.mark.parametrize(
    "kernel", [kernel for kernel in WEIGHTS_BY_HAND if not kernel.traits.normalized], ids=str
)
def test_a_kernel_returns_log_weights(kernel: Kernel) -> None:
    expected = [math.log(weight) if weight else -math.inf for weight in WEIGHTS_BY_HAND[kernel]]
    assert log_weights(kernel, evidence()) == pytest.approx(expected, rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("kernel", [Tilt(1.3), Cvar(0.5), ChiSquared(0.1)], ids=str)
def test_the_loss_defaults_to_the_cross_entropy(kernel: Kernel) -> None:
    losses = [ce(z, y) for z, y in zip(LOGITS, LABELS, strict=True)]
    assert log_weights(kernel, evidence(loss=None)) == pytest.approx(
        log_weights(kernel, evidence(loss=losses)), rel=1e-9
    )
    assert log_weights(kernel, evidence(loss=None)) != log_weights(
        kernel, evidence(loss=[3.0, 0.1, 1.0])
    )


@pytest.mark.parametrize("steps", [4, 3])
@pytest.mark.parametrize("form", ["tanh", "sigmoid", "discrete"])
def test_gairat_counts_the_steps_that_an_image_survived(
    form: Literal["tanh", "sigmoid", "discrete"], steps: int
) -> None:
    survived = [0, 1, steps]
    formulas: dict[str, Callable[[int], float]] = {
        "tanh": lambda k: (1 + math.tanh(-1 + 5 * (1 - 2 * k / steps))) / 2,
        "sigmoid": lambda k: sigmoid(-1 + 5 * (1 - 2 * k / steps)),
        "discrete": lambda k: (steps + 1 - k) / (steps + 1),
    }
    expected = [formulas[form](k) for k in survived]
    kernel = Gairat(steps=steps, form=form)
    seen = evidence(survived=survived)
    assert log_weights(kernel, seen) == pytest.approx(
        [math.log(weight) for weight in expected], rel=1e-9
    )
    assert weights(kernel, seen).tolist() == pytest.approx(mean_one(expected), rel=1e-9)
    assert expected == sorted(expected, reverse=True), "fewer survived steps give more weight"


def test_the_shift_of_gairat_is_added_to_the_argument() -> None:
    expected = [(1 + math.tanh(0.5 + 5 * (1 - 2 * k / 10))) / 2 for k in (2, 5, 10)]
    assert log_weights(Gairat(shift=0.5), evidence(survived=[2, 5, 10])) == pytest.approx(
        [math.log(w) for w in expected]
    )


def test_gairat_is_finite_where_tanh_saturates() -> None:
    """(1 + tanh(-40)) / 2 is 0 in float64, and its logarithm is not -inf."""
    found = log_weights(Gairat(shift=-35), evidence(survived=[0, 5, 10]))
    assert found == pytest.approx([-60, -70, -80], rel=1e-9)


@pytest.mark.parametrize(
    ("losses", "fraction", "expected"),
    [
        ([1.0, 1.0, 0.0], 1 / 3, [1.5, 1.5, 0.0]),
        ([1.0, 1.0, 0.0], 0.5, [1.5, 1.5, 0.0]),
        ([1.0, 2.0, 1.0], 2 / 3, [0.75, 1.5, 0.75]),
        ([1.0, 2.0, 1.0], 0.5, [0.5, 2.0, 0.5]),
        ([0.3, 0.3, 0.3], 0.2, [1.0, 1.0, 1.0]),
        ([5.0, 4.0, 3.0, 2.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0], 0.3, [10 / 3] * 3 + [0.0] * 7),
        ([5.0, 4.0, 3.0, 2.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0], 0.6, [10 / 6] * 5 + [1 / 3] * 5),
    ],
)
def test_cvar_divides_the_remaining_weight_among_ties(
    losses: list[float], fraction: float, expected: list[float]
) -> None:
    size = len(losses)
    seen = evidence([[0.0, 1.0]] * size, [0] * size, loss=losses, index=range(size))
    assert weights(Cvar(fraction), seen).tolist() == pytest.approx(expected, abs=1e-12)
    assert sum(expected) == pytest.approx(size)


PUBLISHED = [
    ([0, 1, 2, 3], 0.2, [0.0378680, 0.1792893, 0.3207107, 0.4621320]),
    ([0, 1, 2, 3], 1.5, [0, 0, 0, 1]),
    ([1, 1, 0, 0], 0.1, [0.3618034, 0.3618034, 0.1381966, 0.1381966]),
    ([1, 1, 0, 0], 0.5, [0.5, 0.5, 0, 0]),
    ([1, 1, 0, 0], 3.0, [0.5, 0.5, 0, 0]),
    ([2, 2, 2, 2], 0.7, [0.25] * 4),
]


@pytest.mark.parametrize(("losses", "rho", "fractions"), PUBLISHED)
def test_chi_squared_weights_are_the_published_ones_times_n(
    losses: list[int], rho: float, fractions: list[float]
) -> None:
    seen = evidence(
        [[0.0, 1.0]] * 4, [0] * 4, loss=[float(loss) for loss in losses], index=range(4)
    )
    assert weights(ChiSquared(rho), seen).tolist() == pytest.approx(
        [4 * fraction for fraction in fractions], abs=4e-7
    )


def test_chi_squared_weights_of_three_images_in_closed_form() -> None:
    """Without clipping, a weight is 1 + sqrt(2 rho) * (loss - mean) / deviation."""
    mean = sum(LOSSES) / 3
    deviation = math.sqrt(sum((loss - mean) ** 2 for loss in LOSSES) / 3)
    expected = [1 + math.sqrt(2 * 0.1) * (loss - mean) / deviation for loss in LOSSES]
    assert weights(ChiSquared(0.1), evidence()).tolist() == pytest.approx(expected, rel=1e-9)


def test_focal_weights_are_finite_where_probabilities_saturate() -> None:
    saturated = [[20.0, 0.0, 0.0], [1000.0, 0.0, -1000.0], [1000.0, 0.0, -1000.0]]
    # float32, as in training
    seen = Evidence(torch.tensor(saturated, requires_grad=True), torch.tensor([0, 0, 2]))
    found = Focal()(seen)
    rest = 2 * math.exp(-20) / (1 + 2 * math.exp(-20))
    assert found.tolist() == pytest.approx([2 * math.log(rest), -2000.0, 0.0], rel=1e-5)
    weighted_loss = (found.exp() * cross_entropy(seen.logits, seen.labels)).sum()
    (gradient,) = torch.autograd.grad(weighted_loss, seen.logits)
    assert weighted_loss.isfinite()
    assert gradient.isfinite().all()


@pytest.mark.parametrize("sharpness", [0.5, 3.0])
def test_tilted_weights_give_the_gradient_of_the_tilted_loss(sharpness: float) -> None:
    generator = torch.Generator().manual_seed(4)
    logits = torch.randn(20, 3, dtype=torch.float64, generator=generator).requires_grad_()
    labels = torch.randint(3, (20,), generator=generator)

    def losses() -> Tensor:
        return nn.functional.cross_entropy(logits, labels, reduction="none")

    tilted = torch.log(torch.exp(sharpness * losses()).mean()) / sharpness
    (expected,) = torch.autograd.grad(tilted, logits)
    found = weights(Tilt(sharpness), Evidence(logits, labels, loss=losses()))
    assert not found.requires_grad
    (gradient,) = torch.autograd.grad((found * losses()).mean(), logits)
    torch.testing.assert_close(gradient, expected)


@pytest.mark.parametrize("sharpness", [50.0, 1000.0])
def test_a_sharp_tilt_puts_all_weight_on_the_largest_loss(sharpness: float) -> None:
    assert weights(Tilt(sharpness), evidence()).tolist() == pytest.approx([0.0, 3.0, 0.0], abs=1e-9)


def wat_class_losses(
    beta: float, clean: list[list[float]], attacked: list[list[float]]
) -> list[float]:
    """Return the mean loss of each class, and of all images."""
    losses = [ce(z, y) + beta * kl(z, a) for z, a, y in zip(clean, attacked, LABELS, strict=True)]
    # no image is of class 1
    return [(losses[0] + losses[1]) / 2, 0.0, losses[2], sum(losses) / 3]


def wat_weights(eta: float, class_losses: list[float]) -> list[float]:
    powers = [math.exp(eta * loss) for loss in class_losses]
    experts = [3 * power / sum(powers) for power in powers]
    return [experts[y] + experts[3] for y in LABELS]


def test_wat_weights_classes_by_their_validation_loss() -> None:
    kernel = Wat(eta=0.5, beta=2.0)
    seen = evidence()
    # before any validation loss: three classes and their mean, equally weighted
    assert weights(kernel, seen).tolist() == pytest.approx([2 * 3 / 4] * 3)
    first = wat_class_losses(2.0, CLEAN, LOGITS)
    kernel.observe(seen)
    assert weights(kernel, seen).tolist() == pytest.approx(wat_weights(0.5, first), rel=1e-9)
    other = [[1.0, 1.2, 0.3], [0.0, 2.0, 0.1], [0.2, 0.2, 0.4]]
    kernel.observe(
        Evidence(torch.tensor(other), torch.tensor(LABELS), clean_logits=torch.tensor(CLEAN))
    )
    second = wat_class_losses(2.0, CLEAN, other)
    both = [one + two for one, two in zip(first, second, strict=True)]
    assert weights(kernel, seen).tolist() == pytest.approx(wat_weights(0.5, both), rel=1e-6)
    assert log_weights(kernel, seen)[0] == log_weights(kernel, seen)[1], (
        "images of one class have one weight"
    )


def test_the_state_of_wat_is_restored() -> None:
    kernel = Wat()
    restored = Wat()
    assert kernel.state() == {}
    kernel.observe(evidence())
    restored.load_state({name: tensor.clone() for name, tensor in kernel.state().items()})
    assert log_weights(restored, evidence()) == log_weights(kernel, evidence())
    assert log_weights(restored, evidence()) != log_weights(Wat(), evidence())


def test_a_table_gives_weights_by_index(table: Callable[..., Any]) -> None:
    kernel = table("index,weight\n42,2.5\n7, 1/4\n1000,9\n")
    assert weights(kernel, evidence()).tolist() == pytest.approx([0.0, 2.5, 0.25])
    assert log_weights(kernel, evidence())[0] == -math.inf
    rest = table("weight,note,index\n2.5,mine,42\n0,,7\n", rest=0.5)
    assert weights(rest, evidence()).tolist() == pytest.approx([0.5, 2.5, 0.0])


def test_images_that_a_table_does_not_list_have_no_weight(
    table: Callable[..., Any],
) -> None:
    kernel = table("index,weight\n8,1\n")
    assert weights(kernel, evidence()).tolist() == [0.0, 0.0, 0.0]
    learner = learner_of(kernel, normalize="batch")
    assert learner.weights(evidence()).tolist() == [0.0, 0.0, 0.0], "the mean is 0"


def test_a_table_may_begin_with_a_byte_order_mark(tmp_path: Path) -> None:
    path = tmp_path / "weights.csv"
    path.write_text("index,weight\r\n42,2\r\n", encoding="utf-8-sig")
    assert weights(Table(path), evidence()).tolist() == pytest.approx([0.0, 2.0, 0.0])


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("", "is empty"),
        ("index,weight\n", "is empty"),
        ("image,weight\n1,2\n", "no column 'index'"),
        ("index,cost\n1,2\n", "no column 'weight'"),
        ("1,2\n3,4\n", "no column 'index'"),
        ("index,weight\n1,2\n3,4\n1,2\n", "lists an image twice"),
        ("index,weight\n1,2\n3,-4\n", "has a negative weight"),
        ("index,weight\n1,heavy\n", "is not a table of weights: 'heavy' is not a number"),
        ("index,weight\n1,nan\n", "is not a table of weights: 'nan' is not a finite number"),
        ("index,weight\n1,inf\n", "is not a table of weights: 'inf' is not a finite number"),
        ("index,weight\n1,\n", "is not a table of weights"),
        ("index,weight\n1\n", "is not a table of weights"),
        ("index,weight\n1.5,2\n", "is not a table of weights"),
        ("index,weight\n,2\n", "is not a table of weights"),
        (b"\xff\xfe\x00\x01", "is not a table of weights"),
        ("index,weight\n-1,2\n", "index -1"),
        (f"index,weight\n{10**30},2\n", f"index {10**30}"),
        (f"index,weight\n{'9' * 5000},2\n", "is not a table of weights"),
    ],
)
def test_a_file_that_is_not_a_table_is_refused(
    content: bytes | str, problem: str, tmp_path: Path
) -> None:
    path = tmp_path / "weights.csv"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(BadFile) as refused:
        Table(path)
    assert str(refused.value).startswith(f"{path} ")
    assert problem in str(refused.value)
    assert "\n" not in str(refused.value)
    assert refused.value.hint


@pytest.mark.parametrize("name", ["nowhere.csv", "."])
def test_a_missing_table_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(BadFile, match="cannot read") as refused:
        Table(tmp_path / name)
    assert "`path`" in refused.value.hint


@pytest.mark.parametrize(
    "spec",
    [
        "exp:alpha=-1", "exp-logit:alpha=-1", "exp-logit:clip=0", "mail:scale=const",
        "mail:scale=const:0", "mail:scale=const:-1", "mail:scale=const:x", "mail:scale=mean1:2",
        "mail:scale=half", "gairat:steps=0", "gairat:form=cubic", "wat:eta=-1", "wat:beta=-1",
        "tilt:t=-1", "focal:gamma=-1", "cvar:share=0", "cvar:share=-0.5", "cvar:share=1.1",
        "cvar:share=nan", "chi2:rho=-1", "chi2:rho=inf", "table", "table:path=w.csv,rest=-1",
        "none:alpha=1",
    ],
)  # fmt: skip
def test_invalid_parameters_are_refused_with_a_hint(spec: str, registry: Registry) -> None:
    with pytest.raises(BadInput) as refused:
        registry.create("kernel", spec)
    assert refused.value.hint


@pytest.mark.parametrize(
    ("kernel", "largest"), [("exp", 80), ("exp-logit", 8), ("exp-logit:clip=2", 40)]
)
def test_an_alpha_that_overflows_float32_is_refused(
    kernel: str, largest: int, registry: Registry
) -> None:
    def build_kernel(alpha: float) -> Kernel:
        config = TrainConfig(kernel=kernel, alpha=alpha)
        attack = build_training_attack(registry, config)
        defense = components.build_defense(registry, config.defense)
        return build_training_kernel(registry, config, attack, defense)

    built = build_kernel(largest)
    assert isinstance(built, Exponential | ExponentialOfLogits)
    assert built.alpha == largest
    with pytest.raises(BadInput, match="overflows") as refused:
        build_kernel(1.01 * largest)
    assert f"up to {largest}" in refused.value.hint


def make_kernel(name: str, registry: Registry, tmp_path: Path) -> Kernel:
    """Build a kernel without burn-in."""
    (tmp_path / "weights.csv").write_text("index,weight\n100,1\n103,2.5\n")
    settings: dict[str, Path | int] = {}
    if registry.accepts("kernel", name, "start_epoch"):
        settings["start_epoch"] = 0
    # the only kernel with a parameter that it requires
    if name == "table":
        settings["path"] = tmp_path / "weights.csv"
    result: Kernel = registry.create("kernel", name, **settings)
    return result


def evidence_of(learner: FabricLearner) -> Evidence:
    """Return the evidence of a training step, with the graph of the network."""
    on = tiny_batch()
    logits = learner.forward(on.images)
    return Evidence(
        logits,
        on.labels,
        on.index,
        clean_logits=logits,
        steps_survived=on.labels,
        loss=cross_entropy(logits, on.labels),
    )


NAMES = list_builtins("kernel")
CONSTANT = {"none"}
"""Kernels whose weights do not depend on the logits, and have no gradient for this reason."""


def test_defaults_are_the_published_values() -> None:
    mail = Mail()
    assert (mail.slope, mail.bias, mail.scale, mail.start_epoch) == (10, -0.5, "const:3", 75)
    gairat = Gairat()
    assert (gairat.shift, gairat.form, gairat.start_epoch) == (-1, "tanh", 60)
    assert Wat().eta == 0.1
    assert Exponential().alpha == 1
    assert ExponentialOfLogits().clip == 10


@pytest.mark.parametrize("name", NAMES)
def test_weights_have_a_gradient_where_the_trait_declares_it(
    name: str, registry: Registry, tmp_path: Path
) -> None:
    kernel = make_kernel(name, registry, tmp_path)
    learner = learner_of(kernel)
    has_gradient = kernel.traits.differentiable and name not in CONSTANT
    assert learner.weights(evidence_of(learner)).requires_grad == has_gradient


@pytest.mark.parametrize("name", ["chi2", "cvar", "gairat", "mail", "table", "tilt", "wat"])
def test_kernels_published_without_gradient_have_none(
    name: str, registry: Registry, tmp_path: Path
) -> None:
    assert not make_kernel(name, registry, tmp_path).traits.differentiable


class RecordsGradient:
    """An attack that keeps the gradient at the clean images, and returns these."""

    traits = AttackTraits()
    gradient: Tensor

    def __call__(
        self,
        model: nn.Module,
        batch: Batch,
        objective: Objective,
        *,
        seed: int,
        need_logits: bool = True,
    ) -> AttackResult:
        self.gradient, logits = input_gradient(model, batch.images, batch.labels, objective)
        return AttackResult(batch.images, torch.zeros_like(batch.labels), logits)


@pytest.mark.parametrize("loss", ["ce", "kl"])
@pytest.mark.parametrize("name", NAMES)
def test_an_attack_maximises_differentiable_weights_only(
    name: str, loss: str, registry: Registry, tmp_path: Path
) -> None:
    kernel = make_kernel(name, registry, tmp_path)
    on = tiny_batch()
    model = tiny_model().eval()
    objective: Objective = cross_entropy
    if loss == "kl":
        # of other images: at the clean ones the divergence has no gradient
        objective = KlObjective.from_logits(model(on.images.flip(3)).detach())

    def weighted(logits: Tensor, labels: Tensor) -> Tensor:
        losses = objective(logits, labels)
        log_weights = kernel(Evidence(logits, labels, loss=losses))
        # steps ignore the length of an image's gradient, so the attack divides by the weight
        return (log_weights - log_weights.detach()).exp() * losses

    maximised = weighted if kernel.traits.differentiable else objective
    expected, _ = input_gradient(model, on.images, on.labels, maximised)
    attack = RecordsGradient()
    learner_of(kernel).attack(on, objective, own=attack)
    torch.testing.assert_close(attack.gradient, expected)


@pytest.mark.parametrize("kernel", [Exponential(2.0), ExponentialOfLogits(2.0)], ids=str)
def test_a_weighted_attack_finds_other_images(kernel: Kernel) -> None:
    on = tiny_batch()
    plain = learner_of(Uniform()).attack(on, cross_entropy)
    found = learner_of(kernel).attack(on, cross_entropy)
    assert not torch.equal(found.images, plain.images)


@pytest.mark.parametrize(
    "kernel",
    [Exponential(2.0), ExponentialOfLogits(1.5), ExponentialOfLogits(1.5, clip=1.0), Focal(2.0)],
    ids=str,
)
def test_the_gradient_of_a_weight_is_that_of_its_formula(kernel: Kernel) -> None:
    seen = evidence()
    (found,) = torch.autograd.grad(weights(kernel, seen).sum(), seen.logits)
    limit = kernel.clip if isinstance(kernel, ExponentialOfLogits) else 0.0
    step = 1e-6
    formulas: dict[type, Callable[[list[float], int], float]] = {
        Exponential: lambda z, y: math.exp(-2 * (softmax(z)[y] - best_other(softmax(z), y))),
        ExponentialOfLogits: lambda z, y: math.exp(
            -1.5 * min(max(z[y] - best_other(z, y), -limit), limit)
        ),
        Focal: lambda z, y: (1 - softmax(z)[y]) ** 2,
    }
    formula = formulas[type(kernel)]
    for row, (z, y) in enumerate(zip(LOGITS, LABELS, strict=True)):
        for place in range(3):
            above = [value + step * (c == place) for c, value in enumerate(z)]
            below = [value - step * (c == place) for c, value in enumerate(z)]
            partial = (formula(above, y) - formula(below, y)) / (2 * step)
            assert found[row, place].item() == pytest.approx(partial, abs=1e-7)


@pytest.mark.parametrize("name", NAMES)
def test_weights_in_float64_and_float32_agree(
    name: str, registry: Registry, tmp_path: Path
) -> None:
    kernel = make_kernel(name, registry, tmp_path)
    on = tiny_batch()
    logits = 3 * torch.randn(12, 4, generator=torch.Generator().manual_seed(2))
    coarse, fine = (
        kernel(
            Evidence(
                z, on.labels, on.index, steps_survived=on.labels, loss=cross_entropy(z, on.labels)
            )
        )
        for z in (logits, logits.double())
    )
    assert (coarse.dtype, fine.dtype) == (torch.float32, torch.float64)
    torch.testing.assert_close(coarse.exp().double(), fine.exp(), rtol=1e-4, atol=1e-5)


def test_a_step_without_the_needed_evidence_is_refused(
    table: Callable[..., Any],
) -> None:
    without = Evidence(torch.zeros(3, 3), torch.tensor(LABELS))
    for kernel, field in (
        (Gairat(start_epoch=0), "steps survived"),
        (table("index,weight\n1,1\n"), "index"),
    ):
        with pytest.raises(BadInput, match=field) as refused:
            learner_of(kernel).weights(without)
        assert refused.value.hint


@pytest.mark.parametrize(
    ("kernel", "begins"),
    [(Mail(), 75), (Gairat(), 60), (Mail(start_epoch=2), 2), (Cvar(), 0)],
    ids=str,
)
def test_weights_are_equal_before_the_start_epoch(kernel: Kernel, begins: int) -> None:
    learner = learner_of(kernel)
    seen = evidence(survived=[0, 4, 10])
    for epoch in range(begins):
        learner.begin_step(epoch, 0, StepSettings(0.1), batch_size=3)
        assert learner.weights(seen).tolist() == [1.0, 1.0, 1.0]
    learner.begin_step(begins, 0, StepSettings(0.1), batch_size=3)
    assert learner.weights(seen).tolist() != [1.0, 1.0, 1.0]


def test_max_weight_limits_the_weights_of_any_kernel() -> None:
    learner = learner_of(Cvar(1 / 3), max_weight=1.5)
    assert learner.weights(evidence()).tolist() == pytest.approx([0.0, 1.5, 0.0])


@pytest.mark.parametrize("make", IRREGULAR.values(), ids=IRREGULAR)
def test_only_a_regular_file_is_read_as_a_table(make: Callable[..., Any], tmp_path: Path) -> None:
    make(tmp_path / "weights.csv")
    with (
        time_limit(60),
        pytest.raises(BadFile, match=r"it is a folder|not a regular file") as refused,
    ):
        Table(tmp_path / "weights.csv")
    assert refused.value.hint


@pytest.mark.parametrize("rest", [-1.0, math.nan, math.inf])
def test_the_weight_of_unlisted_images_is_finite_and_not_negative(
    table: Callable[..., Any], rest: float
) -> None:
    with pytest.raises(BadInput, match="`rest`") as refused:
        table("index,weight\n1,2\n", rest=rest)
    assert refused.value.hint

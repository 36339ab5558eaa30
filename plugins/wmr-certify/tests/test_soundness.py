"""Bounds never exceed the exact optimum, found by mixed-integer programming or by enumeration."""

from collections.abc import Callable

import pytest
import torch
from exact import as_matrices, least_difference
from torch import Tensor, nn

import wmr_cli
from wmr_certify.network import trace_network
from wmr_certify.verifiers import SAFETY_MARGIN, Crown, IntervalBounds, measure_logits
from wmr_cli.core import Batch, Verifier

CLASSES = 3
Shape = tuple[int, ...]
Build = Callable[[int], tuple[nn.Sequential, Shape]]
VERIFIERS: dict[str, Verifier] = {
    "ibp": IntervalBounds(),
    "crown-without-steps": Crown(steps=0),
    "crown": Crown(),
    "crown-interval": Crown(inner=False),
    "crown-splits": Crown(splits=40),
}


def dense(seed: int) -> tuple[nn.Sequential, Shape]:
    torch.manual_seed(seed)
    layers: list[nn.Module] = [nn.Flatten(), nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 5), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(5, CLASSES)), (1, 2, 3)


def convolutional(seed: int) -> tuple[nn.Sequential, Shape]:
    torch.manual_seed(seed)
    norm = nn.BatchNorm2d(2)
    nn.init.normal_(norm.weight)
    nn.init.normal_(norm.bias)
    norm.get_buffer("running_mean").normal_()
    norm.get_buffer("running_var").uniform_(0.5, 2)
    layers: list[nn.Module] = [
        nn.Conv2d(1, 2, 2, padding=1),
        norm,
        nn.ReLU(),
        nn.AvgPool2d(2, padding=0),
    ]
    layers += [nn.Conv2d(2, 2, 2), nn.ReLU(), nn.Flatten(), nn.Linear(2, CLASSES)]
    return nn.Sequential(*layers), (1, 4, 4)


def make_case(build: Build, seed: int, count: int = 3) -> tuple[nn.Sequential, Batch]:
    model, shape = build(seed)
    images = torch.rand(count, *shape)
    # labels as predicted, so that some images are robust
    labels = model.eval()(images).argmax(dim=1)
    return model, Batch(images, labels, torch.arange(count))


def find_exact(model: nn.Sequential, batch: Batch, eps: float) -> Tensor:
    """Return the smallest differences (N, K), with +inf for the true class."""
    parts = as_matrices(model, tuple(batch.images.shape[1:]))
    exact = torch.full((len(batch.labels), CLASSES), torch.inf, dtype=torch.float64)
    for number, label in enumerate(batch.labels.tolist()):
        for other in set(range(CLASSES)) - {label}:
            row = torch.zeros(CLASSES, dtype=torch.float64)
            row[label] = 1
            row[other] = -1
            image = batch.images[number].double().numpy()
            exact[number, other] = least_difference(parts, image, eps, row.numpy())
    return exact


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("build", [dense, convolutional])
def test_no_bound_exceeds_the_exact_minimum(build: Build, seed: int) -> None:
    model, batch = make_case(build, seed)
    eps = 0.02 + 0.02 * seed
    exact = find_exact(model, batch, eps)
    for name, verifier in VERIFIERS.items():
        bounds = verifier(model, batch, norm="linf", eps=eps, num_classes=CLASSES).differences
        assert (bounds <= exact + 1e-9).all(), name
        certified = bounds.min(dim=1).values > 0
        assert (exact.min(dim=1).values[certified] > 0).all(), name


def test_bounds_become_tighter_from_intervals_to_splits() -> None:
    sums = dict.fromkeys(VERIFIERS, 0.0)
    for seed in range(6):
        model, batch = make_case(dense, seed)
        for name, verifier in VERIFIERS.items():
            bounds = verifier(model, batch, norm="linf", eps=0.2, num_classes=CLASSES).differences
            sums[name] += float(bounds[bounds < torch.inf].sum())
    assert sums["ibp"] < sums["crown-interval"] < sums["crown"]
    assert sums["crown-without-steps"] < sums["crown"] <= sums["crown-splits"]


def test_enough_splits_decide_every_image() -> None:
    undecided = 0
    for seed in range(12):
        model, batch = make_case(dense, seed)
        exact = find_exact(model, batch, 0.15).min(dim=1).values
        complete = Crown(splits=300)
        found = complete(model, batch, norm="linf", eps=0.15, num_classes=CLASSES).differences
        certified = found.min(dim=1).values > 0
        is_robust = exact > 3 * SAFETY_MARGIN * measure_logits(
            trace_network(model, batch.images), batch.images.double()
        )
        undecided += int((is_robust & ~certified).sum())
    assert undecided == 0


@pytest.mark.parametrize("eps", [0.05, 0.3])
def test_one_affine_layer_has_exact_bounds(eps: float) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(6, CLASSES))
    batch = Batch(torch.rand(4, 1, 2, 3), torch.tensor([0, 1, 2, 0]), torch.arange(4))
    exact = find_exact(model, batch, eps)
    found = Crown()(model, batch, norm="linf", eps=eps, num_classes=CLASSES).differences
    assert torch.allclose(found, exact, atol=1e-4, rtol=0)


def test_the_l2_bound_of_an_affine_layer_is_the_dual_norm() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(6, CLASSES))
    # far from the borders of the pixel range
    images = 0.4 + 0.2 * torch.rand(4, 1, 2, 3)
    labels = torch.tensor([0, 1, 2, 0])
    batch = Batch(images, labels, torch.arange(4))
    found = Crown()(model, batch, norm="l2", eps=0.1, num_classes=CLASSES).differences
    logits = model(images).detach().double()
    weight = model[1].get_parameter("weight").detach().double()
    lengths = (weight[labels][:, None] - weight[None]).norm(dim=2)
    expected = logits.gather(1, labels[:, None]) - logits - 0.1 * lengths
    is_other = found < torch.inf
    assert torch.allclose(found[is_other], expected[is_other], atol=1e-4, rtol=0)


class Residual(nn.Module):
    """A residual block, max pooling, normalisation, and functions instead of modules."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(1, 4, 3, padding=1)
        self.norm = nn.BatchNorm2d(4)
        self.second = nn.Conv2d(4, 4, 3, padding=1)
        self.pool = nn.MaxPool2d(3, stride=2, padding=1)
        self.drop = nn.Dropout(0.5)
        self.last = nn.Linear(4 * 9, CLASSES)
        self.register_buffer("mean", torch.tensor([0.4]).reshape(1, 1, 1, 1))

    def forward(self, images: Tensor) -> Tensor:
        start = self.first((images - self.get_buffer("mean")) / 0.3)
        block = self.second(torch.relu(self.norm(start))) + start
        pooled = self.pool(nn.functional.relu(block))
        logits: Tensor = self.last(self.drop(pooled.view(pooled.size(0), -1)))
        return logits


@pytest.mark.parametrize("norm", ["linf", "l2"])
@pytest.mark.parametrize("name", VERIFIERS)
def test_no_sampled_image_violates_a_bound(name: str, norm: str) -> None:
    torch.manual_seed(1)
    model = Residual().eval()
    batch = Batch(torch.rand(4, 1, 6, 6), torch.tensor([0, 1, 2, 0]), torch.arange(4))
    eps = {"linf": 0.05, "l2": 0.3}[norm]
    bounds = VERIFIERS[name](model, batch, norm=norm, eps=eps, num_classes=CLASSES).differences
    centre = batch.images[:, None]
    noise = torch.randn(4, 2000, 1, 6, 6)
    if norm == "linf":
        noise = eps * noise.sign()
    else:
        noise = eps * noise / noise.flatten(2).norm(dim=2)[..., None, None, None]
    inside = (centre + noise).clamp(0, 1)
    with torch.no_grad():
        logits = model(inside.flatten(0, 1)).reshape(4, 2000, CLASSES)
    true = logits.gather(2, batch.labels.reshape(4, 1, 1).expand(4, 2000, 1))
    lowest = (true - logits).amin(dim=1).double()
    is_other = bounds < torch.inf
    assert (bounds[is_other] <= lowest[is_other]).all()
    # without a perturbation the bounds are the differences themselves
    exact = VERIFIERS[name](model, batch, norm=norm, eps=0.0, num_classes=CLASSES).differences
    clean = model(batch.images).detach().double()
    differences = clean.gather(1, batch.labels[:, None]) - clean
    assert torch.allclose(exact[is_other], differences[is_other], atol=1e-3, rtol=0)


@pytest.mark.parametrize(
    ("spec", "side", "verifier"),
    [
        ("small-cnn", 16, IntervalBounds()),
        ("digits-cnn:width=2,hidden=4", 8, Crown(steps=1)),
        ("resnet20:depth=8", 8, Crown(steps=1)),
        ("wrn-28-10:depth=10,width=1", 8, Crown(steps=1)),
    ],
    ids=["small-cnn", "digits-cnn", "resnet20", "wrn"],
)
def test_built_in_networks_can_be_bounded(spec: str, side: int, verifier: Verifier) -> None:
    shape = (1, side, side)
    torch.manual_seed(0)
    model = wmr_cli.create("model", spec, num_classes=CLASSES, input_shape=shape)
    for parameter in model.parameters():
        # some layers start at 0
        parameter.data += 0.02 * torch.randn(parameter.shape)
    batch = Batch(torch.rand(2, *shape), torch.tensor([0, 1]), torch.arange(2))
    # bounds become looser with depth
    eps = 1e-5
    bounds = verifier(model.eval(), batch, norm="linf", eps=eps, num_classes=CLASSES).differences
    noise = eps * torch.randn(200, 2, *shape).sign()
    with torch.no_grad():
        logits = model((batch.images + noise).clamp(0, 1).flatten(0, 1)).reshape(200, 2, CLASSES)
    true = logits.gather(2, batch.labels.reshape(1, 2, 1).expand(200, 2, 1))
    lowest = (true - logits).amin(dim=0).double()
    is_other = bounds < torch.inf
    assert (bounds[is_other] <= lowest[is_other]).all()
    if isinstance(verifier, Crown):
        assert (bounds[is_other] >= lowest[is_other] - 0.1 * (1 + lowest[is_other].abs())).all()

"""Compare attacks with torchattacks, Foolbox and pyautoattack on a model trained by `wmr`.

Run by `make test-peers`: these libraries require other versions of torch, and so an environment of
their own.
"""

import importlib.util
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

import pytest
import torch
from torch import Tensor, nn

from support.training import train
from wmr_cli.config import resolve
from wmr_cli.core import average_draws, torchvision_compat
from wmr_cli.core.contexts import seeding_generators
from wmr_cli.core.losses import cross_entropy, get_objective
from wmr_cli.core.norms import NORMS
from wmr_cli.core.protocols import Batch
from wmr_cli.measures import Estimate, plain_accuracy
from wmr_cli.registry import Registry
from wmr_cli.runtime import components, datasets
from wmr_cli.storage import checkpoints

pytestmark = [pytest.mark.peers, pytest.mark.filterwarnings("ignore")]

if any(
    importlib.util.find_spec(name) is None for name in ("torchattacks", "foolbox", "pyautoattack")
):
    pytest.skip(
        "torchattacks, foolbox and pyautoattack are not all installed here: `make test-peers`",
        allow_module_level=True,
    )

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    # torchattacks imports torchvision, which may need the patches of this module
    assert torchvision_compat.torchvision
    import foolbox
    import torchattacks
    from pyautoattack import AutoAttack
    from pyautoattack.square import SquareAttack

IMAGES = 500
TOLERANCE = 0.01 + 1e-6
"""One percentage point of robust accuracy."""
SEEDS = (0, 1, 2)
"""The result of a random search varies by half a point between seeds."""
THREATS = {"linf": ("Linf", 0.15), "l2": ("L2", 0.6)}
"""The name of each norm in the other libraries, and eps."""
Attack = Callable[[Tensor, Tensor], Tensor]
"""An attack of another library: maps images and labels to adversarial images."""
MakeAttack = Callable[..., Attack]


@dataclass(frozen=True)
class Case:
    """A model and images under a threat model."""

    registry: Registry
    model: nn.Module
    batch: Batch
    norm: str

    @property
    def peer_norm(self) -> str:
        """The name of the norm in the other libraries."""
        return THREATS[self.norm][0]

    @property
    def eps(self) -> float:
        return THREATS[self.norm][1]

    def attack(self, spec: str, seed: int = 0) -> Tensor:
        """Return the adversarial images of an attack of `wmr`."""
        attack = self.registry.create("attack", spec, norm=self.norm, eps=self.eps)
        objective = get_objective(attack.traits.objective)
        images: Tensor = attack(self.model, self.batch, objective, seed=seed).images
        return images

    def accuracy(self, images: Tensor) -> float:
        """Return the robust accuracy. Images outside the eps-ball count as correct."""
        with torch.no_grad():
            is_correct = self.model(images).argmax(dim=1) == self.batch.labels
        is_outside = NORMS[self.norm].size(images - self.batch.images) > self.eps + 1e-5
        return float((is_correct | is_outside).float().mean())

    def compare(self, spec: str, peer: Attack, name: str = "torchattacks") -> tuple[float, float]:
        """Return the robust accuracy under an attack of `wmr` and under that of another library."""
        ours = self.accuracy(self.attack(spec))
        theirs = self.accuracy(peer(self.batch.images, self.batch.labels))
        print(f"{spec} {self.norm} {self.eps:g}: ours {ours:.3f}, {name} {theirs:.3f}")  # noqa: T201
        assert 0.1 < theirs < 0.9, "near 0 or 1 all attacks agree"
        return ours, theirs

    def compare_means(self, spec: str, **peers: MakeAttack) -> dict[str, float]:
        """Return mean robust accuracies over the seeds: of `spec` as "ours", and of each peer."""
        images = {"ours": [self.attack(spec, seed) for seed in SEEDS]}
        for name, make_peer in peers.items():
            images[name] = [
                make_peer(self.model, norm=self.peer_norm, eps=self.eps, seed=seed)(
                    self.batch.images, self.batch.labels
                )
                for seed in SEEDS
            ]
        means = {
            name: fmean(self.accuracy(of_seed) for of_seed in of_name)
            for name, of_name in images.items()
        }
        text = ", ".join(f"{name} {value:.4f}" for name, value in means.items())
        print(f"{spec} {self.norm} {self.eps:g}: {text}")  # noqa: T201
        return means


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory, registry: Registry) -> nn.Module:
    path = tmp_path_factory.mktemp("peers") / "run"
    list(train(resolve({}), path, registry))
    return components.restore_model(registry, checkpoints.load(path / "last.safetensors"))


@pytest.fixture(params=THREATS)
def case(request: pytest.FixtureRequest, registry: Registry, model: nn.Module) -> Case:
    return make_case(registry, model, str(request.param))


@pytest.fixture
def linf_case(registry: Registry, model: nn.Module) -> Case:
    return make_case(registry, model, "linf")


def make_case(registry: Registry, model: nn.Module, norm: str) -> Case:
    split = datasets.build_dataset(registry, "digits", Path()).splits["test"]
    return Case(registry, model, split.batch(torch.arange(IMAGES)), norm)


def test_pgd_gives_the_images_of_torchattacks(linf_case: Case) -> None:
    model, batch = linf_case.model, linf_case.batch
    peer = torchattacks.PGD(model, eps=0.15, alpha=0.015, steps=20, random_start=False)
    found = linf_case.attack("pgd:start=none,steps=20,step=0.015")
    torch.testing.assert_close(found, peer(batch.images, batch.labels), atol=1e-6, rtol=0)
    clean_loss = cross_entropy(model(batch.images), batch.labels).mean()
    assert cross_entropy(model(found), batch.labels).mean() > clean_loss + 0.1


def test_pgd_gives_the_images_of_foolbox(linf_case: Case) -> None:
    batch = linf_case.batch
    peer = foolbox.attacks.LinfPGD(abs_stepsize=0.015, steps=20, random_start=False)
    model = foolbox.PyTorchModel(linf_case.model, bounds=(0, 1))
    _, theirs, _ = peer(model, batch.images, batch.labels, epsilons=0.15)
    found = linf_case.attack("pgd:start=none,steps=20,step=0.015")
    torch.testing.assert_close(found, theirs, atol=1e-6, rtol=0)


GRADIENT_ATTACKS: dict[str, MakeAttack] = {
    "apgd-ce": lambda model, **threat: torchattacks.APGD(model, steps=100, loss="ce", **threat),
    "apgd-dlr": lambda model, **threat: torchattacks.APGD(model, steps=100, loss="dlr", **threat),
    "apgd-t": lambda model, **threat: torchattacks.APGDT(model, steps=100, **threat),
    "fab-t": lambda model, **threat: torchattacks.FAB(
        model, steps=100, multi_targeted=True, **threat
    ),
}


@pytest.mark.parametrize("name", GRADIENT_ATTACKS)
def test_gradient_attacks_agree_within_one_point(name: str, case: Case) -> None:
    peer = GRADIENT_ATTACKS[name](case.model, norm=case.peer_norm, eps=case.eps)
    ours, theirs = case.compare(name, peer)
    assert ours == pytest.approx(theirs, abs=TOLERANCE)


def test_square_is_not_weaker_than_torchattacks(case: Case) -> None:
    # theirs never reaches the last row and column, which matters for 8x8 pixels
    peer = torchattacks.Square(case.model, norm=case.peer_norm, eps=case.eps)
    ours, theirs = case.compare("square", peer)
    assert ours <= theirs + TOLERANCE


def test_autoattack_agrees_with_torchattacks_within_one_point(case: Case) -> None:
    peer = torchattacks.AutoAttack(case.model, norm=case.peer_norm, eps=case.eps)
    # torchattacks runs 10 steps of each part, the standard is 100
    for part in peer._autoattack.attacks:
        if hasattr(part, "steps"):
            part.steps = 100
    ours, theirs = case.compare("autoattack", peer)
    assert ours == pytest.approx(theirs, abs=TOLERANCE)


class SquareWithEdges(SquareAttack):  # type: ignore[misc]  # of a library without types
    """The attack of pyautoattack, with squares that reach the last row and column."""

    def random_int(self, low: int = 0, high: int = 1, shape: tuple[int, ...] = (1,)) -> Tensor:
        positions: Tensor = super().random_int(low, high + 1, shape)
        return positions


def pyautoattack_square(kind: type[SquareAttack], *, rescale: bool) -> MakeAttack:
    """Return a maker of a Square attack of 5,000 queries.

    As released, it halves the squares at the points for 10,000 queries. `rescale` fits the points
    to 5,000, as `wmr` does.
    """

    def make(model: nn.Module, **threat: object) -> Attack:
        attack = kind(
            model, p_init=0.8, n_queries=5000, resc_schedule=rescale, device="cpu", **threat
        )
        perturb: Attack = attack.perturb
        return perturb

    return make


def test_square_without_edges_agrees_with_the_peers_within_one_point(case: Case) -> None:
    means = case.compare_means(
        "square:stops_early=true,edges=false",
        torchattacks=torchattacks.Square,
        pyautoattack=pyautoattack_square(SquareAttack, rescale=True),
    )
    assert means == pytest.approx(dict.fromkeys(means, means["ours"]), abs=TOLERANCE)
    assert 0.1 < means["ours"] < 0.9


def test_square_agrees_with_pyautoattack_within_one_point_if_both_reach_the_edges(
    case: Case,
) -> None:
    means = case.compare_means(
        "square:stops_early=true",
        released=pyautoattack_square(SquareAttack, rescale=False),
        with_edges=pyautoattack_square(SquareWithEdges, rescale=True),
    )
    assert 0.1 < means["with_edges"] < 0.9
    assert means["ours"] == pytest.approx(means["with_edges"], abs=TOLERANCE)
    assert means["ours"] <= means["released"] + TOLERANCE


def test_autoattack_agrees_with_pyautoattack_within_one_point(case: Case) -> None:
    attack = AutoAttack(case.model, norm=case.peer_norm, eps=case.eps, seed=0, device="cpu")

    def peer(images: Tensor, labels: Tensor) -> Tensor:
        adversarial: Tensor = attack.run_standard_evaluation(images, labels, batch_size=IMAGES)[0]
        return adversarial

    ours, theirs = case.compare("autoattack", peer, name="pyautoattack")
    assert ours == pytest.approx(theirs, abs=TOLERANCE)


class Masked(nn.Module):
    """A stochastic model: it hides a fifth of the pixels, others in each pass."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.model(torch.where(torch.rand_like(images) < 0.8, images, 0.5))
        return logits


@dataclass(frozen=True)
class Verdicts:
    """The robust accuracy that an attack reports, and that of its images over 50 draws."""

    reported: Estimate
    averaged: Estimate


STOCHASTIC_IMAGES = 200
STOCHASTIC_EPS = {"linf": 0.1, "l2": 0.4}
"""Smaller than for the deterministic model, so that about half of the images stay correct."""


@pytest.mark.parametrize("norm", THREATS)
def test_the_random_version_agrees_with_pyautoattack_within_the_interval(
    norm: str, registry: Registry, model: nn.Module
) -> None:
    case = make_case(registry, Masked(model), norm)
    batch = case.batch.select(torch.arange(STOCHASTIC_IMAGES))
    eps = STOCHASTIC_EPS[norm]
    averaged = average_draws(case.model, 50)

    def judge(images: Tensor, predictions: Tensor) -> Verdicts:
        with torch.no_grad(), seeding_generators(images.device, 1):
            expected = averaged(images).argmax(dim=1)
        return Verdicts(
            *(plain_accuracy((found == batch.labels).numpy()) for found in (predictions, expected))
        )

    with seeding_generators(batch.images.device, 0):
        ours = registry.create("attack", "autoattack:version=rand", norm=norm, eps=eps)
        result = ours(case.model, batch, cross_entropy, seed=0)
    found = judge(result.images, result.require_logits().argmax(dim=1))
    peer = AutoAttack(
        case.model, norm=case.peer_norm, eps=eps, seed=0, version="rand", device="cpu"
    )
    images, predictions = peer.run_standard_evaluation(
        batch.images, batch.labels, batch_size=STOCHASTIC_IMAGES
    )
    theirs = judge(images, predictions)
    print(f"autoattack:version=rand {norm} {eps:g}: ours {found}, pyautoattack {theirs}")  # noqa: T201
    assert 0.1 < theirs.reported.value < 0.9
    assert theirs.reported.low <= found.reported.value <= theirs.reported.high
    assert theirs.averaged.low <= found.averaged.value <= theirs.averaged.high

"""Our attacks beside those of torchattacks, Foolbox and pyautoattack, on a network that we trained. `make test-peers` runs it.

The peers are written for their own torch, so they live in an environment of their own.
"""

import importlib.util
import warnings
from pathlib import Path

import pytest
import torch

from support.training import train
from wmr_cli.config import resolve
from wmr_cli.core import torchvision_compat
from wmr_cli.core.losses import cross_entropy
from wmr_cli.core.norms import NORMS
from wmr_cli.core.objectives import get_objective
from wmr_cli.registry import Registry
from wmr_cli.runtime import components
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
    assert torchvision_compat.torchvision  # torchattacks imports it, and it may need our help
    import foolbox
    import torchattacks
    from pyautoattack import AutoAttack
    from pyautoattack.square import SquareAttack

IMAGES = 500
POINT = 0.01
"""One percentage point of robust accuracy."""
SEEDS = (0, 1, 2)
"""Random search is lucky or not: one seed of it moves by half a point."""
BALLS = {"linf": ("Linf", 0.15), "l2": ("L2", 0.6)}


@pytest.fixture(scope="session")
def network(tmp_path_factory: pytest.TempPathFactory, registry: Registry):
    path = tmp_path_factory.mktemp("peers") / "run"
    list(train(resolve({}), path, registry, data_dir=Path(), device="cpu"))
    return components.restore_model(registry, checkpoints.load(path / "last.safetensors"))


@pytest.fixture(scope="session")
def batch(registry: Registry):
    split = components.build_dataset(registry, "digits", Path()).splits["test"]
    return split.batch(torch.arange(IMAGES))


def ours(registry: Registry, spec, model, batch, norm, eps, seed=0):
    attack = registry.create("attack", spec, norm=norm, eps=eps)
    objective = get_objective(attack.traits.objective)
    return attack(model, batch, objective, seed=seed).images


def accuracy(model, batch, images, norm, eps):
    """The share that is right; whoever left the ball has not fooled anybody."""
    with torch.no_grad():
        is_right = model(images).argmax(dim=1) == batch.labels
    return (is_right | (NORMS[norm].size(images - batch.images) > eps + 1e-5)).float().mean().item()


def measured(registry: Registry, spec, peer, model, batch, norm, eps, name="torchattacks"):
    mine = accuracy(model, batch, ours(registry, spec, model, batch, norm, eps), norm, eps)
    theirs = accuracy(model, batch, peer(batch.images, batch.labels), norm, eps)
    print(f"{spec} {norm} {eps:g}: ours {mine:.3f}, {name} {theirs:.3f}")  # noqa: T201
    assert 0.1 < theirs < 0.9, "robust accuracy says something in mid-range only"
    return mine, theirs


def test_pgd_gives_the_images_of_torchattacks(registry: Registry, network, batch) -> None:
    peer = torchattacks.PGD(network, eps=0.15, alpha=0.015, steps=20, random_start=False)
    found = ours(registry, "pgd:start=none,steps=20,step=0.015", network, batch, "linf", 0.15)
    torch.testing.assert_close(found, peer(batch.images, batch.labels), atol=1e-6, rtol=0)
    assert (
        cross_entropy(network(found), batch.labels).mean()
        > cross_entropy(network(batch.images), batch.labels).mean() + 0.1
    )


def test_pgd_gives_the_images_of_foolbox(registry: Registry, network, batch) -> None:
    peer = foolbox.attacks.LinfPGD(abs_stepsize=0.015, steps=20, random_start=False)
    _, theirs, _ = peer(
        foolbox.PyTorchModel(network, bounds=(0, 1)), batch.images, batch.labels, epsilons=0.15
    )
    found = ours(registry, "pgd:start=none,steps=20,step=0.015", network, batch, "linf", 0.15)
    torch.testing.assert_close(found, theirs, atol=1e-6, rtol=0)


PEERS = {
    "apgd-ce": lambda model, **ball: torchattacks.APGD(model, steps=100, loss="ce", **ball),
    "apgd-dlr": lambda model, **ball: torchattacks.APGD(model, steps=100, loss="dlr", **ball),
    "apgd-t": lambda model, **ball: torchattacks.APGDT(model, steps=100, **ball),
    "fab-t": lambda model, **ball: torchattacks.FAB(model, steps=100, multi_targeted=True, **ball),
}


@pytest.mark.parametrize("norm", BALLS)
@pytest.mark.parametrize("name", PEERS)
def test_gradient_attacks_agree_to_a_point(
    name: str, norm: str, registry: Registry, network, batch
) -> None:
    theirs, eps = BALLS[norm]
    mine, other = measured(
        registry, name, PEERS[name](network, norm=theirs, eps=eps), network, batch, norm, eps
    )
    assert mine == pytest.approx(other, abs=POINT + 1e-6)


@pytest.mark.parametrize("norm", BALLS)
def test_square_is_no_weaker(norm: str, registry: Registry, network, batch) -> None:
    """Theirs never puts a square at the last row or column, which counts on images of 8x8: ours is stronger there."""
    theirs, eps = BALLS[norm]
    peer = torchattacks.Square(network, norm=theirs, eps=eps)
    mine, other = measured(registry, "square", peer, network, batch, norm, eps)
    assert mine <= other + POINT


def standard(model, norm, eps):
    """torchattacks leaves the parts of its AutoAttack at 10 steps; the standard is 100."""
    attack = torchattacks.AutoAttack(model, norm=norm, eps=eps)
    for part in attack._autoattack.attacks:
        if hasattr(part, "steps"):
            part.steps = 100
    return attack


@pytest.mark.parametrize("norm", BALLS)
def test_autoattack_agrees_to_a_point(norm: str, registry: Registry, network, batch) -> None:
    theirs, eps = BALLS[norm]
    mine, other = measured(
        registry, "autoattack", standard(network, theirs, eps), network, batch, norm, eps
    )
    assert mine == pytest.approx(other, abs=POINT + 1e-6)


class Everywhere(SquareAttack):
    """pyautoattack's, with the last row and column among the places of a square."""

    def random_int(self, low=0, high=1, shape=(1,)):
        return super().random_int(low, high + 1, shape)


def averaged(registry: Registry, model, batch, norm, mine, **peers):
    """Mean robust accuracy over the seeds, under a spec of ours and under peers made from (model, norm, eps, seed)."""
    theirs, eps = BALLS[norm]
    given = (batch.images, batch.labels)
    runs = {
        name: [peer(model, norm=theirs, eps=eps, seed=seed)(*given) for seed in SEEDS]
        for name, peer in peers.items()
    }
    runs["ours"] = [ours(registry, mine, model, batch, norm, eps, seed) for seed in SEEDS]
    found = {
        name: sum(accuracy(model, batch, images, norm, eps) for images in run) / len(run)
        for name, run in runs.items()
    }
    print(  # noqa: T201
        f"{mine} {norm} {eps:g}: "
        + ", ".join(f"{name} {value:.4f}" for name, value in found.items())
    )
    return found


def pyautoattack_square(kind, is_spread):
    """Its AutoAttack halves at the points for 10,000 queries though it asks 5,000; `is_spread` fits them to 5,000, as ours."""

    def made(model, **ball):
        return kind(
            model, p_init=0.8, n_queries=5000, resc_schedule=is_spread, device="cpu", **ball
        ).perturb

    return made


@pytest.mark.parametrize("norm", BALLS)
def test_square_without_edges_agrees_to_a_point_with_the_peers(
    norm: str, registry: Registry, network, batch
) -> None:
    """With torchattacks' as released, and with pyautoattack's where it, too, spreads its halvings: the same search then."""
    spec = "square:stops_early=true,edges=false"
    peers = {
        "torchattacks": torchattacks.Square,
        "pyautoattack": pyautoattack_square(SquareAttack, is_spread=True),
    }
    found = averaged(registry, network, batch, norm, spec, **peers)
    assert found == pytest.approx(dict.fromkeys(found, found["ours"]), abs=POINT + 1e-6)
    assert 0.1 < found["ours"] < 0.9


@pytest.mark.parametrize("norm", BALLS)
def test_square_agrees_to_a_point_with_pyautoattack_once_it_may_use_all_places(
    norm: str, registry: Registry, network, batch
) -> None:
    """As released it never puts a square at the last row or column, and fools fewer images than ours."""
    released, everywhere = (
        pyautoattack_square(SquareAttack, is_spread=False),
        pyautoattack_square(Everywhere, is_spread=True),
    )
    peers = {"pyautoattack": released, "at all places": everywhere}
    found = averaged(registry, network, batch, norm, "square:stops_early=true", **peers)
    assert 0.1 < found["at all places"] < 0.9
    assert found["ours"] == pytest.approx(found["at all places"], abs=POINT + 1e-6)
    assert found["ours"] <= found["pyautoattack"] + POINT


@pytest.mark.parametrize("norm", BALLS)
def test_autoattack_agrees_to_a_point_with_pyautoattack(
    norm: str, registry: Registry, network, batch
) -> None:
    theirs, eps = BALLS[norm]
    attack = AutoAttack(network, norm=theirs, eps=eps, seed=0, device="cpu")

    def peer(images, labels):
        return attack.run_standard_evaluation(images, labels, batch_size=IMAGES)[0]

    mine, other = measured(
        registry, "autoattack", peer, network, batch, norm, eps, name="pyautoattack"
    )
    assert mine == pytest.approx(other, abs=POINT + 1e-6)

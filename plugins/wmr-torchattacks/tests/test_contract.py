"""Every attack meets the contract of `wmr`; some only with one image at a time."""

import pytest
import torch
import torchattacks
from torch import nn

from wmr_cli import create
from wmr_cli.core import NORMS, Attack, Batch, cross_entropy
from wmr_cli.testing import check_attack, tiny_batch, tiny_model
from wmr_torchattacks import families

COLOUR = (3, 8, 8)
RADIUS = {"linf": 0.1, "l2": 1.0}
SHORT = {
    "AutoAttack": "version=rand",
    "EADEN": "max_iterations=20,binary_search_steps=3",
    "FAB": "steps=5",
    "SPSA": "nb_sample=8,max_batch_size=4",
    "Square": "n_queries=40",
}
"""Less work for attacks that would take long."""
OFFERED = [
    *((name, "linf") for name in (*families.LINF, *families.EITHER)),
    *((name, "l2") for name in (*families.L2, *families.EITHER)),
]


def made(name: str, norm: str, *words: str) -> Attack:
    text = ",".join(filter(None, (f"torchattacks:{name}", SHORT.get(name), *words)))
    return create("attack", text, norm=norm, eps=RADIUS[norm])


@pytest.fixture
def model() -> nn.Module:
    return tiny_model(input_shape=COLOUR)


@pytest.fixture
def batch() -> Batch:
    return tiny_batch(input_shape=COLOUR)


def test_every_attack_of_torchattacks_has_its_place() -> None:
    places = [*families.LINF, *families.L2, *families.EITHER, *families.REFUSED]
    assert sorted(places) == sorted(torchattacks.__all__)


@pytest.mark.parametrize(("name", "norm"), OFFERED)
def test_the_contract(name: str, norm: str, model: nn.Module, batch: Batch) -> None:
    check_attack(
        made(name, norm, "alone=true" if name in families.DEPEND_ON_BATCH else ""), model, batch
    )


@pytest.mark.parametrize(
    ("name", "norm"), [(name, norm) for name, norm in OFFERED if name in families.DEPEND_ON_BATCH]
)
def test_those_that_see_the_batch_keep_to_the_rest_of_the_contract(
    name: str, norm: str, model: nn.Module, batch: Batch
) -> None:
    attack = made(name, norm)
    first, second = (attack(model, batch, cross_entropy, seed=3) for _ in range(2))
    assert torch.equal(first.images, second.images)
    assert float(NORMS[norm].size(first.images - batch.images).max()) <= RADIUS[norm] + 1e-6
    assert bool(((first.images >= 0) & (first.images <= 1)).all())
    assert first.logits is not None
    with torch.no_grad():
        torch.testing.assert_close(first.logits, model(first.images))
        was_right = model(batch.images).argmax(dim=1) == batch.labels
    assert bool((was_right | (first.logits.argmax(dim=1) != batch.labels)).all())


@pytest.mark.parametrize("name", ["PGD", "EOTPGD", "VMIFGSM", "Jitter", "PGDRS", "GN"])
def test_another_seed_draws_other_numbers_and_an_image_keeps_its_own(
    name: str, model: nn.Module, batch: Batch
) -> None:
    attack = made(name, "linf")
    one, other = (attack(model, batch, cross_entropy, seed=seed).images for seed in (0, 1))
    assert not torch.equal(one, other)
    shuffled = torch.randperm(len(batch.labels), generator=torch.Generator().manual_seed(0))
    reordered = Batch(batch.images[shuffled], batch.labels[shuffled], batch.index[shuffled])
    again = attack(model, reordered, cross_entropy, seed=0).images
    torch.testing.assert_close(again, one[shuffled], atol=1e-5, rtol=0)


@pytest.mark.parametrize(
    ("name", "norm"),
    [("BIM", "linf"), ("MIFGSM", "linf"), ("SINIFGSM", "linf"), ("DeepFool", "l2")],
)
def test_the_images_are_those_of_torchattacks(
    name: str, norm: str, model: nn.Module, batch: Batch
) -> None:
    attack = create(
        "attack", f"torchattacks:{name}", norm=norm, eps=8 / 255 if norm == "linf" else 5.0
    )
    result = attack(model, batch, cross_entropy, seed=0)
    expected = getattr(torchattacks, name)(model)(batch.images, batch.labels)
    moved = (result.images != batch.images).flatten(1).any(dim=1)
    # how many are misclassified depends on the rounding of the processor
    assert bool(moved.any())
    torch.testing.assert_close(result.images[moved], expected[moved], atol=1e-6, rtol=0)


def test_bim_is_our_own_pgd_step_by_step(model: nn.Module, batch: Batch) -> None:
    theirs = create("attack", "torchattacks:BIM,steps=6,step=0.02", eps=0.1)
    ours = create("attack", "pgd:start=none,steps=6,step=0.02", eps=0.1)
    one, other = (each(model, batch, cross_entropy, seed=0) for each in (theirs, ours))
    torch.testing.assert_close(one.images, other.images, atol=1e-6, rtol=0)
    assert torch.equal(one.steps_survived, other.steps_survived)
    assert len(one.steps_survived.unique()) > 2

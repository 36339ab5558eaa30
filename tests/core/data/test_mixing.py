"""Mixup and CutMix: images, partners, parts and labels of mixed batches."""

import pytest
import torch
from scipy.stats import chisquare, kstest
from torch import Tensor

from support.typed import not_none
from wmr_cli.core.data.mixing import Mixer, draw_smaller_part
from wmr_cli.core.losses import MixedObjective, cross_entropy
from wmr_cli.core.protocols import Batch, SecondLabels


def make_batch(count: int = 16, height: int = 6, width: int = 8) -> Batch:
    images = torch.rand(count, 3, height, width, generator=torch.Generator().manual_seed(0))
    return Batch(images, torch.arange(count) % 5, torch.arange(count) + 30)


def mix(mixer: Mixer, batch: Batch, seed: int = 1) -> Batch:
    return mixer(batch, batch.index, seed)


def test_mixup_blends_each_image_with_its_partner() -> None:
    batch = make_batch()
    mixer = Mixer(mixup=0.5)
    partners, is_cut, fractions, _ = mixer.draw(batch.index, 6, 8, 1)
    assert not is_cut.any()
    mixed = mix(mixer, batch)
    for number, image in enumerate(batch.images):
        part = float(fractions[number])
        expected = (1 - part) * image + part * batch.images[partners[number]]
        assert (mixed.images[number] - expected).abs().max() < 1e-6
    second = not_none(mixed.second)
    assert torch.equal(second.labels, batch.labels[partners])
    assert torch.equal(second.fractions, fractions.float())
    assert torch.equal(mixed.labels, batch.labels)
    assert torch.equal(mixed.index, batch.index)


def test_cutmix_copies_a_box_and_its_area_is_the_part_of_its_label() -> None:
    batch = make_batch(40)
    mixer = Mixer(cutmix=1.0)
    partners = mixer.draw(batch.index, 6, 8, 1)[0]
    mixed = mix(mixer, batch)
    is_copied = (mixed.images == batch.images[partners]).all(dim=1)
    is_own = (mixed.images == batch.images).all(dim=1)
    assert (is_copied ^ is_own).all()
    second = not_none(mixed.second)
    torch.testing.assert_close(is_copied.float().mean(dim=(1, 2)), second.fractions)
    # a box: every row with a copied pixel has the same ones
    for rows in is_copied:
        assert len({tuple(row) for row in rows.tolist() if any(row)}) <= 1
    assert (second.fractions > 0).any()


@pytest.mark.parametrize("mixer", [Mixer(0.3), Mixer(cutmix=1.0), Mixer(1.0, 1.0)])
def test_the_larger_part_is_that_of_the_own_label(mixer: Mixer) -> None:
    batch = make_batch(200)
    partners, _, fractions, _ = mixer.draw(batch.index, 6, 8, 3)
    assert ((fractions >= 0) & (fractions <= 0.5)).all()
    assert sorted(partners.tolist()) == list(range(200))
    assert (partners != torch.arange(200)).all()


@pytest.mark.parametrize("parameter", [0.2, 1.0, 4.0])
def test_parts_have_the_beta_distribution(parameter: float) -> None:
    uniform = (torch.arange(2000).double() + 0.5) / 2000
    parts = draw_smaller_part(uniform, parameter)
    both = torch.cat([parts, 1 - parts]).numpy()
    assert kstest(both, "beta", (parameter, parameter)).pvalue > 0.99


def test_each_of_both_is_chosen_for_half_of_the_images() -> None:
    is_cut = Mixer(1.0, 1.0).draw(torch.arange(4000), 6, 8, 1)[1]
    assert chisquare(is_cut.long().bincount().numpy()).pvalue > 0.001


def test_mixing_depends_on_seed_and_batch_alone() -> None:
    batch = make_batch()
    mixer = Mixer(0.5, 0.5)
    assert torch.equal(mix(mixer, batch).images, mix(mixer, batch).images)
    assert not torch.equal(mix(mixer, batch).images, mix(mixer, batch, seed=2).images)
    # the parts follow from the index; the partners from the batch
    rows = torch.tensor([9, 1, 4])
    whole = not_none(mix(Mixer(0.5), batch).second).fractions
    alone = not_none(mix(Mixer(0.5), batch.select(rows)).second).fractions
    assert torch.equal(alone, whole[rows])


def test_pixels_stay_in_range() -> None:
    batch = make_batch()
    white = Batch(torch.ones_like(batch.images), batch.labels, batch.index)
    assert torch.equal(mix(Mixer(0.5, 0.5), white).images, white.images)


def test_a_single_image_is_mixed_with_itself() -> None:
    batch = make_batch(1)
    mixed = mix(Mixer(1.0), batch)
    torch.testing.assert_close(mixed.images, batch.images)
    assert torch.equal(not_none(mixed.second).labels, batch.labels)


def test_second_labels_follow_their_rows_and_device() -> None:
    mixed = mix(Mixer(0.5), make_batch())
    rows = torch.tensor([3, 0])
    selected = not_none(mixed.select(rows).second)
    assert torch.equal(selected.labels, not_none(mixed.second).labels[rows])
    moved = not_none(mixed.to("meta").second)
    assert moved.labels.device == moved.fractions.device == torch.device("meta")


def test_the_objective_of_mixed_images_is_the_mean_over_both_labels() -> None:
    logits = torch.tensor([[2.0, 0.0, 1.0], [0.5, 1.5, -1.0]])
    labels = torch.tensor([0, 1])
    second = SecondLabels(torch.tensor([2, 1]), torch.tensor([0.25, 0.4]))
    log_probabilities = logits.log_softmax(dim=1)
    expected: Tensor = -torch.stack(
        [
            0.75 * log_probabilities[0, 0] + 0.25 * log_probabilities[0, 2],
            log_probabilities[1, 1],
        ]
    )
    objective = MixedObjective(cross_entropy, second)
    torch.testing.assert_close(objective(logits, labels), expected)
    row = torch.tensor([0])
    torch.testing.assert_close(objective[row](logits[row], labels[row]), expected[row])

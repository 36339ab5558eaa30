"""Who is attacked, by whom, and whose result counts."""

import torch
from torch import nn

from wmr_cli.builtins.attacks.autoattack import AutoAttack
from wmr_cli.core.contracts import Attacked
from wmr_cli.core.losses import cross_entropy
from wmr_cli.core.objectives import objective_named
from wmr_cli.core.turns import restarted, take_turns
from wmr_cli.testing import tiny_batch, tiny_model


class Threshold(nn.Module):
    """Class 1 where the one pixel is above a half."""

    def forward(self, images):
        x = images.flatten(1)[:, :1]
        return torch.cat([torch.full_like(x, 0.5), x], dim=1)


IMAGES = torch.tensor([0.1, 0.2, 0.3, 0.9]).reshape(4, 1, 1, 1)
LABELS = torch.zeros(4, dtype=torch.long)


def attempt(seen, fools, value):
    """Moves the rows in `fools` to a value above a half, all others to one below; notes which rows it was given."""

    def run(rows, restart=0):
        seen.append(rows.tolist())
        moved = torch.tensor([value if row in fools else 0.4 for row in rows.tolist()]).reshape(-1, 1, 1, 1)
        return Attacked(moved, Threshold()(moved), torch.ones_like(rows))

    return run


def test_a_fooled_image_is_not_attacked_again_and_survivors_come_back_clean():
    seen = []
    result = take_turns(
        Threshold(), IMAGES, LABELS, [attempt(seen, {1}, 0.6), attempt(seen, {0, 1}, 0.7), attempt(seen, {3}, 0.8)]
    )
    assert seen == [[0, 1, 2], [0, 2], [2]], "one that is wrong from the start is never attacked"
    torch.testing.assert_close(result.images.flatten(), torch.tensor([0.7, 0.6, 0.3, 0.9]))
    assert torch.equal(result.logits, Threshold()(result.images))
    assert result.steps_survived.tolist() == [2, 1, 3, 0]


def test_when_nobody_stands_nobody_is_called():
    seen = []
    take_turns(Threshold(), IMAGES, LABELS, [attempt(seen, {0, 1, 2}, 0.6), attempt(seen, set(), 0.7)])
    assert seen == [[0, 1, 2]]


def test_without_stopping_every_restart_sees_every_image_and_the_strongest_counts():
    seen, values = [], [0.6, 0.8, 0.7]

    def run(rows, restart):
        return attempt(seen, {0, 1}, values[restart])(rows)

    result = restarted(run, Threshold(), IMAGES, LABELS, cross_entropy, 3, stops_early=False)
    assert seen == [[0, 1, 2, 3]] * 3
    torch.testing.assert_close(result.images.flatten(), torch.tensor([0.8, 0.8, 0.4, 0.4]))


def test_autoattack_is_the_worst_case_of_its_parts():
    model, batch = tiny_model(), tiny_batch(40)
    labels = model(batch.images).argmax(dim=1)
    whole = AutoAttack(eps=0.02, steps=5, queries=30)
    parts = [
        part(model, batch.images, labels, objective_named(getattr(part, "loss", "ce")), batch.index, 3).logits.argmax(dim=1)
        == labels
        for part in whole.parts()
    ]
    together = whole(model, batch.images, labels, cross_entropy, batch.index, 3)
    stands = torch.stack(parts).all(dim=0)
    assert torch.equal(together.logits.argmax(dim=1) == labels, stands)
    assert 0 < stands.sum() < 40
    assert torch.equal(together.images[stands], batch.images[stands])

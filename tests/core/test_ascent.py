"""The ascent loop against a loop written by hand, closed forms, and what must not change."""

import itertools

import pytest
import torch
from torch import nn
from torch.nn import functional

from wmr_cli.builtins.attacks.pgd import Pgd
from wmr_cli.core.ascent import ascend, box, start, worse
from wmr_cli.core.contracts import Attacked
from wmr_cli.core.losses import cross_entropy
from wmr_cli.core.modes import evaluating
from wmr_cli.core.norms import NORMS
from wmr_cli.core.objectives import OBJECTIVES

INDEX = torch.arange(100, 124)


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(16, 20), nn.Tanh(), nn.Linear(20, 3, bias=False))


def problem(count=24):
    """Images in steps of 1/64: with a radius and a step of the same kind float arithmetic is exact."""
    generator = torch.Generator().manual_seed(1)
    images = torch.randint(65, (count, 1, 4, 4), generator=generator) / 64
    return images, torch.randint(3, (count,), generator=generator)


def solvable_problem():
    """Images, and labels that the network gets right."""
    images, _ = problem()
    return images, network()(images).argmax(dim=1)


def run(attack, model=None, images=None, labels=None, objective=cross_entropy, index=INDEX, seed=3):
    if images is None:
        images, labels = problem()
    return attack(model or network(), images, labels, objective, index, seed)


def logit_margins(logits, labels):
    rows = zip(logits.tolist(), labels.tolist(), strict=True)
    return torch.tensor([row[label] - max(row[:label] + row[label + 1 :]) for row, label in rows])


def right(attacked, labels):
    return attacked.logits.argmax(dim=1) == labels


def test_the_box_is_the_exact_projection_onto_ball_and_unit_range():
    images, _ = problem()
    moved = images + torch.randint(-80, 81, images.shape, generator=torch.Generator().manual_seed(2)) / 64
    expected = torch.minimum(torch.maximum(moved, (images - 0.25).clamp(min=0)), (images + 0.25).clamp(max=1))
    assert torch.equal(box(images, moved, NORMS["linf"], 0.25), expected)


@pytest.mark.parametrize("name", ["linf", "l2"])
@pytest.mark.parametrize("eps", [0.0, 0.031, 8 / 255, 0.3, 2.0])
def test_the_box_stays_in_the_ball_and_in_the_unit_range(name, eps):
    generator = torch.Generator().manual_seed(3)
    images = torch.rand(50, 3, 8, 8, generator=generator)
    boxed = box(images, images + torch.randn(images.shape, generator=generator), NORMS[name], eps)
    assert boxed.min() >= 0
    assert boxed.max() <= 1
    assert NORMS[name].size(boxed - images).max() <= eps + 1e-6


@pytest.mark.parametrize("norm", ["linf", "l2"])
@pytest.mark.parametrize("begin", ["none", "gauss", "uniform"])
def test_without_radius_the_image_comes_back_exactly(norm, begin):
    images, labels = problem()
    attacked = run(Pgd(norm=norm, eps=0.0, steps=3, step=0.1, start=begin), images=images, labels=labels)
    assert torch.equal(attacked.images, images)


@pytest.mark.parametrize("norm", ["linf", "l2"])
@pytest.mark.parametrize("begin", ["none", "gauss:2", "uniform"])
def test_without_steps_the_start_comes_back_in_the_box(norm, begin):
    images, labels = problem()
    attacked = run(Pgd(norm=norm, eps=0.1, steps=0, start=begin), images=images, labels=labels)
    kind, _, scale = begin.partition(":")
    assert torch.equal(attacked.images, start(kind, images, NORMS[norm], 0.1, INDEX, seed=3, scale=float(scale or 0.001)))
    assert attacked.images.min() >= 0
    assert attacked.images.max() <= 1
    assert NORMS[norm].size(attacked.images - images).max() <= 0.1 + 1e-6
    assert attacked.steps_survived.tolist() == [0] * 24
    assert torch.equal(attacked.images, images) == (begin == "none")


@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_an_image_without_gradient_stays_in_place(norm):
    class Constant(nn.Module):
        def forward(self, images):
            return images.flatten(1)[:, :3] * 0

    images, labels = problem()
    attacked = run(Pgd(norm=norm, eps=0.25, steps=3, start="none"), Constant(), images, labels)
    assert torch.equal(attacked.images, images)


@pytest.mark.parametrize("name", ["ce", "margin", "pmargin"])
def test_ascend_is_pgd_written_by_hand_bit_for_bit(name):
    def by_hand(logits, labels):
        scores = logits.softmax(dim=1) if name == "pmargin" else logits
        if name == "ce":
            return functional.cross_entropy(logits, labels, reduction="sum")
        others = scores.masked_fill(functional.one_hot(labels, 3).bool(), -1e9).amax(dim=1)
        return (others - scores[torch.arange(len(labels)), labels]).sum()

    model, (images, labels) = network(), problem()
    begin = (images + torch.randint(-16, 17, images.shape, generator=torch.Generator().manual_seed(4)) / 64).clamp(0, 1)
    moved = begin.clone()
    for _ in range(7):
        moved.requires_grad_()
        (gradient,) = torch.autograd.grad(by_hand(model(moved), labels), moved)
        moved = moved.detach() + 5 / 64 * gradient.sign()
        moved = torch.minimum(torch.maximum(moved, images - 16 / 64), images + 16 / 64).clamp(0, 1)
    settings = {"norm": NORMS["linf"], "eps": 16 / 64, "step": 5 / 64, "steps": 7}
    attacked = ascend(model, images, labels, OBJECTIVES[name], begin, **settings)
    assert torch.equal(attacked.images, moved)
    assert torch.equal(attacked.logits, model(moved))


@pytest.mark.parametrize(("norm", "dual"), [("linf", 1), ("l2", 2)])
def test_a_linear_network_is_attacked_to_the_optimum(norm, dual):
    torch.manual_seed(5)
    linear = nn.Linear(16, 2)
    images, labels = torch.full((24, 1, 4, 4), 0.5), torch.arange(24) % 2
    attacked = run(Pgd(norm=norm, eps=0.3, steps=10, start="none"), nn.Sequential(nn.Flatten(), linear), images, labels)
    before = logit_margins(linear(images.flatten(1)), labels)
    loss_of_margin = 0.3 * (linear.weight[0] - linear.weight[1]).norm(p=dual).item()
    assert logit_margins(attacked.logits, labels).tolist() == pytest.approx((before - loss_of_margin).tolist(), abs=1e-5)


@pytest.mark.parametrize("norm", ["linf", "l2"])
@pytest.mark.parametrize("name", ["ce", "margin", "pmargin"])
def test_the_attack_raises_its_objective_for_every_image(norm, name):
    model, objective, (images, labels) = network(), OBJECTIVES[name], solvable_problem()
    attacked = run(Pgd(norm=norm, eps=0.2, steps=10, start="none"), model, images, labels, objective)
    assert (objective(attacked.logits, labels) > objective(model(images), labels)).all()


def test_parameters_get_no_gradient_and_keep_their_flags():
    model, (images, labels) = network(), problem()
    model[1].weight.requires_grad_(False)
    model[3].weight.grad = torch.ones_like(model[3].weight)
    flags = [parameter.requires_grad for parameter in model.parameters()]
    run(Pgd(steps=3), model, images, labels)
    assert [parameter.requires_grad for parameter in model.parameters()] == flags
    assert model[1].weight.grad is None
    assert model[1].bias.grad is None
    assert torch.equal(model[3].weight.grad, torch.ones_like(model[3].weight))


def test_the_images_it_was_given_are_left_alone():
    images, labels = problem()
    before = images.clone()
    attacked = run(Pgd(steps=3, eps=0.1, start="none"), images=images, labels=labels)
    assert torch.equal(images, before)
    assert not images.requires_grad
    assert not attacked.images.requires_grad
    assert not attacked.logits.requires_grad


def test_it_attacks_where_gradients_are_switched_off():
    with torch.no_grad():
        without = run(Pgd(steps=3, eps=0.1))
    assert torch.equal(without.images, run(Pgd(steps=3, eps=0.1)).images)


def mixed_model():
    model = nn.Sequential(nn.Linear(2, 2), nn.Sequential(nn.BatchNorm1d(2), nn.Dropout()))
    model[1][0].eval()
    return model


def modes(model):
    return [module.training for module in model.modules()]


def test_evaluating_puts_back_the_mode_of_every_module():
    model = mixed_model()
    before = modes(model)
    with evaluating(model):
        assert not any(modes(model))
    assert modes(model) == before == [True, True, True, False, True]


def test_evaluating_puts_back_the_modes_after_an_error():
    model = mixed_model()
    before = modes(model)
    with pytest.raises(RuntimeError, match="in between"), evaluating(model):
        raise RuntimeError("in between")
    assert modes(model) == before


@pytest.mark.parametrize("begin", ["none", "uniform"])
def test_the_best_iterate_is_never_worse_than_the_last(begin):
    images, labels = solvable_problem()
    settings = {"eps": 0.3, "steps": 6, "step": 0.25, "start": begin}  # steps so long that the last is not the best
    last, best = (run(Pgd(**settings, keep=keep), images=images, labels=labels) for keep in ("last", "best"))
    margins = logit_margins(best.logits, labels)
    assert (margins <= logit_margins(last.logits, labels)).all()
    for steps in range(7):
        earlier = run(Pgd(**(settings | {"steps": steps})), images=images, labels=labels)
        assert (margins <= logit_margins(earlier.logits, labels)).all()
    assert torch.equal(network()(best.images), best.logits)
    assert (margins < logit_margins(last.logits, labels)).any()


def test_restarts_never_raise_a_margin_nor_the_accuracy():
    images, labels = solvable_problem()
    found = [run(Pgd(eps=0.2, steps=2, restarts=restarts), images=images, labels=labels) for restarts in (1, 2, 4, 8)]
    margins = [logit_margins(attacked.logits, labels) for attacked in found]
    accuracies = [right(attacked, labels).float().mean().item() for attacked in found]
    assert all((more <= fewer).all() for fewer, more in itertools.pairwise(margins))
    assert accuracies == sorted(accuracies, reverse=True)
    assert (margins[-1] < margins[0]).any()


def test_steps_survived_counts_the_steps_before_which_an_image_was_right():
    images, labels = solvable_problem()
    attack = {"eps": 0.4, "step": 0.05, "start": "none"}
    iterates = [run(Pgd(**attack, steps=steps), images=images, labels=labels) for steps in range(8)]
    expected = torch.stack([right(iterate, labels) for iterate in iterates]).sum(dim=0)
    survived = run(Pgd(**attack, steps=8), images=images, labels=labels).steps_survived
    assert torch.equal(survived, expected)
    assert survived.min() < survived.max()
    best = run(Pgd(**attack, steps=8, keep="best"), images=images, labels=labels)
    assert torch.equal(best.steps_survived, expected)


def test_worse_picks_the_lower_margin_image_by_image_and_the_later_on_ties():
    labels = torch.tensor([0, 0, 0])
    first = Attacked(torch.zeros(3, 1, 1, 1), torch.tensor([[1.0, 0.0], [3.0, 0.0], [2.0, 0.0]]), torch.tensor([4, 1, 2]))
    second = Attacked(torch.ones(3, 1, 1, 1), torch.tensor([[2.0, 0.0], [1.0, 5.0], [9.0, 7.0]]), torch.tensor([3, 2, 2]))
    picked = worse(first, second, labels)
    assert picked.images.flatten().tolist() == [0, 1, 1]
    assert picked.logits.tolist() == [[1, 0], [1, 5], [9, 7]]
    assert picked.steps_survived.tolist() == [3, 1, 2]
    assert worse(None, second, labels) is second


def test_on_a_tie_an_image_that_was_fooled_stays_fooled():
    labels = torch.tensor([1])
    fooled = Attacked(torch.zeros(1, 1, 1, 1), torch.tensor([[1.0, 1.0, 0.0]]), torch.tensor([0]))
    survived = Attacked(torch.ones(1, 1, 1, 1), torch.tensor([[0.0, 1.0, 1.0]]), torch.tensor([0]))
    assert torch.equal(worse(fooled, survived, labels).logits, fooled.logits)
    assert torch.equal(worse(survived, fooled, labels).logits, fooled.logits)


@pytest.mark.parametrize("norm", ["linf", "l2"])
@pytest.mark.parametrize("begin", ["gauss", "uniform"])
def test_a_batch_is_attacked_like_its_pieces_in_any_order(norm, begin):
    images, labels = solvable_problem()
    attack = Pgd(norm=norm, eps=0.2, steps=5, start=begin, restarts=2)
    together = run(attack, images=images, labels=labels)
    for rows in torch.randperm(24, generator=torch.Generator().manual_seed(6)).split(5):
        piece = run(attack, images=images[rows], labels=labels[rows], index=INDEX[rows])
        torch.testing.assert_close(piece.images, together.images[rows], rtol=0, atol=1e-5)
        assert torch.equal(piece.logits.argmax(dim=1), together.logits[rows].argmax(dim=1))
        assert torch.equal(piece.steps_survived, together.steps_survived[rows])


@pytest.mark.parametrize("name", ["linf", "l2"])
def test_a_random_start_lies_in_the_ball_and_follows_seed_and_restart(name):
    images, _ = problem()
    starts = [start("uniform", images, NORMS[name], 0.2, INDEX, seed, restart) for seed in (0, 1) for restart in (0, 1)]
    assert len({tuple(begin.flatten().tolist()) for begin in starts}) == 4
    for begin in starts:
        assert NORMS[name].size(begin - images).max() <= 0.2 + 1e-6
        assert begin.min() >= 0
        assert begin.max() <= 1

"""Target classes and the targeted ratio by hand."""

import pytest
import torch

from wmr_cli.core.objectives import TargetedDlrLoss, most_likely_targets

LOGITS = torch.tensor([[3.0, 1.0, 2.0, 0.0, -1.0], [0.0, 5.0, 4.0, 1.0, 2.0]])


def test_targets_are_the_likely_wrong_classes_in_their_order() -> None:
    labels = torch.tensor([2, 1])
    assert most_likely_targets(LOGITS, labels).tolist() == [[0, 1, 3, 4], [2, 4, 3, 0]]
    assert most_likely_targets(LOGITS, labels, 2).tolist() == [[0, 1], [2, 4]]
    assert most_likely_targets(LOGITS[:, :2], torch.tensor([0, 1])).tolist() == [[1], [0]]


def test_the_targeted_ratio_by_hand() -> None:
    ratio = TargetedDlrLoss(torch.tensor([1, 4]))
    values = ratio(LOGITS, torch.tensor([0, 2]))
    assert values.tolist() == pytest.approx(
        [(1 - 3) / (3 - (1 + 0) / 2), (2 - 4) / (5 - (2 + 1) / 2)]
    )
    torch.testing.assert_close(ratio(7 * LOGITS + 3, torch.tensor([0, 2])), values)
    assert ratio[torch.tensor([1])](LOGITS[1:], torch.tensor([2])).tolist() == pytest.approx(
        values[1:].tolist()
    )


@pytest.mark.parametrize("classes", [2, 3])
def test_with_few_classes_it_is_the_targeted_margin(classes: int) -> None:
    values = TargetedDlrLoss(torch.tensor([1, 0]))(LOGITS[:, :classes], torch.tensor([0, 1]))
    assert values.tolist() == [-2.0, -5.0]


def test_equal_logits_give_a_finite_ratio() -> None:
    logits = torch.zeros(1, 5, requires_grad=True)
    value = TargetedDlrLoss(torch.tensor([1]))(logits, torch.tensor([0]))
    (gradient,) = torch.autograd.grad(value.sum(), logits)
    assert value.tolist() == [0.0]
    assert gradient.isfinite().all()

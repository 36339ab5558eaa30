"""Ranks, ties, temperature, and the kernel in the program."""

import itertools
import json
import math
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from wmr_cli import BadInput, create, measures
from wmr_cli.core import Evidence, logit_margin, probability_margin
from wmr_cli.testing import check_kernel
from wmr_rank.kernel import Rank, spread_ranks


@pytest.fixture
def evidence() -> Evidence:
    generator = torch.Generator().manual_seed(4)
    logits = 3 * torch.randn(200, 10, dtype=torch.float64, generator=generator)
    return Evidence(logits, torch.arange(200) % 10)


def at_temperature(evidence: Evidence, temperature: float) -> Evidence:
    return Evidence(evidence.logits / temperature, evidence.labels)


def test_the_contract() -> None:
    check_kernel(Rank(alpha=2.0))


def test_ranks_by_hand() -> None:
    values = torch.tensor([5.0, -1.0, 2.0, 2.0, 9.0])
    torch.testing.assert_close(spread_ranks(values), torch.tensor([0.5, -1.0, -0.25, -0.25, 1.0]))
    assert spread_ranks(torch.tensor([7.0])).tolist() == [0.0]
    assert spread_ranks(torch.full((4,), 3.0)).tolist() == [0.0] * 4


def test_ties_share_their_mean_rank_in_any_order() -> None:
    values = torch.tensor([1.0, 1.0, 1.0, 0.0, 2.0])
    expected = {1.0: 0.0, 0.0: -1.0, 2.0: 1.0}
    for order in itertools.permutations(range(5)):
        shuffled = values[list(order)]
        assert spread_ranks(shuffled).tolist() == [expected[value] for value in shuffled.tolist()]


@pytest.mark.parametrize("temperature", [0.01, 0.3, 3.0, 100.0])
def test_no_temperature_moves_a_weight(evidence: Evidence, temperature: float) -> None:
    assert torch.equal(Rank(2.0)(at_temperature(evidence, temperature)), Rank(2.0)(evidence))


@pytest.mark.parametrize("temperature", [0.3, 3.0])
def test_the_paper_s_kernel_moves_with_temperature(evidence: Evidence, temperature: float) -> None:
    exp = create("kernel", "exp:alpha=2")
    weights, scaled = (
        measures.normalized_weights(exp(each))
        for each in (evidence, at_temperature(evidence, temperature))
    )
    assert abs(scaled / weights - 1).max() > 0.1


def test_probability_margins_change_their_order_with_temperature_and_logit_margins_do_not(
    evidence: Evidence,
) -> None:
    scaled = at_temperature(evidence, 3.0)
    by_probability, by_logit = (
        [spread_ranks(margin(each.logits, each.labels)) for each in (evidence, scaled)]
        for margin in (probability_margin, logit_margin)
    )
    assert not torch.equal(*by_probability)
    assert torch.equal(*by_logit)


def test_a_constant_added_to_the_logits_of_an_image_changes_nothing(evidence: Evidence) -> None:
    shifts = torch.randint(
        -8, 8, (len(evidence.labels), 1), generator=torch.Generator().manual_seed(0)
    )
    coarse = (evidence.logits * 64).round() / 64  # sums of these are exact
    plain = Evidence(coarse, evidence.labels)
    shifted = Evidence(coarse + shifts, evidence.labels)
    assert torch.equal(Rank(2.0)(plain), Rank(2.0)(shifted))


def test_lower_margins_have_more_weight_and_alpha_sets_how_much(evidence: Evidence) -> None:
    order = logit_margin(evidence.logits, evidence.labels).argsort()
    logs = Rank(1.5)(evidence)[order]
    assert bool((logs.diff() < 0).all())
    assert logs[0] - logs[-1] == pytest.approx(3.0)
    assert Rank(0.0)(evidence).abs().max() == 0


def test_weights_have_no_gradient(evidence: Evidence) -> None:
    logits = evidence.logits.clone().requires_grad_()
    assert not Rank()(Evidence(logits, evidence.labels)).requires_grad


def test_images_far_apart_in_float32_but_close_to_each_other_have_different_ranks() -> None:
    logits = torch.tensor([[1e4, 0.0], [1e4, -1e-3]], dtype=torch.float32)
    assert Rank(1.0)(Evidence(logits, torch.zeros(2, dtype=torch.long))).tolist() == [1.0, -1.0]


def test_half_precision_stays_half_precision(evidence: Evidence) -> None:
    logs = Rank(1.0)(Evidence(evidence.logits.bfloat16(), evidence.labels))
    assert logs.dtype == torch.bfloat16
    assert bool(logs.isfinite().all())


def test_a_negative_alpha_is_refused() -> None:
    with pytest.raises(BadInput, match="`alpha`"):
        Rank(alpha=-1.0)


def test_an_evaluation_ranks_all_images_and_agrees_with_the_check_of_the_program(
    wmr: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path
) -> None:
    trained = wmr(
        "train", "--kernel", "rank", "--alpha", "2", "--epochs", "2", "--steps", "2", "--out", "run"
    )
    assert trained.returncode == 0, trained.stderr
    log = [json.loads(line) for line in (tmp_path / "run" / "log.jsonl").read_text().splitlines()]
    assert [entry["weight_mean"] for entry in log] == pytest.approx([1.0, 1.0], abs=1e-5)
    # the largest of a batch is exp(2) over the mean of exp(-2 r) with r spread evenly over [-1, 1]
    assert log[-1]["weight_max"] == pytest.approx(math.exp(2) / (math.sinh(2) / 2), rel=0.05)
    few = [
        "evaluate",
        "run",
        "--steps",
        "2",
        "--limit",
        "200",
        "--format",
        "json",
        "--alpha-test",
        "2",
    ]
    one_batch = wmr(*few, "--kernel", "rank", "--batch-size", "200", "--out", "200")
    small_batches = wmr(*few, "--kernel", "rank", "--batch-size", "32", "--out", "32")
    assert one_batch.returncode == 0, one_batch.stderr
    (record,) = json.loads(one_batch.stdout)
    (small_record,) = json.loads(small_batches.stdout)
    assert record["plugins"] == {"wmr-rank": "0.1.0"}
    (row,) = record["by_alpha"]
    (small_row,) = small_record["by_alpha"]
    # the whole set is ranked, so the result is independent of the batch size
    assert row["a_sa"]["value"] == pytest.approx(small_row["a_sa"]["value"], abs=1e-6)
    # an attack cannot maximise weights without a gradient
    assert row["a_tr"]["value"] == row["a_sa"]["value"]
    assert row["a_sa"]["value"] < record["a_rob"]["value"]
    checked = wmr(*few, "--kernel", "exp", "--checks", "--out", "exp")
    (usual,) = json.loads(checked.stdout)
    (by_ranks,) = [
        check["value"] for check in usual["checks"] if check["name"] == "A_sa(2) by ranks"
    ]
    assert row["a_sa"]["value"] == pytest.approx(by_ranks, abs=1e-6)
    assert row["a_sa"]["value"] != pytest.approx(usual["by_alpha"][0]["a_sa"]["value"], abs=1e-6)

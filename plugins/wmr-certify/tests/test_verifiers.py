"""The contract of the verifiers, refused models, and runs of the command."""

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import wmr_cli
from wmr_certify.verifiers import Crown, IntervalBounds
from wmr_cli.core import Batch, LogitBounds, Verifier, VerifierTraits
from wmr_cli.testing import check_verifier

Run = Callable[..., "subprocess.CompletedProcess[str]"]
NETWORK = """from torch import nn

class Net(nn.Sequential):
    def __init__(self, num_classes, input_shape):
        super().__init__(nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, num_classes))
"""


@pytest.mark.parametrize("verifier", [IntervalBounds(), Crown(steps=3), Crown(steps=2, splits=3)])
def test_a_verifier_meets_its_contract(verifier: Verifier) -> None:
    check_verifier(verifier)


class Sigmoid(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.squash = nn.Sigmoid()
        self.last = nn.Linear(4, 2)

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.last(self.squash(images.flatten(1)))
        return logits


class Branching(nn.Module):
    def forward(self, images: Tensor) -> Tensor:
        return images.flatten(1) if images.sum() > 0 else -images.flatten(1)


class Mixing(nn.Module):
    def forward(self, images: Tensor) -> Tensor:
        return (images - images.mean()).flatten(1)


@pytest.mark.parametrize(
    ("model", "named"), [(Sigmoid(), "Sigmoid"), (Branching(), "Branching"), (Mixing(), "sub")]
)
@pytest.mark.parametrize("verifier", [IntervalBounds(), Crown()])
def test_a_model_that_cannot_be_bounded_is_refused_by_name(
    verifier: Verifier, model: nn.Module, named: str
) -> None:
    batch = Batch(torch.rand(3, 1, 2, 2), torch.tensor([0, 1, 0]), torch.arange(3))
    with pytest.raises(wmr_cli.BadInput, match=named):
        verifier(model, batch, norm="linf", eps=0.1, num_classes=2)


@pytest.mark.parametrize("parameters", [{"steps": -1}, {"splits": -1}, {"rate": 0.0}])
def test_invalid_parameters_are_refused(parameters: dict[str, Any]) -> None:
    with pytest.raises(wmr_cli.BadInput, match=next(iter(parameters))):
        Crown(**parameters)


def test_the_command_records_bounds_that_contain_the_accuracies(wmr: Run, tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text(NETWORK)
    words = "--epochs 3 --out run --model net.py:Net"
    assert wmr("train", *words.split()).returncode == 0
    evaluate = "evaluate run --eps 0.05 --attack pgd --attack fgsm --metrics rob,sa --format json"
    ran = wmr(*evaluate.split(), "--certify", "crown:steps=5")
    assert ran.returncode == 0, ran.stderr
    records = json.loads(ran.stdout)
    assert len(records) == 3
    for record in records:
        bounds = record["bounds"]
        assert bounds["certified"] + bounds["broken"] + bounds["unknown"] == record["dataset"]["n"]
        assert bounds["certified"] > 0
        assert bounds["a_rob"]["lower"] <= record["a_rob"]["value"] == bounds["a_rob"]["upper"]
        for row, part in zip(record["by_alpha"], bounds["by_alpha"], strict=True):
            assert part["a_sa"]["lower"] <= row["a_sa"]["value"] <= part["a_sa"]["upper"]
            assert part["a_sa_fixed"]["upper"] == row["a_sa"]["value"]
    plain = json.loads(wmr(*evaluate.split()).stdout)
    assert {record["bounds"] for record in plain} == {None}
    assert not {record["id"] for record in plain} & {record["id"] for record in records}
    # without torch, at another alpha
    again = json.loads(wmr("report", "run", "--alpha-test", "3", "--format", "json").stdout)
    alphas = [
        row["alpha_test"] for one in again if one["bounds"] for row in one["bounds"]["by_alpha"]
    ]
    assert alphas == [3.0] * 3


class Liar:
    """Claims that every image is robust."""

    traits = VerifierTraits()

    def __call__(
        self, model: nn.Module, batch: Batch, *, norm: str, eps: float, num_classes: int
    ) -> LogitBounds:
        bounds = torch.full((len(batch.labels), num_classes), 0.5, dtype=torch.float64)
        return LogitBounds(bounds.scatter(1, batch.labels[:, None].cpu(), torch.inf))


def test_an_unsound_verifier_ends_the_run(wmr: Run, tmp_path: Path) -> None:
    (tmp_path / "liar.py").write_text(Path(__file__).read_text())
    assert wmr("train", "--epochs", "1", "--out", "run").returncode == 0
    ran = wmr("evaluate", "run", "--certify", f"{tmp_path / 'liar.py'}:Liar")
    assert ran.returncode == 2
    assert "unsound" in ran.stderr
    assert "images " in ran.stderr
    assert not list((tmp_path / "run").glob("evaluations/*.json"))


def test_results_in_python_have_bounds_and_statuses() -> None:
    torch.manual_seed(0)
    digits = wmr_cli.create("dataset", "digits").splits["test"]
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    result = wmr_cli.evaluate(model, digits, eps=0.01, metrics=("rob", "sa"), certify="crown")
    statuses = result.statuses
    assert set(statuses) <= {"certified", "broken", "unknown"}
    # bounds of an affine network are exact: nothing but the safety margin is left open
    assert (statuses == "unknown").mean() < 0.02
    assert result.a_rob_bounds.lower == (statuses == "certified").mean()
    bounds = result.a_sa_bounds(1.7)
    assert bounds.low <= bounds.lower <= result.a_sa(1.7).value <= bounds.upper <= bounds.high

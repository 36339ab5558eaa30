"""Every sanity check fails for a network that is made to fail it."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from support.typed import instance_of, not_none
from wmr_cli.config import EvaluateConfig
from wmr_cli.evaluation.run import evaluate
from wmr_cli.evaluation.sanity_checks import BackwardCounter
from wmr_cli.events import EvaluationDone
from wmr_cli.registry import Registry
from wmr_cli.runtime.fabric import Hardware
from wmr_cli.storage import checkpoints

pytestmark = pytest.mark.usefixtures("trusts_local_code")

MASKING_NETWORKS = '''
"""Networks that look robust. Each wraps a trained one."""
import torch
from torch import nn
from torch.autograd import grad
from wmr_cli import create

def base(num_classes, input_shape):
    return create("model", "digits-cnn", num_classes=num_classes, input_shape=input_shape)

class Honest(nn.Module):
    def __init__(self, num_classes, input_shape):
        super().__init__()
        self.network = base(num_classes, input_shape)
    def forward(self, images):
        return self.network(images)

class Rounded(Honest):
    """Rounding has no gradient, so that gradient attacks do not move."""
    def forward(self, images):
        return self.network((images * 8).round() / 8)

class Random(Honest):
    def forward(self, images):
        return self.network(images + 0.1 * torch.randn_like(images))

class Probabilities(Honest):
    def forward(self, images):
        return self.network(images).softmax(dim=1)

class Saturated(Honest):
    """Huge logits: the gradient of the cross-entropy vanishes."""
    def forward(self, images):
        return self.network(images) * 1e4

class Hidden(Honest):
    """Like Optimising, but with `grad` imported by name."""
    def forward(self, images):
        with torch.enable_grad():
            own = images.detach().requires_grad_()
            (gradient,) = grad(self.network(own).amax(dim=1).sum(), own)
        return self.network(images + 0.01 * gradient.sign())

class Optimising(Honest):
    """Changes the image by its own gradient before it classifies it."""
    def forward(self, images):
        with torch.enable_grad():
            own = images.detach().requires_grad_()
            (gradient,) = torch.autograd.grad(self.network(own).amax(dim=1).sum(), own)
        return self.network(images + 0.01 * gradient.sign())
'''


@pytest.fixture
def networks(tmp_path: Path) -> Path:
    (tmp_path / "networks.py").write_text(MASKING_NETWORKS, encoding="utf-8")
    return tmp_path / "networks.py"


def run_checks(
    networks: Path, name: str, run: Path, registry: Registry, tmp_path: Path, **settings: Any
) -> dict[str, str]:
    """Return the verdict of every check for one of the networks, with the weights of a run."""
    weights = {f"network.{key}": tensor for key, tensor in checkpoints.load(run).tensors.items()}
    torch.save(weights, tmp_path / "weights.pt")
    config = EvaluateConfig(
        model=f"{networks}:{name}",
        dataset="digits",
        eps=(0.15,),
        metrics=("nat", "rob", "sa"),
        limit=100,
        checks=True,
        **settings,
    )
    events = list(
        evaluate(
            tmp_path / "weights.pt",
            config,
            registry,
            data_dir=Path(),
            hardware=Hardware("cpu"),
            out=tmp_path / name,
        )
    )
    (done,) = [event for event in events if isinstance(event, EvaluationDone)]
    stored = json.loads(done.rows.with_suffix(".json").read_text())["checks"]
    assert [check["name"] for check in stored] == [
        check.name for check in instance_of(EvaluationDone, done).record.checks
    ]
    return {check.name: check.verdict for check in instance_of(EvaluationDone, done).record.checks}


def test_an_honest_network_passes_every_check(
    networks: Path, tiny_run: Path, registry: Registry, tmp_path: Path
) -> None:
    found = run_checks(networks, "Honest", tiny_run, registry, tmp_path, attacks=("pgd-margin",))
    assert {name for name, verdict in found.items() if verdict == "fail"} == set()
    assert [name for name, verdict in found.items() if verdict == "note"] == [
        *(f"A_sa(2) at temperature {temperature}" for temperature in ("0.5", "1", "2")),
        "temperature that fits best",
        "A_sa(2) by ranks",
    ]
    assert len(found) >= 12


def test_a_weak_attack_on_an_honest_network_fails_checks(
    networks: Path, tiny_run: Path, registry: Registry, tmp_path: Path
) -> None:
    found = run_checks(
        networks,
        "Honest",
        tiny_run,
        registry,
        tmp_path,
        attacks=("pgd:steps=1,step=0.01,start=none",),
    )
    failed = {name for name, verdict in found.items() if verdict == "fail"}
    assert {"one step does not win", "a black box does not win"} <= failed


@pytest.mark.parametrize(
    ("name", "fails"),
    [
        (
            "Rounded",
            {"gradients are there", "a black box does not win", "a huge ball leaves nothing"},
        ),
        ("Random", {"two passes agree"}),
        ("Probabilities", {"outputs are logits"}),
        ("Saturated", {"gradients are there", "a black box does not win"}),
        ("Optimising", {"no autograd inside"}),
        ("Hidden", {"no autograd inside"}),
    ],
)
def test_a_network_that_masks_gradients_fails_its_check(
    networks: Path, tiny_run: Path, registry: Registry, tmp_path: Path, name: str, fails: set[str]
) -> None:
    found = run_checks(networks, name, tiny_run, registry, tmp_path)
    assert fails <= {check for check, verdict in found.items() if verdict == "fail"}


@pytest.mark.parametrize(
    ("attack", "expected"),
    [
        ("square:queries=50", "100 queries, 2 restarts"),
        ("noise:restarts=2", "4 restarts"),
        ("fgsm", "no steps or restarts to double"),
    ],
)
def test_steps_queries_and_restarts_are_doubled_if_the_attack_has_them(
    tiny_run: Path, registry: Registry, tmp_path: Path, attack: str, expected: str
) -> None:
    config = EvaluateConfig(attacks=(attack,), metrics=("rob",), limit=20, checks=True)
    *_, done = evaluate(
        tiny_run, config, registry, data_dir=Path(), hardware=Hardware("cpu"), out=tmp_path / "more"
    )
    (check,) = [
        check
        for check in instance_of(EvaluationDone, done).record.checks
        if check.name == "more steps do not help"
    ]
    assert expected in check.text
    assert (check.verdict == "note") == (attack == "fgsm")


def test_only_existing_attributes_of_an_attack_are_doubled(
    tiny_run: Path, registry: Registry, tmp_path: Path
) -> None:
    (tmp_path / "forwarding.py").write_text(
        "from wmr_cli import create\n"
        "def forward(eps=0.1, **options):\n"
        "    return create('attack', 'fgsm', eps=eps)\n"
    )
    config = EvaluateConfig(
        attacks=(f"{tmp_path}/forwarding.py:forward",), metrics=("rob",), limit=20, checks=True
    )
    *_, done = evaluate(
        tiny_run,
        config,
        registry,
        data_dir=Path(),
        hardware=Hardware("cpu"),
        out=tmp_path / "forwarded",
    )
    (check,) = [
        check
        for check in instance_of(EvaluationDone, done).record.checks
        if check.name == "more steps do not help"
    ]
    assert check.verdict == "note"


def test_a_sa_increases_with_the_temperature(
    networks: Path, tiny_run: Path, registry: Registry, tmp_path: Path
) -> None:
    config = EvaluateConfig(metrics=("sa",), limit=100, checks=True)
    *_, done = evaluate(
        tiny_run,
        config,
        registry,
        data_dir=Path(),
        hardware=Hardware("cpu"),
        out=tmp_path / "temperatures",
    )
    at = {
        check.name: check.value
        for check in instance_of(EvaluationDone, done).record.checks
        if check.verdict == "note"
    }
    assert at["A_sa(2) at temperature 1"] == pytest.approx(
        not_none(instance_of(EvaluationDone, done).record.by_alpha[-1].a_sa).value, abs=1e-6
    )
    assert (
        at["A_sa(2) at temperature 0.5"]
        < at["A_sa(2) at temperature 1"]
        < at["A_sa(2) at temperature 2"]
    )


@pytest.mark.parametrize(
    "differentiate",
    [
        lambda loss, image: loss.backward(),
        lambda loss, image: torch.autograd.grad(loss, image),
        lambda loss, image: torch.func.grad(lambda other: (other**2).sum())(image.detach()),
    ],
    ids=["Tensor.backward", "autograd.grad", "func.grad"],
)
def test_every_backward_pass_counts_once(differentiate: Callable[..., object]) -> None:
    with BackwardCounter() as counter:
        for _ in range(2):
            image = torch.ones(3, requires_grad=True)
            differentiate((image**2).sum(), image)
    assert counter.calls == 2

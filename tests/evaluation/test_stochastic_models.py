"""Stochastic models: attacks average over draws, and records are the same twice."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import wmr_cli as wmr
from support.typed import not_none
from wmr_cli.api import Result
from wmr_cli.config import EvaluateConfig
from wmr_cli.core import MemorySplit
from wmr_cli.errors import BadInput
from wmr_cli.evaluation.run import evaluate
from wmr_cli.evaluation.tasks import plan_tasks
from wmr_cli.events import EvaluationDone, Message
from wmr_cli.registry import Registry
from wmr_cli.runtime.fabric import Hardware
from wmr_cli.storage import checkpoints, records

pytestmark = pytest.mark.usefixtures("trusts_local_code")

EPS = 0.15
TIMES = ("created", "seconds", "images_per_second")
LOCAL_MODEL = """
import torch
from torch import nn
from wmr_cli import create

class Masked(nn.Module):
    def __init__(self, num_classes, input_shape):
        super().__init__()
        self.model = create(
            "model", "digits-cnn", num_classes=num_classes, input_shape=input_shape
        )
    def forward(self, images):
        return self.model(torch.where(torch.rand_like(images) < 0.6, images, 0.5))
"""


class Masked(nn.Module):
    """Hides 40 % of the pixels, others in each pass."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.model(torch.where(torch.rand_like(images) < 0.6, images, 0.5))
        return logits


class Shifted(Masked):
    """Pads images and crops them at random, as defenses by random resizing do."""

    def forward(self, images: Tensor) -> Tensor:
        side = images.shape[-1]
        padded = nn.functional.pad(images, (1, 1, 1, 1))
        corners = torch.randint(0, 3, (len(images), 2)).tolist()
        crops = [
            image[:, top : top + side, left : left + side]
            for image, (top, left) in zip(padded, corners, strict=True)
        ]
        logits: Tensor = self.model(torch.stack(crops))
        return logits


MODELS = {"masked": Masked, "shifted": Shifted}


@pytest.fixture(scope="module")
def digits() -> MemorySplit:
    split = wmr.create("dataset", "digits").splits["test"]
    assert isinstance(split, MemorySplit)
    return split


@pytest.fixture
def network(tiny_run: Path) -> nn.Module:
    return wmr.load(tiny_run)


def measure(model: nn.Module, digits: MemorySplit, attack: str, **settings: Any) -> Result:
    options: dict[str, Any] = {"eps": EPS, "metrics": ("nat", "rob"), **settings}
    images = options.pop("images", 200)
    first = [(digits.batch(torch.arange(images)))]
    batches = [(batch.images, batch.labels, batch.index) for batch in first]
    return wmr.evaluate(model, batches, attack=attack, **options)


def list_rows(result: Result) -> dict[str, bytes]:
    return {name: values.tobytes() for name, values in result.rows.items()}


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("attack", ["fgsm", "pgd:steps=5"])
def test_an_attack_on_single_draws_overstates_the_robust_accuracy(
    network: nn.Module, digits: MemorySplit, kind: str, attack: str
) -> None:
    model = MODELS[kind](network)
    spec = f"{attack}{',' if ':' in attack else ':'}eot=20"
    one_draw = measure(model, digits, attack, draws=20)
    averaged = measure(model, digits, spec, draws=20)
    assert averaged.a_rob.value < one_draw.a_rob.value - 0.03
    assert averaged.a_nat == one_draw.a_nat


@pytest.mark.parametrize(
    "attack",
    [
        "pgd:steps=3",
        "pgd:steps=3,restarts=2,keep=best,eot=2",
        "apgd-ce:steps=3,eot=2",
        "apgd-t:steps=2,targets=2,eot=2",
        "fab-t:steps=2,targets=2",
        "square:queries=10",
        "authors-eval:steps=2,restarts=2",
        "autoattack:steps=3,version=rand,eot=2",
    ],
)
def test_a_stochastic_model_gives_the_same_rows_twice(
    network: nn.Module, digits: MemorySplit, attack: str
) -> None:
    found = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        found.append(list_rows(measure(Masked(network), digits, attack, images=70, draws=2)))
    assert found[0] == found[1]
    other = measure(Masked(network), digits, attack, images=70, draws=2, seed=1)
    assert list_rows(other) != found[0]


@pytest.mark.parametrize(
    "attack", ["pgd:steps=2,eot=2", "apgd-t:steps=2,targets=2", "autoattack:steps=2,version=rand"]
)
def test_in_batches_of_one_image_a_row_does_not_depend_on_other_images(
    network: nn.Module, digits: MemorySplit, attack: str
) -> None:
    model = Masked(network)
    parts = []
    for positions in (torch.arange(12), torch.tensor([7, 30, 2])):
        batch = digits.batch(positions)
        loader = [(batch.images, batch.labels, batch.index)]
        parts.append(
            wmr.evaluate(
                model, loader, attack=attack, eps=EPS, metrics=("nat", "rob"), batch_size=1, draws=3
            ).rows
        )
    every, some = parts
    for name, values in every.items():
        assert np.array_equal(values[[7, 2]], some[name][[0, 2]]), name


def test_the_first_batch_of_an_evaluation_decides_nothing_about_the_next(
    network: nn.Module, digits: MemorySplit
) -> None:
    batch = digits.batch(torch.arange(128))
    loader = [(batch.images, batch.labels, batch.index)]
    last = [(batch.images[64:], batch.labels[64:], batch.index[64:])]
    options: dict[str, Any] = {"attack": "pgd:steps=2", "eps": EPS, "draws": 2, "batch_size": 32}
    both = wmr.evaluate(Masked(network), loader, **options).rows
    alone = wmr.evaluate(Masked(network), last, **options).rows
    for name, values in both.items():
        assert np.array_equal(values[64:], alone[name]), name


def test_the_worst_of_several_draws_counts_on_request(
    network: nn.Module, digits: MemorySplit
) -> None:
    mean = measure(Masked(network), digits, "pgd:steps=2", draws=10)
    worst = measure(Masked(network), digits, "pgd:steps=2", draws=10, draw_rule="worst")
    more = measure(Masked(network), digits, "pgd:steps=2", draws=20, draw_rule="worst")
    assert worst.a_nat.value < mean.a_nat.value
    assert worst.a_rob.value < mean.a_rob.value
    # the first ten draws are the same: another draw can only break more images
    assert (more.rows["uniform/logit_margin"] <= worst.rows["uniform/logit_margin"]).all()
    assert more.a_rob.value < worst.a_rob.value


def test_draws_of_a_deterministic_model_change_nothing(
    network: nn.Module, digits: MemorySplit
) -> None:
    plain = measure(network, digits, "pgd:steps=3")
    one = measure(network, digits, "pgd:steps=3,eot=1", draws=1)
    several = measure(network, digits, "pgd:steps=3,eot=3", draws=3)
    assert list_rows(one) == list_rows(plain)
    np.testing.assert_allclose(
        several.rows["uniform/margin"], plain.rows["uniform/margin"], atol=1e-5
    )


def list_ids(path: Path, registry: Registry, **settings: Any) -> list[str]:
    config = EvaluateConfig(**{"attacks": ("pgd",), **settings})
    tasks = plan_tasks(checkpoints.load(path), config, registry, Path())
    return [task.id for task in tasks]


def test_ids_depend_on_draws_only_if_they_are_set(tiny_run: Path, registry: Registry) -> None:
    plain = list_ids(tiny_run, registry)
    assert list_ids(tiny_run, registry, eot=1) == plain
    ids = [
        plain,
        list_ids(tiny_run, registry, eot=2),
        list_ids(tiny_run, registry, draws=2),
        list_ids(tiny_run, registry, draws=2, draw_rule="worst"),
    ]
    assert len({id for (id,) in ids}) == len(ids)


def test_eot_fills_the_parameter_of_the_attack(tiny_run: Path, registry: Registry) -> None:
    as_setting = list_ids(tiny_run, registry, eot=4)
    assert list_ids(tiny_run, registry, attacks=("pgd:eot=4",)) == as_setting


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"draw_rule": "worst"}, "draw_rule"),
        ({"draw_rule": "worst", "draws": 1}, "draw_rule"),
        ({"eot": 2, "attacks": ("square",)}, "eot"),
        ({"eot": 2, "attacks": ("pgd:eot=3",)}, "eot"),
    ],
)
def test_settings_without_effect_are_refused(
    tiny_run: Path, registry: Registry, settings: dict[str, Any], named: str
) -> None:
    with pytest.raises(BadInput, match=named):
        list_ids(tiny_run, registry, **settings)


def test_python_refuses_a_rule_without_draws(network: nn.Module, digits: MemorySplit) -> None:
    with pytest.raises(BadInput, match="draw_rule"):
        measure(network, digits, "pgd", draw_rule="worst")
    with pytest.raises(BadInput, match="draws"):
        measure(network, digits, "pgd", draws=0)


@pytest.fixture
def masked_file(tiny_run: Path, tmp_path: Path) -> Path:
    """Write a stochastic local model, and the weights of a run for it."""
    (tmp_path / "stochastic.py").write_text(LOCAL_MODEL, encoding="utf-8")
    weights = {f"model.{key}": value for key, value in checkpoints.load(tiny_run).tensors.items()}
    torch.save(weights, tmp_path / "weights.pt")
    return tmp_path / "weights.pt"


def evaluate_masked(weights: Path, registry: Registry, out: Path, **settings: Any) -> list[Any]:
    settings = {"eps": (EPS,), "metrics": ("nat", "rob"), "limit": 64, **settings}
    config = EvaluateConfig(
        model=f"{weights.parent}/stochastic.py:Masked",
        dataset="digits",
        **settings,
    )
    hardware = Hardware("cpu")
    return list(evaluate(weights, config, registry, data_dir=Path(), hardware=hardware, out=out))


def read_folder(folder: Path) -> dict[str, object]:
    """Return every record without its times, and its rows."""
    found: dict[str, object] = {}
    for file in sorted(folder.glob("*.json")):
        record = json.loads(file.read_text())
        found[file.name] = {key: value for key, value in record.items() if key not in TIMES}
        rows = records.load_rows(records.rows_path(file))
        found[f"{file.name} rows"] = {name: values.tobytes() for name, values in rows.items()}
    return found


def test_two_runs_give_identical_records_with_checks_and_repeats(
    masked_file: Path, registry: Registry, tmp_path: Path
) -> None:
    found = []
    for name in ("first", "second"):
        torch.manual_seed(len(name))
        evaluate_masked(
            masked_file,
            registry,
            tmp_path / name,
            attacks=("pgd:steps=2",),
            draws=2,
            checks=True,
            repeats=2,
            limit=32,
        )
        found.append(read_folder(tmp_path / name))
    assert found[0] == found[1]
    assert len(found[0]) == 2, "a record and its rows"


def test_two_ranks_give_the_records_of_one(
    masked_file: Path, registry: Registry, tmp_path: Path
) -> None:
    attacks = ("pgd:steps=2", "apgd-t:steps=2,targets=2")
    evaluate_masked(masked_file, registry, tmp_path / "one", attacks=attacks, eot=2, draws=3)
    command = [
        *(sys.executable, "-m", "wmr_cli", "evaluate", str(masked_file), "--quiet"),
        *("--model", f"{masked_file.parent}/stochastic.py:Masked", "--dataset", "digits"),
        *("--eps", str(EPS), "--limit", "64", "--metrics", "nat,rob", "--draws", "3"),
        *("--attack", attacks[0], "--attack", attacks[1], "--eot", "2", "--devices", "2"),
        *("--device", "cpu", "--out", str(tmp_path / "two")),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    alone = read_folder(tmp_path / "one")
    assert read_folder(tmp_path / "two") == alone
    assert len(alone) == 6, "two attacks and their worst case"


def test_a_record_states_draws_and_rule(
    masked_file: Path, registry: Registry, tmp_path: Path
) -> None:
    events = evaluate_masked(
        masked_file,
        registry,
        tmp_path / "out",
        attacks=("pgd:steps=2", "autoattack:steps=2,version=rand"),
        draws=3,
        draw_rule="worst",
        limit=32,
    )
    pgd, rand, worst = [event.record for event in events if isinstance(event, EvaluationDone)]
    assert (pgd.attack.eot, pgd.attack.draws, pgd.attack.draw_rule) == (1, 3, "worst")
    assert (rand.attack.eot, rand.attack.draws) == (20, 3)
    assert (worst.attack.draws, worst.attack.draw_rule) == (3, "worst")
    assert not_none(pgd.a_rob).value >= not_none(worst.a_rob).value


def test_checks_suggest_eot_and_accept_an_attack_that_has_it(
    masked_file: Path, registry: Registry, tmp_path: Path
) -> None:
    verdicts = []
    warnings = []
    for eot in (1, 4):
        events = evaluate_masked(
            masked_file, registry, tmp_path / "out", steps=2, checks=True, eot=eot, limit=64
        )
        (done,) = [event for event in events if isinstance(event, EvaluationDone)]
        verdicts.append({check.name: check.verdict for check in done.record.checks})
        texts = [event.text for event in events if isinstance(event, Message)]
        warnings.append([text for text in texts if "`eot=20`" in text and "`draws=20`" in text])
    assert verdicts[0]["two passes agree"] == "fail"
    assert verdicts[1]["two passes agree"] == "note"
    assert "more draws do not help" in verdicts[1].keys() - verdicts[0].keys()
    assert [len(found) for found in warnings] == [1, 0]

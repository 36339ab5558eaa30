"""`wmr_cli.evaluate` has the numbers of `wmr evaluate` and leaves the model unchanged."""

import io
import subprocess
import sys
import warnings
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pytest
import torch
from rich.console import Console
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

import wmr_cli as wmr
from support.typed import instance_of, not_none
from wmr_cli import Result
from wmr_cli.config import EvaluateConfig
from wmr_cli.core.contexts import on_device, returning_logits
from wmr_cli.core.losses import cross_entropy
from wmr_cli.core.nn.fusion import try_fuse
from wmr_cli.core.nn.preprocessing import Normalized
from wmr_cli.core.protocols import Attack, AttackResult, Batch, Objective, Split
from wmr_cli.core.traits import AttackTraits
from wmr_cli.errors import BadFile, BadInput, BrokenContract, UnknownName, WmrError
from wmr_cli.evaluation import run as workflow
from wmr_cli.events import EvaluationDone
from wmr_cli.measures import calibrated_accuracy, calibrating_temperature, worst_case
from wmr_cli.registry import Registry
from wmr_cli.reporting.rows import run_name
from wmr_cli.reporting.tables.main import make_table
from wmr_cli.runtime.fabric import Hardware
from wmr_cli.storage import records
from wmr_cli.storage.records import Record, Rows
from wmr_cli.testing import CLASSES, SHAPE, tiny_batch, tiny_model

ATTACK = "pgd:steps=2,step=0.015"
ALPHAS = (0.0, 1.0, 2.0)
METRICS = ("nat", "rob", "sa", "tr")
SETTINGS: dict[str, Any] = {"attack": ATTACK, "eps": 0.15, "alphas": ALPHAS}


@pytest.fixture(scope="module")
def by_command(
    tiny_run: Path, registry: Registry, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Record, Rows]:
    """Return the record and rows of `wmr evaluate`."""
    config = EvaluateConfig(
        attacks=(ATTACK,),
        alpha_test=ALPHAS,
        rho=(0.1, 1.0),
        metrics=("nat", "rob", "sa", "tr", "dro"),
    )
    out = tmp_path_factory.mktemp("command")
    events = workflow.evaluate(
        tiny_run, config, registry, data_dir=Path(), hardware=Hardware("cpu"), out=out
    )
    (done,) = [event for event in events if isinstance(event, EvaluationDone)]
    return done.record, records.load_rows(done.rows)


@pytest.fixture(scope="module")
def test_images() -> Split:
    return wmr.create("dataset", "digits").splits["test"]


@pytest.fixture(scope="module")
def result(tiny_run: Path, test_images: Split) -> Result:
    return wmr.evaluate(wmr.load(tiny_run), test_images, **SETTINGS, rhos=(1.0, 0.1))


def assert_same_rows(first: Rows, second: Rows) -> None:
    assert first.keys() == second.keys()
    assert [
        name
        for name in first
        if first[name].dtype != second[name].dtype or not np.array_equal(first[name], second[name])
    ] == []


def evaluate_tiny(count: int = 40, **settings: Any) -> Result:
    """Evaluate a tiny model on tiny images."""
    batch = tiny_batch(count)
    given: dict[str, Any] = {
        "attack": "pgd:steps=2",
        "eps": 0.05,
        "alphas": (1.0,),
        "metrics": ("nat", "rob", "sa"),
    }
    model = settings.pop("model", None) or tiny_model()
    return wmr.evaluate(model, [(batch.images, batch.labels)], **(given | settings))


def test_the_numbers_are_bit_identical_to_those_of_the_command(
    result: Result, by_command: tuple[Record, Rows]
) -> None:
    record, rows = by_command
    assert_same_rows(result.rows, rows)
    assert (result.a_nat, result.a_rob) == (record.a_nat, record.a_rob)
    assert result.record.by_alpha == record.by_alpha
    assert result.record.dro == record.dro
    assert [result.a_sa(alpha) for alpha in ALPHAS] == [row.a_sa for row in record.by_alpha]
    assert [result.a_tr(alpha) for alpha in ALPHAS] == [row.a_tr for row in record.by_alpha]
    assert [result.dro(row.rho) for row in record.dro] == record.dro
    assert result.record.dataset.sha256 == record.dataset.sha256


@dataclass
class IndexedDataset(Dataset[tuple[Tensor, int, int]]):
    """A split as a torch dataset, with the index of each image."""

    split: Split

    def __len__(self) -> int:
        return len(self.split)

    def __getitem__(self, position: int) -> tuple[Tensor, int, int]:
        batch = self.split.batch(torch.tensor([position]))
        return batch.images[0], int(batch.labels[0]), int(batch.index[0])


@dataclass
class IterableOnly(IterableDataset[tuple[Tensor, int, int]]):
    """The same as an iterable dataset, without a length."""

    split: Split

    def __iter__(self) -> Iterator[tuple[Tensor, int, int]]:
        return (IndexedDataset(self.split)[position] for position in range(len(self.split)))


DATA_FORMS: dict[str, Callable[[Split], Dataset[Any] | Iterable[Any]]] = {
    "a dataset": IndexedDataset,
    "a loader": lambda split: DataLoader(IndexedDataset(split), batch_size=100),
    "a dataset without a length": lambda split: IterableOnly(split),
    "a loader that drops": lambda split: DataLoader(
        IndexedDataset(split), batch_size=11, drop_last=True
    ),
    "one batch": lambda split: [split.batch(torch.arange(len(split)))],
    "a generator of arrays": lambda split: (
        (one.images.numpy(), one.labels.numpy().astype(np.int32), one.index.numpy())
        for one in map(split.batch, torch.arange(len(split)).split(7))
    ),
}


@pytest.mark.parametrize("form", DATA_FORMS)
def test_every_form_of_data_gives_bit_identical_numbers(
    form: str, tiny_run: Path, test_images: Split, by_command: tuple[Record, Rows]
) -> None:
    data = DATA_FORMS[form](test_images)
    found = wmr.evaluate(
        wmr.load(tiny_run), data, attack=ATTACK, eps=0.15, metrics=("nat", "rob", "sa")
    )
    assert_same_rows(
        found.rows,
        {name: values for name, values in by_command[1].items() if "weighted" not in name},
    )


def test_the_hash_of_a_stream_does_not_depend_on_its_batches() -> None:
    batch = tiny_batch(40)
    data = TensorDataset(batch.images, batch.labels)
    by_one, by_seven = (evaluate_data(DataLoader(data, batch_size=size)) for size in (1, 7))
    assert by_one.record.id == by_seven.record.id
    other = evaluate_data([(batch.images.flip(0), batch.labels.flip(0))])
    assert other.record.dataset.sha256 != by_one.record.dataset.sha256


def evaluate_data(
    data: Split | Dataset[Any] | Iterable[Any], model: nn.Module | None = None, **settings: Any
) -> Result:
    given: dict[str, Any] = {"attack": "pgd:steps=1", "eps": 0.05, "metrics": ("nat", "rob")}
    return wmr.evaluate(
        model or tiny_model(),
        data,
        **(given | settings),
    )


def test_images_without_an_index_are_counted_and_bytes_are_scaled() -> None:
    batch = tiny_batch(20)
    images = (batch.images * 255).round().to(torch.uint8)
    found = evaluate_data([(images[:5], batch.labels[:5]), (images[5:], batch.labels[5:])])
    assert found.rows["index"].tolist() == list(range(20))
    numbered = evaluate_data([(images.float() / 255, batch.labels, torch.arange(20))])
    assert_same_rows(found.rows, numbered.rows)
    assert found.record.dataset.sha256 == numbered.record.dataset.sha256


def test_a_long_stream_is_not_kept_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    # beyond 8 chunks a stream is not read ahead; they are 2,048 images with the real chunk size
    monkeypatch.setattr("wmr_cli.evaluation.evaluator.CHUNK_SIZE", 32)
    read: list[int] = []
    used: list[int] = []
    model = tiny_model()
    model.register_forward_hook(lambda *_: used.append(len(read)))

    def batches() -> Iterator[tuple[Tensor, Tensor]]:
        for number in range(40):
            read.append(number)
            yield (
                torch.rand(32, *SHAPE, generator=torch.Generator().manual_seed(number)),
                torch.zeros(32, dtype=torch.int64),
            )

    found = wmr.evaluate(model, batches(), eps=0.1, metrics=("nat",))
    assert len(found.rows["index"]) == 1280
    # the first 8 batches show that there are many images
    assert used[0] == 8
    assert sorted(set(used)) == list(range(8, 41))


@pytest.mark.parametrize("drops", [False, True])
def test_a_loader_of_known_length_is_not_read_ahead(
    drops: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("wmr_cli.evaluation.evaluator.CHUNK_SIZE", 32)
    read: list[int] = []
    used: list[int] = []
    model = tiny_model()
    model.register_forward_hook(lambda *_: used.append(len(read)))

    class Watched(Dataset[tuple[Tensor, int]]):
        def __len__(self) -> int:
            return 640

        def __getitem__(self, position: int) -> tuple[Tensor, int]:
            read.append(position)
            return torch.full(SHAPE, position / 640), position % CLASSES

    wmr.evaluate(
        model, DataLoader(Watched(), batch_size=8, drop_last=drops), eps=0.1, metrics=("nat",)
    )
    # the length of a loader that drops images is only an upper bound
    assert used[0] == (256 if drops else 32)


class MixedModes(nn.Module):
    """Modules in both modes, with frozen and trainable parameters and buffers."""

    def __init__(self) -> None:
        super().__init__()
        self.features = instance_of(nn.Sequential, tiny_model())
        self.features[0].weight.requires_grad_(False)
        self.train()
        self.features[1].eval()

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.features(images)
        return logits


class Output(OrderedDict[str, Tensor]):
    """An output like those of transformers: entries are attributes, too."""

    def __getattr__(self, name: str) -> Tensor:
        return self[name]


class NamedOutput(NamedTuple):
    features: Tensor
    logits: Tensor


@dataclass
class DataOutput:
    logits: Tensor


OUTPUTS: dict[str, Callable[[Tensor], object]] = {
    "an output of transformers": lambda logits: Output(loss=logits.mean(), logits=logits),
    "a dict": lambda logits: {"logits": logits, "features": logits},
    "a named tuple": lambda logits: NamedOutput(2 * logits, logits),
    "a dataclass": DataOutput,
    "an object": lambda logits: SimpleNamespace(logits=logits),
}


class WithOutput(nn.Module):
    """A tiny model whose forward pass ends in a function of its logits."""

    def __init__(self, make_output: Callable[[Tensor], object] = lambda logits: logits) -> None:
        super().__init__()
        self.layers = tiny_model()
        self.make_output = make_output

    def forward(self, images: Tensor) -> object:
        return self.make_output(self.layers(images))


@pytest.mark.parametrize(
    "attack", ["pgd:steps=2", "apgd-ce:steps=3", "square:queries=5", "fab-t:steps=2", "fgsm"]
)
@pytest.mark.parametrize("make_output", OUTPUTS.values(), ids=OUTPUTS)
def test_logits_are_taken_from_an_output(
    make_output: Callable[[Tensor], object], attack: str
) -> None:
    plain = evaluate_tiny(20, model=WithOutput(), attack=attack, metrics=METRICS)
    model = WithOutput(make_output)
    before = read_state(model)
    assert_same_rows(
        evaluate_tiny(20, model=model, attack=attack, metrics=METRICS).rows, plain.rows
    )
    assert_unchanged(before, model)


def test_a_model_without_support_for_hooks_is_evaluated() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch deprecates TorchScript
        scripted = torch.jit.script(tiny_model())
    # batch-norms of a scripted model are not fused, which changes the rounding
    margins = [evaluate_tiny(20, **one).rows["uniform/margin"] for one in ({"model": scripted}, {})]
    np.testing.assert_allclose(margins[0], margins[1], atol=1e-6)


def test_an_output_does_not_prevent_fusion() -> None:
    images = tiny_batch().images
    model = WithOutput(OUTPUTS["an object"])
    with returning_logits(model):
        assert not_none(try_fuse(model, images)).num_fused == 1


@pytest.mark.parametrize(
    ("make_output", "kind"),
    [
        (lambda logits: (logits, logits), "tuple"),
        (lambda logits: {"scores": logits}, "dict"),
        (lambda logits: SimpleNamespace(logits=None), "SimpleNamespace"),
        (lambda logits: None, "NoneType"),
    ],
)
def test_another_output_is_refused_by_its_type(
    make_output: Callable[[Tensor], object], kind: str
) -> None:
    with pytest.raises(BadInput, match=kind):
        evaluate_tiny(model=WithOutput(make_output))


def read_state(model: nn.Module) -> dict[str, Any]:
    return {
        "modes": [module.training for module in model.modules()],
        "parameters": [
            (id(one), one.data_ptr(), one.requires_grad, one.device) for one in model.parameters()
        ],
        "gradients": [
            None if one.grad is None else (id(one.grad), one.grad.sum().item())
            for one in model.parameters()
        ],
        "state": {name: tensor.clone() for name, tensor in model.state_dict().items()},
        "hooks": [dict(module._forward_hooks) for module in model.modules()],
    }


def assert_unchanged(before: dict[str, Any], model: nn.Module) -> None:
    now = read_state(model)
    assert all(torch.equal(tensor, now["state"][name]) for name, tensor in before["state"].items())
    assert before | {"state": None} == now | {"state": None}


@pytest.mark.parametrize("fails", [False, True])
def test_the_model_is_unchanged(fails: bool) -> None:
    model, batch = MixedModes(), tiny_batch()
    cross_entropy(model(batch.images), batch.labels).mean().backward()
    calls = []
    model.features[2].register_forward_hook(lambda *_: calls.append(model.training))
    before = read_state(model)
    if fails:
        with pytest.raises(BrokenContract):
            evaluate_data([(batch.images, batch.labels + 2)], model=model)
    else:
        evaluate_data([(batch.images, batch.labels)], model=model)
    assert set(calls) == {False}
    assert_unchanged(before, model)


def test_a_model_is_moved_to_a_device_and_back() -> None:
    model = MixedModes()
    cross_entropy(model(tiny_batch().images), tiny_batch().labels).mean().backward()
    before = read_state(model)
    with on_device(model, torch.device("meta")):
        assert {tensor.device.type for tensor in (*model.parameters(), *model.buffers())} == {
            "meta"
        }
    assert_unchanged(before, model)
    with pytest.raises(RuntimeError, match="stop"), on_device(model, torch.device("meta")):
        raise RuntimeError("stop")
    assert_unchanged(before, model)


@pytest.mark.parametrize(
    "mode", [torch.no_grad, torch.inference_mode, lambda: torch.autocast("cpu", torch.bfloat16)]
)
def test_grad_mode_and_autocast_of_the_caller_have_no_effect(
    mode: Callable[[], AbstractContextManager[object]],
) -> None:
    model, batch = tiny_model(), tiny_batch()
    with mode():
        found = evaluate_data([(batch.images, batch.labels)], model)
    assert_same_rows(found.rows, evaluate_data([(batch.images, batch.labels)], model).rows)


def nan_model() -> nn.Module:
    model = tiny_model()
    model.get_parameter("5.bias").data[1] = float("nan")
    return model


def as_given(batch: Batch) -> list[tuple[Tensor, Tensor]]:
    return [(batch.images, batch.labels)]


InvalidInput = tuple[Callable[[Batch], Any], dict[str, Any], type[WmrError], str]
INVALID_DATA: dict[str, InvalidInput] = {
    "pixels above 1": (lambda b: [(b.images * 255, b.labels)], {}, BrokenContract, r"image \d+"),
    "pixels below 0": (lambda b: [(b.images - 0.5, b.labels)], {}, BrokenContract, "image 0"),
    "NaN pixels": (
        lambda b: [(b.images * float("nan"), b.labels)],
        {},
        BrokenContract,
        "image 0",
    ),
    "labels without a class": (
        lambda b: [(b.images, b.labels + 1)],
        {},
        BrokenContract,
        "image 3",
    ),
    "labels as floats": (lambda b: [(b.images, b.labels.float())], {}, BadInput, "torch.float32"),
    "one-hot labels": (lambda b: [(b.images, torch.eye(4)[b.labels])], {}, BadInput, "shape"),
    "images without channels": (lambda b: [(b.images[:, 0], b.labels)], {}, BadInput, "shape"),
    "integer images": (lambda b: [(b.images.long(), b.labels)], {}, BadInput, "torch.int64"),
    "images of two shapes": (
        lambda b: [(b.images, b.labels), (b.images[:, :, 1:], b.labels)],
        {},
        BadInput,
        "batch 1",
    ),
    "a batch without labels": (lambda b: [(b.images,)], {}, BadInput, "batch 0"),
    "a batch as a dictionary": (lambda b: [{"images": b.images}], {}, BadInput, "batch 0"),
    "text instead of images": (lambda b: [("cat.png", b.labels)], {}, BadInput, "batch 0"),
    "no images": (lambda b: [], {}, BadInput, "`data`"),
    "a tensor of images": (lambda b: b.images, {}, BadInput, "Tensor"),
    "a dataset with splits": (lambda b: wmr.create("dataset", "digits"), {}, BadInput, "split"),
    "images of another shape": (
        lambda b: [(b.images.repeat(1, 3, 1, 1), b.labels)],
        {},
        BadInput,
        "channel",
    ),
}
INVALID_SETTINGS: dict[str, InvalidInput] = {
    "NaN logits": (as_given, {"model": nan_model()}, BrokenContract, "finite"),
    "a model without logits": (as_given, {"model": nn.Identity()}, BadInput, "shape"),
    "another number of classes": (as_given, {"num_classes": 10}, BadInput, "10"),
    "no eps": (as_given, {"eps": None}, BadInput, "eps"),
    "negative eps": (as_given, {"eps": -0.1}, BadInput, "eps.*-0.1"),
    "two values of eps": (as_given, {"attack": "pgd:eps=8/255"}, BadInput, "eps.*0.05"),
    "unknown attack": (as_given, {"attack": "pdg"}, UnknownName, "pdg"),
    "a number as attack": (as_given, {"attack": 7}, BadInput, "int"),
    "unknown norm": (as_given, {"norm": "l7"}, UnknownName, "l7"),
    "unknown metric": (as_given, {"metrics": ("a_rob",)}, UnknownName, "a_rob"),
    "NaN as alpha": (as_given, {"alphas": (float("nan"),)}, BadInput, "alphas.*nan"),
    "negative rho": (as_given, {"rhos": (-1.0,)}, BadInput, "rhos.*-1.0"),
    "batch size 0": (as_given, {"batch_size": 0}, BadInput, "batch_size.*0"),
}
INVALID_INPUT = INVALID_DATA | INVALID_SETTINGS
"""Data, settings, the class of the error, and what its message names."""


@pytest.mark.parametrize("case", INVALID_INPUT)
def test_invalid_input_is_refused_with_a_hint(case: str) -> None:
    data, settings, kind, problem = INVALID_INPUT[case]
    given: dict[str, Any] = {"attack": "pgd:steps=1", "eps": 0.05, **settings}
    model = given.pop("model", None) or tiny_model()
    with pytest.raises(kind, match=problem) as caught:
        wmr.evaluate(model, data(tiny_batch()), **given)
    assert caught.value.hint


def test_a_loader_that_shuffles_gives_a_warning() -> None:
    batch = tiny_batch()
    data = TensorDataset(batch.images, batch.labels)
    with pytest.warns(UserWarning, match="shuffle"):
        evaluate_data(DataLoader(data, batch_size=4, shuffle=True))


def test_caveats_are_warnings() -> None:
    with pytest.warns(UserWarning, match="sample"):
        evaluate_tiny(200, alphas=(900.0,))
    with pytest.warns(UserWarning, match="8/255"):
        evaluate_tiny(eps=0.031)


def test_a_sa_is_available_at_any_alpha_and_a_tr_only_where_it_was_measured(
    result: Result,
) -> None:
    accuracies = [result.a_sa(alpha).value for alpha in (0, 0.5, 1, 3, 9)]
    assert accuracies == sorted(accuracies, reverse=True)
    assert accuracies[0] == result.a_rob.value
    again = result.rescore(0.5, 3)
    assert again.alphas == (0.5, 3.0)
    assert again.record.by_alpha[1].a_sa == result.a_sa(3)
    assert again.record.by_alpha[1].a_tr is None
    assert again.rows is result.rows
    assert result.alphas == ALPHAS
    with pytest.raises(BadInput, match=r"A_tr.*3"):
        result.a_tr(3)


def test_a_cal_is_available_at_any_alpha(result: Result) -> None:
    assert result.record.calibration is msgspec.UNSET
    assert result.temperature == calibrating_temperature(
        result.rows["uniform/logits"], result.rows["label"]
    )
    assert result.a_cal(0.7) == calibrated_accuracy(result.rows, 0.7)
    assert result.a_cal(0).value == result.a_rob.value


def test_compact_rows_have_the_a_cal_of_the_evaluation(tiny_run: Path, test_images: Split) -> None:
    settings = {**SETTINGS, "metrics": ("nat", "rob", "sa", "cal"), "alphas": (1.0,)}
    full, compact = (
        wmr.evaluate(wmr.load(tiny_run), test_images, rows=rows, **settings)
        for rows in ("full", "compact")
    )
    assert not any(name.endswith("logits") for name in compact.rows)
    assert compact.record.calibration == full.record.calibration
    assert compact.a_cal(1.0) == full.a_cal(1.0) == full.record.by_alpha[0].a_cal
    assert compact.temperature == full.temperature
    again = compact.rescore(1.0, 2.0)
    assert [row.a_cal for row in again.record.by_alpha] == [full.a_cal(1.0), None]
    with pytest.raises(BadInput, match=r"A_cal.*2"):
        compact.a_cal(2.0)


def test_a_cal_needs_weights_that_follow_from_margins() -> None:
    with pytest.raises(BadInput, match="cal"):
        evaluate_tiny(metrics=("nat", "rob", "cal"), kernel="exp-logit")


def test_dro_is_available_at_any_radius(result: Result) -> None:
    found = worst_case(-result.rows["uniform/logit_margin"].astype(np.float64), 0.3)
    assert result.dro(0.3, "margin").loss == found.value
    assert result.dro(0.3, "margin").ess == found.ess


def test_accuracies_that_were_not_measured_are_refused_with_a_hint() -> None:
    natural = evaluate_tiny(metrics=("nat",))
    for read in (lambda: natural.a_rob, lambda: natural.a_sa(1.0), lambda: natural.dro(0.1)):
        with pytest.raises(BadInput) as caught:
            read()
        assert caught.value.hint
    early = evaluate_tiny(attack="autoattack:attacks=apgd-ce", metrics=("nat", "rob", "sa"))
    assert early.a_rob.value <= early.a_nat.value
    with pytest.raises(BadInput, match=r"A_sa.*1"):
        early.a_sa(1.0)
    assert early.dro(0.1, "zero-one").worst_accuracy <= early.a_rob.value


def test_alphas_and_rhos_may_be_arrays() -> None:
    found = evaluate_tiny(alphas=np.linspace(0, 1, 3, dtype=np.float32), rhos=np.array([1, 0.1]))
    assert found.alphas == (0.0, 0.5, 1.0)
    assert [row.rho for row in found.record.dro] == [0.1, 1.0]


def test_a_kernel_without_alpha_accepts_no_alphas() -> None:
    found = evaluate_tiny(kernel="none", alphas=None)
    assert found.alphas == ()
    assert found.a_sa().value == found.a_rob.value
    with pytest.raises(BadInput, match="alpha"):
        evaluate_tiny(kernel="none", alphas=(1.0,))


def test_a_saved_result_is_loaded_equal_and_can_be_reported(result: Result, tmp_path: Path) -> None:
    file = result.save(tmp_path / "notebook")
    again = wmr.Result.load(file)
    assert again.record == result.record
    assert_same_rows(again.rows, result.rows)
    assert str(again) == str(result)
    command = [sys.executable, "-m", "wmr_cli", "report", str(tmp_path / "notebook")]
    done = subprocess.run(
        [*command, "--alpha-test", "0.5"], capture_output=True, text=True, check=True
    )
    assert f"{100 * result.a_sa(0.5).value:.1f}" in done.stdout
    with pytest.raises(BadFile):
        wmr.Result.load(tmp_path / "nowhere.json")


def test_a_record_of_the_command_can_be_loaded(
    tiny_run: Path, registry: Registry, tmp_path: Path
) -> None:
    config = EvaluateConfig(
        attacks=(ATTACK,), alpha_test=(1.0,), limit=100, ci="bootstrap", metrics=("rob", "sa")
    )
    events = workflow.evaluate(
        tiny_run, config, registry, data_dir=Path(), hardware=Hardware("cpu"), out=tmp_path
    )
    (done,) = [event for event in events if isinstance(event, EvaluationDone)]
    opened = wmr.Result.load(done.rows.with_suffix(".json"))
    # with the bootstrap interval of the evaluation
    assert opened.a_sa(1.0) == done.record.by_alpha[0].a_sa


def test_a_result_is_shown_as_the_table_of_the_command(result: Result) -> None:
    table = make_table([result.record])
    assert " ".join(table.rows[0][6].split()) in str(result)
    console = Console(width=300, record=True, file=io.StringIO())
    console.print(result)
    assert console.export_text().splitlines()[1].split() == list(table.headings)
    assert result._repr_markdown_().startswith("| run | defense |")
    html = result._repr_html_()
    # DRO has its own table
    assert html.count("<table>") == 2
    assert "A_sa" in html
    narrow = Console(width=60, record=True, file=io.StringIO())
    narrow.print(result)
    assert max(map(len, narrow.export_text().splitlines())) <= 60


def test_names_are_escaped_in_html() -> None:
    found = evaluate_tiny(name="<b>net</b>[red]", dataset="my data")
    assert "<b>" not in found._repr_html_()
    assert "<b>net</b>[red]" in str(found)
    assert found.record.dataset.name == "my data"
    assert run_name(evaluate_tiny().record) == "Sequential"


@dataclass(frozen=True)
class DarkenImages:
    eps: float = 0.05
    strength: float = 0.5

    traits = AttackTraits()

    def __call__(
        self,
        model: nn.Module,
        batch: Batch,
        objective: Objective,
        *,
        seed: int,
        need_logits: bool = True,
    ) -> AttackResult:
        moved = (batch.images - self.strength * self.eps).clamp(0, 1)
        with torch.no_grad():
            return AttackResult(moved, torch.zeros_like(batch.labels), model(moved))


@pytest.mark.parametrize(
    ("attack", "spec"),
    [
        ("pgd:steps=3", "pgd:steps=3"),
        (wmr.create("attack", "pgd:steps=3", eps=0.05), "pgd:steps=3"),
        (wmr.create("attack", "pgd-margin:steps=3,eps=0.05,norm=l2"), "pgd-margin:steps=3"),
        (wmr.create("attack", "fgsm", eps=0.05), "fgsm"),
        (DarkenImages(strength=1.0), f"{__name__}.DarkenImages:strength=1"),
    ],
    ids=str,
)
def test_an_attack_is_recorded_by_the_spec_that_rebuilds_it(
    attack: str | Attack, spec: str
) -> None:
    found = evaluate_tiny(attack=attack, eps=0.05 if isinstance(attack, str) else None)
    assert found.record.attack.spec == spec
    assert found.record.threat.eps == 0.05
    assert found.record.threat.norm == getattr(attack, "norm", "linf")


def test_an_attack_gives_the_same_rows_by_name_and_built() -> None:
    built = evaluate_tiny(attack=wmr.create("attack", "pgd:steps=2", eps=0.05))
    assert_same_rows(built.rows, evaluate_tiny().rows)
    assert built.record.id == evaluate_tiny().record.id
    with pytest.raises(BadInput, match="eps"):
        evaluate_tiny(attack=wmr.create("attack", "pgd", eps=0.05), eps=0.1)


def test_an_attack_may_be_a_function_with_traits() -> None:
    def nothing(
        model: nn.Module, batch: Batch, objective: Objective, *, seed: int, need_logits: bool = True
    ) -> AttackResult:
        with torch.no_grad():
            return AttackResult(batch.images, torch.zeros_like(batch.labels), model(batch.images))

    with pytest.raises(BrokenContract, match="without `traits`"):
        evaluate_tiny(attack=nothing)
    nothing.traits = AttackTraits()  # type: ignore[attr-defined]
    found = evaluate_tiny(attack=nothing)
    assert found.a_rob == found.a_nat
    assert found.record.attack.spec.endswith("nothing")


def test_an_attack_that_leaves_the_eps_ball_is_refused() -> None:
    with pytest.raises(BrokenContract, match="DarkenImages"):
        evaluate_tiny(attack=DarkenImages(strength=2.0))


def test_the_seed_decides_the_start() -> None:
    assert np.array_equal(
        evaluate_tiny(seed=1).rows["uniform/logits"], evaluate_tiny(seed=1).rows["uniform/logits"]
    )
    assert not np.array_equal(
        evaluate_tiny(seed=1).rows["uniform/logits"], evaluate_tiny(seed=2).rows["uniform/logits"]
    )


def test_the_record_has_a_hash_of_the_weights() -> None:
    other = tiny_model()
    other.get_parameter("0.bias").data += 0.1
    batch = tiny_batch()
    same, changed = (
        evaluate_data([(batch.images, batch.labels)], model=one).record.checkpoint
        for one in (tiny_model(), other)
    )
    assert (
        same.sha256
        == evaluate_data([(batch.images, batch.labels)], eps=0.1).record.checkpoint.sha256
    )
    assert same.sha256 != changed.sha256
    assert (same.defense, same.model, same.config) == ("imported", "Sequential", None)


def test_create_builds_models_with_their_normalisation() -> None:
    model = wmr.create(
        "model", "digits-cnn:mean=0.5,std=0.25", num_classes=CLASSES, input_shape=SHAPE
    )
    assert float(model.get_buffer("mean")) == 0.5


@pytest.mark.parametrize(("key", "text"), [("eps", "a"), ("steps", "x"), ("norm", "l3")])
def test_create_refuses_text_of_another_type(key: str, text: str) -> None:
    with pytest.raises(BadInput, match=f"{key} of attack 'pgd'"):
        wmr.create("attack", "pgd", **{key: text})


def test_create_reads_text_like_a_spec() -> None:
    assert wmr.create("attack", "pgd", eps="8/255") == wmr.create("attack", "pgd:eps=8/255")


def test_create_uses_the_data_folder_of_the_command(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "where.py"
    file.write_text("class Where:\n    def __init__(self, root): self.root = root\n")
    monkeypatch.setenv("WMR_DATA_DIR", str(tmp_path))
    assert vars(wmr.create("dataset", f"{file}:Where"))["root"] == tmp_path
    moved = wmr.create("dataset", f"{file}:Where", root=Path("elsewhere"))
    assert vars(moved)["root"] == Path("elsewhere")


def test_a_class_with_the_members_of_a_split_is_accepted() -> None:
    whole = tiny_batch(30)

    class Own:
        labels, sha256 = whole.labels, "0" * 64

        def __len__(self) -> int:
            return 30

        def batch(self, positions: Tensor) -> Batch:
            return Batch(whole.images[positions], whole.labels[positions], whole.index[positions])

    found = evaluate_data(Own())
    assert found.record.dataset.sha256 == "0" * 64
    assert found.rows["index"].tolist() == whole.index.tolist()


def test_a_model_with_normalization_takes_further_keywords() -> None:
    shape = {"num_classes": 10, "input_shape": (1, 8, 8)}
    model = wmr.create("model", "digits-cnn:mean=0.5,std=0.2", **shape, hidden=32)
    assert isinstance(model, Normalized)
    assert any(
        layer.out_features == 32 for layer in model.modules() if isinstance(layer, nn.Linear)
    )


def test_an_unknown_kind_is_refused_with_the_nearest_one() -> None:
    with pytest.raises(UnknownName, match="modle") as refused:
        wmr.create("modle", "digits-cnn")
    assert "'model'" in refused.value.hint


def test_normalization_without_an_input_shape_is_refused() -> None:
    with pytest.raises(BadInput, match="input_shape"):
        wmr.create("model", "digits-cnn:mean=0.5", num_classes=10)


def test_a_model_is_normalized_whatever_other_keywords_are_given(tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text(
        "from torch import nn\n"
        "class Net(nn.Sequential):\n"
        "    def __init__(self, num_classes, hidden=8):\n"
        "        layers = nn.Linear(64, hidden), nn.Linear(hidden, num_classes)\n"
        "        super().__init__(nn.Flatten(), *layers)\n"
    )
    size = {"num_classes": 10, "input_shape": (1, 8, 8)}
    for name in ("digits-cnn:", f"{tmp_path}/net.py:Net,"):
        spec = f"{name}mean=0.5,std=0.2"
        assert isinstance(wmr.create("model", spec, **size), Normalized)
        assert isinstance(wmr.create("model", spec, **size, hidden=32), Normalized)
        by_keyword = wmr.create("model", name[:-1], **size, hidden=32, mean=0.5, std=(0.2,))
        assert isinstance(by_keyword, Normalized)
        with pytest.raises(BadInput, match="mean"):
            wmr.create("model", spec, **size, mean=0.5)


def test_a_keyword_that_a_model_lacks_is_named() -> None:
    with pytest.raises(UnknownName, match="'hidden'"):
        wmr.create(
            "model", "small-cnn:mean=0.5", num_classes=10, input_shape=(1, 28, 28), hidden=32
        )


def test_rows_of_a_result_are_compact_on_request(
    result: Result, tiny_run: Path, test_images: Split
) -> None:
    compact = wmr.evaluate(wmr.load(tiny_run), test_images, rows="compact", **SETTINGS)
    assert compact.rows.keys() == {name for name in result.rows if not name.endswith("/logits")}
    assert compact.record.by_alpha == result.record.by_alpha

"""From Python: the numbers of `wmr evaluate`, for any network and any images, and the network left as it was."""

import io
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

import wmr_cli as wmr
from support.typed import instance_of
from wmr_cli import Result
from wmr_cli.config import EvaluateConfig
from wmr_cli.core.contexts import on_device
from wmr_cli.core.losses import cross_entropy
from wmr_cli.core.nn.preprocessing import Normalized
from wmr_cli.core.protocols import Attack, AttackResult, Batch, Objective, Split
from wmr_cli.core.traits import AttackTraits
from wmr_cli.errors import BadFile, BadInput, BrokenContract, UnknownName, WmrError
from wmr_cli.evaluation import run as workflow
from wmr_cli.events import EvaluationDone
from wmr_cli.measures import worst_case
from wmr_cli.registry import Registry
from wmr_cli.reporting.rows import run_name
from wmr_cli.reporting.tables.main import make_table
from wmr_cli.runtime.fabric import Hardware
from wmr_cli.storage import records
from wmr_cli.storage.records import Record, Rows
from wmr_cli.testing import CLASSES, SHAPE, tiny_batch, tiny_model

ATTACK, ALPHAS = "pgd:steps=2,step=0.015", (0.0, 1.0, 2.0)
SETTINGS: dict[str, Any] = {"attack": ATTACK, "eps": 0.15, "alphas": ALPHAS}


@pytest.fixture(scope="module")
def by_command(
    tiny_run: Path, registry: Registry, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Record, Rows]:
    """What `wmr evaluate` records."""
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


def few(count: int = 40, **settings: Any) -> Result:
    """A tiny network on tiny images, in a moment."""
    batch = tiny_batch(count)
    given: dict[str, Any] = {
        "attack": "pgd:steps=2",
        "eps": 0.05,
        "alphas": (1.0,),
        "metrics": ("nat", "rob", "sa"),
    }
    return wmr.evaluate(tiny_model(), [(batch.images, batch.labels)], **(given | settings))


def test_the_numbers_are_those_of_the_command_to_the_bit(
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
    assert result.record.dataset.sha256 == record.dataset.sha256  # so that reports may compare them


@dataclass
class Numbered(Dataset[tuple[Tensor, int, int]]):
    """A split as torch knows data sets, with the number of each image."""

    split: Split

    def __len__(self) -> int:
        return len(self.split)

    def __getitem__(self, position: int) -> tuple[Tensor, int, int]:
        batch = self.split.batch(torch.tensor([position]))
        return batch.images[0], int(batch.labels[0]), int(batch.index[0])


@dataclass
class Streaming(IterableDataset[tuple[Tensor, int, int]]):
    """The same without a length."""

    split: Split

    def __iter__(self) -> Iterator[tuple[Tensor, int, int]]:
        return (Numbered(self.split)[position] for position in range(len(self.split)))


ARRIVALS: dict[str, Callable[[Split], Dataset[Any] | Iterable[Any]]] = {
    "a data set": Numbered,
    "a loader": lambda split: DataLoader(Numbered(split), batch_size=100),
    "a data set without a length": lambda split: Streaming(split),
    "a loader that drops": lambda split: DataLoader(Numbered(split), batch_size=11, drop_last=True),
    "one batch": lambda split: [split.batch(torch.arange(len(split)))],
    "a generator of arrays": lambda split: (
        (one.images.numpy(), one.labels.numpy().astype(np.int32), one.index.numpy())
        for one in map(split.batch, torch.arange(len(split)).split(7))
    ),
}


@pytest.mark.parametrize("arrival", ARRIVALS)
def test_however_the_images_arrive_the_numbers_are_the_same_to_the_bit(
    arrival: str, tiny_run: Path, test_images: Split, by_command: tuple[Record, Rows]
) -> None:
    data = ARRIVALS[arrival](test_images)
    found = wmr.evaluate(
        wmr.load(tiny_run), data, attack=ATTACK, eps=0.15, metrics=("nat", "rob", "sa")
    )
    assert_same_rows(
        found.rows,
        {name: values for name, values in by_command[1].items() if "weighted" not in name},
    )


def test_how_a_stream_is_cut_leaves_no_trace_in_its_hash() -> None:
    batch = tiny_batch(40)
    data = TensorDataset(batch.images, batch.labels)
    by_one, by_seven = (few_of(DataLoader(data, batch_size=size)) for size in (1, 7))
    assert by_one.record.id == by_seven.record.id
    other = few_of([(batch.images.flip(0), batch.labels.flip(0))])
    assert other.record.dataset.sha256 != by_one.record.dataset.sha256


def few_of(
    data: Split | Dataset[Any] | Iterable[Any], model: nn.Module | None = None, **settings: Any
) -> Result:
    given: dict[str, Any] = {"attack": "pgd:steps=1", "eps": 0.05, "metrics": ("nat", "rob")}
    return wmr.evaluate(
        model or tiny_model(),
        data,
        **(given | settings),
    )


def test_images_without_a_number_are_counted_and_bytes_are_scaled() -> None:
    batch = tiny_batch(20)
    images = (batch.images * 255).round().to(torch.uint8)
    found = few_of([(images[:5], batch.labels[:5]), (images[5:], batch.labels[5:])])
    assert found.rows["index"].tolist() == list(range(20))
    numbered = few_of([(images.float() / 255, batch.labels, torch.arange(20))])
    assert_same_rows(found.rows, numbered.rows)
    assert found.record.dataset.sha256 == numbered.record.dataset.sha256


def test_many_images_are_not_held(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond 2,048 images a stream goes by: none is read long before it is used."""
    monkeypatch.setattr("wmr_cli.evaluation.evaluator.CHUNK_SIZE", 32)  # many are 256 then
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
    assert used[0] == 8  # as many as it takes to know
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
    assert used[0] == (256 if drops else 32)  # one that drops images may have fewer than it seems


class Switching(nn.Module):
    """Parts in both modes, frozen and free parameters, buffers."""

    def __init__(self) -> None:
        super().__init__()
        self.features = instance_of(nn.Sequential, tiny_model())
        self.features[0].weight.requires_grad_(False)
        self.train()
        self.features[1].eval()

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.features(images)
        return logits


def snapshot(model: nn.Module) -> dict[str, Any]:
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


def assert_as_before(before: dict[str, Any], model: nn.Module) -> None:
    now = snapshot(model)
    assert all(torch.equal(tensor, now["state"][name]) for name, tensor in before["state"].items())
    assert before | {"state": None} == now | {"state": None}


@pytest.mark.parametrize("fails", [False, True])
def test_the_model_is_left_as_it_was(fails: bool) -> None:
    model, batch = Switching(), tiny_batch()
    cross_entropy(model(batch.images), batch.labels).mean().backward()
    calls = []
    model.features[2].register_forward_hook(lambda *_: calls.append(model.training))
    before = snapshot(model)
    if fails:
        with pytest.raises(BrokenContract):
            few_of([(batch.images, batch.labels + 2)], model=model)
    else:
        few_of([(batch.images, batch.labels)], model=model)
    assert set(calls) == {False}
    assert_as_before(before, model)


def test_a_model_goes_to_another_device_and_comes_back() -> None:
    model = Switching()
    cross_entropy(model(tiny_batch().images), tiny_batch().labels).mean().backward()
    before = snapshot(model)
    with on_device(model, torch.device("meta")):
        assert {tensor.device.type for tensor in (*model.parameters(), *model.buffers())} == {
            "meta"
        }
    assert_as_before(before, model)
    with pytest.raises(RuntimeError, match="stop"), on_device(model, torch.device("meta")):
        raise RuntimeError("stop")
    assert_as_before(before, model)


@pytest.mark.parametrize(
    "mode", [torch.no_grad, torch.inference_mode, lambda: torch.autocast("cpu", torch.bfloat16)]
)
def test_the_mode_around_it_makes_no_difference(
    mode: Callable[[], AbstractContextManager[object]],
) -> None:
    model, batch = tiny_model(), tiny_batch()
    with mode():
        found = few_of([(batch.images, batch.labels)], model)
    assert_same_rows(found.rows, few_of([(batch.images, batch.labels)], model).rows)


def nan_model() -> nn.Module:
    model = tiny_model()
    model.get_parameter("5.bias").data[1] = float("nan")
    return model


WRONG: dict[
    str, tuple[Callable[[Batch], Any], dict[str, Any], type[WmrError], str]
] = {
    "pixels beyond 1": (lambda b: [(b.images * 255, b.labels)], {}, BrokenContract, r"image \d+"),
    "pixels below 0": (lambda b: [(b.images - 0.5, b.labels)], {}, BrokenContract, "image 0"),
    "a pixel that is no number": (lambda b: [(b.images * float("nan"), b.labels)], {}, BrokenContract, "image 0"),
    "labels beyond the classes": (lambda b: [(b.images, b.labels + 1)], {}, BrokenContract, "image 3"),
    "logits that are no number": (lambda b: [(b.images, b.labels)], {"model": nan_model()}, BrokenContract, "finite"),
    "labels as floats": (lambda b: [(b.images, b.labels.float())], {}, BadInput, "torch.float32"),
    "labels as one-hot": (lambda b: [(b.images, torch.eye(4)[b.labels])], {}, BadInput, "shape"),
    "images without channels": (lambda b: [(b.images[:, 0], b.labels)], {}, BadInput, "shape"),
    "images of whole numbers": (lambda b: [(b.images.long(), b.labels)], {}, BadInput, "torch.int64"),
    "images of two shapes": (
        lambda b: [(b.images, b.labels), (b.images[:, :, 1:], b.labels)], {}, BadInput, "batch 1",
    ),
    "a batch of one": (lambda b: [(b.images,)], {}, BadInput, "batch 0"),
    "a batch as a dictionary": (lambda b: [{"images": b.images}], {}, BadInput, "batch 0"),
    "text among the images": (lambda b: [("cat.png", b.labels)], {}, BadInput, "batch 0"),
    "no images at all": (lambda b: [], {}, BadInput, "`data`"),
    "images by themselves": (lambda b: b.images, {}, BadInput, "Tensor"),
    "a whole data set": (lambda b: wmr.create("dataset", "digits"), {}, BadInput, "split"),
    "another number of classes": (lambda b: [(b.images, b.labels)], {"num_classes": 10}, BadInput, "10"),
    "a model of other images": (
        lambda b: [(b.images.repeat(1, 3, 1, 1), b.labels)], {}, BadInput, "channel",
    ),
    "a model that gives no logits": (
        lambda b: [(b.images, b.labels)], {"model": nn.Identity()}, BadInput, "shape",
    ),
    "no radius": (lambda b: [(b.images, b.labels)], {"eps": None}, BadInput, "eps"),
    "a negative radius": (lambda b: [(b.images, b.labels)], {"eps": -0.1}, BadInput, "eps.*-0.1"),
    "two radii": (lambda b: [(b.images, b.labels)], {"attack": "pgd:eps=8/255"}, BadInput, "eps.*0.05"),
    "an unknown attack": (lambda b: [(b.images, b.labels)], {"attack": "pdg"}, UnknownName, "pdg"),
    "no attack": (lambda b: [(b.images, b.labels)], {"attack": 7}, BadInput, "int"),
    "an unknown norm": (lambda b: [(b.images, b.labels)], {"norm": "l7"}, UnknownName, "l7"),
    "an unknown metric": (lambda b: [(b.images, b.labels)], {"metrics": ("a_rob",)}, UnknownName, "a_rob"),
    "an alpha that is no number": (lambda b: [(b.images, b.labels)], {"alphas": (float("nan"),)}, BadInput, "alphas.*nan"),
    "a radius of a ball below 0": (lambda b: [(b.images, b.labels)], {"rhos": (-1.0,)}, BadInput, "rhos.*-1.0"),
    "batches of nothing": (lambda b: [(b.images, b.labels)], {"batch_size": 0}, BadInput, "batch_size.*0"),
}  # fmt: skip


@pytest.mark.parametrize("wrong", WRONG)
def test_invalid_input_is_refused_with_a_hint(wrong: str) -> None:
    data, settings, kind, problem = WRONG[wrong]
    given: dict[str, Any] = {"attack": "pgd:steps=1", "eps": 0.05, **settings}
    model = given.pop("model", None) or tiny_model()
    with pytest.raises(kind, match=problem) as caught:
        wmr.evaluate(model, data(tiny_batch()), **given)
    assert caught.value.hint


def test_a_loader_that_shuffles_gives_a_warning() -> None:
    batch = tiny_batch()
    data = TensorDataset(batch.images, batch.labels)
    with pytest.warns(UserWarning, match="shuffle"):
        few_of(DataLoader(data, batch_size=4, shuffle=True))


def test_caveats_are_warnings() -> None:
    with pytest.warns(UserWarning, match="sample"):
        few(200, alphas=(900.0,))
    with pytest.warns(UserWarning, match="8/255"):
        few(eps=0.031)


def test_any_alpha_follows_from_the_rows_and_a_tr_only_where_it_was_measured(
    result: Result,
) -> None:
    shares = [result.a_sa(alpha).value for alpha in (0, 0.5, 1, 3, 9)]
    assert shares == sorted(shares, reverse=True)
    assert shares[0] == result.a_rob.value
    again = result.rescore(0.5, 3)
    assert again.alphas == (0.5, 3.0)
    assert again.record.by_alpha[1].a_sa == result.a_sa(3)
    assert again.record.by_alpha[1].a_tr is None
    assert again.rows is result.rows
    assert result.alphas == ALPHAS
    with pytest.raises(BadInput, match=r"A_tr.*3"):
        result.a_tr(3)


def test_any_ball_follows_from_the_rows(result: Result) -> None:
    found = worst_case(-result.rows["uniform/logit_margin"].astype(np.float64), 0.3)
    assert result.dro(0.3, "margin").loss == found.value
    assert result.dro(0.3, "margin").ess == found.ess


def test_what_was_not_measured_is_refused_with_the_way_to_it() -> None:
    natural = few(metrics=("nat",))
    for ask in (lambda: natural.a_rob, lambda: natural.a_sa(1.0), lambda: natural.dro(0.1)):
        with pytest.raises(BadInput) as caught:
            ask()
        assert caught.value.hint
    early = few(attack="autoattack:attacks=apgd-ce", metrics=("nat", "rob", "sa"))
    assert early.a_rob.value <= early.a_nat.value
    with pytest.raises(BadInput, match=r"A_sa.*1"):
        early.a_sa(1.0)
    assert early.dro(0.1, "zero-one").worst_accuracy <= early.a_rob.value


def test_numbers_may_be_arrays() -> None:
    found = few(alphas=np.linspace(0, 1, 3, dtype=np.float32), rhos=np.array([1, 0.1]))
    assert found.alphas == (0.0, 0.5, 1.0)
    assert [row.rho for row in found.record.dro] == [0.1, 1.0]


def test_a_kernel_without_alpha_needs_none() -> None:
    found = few(kernel="none", alphas=None)
    assert found.alphas == ()
    assert found.a_sa().value == found.a_rob.value
    with pytest.raises(BadInput, match="alpha"):
        few(kernel="none", alphas=(1.0,))


def test_what_is_saved_comes_back_equal_and_is_reported(result: Result, tmp_path: Path) -> None:
    file = result.save(tmp_path / "notebook")
    again = wmr.Result.load(file)
    assert again.record == result.record
    assert_same_rows(again.rows, result.rows)
    assert str(again) == str(result)
    done = subprocess.run(
        [sys.executable, "-m", "wmr_cli", "report", str(tmp_path / "notebook"), "--alpha-test", "0.5"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert f"{100 * result.a_sa(0.5).value:.1f}" in done.stdout
    with pytest.raises(BadFile):
        wmr.Result.load(tmp_path / "nowhere.json")


def test_a_record_of_the_command_can_be_opened(
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
    assert opened.a_sa(1.0) == done.record.by_alpha[0].a_sa  # resampled as it was asked for


def test_it_is_shown_as_the_table_of_the_command(result: Result) -> None:
    table = make_table([result.record])
    assert " ".join(table.rows[0][6].split()) in str(result)
    console = Console(width=300, record=True, file=io.StringIO())
    console.print(result)
    assert console.export_text().splitlines()[1].split() == list(table.headings)
    assert result._repr_markdown_().startswith("| run | defense |")
    html = result._repr_html_()
    assert html.count("<table>") == 2  # the balls have their own
    assert "A_sa" in html
    narrow = Console(width=60, record=True, file=io.StringIO())
    narrow.print(result)
    assert max(map(len, narrow.export_text().splitlines())) <= 60


def test_names_are_text_and_not_markup() -> None:
    found = few(name="<b>net</b>[red]", dataset="my data")
    assert "<b>" not in found._repr_html_()
    assert "<b>net</b>[red]" in str(found)
    assert found.record.dataset.name == "my data"
    assert run_name(few().record) == "Sequential"


@dataclass(frozen=True)
class Darker:
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
        (Darker(strength=1.0), f"{__name__}.Darker:strength=1"),
    ],
    ids=str,
)
def test_an_attack_is_recorded_by_the_spec_that_rebuilds_it(
    attack: str | Attack, spec: str
) -> None:
    found = few(attack=attack, eps=0.05 if isinstance(attack, str) else None)
    assert found.record.attack.spec == spec
    assert found.record.threat.eps == 0.05
    assert found.record.threat.norm == getattr(attack, "norm", "linf")


def test_an_attack_is_the_same_by_name_and_built() -> None:
    built = few(attack=wmr.create("attack", "pgd:steps=2", eps=0.05))
    assert_same_rows(built.rows, few().rows)
    assert built.record.id == few().record.id
    with pytest.raises(BadInput, match="eps"):
        few(attack=wmr.create("attack", "pgd", eps=0.05), eps=0.1)


def test_an_attack_of_ones_own_may_be_a_function() -> None:
    def nothing(
        model: nn.Module, batch: Batch, objective: Objective, *, seed: int, need_logits: bool = True
    ) -> AttackResult:
        with torch.no_grad():
            return AttackResult(batch.images, torch.zeros_like(batch.labels), model(batch.images))

    with pytest.raises(BrokenContract, match="without `traits`"):
        few(attack=nothing)
    nothing.traits = AttackTraits()  # type: ignore[attr-defined]
    found = few(attack=nothing)
    assert found.a_rob == found.a_nat
    assert found.record.attack.spec.endswith("nothing")


def test_an_attack_that_leaves_the_eps_ball_is_refused() -> None:
    with pytest.raises(BrokenContract, match="Darker"):
        few(attack=Darker(strength=2.0))


def test_the_seed_decides_the_start() -> None:
    assert np.array_equal(few(seed=1).rows["uniform/logits"], few(seed=1).rows["uniform/logits"])
    assert not np.array_equal(
        few(seed=1).rows["uniform/logits"], few(seed=2).rows["uniform/logits"]
    )


def test_the_record_knows_its_weights_by_their_content() -> None:
    other = tiny_model()
    other.get_parameter("0.bias").data += 0.1
    batch = tiny_batch()
    same, changed = (
        few_of([(batch.images, batch.labels)], model=one).record.checkpoint
        for one in (tiny_model(), other)
    )
    assert same.sha256 == few_of([(batch.images, batch.labels)], eps=0.1).record.checkpoint.sha256
    assert same.sha256 != changed.sha256
    assert (same.defense, same.model, same.config) == ("imported", "Sequential", None)


def test_create_builds_models_with_their_normalisation() -> None:
    model = wmr.create(
        "model", "digits-cnn:mean=0.5,std=0.25", num_classes=CLASSES, input_shape=SHAPE
    )
    assert float(model.get_buffer("mean")) == 0.5


def test_create_looks_for_data_where_the_command_does(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "where.py"
    file.write_text("class Where:\n    def __init__(self, root): self.root = root\n")
    monkeypatch.setenv("WMR_DATA_DIR", str(tmp_path))
    assert vars(wmr.create("dataset", f"{file}:Where"))["root"] == tmp_path
    moved = wmr.create("dataset", f"{file}:Where", root=Path("elsewhere"))
    assert vars(moved)["root"] == Path("elsewhere")


def test_a_split_of_ones_own_is_one() -> None:
    whole = tiny_batch(30)

    class Own:
        labels, sha256 = whole.labels, "0" * 64

        def __len__(self) -> int:
            return 30

        def batch(self, positions: Tensor) -> Batch:
            return Batch(whole.images[positions], whole.labels[positions], whole.index[positions])

    found = few_of(Own())
    assert found.record.dataset.sha256 == "0" * 64
    assert found.rows["index"].tolist() == whole.index.tolist()


def test_a_model_with_normalization_takes_further_keywords() -> None:
    shape = {"num_classes": 10, "input_shape": (1, 8, 8)}
    model = wmr.create("model", "digits-cnn:mean=0.5,std=0.2", **shape, hidden=32)
    assert isinstance(model, Normalized)
    assert any(
        layer.out_features == 32 for layer in model.modules() if isinstance(layer, nn.Linear)
    )


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

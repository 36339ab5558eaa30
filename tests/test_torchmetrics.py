"""`RunningAccuracyMetric` has the figures of `evaluate`, and behaves as metrics of torchmetrics."""

import pickle
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor

import wmr_cli as wmr
from wmr_cli.measures import Estimate, RunningAccuracy
from wmr_cli.torchmetrics import RunningAccuracyMetric

ALPHAS = (0.0, 1.0, 2.0)
Batches = list[tuple[Tensor, Tensor]]


def make_batches(count: int = 3, size: int = 40, seed: int = 0) -> Batches:
    generator = torch.Generator().manual_seed(seed)
    return [
        (
            2 * torch.randn(size, 5, generator=generator),
            torch.randint(5, (size,), generator=generator),
        )
        for _ in range(count)
    ]


def measure(batches: Batches, alphas: tuple[float, ...] = ALPHAS) -> RunningAccuracyMetric:
    metric = RunningAccuracyMetric(alphas)
    for logits, labels in batches:
        metric.update(logits, labels)
    return metric


def to_floats(values: dict[str, Tensor]) -> dict[str, float]:
    return {name: value.item() for name, value in values.items()}


def assert_same(values: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    """Compare up to rounding, which depends on the order of merging."""
    assert to_floats(values) == pytest.approx(to_floats(expected), rel=1e-13)


@pytest.fixture(scope="module")
def result(tiny_run: Path) -> wmr.Result:
    digits = wmr.create("dataset", "digits").splits["test"]
    attack = "pgd:steps=2,step=0.015"
    return wmr.evaluate(wmr.load(tiny_run), digits, eps=0.15, attack=attack, alphas=ALPHAS)


def test_one_update_is_bit_identical_to_evaluate(result: wmr.Result) -> None:
    labels = torch.from_numpy(result.rows["label"])
    found = measure([(torch.from_numpy(result.rows["uniform/logits"]), labels)])
    values = to_floats(found.compute())

    def expect(name: str, estimate: Estimate) -> None:
        assert values[name] == estimate.value
        assert (values[f"{name}_low"], values[f"{name}_high"]) == (estimate.low, estimate.high)

    expect("plain", result.a_rob)
    for alpha in ALPHAS:
        expect(f"weighted@{alpha}", result.a_sa(alpha))
        assert values[f"weighted@{alpha}_ess"] == result.a_sa(alpha).ess
    assert len(values) == 3 + 4 * len(ALPHAS)
    clean = measure([(torch.from_numpy(result.rows["clean/logits"]), labels)], alphas=())
    assert clean.compute()["plain"].item() == result.a_nat.value


def test_batches_give_the_figures_of_all_images() -> None:
    batches = make_batches(7)
    logits, labels = zip(*batches, strict=True)
    assert_same(
        measure(batches).compute(), measure([(torch.cat(logits), torch.cat(labels))]).compute()
    )


def test_forward_returns_the_figures_of_the_batch_and_keeps_those_of_all() -> None:
    batches = make_batches()
    metric = RunningAccuracyMetric(ALPHAS)
    for batch in batches:
        assert to_floats(metric(*batch)) == to_floats(measure([batch]).compute())
    assert_same(metric.compute(), measure(batches).compute())


def test_reset_forgets_all_images() -> None:
    first, second, _ = make_batches()
    metric = measure([first])
    metric.reset()
    with pytest.warns(UserWarning, match="before"), pytest.raises(ValueError, match="image"):
        metric.compute()
    metric.update(*second)
    assert to_floats(metric.compute()) == to_floats(measure([second]).compute())


def test_states_are_merged() -> None:
    batches = make_batches(4)
    metric = measure(batches[:1])
    metric.merge_state(measure(batches[1:]))
    assert_same(metric.compute(), measure(batches).compute())


def test_states_of_other_alphas_are_not_merged() -> None:
    (batch,) = make_batches(1)
    with pytest.raises(ValueError, match="state"):
        measure([batch], (1.0,)).merge_state(measure([batch], (2.0,)))


def test_metrics_of_a_collection_stay_apart_after_equal_states() -> None:
    # not above: wmr_cli.torchmetrics has to be imported first, for the sake of torchvision
    from torchmetrics import MetricCollection
    from torchmetrics.classification import MulticlassAccuracy

    collection = MetricCollection(
        {
            "one": RunningAccuracyMetric((1.0,)),
            "two": RunningAccuracyMetric((2.0,)),
            "again": RunningAccuracyMetric((2.0,)),
            "top": MulticlassAccuracy(num_classes=5, average="micro"),
        }
    )
    # with equal logits all margins are 0, and so all weights are the same at any alpha
    batches = [(torch.zeros(40, 5), make_batches(1)[0][1]), *make_batches(2)]
    for logits, labels in batches:
        collection.update(logits, labels)
    values = collection.compute()
    expected = measure(batches, (1.0, 2.0)).compute()
    for name, alpha in (("one", "1.0"), ("two", "2.0"), ("again", "2.0")):
        assert torch.equal(values[f"{name}_weighted@{alpha}"], expected[f"weighted@{alpha}"])
    assert values["top"] == pytest.approx(values["one_plain"].item())


def test_a_collection_adds_its_prefix() -> None:
    from torchmetrics import MetricCollection

    collection = MetricCollection([RunningAccuracyMetric((2.0,))], prefix="attacked/")
    (batch,) = make_batches(1)
    assert "attacked/weighted@2.0" in collection(*batch)


def test_a_clone_and_a_pickled_copy_have_the_state_and_go_on_alone() -> None:
    first, second, third = make_batches()
    metric = measure([first])
    copies = [metric.clone(), pickle.loads(pickle.dumps(metric))]
    metric.update(*third)
    for copy in copies:
        copy.update(*second)
        assert to_floats(copy.compute()) == to_floats(measure([first, second]).compute())


def test_a_persistent_state_is_saved_and_loaded() -> None:
    batches = make_batches()
    metric = measure(batches)
    assert metric.state_dict() == {}
    metric.persistent(True)
    restored = RunningAccuracyMetric(ALPHAS)
    restored.persistent(True)
    restored.load_state_dict(metric.state_dict())
    assert restored.running.compute() == metric.running.compute()
    other = RunningAccuracyMetric((5.0,))
    other.persistent(True)
    with pytest.raises(RuntimeError, match="numbers"):
        other.load_state_dict(metric.state_dict())


def test_sums_stay_in_float64_beside_a_network_in_half_precision() -> None:
    batches = make_batches()
    holder = torch.nn.Sequential(torch.nn.Linear(2, 2), measure(batches)).half()
    (metric,) = (part for part in holder if isinstance(part, RunningAccuracyMetric))
    assert to_floats(metric.compute()) == to_floats(measure(batches).compute())


def test_the_running_state_is_that_of_the_measures() -> None:
    batches = make_batches()
    running = RunningAccuracy(ALPHAS)
    for logits, labels in batches:
        probabilities = logits.double().softmax(dim=1)
        true = probabilities.gather(1, labels[:, None])[:, 0]
        others = probabilities.scatter(1, labels[:, None], -1.0).amax(dim=1)
        running.update((logits.argmax(dim=1) == labels).numpy(), (true - others).numpy())
    assert measure(batches).running.compute() == running.compute()


def test_the_states_of_all_ranks_are_gathered() -> None:
    batches = make_batches(3)
    other = measure(batches[2:])

    def gather(state: Tensor, group: object = None) -> list[Tensor]:
        return [state, torch.from_numpy(other.running.numbers())]

    metric = RunningAccuracyMetric(
        ALPHAS, dist_sync_fn=gather, distributed_available_fn=lambda: True
    )
    for batch in batches[:2]:
        metric.update(*batch)
    assert_same(metric.compute(), measure(batches).compute())
    # the state of the rank itself is back after `compute`
    assert metric.running.compute() == measure(batches[:2]).running.compute()


RANK = """
import sys
import torch, torch.distributed
from wmr_cli.torchmetrics import RunningAccuracyMetric

rank, store, file = int(sys.argv[1]), sys.argv[2], sys.argv[3]
torch.distributed.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
metric = RunningAccuracyMetric((0.0, 1.0, 2.0))
# the ranks have other numbers of batches
for logits, labels in torch.load(file)[rank::2]:
    metric.update(logits, labels)
together = metric.compute()
alone = metric.running.compute().plain.value
torch.save((together, alone), f"{file}.{rank}")
torch.distributed.destroy_process_group()
"""


@pytest.mark.slow
def test_two_ranks_have_the_figures_of_one_process(tmp_path: Path) -> None:
    batches = make_batches(3)
    file = tmp_path / "batches.pt"
    torch.save(batches, file)
    started = [
        subprocess.Popen(
            [sys.executable, "-c", RANK, str(rank), str(tmp_path / "store"), str(file)]
        )
        for rank in range(2)
    ]
    assert [process.wait(timeout=120) for process in started] == [0, 0]
    (first, alone), (second, other) = (torch.load(f"{file}.{rank}") for rank in range(2))
    assert_same(first, measure(batches).compute())
    assert to_floats(first) == to_floats(second)
    assert alone == measure(batches[::2]).running.compute().plain.value
    assert other == measure(batches[1::2]).running.compute().plain.value


def test_a_missing_torchmetrics_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torchmetrics", None)
    monkeypatch.delitem(sys.modules, "wmr_cli.torchmetrics")
    with pytest.raises(wmr.BadInput) as caught:
        import wmr_cli.torchmetrics  # noqa: F401
    assert "'wmr-cli[torchmetrics]'" in caught.value.hint

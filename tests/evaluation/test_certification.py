"""Verified bounds in records: shared between attacks, checked, and rescored at any alpha."""

import csv
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from torch import Tensor, nn

from support.typed import not_none
from wmr_cli import api
from wmr_cli.config import EvaluateConfig
from wmr_cli.core.protocols import Batch, LogitBounds
from wmr_cli.core.traits import VerifierTraits
from wmr_cli.errors import BadFile, BadInput, BrokenContract, UnknownName
from wmr_cli.evaluation.certification import Certifier, check_bounds
from wmr_cli.evaluation.run import evaluate
from wmr_cli.events import EvaluationDone
from wmr_cli.registry import Registry
from wmr_cli.reporting import report
from wmr_cli.reporting.tables import main
from wmr_cli.runtime.fabric import Hardware
from wmr_cli.storage import records
from wmr_cli.storage.records import Record
from wmr_cli.testing import tiny_batch, tiny_model

pytestmark = pytest.mark.usefixtures("trusts_local_code")
VERIFIERS = """
import torch
from wmr_cli.core import LogitBounds, VerifierTraits

CALLS = []

class Lipschitz:
    '''Clean differences minus `slope` times eps.'''

    traits = VerifierTraits(norms=frozenset({"linf"}))

    def __init__(self, slope: float = 60.0) -> None:
        self.slope = slope

    def __call__(self, model, batch, *, norm, eps, num_classes):
        CALLS.append(len(batch.labels))
        with torch.no_grad():
            logits = model(batch.images).double()
        true_class = batch.labels[:, None]
        lower = logits.gather(1, true_class) - logits - self.slope * eps
        return LogitBounds(lower.scatter(1, true_class, torch.inf))
"""


@pytest.fixture
def verifier(tmp_path: Path) -> str:
    """Write a verifier that is sound for steep enough slopes; return its spec."""
    (tmp_path / "lipschitz.py").write_text(VERIFIERS)
    return f"{tmp_path / 'lipschitz.py'}:Lipschitz"


def run(path: Path, registry: Registry, out: Path, **settings: Any) -> list[Record]:
    config = EvaluateConfig(**{"alpha_test": (1.0,), "steps": 3, "eps": (0.02,), **settings})
    hardware = Hardware("cpu")
    events: Iterator[object] = evaluate(
        path, config, registry, data_dir=Path(), hardware=hardware, out=out
    )
    return [event.record for event in events if isinstance(event, EvaluationDone)]


@pytest.fixture
def measured(tiny_run: Path, registry: Registry, tmp_path: Path, verifier: str) -> list[Record]:
    attacks = ("pgd", "pgd-margin")
    return run(tiny_run, registry, tmp_path / "out", attacks=attacks, certify=verifier)


def test_all_records_and_their_worst_case_have_consistent_bounds(measured: list[Record]) -> None:
    assert [record.attack.of is not None for record in measured] == [False, False, True]
    for record in measured:
        bounds = not_none(record.bounds)
        assert bounds.certified + bounds.broken + bounds.unknown == record.dataset.n
        assert bounds.a_rob.lower == bounds.certified / record.dataset.n
        assert bounds.a_rob.upper == pytest.approx(1 - bounds.broken / record.dataset.n)
        (row,) = bounds.by_alpha
        a_sa = not_none(row.a_sa)
        assert a_sa.low <= a_sa.lower <= a_sa.upper <= a_sa.high
    assert len({not_none(record.bounds).certified for record in measured}) == 1
    worst = max(not_none(record.bounds).broken for record in measured[:2])
    assert not_none(measured[2].bounds).broken >= worst


def test_bounds_are_computed_once_per_threat_model(
    tiny_run: Path, registry: Registry, tmp_path: Path, verifier: str
) -> None:
    settings: dict[str, Any] = {"attacks": ("pgd", "pgd-margin"), "metrics": ("rob",)}
    images = run(tiny_run, registry, tmp_path / "plain", **settings)[0].dataset.n
    calls = vars(sys.modules[registry.target("verifier", verifier).__module__])["CALLS"]
    run(tiny_run, registry, tmp_path / "out", certify=verifier, repeats=2, **settings)
    assert sum(calls) == images
    run(tiny_run, registry, tmp_path / "two", certify=verifier, **{**settings, "eps": (0.01, 0.02)})
    assert sum(calls) == 3 * images


def test_ids_differ_only_with_a_verifier(
    tiny_run: Path, registry: Registry, tmp_path: Path, verifier: str
) -> None:
    (plain,) = run(tiny_run, registry, tmp_path / "out")
    (certified,) = run(tiny_run, registry, tmp_path / "out", certify=verifier)
    (steeper,) = run(tiny_run, registry, tmp_path / "out", certify=f"{verifier},slope=80")
    assert plain.bounds is None
    assert len({plain.id, certified.id, steeper.id}) == 3
    assert (plain.a_rob, plain.by_alpha) == (certified.a_rob, certified.by_alpha)


def test_a_record_without_the_field_is_readable(measured: list[Record], tmp_path: Path) -> None:
    fields = msgspec.to_builtins(measured[0])
    del fields["bounds"]
    (tmp_path / "old.json").write_bytes(msgspec.json.encode(fields))
    assert records.load(tmp_path / "old.json").bounds is None


@pytest.mark.parametrize("ends", [{"lower": 0.9, "upper": 0.1}, {"low": -0.1}, {"high": 1.5}])
def test_impossible_bounds_are_refused(
    measured: list[Record], tmp_path: Path, ends: dict[str, float]
) -> None:
    fields = msgspec.to_builtins(measured[0])
    fields["bounds"]["a_rob"] |= ends
    (tmp_path / "forged.json").write_bytes(msgspec.json.encode(fields))
    with pytest.raises(BadFile, match="bounds"):
        records.load(tmp_path / "forged.json")


def test_stored_rows_that_contradict_their_bounds_are_refused(
    measured: list[Record], tmp_path: Path
) -> None:
    file = tmp_path / "out" / f"{measured[0].id}.json"
    rows = records.load_rows(records.rows_path(file))
    broken = rows["uniform/prediction"] != rows["label"]
    rows["certify/logit_margin"] = np.where(broken, 1.0, rows["certify/logit_margin"])
    records.save_rows(records.rows_path(file), rows)
    with pytest.raises(BadFile, match="verified bound"):
        records.load_record_rows(file, measured[0])


def test_reports_compute_bounds_at_other_alphas(measured: list[Record], tmp_path: Path) -> None:
    (record, *_) = report.gather_records([tmp_path / "out"], alphas=(0.0, 3.0)).records
    bounds = not_none(record.bounds)
    assert [row.alpha_test for row in bounds.by_alpha] == [0.0, 3.0]
    at_zero = not_none(bounds.by_alpha[0].a_sa)
    assert at_zero.lower == pytest.approx(bounds.a_rob.lower)
    assert at_zero.upper == pytest.approx(bounds.a_rob.upper)
    assert not_none(bounds.by_alpha[1].a_sa).lower < at_zero.lower


def test_bounds_are_in_the_tables_and_in_the_csv(measured: list[Record]) -> None:
    (table,) = [
        one for one in report.make_record_tables(measured[0]) if "certified" in one.headings
    ]
    bounds = not_none(measured[0].bounds)
    cells = dict(zip(table.headings, table.rows[0], strict=True))
    assert cells["certified"] == str(bounds.certified)
    assert cells["A_rob"].startswith(f"{100 * bounds.a_rob.lower:.1f}–")
    (values,) = csv.DictReader(main.to_csv(measured[:1]).splitlines())
    assert float(values["a_sa_bounds_low"]) == not_none(bounds.by_alpha[0].a_sa).low
    assert values["unknown"] == str(bounds.unknown)


def test_kernels_other_than_exp_have_bounds_of_a_rob_alone(
    tiny_run: Path, registry: Registry, tmp_path: Path, verifier: str
) -> None:
    (record,) = run(tiny_run, registry, tmp_path / "out", certify=verifier, kernel="exp-logit")
    bounds = not_none(record.bounds)
    assert [(row.a_sa, row.a_sa_fixed) for row in bounds.by_alpha] == [(None, None)]
    assert bounds.a_rob.lower <= bounds.a_rob.upper


def test_an_unsound_verifier_ends_the_run_and_names_the_images(
    tiny_run: Path, registry: Registry, tmp_path: Path, verifier: str
) -> None:
    with pytest.raises(BrokenContract, match=r"images \d+.*unsound"):
        run(tiny_run, registry, tmp_path / "out", certify=f"{verifier},slope=0", eps=(0.3,))
    assert not list((tmp_path / "out").glob("*.json"))


def test_a_verifier_for_another_norm_is_refused(
    tiny_run: Path, registry: Registry, tmp_path: Path, verifier: str
) -> None:
    with pytest.raises(BadInput, match="norm l2"):
        run(tiny_run, registry, tmp_path / "out", certify=verifier, attacks=("pgd:norm=l2",))


def test_without_a_verifier_the_hint_names_the_plugin(
    tiny_run: Path, registry: Registry, tmp_path: Path
) -> None:
    with pytest.raises(UnknownName, match="crown") as refused:
        run(tiny_run, registry, tmp_path / "out", certify="crown")
    assert "wmr-certify" in refused.value.hint


@pytest.mark.parametrize(
    "change",
    [
        lambda lower: lower[:, :-1],
        lambda lower: torch.full_like(lower, torch.nan),
        lambda lower: torch.full_like(lower, torch.inf),
        lambda lower: lower.clamp(max=5),
        lambda lower: None,
    ],
    ids=["shape", "nan", "infinite", "true-class", "none"],
)
def test_other_results_of_a_verifier_are_refused(change: Callable[[Tensor], Any]) -> None:
    batch = tiny_batch()
    lower = torch.zeros(len(batch.labels), 4).scatter(1, batch.labels[:, None], torch.inf)
    assert check_bounds(LogitBounds(lower), batch, 4).dtype == torch.float64
    with pytest.raises(BrokenContract):
        check_bounds(LogitBounds(change(lower)), batch, 4)


class RecordsEps:
    """Remembers the radius and the mode of the model."""

    traits = VerifierTraits()
    eps = 0.0
    was_training = True

    def __call__(
        self, model: nn.Module, batch: Batch, *, norm: str, eps: float, num_classes: int
    ) -> LogitBounds:
        self.eps = eps
        self.was_training = model.training
        lower: Tensor = torch.full((len(batch.labels), num_classes), -torch.inf)
        return LogitBounds(lower.scatter(1, batch.labels[:, None], torch.inf))


def test_the_ball_contains_the_tolerance_of_attacks_and_the_model_is_in_eval_mode() -> None:
    verifier = RecordsEps()
    model = tiny_model().train()
    certifier = Certifier(verifier=verifier, model=model, norm="linf", eps=0.1, num_classes=4)
    rows = certifier.bound_margins(tiny_batch())
    assert 0.1 < verifier.eps < 0.10001
    assert not verifier.was_training
    assert model.training
    # a bound of minus infinity is stored as a finite number
    assert np.isfinite(rows["certify/logit_margin"]).all()
    assert (rows["certify/margin"] == -1).all()


def test_results_in_python_have_bounds(verifier: str) -> None:
    digits = api.create("dataset", "digits").splits["test"]
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    settings: dict[str, Any] = {"eps": 0.01, "metrics": ("nat", "rob", "sa")}
    result = api.evaluate(model, digits, certify=verifier, **settings)
    assert result.a_rob_bounds.lower == (result.statuses == "certified").mean()
    assert result.a_sa_bounds(0.7).lower <= result.a_sa(0.7).value <= result.a_sa_bounds(0.7).upper
    assert not_none(result.rescore(0.7).record.bounds).by_alpha[0].a_sa == result.a_sa_bounds(0.7)
    # the proof needs weights that do not grow with the margin
    with pytest.raises(BadInput, match="alpha"):
        result.a_sa_bounds(-1.0)
    plain = api.evaluate(model, digits, **settings)
    with pytest.raises(BadInput, match="verified"):
        _ = plain.a_rob_bounds

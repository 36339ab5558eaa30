"""What an evaluation found, for a notebook: the four accuracies, the rows behind them, and any other alpha or radius.

What notebooks and plugins may call.
"""

import time
import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, overload

import msgspec
import torch
from torch import nn
from torch.utils.data import Dataset

from . import measures
from .config import METRICS, EvaluateConfig, default_data_dir
from .core.contexts import model_device, on_device, plain_autograd
from .core.data.loaders import as_split_or_stream
from .core.nn.fusion import SAMPLE_SIZE
from .core.protocols import Attack, DataSource, Defense, Kernel, Split
from .errors import BadInput
from .evaluation.evaluator import (
    add_log_weights,
    batch_images,
    make_evaluator,
    make_record,
    stack_rows,
)
from .evaluation.tasks import EvaluationRequest, check_request, describe_model, make_task
from .local_code import trust_hashes, trust_named
from .measures import Estimate, Outcome
from .plugins import installed
from .reporting import report, scoring
from .reporting.scoring import list_caveats
from .runtime import components, datasets
from .spec import Spec
from .storage import checkpoints, records, torch_files
from .storage.records import DroRow, Record, Rows

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions
    from rich.table import Table


@dataclass(frozen=True, eq=False, repr=False)
class Result:
    """One network under one attack. Accuracies are `Estimate`s: `value`, `low`, `high` and, where images are weighed, `ess`.

    Shown in a terminal or a notebook it is the table of `wmr evaluate`.
    """

    record: Record
    """everything that `wmr evaluate` writes down, as it does"""
    rows: Rows = field(repr=False)
    """NumPy arrays with an entry per image: `label`, `uniform/margin`, `uniform/prediction`, …"""

    @classmethod
    def load(cls, path: str | Path) -> "Result":
        """A record that `save` or `wmr evaluate` wrote, by its JSON file, with its rows."""
        file = Path(path)
        record = records.load(file)
        return cls(record, records.load_record_rows(file, record))

    @property
    def a_nat(self) -> Estimate:
        """Accuracy on clean images."""
        return self.record.a_nat

    @property
    def a_rob(self) -> Estimate:
        """Accuracy under the attack, where every image counts the same."""
        if self.record.a_rob is None:
            raise BadInput("A_rob was not measured", hint='evaluate with "rob" among the metrics')
        return self.record.a_rob

    @property
    def alphas(self) -> tuple[float, ...]:
        """The alphas that were asked for; A_sa is to be had at any other."""
        return tuple(row.alpha_test for row in self.record.by_alpha if row.alpha_test is not None)

    def a_sa(self, alpha: float | None = None) -> Estimate:
        """Accuracy under the attack when images are drawn by weight. At any alpha; none for a kernel without one."""
        found = measures.sampled_outcome(self.rows, self.record.kernel, alpha)
        hint = "an attack that stops early has no margins to weigh by; a kernel other than exp has the alphas it was run with"
        return self._estimate("A_sa", alpha, found, hint)

    def a_tr(self, alpha: float | None = None) -> Estimate:
        """Accuracy when images are crafted by weight, too. At the alphas that were asked for: each is an attack of its own."""
        found = measures.crafted_outcome(self.rows, self.record.kernel, alpha)
        return self._estimate(
            "A_tr",
            alpha,
            found,
            f"it was asked for at {', '.join(map(str, self.alphas)) or 'no alpha'}",
        )

    def dro(self, rho: float, loss: Literal["ce", "margin", "zero-one"] = "ce") -> DroRow:
        """The worst case over all weights in a chi-squared ball of radius rho: `loss`, `accuracy`, `worst_accuracy`, `ess`, …"""
        config = msgspec.structs.replace(self._asked, rho=(rho,), dro_loss=loss)
        found = scoring.score_dro(self.rows, config)
        if not found:
            raise BadInput(
                f"the rows hold no {loss} losses",
                hint='an attack that stops early leaves loss="zero-one" only',
            )
        return found[0]

    def rescore(self, *alphas: float) -> "Result":
        """The same attack seen at other alphas, by arithmetic; A_tr stays where it was measured."""
        return Result(scoring.rescore(self.record, self.rows, self._asked, alphas), self.rows)

    def save(self, folder: str | Path) -> Path:
        """Write record and rows into a folder for `wmr report`; the path of the record."""
        file = Path(folder) / f"{self.record.id}.json"
        records.save(file, self.record, self.rows)
        return file

    @property
    def _asked(self) -> EvaluateConfig:
        return scoring.stored_config(Path(f"{self.record.id}.json"), self.record)

    def _estimate(
        self, name: str, alpha: float | None, outcome: Outcome | None, hint: str
    ) -> Estimate:
        config = self._asked
        found = scoring.estimate_outcomes({name: outcome}, config.ci, config.seed)[name]
        if found is None:
            raise BadInput(
                f"{name} is not to be had{'' if alpha is None else f' at alpha {alpha:g}'}",
                hint=hint,
            )
        return found

    def __repr__(self) -> str:
        return report.record_to_text(self.record)

    def __rich_console__(self, console: "Console", options: "ConsoleOptions") -> "Iterator[Table]":
        yield from report.record_to_rich(self.record, options.max_width)

    def _repr_html_(self) -> str:
        return report.record_to_html(self.record)

    def _repr_markdown_(self) -> str:
        return report.record_to_markdown(self.record)


__all__ = ["Result", "create", "evaluate", "load", "read_saved"]


@overload
def create(kind: Literal["attack"], spec: str | Spec, **given: Any) -> Attack: ...
@overload
def create(kind: Literal["model"], spec: str | Spec, **given: Any) -> nn.Module: ...
@overload
def create(kind: Literal["dataset"], spec: str | Spec, **given: Any) -> DataSource: ...
@overload
def create(kind: Literal["kernel"], spec: str | Spec, **given: Any) -> Kernel: ...
@overload
def create(kind: Literal["defense"], spec: str | Spec, **given: Any) -> Defense: ...
@overload
def create(kind: str, spec: str | Spec, **given: Any) -> Any: ...
def create(kind: str, spec: str | Spec, **given: Any) -> Any:
    """Build a component by name: `create("attack", "pgd:steps=20", eps=8 / 255)`.

    A kind is `attack`, `dataset`, `defense`, `kernel` or `model`. A model needs `num_classes` and `input_shape`. A data set
    is looked for where the command line looks for it, unless `root` names another folder.
    """
    registry = installed().registry
    trust_named([spec], remember=False)
    if kind == "model":
        return components.build_model(registry, str(spec), **given)
    if (
        kind == "dataset"
        and "root" not in given
        and registry.accepts(
            kind, (Spec.parse(spec) if isinstance(spec, str) else spec).name, "root"
        )
    ):
        given["root"] = default_data_dir()
    return registry.create(kind, spec, **given)


def load(checkpoint: str | Path, *, trust_code: str | Iterable[str] = ()) -> nn.Module:
    """The network of a checkpoint, a file or a run folder, with its weights, in eval mode.

    A checkpoint whose model is a class in a Python file is refused, unless you have named that class on a command line or with
    `create`. `trust_code` is the SHA-256 of such a file that you have read and trust, or several of them.
    """
    trust_hashes([trust_code] if isinstance(trust_code, str) else trust_code, remember=False)
    return components.restore_model(installed().registry, checkpoints.load(Path(checkpoint)))


def read_saved(path: str | Path) -> Any:
    """What `torch.save` wrote, on the CPU. A file that would have to run code to be read is refused, and so is a damaged one."""
    return torch_files.load_torch_file(Path(path))


def evaluate(
    model: nn.Module,
    data: Split | Dataset[Any] | Iterable[Any],
    *,
    eps: float | None = None,
    attack: str | Spec | Attack = "pgd",
    norm: str | None = None,
    alphas: Iterable[float] | None = None,
    rhos: Iterable[float] = (),
    kernel: str = "exp",
    metrics: Sequence[str] = METRICS,
    seed: int = 0,
    batch_size: int = 256,
    device: str | torch.device | None = None,
    num_classes: int | None = None,
    name: str | None = None,
    dataset: str | None = None,
) -> Result:
    """Measure a network under an attack, as `wmr evaluate` does: for the same weights, images, attack and seed, to the bit.

    `model` maps images (N, C, H, W) in [0, 1] to logits, and is left as it was. `data` is a split, a torch `Dataset` of
    (image, label), or an iterable of batches (images, labels) or (images, labels, index).

    `eps` and `norm` are the ball, `linf` unless said; an attack that was created with a ball needs neither. `alphas` are 1,
    1.5 and 2 unless said: each is one more attack, for A_tr, while A_sa is free at any other. `rhos` adds the worst case in
    balls of these radii. `metrics` are some of `nat`, `rob`, `sa` and `tr`.

    The work is done where the model is, or on `device`. There are as many classes as the model has outputs, which
    `num_classes` can make sure of. `name` and `dataset` are what tables call model and data.
    """
    registry = installed().registry
    trust_named([kernel, *([attack] if isinstance(attack, str | Spec) else [])], remember=False)
    request = check_request(
        EvaluationRequest(
            attack=attack,
            norm=norm,
            eps=eps,
            alphas=alphas,
            rhos=rhos,
            kernel=kernel,
            metrics=metrics,
            batch_size=batch_size,
            seed=seed,
        ),
        registry,
    )
    images, where = (
        as_split_or_stream(data, batch_size),
        model_device(model) if device is None else torch.device(device),
    )
    with on_device(model, where), plain_autograd(where):
        batches = batch_images(images, batch_size)
        first = next(batches, None)
        if first is None:
            raise BadInput(
                "there are no images",
                hint="an iterator that was used up gives nothing the second time",
            )
        channels, height, width = first.images.shape[1:]
        checkpoint = describe_model(
            model, (channels, height, width), num_classes=num_classes, name=name
        )
        dataset_name = dataset or type(getattr(data, "dataset", data)).__name__
        task = make_task(request, registry, checkpoint, images, dataset_name)
        for text in (
            *datasets.list_dataset_notes(images),
            *components.list_attack_warnings(
                task.attack.component, task.attack.eps, task.checkpoint.num_classes
            ),
        ):
            warnings.warn(text, stacklevel=2)
        shown = first.images[:SAMPLE_SIZE].to(where)
        started = time.perf_counter()
        evaluator = make_evaluator(task, model, shown)
        parts = list(evaluator.evaluate_batches(chain([first], batches), where))
        rows = add_log_weights(task, stack_rows(parts))
        seconds = time.perf_counter() - started
    # the number of images of a stream is known only now
    selection = replace(task.images, positions=torch.arange(len(images)))
    task = replace(task, images=selection)
    record = make_record(
        task,
        rows,
        repeats=[],
        seconds=seconds,
        images_per_second=len(images) / seconds,
        device=where.type,
    )
    for text in list_caveats(record):
        warnings.warn(text, stacklevel=2)
    return Result(record, rows)

"""The functions for notebooks and plugins: `create`, `load`, `evaluate` and `read_saved`.

`evaluate` returns a `Result`: the four accuracies, the rows behind them, and accuracies at any
other alpha or radius.
"""

import time
import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, overload

import msgspec
import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.utils.data import Dataset

from . import measures
from .config import (
    METRICS,
    EvaluateConfig,
    EvaluationSettings,
    RowsContent,
    default_data_dir,
)
from .core.contexts import model_device, on_device, plain_autograd, returning_logits
from .core.data.loaders import as_split_or_stream
from .core.eot import DrawRule
from .core.nn.fusion import SAMPLE_SIZE
from .core.protocols import Attack, DataSource, Defense, Kernel, Logger, Split, Verifier
from .errors import BadInput, UnknownName, did_you_mean
from .evaluation.evaluator import (
    add_log_weights,
    batch_images,
    choose_chunk_size,
    make_evaluator,
    make_record,
    stack_rows,
)
from .evaluation.tasks import EvaluationRequest, check_request, describe_model, make_task
from .local_code import trust_hashes, trust_named
from .measures import AccuracyBounds, Bounds, Estimate, Outcome, VerifiedMargins
from .plugins import load_plugins
from .registry import KINDS
from .reporting import report, scoring
from .reporting.frames import make_frame
from .reporting.scoring import add_calibrated, list_caveats
from .runtime import components
from .spec import Spec
from .storage import checkpoints, records, torch_files
from .storage.records import DroRow, Record, Rows

if TYPE_CHECKING:
    import pandas as pd
    from rich.console import Console, ConsoleOptions
    from rich.table import Table


__all__ = ["Result", "create", "evaluate", "load", "read_saved"]

_CONFIG_DEFAULTS = EvaluateConfig()
_ATTACK_DEFAULTS = EvaluationSettings()
_NO_WEIGHTS_HINT = (
    "attacks that stop early have no margins; kernels other than "
    f"{measures.MARGIN_KERNEL!r} have only the alphas of the evaluation"
)


@dataclass(frozen=True, eq=False, repr=False)
class Result:
    """The result of evaluating one model under one attack.

    Accuracies are `Estimate`s with `value`, `low`, `high` and, for weighted accuracies, `ess`. In a
    terminal or a notebook, a result is shown as the table of `wmr evaluate`.

    ```python
    file = result.save("notebook")
    loaded = wmr.Result.load(file)
    print(loaded.a_rob.value, loaded.a_sa(2.0).ess)
    ```
    """

    record: Record
    """The record that `wmr evaluate` would write."""
    rows: Rows = field(repr=False)
    """NumPy arrays with one entry per image, such as `label` and `uniform/margin`.

    `clean/` is without an attack, `uniform/` under the unweighted one, `weighted@2.0/` under the
    weighted one.
    """

    @classmethod
    def load(cls, path: str | Path) -> "Result":
        """Read the JSON file of a record that `save` or `wmr evaluate` wrote, with its rows."""
        file = Path(path)
        record = records.load(file)
        return cls(record, records.load_record_rows(file, record))

    @property
    def a_nat(self) -> Estimate:
        """Accuracy on clean images."""
        return self.record.a_nat

    @property
    def a_rob(self) -> Estimate:
        """Accuracy under the attack, with equal weights."""
        if self.record.a_rob is None:
            raise BadInput("A_rob was not measured", hint='add "rob" to `metrics`')
        return self.record.a_rob

    @property
    def alphas(self) -> tuple[float, ...]:
        """Values of alpha in the table. A_sa is available at any other."""
        return tuple(row.alpha_test for row in self.record.by_alpha if row.alpha_test is not None)

    def a_sa(self, alpha: float | None = None) -> Estimate:
        """Return the accuracy if images are sampled by weight, at any alpha.

        Leave out alpha for a kernel that has none.
        """
        outcome = measures.sampled_outcome(self.rows, self.record.kernel, alpha)
        return self._estimate("A_sa", alpha, outcome, hint=_NO_WEIGHTS_HINT)

    def a_tr(self, alpha: float | None = None) -> Estimate:
        """Return the accuracy if the attack maximises the weighted loss as well.

        It is available at the alphas of the evaluation, because each needs its own attack.
        """
        outcome = measures.crafted_outcome(self.rows, self.record.kernel, alpha)
        measured = ", ".join(map(str, self.alphas)) or "no alpha"
        return self._estimate("A_tr", alpha, outcome, hint=f"it was measured at {measured}")

    def a_cal(self, alpha: float) -> Estimate:
        """Return A_sa of the calibrated model, at any alpha.

        Its logits are divided by `temperature`, so that their scale does not matter. Rows without
        logits have it only at the alphas of an evaluation with the metric `cal`.
        """
        outcome = self._calibration.outcome(alpha)
        stored = [row.a_cal for row in self.record.by_alpha if row.alpha_test == alpha]
        if self._calibration.problem == measures.NO_LOGITS and stored and stored[0] is not None:
            return stored[0]
        hint = self._calibration.problem or ""
        return self._estimate("A_cal", alpha, outcome, hint=hint)

    @property
    def temperature(self) -> float:
        """The temperature behind A_cal: it minimises the cross-entropy on the attacked images."""
        found = self._calibration.temperature or self.record.temperature
        if found is None:
            raise BadInput("no temperature fits best", hint=self._calibration.problem or "")
        return found

    def dro(self, rho: float, loss: Literal["ce", "margin", "zero-one"] = "ce") -> DroRow:
        """Return the worst case over all weights in a χ² ball of radius rho.

        It has `loss`, `accuracy`, `worst_accuracy` and `ess`, among others.
        """
        config = msgspec.structs.replace(self._config, rho=(rho,), dro_loss=loss)
        found = scoring.score_dro(self.rows, config)
        if not found:
            raise BadInput(
                f"the rows hold no {loss} losses",
                hint='attacks that stop early have only loss="zero-one"',
            )
        return found[0]

    def critical_eps(self, *others: "Result") -> NDArray[np.float64]:
        """Return the smallest eps at which each image is misclassified, among several results.

        They are results of one model on the same images, at other radii. The eps is 0 for an image
        that is misclassified without an attack, and infinity for one that is always correct.
        """
        results = [self, *others]
        for other in others:
            norms = (other.record.threat.norm, self.record.threat.norm)
            if not np.array_equal(other.rows["index"], self.rows["index"]) or len(set(norms)) > 1:
                raise BadInput(
                    "the results have other images or another norm",
                    hint="evaluate the same images in the same norm",
                )
        outcomes: dict[float, NDArray[np.bool_]] = {}
        for one in results:
            if "uniform/prediction" not in one.rows:
                raise BadInput("A_rob was not measured", hint='add "rob" to `metrics`')
            eps = one.record.threat.eps
            # of several attacks at one eps the worst case counts
            found = measures.is_correct(one.rows, "uniform")
            outcomes[eps] = found & outcomes.get(eps, True)
        return measures.critical_eps(outcomes, measures.is_correct(self.rows, "clean"))

    @property
    def statuses(self) -> NDArray[np.str_]:
        """`certified`, `broken` or `unknown` for each image, from an evaluation with `certify`."""
        return self._verified_margins().statuses

    @property
    def a_rob_bounds(self) -> AccuracyBounds:
        """Bounds of A_rob over all attacks in the ε-ball."""
        return self._bounds(()).a_rob

    def a_sa_bounds(self, alpha: float) -> AccuracyBounds:
        """Return bounds of A_sa over all attacks in the ε-ball, at any alpha of at least 0."""
        if not alpha >= 0:
            raise BadInput(
                f"`alpha` is {alpha:g}", hint="bounds of A_sa need an alpha of at least 0"
            )
        found = self._bounds((alpha,)).by_alpha[0].a_sa
        if found is None:
            raise BadInput(
                f"bounds of A_sa are not available for kernel {self.record.kernel!r}",
                hint=f"evaluate with kernel={measures.MARGIN_KERNEL!r}",
            )
        return found

    def _bounds(self, alphas: tuple[float, ...]) -> Bounds:
        self._verified_margins()
        found = scoring.score_bounds(self.rows, self._config, alphas)
        assert found is not None  # the rows have verified margins
        return found

    def _verified_margins(self) -> VerifiedMargins:
        margins = VerifiedMargins.of(self.rows)
        if margins is None:
            raise BadInput("no image was verified", hint='evaluate with certify="crown"')
        return margins

    def rescore(self, *alphas: float) -> "Result":
        """Return the same result at other alphas, computed from the rows.

        A_tr is available only where it was measured.
        """
        record = scoring.rescore(self.record, self.rows, self._config, alphas)
        if self.record.calibration:
            record = add_calibrated(record, self.rows, self._config, stored=self.record)
        return Result(record, self.rows)

    def to_pandas(self, alpha: float | None = None) -> "pd.DataFrame":
        """Return a data frame with one line per image, by its index in the dataset.

        Columns have the names of the rows: `label`, `clean/prediction`, `uniform/margin`, … Under
        each prefix, `correct` compares prediction and label. At an alpha, `uniform/weight@2.0` and
        `weighted@2.0/weight` are the weights behind A_sa and A_tr, with the sum 1. Logits are left
        out. It needs the extra `pandas`.
        """
        frame = make_frame(self.record, self.rows, alpha)
        if alpha is not None and measures.at_alpha("uniform/weight", alpha) not in frame:
            raise BadInput(f"weights are not available at alpha {alpha:g}", hint=_NO_WEIGHTS_HINT)
        return frame

    def save(self, folder: str | Path) -> Path:
        """Write record and rows into a folder for `wmr report`; return the path of the record."""
        file = Path(folder) / f"{self.record.id}.json"
        records.save(file, self.record, self.rows)
        return file

    @cached_property
    def _calibration(self) -> measures.Calibration:
        return measures.calibrate(self.rows, self.record.kernel)

    @property
    def _config(self) -> EvaluateConfig:
        return scoring.stored_config(Path(f"{self.record.id}.json"), self.record)

    def _estimate(
        self, name: str, alpha: float | None, outcome: Outcome | None, hint: str
    ) -> Estimate:
        config = self._config
        found = scoring.estimate_outcomes({name: outcome}, config.ci, config.seed)[name]
        if found is None:
            where = "" if alpha is None else f" at alpha {alpha:g}"
            raise BadInput(f"{name} is not available{where}", hint=hint)
        return found

    def __repr__(self) -> str:
        return report.record_to_text(self.record)

    def __rich_console__(self, console: "Console", options: "ConsoleOptions") -> "Iterator[Table]":
        yield from report.record_to_rich(self.record, options.max_width)

    def _repr_html_(self) -> str:
        return report.record_to_html(self.record)

    def _repr_markdown_(self) -> str:
        return report.record_to_markdown(self.record)


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
def create(kind: Literal["verifier"], spec: str | Spec, **given: Any) -> Verifier: ...
@overload
def create(kind: Literal["logger"], spec: str | Spec, **given: Any) -> Logger: ...
@overload
def create(kind: str, spec: str | Spec, **given: Any) -> object: ...
def create(kind: str, spec: str | Spec, **given: Any) -> Any:
    """Build a component by name.

    A kind is `attack`, `dataset`, `defense`, `kernel`, `logger`, `model` or `verifier`. Keywords
    are parameters of the component, like those of the spec. A model needs `num_classes` and
    `input_shape`. Datasets are read from the data folder of the command line, unless `root` is
    another folder.

    ```python
    import wmr_cli as wmr

    pgd = wmr.create("attack", "pgd:steps=20", eps=8 / 255)
    test_images = wmr.create("dataset", "digits").splits["test"]
    shapes = {"num_classes": 10, "input_shape": (1, 8, 8)}
    cnn = wmr.create("model", "digits-cnn:mean=0.5,std=0.2", **shapes, hidden=32)
    ```
    """
    if kind not in KINDS:
        raise UnknownName(f"no kind is called {kind!r}", hint=did_you_mean(kind, KINDS))
    registry = load_plugins().registry
    parsed = Spec.parse(spec) if isinstance(spec, str) else spec
    # a class that the caller writes in a call is named by the user
    trust_named([parsed], remember=False)
    if kind == "model":
        return components.build_model(registry, str(parsed), **given)
    if kind == "dataset" and "root" not in given and registry.accepts(kind, parsed.name, "root"):
        given["root"] = default_data_dir()
    component = registry.create(kind, parsed, **given)
    components.check_traits(kind, component, str(parsed))
    return component


def load(checkpoint: str | Path, *, trust_code: str | Iterable[str] = ()) -> nn.Module:
    """Return the model of a checkpoint, a file or a run folder, with its weights, in eval mode.

    A checkpoint whose model is a class in a Python file is refused, unless you have named that
    class on a command line or with `create`. `trust_code` is the SHA-256 of such a file that you
    have read and trust, or several of them.

    ```python
    import wmr_cli as wmr

    trained = wmr.load("runs/digits-trades-a2-s0")
    ```
    """
    hashes = [trust_code] if isinstance(trust_code, str) else trust_code
    trust_hashes(hashes, remember=False)
    return components.restore_model(load_plugins().registry, checkpoints.load(Path(checkpoint)))


def read_saved(path: str | Path) -> Any:  # noqa: ANN401 - the file decides
    """Return what `torch.save` wrote, on the CPU.

    A file that is damaged, or that needs to run code, raises BadFile.

    ```python
    import torch
    import wmr_cli as wmr

    torch.save({"state_dict": net.state_dict(), "epoch": 3}, "net.pt")
    state = wmr.read_saved("net.pt")["state_dict"]
    ```
    """
    return torch_files.load_torch_file(Path(path))


def evaluate(  # noqa: PLR0913 - keywords of a public function
    model: nn.Module,
    data: Split | Dataset[Any] | Iterable[Any],
    *,
    eps: float | None = None,
    attack: str | Spec | Attack = _ATTACK_DEFAULTS.attack,
    norm: str | None = None,
    alphas: Iterable[float] | None = None,
    rhos: Iterable[float] = (),
    kernel: str = _CONFIG_DEFAULTS.kernel,
    metrics: Sequence[str] = METRICS,
    seed: int = 0,
    batch_size: int = 256,
    device: str | torch.device | None = None,
    num_classes: int | None = None,
    name: str | None = None,
    dataset: str | None = None,
    rows: RowsContent | None = None,
    certify: str | None = None,
    draws: int | None = None,
    draw_rule: DrawRule = "mean",
) -> Result:
    """Measure a model under an attack, like `wmr evaluate`.

    For the same weights, images, attack and seed, the numbers are bit-identical to those of the
    command. Caveats about the result are Python warnings.

    - `model` maps images (N, C, H, W) in [0, 1] to logits, or to an object or a mapping that holds
      them as `logits`. It is left unchanged.
    - `data` is a split, a torch `Dataset` of (image, label), or an iterable of batches (images,
      labels) or (images, labels, index).
    - `eps` and `norm` are the ε-ball; the default norm is `linf`. An attack that was created with
      an ε-ball needs neither.
    - `attack` is a spec, or an attack that you have built.
    - `alphas` are the exponents of the weights; the default is 1, 1.5 and 2. Each needs one more
      attack for A_tr, but A_sa is available at any alpha.
    - `rhos` are radii of χ² balls for the worst case over weights.
    - `kernel` is the attacker's kernel, and `metrics` are some of `nat`, `rob`, `sa`, `tr`
      and `cal`.
    - `seed` is that of the attack, and `batch_size` the largest number of images per batch.
    - `device` is that of the model, unless you give another. The model is moved back afterwards.
    - `num_classes`, if given, must be the number of outputs of the model.
    - `name` and `dataset` are the names of model and images in tables.
    - `certify` is a verifier, such as `crown`, which gives the result two-sided bounds.
    - `draws` is the number of passes that decide about each image of a stochastic model, by
      their mean probabilities or, with `draw_rule="worst"`, by the worst of them.
    - `rows` is `compact` for rows without logits, which is the default above 200 classes.

    ```python
    import wmr_cli as wmr

    digits = wmr.create("dataset", "digits").splits["test"]
    measured = wmr.evaluate(wmr.load("runs/digits-trades-a2-s0"), digits, eps=0.15, alphas=(2.0,))
    print(measured.a_sa(2.0))
    ```
    """
    registry = load_plugins().registry
    # classes that the caller writes in a call are named by the user
    named = [spec for spec in (kernel, attack, certify) if isinstance(spec, str | Spec)]
    trust_named(named, remember=False)
    request = EvaluationRequest(
        attack=attack,
        norm=norm,
        eps=eps,
        alphas=alphas,
        rhos=rhos,
        kernel=kernel,
        metrics=metrics,
        batch_size=batch_size,
        seed=seed,
        rows=rows,
        certify=certify,
        draws=draws,
        draw_rule=draw_rule,
    )
    checked = check_request(request, registry)
    images = as_split_or_stream(data, batch_size)
    target_device = model_device(model) if device is None else torch.device(device)
    with (
        on_device(model, target_device),
        plain_autograd(target_device),
        returning_logits(model),
    ):
        chunk_size = choose_chunk_size(batch_size, target_device)
        batches = batch_images(images, batch_size, chunk_size)
        # the first batch has the shape of the images, which the description of the model needs
        first = next(batches, None)
        if first is None:
            raise BadInput(
                "`data` is empty", hint="an iterator can be used only once: create a new one"
            )
        channels, height, width = first.images.shape[1:]
        checkpoint = describe_model(
            model, (channels, height, width), num_classes=num_classes, name=name
        )
        # a loader, of torch or another library, is named after its dataset
        origin = data.dataset if hasattr(data, "dataset") else data
        dataset_name = dataset or type(origin).__name__
        task = make_task(checked, registry, checkpoint, images, dataset_name)
        _warn(task.list_warnings())
        sample_images = first.images[:SAMPLE_SIZE].to(target_device)
        # from here as in `wmr evaluate`, including fusion
        started = time.perf_counter()
        evaluator = make_evaluator(task, model, sample_images)
        parts = list(evaluator.evaluate_batches(chain([first], batches), target_device))
        measured = add_log_weights(task, stack_rows(parts))
        seconds = time.perf_counter() - started
    # the number of images of a stream is known only now
    selection = replace(task.images, positions=torch.arange(len(images)))
    record = make_record(
        replace(task, images=selection),
        measured,
        repeats=[],
        seconds=seconds,
        images_per_second=len(images) / seconds,
        device=target_device.type,
        deterministic=not evaluator.nondeterministic,
    )
    _warn(list_caveats(record))
    return Result(record, records.drop_logits(measured) if task.is_compact else measured)


def _warn(texts: Iterable[str]) -> None:
    for text in texts:
        # level 3: the line that calls `evaluate`
        warnings.warn(text, stacklevel=3)

"""All settings: one struct per command, each field declared once (see `setting.py`).

`TrainConfig` and `EvaluateConfig` determine results, so runs and records store them. The structs
that end in `Flags` hold what changes no result: devices, files, what is printed.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import msgspec
from msgspec import Meta

from ..errors import BadInput
from ..reading import decode_json
from ..spec import MAX_DEVICES, MAX_MINUTES, MAX_NODES, MAX_THREADS
from .setting import (
    Count,
    CountOrZero,
    Fraction,
    FractionBelowOne,
    NonNegative,
    NonNegatives,
    Positive,
    Seed,
    Struct,
    setting,
)

DATA = "Data and model"
TRAINING_ATTACK = "Training attack"
ATTACK = "Attack"
WEIGHTING = "Weighting"
OPTIMIZATION = "Optimisation"
FINE_TUNING = "Fine-tuning"
VALIDATION = "Validation"
METRICS_PANEL = "Metrics"
RUNS = "Runs"
MEASUREMENT = "Measurement"
PLUGIN = "Plugin"
HARDWARE = "Hardware"
OUTPUT = "Output"
PANELS = (
    DATA, TRAINING_ATTACK, ATTACK, WEIGHTING, OPTIMIZATION, FINE_TUNING, VALIDATION, METRICS_PANEL,
    RUNS, MEASUREMENT, PLUGIN, HARDWARE, OUTPUT,
)  # fmt: skip
"""Panels of the help, in the order in which they are shown."""

Metric = Literal["nat", "rob", "sa", "tr", "cal", "dro"]
METRICS: tuple[Metric, ...] = ("nat", "rob", "sa", "tr")
"""Default metrics; `cal` and `dro` are computed only on request."""
Layout = Literal["auto", "channels-last", "contiguous"]
DroLoss = Literal["ce", "margin", "zero-one"]
RowsContent = Literal["full", "compact"]
MAX_CLASSES_IN_FULL_ROWS = 200
"""Rows of more classes hold no logits unless they are requested: these take 99 % of the space."""
PaperTable = Literal[
    "auto", "mnist", "cifar10", "tiny-imagenet", "all",
    "T1", "T2", "T3", "T4", "T5", "T6", "T7", "T8", "T9", "T10", "T11", "T12",
]  # fmt: skip
RecordFormat = Literal["table", "markdown", "csv", "json"]
ReportFormat = Literal["table", "markdown", "latex", "csv", "json", "html", "card"]
SummaryFormat = Literal["table", "json"]
# "loss" is the name of a defense in 0.1
ComponentKind = Literal[
    "attack", "model", "dataset", "defense", "kernel", "verifier", "logger", "loss"
]
MAX_BENCH_SECONDS = 86_400

# ---- settings that several structs have ----

MemoryLayout = Annotated[
    Layout, setting("Memory format of images and weights.", HARDWARE, default="auto")
]
Fold = Annotated[
    bool,
    setting(
        "Fold (fuse) batch-norm into convolutions for attacks.",
        HARDWARE,
        names=("--fold/--no-fold",),
        default="fold",
    ),
]
RandomSeed = Annotated[Seed, setting("Seed of all random numbers.", DATA, "N", default="0")]
Device = Annotated[str, setting("auto, cpu, cuda, cuda:N or mps.", HARDWARE, "D")]
DeviceCount = Annotated[
    Annotated[int, Meta(ge=1, le=MAX_DEVICES)] | None,
    setting(
        "Devices per machine; torchrun and Slurm set it themselves.", HARDWARE, "N", default="1"
    ),
]
NodeCount = Annotated[
    Annotated[int, Meta(ge=1, le=MAX_NODES)] | None,
    setting("Number of machines.", HARDWARE, "N", default="1"),
]
ThreadCount = Annotated[
    Annotated[int, Meta(ge=1, le=MAX_THREADS)] | None,
    setting(
        "Threads of each process that compute on a CPU and decode image files.",
        HARDWARE,
        "N",
        default="the cores that each process may use",
    ),
]
Compile = Annotated[bool, setting("Compile model and attack: slow start, then faster.", HARDWARE)]
SaveMinutes = Annotated[
    Annotated[float, Meta(ge=0, le=MAX_MINUTES)],
    setting("Checkpoint every M minutes; 0: only after epochs.", OUTPUT, "M"),
]
Loggers = Annotated[
    tuple[str, ...],
    setting(
        "Also log to this logger: `wmr list loggers`; repeatable.",
        OUTPUT,
        "S",
        environment="WMR_LOGGER",
        is_repeated=True,
    ),
]
DataDir = Annotated[
    Path | None,
    setting(
        "Folder of the datasets.",
        DATA,
        "DIR",
        default="~/.cache/wmr/data",
        environment="WMR_DATA_DIR",
    ),
]
TrustedCode = Annotated[
    tuple[str, ...],
    setting(
        "Allow local code named in a config, study or checkpoint, by the SHA-256 of the Python"
        " file; repeatable.",
        DATA,
        "SHA256",
        is_repeated=True,
    ),
]
Quiet = Annotated[bool, setting("Print only errors to stderr.", OUTPUT, names=("--quiet", "-q"))]
AlphaTest = Annotated[
    NonNegatives | None,
    setting("Values of alpha for A_sa and A_tr: 1,1.5,2.", METRICS_PANEL, "LIST"),
]
Rho = Annotated[
    NonNegatives | None,
    setting("Radii of the χ² ball for DRO: 0.01,0.1,1.", METRICS_PANEL, "LIST"),
]
Require = Annotated[
    tuple[str, ...],
    setting(
        "Exit with status 1 unless the whole interval meets a bound: a_rob>=0.45,a_sa@2>=30%;"
        " repeatable.",
        METRICS_PANEL,
        "LIST",
        is_repeated=True,
    ),
]
DryRun = Annotated[bool, setting("Check the settings, estimate the time, and stop.", OUTPUT)]


class EvaluationSettings(Struct, frozen=True, kw_only=True):
    """How checkpoints of a run are evaluated by default."""

    attack: Annotated[str, Meta(description="Attack of the evaluation.")] = "pgd"
    steps: Annotated[Count | None, Meta(description="Steps of the attack.")] = 20
    step_size: Annotated[
        NonNegative | None,
        Meta(description="Step size of the attack; scales with eps if not given."),
    ] = None
    alpha_test: Annotated[NonNegatives, Meta(description="Values of alpha for A_sa and A_tr.")] = (
        1.0,
        1.5,
        2.0,
    )


class TrainConfig(Struct, frozen=True, kw_only=True):
    """Everything that determines a training run."""

    preset: Annotated[
        str | None, setting("Preset to start from: `wmr list presets`.", DATA, "P")
    ] = None
    dataset: Annotated[str, setting("Dataset: `wmr list datasets`.", DATA, "S")] = "digits"
    model: Annotated[str, setting("Model: `wmr list models`.", DATA, "S")] = "small-cnn"
    defense: Annotated[str, setting("Defense (training loss): `wmr list defenses`.", DATA, "S")] = (
        "trades"
    )
    kernel: Annotated[
        str, setting("Kernel that weights images: `wmr list kernels`.", WEIGHTING, "S")
    ] = "exp"
    # None for kernels without alpha
    alpha: Annotated[
        NonNegative | None,
        setting("Strength of the weighting; 0: unweighted baseline.", WEIGHTING, "A"),
    ] = None
    # no flag: eps has another meaning in each norm, so a preset or `attack` sets both
    norm: Annotated[Literal["linf", "l2"], Meta(description="Norm of the ε-ball.")] = "linf"
    eps: Annotated[
        NonNegative, setting("Radius of the ε-ball: 0.3 or 8/255.", TRAINING_ATTACK, "E")
    ] = 8 / 255
    attack: Annotated[
        str, setting("Training attack: `wmr list attacks`.", TRAINING_ATTACK, "S")
    ] = "pgd:start=gauss:0.001"
    # None for attacks without steps such as fgsm; 0 leaves the random start
    steps: Annotated[CountOrZero | None, setting("Steps of the attack.", TRAINING_ATTACK, "K")] = 10
    # None: the attack derives it from eps and steps
    step_size: Annotated[
        NonNegative | None,
        setting("Step size of the attack; scales with eps if not given.", TRAINING_ATTACK, "E"),
    ] = None
    attack_mode: Annotated[
        Literal["eval", "train"], setting("Mode of the model during the attack.", TRAINING_ATTACK)
    ] = "eval"
    weight_grad: Annotated[
        Literal["both", "outer", "attack", "none"],
        setting("Which gradients flow through the weights.", WEIGHTING),
    ] = "both"
    normalize: Annotated[
        Literal["none", "batch"],
        setting("Divide weights by their mean over the batch of all devices.", WEIGHTING),
    ] = "none"
    max_weight: Annotated[
        Positive | None, setting("Upper bound of the weight of an image.", WEIGHTING, "W")
    ] = None
    epochs: Annotated[Count, setting("Passes over the training set.", OPTIMIZATION, "N")] = 30
    batch_size: Annotated[
        Count, setting("Images per step, over all devices.", OPTIMIZATION, "N")
    ] = 64
    augment: Annotated[
        str,
        setting(
            "Augmentation: none, or LIST of crop:4[:reflect], resized-crop[:AREA], flip,"
            " jitter:B[:C:S:HUE], randaugment[:N:M], erase[:P], mixup:A and cutmix:A.",
            DATA,
            "LIST",
        ),
    ] = "none"
    extra: Annotated[
        str | None, setting("Dataset whose images are mixed into every batch.", DATA, "S")
    ] = None
    extra_fraction: Annotated[
        FractionBelowOne, setting("Fraction of extra images in a batch.", DATA, "FRACTION")
    ] = 0.7
    extra_labels: Annotated[
        str | None,
        setting("Label the extra images by the predictions of this checkpoint.", DATA, "FILE"),
    ] = None
    # apart from `seed`, so that runs with different seeds have the same validation set
    split_seed: Annotated[
        Seed, setting("Seed of the validation split, if the dataset has none.", VALIDATION, "N")
    ] = 0
    optimizer: Annotated[Literal["sgd", "adam", "adamw"], setting("Optimizer.", OPTIMIZATION)] = (
        "adam"
    )
    lr: Annotated[Positive, setting("Peak learning rate.", OPTIMIZATION, "X")] = 0.002
    # no flag: presets fix it, as the literature does
    momentum: Annotated[Fraction, Meta(description="Momentum of SGD.")] = 0.9
    weight_decay: Annotated[NonNegative, setting("Weight decay.", OPTIMIZATION, "X")] = 0.0
    decay: Annotated[
        Literal["all", "weights"],
        setting("Decay all parameters, or all except biases and norms.", OPTIMIZATION),
    ] = "all"
    clip_grad: Annotated[
        Positive | None, setting("Clip the gradient's L2 norm.", OPTIMIZATION, "X")
    ] = None
    label_smoothing: Annotated[
        FractionBelowOne, setting("Label smoothing.", OPTIMIZATION, "FRACTION")
    ] = 0.0
    ema: Annotated[
        FractionBelowOne,
        setting(
            "Decay of an exponential moving average of the weights, kept in ema.safetensors.",
            OPTIMIZATION,
            "DECAY",
        ),
    ] = 0.0
    schedule: Annotated[
        Literal["constant", "multistep", "cosine", "one-cycle"],
        setting("Learning-rate schedule.", OPTIMIZATION),
    ] = "one-cycle"
    milestones: Annotated[
        tuple[Count, ...],
        setting("Epochs at which multistep lowers the rate: 55,75,90.", OPTIMIZATION, "LIST"),
    ] = ()
    gamma: Annotated[
        Fraction, Meta(description="Factor of the learning rate at each milestone.")
    ] = 0.1
    warmup: Annotated[
        Fraction,
        setting("Fraction of the run with a linear warm-up of the rate.", OPTIMIZATION, "FRACTION"),
    ] = 0.0
    eps_ramp: Annotated[
        Fraction,
        setting(
            "Fraction of the run in which eps and step size grow from 0.",
            TRAINING_ATTACK,
            "FRACTION",
        ),
    ] = 0.0
    alpha_ramp: Annotated[
        Fraction,
        setting("Fraction of the run in which alpha grows from 0.", WEIGHTING, "FRACTION"),
    ] = 0.0
    # text, not a path: it is stored as the user wrote it
    init: Annotated[
        str | None,
        setting("Start from these weights: a checkpoint, run or file.", FINE_TUNING, "WEIGHTS"),
    ] = None
    init_match: Annotated[
        Literal["name", "shape", "partial"],
        setting(
            "Match tensors by name, by order and shape, or by name as far as they fit.",
            FINE_TUNING,
        ),
    ] = "name"
    # no flag: a new run fills it in, and a config that has it accepts no other weights
    init_sha256: Annotated[
        str | None, Meta(description="SHA-256 of the weights that `init` names.")
    ] = None
    freeze: Annotated[
        tuple[str, ...],
        setting(
            "Layers that are not trained: names, patterns such as layer1.*, or backbone.",
            FINE_TUNING,
            "LIST",
        ),
    ] = ()
    backbone_lr_scale: Annotated[
        Positive,
        setting("Factor of the learning rate of all layers except the head.", FINE_TUNING, "X"),
    ] = 1.0
    validate_every: Annotated[
        CountOrZero, setting("Validate every N epochs; 0: never.", VALIDATION, "N")
    ] = 1
    select: Annotated[
        Literal["rob", "sa", "tr", "nat", "none"],
        setting("Validation accuracy that selects best.safetensors.", VALIDATION),
    ] = "rob"
    patience: Annotated[
        Count | None,
        setting("Stop after N validations without a new best accuracy.", VALIDATION, "N"),
    ] = None
    precision: Annotated[
        Literal["32", "bf16", "16"], setting("Precision of training.", HARDWARE)
    ] = "32"
    # both change the speed, and the last bits of a sum: so they are stored with the run
    layout: MemoryLayout = "auto"
    fold: Fold = True
    seed: RandomSeed = 0
    evaluate: Annotated[
        EvaluationSettings, Meta(description="How checkpoints of this run are evaluated.")
    ] = EvaluationSettings()

    def to_json(self) -> str:
        """Return the stored form, which is also a config file."""
        return msgspec.json.format(msgspec.json.encode(self), indent=2).decode()

    @classmethod
    def from_json(cls, text: str | bytes) -> "TrainConfig":
        """Read and check the result of `to_json`."""
        return decode_json(text, cls)


class HardwareFlags(Struct, frozen=True, kw_only=True):
    """Devices that share the work of a command."""

    device: Device = "auto"
    devices: DeviceCount = None
    nodes: NodeCount = None
    threads: ThreadCount = None


class TrainFlags(Struct, frozen=True, kw_only=True):
    """Flags of `wmr train` that change no result."""

    config: Annotated[Path | None, setting("Config file in TOML or JSON.", DATA, "F")] = None
    data_dir: DataDir = None
    trust_code: TrustedCode = ()
    compile: Compile = False
    # at most ten minutes of work are lost if a machine fails
    save_minutes: SaveMinutes = 10.0
    logger: Loggers = ()
    out: Annotated[Path | None, setting("Run folder.", OUTPUT, "DIR", default="runs/NAME")] = None
    resume: Annotated[bool, setting("Continue the run in that folder.", OUTPUT)] = False
    overwrite: Annotated[bool, setting("Replace the run in that folder.", OUTPUT)] = False
    dry_run: DryRun = False
    quiet: Quiet = False


class AttackedSplit(Struct, frozen=True, kw_only=True):
    """The images that a checkpoint is attacked on, and the strength of the attack."""

    dataset: Annotated[
        str | None, setting("Dataset, if not the one of the training.", DATA, "S")
    ] = None
    model: Annotated[
        str | None, setting("Model of foreign weights: `wmr list models`.", DATA, "S")
    ] = None
    split: Annotated[str, setting("Split of the dataset.", DATA, "NAME")] = "test"
    limit: Annotated[
        Count | None, setting("Size of a random class-balanced subset.", DATA, "N")
    ] = None
    seed: RandomSeed = 0
    steps: Annotated[CountOrZero | None, setting("Steps of the attack.", ATTACK, "K")] = None
    step_size: Annotated[
        NonNegative | None,
        setting("Step size of the attack; scales with eps if not given.", ATTACK, "E"),
    ] = None
    restarts: Annotated[
        Count | None, setting("Random restarts; the worst case counts.", ATTACK, "R")
    ] = None
    eot: Annotated[
        Count | None,
        setting("Average each gradient over K draws of a stochastic model.", ATTACK, "K"),
    ] = None
    # independent of the training: the result for an image does not depend on its batch
    batch_size: Annotated[Count, setting("Images per batch.", HARDWARE, "N")] = 256


class EvaluateConfig(AttackedSplit, frozen=True, kw_only=True):
    """What to measure. The checkpoint supplies settings that are not given."""

    # records of 0.1 store the plural; files and flags have `attack`
    attacks: Annotated[
        tuple[str, ...],
        setting(
            "Attack: `wmr list attacks`; repeatable.",
            ATTACK,
            "S",
            names=("--attack",),
            is_repeated=True,
        ),
    ] = ()
    eps: Annotated[
        tuple[NonNegative, ...],
        setting(
            "Radius of the ε-ball, or radii such as 1/255..8/255; repeatable.",
            ATTACK,
            "E",
            is_repeated=True,
            takes_ranges=True,
        ),
    ] = ()
    repeats: Annotated[
        Count, setting("Seeds of the attack, to measure its variance.", ATTACK, "R")
    ] = 1
    # None: the logits of the attack decide
    draws: Annotated[
        Count | None,
        setting("Decide about each image by R new draws of a stochastic model.", ATTACK, "R"),
    ] = None
    draw_rule: Annotated[
        Literal["mean", "worst"],
        setting("Decide by the mean probabilities of the draws, or by the worst draw.", ATTACK),
    ] = "mean"
    alpha_test: AlphaTest = None
    kernel: Annotated[
        str, setting("Kernel that weights images: `wmr list kernels`.", METRICS_PANEL, "S")
    ] = "exp"
    metrics: Annotated[
        tuple[Metric, ...],
        setting("Metrics to compute.", METRICS_PANEL),
    ] = METRICS
    rho: Rho = None
    dro_loss: Annotated[
        DroLoss,
        setting("Loss that DRO maximises; --rho and --dro-loss add the metric dro.", METRICS_PANEL),
    ] = "ce"
    per_class: Annotated[bool, setting("Also measure every class.", METRICS_PANEL)] = False
    ci: Annotated[
        Literal["delta", "bootstrap"], setting("Method of the confidence intervals.", METRICS_PANEL)
    ] = "delta"
    checks: Annotated[
        bool, setting("Check for signs of a weak attack (gradient masking).", METRICS_PANEL)
    ] = False
    certify: Annotated[
        str | None,
        setting(
            "Verifier that bounds A_rob and A_sa from below: `wmr list verifiers`.",
            METRICS_PANEL,
            "S",
        ),
    ] = None
    rows: Annotated[
        RowsContent | None,
        setting(
            "Rows with logits (full) or without (compact).",
            OUTPUT,
            default=f"full up to {MAX_CLASSES_IN_FULL_ROWS} classes",
        ),
    ] = None
    layout: MemoryLayout = "auto"
    fold: Fold = True

    @classmethod
    def from_settings(cls, given: Mapping[str, Any]) -> Self:
        """Build the struct; `rho` and `dro_loss` imply the metric `dro`."""
        metrics = given.get("metrics", METRICS)
        if ("rho" in given or "dro_loss" in given) and "dro" not in metrics:
            metrics = (*metrics, "dro")
        return super().from_settings({**given, "metrics": metrics})


class EvaluateFlags(Struct, frozen=True, kw_only=True):
    """Flags of `wmr evaluate` that change no result."""

    data_dir: DataDir = None
    trust_code: TrustedCode = ()
    strict: Annotated[
        bool, setting("Exit with status 1 if a check fails; implies --checks.", METRICS_PANEL)
    ] = False
    require: Require = ()
    logger: Loggers = ()
    resume: Annotated[bool, setting("Continue an interrupted evaluation.", OUTPUT)] = False
    out: Annotated[
        Path | None,
        setting("Folder of the records.", OUTPUT, "DIR", default="beside the checkpoint"),
    ] = None
    dry_run: Annotated[
        bool, setting("Estimate passes, time and memory from a few batches, and stop.", OUTPUT)
    ] = False
    format: Annotated[RecordFormat, setting("Format of the output.", OUTPUT)] = "table"
    quiet: Quiet = False


class AttackConfig(AttackedSplit, frozen=True, kw_only=True):
    """Which adversarial images `wmr attack` makes."""

    attack: Annotated[str | None, setting("Attack: `wmr list attacks`.", ATTACK, "S")] = None
    eps: Annotated[
        NonNegative | None, setting("Radius of the ε-ball: 0.3 or 8/255.", ATTACK, "E")
    ] = None
    alpha: Annotated[
        NonNegative | None,
        setting("Maximise exp(-alpha * margin) * loss, as for A_tr.", ATTACK, "A"),
    ] = None

    def to_evaluate_config(self) -> EvaluateConfig:
        """Return the evaluation that attacks the same images in the same way."""
        shared = {name: getattr(self, name) for name in AttackedSplit.__struct_fields__}
        return EvaluateConfig(
            **shared,
            attacks=() if self.attack is None else (self.attack,),
            eps=() if self.eps is None else (self.eps,),
            alpha_test=None if self.alpha is None else (self.alpha,),
        )


class AttackFlags(Struct, frozen=True, kw_only=True):
    """Flags of `wmr attack` that change no result."""

    data_dir: DataDir = None
    trust_code: TrustedCode = ()
    device: Device = "auto"
    save: Annotated[
        Path | None,
        setting("Save images, labels, indices and predictions.", OUTPUT, "FILE.safetensors"),
    ] = None
    save_uint8: Annotated[
        bool, setting("Round to 8 bits within the ε-ball before scoring.", OUTPUT)
    ] = False
    grid: Annotated[
        Path | None,
        setting("Draw clean images, perturbations and adversarial images.", OUTPUT, "FILE.png"),
    ] = None
    format: Annotated[SummaryFormat, setting("Format of the summary.", OUTPUT)] = "table"
    quiet: Quiet = False


class ImportConfig(Struct, frozen=True, kw_only=True):
    """What `wmr import` makes of weights."""

    model: Annotated[str, setting("Model: `wmr list models`, or file.py:Class.", DATA, "S")]
    dataset: Annotated[
        str | None, setting("Dataset it classifies: `wmr list datasets`.", DATA, "S")
    ] = None
    match: Annotated[
        Literal["name", "shape"], setting("Match tensors by name, or by order and shape.", DATA)
    ] = "name"
    eps: Annotated[
        NonNegative | None,
        setting("Radius of the ε-ball.", DATA, "E", default="that of the dataset's preset"),
    ] = None


class ImportFlags(Struct, frozen=True, kw_only=True):
    """Flags of `wmr import` that change no result."""

    data_dir: DataDir = None
    out: Annotated[
        Path | None,
        setting(
            "Checkpoint file.",
            OUTPUT,
            "FILE.safetensors",
            default="name of WEIGHTS in this folder",
        ),
    ] = None
    overwrite: Annotated[bool, setting("Replace an existing file.", OUTPUT)] = False
    quiet: Quiet = False


class RecordFilter(Struct, frozen=True, kw_only=True):
    """Records that a report is limited to; an empty filter keeps all."""

    attack: Annotated[
        tuple[str, ...],
        setting(
            "Only records under this attack, such as pgd, pgd:steps=20 or worst; repeatable.",
            DATA,
            "S",
            is_repeated=True,
        ),
    ] = ()
    eps: Annotated[
        tuple[NonNegative, ...],
        setting(
            "Only records at this radius, such as 8/255; repeatable.", DATA, "E", is_repeated=True
        ),
    ] = ()
    defense: Annotated[
        tuple[str, ...],
        setting("Only models of this defense; repeatable.", DATA, "S", is_repeated=True),
    ] = ()


class ReportContent(Struct, frozen=True, kw_only=True):
    """What a report shows of stored records."""

    alpha_test: AlphaTest = None
    rho: Rho = None
    compare: Annotated[
        bool,
        setting("Paired differences between models on the same images.", METRICS_PANEL),
    ] = False
    paper: Annotated[
        PaperTable | None,
        setting(
            "Add the paper's numbers; all: all tables of the paper.",
            METRICS_PANEL,
            "auto|mnist|cifar10|tiny-imagenet|all|T1…T12",
        ),
    ] = None
    calibrated: Annotated[
        bool,
        setting("Add A_cal, A_sa of calibrated models, from stored logits.", METRICS_PANEL),
    ] = False


class ReportConfig(ReportContent, frozen=True, kw_only=True):
    """Settings of `wmr report`."""

    require: Require = ()
    format: Annotated[
        ReportFormat | None,
        setting("Format of the report.", OUTPUT, default="ending of --out, or table"),
    ] = None
    out: Annotated[
        Path | None, setting("Write to this file instead of stdout.", OUTPUT, "FILE")
    ] = None
    figures: Annotated[
        Path | None, setting("Draw figures in PNG, SVG and PDF to this folder.", OUTPUT, "DIR")
    ] = None
    figure_width: Annotated[
        Literal["single", "double"] | None,
        setting("Figures for one or both columns of a two-column paper.", OUTPUT),
    ] = None
    figure_titles: Annotated[
        bool,
        setting(
            "Describe the figure above its panels.",
            OUTPUT,
            names=("--figure-titles/--no-figure-titles",),
        ),
    ] = True
    critical_eps: Annotated[
        Path | None,
        setting(
            "Write the smallest measured eps that misclassifies each image to this CSV file.",
            OUTPUT,
            "FILE.csv",
        ),
    ] = None
    quiet: Quiet = False


class SweepConfig(Struct, frozen=True, kw_only=True):
    """Settings of `wmr sweep`."""

    run: Annotated[
        tuple[str, ...],
        setting("Only this run, without the report; repeatable.", RUNS, "NAME", is_repeated=True),
    ] = ()
    jobs: Annotated[
        Count | None,
        setting("Parallel runs.", RUNS, "N", default="one per device, or as many as fit the CPU"),
    ] = None
    slurm: Annotated[
        bool, setting("Submit runs as Slurm jobs, with the study's table slurm.", RUNS)
    ] = False
    data_dir: DataDir = None
    trust_code: TrustedCode = ()
    dry_run: DryRun = False
    quiet: Quiet = False


class BenchConfig(Struct, frozen=True, kw_only=True):
    """Settings of `wmr bench` besides those of the training."""

    device: Device = "auto"
    devices: DeviceCount = None
    compile: Compile = False
    seconds: Annotated[
        Annotated[float, Meta(ge=0, le=MAX_BENCH_SECONDS)],
        setting("Approximate seconds per measurement.", MEASUREMENT, "S"),
    ] = 5.0
    only: Annotated[
        bool, setting("Measure only these settings, without limit and advice.", MEASUREMENT)
    ] = False
    data_dir: DataDir = None
    format: Annotated[SummaryFormat, setting("Format of the output.", OUTPUT)] = "table"
    quiet: Quiet = False


class ListConfig(Struct, frozen=True, kw_only=True):
    """Settings of `wmr list`."""

    data_dir: DataDir = None
    quiet: Quiet = False


class DoctorConfig(Struct, frozen=True, kw_only=True):
    """Settings of `wmr doctor`."""

    data_dir: DataDir = None
    numerics: Annotated[
        bool,
        setting("Compare the arithmetic of a device with proved and stored results.", MEASUREMENT),
    ] = False
    device: Device = "auto"
    format: Annotated[SummaryFormat, setting("Format of the output.", OUTPUT)] = "table"


class PluginsConfig(Struct, frozen=True, kw_only=True):
    """Settings of `wmr plugins`."""

    check: Annotated[
        bool, setting("Import all components of the plugins; exit 1 on a problem.", PLUGIN)
    ] = False
    quiet: Quiet = False


class NewPluginConfig(Struct, frozen=True, kw_only=True):
    """Settings of `wmr plugins new`."""

    kinds: Annotated[
        tuple[ComponentKind, ...],
        setting(
            "Kind of component; repeatable.",
            PLUGIN,
            "attack|model|dataset|defense|kernel|verifier|logger",
            names=("--kind",),
            is_repeated=True,
        ),
    ]
    out: Annotated[
        Path | None,
        setting("Folder of the package.", PLUGIN, "DIR", default="wmr-NAME in this folder"),
    ] = None
    quiet: Quiet = False


def default_data_dir() -> Path:
    """Return the folder of the datasets if no setting names one."""
    # Path.home() raises RuntimeError in containers whose user has no home
    try:
        return Path(os.environ.get("WMR_DATA_DIR") or Path.home() / ".cache" / "wmr" / "data")
    except RuntimeError:
        raise BadInput(
            "the home folder is not known",
            hint="set `data_dir` or the environment variable WMR_DATA_DIR",
        ) from None

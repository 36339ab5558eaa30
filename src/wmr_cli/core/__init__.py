"""The public toolbox for plugins: contracts, losses, norms, random numbers, attack loops, datasets.

Import every name from here: `from wmr_cli.core import Batch, cross_entropy`. The modules below
this package are private and may change in any release. Errors and hooks are names of `wmr_cli`.
"""

from . import rng, torchvision_compat
from .contexts import evaluating
from .data.downloads import Remote, fetch, unpack
from .data.image_files import Decoder, PictureSplit
from .data.splits import LazySplits, MemorySource, MemorySplit, Source, balanced_subset, held_out
from .losses import (
    at_least_float32,
    cross_entropy,
    finest,
    kl_divergence,
    log_probabilities,
    logit_margin,
    loss_of,
    margin,
    probability_margin,
)
from .nn.preprocessing import Normalized, Resized
from .norms import NORMS, Norm
from .objectives import OBJECTIVES, Divergence, at_rows, objective_named, ranks, weighted_objective
from .pgd import (
    PgdSettings,
    UniformStartPgd,
    input_gradient,
    pgd_steps,
    project_to_ball,
    run_pgd,
    start_images,
    with_logits,
)
from .progress import report_progress
from .protocols import (
    Attack,
    AttackResult,
    Batch,
    DataSource,
    Defense,
    Evidence,
    Kernel,
    Learner,
    Losses,
    Objective,
    Split,
    StepReport,
)
from .restarts import (
    attack_until_misclassified,
    pick_stronger,
    pick_worse_case,
    run_restarts,
)
from .weighted_step import descend, pay

__all__ = [
    "NORMS",
    "OBJECTIVES",
    "Attack",
    "AttackResult",
    "Batch",
    "DataSource",
    "Decoder",
    "Defense",
    "Divergence",
    "Evidence",
    "Kernel",
    "LazySplits",
    "Learner",
    "Losses",
    "MemorySource",
    "MemorySplit",
    "Norm",
    "Normalized",
    "Objective",
    "PgdSettings",
    "PictureSplit",
    "Remote",
    "Resized",
    "Source",
    "Split",
    "StepReport",
    "UniformStartPgd",
    "at_least_float32",
    "at_rows",
    "attack_until_misclassified",
    "balanced_subset",
    "cross_entropy",
    "descend",
    "evaluating",
    "fetch",
    "finest",
    "held_out",
    "input_gradient",
    "kl_divergence",
    "log_probabilities",
    "logit_margin",
    "loss_of",
    "margin",
    "objective_named",
    "pay",
    "pgd_steps",
    "pick_stronger",
    "pick_worse_case",
    "probability_margin",
    "project_to_ball",
    "ranks",
    "report_progress",
    "rng",
    "run_pgd",
    "run_restarts",
    "start_images",
    "torchvision_compat",
    "unpack",
    "weighted_objective",
    "with_logits",
]

"""The public toolbox for plugins: contracts, losses, norms, random numbers, attack loops, datasets.

Import every name from here: `from wmr_cli.core import Batch, cross_entropy`. The modules below
this package are private and may change in any release. Errors and hooks are names of `wmr_cli`.
"""

from . import rng, torchvision_compat
from .contexts import evaluating
from .data.downloads import Remote, fetch, unpack
from .data.image_files import Decoder, ImageFileSplit
from .data.splits import (
    LazySplits,
    MemorySource,
    MemorySplit,
    Source,
    balanced_subset,
    holdout_mask,
)
from .losses import (
    cross_entropy,
    kernel_loss,
    kl_divergence,
    log_probabilities,
    logit_margin,
    margin,
    probability_margin,
    upcast_half,
    widest_float_dtype,
)
from .nn.preprocessing import Normalized, Resized
from .norms import NORMS, Norm
from .objectives import (
    OBJECTIVES,
    KlObjective,
    get_objective,
    ranking_scores,
    select_rows,
    weighted_objective,
)
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
    "Evidence",
    "ImageFileSplit",
    "Kernel",
    "KlObjective",
    "LazySplits",
    "Learner",
    "Losses",
    "MemorySource",
    "MemorySplit",
    "Norm",
    "Normalized",
    "Objective",
    "PgdSettings",
    "Remote",
    "Resized",
    "Source",
    "Split",
    "StepReport",
    "UniformStartPgd",
    "attack_until_misclassified",
    "balanced_subset",
    "cross_entropy",
    "descend",
    "evaluating",
    "fetch",
    "get_objective",
    "holdout_mask",
    "input_gradient",
    "kernel_loss",
    "kl_divergence",
    "log_probabilities",
    "logit_margin",
    "margin",
    "pay",
    "pgd_steps",
    "pick_stronger",
    "pick_worse_case",
    "probability_margin",
    "project_to_ball",
    "ranking_scores",
    "report_progress",
    "rng",
    "run_pgd",
    "run_restarts",
    "select_rows",
    "start_images",
    "torchvision_compat",
    "unpack",
    "upcast_half",
    "weighted_objective",
    "widest_float_dtype",
    "with_logits",
]

"""wmr evaluate"""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from ..errors import BadFile
from .console import say, say_error
from .options import (
    FORMATS,
    INTERVALS,
    LAYOUTS,
    LOSSES,
    METRICS,
    DataDir,
    Device,
    Devices,
    Fold,
    Layout,
    Model,
    Nodes,
    Quiet,
    Seed,
    TrustCode,
    allow_code,
    choice,
    choices,
    components,
    default_data_dir,
    read,
    size,
    sizes,
)


def evaluate(
    checkpoints: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="CHECKPOINT",
            help="Checkpoint files or run folders; with --model foreign weights, or nothing for the network as it is built.",
            show_default=False,
        ),
    ] = None,
    dataset: Annotated[
        str | None, typer.Option(metavar="S", help="Another data set than the checkpoint's own.")
    ] = None,
    model: Model = None,
    split: Annotated[str, typer.Option(help="Which part of the data set.")] = "test",
    attack: Annotated[
        list[str] | None, typer.Option(metavar="S", help="An attack; may be given several times.")
    ] = None,
    eps: Annotated[
        list[str] | None, typer.Option(metavar="E", help="A radius; may be given several times.")
    ] = None,
    steps: Annotated[
        int | None, typer.Option(metavar="K", min=0, help="Steps of the attack.")
    ] = None,
    step_size: Annotated[
        str | None, typer.Option(metavar="E", help="Length of a step; follows eps unless given.")
    ] = None,
    restarts: Annotated[
        int | None,
        typer.Option(metavar="R", min=1, help="Fresh starts of the attack; the worst counts."),
    ] = None,
    repeats: Annotated[
        int,
        typer.Option(metavar="R", min=1, help="Seeds of the attack: how much its luck matters."),
    ] = 1,
    alpha_test: Annotated[
        str | None, typer.Option(metavar="LIST", help="Values of alpha, such as 1,1.5,2.")
    ] = None,
    kernel: Annotated[
        str, typer.Option(metavar="S", help="How the attacker chooses: `wmr list kernels`.")
    ] = "exp",
    metrics: Annotated[
        str, typer.Option(metavar="LIST", help="What to measure; dro is the worst case in a ball.")
    ] = ",".join(METRICS),
    rho: Annotated[
        str | None,
        typer.Option(metavar="LIST", help="Radii of that ball, such as 0.01,0.1,1; asks for dro."),
    ] = None,
    dro_loss: Annotated[
        str | None,
        typer.Option(
            metavar="|".join(LOSSES),
            help="What is worst in that ball; asks for dro.",
            show_default="ce",
        ),
    ] = None,
    per_class: Annotated[
        bool, typer.Option("--per-class", help="Every class by itself, too.")
    ] = False,
    ci: Annotated[
        str, typer.Option(metavar="|".join(INTERVALS), help="How intervals are made.")
    ] = "delta",
    checks: Annotated[
        bool,
        typer.Option(
            "--checks", help="Look for signs that the attack was weak rather than the model strong."
        ),
    ] = False,
    strict: Annotated[
        bool,
        typer.Option("--strict", help="Exit with status 1 if a check fails; implies --checks."),
    ] = False,
    limit: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, help="A random class-balanced subset of this size."),
    ] = None,
    batch_size: Annotated[int, typer.Option(metavar="N", min=1, help="Images at a time.")] = 256,
    layout: Layout = "auto",
    fold: Fold = True,
    seed: Seed = 0,
    device: Device = "auto",
    devices: Devices = None,
    nodes: Nodes = None,
    data_dir: DataDir = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with an evaluation that was interrupted.")
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="Where the records go.", show_default="beside the checkpoint"
        ),
    ] = None,
    trust_code: TrustCode = None,
    output: Annotated[
        str, typer.Option("--format", metavar="|".join(FORMATS), help="How to print the records.")
    ] = "table",
    quiet: Quiet = False,
) -> None:
    """Measure checkpoints under attack: A_nat, A_rob, A_sa and A_tr, each with its interval."""
    from ..config import EvaluateConfig

    config = EvaluateConfig(
        dataset=dataset,
        model=model,
        split=split,
        attacks=tuple(attack or ()),
        eps=tuple(value for text in eps or () if (value := read("--eps", text, size)) is not None),
        steps=steps,
        step_size=read("--step-size", step_size, size),
        restarts=restarts,
        alpha_test=read("--alpha-test", alpha_test, sizes),
        kernel=kernel,
        metrics=asked_metrics(metrics, asks_for_dro=rho is not None or dro_loss is not None),
        rho=read("--rho", rho, sizes),
        dro_loss=read("--dro-loss", dro_loss, choice(*LOSSES)) or "ce",
        per_class=per_class,
        repeats=repeats,
        ci=read("--ci", ci, choice(*INTERVALS)) or "delta",
        checks=checks or strict,
        limit=limit,
        batch_size=batch_size,
        layout=read("--layout", layout, choice(*LAYOUTS)) or "auto",
        fold=fold,
        seed=seed,
    )
    read("--format", output, choice(*FORMATS))
    allow_code([dataset, model, kernel, *(attack or ())], trust_code, quiet=quiet)
    registry = components(quiet)

    from ..evaluation.run import evaluate as run
    from ..events import EvaluationDone
    from ..runtime.fabric import Hardware
    from ..sweeps.process import current_report
    from .output import put
    from .progress import follow, resumable

    folder = data_dir or default_data_dir()
    measured, skipped = [], 0
    paths: Sequence[Path | None] = checkpoints or [None]
    for checkpoint in paths:
        hardware = Hardware(device, devices, nodes)
        events = run(
            checkpoint, config, registry, data_dir=folder, hardware=hardware, out=out, resume=resume
        )
        try:
            with resumable(quiet):
                for done in follow(events, EvaluationDone, quiet=quiet):
                    file = done.rows.with_suffix(".json")
                    measured.append((file, done.record))
                    current_report().add_record(done.record.id)
                    if done.stored:
                        say(f"shown as recorded in {file}", quiet=quiet)
        except BadFile as problem:
            if len(paths) == 1:
                raise
            say_error(f"skipped: {problem}", problem.hint)
            skipped += 1
    if skipped == len(paths):
        raise BadFile("none of these can be evaluated", hint="name checkpoints or run folders")
    if measured:  # of several processes only the first has anything to show
        put(measured, output)
    failed = [
        check.name for _, record in measured for check in record.checks if check.verdict == "fail"
    ]
    if strict and failed:
        say_error(
            f"checks failed: {'; '.join(failed)}",
            "the records name the reason of each; try a stronger attack",
        )
        raise typer.Exit(1)
    if failed:
        say(f"checks failed: {'; '.join(failed)}", quiet=quiet, warns=True)
    if skipped:
        raise typer.Exit(1)


def asked_metrics(text: str, asks_for_dro: bool) -> tuple[str, ...]:
    """`nat,rob` as words; whoever gives radii or a loss for the worst case in a ball wants to see it."""
    asked = read("--metrics", text, choices(*METRICS, "dro")) or METRICS
    return (*asked, "dro") if asks_for_dro and "dro" not in asked else asked

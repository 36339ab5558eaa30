"""wmr evaluate"""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from ..config import EvaluateConfig, EvaluateFlags, HardwareFlags
from ..errors import BadFile
from .console import say, say_error
from .flags import with_flags
from .setup import check_loggers, find_checkpoint, find_data_dir, load_components, trust_code

if TYPE_CHECKING:
    from ..reporting.costs import EvaluationCost
    from ..storage.records import Record


@with_flags
def evaluate(
    checkpoints: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="CHECKPOINT",
            help="Checkpoint files or run folders; with --model foreign weights, or none for an"
            " untrained model.",
            show_default=False,
        ),
    ] = None,
    *,
    config: EvaluateConfig,
    hardware: HardwareFlags,
    flags: EvaluateFlags,
) -> None:
    """Measure checkpoints under attack: A_nat, A_rob, A_sa and A_tr with confidence intervals."""
    from ..reporting.requirements import judge, parse_requirements

    quiet = flags.quiet
    if flags.strict:
        config = msgspec.structs.replace(config, checks=True)
    requirements = parse_requirements(flags.require)
    named = [config.dataset, config.model, config.kernel, config.certify, *config.attacks]
    named += flags.logger
    trust_code(named, flags.trust_code, quiet=quiet)
    registry = load_components(quiet)
    check_loggers(flags.logger, registry)

    # torch is imported only now: errors above appear at once
    from ..evaluation.estimate import estimate_evaluation
    from ..evaluation.run import evaluate as run_evaluation
    from ..events import EvaluationDone, EvaluationEstimated
    from ..runtime.fabric import Hardware, use_idle_cores
    from ..runtime.loggers import log_measured
    from ..sweeps.process import current_report
    from .output import print_costs, print_records, report_judgements
    from .progress import follow, resumable

    settings = Hardware(**msgspec.structs.asdict(hardware))
    use_idle_cores(settings)
    measured: list[tuple[Path, Record]] = []
    costs: list[EvaluationCost] = []
    skipped = 0
    work = estimate_evaluation if flags.dry_run else run_evaluation
    paths: list[Path | None] = [*checkpoints] if checkpoints else [None]
    data_dir = find_data_dir(flags.data_dir)
    for checkpoint in paths:
        try:
            path, own_config = checkpoint, config
            if checkpoint is not None:
                path, own_config = find_checkpoint(checkpoint, config, registry, data_dir)
            events = work(
                path,
                own_config,
                registry,
                data_dir=data_dir,
                hardware=settings,
                out=flags.out,
                resume=flags.resume,
                requirements=requirements,
            )
            with resumable(quiet):
                for done in follow(events, EvaluationDone, EvaluationEstimated, quiet=quiet):
                    if isinstance(done, EvaluationEstimated):
                        costs.append(done.cost)
                    elif isinstance(done, EvaluationDone):
                        file = done.rows.with_suffix(".json")
                        measured.append((file, done.record))
                        # a sweep learns from its child which records it has made
                        current_report().add_record(done.record.id)
                        if done.stored:
                            say(f"already recorded in {file}", quiet=quiet)
        except BadFile as problem:
            # one damaged file of many is skipped, and the exit status is 1
            if len(paths) == 1:
                raise
            say_error(f"skipped: {problem}", problem.hint)
            skipped += 1
    if skipped == len(paths):
        raise BadFile(
            "none of the checkpoints can be evaluated", hint="name checkpoints or run folders"
        )
    if costs:
        print_costs(costs, config, flags)
    judgements = None
    if measured:  # only rank 0 has records
        judgements = judge(requirements, measured) if requirements else None
        print_records(measured, flags.format, judgements)
        if flags.logger:
            for message in log_measured(flags.logger, measured, registry):
                say(message.text, quiet=quiet, is_warning=message.is_warning)
    has_failed = report_checks([record for _, record in measured], flags)
    is_met = report_judgements(judgements or (), quiet=quiet)
    if skipped or has_failed or not is_met:
        raise typer.Exit(1)


def report_checks(records: "list[Record]", flags: EvaluateFlags) -> bool:
    """Report failed checks; return whether they fail the command."""
    failed = [
        check.name for record in records for check in record.checks if check.verdict == "fail"
    ]
    if not failed:
        return False
    problem = f"checks failed: {'; '.join(failed)}"
    if flags.strict:
        say_error(problem, "the records contain the reasons; try a stronger attack")
    else:
        say(problem, quiet=flags.quiet, is_warning=True)
    return flags.strict

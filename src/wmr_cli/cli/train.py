"""wmr train"""

import signal
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec

from ..config import (
    SPECS,
    HardwareFlags,
    TrainConfig,
    TrainFlags,
    describe_config,
    resolve,
)
from .console import Terminated, format_duration, is_first, messages, say, write
from .flags import Given, with_flags
from .setup import canonical_config, check_loggers, find_data_dir, load_components, trust_code

if TYPE_CHECKING:
    from ..events import TrainingDone
    from ..registry import Registry
    from ..runtime.fabric import Hardware


@with_flags
def train(
    given: Annotated[dict[str, Any], Given(TrainConfig)],
    hardware: HardwareFlags,
    flags: TrainFlags,
) -> None:
    """Train a robust classifier.

    Without flags: TRADES with alpha 2 on the embedded digits, in about a minute.
    """
    quiet = flags.quiet
    trust_code(
        (*(given.get(key) for key in (*SPECS, "extra")), *flags.logger),
        flags.trust_code,
        quiet=quiet,
    )
    registry = load_components(quiet)
    check_loggers(flags.logger, registry)
    config = canonical_config(resolve(given, flags.config), registry)
    session = Session(config, registry, hardware, flags)
    if flags.dry_run:
        session.rehearse()
        return

    from ..storage.runs import check_available, default_run_name

    # before torch is imported: an existing run is the most frequent mistake
    folder = flags.out or Path("runs") / default_run_name(config)
    check_available(folder, resume=flags.resume, overwrite=flags.overwrite)
    say(describe_config(config), quiet=quiet)
    # not after an explicit choice of settings
    if "preset" not in given and flags.config is None:
        session.suggest_cpu_preset()
    # a resumed run keeps its number of threads, which its last bits depend on
    if not flags.resume:
        session.suggest_threads()
    session.train(folder)


@dataclass(frozen=True)
class Session:
    """A checked configuration and everything else that a training needs."""

    config: TrainConfig
    registry: "Registry"
    hardware: HardwareFlags
    flags: TrainFlags

    def train(self, folder: Path) -> None:
        """Train, draw the progress, and print the checkpoint."""
        from ..events import TrainingDone, TrainingStopped
        from ..training.loop import TrainOptions, train
        from .progress import follow, resumable

        flags = self.flags
        options = TrainOptions(
            data_dir=find_data_dir(flags.data_dir),
            hardware=self.make_hardware(),
            compile_model=flags.compile,
            save_minutes=flags.save_minutes,
            # each logger once, even if its flag is repeated
            loggers=tuple(dict.fromkeys(flags.logger)),
            resume=flags.resume,
            overwrite=flags.overwrite,
        )
        events = train(self.config, folder, self.registry, options)
        with resumable(flags.quiet):
            for event in follow(events, TrainingDone, TrainingStopped, quiet=flags.quiet):
                match event:
                    case TrainingDone():
                        self.print_result(event)
                    case TrainingStopped():
                        saved = f"saved after step {event.step} of epoch {event.epoch}"
                        say(saved, quiet=flags.quiet)
                        # the exit status names the signal: 130 or 143
                        if event.signal == signal.SIGINT:
                            raise KeyboardInterrupt
                        raise Terminated(128 + signal.SIGTERM)

    def rehearse(self) -> None:
        """Print the configuration, and how long the run would take."""
        from ..runtime.fabric import launch
        from ..training.estimate import estimate
        from ..training.setup import set_up_training
        from .progress import waiting

        flags = self.flags
        if is_first():
            # before anything that may fail: the dataset may not be there yet
            write(self.config.to_json())
        with waiting(flags.quiet):
            runtime = launch(self.make_hardware(), self.config.precision)
            data_dir = find_data_dir(flags.data_dir)
            run = set_up_training(
                self.config,
                self.registry,
                data_dir,
                runtime,
                compile_model=flags.compile,
                threads=self.make_hardware().count_threads(),
            )
            expected = estimate(run)
        if is_first():
            for fact in run.describe():
                say(fact, quiet=flags.quiet)
            outlook = f"about {format_duration(expected.run)}"
            outlook += f": {format_duration(expected.epoch)} per epoch"
            if expected.validation:
                outlook += f", {format_duration(expected.validation)} per validation"
            say(outlook, quiet=flags.quiet)

    def make_hardware(self) -> "Hardware":
        """Return the devices that the flags name."""
        from ..runtime.fabric import Hardware

        return Hardware(**msgspec.structs.asdict(self.hardware))

    def suggest_cpu_preset(self) -> None:
        """Name the preset for machines without accelerator, if the dataset has one."""
        from .. import presets
        from ..runtime.fabric import has_accelerator
        from ..spec import Spec

        preset = f"cpu/{Spec.parse(self.config.dataset).name}"
        if preset in presets.names() and not has_accelerator(self.hardware.device):
            advice = f"training is slow without an accelerator; try `preset={preset}`"
            say(advice, quiet=self.flags.quiet)

    def suggest_threads(self) -> None:
        """Name the flag that makes training faster on a busy machine."""
        from ..runtime.fabric import suggest_threads

        threads = suggest_threads(self.make_hardware())
        if threads is not None:
            advice = f"other processes use the cores; `threads={threads}` may be faster"
            say(f"{advice} and changes rounding only", quiet=self.flags.quiet)

    def print_result(self, done: "TrainingDone") -> None:
        """Print the validation accuracies, the checkpoint and the next command."""
        from ..reporting.tables.details import make_validation_table

        quiet = self.flags.quiet
        table = make_validation_table(done.entries, done.best, self.config.select)
        console = messages(quiet)
        if table is not None:
            console.print(table.to_rich_table(console.width))
        # the path alone on stdout, for scripts
        write(str(done.checkpoint))
        duration = format_duration(done.seconds)
        say(f"trained in {duration}; next: wmr evaluate {done.folder}", quiet=quiet)

"""The program `wmr`: its commands, and the one place where errors become a line and a hint."""

import difflib
import errno
import io
import os
import signal
import sys
import threading
from typing import Annotated, Any, Never

import typer
from typer.core import TyperGroup

from .. import __version__
from ..errors import WmrError, out_of_memory
from ..runtime import failures
from ..runtime.failures import Failure
from ..runtime.processes import count_idle_cores, count_usable_cores
from ..sweeps.process import start_report
from . import attack, bench, evaluate, imports, installation, lists, report, sweep, train
from .console import Terminated, leave_progress_bar, say_error, write
from .flags import ClickCommand, ClickContext, Command, spell_flags, use_flags_of
from .plugin_commands import find_plugin_command, list_plugin_commands

_PERMISSION_HINT = "check the permissions, or choose another place"
_SPACE_HINT = "free some space, or choose another place"
_OPEN_FILES_HINT = "raise the limit of open files: ulimit -n"
HINT_BY_ERRNO = {
    errno.ENAMETOOLONG: "use a shorter path or name",
    errno.ELOOP: "remove the loop of symbolic links",
    errno.ENOTDIR: "one part of the path is a file; choose another place",
    errno.EACCES: _PERMISSION_HINT,
    errno.EPERM: _PERMISSION_HINT,
    errno.EROFS: _PERMISSION_HINT,
    errno.ENOSPC: _SPACE_HINT,
    errno.EDQUOT: _SPACE_HINT,
    errno.EIO: "check the disk and the network",
    errno.EMFILE: _OPEN_FILES_HINT,
    errno.ENFILE: _OPEN_FILES_HINT,
}
"""Errors of the operating system that a user can solve. Any other one is a bug of the program."""
MIN_FLAG_SIMILARITY = 0.75
"""Similarity of a flag that is suggested for a misspelt one. `init` and `quiet` have 0.67."""
COMMAND_HINT = "`wmr --help` lists the commands, `wmr COMMAND --help` the settings of one"


class Program(TyperGroup):
    """Prints an error that the user can solve as one line and a hint, with exit status 2.

    Any other error is a bug and keeps its traceback.
    """

    def list_commands(self, ctx: ClickContext) -> list[str]:
        """Return the commands in the order of use instead of the alphabet, then the plugins'."""
        own = sorted(self.commands, key=[name for name, _, _ in COMMANDS].index)
        return [*own, *list_plugin_commands()]

    def get_command(self, ctx: ClickContext, cmd_name: str) -> ClickCommand:
        """Return a command of the program, or else one of a plugin."""
        return super().get_command(ctx, cmd_name) or find_plugin_command(cmd_name)

    def invoke(self, ctx: ClickContext) -> object:
        """Run a command; if memory runs out and it has `--batch-size`, suggest that flag."""
        use_flags_of(())
        try:
            return super().invoke(ctx)
        except (MemoryError, RuntimeError) as error:
            shortage = out_of_memory(error)
            command = self.commands.get(ctx.invoked_subcommand)
            flags = [] if command is None else [name for one in command.params for name in one.opts]
            if shortage is None or "--batch-size" not in flags:
                raise
            raise shortage from error

    def main(self, *args: Any, **kwargs: Any) -> Never:
        report = FailureReport()
        failures.set_reporter(report.end)
        try:
            status = super().main(*args, **{**kwargs, "standalone_mode": False})
        except WmrError as error:
            # plugins may raise errors without a hint
            status = report.fail(error, str(error), error.hint or COMMAND_HINT)
        except typer.TyperException as error:
            status = report.fail(error, *_describe_usage_error(error))
        except UnicodeEncodeError as error:
            if error.reason == "surrogates not allowed":
                status = report.fail(
                    error,
                    f"a text or path is not valid UTF-8: {error.object!r}",
                    "rename the file or folder, or work in another folder",
                )
            else:
                status = report.fail_unexpectedly(error)
        except OSError as error:
            if error.errno in HINT_BY_ERRNO and error.filename is not None:
                problem = f"cannot use {_decode_filename(error.filename)}: {error.strerror}"
                status = report.fail(error, problem, HINT_BY_ERRNO[error.errno])
            else:
                status = report.fail_unexpectedly(error)
        except Exception as error:  # noqa: BLE001 - raised again by one process
            status = report.fail_unexpectedly(error)
        if not isinstance(status, int):
            status = 0
        try:
            report.result.write(status)
        except WmrError as error:
            # the command itself has ended; its status stays
            say_error(str(error), error.hint)
        sys.exit(status)


class FailureReport:
    """Prints the failure of a command, and writes it for a sweep."""

    def __init__(self) -> None:
        # a sweep reads the outcome of its child processes from this file
        self.result = start_report()

    def print(self, failure: Failure) -> None:
        """Print a failure, and keep it for the sweep."""
        # the watch decides which rank prints
        say_error(failure.text, failure.hint, on_any_rank=failures.current_watch() is not None)
        # with the flags of this command: those of the sweep that reads it are others
        text = spell_flags(failure.text)
        self.result.set_error(text, spell_flags(failure.hint), failure.error_class)

    def end(self, failure: Failure) -> None:
        """Report a failure at the end of this process, maybe while the main thread waits."""
        if threading.current_thread() is not threading.main_thread():
            leave_progress_bar()
        self.print(failure)
        self.result.write(failure.status)

    def fail(self, error: BaseException, text: str, hint: str) -> int:
        """Report an error if this process must, and return the exit status."""
        failure = Failure(text, hint, type(error).__name__)
        watch = failures.current_watch()
        if watch is None:
            self.print(failure)
            return failure.status
        watch.share(failure, error)
        due = watch.take()
        if due is not None:
            self.print(due)
        return watch.status

    def fail_unexpectedly(self, error: Exception) -> int:
        """Raise a bug again, which keeps its traceback; one of several ranks shares it."""
        # an effect of another rank's failure is not a bug, also before all ranks are connected
        if failures.current_watch() is None and not failures.is_connection_error(error):
            raise error
        from ..runtime.distributed import describe_error

        described = describe_error(error)
        return self.fail(error, str(described), described.hint)


def _describe_usage_error(error: typer.TyperException) -> tuple[str, str]:
    """Return the text of a mistake on the command line in one line, and a hint."""
    text, _, suggestion = " ".join(error.format_message().split()).partition(" Did you mean ")
    text = text.partition(" (Possible options")[0].removesuffix(".")
    text = text[:1].lower() + text[1:]
    # only usage errors have a context, and only unknown options the name of an option
    context = getattr(error, "ctx", None)
    if context is None:
        return text, f"did you mean {suggestion}" if suggestion else COMMAND_HINT
    if type(error).__name__ == "NoSuchOption":
        return text, _suggest_flag(getattr(error, "option_name", ""), context)
    if suggestion:
        return text, f"did you mean {suggestion}"
    return text, f"`{context.command_path} --help` explains it"


def _suggest_flag(misspelt: str, context: ClickContext) -> str:
    """Return a hint with the nearest flag of this command, if one is similar."""
    flags = [
        name
        for parameter in context.command.params
        for name in (*parameter.opts, *parameter.secondary_opts)
    ]
    # without the dashes, which make all flags similar
    names = {name.removeprefix("--"): name for name in flags if name.startswith("--")}
    nearest = difflib.get_close_matches(
        misspelt.lstrip("-"), names, n=1, cutoff=MIN_FLAG_SIMILARITY
    )
    if nearest:
        return f"did you mean {names[nearest[0]]!r}?"
    return f"`{context.command_path} --help` lists the flags"


def _decode_filename(file: object) -> str:
    """Return the file name of an OSError, which may be bytes or the number of an open file."""
    return os.fsdecode(file) if isinstance(file, str | bytes) else str(file)


app = typer.Typer(
    cls=Program,
    invoke_without_command=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    epilog="Example: wmr train, then wmr evaluate runs/digits-trades-a2-s0, then wmr report",
)


@app.callback()
def program(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
) -> None:
    """Train image classifiers against adversarial attacks, and measure their robustness."""
    if version:
        write(f"wmr {__version__}")
        raise typer.Exit
    if context.invoked_subcommand is None:
        write(context.get_help())


SCHEDULER_SIGNALS = (signal.SIGUSR1, signal.SIGUSR2)
"""How schedulers announce the end of a job; SIGUSR2 is that of submitit."""


def _terminate(number: int, frame: object) -> None:
    # a scheduler signals every process, and a parent passes the signal on: the second one
    # must not interrupt what the first one has started
    for announcement in SCHEDULER_SIGNALS:
        signal.signal(announcement, signal.SIG_IGN)
    raise Terminated(128 + signal.SIGTERM)


def main() -> None:
    """Run the console script."""
    # OpenMP threads that spin while they wait take the cores of the threads that they wait for
    # on a busy machine; on an idle one they continue sooner
    is_busy = count_idle_cores() < count_usable_cores()
    os.environ.setdefault("GOMP_SPINCOUNT", "0" if is_busy else "30000")
    # child processes (`python -m`) must not import modules or plugins from the current folder
    os.environ["PYTHONSAFEPATH"] = "1"
    for number in (signal.SIGTERM, *SCHEDULER_SIGNALS):
        signal.signal(number, _terminate)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # a terminal without ε still gets its table
            stream.reconfigure(errors="replace")
    try:
        app(prog_name="wmr")
    except SystemExit as end:
        # a command that has not imported torch has no other ranks
        if "torch" in sys.modules:
            from ..runtime.distributed import exit_rank

            exit_rank(end.code)
        raise


COMMANDS: tuple[tuple[str, Any, str], ...] = (
    ("train", train.train, "wmr train --defense trades --alpha 2.0"),
    ("evaluate", evaluate.evaluate, "wmr evaluate runs/digits-trades-a2-s0 --alpha-test 1,2"),
    ("attack", attack.attack, "wmr attack runs/digits-trades-a2-s0 --limit 20 --grid attack.png"),
    (
        "import",
        imports.import_weights,
        "wmr import net.pth --model resnet20 --dataset cifar10, then wmr evaluate net.safetensors",
    ),
    ("report", report.report, "wmr report runs --format markdown --alpha-test 0,1,2,5"),
    (
        "sweep",
        sweep.sweep,
        "wmr sweep studies/digits.toml --dry-run, then wmr sweep studies/digits.toml",
    ),
    ("list", lists.list_names, "wmr list attacks"),
    ("schema", lists.schema, "wmr schema train > wmr-train.schema.json"),
    ("plugins", installation.plugins_app, "wmr plugins --check"),
    ("bench", bench.bench, "wmr bench --model resnet18 --dataset cifar10 --batch-size 128"),
    ("doctor", installation.doctor, "wmr doctor"),
)
"""Name, function and example of every command, in the order of the help."""
for name, command, example in COMMANDS:
    if isinstance(command, typer.Typer):
        app.add_typer(command, name=name, epilog=f"Example: {example}")
    else:
        app.command(name, cls=Command, epilog=f"Example: {example}")(command)

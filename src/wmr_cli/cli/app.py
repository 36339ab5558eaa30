"""The program `wmr`: its commands, and the one place where errors become a line and a hint."""

import difflib
import errno
import io
import os
import signal
import sys
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from .. import __version__
from ..errors import WmrError, out_of_memory
from ..sweeps.process import start_report
from . import attack, bench, evaluate, imports, installation, lists, report, sweep, train
from .console import Terminated, say_error, write
from .flags import Command, use_flags_of

ACCESS, SPACE = (
    "check the permissions, or choose another place",
    "free some space, or choose another place",
)
ENVIRONMENT = {
    errno.ENAMETOOLONG: "use a shorter path or name",
    errno.ELOOP: "remove the loop of symbolic links",
    errno.ENOTDIR: "one part of the path is a file; choose another place",
    errno.EACCES: ACCESS,
    errno.EPERM: ACCESS,
    errno.EROFS: ACCESS,
    errno.ENOSPC: SPACE,
    errno.EDQUOT: SPACE,
    errno.EIO: "check the disk and the network",
    errno.EMFILE: "raise the limit of open files: ulimit -n",
    errno.ENFILE: "raise the limit of open files: ulimit -n",
}
"""Errors of the system that are not bugs of the program, each with its remedy."""
NEAR = 0.75
"""Similarity of a flag that is suggested for a misspelt one. `init` and `quiet` have 0.67."""


class Program(TyperGroup):
    """Errors a user can mend are one line, one hint and exit status 2; anything else is our bug and shows its traceback."""

    def list_commands(self, ctx: Any) -> list[str]:
        """In the order of work rather than of the alphabet."""
        return sorted(self.commands, key=[name for name, _, _ in COMMANDS].index)

    def invoke(self, ctx: Any) -> Any:
        """Out of memory is nobody's bug: a command that takes batches names the flag to change."""
        use_flags_of(())
        try:
            return super().invoke(ctx)
        except (MemoryError, RuntimeError) as error:
            told = out_of_memory(error)
            command = self.commands.get(ctx.invoked_subcommand)
            if told is None or not any(
                "--batch-size" in parameter.opts for parameter in getattr(command, "params", ())
            ):
                raise
            raise told from error

    def main(self, *args: Any, **kwargs: Any) -> Any:
        result = start_report()

        def fail(error: BaseException, text: str, hint: str) -> int:
            say_error(text, hint)
            result.set_error(text, hint, type(error).__name__)
            return 2

        try:
            status = super().main(*args, **{**kwargs, "standalone_mode": False})
        except WmrError as error:
            # plugins may raise errors without a hint
            hint = "`wmr --help` lists the commands, `wmr COMMAND --help` the settings of one"
            status = fail(error, str(error), error.hint or hint)
        except typer.TyperException as error:
            status = fail(error, *_said(error))
        except UnicodeEncodeError as error:
            if error.reason != "surrogates not allowed":
                raise
            status = fail(
                error,
                f"a text or path is not valid UTF-8: {error.object!r}",
                "rename the file or folder, or work in another folder",
            )
        except OSError as error:
            if error.errno not in ENVIRONMENT or error.filename is None:
                raise
            problem = f"cannot use {_name(error.filename)}: {error.strerror}"
            status = fail(error, problem, ENVIRONMENT[error.errno])
        status = status if isinstance(status, int) else 0
        result.write(status)
        sys.exit(status)


def _said(error: typer.TyperException) -> tuple[str, str]:
    """What was wrong with the command line, in one line, and a hint."""
    text, _, meant = " ".join(error.format_message().split()).partition(" Did you mean ")
    text = text.partition(" (Possible options")[0].removesuffix(".")
    context, wrong = getattr(error, "ctx", None), getattr(error, "option_name", None)
    if context is not None and wrong and type(error).__name__ == "NoSuchOption":
        hint = _near_flag(wrong, context)
    elif meant:
        hint = f"did you mean {meant}"
    else:
        hint = (
            f"`{context.command_path} --help` explains it"
            if context is not None
            else "`wmr --help` lists the commands"
        )
    return text[:1].lower() + text[1:], hint


def _near_flag(wrong: str, context: Any) -> str:
    """Return a hint with the flag of this command that is nearest, if one is near."""
    flags = [
        name
        for parameter in context.command.params
        for name in (*parameter.opts, *parameter.secondary_opts)
    ]
    names = {name.removeprefix("--"): name for name in flags if name.startswith("--")}
    # without the dashes, which all flags share
    near = difflib.get_close_matches(wrong.lstrip("-"), names, n=1, cutoff=NEAR)
    return (
        f"did you mean {names[near[0]]!r}?"
        if near
        else f"`{context.command_path} --help` lists the flags"
    )


def _name(file: object) -> str:
    """Return the name of a file from an OSError, which may have bytes or the number of an open file."""
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
    version: Annotated[bool, typer.Option("--version", help="Show the version and stop.")] = False,
) -> None:
    """Train image classifiers that withstand adversarial attacks, and measure honestly how well they do."""
    if version:
        write(f"wmr {__version__}")
        raise typer.Exit
    if context.invoked_subcommand is None:
        write(context.get_help())


def _terminate(number: int, frame: object) -> None:
    raise Terminated(128 + signal.SIGTERM)


def main() -> None:
    """The console script."""
    # Threads that spin for long while they wait for each other can slow training down several times on a busy machine.
    os.environ.setdefault("GOMP_SPINCOUNT", "30000")
    # Processes that this one starts with `python -m` must not import modules or plugins from the current folder.
    os.environ["PYTHONSAFEPATH"] = "1"
    for number in (signal.SIGTERM, signal.SIGUSR1):  # the second is how schedulers warn
        signal.signal(number, _terminate)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal without ε still gets its table
    try:
        app(prog_name="wmr")
    except SystemExit as end:
        if "torch" in sys.modules:  # who has not imported it is alone
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
for name, command, worked in COMMANDS:
    if isinstance(command, typer.Typer):
        app.add_typer(command, name=name, epilog=f"Example: {worked}")
    else:
        app.command(name, cls=Command, epilog=f"Example: {worked}")(command)

"""Run `wmr` commands in this process."""

from typer.testing import CliRunner, Result

from wmr_cli.cli import app


def wmr(*args: object, status: int = 0) -> Result:
    """Run `wmr` in this process and check its exit status."""
    result = CliRunner().invoke(app, [str(arg) for arg in args], prog_name="wmr")
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    assert result.exit_code == status, result.stderr
    return result

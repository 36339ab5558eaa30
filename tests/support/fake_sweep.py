"""A small study, and commands that are done at once."""

from pathlib import Path

import msgspec

from support import synthetic
from wmr_cli.registry import Registry
from wmr_cli.storage import records
from wmr_cli.storage.runs import RunFolder
from wmr_cli.sweeps.process import ChildCommand, CommandResult, Failure
from wmr_cli.sweeps.study import Study, read_study

STUDY = """
folder = "runs/small"
{keep}
[train]
epochs = {epochs}
[[grid]]
alpha = {alphas}
[[evaluate]]
limit = 20
[[evaluate]]
only = {{ alpha = 2 }}
attack = "pgd-margin"
"""


def write_study(
    registry: Registry, *, alphas: str = "[0, 2]", epochs: int = 2, keep: str = ""
) -> Study:
    """Write a study of one run per alpha, and read it."""
    Path("small.toml").write_text(STUDY.format(alphas=alphas, epochs=epochs, keep=keep))
    return read_study(Path("small.toml"), registry)


class FakeProcess:
    """A command that runs until it is polled twice.

    Training leaves weights, an evaluation leaves a record. A command whose arguments contain
    `failing` fails with `failure`.
    """

    commands: list[tuple[str, ...]]
    failing: str
    failure: Failure
    running: int
    most_running: int

    def __init__(self, command: ChildCommand, log: Path, *, threads: int) -> None:
        self.command = command
        self._polls = 0
        self._record_ids: list[str] = []
        FakeProcess.commands.append(command.arguments)
        FakeProcess.running += 1
        FakeProcess.most_running = max(FakeProcess.most_running, FakeProcess.running)

    @property
    def status(self) -> int | None:
        self._polls += 1
        if self._polls == 1:
            return None
        if self._polls == 2:
            FakeProcess.running -= 1
            if not self._fails():
                self.work()
        return int(self._fails())

    def _fails(self) -> bool:
        return bool(self.failing) and self.failing in " ".join(self.command.arguments)

    def work(self) -> None:
        arguments = self.command.arguments
        if arguments[0] == "train":
            folder = RunFolder(Path(arguments[arguments.index("--out") + 1]))
            synthetic.save_weights(folder.last)
            folder.write_log([{"epoch": 2}])
        else:
            rows = synthetic.make_rows(20, logits=True)
            record_id = records.record_id({"words": list(arguments)})
            record = msgspec.structs.replace(synthetic.make_record(rows), id=record_id)
            synthetic.save_record(Path(arguments[1]).parent / "evaluations", record, rows)
            self._record_ids = [record_id]

    def read_result(self) -> CommandResult | Failure:
        if self._fails():
            return self.failure
        return CommandResult(status=0, record_ids=self._record_ids)

    def terminate(self) -> None: ...

    def wait(self) -> None: ...

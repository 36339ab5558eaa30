"""Stand-ins for wandb, mlflow and trackio: what the loggers use of each, and what each refuses."""

import re
import sys
from dataclasses import dataclass, field
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest


@dataclass
class StoredRun:
    """What a tool holds of a run."""

    id: str
    name: str = ""
    config: dict[str, Any] = field(default_factory=dict)
    rows: list[tuple[int, dict[str, Any]]] = field(default_factory=list)
    """Step and values."""
    summary: dict[str, Any] = field(default_factory=dict)
    files: dict[str, str] = field(default_factory=dict)
    status: object = None
    step: int = 0
    offline: bool = False
    url: str = "https://example.org/run"


class Store(dict[str, StoredRun]):
    """The runs of a tool by id."""

    def start(self, run_id: str | None, **facts: Any) -> StoredRun:
        name = run_id or f"id{len(self)}"
        return self.setdefault(name, StoredRun(name, **facts))


def install(monkeypatch: pytest.MonkeyPatch, name: str) -> Store:
    """Make a stand-in importable in place of a package; return its runs."""
    store = Store()
    module = {"wandb": make_wandb, "mlflow": make_mlflow, "trackio": make_trackio}[name](store)
    module.__spec__ = ModuleSpec(name, None)
    monkeypatch.setitem(sys.modules, name, module)
    return store


def make_module(name: str, **attributes: Any) -> ModuleType:
    module = ModuleType(name)
    vars(module).update(attributes)
    return module


def make_wandb(store: Store) -> ModuleType:
    class Artifact:
        def __init__(self, name: str, type: str) -> None:
            assert re.fullmatch(r"[\w.-]+", name)
            self.name = name
            self.text = ""

        def add_file(self, path: str) -> None:
            self.text = Path(path).read_text()

    class Run:
        def __init__(self, stored: StoredRun) -> None:
            self.stored = stored
            self.id = stored.id
            self.step = stored.step
            self.offline = stored.offline
            self.url = stored.url
            self.summary = stored.summary

        def define_metric(self, name: str, step_metric: str | None = None) -> None:
            pass

        def log(self, row: dict[str, Any], step: int) -> None:
            assert step >= self.stored.step, "wandb drops it"
            self.stored.rows.append((step, row))
            self.stored.step = self.step = step + 1

        def log_artifact(self, artifact: Artifact) -> None:
            self.stored.files[artifact.name] = artifact.text

        def finish(self, exit_code: int) -> None:
            self.stored.status = exit_code

    def init(**given: Any) -> Run:
        assert (given["resume"] is None) == (given["id"] is None)
        assert given["reinit"] == "create_new"
        return Run(store.start(given["id"], name=given["name"], config=given["config"]))

    return make_module(
        "wandb",
        init=init,
        Settings=SimpleNamespace,
        Artifact=Artifact,
        Table=lambda **given: given,
    )


def make_mlflow(store: Store) -> ModuleType:
    class Client:
        def __init__(self, tracking_uri: str | None) -> None:
            self.uri = tracking_uri

        def get_experiment_by_name(self, name: str) -> object:
            return SimpleNamespace(experiment_id="1") if store else None

        def create_experiment(self, name: str) -> str:
            return "1"

        def create_run(self, experiment_id: str, run_name: str) -> object:
            stored = store.start(None, name=run_name, status="RUNNING")
            return SimpleNamespace(info=SimpleNamespace(run_id=stored.id))

        def update_run(self, run_id: str, status: str) -> None:
            store[run_id].status = status

        def set_terminated(self, run_id: str, status: str) -> None:
            store[run_id].status = status

        def log_batch(
            self, run_id: str, metrics: list[Any] | None = None, params: list[Any] | None = None
        ) -> None:
            run = store[run_id]
            assert len(params or ()) <= 100, "mlflow refuses more in one call"
            for param in params or ():
                known = run.config.setdefault(param.key, param.value)
                assert known == param.value, "mlflow refuses a changed parameter"
                assert len(param.value) <= 500
            for metric in metrics or ():
                assert re.fullmatch(r"[\w. /-]+", metric.key), "mlflow refuses the name"
                assert isinstance(metric.value, float)
                run.rows.append((metric.step, {metric.key: metric.value}))

        def log_text(self, run_id: str, text: str, artifact_file: str) -> None:
            store[run_id].files[artifact_file] = text

        def log_artifact(self, run_id: str, local_path: str) -> None:
            path = Path(local_path)
            store[run_id].files[path.name] = path.read_text()

    entities = SimpleNamespace(
        Param=lambda key, value: SimpleNamespace(key=key, value=value),
        Metric=lambda key, value, timestamp, step: SimpleNamespace(key=key, value=value, step=step),
    )
    return make_module("mlflow", MlflowClient=Client, entities=entities)


def make_trackio(store: Store) -> ModuleType:
    class Run:
        def __init__(self, stored: StoredRun) -> None:
            self.stored = stored
            self.name = stored.name

        def log(self, row: dict[str, Any], step: int) -> None:
            self.stored.rows.append((step, row))

        def log_artifact(self, path: Path, name: str, type: str) -> None:
            self.stored.files[name] = path.read_text()

        def finish(self) -> None:
            self.stored.status = "finished"

    def init(**given: Any) -> Run:
        name = given["name"]
        assert (name in store) == (given["resume"] == "allow")
        return Run(store.start(name, name=name, config=given["config"]))

    return make_module("trackio", init=init, Table=lambda **given: given)

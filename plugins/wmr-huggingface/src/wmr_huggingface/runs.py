"""Runs on the hub: which files they have, and how they get there and back."""

import json
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from wmr_cli import BadFile, BadInput, Spec, make_card

from .hub import Place, explain_errors

CHECKPOINT = "last.safetensors"
RUN_FILES = (CHECKPOINT, "config.json", "log.jsonl", "README.md")
RECORD_FOLDERS = ("evaluations", "last.evaluations")
"""Records of a run, and those of a checkpoint that another program has trained."""
RUN_PATTERNS = (
    *RUN_FILES,
    *(f"{folder}/*.{ending}" for folder in RECORD_FOLDERS for ending in ("json", "safetensors")),
)


@dataclass(frozen=True)
class Run:
    """A checkpoint with the records of its weights."""

    checkpoint: Path
    records: tuple[Path, ...]

    @property
    def config(self) -> Path:
        """The settings of the training, which imported weights do not have."""
        return self.checkpoint.parent / "config.json"

    @property
    def has_config(self) -> bool:
        return self.config.is_file() and self.records_folder == "evaluations"

    @property
    def records_folder(self) -> str:
        """The folder of the records beside the checkpoint, as `wmr evaluate` chooses it."""
        is_run = any(record.parent.name == "evaluations" for record in self.records)
        return "evaluations" if is_run else "last.evaluations"


def find(
    root: Path, name: str | None = None, path: Path | None = None, revision: str | None = None
) -> Path | Spec:
    """Return the folder of a run, or the spec of a model if there is no run.

    A run of the hub is copied below `root`, because new records are written beside it.
    """
    text = "" if name is None else name
    # the text of a folder begins as in a shell
    if text.startswith((".", "/", "~")):
        name, path = None, Path(text)
    place = Place(name, None if path is None else path.expanduser().absolute(), revision)
    if place.path is not None:
        if (place.path / CHECKPOINT).is_file():
            return place.path
        return Spec("hf", None, {"path": str(place.path)})
    commit = place.find_commit()
    pinned = Place(place.name, None, commit)
    snapshot = pinned.download(RUN_PATTERNS)
    if not (snapshot / CHECKPOINT).is_file():
        return Spec("hf", place.name, {"revision": commit})
    folder = root / "huggingface" / str(place.name).replace("/", "--") / commit
    if not (folder / CHECKPOINT).is_file():
        copy_run(snapshot, folder)
    return folder


def copy_run(snapshot: Path, folder: Path) -> None:
    """Copy the files of a run as a whole or not at all; a snapshot consists of links."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as temporary:
        target = Path(temporary) / "run"
        for pattern in RUN_PATTERNS:
            for file in snapshot.glob(pattern):
                copy = target / file.relative_to(snapshot)
                copy.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(file, copy)
        try:
            target.rename(folder)
        except OSError:
            # another process was faster
            if not (folder / CHECKPOINT).is_file():
                raise


def download_run(repository: str, revision: str | None, out: Path) -> str:
    """Download a run into a new folder and return its commit."""
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise BadInput(f"{out} exists", hint="choose another folder with --out")
    place = Place(repository, None, revision)
    commit = place.find_commit()
    snapshot = Place(repository, None, commit).download(RUN_PATTERNS)
    if not (snapshot / CHECKPOINT).is_file():
        raise BadFile(
            f"{repository} is not a run of wmr: it has no {CHECKPOINT}",
            hint=f"evaluate it as a model: wmr evaluate hf:{repository} --dataset …",
        )
    if out.exists():
        out.rmdir()
    copy_run(snapshot, out)
    return commit


def upload_run(path: Path, repository: str, *, private: bool, message: str) -> str:
    """Upload checkpoint, settings, records and card of a run; return the address of the commit."""
    from huggingface_hub import HfApi

    Place(repository, None, None)  # checks the name
    with _stage(read_run(path), repository) as folder, explain_errors(repository):
        api = HfApi(library_name="wmr-huggingface")
        api.create_repo(repository, private=private, exist_ok=True)
        commit = api.upload_folder(
            repo_id=repository,
            folder_path=folder,
            commit_message=message,
            # records of earlier weights would contradict the card
            delete_patterns=[f"{name}/*" for name in RECORD_FOLDERS],
        )
        return str(commit.commit_url)


def read_run(path: Path) -> Run:
    """Return the checkpoint of a run folder or file, with the records of exactly its weights."""
    checkpoint = path / CHECKPOINT if path.is_dir() else path
    sha256 = _read_hash(checkpoint)
    folders = (checkpoint.parent / "evaluations", checkpoint.with_suffix(".evaluations"))
    found = [file for folder in folders for file in sorted(folder.glob("*.json"))]
    records = [file for file in found if _read_record(file)["checkpoint"]["sha256"] == sha256]
    if not records:
        raise BadInput(
            f"{checkpoint} has no records, which its card needs",
            hint=f"measure it first: wmr evaluate {path}",
        )
    return Run(checkpoint, tuple(records))


@contextmanager
def _stage(run: Run, repository: str) -> Iterator[Path]:
    """Yield a folder with the files to upload."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        card = make_card(run.records, name=repository)
        (folder / "README.md").write_text(card + _explain_use(repository), encoding="utf-8")
        shutil.copyfile(run.checkpoint, folder / CHECKPOINT)
        if run.has_config:
            for name in ("config.json", "log.jsonl"):
                file = run.checkpoint.parent / name
                if file.is_file():
                    shutil.copyfile(file, folder / name)
        records = folder / run.records_folder
        records.mkdir()
        for record in run.records:
            for file in (record, record.with_suffix(".safetensors")):
                shutil.copyfile(file, records / file.name)
        yield folder


def _explain_use(repository: str) -> str:
    return (
        "\n## Measure it again\n\n"
        "```sh\n"
        "pip install wmr-cli wmr-huggingface\n"
        f"wmr evaluate hf:{repository}\n"
        "```\n"
    )


def _read_hash(checkpoint: Path) -> str:
    """Return the content hash in the header of a checkpoint."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(checkpoint, framework="numpy") as file:
            header = file.metadata() or {}
    except (OSError, SafetensorError) as error:
        raise BadFile(
            f"{checkpoint} cannot be read: {error}", hint="name a run folder or a checkpoint"
        ) from None
    if "wmr.schema" not in header:
        raise BadFile(f"{checkpoint} is not a checkpoint of wmr", hint="convert it: wmr import")
    return str(header["content_sha256"])


def _read_record(file: Path) -> Any:  # noqa: ANN401 - make_card checks it
    try:
        record = json.loads(file.read_text(encoding="utf-8"))
        _ = record["checkpoint"]["sha256"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise BadFile(
            f"{file} is not an evaluation record: {error}", hint="remove it or evaluate again"
        ) from None
    return record

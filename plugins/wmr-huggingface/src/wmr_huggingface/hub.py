"""Where models and datasets are: a repository at a commit, or a folder with a content hash.

Only files of known formats are downloaded, never code and never pickled weights.
"""

import hashlib
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from huggingface_hub import constants, snapshot_download

# HTTPError belongs to the HTTP library, which differs between releases of huggingface_hub
from huggingface_hub.errors import (  # type: ignore[attr-defined]
    GatedRepoError,
    HfHubHTTPError,
    HFValidationError,
    HTTPError,
    LocalEntryNotFoundError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

from wmr_cli import BadFile, BadInput, MissingData, Spec

CONFIG_FILES = ("config.json", "preprocessor_config.json", "processor_config.json")
WEIGHT_FILES = ("*.safetensors", "*.safetensors.index.json")
COMMIT = re.compile(r"[0-9a-f]{40}")
REPOSITORY = re.compile(r"[\w.-]+/[\w.-]+", re.ASCII)


@dataclass(frozen=True)
class Place:
    """A repository of the hub with a revision, or a local folder with a content hash."""

    name: str | None
    path: Path | None
    revision: str | None

    def __post_init__(self) -> None:
        if (self.name is None) == (self.path is None):
            raise BadInput(
                "hf needs either a repository or a folder",
                hint="write hf:owner/name, hf:./folder or hf:path=/folder",
            )
        if self.name is not None and not REPOSITORY.fullmatch(self.name):
            raise BadInput(
                f"{self.name!r} is not the name of a repository",
                hint="write hf:owner/name, or hf:./folder for a local folder",
            )

    def __str__(self) -> str:
        return self.name or str(self.path)

    def model_folder(self, *, with_weights: bool) -> Path:
        """Return a folder with the files of a model; verify the hash of a local one."""
        if self.path is None:
            patterns = CONFIG_FILES + (WEIGHT_FILES if with_weights else ())
            return self.download(patterns)
        if self.revision is not None and hash_model(self.path) != self.revision:
            raise BadFile(
                f"{self.path} has changed: its content does not match revision={self.revision}",
                hint="restore the folder, or leave out revision=…",
            )
        return self.path

    def download(self, patterns: Sequence[str], kind: str = "model") -> Path:
        """Return the snapshot of the repository with the files of these patterns."""
        assert self.name is not None
        with explain_errors(str(self)):
            return Path(
                snapshot_download(
                    self.name,
                    repo_type=kind,
                    revision=self.revision,
                    allow_patterns=list(patterns),
                )
            )

    def find_commit(self, kind: str = "model") -> str:
        """Return the commit of the revision today; without network, the one in the cache."""
        if self.revision is not None and COMMIT.fullmatch(self.revision):
            return self.revision
        # a snapshot is called by its commit
        return self.download(["config.json", "README.md"], kind).name


def find_place(spec: Spec) -> Place:
    """Return the place that a spec names by its value, `name`, `path` and `revision`."""
    texts = {
        key: str(spec.params[key]) for key in ("name", "path", "revision") if key in spec.params
    }
    name, path = texts.get("name"), texts.get("path")
    if spec.value is not None:
        # the text of a folder begins as in a shell, so that it cannot be a repository
        if spec.value.startswith((".", "/", "~")):
            path = spec.value
        else:
            name = spec.value
    folder = None if path is None else Path(path).expanduser().absolute()
    return Place(name, folder, texts.get("revision"))


def pin_model(spec: Spec) -> Spec:
    """Return the spec with the commit of its repository, or the content hash of its folder."""
    place = find_place(spec)
    rest = spec.without("name", "path", "revision").params
    if place.path is None:
        return Spec(spec.name, place.name, {**rest, "revision": place.find_commit()})
    revision = place.revision or hash_model(place.path)
    return Spec(spec.name, None, {"path": str(place.path), **rest, "revision": revision})


def pin_dataset(spec: Spec) -> Spec:
    """Return the spec with the commit of its repository; records have a hash of the images."""
    place = find_place(spec)
    rest = spec.without("name", "path", "revision").params
    if place.path is None:
        return Spec(spec.name, place.name, {**rest, "revision": place.find_commit("dataset")})
    return Spec(spec.name, None, {"path": str(place.path), **rest})


def hash_model(folder: Path) -> str:
    """Return a hash of the files that determine a model."""
    patterns = CONFIG_FILES + WEIGHT_FILES
    files = sorted({file for pattern in patterns for file in folder.glob(pattern)})
    if not (folder / "config.json").is_file():
        raise BadFile(
            f"{folder} is not a model: it has no config.json",
            hint="name a folder that save_pretrained has written, or hf:owner/name",
        )
    digest = hashlib.sha256()
    for file in files:
        with file.open("rb") as stream:
            content = hashlib.file_digest(stream, "sha256").hexdigest()
        digest.update(f"{file.name} {content}\n".encode())
    return digest.hexdigest()


@contextmanager
def explain_errors(what: str) -> Iterator[None]:
    """Turn errors of the hub into messages with a hint."""
    try:
        yield
    except GatedRepoError as error:
        raise MissingData(
            f"{what} is gated", hint="request access on its page, then run `hf auth login`"
        ) from error
    except (RepositoryNotFoundError, RevisionNotFoundError) as error:
        raise MissingData(
            f"{what} is not on {constants.ENDPOINT}, or not with this revision",
            hint="check the spelling; for a private repository run `hf auth login`",
        ) from error
    except HFValidationError as error:
        raise BadInput(f"{what}: {_first_line(error)}", hint="write owner/name") from error
    except (LocalEntryNotFoundError, OfflineModeIsEnabled) as error:
        raise MissingData(
            f"{what} is not in the cache, and the hub cannot be reached",
            hint="connect to the network and unset HF_HUB_OFFLINE, or name a local folder",
        ) from error
    except HfHubHTTPError as error:
        raise MissingData(
            f"{what}: {_first_line(error)}", hint="check your access: `hf auth whoami`"
        ) from error
    except (HTTPError, ConnectionError) as error:
        raise MissingData(
            f"{what}: {constants.ENDPOINT} cannot be reached", hint="check the network"
        ) from error


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]

"""Optional extras: read from the metadata of the package, with what is missing."""

import json
import tomllib
from importlib.metadata import PathDistribution
from pathlib import Path

import pytest

from support.cli_runner import wmr
from wmr_cli.cli import installation
from wmr_cli.cli.installation import EXTRA_PURPOSES
from wmr_cli.registry import OWN_DISTRIBUTION

ROOT = Path(__file__).parents[2]

METADATA = """Metadata-Version: 2.4
Name: wmr-cli
Version: 9.0
Provides-Extra: slurm
Provides-Extra: tensorboard
Provides-Extra: wandb
Provides-Extra: dev
Requires-Dist: wmr-dependency; python_version >= "3"
Requires-Dist: torch>=1; extra == "slurm"
Requires-Dist: wmr-old>=2; extra == "tensorboard"
Requires-Dist: wmr-absent; extra == "tensorboard" and python_version >= "3"
Requires-Dist: wmr-elsewhere; extra == "wandb" and python_version < "3"
Requires-Dist: wmr-tool; extra == "dev"
"""
OLD = "Metadata-Version: 2.4\nName: wmr-old\nVersion: 1.5\n"


@pytest.fixture
def extras_to_miss(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Install an old package, and replace the metadata of this one."""
    for folder, metadata in (("own", METADATA), ("wmr_old-1.5.dist-info", OLD)):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "METADATA").write_text(metadata)
    monkeypatch.syspath_prepend(tmp_path)
    own = PathDistribution(tmp_path / "own")
    # not on the path: plugins are found by the entry points of the installed package
    monkeypatch.setattr(installation, "distribution", {OWN_DISTRIBUTION: own}.__getitem__)


def test_extras_for_users_have_a_purpose() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = set(project["optional-dependencies"])
    assert extras == EXTRA_PURPOSES.keys()


@pytest.mark.usefixtures("extras_to_miss")
def test_doctor_shows_what_the_extras_of_the_metadata_miss() -> None:
    extras = json.loads(wmr("doctor", "--format", "json").stdout)["extras"]
    assert {extra["name"]: extra["missing"] for extra in extras} == {
        "slurm": [],
        "tensorboard": ["wmr-old>=2", "wmr-absent"],
        "wandb": [],
    }
    assert all(extra["install"] == f"pip install 'wmr-cli[{extra['name']}]'" for extra in extras)
    lines = wmr("doctor").stdout.splitlines()
    (row,) = (line for line in lines if line.split()[:1] == ["tensorboard"])
    assert EXTRA_PURPOSES["tensorboard"] in row
    assert "wmr-old>=2, wmr-absent" in row
    assert "pip install 'wmr-cli[tensorboard]'" in row


@pytest.mark.usefixtures("extras_to_miss")
def test_list_names_the_command_for_a_missing_extra() -> None:
    rows = {
        words[1]: line
        for line in wmr("list", "extras").stdout.splitlines()
        if (words := line.split())[:1] == ["extra"]
    }
    assert rows.keys() == {"slurm", "tensorboard", "wandb"}
    assert "pip install" not in rows["slurm"]
    assert "pip install 'wmr-cli[tensorboard]'" in rows["tensorboard"]
    assert "tensorboard" in wmr("list", "extras", "board").stdout

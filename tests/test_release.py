"""The version, the changelog and the public names are consistent."""

import importlib.metadata
import re
from pathlib import Path

import pytest
import yaml

import wmr_cli

ROOT = Path(__file__).parents[1]
CHANGELOG = ROOT / "CHANGELOG.md"
SECTIONS = [
    line for line in CHANGELOG.read_text(encoding="utf-8").splitlines() if line.startswith("## ")
]


def test_the_installed_version_is_the_one_in_the_source() -> None:
    assert importlib.metadata.version("wmr-cli") == wmr_cli.__version__


def test_the_version_has_a_dated_section_in_the_changelog() -> None:
    dated = rf"## \[{re.escape(wmr_cli.__version__)}\] - \d{{4}}-\d\d-\d\d"
    assert [section for section in SECTIONS if re.fullmatch(dated, section)]


def test_the_citation_names_the_version() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert citation["version"] == wmr_cli.__version__


def test_sections_of_the_changelog_are_versions() -> None:
    version = r"## \[(Unreleased|\d+\.\d+\.\d+)\]( - \d{4}-\d\d-\d\d)?"
    assert [section for section in SECTIONS if not re.fullmatch(version, section)] == []
    newest = ("## [Unreleased]", f"## [{wmr_cli.__version__}]")
    assert SECTIONS[0].startswith(newest)


def test_the_public_names_exist_and_no_others() -> None:
    assert all(getattr(wmr_cli, name) is not None for name in wmr_cli.__all__)
    assert set(wmr_cli.__all__) <= set(dir(wmr_cli))
    with pytest.raises(AttributeError, match="evaluat"):
        _ = wmr_cli.evaluat


def test_the_package_is_marked_as_typed() -> None:
    assert (Path(wmr_cli.__file__).parent / "py.typed").is_file()

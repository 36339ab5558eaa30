"""Version, changelog and public names belong together."""

import importlib
import importlib.metadata
import pkgutil
import re
from pathlib import Path

import pytest

import wmr_cli

CHANGELOG = Path(__file__).parent.parent / "CHANGELOG.md"
SECTIONS = [line for line in CHANGELOG.read_text(encoding="utf-8").splitlines() if line.startswith("## ")]
MODULES = [module.name for module in pkgutil.walk_packages(wmr_cli.__path__, "wmr_cli.") if not module.name.endswith("__main__")]


def test_the_installed_version_is_the_one_in_the_source():
    assert importlib.metadata.version("wmr-cli") == wmr_cli.__version__


def test_the_version_has_a_dated_section_in_the_changelog():
    dated = rf"## \[{re.escape(wmr_cli.__version__)}\] - \d{{4}}-\d\d-\d\d"
    assert [section for section in SECTIONS if re.fullmatch(dated, section)]


def test_the_changelog_begins_with_what_is_new():
    assert SECTIONS[0] == "## [Unreleased]" or SECTIONS[0].startswith(f"## [{wmr_cli.__version__}]")


@pytest.mark.parametrize("section", SECTIONS)
def test_sections_of_the_changelog_are_versions(section):
    assert re.fullmatch(r"## \[(Unreleased|\d+\.\d+\.\d+)\]( - \d{4}-\d\d-\d\d)?", section)


@pytest.mark.parametrize("name", wmr_cli.__all__)
def test_every_public_name_can_be_imported(name):
    assert getattr(wmr_cli, name) is not None


def test_public_names_are_listed_before_they_are_imported():
    assert set(wmr_cli.__all__) <= set(dir(wmr_cli))


def test_the_package_says_that_it_is_typed():
    assert (Path(wmr_cli.__file__).parent / "py.typed").is_file()


def test_there_are_no_other_public_names():
    with pytest.raises(AttributeError, match="no attribute 'evaluat'"):
        _ = wmr_cli.evaluat


@pytest.mark.parametrize("module", MODULES)
def test_every_module_can_be_imported(module):
    assert importlib.import_module(module).__doc__

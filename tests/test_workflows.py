"""The workflows of the repository agree with its Makefile, its classifiers and each other."""

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[1]
PATHS = sorted((ROOT / ".github/workflows").glob("*.yml"))
WORKFLOWS = {path.stem: yaml.safe_load(path.read_text(encoding="utf-8")) for path in PATHS}
JOBS = {
    f"{workflow}/{name}": job
    for workflow, content in WORKFLOWS.items()
    for name, job in content["jobs"].items()
}
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
CLASSIFIED = {
    found[1]
    for classifier in PROJECT["classifiers"]
    if (found := re.fullmatch(r"Programming Language :: Python :: (3\.\d+)", classifier))
}


def read_python_versions(job: dict[str, Any]) -> set[str]:
    """Return the Python versions that a job sets up; those of a matrix are resolved."""
    versions = {
        step["with"]["python-version"]
        for step in job["steps"]
        if "setup-python" in step.get("uses", "")
    }
    if versions == {"${{ matrix.python }}"}:
        return set(job["strategy"]["matrix"]["python"])
    return versions


def test_all_workflows_are_found() -> None:
    assert set(WORKFLOWS) == {"nightly", "pull-request", "release"}


@pytest.mark.parametrize("name", JOBS)
def test_a_job_runs_targets_and_scripts_that_exist(name: str) -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z-]+):", makefile, re.MULTILINE))
    commands = [step["run"] for step in JOBS[name]["steps"] if "run" in step]
    called = {words for text in commands for words in re.findall(r"\bmake ([a-z-]+)", text)}
    assert called <= targets
    scripts = [text for text in commands if text.startswith(".")]
    assert all((ROOT / script).stat().st_mode & 0o111 for script in scripts)


@pytest.mark.parametrize("name", JOBS)
def test_a_job_uses_pythons_of_the_classifiers(name: str) -> None:
    assert read_python_versions(JOBS[name]) <= CLASSIFIED


def test_the_nightly_matrix_has_all_pythons_of_the_classifiers() -> None:
    assert read_python_versions(JOBS["nightly/test"]) == CLASSIFIED
    oldest = min(CLASSIFIED, key=lambda version: int(version.split(".")[1]))
    assert PROJECT["requires-python"].startswith(f">={oldest}")


def test_each_action_has_one_version_and_is_pinned_by_hash() -> None:
    pin = re.compile(r"uses: (\S+@[0-9a-f]{40}) # v\d+\.\d+\.\d+$", re.MULTILINE)
    pinned = [action for path in PATHS for action in pin.findall(path.read_text(encoding="utf-8"))]
    uses = [step["uses"] for job in JOBS.values() for step in job["steps"] if "uses" in step]
    assert sorted(pinned) == sorted(uses)
    assert len(set(uses)) == len({action.split("@")[0] for action in uses})


@pytest.mark.parametrize("name", JOBS)
def test_a_job_has_a_time_limit(name: str) -> None:
    limit = 10 if name.startswith("pull-request/") else 120
    assert 0 < JOBS[name]["timeout-minutes"] <= limit


@pytest.mark.parametrize("name", WORKFLOWS)
def test_only_jobs_of_a_release_may_write(name: str) -> None:
    allowed = {"release": {}}.get(name, {"contents": "read"})
    assert WORKFLOWS[name]["permissions"] == allowed
    writing = {
        job: {
            scope for scope, access in content.get("permissions", {}).items() if access == "write"
        }
        for job, content in WORKFLOWS[name]["jobs"].items()
    }
    expected = {
        "attest": {"attestations", "id-token"},
        "publish": {"id-token"},
        "publish-docs": {"id-token", "pages"},
    }
    assert {job: scopes for job, scopes in writing.items() if scopes} == (
        expected if name == "release" else {}
    )


@pytest.mark.parametrize("name", WORKFLOWS)
def test_a_workflow_has_a_concurrency_group(name: str) -> None:
    assert "github.workflow" in WORKFLOWS[name]["concurrency"]["group"]


def test_only_built_and_tested_files_are_published() -> None:
    jobs = WORKFLOWS["release"]["jobs"]
    assert jobs["publish"]["needs"] == "attest"
    assert jobs["attest"]["needs"] == "build"
    assert {"run": "make test-release"} in jobs["build"]["steps"]
    assert not [step for step in jobs["publish"]["steps"] if "run" in step]

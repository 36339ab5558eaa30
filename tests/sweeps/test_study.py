"""A study file defines the runs; an error names its place in the file."""

from pathlib import Path

import pytest

from wmr_cli.errors import BadFile, BadInput, UnknownName
from wmr_cli.plugins import collect
from wmr_cli.registry import Entry, Registry
from wmr_cli.spec import Spec
from wmr_cli.sweeps.study import Study, read_study

STUDIES = Path(__file__).parents[2] / "studies"
STUDY = """
summary = "small"
folder = "runs/small"
keep = "kept"
[train]
epochs = 2
[[grid]]
defense = "trades"
alpha = [0, 2]
seed = [0, 1]
[[grid]]
defense = ["pgd", "natural"]
batch_size = [32, 64]
[[evaluate]]
attack = ["pgd", "pgd-margin:steps=5"]
eps = ["8/255", 0.1]
alpha_test = [1, 1.5]
per_class = true
checks = false
[[evaluate]]
only = { defense = "trades", alpha = [2] }
checkpoint = "best"
rho = 0.1
[machine]
device = "cpu"
"""


def make_study(registry: Registry, text: str) -> Study:
    Path("small.toml").write_text(text)
    return read_study(Path("small.toml"), registry)


def test_runs_are_all_combinations_of_each_grid_seed_by_seed(registry: Registry) -> None:
    runs = make_study(registry, STUDY).runs
    assert [run.name for run in runs] == [
        "digits-trades-a0-s0", "digits-trades-a2-s0",
        "digits-pgd-a0.5-s0-batch_size32", "digits-pgd-a0.5-s0-batch_size64",
        "digits-natural-none-s0-batch_size32", "digits-natural-none-s0-batch_size64",
        "digits-trades-a0-s1", "digits-trades-a2-s1",
    ]  # fmt: skip
    assert {run.config.epochs for run in runs} == {2}
    assert runs[1].config.alpha == 2.0
    assert runs[1].config.defense == "trades:beta=6"
    assert runs[2].config.batch_size == 32


def test_a_grid_may_vary_parameters_of_components_and_presets(registry: Registry) -> None:
    text = """
    [[grid]]
    defense = ["trades:beta=3", "trades:beta=0.5", "pgd"]
    kernel = ["exp", "exp-logit:c=5"]
    [[grid]]
    preset = ["cpu/mnist", "paper/mnist"]
    """
    names = [run.name for run in make_study(registry, text).runs]
    assert names == [
        "digits-trades-a2-s0-beta3", "digits-trades-exp-logit-s0-beta3-c5",
        "digits-trades-a2-s0-beta0.5", "digits-trades-exp-logit-s0-beta0.5-c5",
        "digits-pgd-a0.5-s0", "digits-pgd-exp-logit-s0-c5",
        "mnist-trades-a2-s0-presetcpu_mnist", "mnist-trades-a2-s0-presetpaper_mnist",
    ]  # fmt: skip


def test_an_evaluation_gives_its_flags_and_the_runs_it_matches(registry: Registry) -> None:
    study = make_study(registry, STUDY)
    of_all_runs, of_some_runs = study.evaluations
    assert of_all_runs.flags() == [
        "--attack", "pgd", "--attack", "pgd-margin:steps=5", "--eps", repr(8 / 255), "--eps", "0.1",
        "--alpha-test", "1.0,1.5", "--per-class",
    ]  # fmt: skip
    assert of_some_runs.flags() == ["--rho", "0.1"]
    assert "dro" in of_some_runs.config().metrics
    assert of_all_runs.config().attacks == ("pgd", "pgd-margin:steps=5")
    assert [run.name for run in study.runs if of_some_runs in study.evaluations_of(run)] == [
        "digits-trades-a2-s0",
        "digits-trades-a2-s1",
    ]
    assert all(of_all_runs in study.evaluations_of(run) for run in study.runs)


def test_an_evaluation_may_name_a_verifier(registry: Registry) -> None:
    text = """
    [[grid]]
    alpha = 2.0
    [[evaluate]]
    certify = "crown:steps=5"
    """
    with pytest.raises(UnknownName, match="crown") as refused:
        make_study(registry, text)
    assert "wmr-certify" in refused.value.hint
    others = collect([])
    others.registry.add(registry_entries(registry), "wmr-cli", "1")
    verifier = Entry("crown", "wmr_cli.testing.fixtures:EqualWeights", "not a verifier")
    others.registry.add([("verifier", verifier)], "other", "1")
    (evaluation,) = make_study(others.registry, text).evaluations
    assert evaluation.flags() == ["--certify", "crown:steps=5"]


def registry_entries(registry: Registry) -> list[tuple[str, Entry]]:
    return [(kind, owned.entry) for kind, owned in registry]


def test_evaluations_that_match_no_run_are_found(registry: Registry) -> None:
    text = """
    [grid]
    alpha = [0, 2]
    [[evaluate]]
    only = { alpha = [2, 7] }
    [[evaluate]]
    only = { alpha = 7 }
    """
    assert make_study(registry, text).unused_evaluations() == [2]
    assert make_study(registry, STUDY).unused_evaluations() == []


def test_runs_are_in_the_folder_of_the_study_and_kept_records_beside_its_file(
    registry: Registry,
) -> None:
    study = make_study(registry, STUDY)
    assert study.path(study.runs[0]) == Path("runs/small/digits-trades-a0-s0")
    assert study.keep == Path("kept")
    assert make_study(registry, "").folder == Path("runs/small")
    assert [run.name for run in make_study(registry, "").runs] == ["digits-trades-a2-s0"]


@pytest.mark.parametrize(
    ("text", "place", "suggestion"),
    [
        ("gird = 1", "small.toml", "grid"),
        ("[train]\nepoch = 3", "small.toml, [train]", "epochs"),
        ("[[grid]]\nalhpa = [1]", "small.toml: grid 1", "alpha"),
        ("[grid]\ndefense = 'tradse'", "small.toml: grid", "trades"),
        ("[[evaluate]]\nattacks = ['pgd']", "small.toml: evaluate 1", "attack"),
        ("[[evaluate]]\nattack = 'pdg'", "small.toml: evaluate 1", "pgd"),
        ("[[evaluate]]\ndataset = 'digit'", "small.toml: evaluate 1", "digits"),
        ("[[evaluate]]\nonly = {defence = 'pgd'}", "small.toml: evaluate 1, only", "defense"),
        ("[[evaluate]]\nonly = {defense = 'trade'}", "small.toml: evaluate 1, only", "trades"),
        ("[report]\nfigure = 'x'", "small.toml, [report]", "figures"),
    ],
)
def test_an_unknown_name_is_an_error_with_its_place_and_a_suggestion(
    registry: Registry, text: str, place: str, suggestion: str
) -> None:
    with pytest.raises(UnknownName) as caught:
        make_study(registry, text)
    assert str(caught.value).startswith(f"{place}: ")
    assert repr(suggestion) in caught.value.hint


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("[[grid]]\nalpha = [1]\n[[grid]]\nepochs = [0]", "small.toml: grid 2: epochs"),
        ("[grid]\nalpha = []", "small.toml: grid: alpha"),
        ("[[evaluate]]\neps = 'nan'", "small.toml: evaluate 1: eps"),
        ("[[evaluate]]\nmetrics = ['nut']", "small.toml: evaluate 1: metrics"),
        ("[machine]\nthreads = 0", "small.toml, [machine]: threads"),
        ("train = 3", "small.toml, [train]"),
        ("grid = []", "small.toml: grid"),
        ("[[grid]]\nseed = [1, 1]", "small.toml: several runs are called digits-trades-a2-s1"),
    ],
)
def test_a_bad_value_is_an_error_with_its_place_and_a_hint(
    registry: Registry, text: str, place: str
) -> None:
    with pytest.raises(BadInput) as caught:
        make_study(registry, text)
    assert str(caught.value).startswith(place)
    assert caught.value.hint


def test_a_file_that_is_not_toml_is_an_error(registry: Registry) -> None:
    with pytest.raises(BadFile) as caught:
        make_study(registry, "[grid")
    assert "small.toml" in str(caught.value)
    assert caught.value.hint


def test_a_missing_study_is_an_error(registry: Registry) -> None:
    with pytest.raises(BadFile, match=r"none\.toml"):
        read_study(Path("none.toml"), registry)


@pytest.mark.parametrize("file", sorted(STUDIES.glob("*.toml")), ids=lambda file: file.stem)
def test_every_published_study_can_be_read(registry: Registry, file: Path) -> None:
    study = read_study(file, registry)
    assert study.summary
    assert len(study.runs) >= 6
    assert all(study.evaluations_of(run) for run in study.runs)


@pytest.mark.parametrize(
    ("name", "alphas"),
    {
        "digits": {"trades": [0, 1, 2], "pgd": [0, 0.5, 1]},
        "mnist-cpu": {"trades": [0, 2], "pgd": [0, 0.5]},
        "cifar10-cpu": {"trades": [0, 2]},
    }.items(),
)
def test_published_comparisons_have_three_seeds_of_every_alpha(
    registry: Registry, name: str, alphas: dict[str, list[float]]
) -> None:
    compared: list[tuple[str, float | None, int]] = []
    for run in read_study(STUDIES / f"{name}.toml", registry).runs:
        defense = Spec.parse(run.config.defense).name
        if defense in ("trades", "pgd"):
            compared.append((defense, run.config.alpha, run.config.seed))
    expected = [
        (defense, alpha, seed)
        for defense, values in alphas.items()
        for alpha in values
        for seed in range(3)
    ]
    assert sorted(compared) == sorted(expected)

"""A study file defines the runs; an error names its place in the file."""

from pathlib import Path

import pytest

from wmr_cli.errors import BadFile, WmrError
from wmr_cli.registry import Registry
from wmr_cli.sweeps.study import Study, read_study

STUDIES = Path(__file__).parents[2] / "studies"
WHOLE = """
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
    runs = make_study(registry, WHOLE).runs
    assert [run.name for run in runs] == [
        "digits-trades-a0-s0", "digits-trades-a2-s0",
        "digits-pgd-a0.5-s0-batch_size32", "digits-pgd-a0.5-s0-batch_size64",
        "digits-natural-none-s0-batch_size32", "digits-natural-none-s0-batch_size64",
        "digits-trades-a0-s1", "digits-trades-a2-s1",
    ]  # fmt: skip
    assert {run.config.epochs for run in runs} == {2}
    assert (runs[1].config.alpha, runs[1].config.defense, runs[2].config.batch_size) == (
        2.0,
        "trades:beta=6",
        32,
    )


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
    study = make_study(registry, WHOLE)
    everywhere, some = study.evaluations
    assert everywhere.flags() == [
        "--attack", "pgd", "--attack", "pgd-margin:steps=5", "--eps", repr(8 / 255), "--eps", "0.1",
        "--alpha-test", "1.0,1.5", "--per-class",
    ]  # fmt: skip
    assert some.flags() == ["--rho", "0.1"]
    assert "dro" in some.config().metrics
    assert everywhere.config().attacks == ("pgd", "pgd-margin:steps=5")
    assert [run.name for run in study.runs if some in study.evaluations_of(run)] == [
        "digits-trades-a2-s0",
        "digits-trades-a2-s1",
    ]
    assert all(everywhere in study.evaluations_of(run) for run in study.runs)


def test_evaluations_that_match_no_run_are_found(registry: Registry) -> None:
    text = "[grid]\nalpha = [0, 2]\n[[evaluate]]\nonly = {alpha = [2, 7]}\n[[evaluate]]\nonly = {alpha = 7}\n"
    assert make_study(registry, text).unused_evaluations() == [2]
    assert make_study(registry, WHOLE).unused_evaluations() == []


def test_runs_are_in_the_folder_of_the_study_and_kept_records_beside_its_file(
    registry: Registry,
) -> None:
    study = make_study(registry, WHOLE)
    assert study.path(study.runs[0]) == Path("runs/small/digits-trades-a0-s0")
    assert study.keep == Path("kept")
    assert make_study(registry, "").folder == Path("runs/small")
    assert [run.name for run in make_study(registry, "").runs] == ["digits-trades-a2-s0"]


@pytest.mark.parametrize(
    ("text", "said", "hint"),
    [
        ("gird = 1", "small.toml: a study has no key 'gird'", "'grid'"),
        ("[train]\nepoch = 3", "small.toml, [train]: there is no setting 'epoch'", "'epochs'"),
        ("[[grid]]\nalhpa = [1]", "small.toml: grid 1: there is no setting 'alhpa'", "'alpha'"),
        (
            "[[grid]]\nalpha = [1]\n[[grid]]\nepochs = [0]",
            "small.toml: grid 2: epochs: expected a whole number >= 1",
            "train --help",
        ),
        ("[grid]\nalpha = []", "small.toml: grid: alpha has no value", "one value"),
        (
            "[grid]\ndefense = 'tradse'",
            "small.toml: grid: no defense is called 'tradse'",
            "'trades'",
        ),
        (
            "[[evaluate]]\nattacks = ['pgd']",
            "small.toml: evaluate 1: there is no setting 'attacks'",
            "'attack'",
        ),
        (
            "[[evaluate]]\nattack = 'pdg'",
            "small.toml: evaluate 1: no attack is called 'pdg'",
            "'pgd'",
        ),
        ("[[evaluate]]\neps = 'nan'", "small.toml: evaluate 1: eps", ""),
        ("[[evaluate]]\nmetrics = ['nut']", "small.toml: evaluate 1: metrics", "one of nat, rob"),
        (
            "[[evaluate]]\nonly = {defence = 'pgd'}",
            "small.toml: evaluate 1, only: there is no setting 'defence'",
            "'defense'",
        ),
        (
            "[[evaluate]]\nonly = {defense = 'trade'}",
            "small.toml: evaluate 1, only: no defense is called 'trade'",
            "'trades'",
        ),
        (
            "[[evaluate]]\ndataset = 'digit'",
            "small.toml: evaluate 1: no dataset is called 'digit'",
            "'digits'",
        ),
        ("grid = []", "small.toml: grid is empty", "leave it out"),
        (
            "[report]\nfigure = 'x'",
            "small.toml, [report]: there is no setting 'figure'",
            "'figures'",
        ),
        (
            "[machine]\nthreads = 0",
            "small.toml, [machine]: threads: expected a whole number >= 1",
            "",
        ),
        ("train = 3", "small.toml, [train] is not a table", ""),
        ("[[grid]]\nseed = [1, 1]", "several runs are called digits-trades-a2-s1", "differ"),
        ("[grid", "small.toml is not a study", "TOML"),
    ],
)
def test_an_error_names_its_place_in_the_file(
    registry: Registry, text: str, said: str, hint: str
) -> None:
    with pytest.raises(WmrError) as caught:
        make_study(registry, text)
    assert said in str(caught.value)
    assert hint in caught.value.hint


def test_a_missing_study_is_an_error(registry: Registry) -> None:
    with pytest.raises(BadFile, match=r"cannot read none\.toml"):
        read_study(Path("none.toml"), registry)


@pytest.mark.parametrize("file", sorted(STUDIES.glob("*.toml")), ids=lambda file: file.stem)
def test_our_studies_can_be_read(registry: Registry, file: Path) -> None:
    study = read_study(file, registry)
    assert study.summary
    assert len(study.runs) >= 6
    assert all(study.evaluations_of(run) for run in study.runs)


@pytest.mark.parametrize(
    ("name", "asked"),
    {
        "digits": {
            ("trades", 0.0),
            ("trades", 1.0),
            ("trades", 2.0),
            ("pgd", 0.0),
            ("pgd", 0.5),
            ("pgd", 1.0),
        },
        "mnist-cpu": {("trades", 0.0), ("trades", 2.0), ("pgd", 0.0), ("pgd", 0.5)},
        "cifar10-cpu": {("trades", 0.0), ("trades", 2.0)},
    }.items(),
)
def test_our_comparisons_have_three_seeds_of_everything(
    registry: Registry, name: str, asked: set[tuple[str, float]]
) -> None:
    runs = [run.config for run in read_study(STUDIES / f"{name}.toml", registry).runs]
    assert {
        (config.defense.partition(":")[0], config.alpha)
        for config in runs
        if config.defense.partition(":")[0] in ("pgd", "trades")
    } == asked
    for defense, alpha in asked:
        assert {
            config.seed
            for config in runs
            if (config.defense.partition(":")[0], config.alpha) == (defense, alpha)
        } == {
            0,
            1,
            2,
        }

"""The paper's numbers: complete, with misprints corrected, and matched with a user's records."""

import csv
import hashlib
from typing import Any, get_args

import msgspec
import pytest

from support import synthetic
from support.typed import not_none
from wmr_cli.config import resolve
from wmr_cli.config.structs import PaperTable
from wmr_cli.errors import BadFile
from wmr_cli.measures import worst_accuracy
from wmr_cli.paper import results, tables
from wmr_cli.paper.errata import Footnotes, load_corrected_rows
from wmr_cli.paper.matching import OTHER_DATASETS, Match, explain_mismatches, match_rows
from wmr_cli.plugins import load_plugins
from wmr_cli.reporting.rows import make_rows
from wmr_cli.reporting.tables.latex import render_latex
from wmr_cli.spec import format_number, scale_exactly


def paper_config(dataset: str) -> dict[str, Any]:
    # as a record holds it
    config = msgspec.json.encode(resolve({"preset": f"paper/{dataset}"}))
    return dict(msgspec.json.decode(config))


MNIST: dict[str, Any] = {
    "dataset": "mnist",
    "eps": 0.3,
    "attack": "pgd:steps=40,step=0.01",
    "training": paper_config("mnist"),
    "epoch": 100,
}
"""Facts of a record that was trained and measured as in the paper."""

CIFAR: dict[str, Any] = {
    "dataset": "cifar10",
    "eps": 0.031,
    "attack": "pgd:steps=20,step=0.003",
    "model": "resnet18",
    "defense": "trades:beta=5",
    "training": paper_config("cifar10"),
    "epoch": 100,
}
IMAGES = "60 test images for 10000"
"""The one difference of the synthetic records, which have few images."""


def test_all_numbers_of_the_paper_are_included() -> None:
    found = results.load_results()
    assert found.counts == results.count_parts(found)
    assert found.counts == {
        "tables": 12,
        "rows": 220,
        "values": 590,
        "figures": 2,
        "panels": 10,
        "series": 32,
        "points": 184,
        "errata": 25,
        "disputed": 1,
        "suspect_points": 8,
    }


def test_incomplete_results_are_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(results, "count_parts", lambda found: {})
    results.load_results.cache_clear()
    with pytest.raises(BadFile):
        results.load_results()
    results.load_results.cache_clear()


def test_every_erratum_points_to_a_printed_value() -> None:
    rows = {
        (table.name, row.line): row for table in results.load_results().tables for row in table.rows
    }
    for erratum in results.load_results().errata:
        assert getattr(rows[erratum.table, erratum.line], erratum.field) == erratum.printed
    fixed = {
        (corrected.table, corrected.row.line): corrected for corrected in load_corrected_rows()
    }
    for erratum in results.load_results().errata:
        corrected = fixed[erratum.table, erratum.line]
        assert getattr(corrected.row, erratum.field) == erratum.corrected
        assert str(erratum.printed) in corrected.reasons[erratum.field]


def test_only_rows_with_errata_are_changed() -> None:
    printed_rows = [row for table in results.load_results().tables for row in table.rows]
    changed = [
        corrected
        for corrected, row in zip(load_corrected_rows(), printed_rows, strict=True)
        if corrected.row != row
    ]
    assert (
        len(changed)
        == len({(erratum.table, erratum.line) for erratum in results.load_results().errata})
        == 24
    )


def test_tables_agree_except_for_the_disputed_value() -> None:
    found: dict[tuple[object, ...], set[float]] = {}
    for corrected in load_corrected_rows():
        row = corrected.row
        for name in results.ACCURACY_FIELDS:
            alpha = row.alpha_test if name in ("a_sa", "a_tr") else None
            key = (
                corrected.dataset,
                row.defense,
                row.alpha_train,
                row.eps_test,
                row.attack,
                name,
                alpha,
            )
            found.setdefault(key, set()).update(
                {value} if (value := getattr(row, name)) is not None else ()
            )
    conflicts = [key for key, values in found.items() if len(values) > 1]
    assert conflicts == [("tiny-imagenet", "TRADES+ours", 1.5, 0.016, "10-PGD", "a_rob", None)]
    assert results.load_results().disputed[0].values == {"T5": 28.24, "T12": 28.66}


def test_suspect_points_of_figures_are_marked() -> None:
    f3, f4 = results.find_figure("F3"), results.find_figure("F4")
    assert [panel.name for panel in f3.panels] == list("abcdef")
    assert {panel.metric for panel in f3.panels} == {"a_sa"}
    assert (
        sum(len(curve.x) for one in (f3, f4) for panel in one.panels for curve in panel.series)
        == 184
    )
    assert not any(
        flag for panel in f3.panels for curve in panel.series for flag in curve.is_suspect
    )
    suspect = {panel.name: [curve.is_suspect for curve in panel.series] for panel in f4.panels}
    assert suspect["a"] == suspect["b"] == [(False,) * 8] * 2
    assert suspect["c"] == suspect["d"] == [(True, True, *(False,) * 6)] * 2


def test_curves_of_the_figures_decrease() -> None:
    for name in ("F3", "F4"):
        for panel in results.find_figure(name).panels:
            for curve in panel.series:
                values = curve.y if panel.metric != "loss" else [-value for value in curve.y]
                assert list(values) == sorted(values, reverse=True)


def test_accuracy_of_f4_is_at_least_the_lowest_in_the_ball() -> None:
    # extrapolated to rho = 0 its accuracy is 53.22 %
    (panel, *_) = results.find_figure("F4").panels
    right = [True] * 5322 + [False] * 4678
    for rho, accuracy in zip(panel.series[0].x, panel.series[0].y, strict=True):
        assert accuracy >= worst_accuracy(right, rho) - 1e-9


def test_corrected_cells_have_footnotes() -> None:
    paper_tables = list(tables.make_paper_tables())
    assert len(paper_tables) == 12
    assert sum(len(table.rows) for table in paper_tables) == 220
    t2, t5, t7, t12 = (paper_tables[number] for number in (1, 4, 6, 11))
    assert [row[1] for row in t2.rows[:2]] == ["-", "0.1†"]
    assert t2.notes == ("† corrected, printed 2.0: " + results.load_results().errata[0].why,)
    assert t5.rows[1][:2] == ("PGD+ours", "-†")
    assert "28.24‡" in t5.rows[8]
    assert t5.notes[1] == "‡ disputed: 28.24 in T5 and 28.66 in T12"
    assert any("28.66†" in row for row in t12.rows)
    assert any("-†" in row for row in t7.rows)
    assert t7.notes[0].startswith("† left out, printed 76.88")
    assert all("likely" in note for note in t7.notes)


def test_tables_render_as_latex_and_markdown() -> None:
    for table in tables.make_paper_tables():
        fragment = render_latex(table)
        assert fragment.isascii()
        assert table.to_markdown().count("\n| ") == 2 + len(table.rows)


def test_csv_and_json_have_all_rows_as_fractions() -> None:
    rows = list(csv.DictReader(tables.paper_to_csv().splitlines()))
    assert len(rows) == 220
    assert (rows[0]["table"], rows[0]["a_rob"], rows[0]["alpha_train"]) == ("T1", "0.9395", "")
    data = tables.paper_to_json()
    assert [len(table["rows"]) for table in data["tables"]] == [
        12,
        12,
        16,
        12,
        13,
        9,
        36,
        45,
        36,
        9,
        9,
        11,
    ]
    assert data["tables"][0]["rows"][0]["a_sa"] == 0.7485
    assert (
        sum(
            len(curve["y"])
            for one in data["figures"]
            for panel in one["panels"]
            for curve in panel["series"]
        )
        == 184
    )
    assert (len(data["errata"]), len(data["disputed"]), len(data["suspect_points"])) == (25, 1, 1)
    assert sum(bool(row["notes"]) for row in rows) == 24 + 2


def test_footnote_marks_repeat_after_the_last_sign() -> None:
    footnotes = Footnotes()
    marks = [footnotes.mark([str(number)]) for number in (0, 1, 2, 3, 4, 0)]
    assert marks == ["†", "‡", "§", "¶", "††", "†"]
    assert footnotes.notes()[4] == "†† 4"


def match_record(
    requested: str = "auto",
    alphas: tuple[float, ...] = (1.0, 2.0),
    **facts: Any,
) -> list[Match]:
    return match_rows(
        make_rows(
            [synthetic.make_record(synthetic.make_rows(60, alphas=alphas), alphas=alphas, **facts)]
        ),
        requested,
    )


def test_weighted_model_matches_the_row_of_its_alpha() -> None:
    at_1, at_2 = match_record(**MNIST)
    assert at_2.tables == ["T1", "T6", "T10"]
    values = {name: printed.value for name, printed in at_2.accuracies.items()}
    assert values == {"a_nat": 0.9897, "a_rob": 0.952, "a_sa": 0.6671, "a_tr": 0.6561}
    assert at_1.accuracies["a_sa"].value == 0.8634
    value, low, high = not_none(at_2.difference("a_rob"))
    own = not_none(at_2.row.accuracy("a_rob"))
    assert (value, low, high) == (
        own.value - 0.952,
        own.low - 0.952,
        own.high - 0.952,
    )


@pytest.mark.parametrize(
    "baseline", [{"alpha_train": 0.0}, {"alpha_train": None, "kernel": "none"}], ids=str
)
@pytest.mark.parametrize(("defense", "a_rob"), [("trades:beta=6", 0.9559), ("pgd", 0.9395)])
def test_unweighted_model_matches_the_baseline(
    defense: str, a_rob: float, baseline: dict[str, Any]
) -> None:
    (match, _) = match_record(**MNIST, defense=defense, **baseline)
    assert match.accuracies["a_rob"].value == a_rob
    assert not match.paper_rows[0].row.defense.endswith("+ours")


@pytest.mark.parametrize(
    ("attack", "a_rob", "a_sa"),
    [
        ("pgd:steps=20,step=0.003", 0.541, 0.3636),
        ("pgd:steps=100,step=0.003", 0.5244, 0.3638),
        ("pgd-margin:steps=20,step=0.003", 0.4895, 0.257),
        ("pgd:steps=20,step=0.003,loss=margin", 0.4895, 0.257),
        ("authors-eval:steps=20,step=0.0031", 0.541, 0.3636),
    ],
)
def test_attack_must_have_the_same_loss_and_steps(attack: str, a_rob: float, a_sa: float) -> None:
    (match, _) = match_record(**{**CIFAR, "attack": attack})
    assert (match.accuracies["a_rob"].value, match.accuracies["a_sa"].value) == (a_rob, a_sa)


@pytest.mark.parametrize(
    "other",
    [
        {"eps": 0.04},
        {"norm": "l2"},
        {"attack": "apgd-ce:steps=20"},
        {"attack": "pgd:steps=4,step=0.003"},
        {"attack": "pgd:steps=20,loss=dlr"},
        {"attack": "worst"},
        {"alpha_train": 3.0},
        {"kernel": "mail"},
        {"defense": "mart"},
        {"dataset": "cifar100"},
        {"dataset": "digits"},
        {"attack": "pgd:steps=20,step=0.003,targeted=true"},
        {"attack": "authors-eval:steps=20,step=0.0031,start=none"},
        {"kernel": "exp:clip=1"},
    ],
    ids=str,
)
def test_other_settings_have_no_match(other: dict[str, float | str]) -> None:
    assert match_record(**{**CIFAR, **other}) == []


@pytest.mark.parametrize(
    ("other", "departures"),
    [
        ({}, ()),
        ({"eps": 8 / 255}, ("ε 0.0314 instead of 0.031",)),
        ({"eps": 4 / 255}, ("ε 0.0157 instead of 0.016",)),
        ({"eps": 0.03101}, ("ε 0.03101 instead of 0.031",)),
        ({"attack": "pgd:steps=10,step=0.003"}, ("10 steps instead of 20",)),
        ({"attack": "pgd:steps=60,step=0.003"}, ("60 steps instead of 100",)),
        (
            {"eps": 8 / 255, "attack": "pgd-margin:steps=10,step=0.003"},
            ("10 steps instead of 20", "ε 0.0314 instead of 0.031"),
        ),
    ],
    ids=str,
)
def test_a_near_row_is_shown_with_its_departures(
    other: dict[str, Any], departures: tuple[str, ...]
) -> None:
    found = match_record(**{**CIFAR, **other})
    assert [match.departures for match in found] == [departures] * 2
    table = tables.make_match_table(found)
    notes = [note for note in table.notes if "departs in" in note]
    assert [note.partition(": ")[2] for note in notes] == [", ".join(departures)][
        : bool(departures)
    ]
    assert table.rows[2][0] == "difference" + (notes[0][0] if notes else "")
    own_eps, paper_eps = table.rows[0][3], table.rows[1][3]
    assert (own_eps != paper_eps) == ("eps" in other)
    assert {
        row["departs_in"] for row in csv.DictReader(tables.matches_to_csv(found).splitlines())
    } == {"; ".join(departures)}
    assert tables.matches_to_json(found)[0]["departs_in"] == list(departures)


def test_an_exact_row_is_preferred_to_a_near_one() -> None:
    (match, _) = match_record(**{**CIFAR, "attack": "pgd:steps=100,step=0.003"})
    assert (match.departures, match.tables) == ((), ["T9"])
    (nearest, _) = match_record("T4", **{**CIFAR, "attack": "pgd:steps=30,step=0.003"})
    assert nearest.departures == ("30 steps instead of 20",)


@pytest.mark.parametrize(
    ("requested", "tables_of_match"),
    [("auto", ["T1", "T6", "T10"]), ("mnist", ["T1", "T6", "T10"]), ("T6", ["T6"])],
)
def test_a_table_can_be_named(requested: str, tables_of_match: list[str]) -> None:
    assert match_record(requested, **MNIST)[1].tables == tables_of_match
    assert match_record("T2", **MNIST) == []
    own = {**MNIST, "dataset": "arrays:path=mnist.npz"}
    assert len(match_record("T1", **own)) == 2


def test_every_table_of_the_paper_is_a_value_of_the_setting() -> None:
    names = [table.name for table in results.load_results().tables]
    assert get_args(PaperTable) == ("auto", *results.DATASETS, "all", *names)
    assert [name for name in names if not tables.has_table(name)] == []
    assert not any(map(tables.has_table, ("T13", "auto", "all", None)))


@pytest.mark.parametrize("name", ["T2", "T9"])
def test_a_named_table_is_one_of_all(name: str) -> None:
    (table,) = tables.make_paper_tables(name)
    assert table.title.startswith(f"{name}: ")
    rows = list(csv.DictReader(tables.paper_to_csv(name).splitlines()))
    assert len(rows) == len(table.rows)
    assert {row["table"] for row in rows} == {name}
    assert [one["name"] for one in tables.paper_to_json(name)["tables"]] == [name]


@pytest.mark.parametrize(
    ("other", "reason"),
    [
        ({"alpha_train": 3.0}, "α_train 3 instead of none, 0.1, 1, 1.5 or 2"),
        ({"eps": 0.05}, "ε 0.05 instead of 0.0078, 0.016 or 0.031"),
        ({"norm": "l2"}, "norm l2 instead of linf"),
        ({"attack": "apgd-ce:steps=20"}, "attack apgd-ce:steps=20 instead of PGD or PGD-margin"),
        ({"attack": "pgd:steps=1000,step=0.003"}, "1000 steps instead of 20 or 100"),
        ({"kernel": "mail"}, "training kernel mail instead of exp"),
        ({"dataset": "cifar100"}, "dataset cifar100 instead of cifar10"),
        ({"defense": "mart", "eps": 0.05}, None),
        ({"norm": "l2", "eps": 0.5}, None),
    ],
    ids=str,
)
def test_the_only_failed_condition_is_named(other: dict[str, Any], reason: str | None) -> None:
    found = synthetic.make_record(synthetic.make_rows(60), **{**CIFAR, **other})
    expected = {} if reason is None else {reason: ["digits-trades-a2-s0"]}
    assert explain_mismatches([found], "auto") == expected


def match_changed(requested: str = "auto", **changes: Any) -> list[Match]:
    """Match a record of the paper's settings with some facts replaced."""
    found = synthetic.make_record(synthetic.make_rows(60, alphas=(2.0,)), alphas=(2.0,), **MNIST)
    parts = {
        name: msgspec.structs.replace(getattr(found, name), **value)
        if isinstance(value, dict)
        else value
        for name, value in changes.items()
    }
    return match_rows(make_rows([msgspec.structs.replace(found, **parts)]), requested)


@pytest.mark.parametrize(
    "other",
    [{"kernel": "exp-logit"}, {"dataset": {"split": "train"}}, {"attack": {"of": ["0", "1"]}}],
    ids=str,
)
def test_other_measurements_have_no_match(
    other: dict[str, Any],
) -> None:
    assert len(match_changed()) == 1
    assert match_changed(**other) == []


@pytest.mark.parametrize("other", OTHER_DATASETS)
def test_other_built_in_dataset_has_no_match(other: str) -> None:
    for requested in ("mnist", "auto"):
        assert match_changed(requested, dataset={"name": other}) == []


def test_every_built_in_dataset_is_classified() -> None:
    ours = {
        entry.name
        for kind, owned in load_plugins().registry
        if kind == "dataset" and owned.owner == "wmr-cli"
        for entry in [owned.entry]
    }
    assert ours == {*results.DATASETS, *OTHER_DATASETS, "folder", "arrays"}


def test_dataset_can_be_named_for_own_data() -> None:
    own: dict[str, Any] = {**MNIST, "dataset": "arrays:path=mnist.npz"}
    assert match_record(**own) == []
    assert len(match_record("mnist", **own)) == 2
    assert match_record("cifar10", **MNIST) == []  # built-in MNIST is never CIFAR-10


def test_other_alpha_still_matches_the_plain_accuracies() -> None:
    (match,) = match_record(**MNIST, alphas=(7.0,))
    assert match.accuracies["a_sa"].value is None
    assert match.accuracies["a_nat"].value == 0.9897
    assert match.difference("a_sa") is None


def test_disputed_and_missing_values_have_no_difference() -> None:
    tiny: dict[str, Any] = {
        "dataset": "tiny-imagenet",
        "eps": 0.016,
        "attack": "pgd:steps=10,step=0.0015",
        "model": "resnet50",
    }
    (match, _) = match_record(**tiny, alpha_train=1.5)
    assert match.accuracies["a_rob"].values == {28.24: ("T5",), 28.66: ("T12",)}
    assert match.difference("a_rob") is None
    assert match.difference("a_nat") is not None
    (gone, _) = match_record(**{**CIFAR, "eps": 0.0078, "defense": "pgd"}, alpha_train=0.05)
    assert gone.accuracies["a_rob"].value is None
    assert "76.88" in gone.accuracies["a_rob"].reasons[0]
    table = tables.make_match_table([match, gone])
    assert "28.24 or 28.66†" in table.rows[1]
    assert "-‡" in table.rows[4]


def list_differences(
    training: dict[str, float | list[int] | str | None] | None = None, **facts: Any
) -> list[str]:
    """Return the differences of a record except the number of its images."""
    (match, _) = match_record(
        **{**MNIST, **facts, "training": {**MNIST["training"], **(training or {})}}
    )
    assert match.setting_differences[-1] == IMAGES
    return list(match.setting_differences[:-1])


def test_settings_of_the_paper_are_not_listed() -> None:
    assert list_differences() == []
    (match, _) = match_record(**CIFAR)
    assert match.setting_differences == (IMAGES,)
    step = scale_exactly(0.003, 0.0078, 0.031)
    (smaller, _) = match_record(
        **{**CIFAR, "eps": 0.0078, "attack": f"pgd:steps=20,step={format_number(step)}"}
    )
    assert smaller.setting_differences == (IMAGES,)  # the scaled step of `wmr evaluate --eps`


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        ({"model": "resnet18"}, ["network resnet18 for small-cnn"]),
        (
            {"model": "small-cnn:mean=0.1,std=0.3"},
            ["network small-cnn:mean=0.1,std=0.3 for small-cnn"],
        ),
        ({"model": "my net, (x"}, ["network my net, (x for small-cnn"]),
        ({"defense": "trades:beta=1"}, ["beta 1 for 6"]),
        ({"defense": "trades:beta=6.0,terms=adv"}, ["terms adv"]),
        ({"weights": "best.safetensors", "epoch": 7}, ["best weights for the last"]),
        ({"weights": "ema.safetensors"}, ["EMA weights for the last"]),
        ({"epoch": 40}, ["weights after 40 epochs for 100"]),
        ({"attack": "pgd:steps=40,step=0.3"}, ["step size 0.3 for 0.01"]),
        ({"attack": "pgd:steps=40"}, ["step size default for 0.01"]),
        ({"attack": "pgd:steps=40,step=0.01,start=gauss:0.001"}, ["start gauss:0.001 for uniform"]),
        ({"attack": "pgd:steps=40,step=0.01,keep=best"}, ["keep best for last"]),
        ({"attack": "authors-eval:steps=40,step=0.01"}, ["restarts 1 for 10"]),
        ({"config": None}, ["training settings not recorded"]),
    ],
    ids=str,
)
def test_differences_of_weights_and_attack(facts: dict[str, Any], expected: list[str]) -> None:
    assert list_differences(**facts) == expected


@pytest.mark.parametrize(
    ("training", "expected"),
    [
        ({"epochs": 100, "eps": 0.2}, ["training ε 0.2 for 0.3"]),
        (
            {"steps": 1, "step_size": 0.3},
            ["training steps 1 for 40", "training step size 0.3 for 0.01"],
        ),
        ({"optimizer": "adam", "momentum": 0.5}, ["optimizer adam for sgd"]),
        ({"schedule": "cosine", "milestones": [], "gamma": 1.0}, ["schedule cosine for multistep"]),
        ({"milestones": [30, 60]}, ["milestones 30/60 for 55/75/90"]),
        ({"weight_grad": "none"}, ["weight gradient none for both"]),
        ({"normalize": "batch"}, ["weight normalisation batch for none"]),
        ({"max_weight": 2.0}, ["largest weight 2 for none"]),
        ({"batch_size": 64, "lr": 0.1}, ["batch size 64 for 128", "learning rate 0.1 for 0.01"]),
        ({"seed": 3, "select": "none", "validate_every": 5, "preset": None}, []),
    ],
    ids=str,
)
def test_differences_of_training_settings(
    training: dict[str, float | list[int] | str | None], expected: list[str]
) -> None:
    assert list_differences(training) == expected


def test_differences_of_epochs_and_restarts() -> None:
    assert list_differences({"epochs": 7}, epoch=7) == ["7 epochs for 100"]
    (match,) = match_changed(attack={"restarts": 10})
    assert match.setting_differences[0] == "restarts 10 for 1"
    (note,) = tables.make_match_table([match]).notes
    assert "digits-trades-a2-s0" in note
    assert note.endswith(f"restarts 10 for 1, {IMAGES}")


def test_match_table_has_own_row_paper_row_and_difference() -> None:
    found = match_record(**MNIST)
    table = tables.make_match_table(found)
    assert [row[0] for row in table.rows[:3]] == [
        "digits-trades-a2-s0",
        f"paper: TRADES+ours, α 2 ({', '.join(found[0].tables)})",
        "difference",
    ]
    assert [row[1:5] for row in table.rows[:3]] == [
        ("mnist", "pgd:steps=40,step=0.01", "0.3", "1"),
        ("mnist", "40-PGD", "0.3", "1"),
        ("mnist", "", "0.3", "1"),
    ]
    assert table.rules_after == {2, 5}
    csv_rows = list(csv.DictReader(tables.matches_to_csv(found).splitlines()))
    assert float(csv_rows[1]["paper"]) == 0.952
    assert float(csv_rows[1]["difference"]) == not_none(found[0].difference("a_rob"))[0]
    (first, _) = tables.matches_to_json(found)
    assert first["a_rob"]["difference"]["value"] == not_none(found[0].difference("a_rob"))[0]


def test_results_have_not_changed() -> None:
    """Update the hash together with a correction of the results."""
    content = msgspec.json.encode(results.load_results(), order="deterministic")
    assert hashlib.sha256(content).hexdigest()[:16] == "3faadaaf5d5c95b6"

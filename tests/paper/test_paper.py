"""The paper's numbers: complete, corrected where they are known to be wrong, and beside a user's own."""

import csv
import hashlib
from typing import Any

import msgspec
import pytest

from support import synthetic
from support.typed import not_none
from wmr_cli.config import resolve
from wmr_cli.errors import BadFile
from wmr_cli.measures import worst_accuracy
from wmr_cli.paper import results, tables
from wmr_cli.paper.errata import Footnotes, load_corrected_rows
from wmr_cli.paper.matching import OTHERS, Match, match_rows
from wmr_cli.plugins import installed
from wmr_cli.reporting.rows import make_rows
from wmr_cli.reporting.tables.latex import latex
from wmr_cli.spec import format_number, scale_exactly


def as_in_the_paper(dataset: str) -> dict[str, Any]:
    result: dict[str, Any] = msgspec.to_builtins(resolve({"preset": f"paper/{dataset}"}))
    return result


MNIST: dict[str, Any] = {
    "dataset": "mnist", "eps": 0.3, "attack": "pgd:steps=40,step=0.01", "training": as_in_the_paper("mnist"), "epoch": 100,
}  # fmt: skip
CIFAR: dict[str, Any] = {
    "dataset": "cifar10", "eps": 0.031, "attack": "pgd:steps=20,step=0.003", "model": "resnet18", "defense": "trades:beta=5",
    "training": as_in_the_paper("cifar10"), "epoch": 100,
}  # fmt: skip


def test_everything_the_paper_prints_is_there() -> None:
    assert results.load_results().counts == results.counts(results.load_results()) == {
        "tables": 12, "rows": 220, "values": 590, "figures": 2, "panels": 10, "series": 32, "points": 184,
        "errata": 25, "disputed": 1, "suspect_points": 8,
    }  # fmt: skip


def test_results_that_are_not_complete_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(results, "counts", lambda found: {})
    results.load_results.cache_clear()
    with pytest.raises(BadFile, match="not complete"):
        results.load_results()
    results.load_results.cache_clear()


def test_every_misprint_is_where_the_errata_say() -> None:
    rows = {
        (table.name, row.line): row for table in results.load_results().tables for row in table.rows
    }
    for erratum in results.load_results().errata:
        assert getattr(rows[erratum.table, erratum.line], erratum.field) == erratum.printed
    fixed = {(made_of.table, made_of.row.line): made_of for made_of in load_corrected_rows()}
    for erratum in results.load_results().errata:
        made_of = fixed[erratum.table, erratum.line]
        assert getattr(made_of.row, erratum.field) == erratum.corrected
        assert str(erratum.printed) in made_of.reasons[erratum.field]


def test_nothing_else_is_changed() -> None:
    printed_rows = [row for table in results.load_results().tables for row in table.rows]
    changed = [
        made_of
        for made_of, row in zip(load_corrected_rows(), printed_rows, strict=True)
        if made_of.row != row
    ]
    assert (
        len(changed)
        == len({(erratum.table, erratum.line) for erratum in results.load_results().errata})
        == 24
    )


def test_tables_agree_with_each_other_but_for_the_disputed_value() -> None:
    found: dict[tuple[object, ...], set[float]] = {}
    for made_of in load_corrected_rows():
        row = made_of.row
        for share in results.SHARES:
            alpha = row.alpha_test if share in ("a_sa", "a_tr") else None
            key = (
                made_of.dataset,
                row.defense,
                row.alpha_train,
                row.eps_test,
                row.attack,
                share,
                alpha,
            )
            found.setdefault(key, set()).update(
                {value} if (value := getattr(row, share)) is not None else ()
            )
    conflicts = [key for key, values in found.items() if len(values) > 1]
    assert conflicts == [("tiny-imagenet", "TRADES+ours", 1.5, 0.016, "10-PGD", "a_rob", None)]
    assert results.load_results().disputed[0].values == {"T5": 28.24, "T12": 28.66}


def test_figures_are_served_with_suspect_points_marked() -> None:
    f3, f4 = results.figure("F3"), results.figure("F4")
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


def test_curves_of_the_figures_fall_with_alpha_and_with_rho() -> None:
    for name in ("F3", "F4"):
        for panel in results.figure(name).panels:
            for curve in panel.series:
                values = curve.y if panel.metric != "loss" else [-value for value in curve.y]
                assert list(values) == sorted(values, reverse=True)


def test_the_accuracy_of_f4_lies_above_the_least_accuracy_in_the_ball() -> None:
    """Its accuracy at rho -> 0 is 53.22 %, by the line through its points."""
    (panel, *_) = results.figure("F4").panels
    right = [True] * 5322 + [False] * 4678
    for rho, accuracy in zip(panel.series[0].x, panel.series[0].y, strict=True):
        assert accuracy >= worst_accuracy(right, rho) - 1e-9


def test_the_tables_are_shown_with_marks_and_reasons() -> None:
    sheets = list(tables.make_paper_tables())
    assert len(sheets) == 12
    assert sum(len(sheet.rows) for sheet in sheets) == 220
    t2, t5, t7, t12 = (sheets[number] for number in (1, 4, 6, 11))
    assert [row[1] for row in t2.rows[:2]] == ["-", "0.1†"]
    assert t2.notes == ("† corrected, printed 2.0: " + results.load_results().errata[0].why,)
    assert t5.rows[1][:2] == ("PGD+ours", "-†")
    assert "28.24‡" in t5.rows[8]
    assert t5.notes[1] == "‡ disputed: 28.24 in T5 and 28.66 in T12"
    assert any("28.66†" in row for row in t12.rows)
    assert any("-†" in row for row in t7.rows)
    assert t7.notes[0].startswith("† left out, printed 76.88")
    assert all("likely" in note for note in t7.notes)


def test_the_tables_fit_into_latex_and_markdown() -> None:
    for sheet in tables.make_paper_tables():
        fragment = latex(sheet)
        assert fragment.isascii()
        assert sheet.to_markdown().count("\n| ") == 2 + len(sheet.rows)


def test_csv_and_json_hold_all_rows_as_fractions() -> None:
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


def test_footnotes_go_on_when_marks_run_out() -> None:
    footnotes = Footnotes()
    marks = [footnotes.mark([str(number)]) for number in (0, 1, 2, 3, 4, 0)]
    assert marks == ["†", "‡", "§", "¶", "††", "†"]
    assert footnotes.notes()[4] == "†† 4"


def matches(
    asked: str = "auto",
    alphas: tuple[float, ...] = (1.0, 2.0),
    **facts: Any,
) -> list[Match]:
    return match_rows(
        make_rows([synthetic.record(synthetic.rows(60, alphas=alphas), alphas=alphas, **facts)]),
        asked,
    )


def test_a_weighted_model_meets_the_row_of_its_alpha() -> None:
    at_1, at_2 = matches(**MNIST)
    assert at_2.tables == ["T1", "T6", "T10"]
    shares = {name: share.value for name, share in at_2.shares.items()}
    assert shares == {"a_nat": 0.9897, "a_rob": 0.952, "a_sa": 0.6671, "a_tr": 0.6561}
    assert at_1.shares["a_sa"].value == 0.8634
    value, low, high = not_none(at_2.difference("a_rob"))
    share = at_2.line.accuracy("a_rob")
    assert (value, low, high) == (
        not_none(share).value - 0.952,
        not_none(share).low - 0.952,
        not_none(share).high - 0.952,
    )


@pytest.mark.parametrize(
    "baseline", [{"alpha_train": 0.0}, {"alpha_train": None, "kernel": "none"}], ids=str
)
@pytest.mark.parametrize(("defense", "a_rob"), [("trades:beta=6", 0.9559), ("pgd", 0.9395)])
def test_no_weights_are_the_baseline(defense: str, a_rob: float, baseline: dict[str, Any]) -> None:
    (match, _) = matches(**MNIST, defense=defense, **baseline)
    assert match.shares["a_rob"].value == a_rob
    assert not match.rows[0].row.defense.endswith("+ours")


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
def test_the_attack_must_be_of_the_same_kind_with_as_many_steps(
    attack: str, a_rob: float, a_sa: float
) -> None:
    (match, _) = matches(**{**CIFAR, "attack": attack})
    assert (match.shares["a_rob"].value, match.shares["a_sa"].value) == (a_rob, a_sa)


@pytest.mark.parametrize(
    "other",
    [
        {"eps": 8 / 255},
        {"norm": "l2"},
        {"attack": "apgd-ce:steps=20"},
        {"attack": "pgd:steps=30,step=0.003"},
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
def test_anything_else_has_no_row(other: dict[str, float | str]) -> None:
    assert matches(**{**CIFAR, **other}) == []


def changed(asked: str = "auto", **changes: Any) -> list[Match]:
    """What the paper has for a record that was measured otherwise."""
    found = synthetic.record(synthetic.rows(60, alphas=(2.0,)), alphas=(2.0,), **MNIST)
    parts = {
        name: msgspec.structs.replace(getattr(found, name), **value)
        if isinstance(value, dict)
        else value
        for name, value in changes.items()
    }
    return match_rows(make_rows([msgspec.structs.replace(found, **parts)]), asked)


@pytest.mark.parametrize(
    "other",
    [{"kernel": "exp-logit"}, {"dataset": {"split": "train"}}, {"attack": {"of": ["0", "1"]}}],
    ids=str,
)
def test_what_was_measured_otherwise_has_no_row(
    other: dict[str, Any],
) -> None:
    assert len(changed()) == 1
    assert changed(**other) == []


@pytest.mark.parametrize("other", OTHERS)
def test_another_known_data_set_is_not_taken_for_the_papers(other: str) -> None:
    for asked in ("mnist", "auto"):
        assert changed(asked, dataset={"name": other}) == []


def test_every_data_set_of_ours_is_the_papers_or_another_or_your_own() -> None:
    ours = {
        entry.name
        for kind, owned in installed().registry
        if kind == "dataset" and owned.owner == "wmr-cli"
        for entry in [owned.entry]
    }
    assert ours == {*results.DATASETS, *OTHERS, "folder", "arrays"}


def test_a_data_set_can_be_named_for_data_of_your_own() -> None:
    own: dict[str, Any] = {**MNIST, "dataset": "arrays:path=mnist.npz"}
    assert matches(**own) == []
    assert len(matches("mnist", **own)) == 2
    assert matches("cifar10", **MNIST) == []  # what is known to be MNIST is not CIFAR


def test_an_alpha_that_the_paper_does_not_have_still_meets_the_plain_accuracies() -> None:
    (match,) = matches(**MNIST, alphas=(7.0,))
    assert match.shares["a_sa"].value is None
    assert match.shares["a_nat"].value == 0.9897
    assert match.difference("a_sa") is None


def test_disputed_and_missing_values_have_no_difference() -> None:
    tiny: dict[str, Any] = {
        "dataset": "tiny-imagenet",
        "eps": 0.016,
        "attack": "pgd:steps=10,step=0.0015",
        "model": "resnet50",
    }
    (match, _) = matches(**tiny, alpha_train=1.5)
    assert match.shares["a_rob"].values == {28.24: ("T5",), 28.66: ("T12",)}
    assert match.difference("a_rob") is None
    assert match.difference("a_nat") is not None
    (gone, _) = matches(**{**CIFAR, "eps": 0.0078, "defense": "pgd"}, alpha_train=0.05)
    assert gone.shares["a_rob"].value is None
    assert "76.88" in gone.shares["a_rob"].reasons[0]
    (sheet,) = [tables.make_match_table([match, gone])]
    assert "28.24 or 28.66†" in sheet.rows[1]
    assert "-‡" in sheet.rows[4]


IMAGES = "60 test images for 10000"


def departed(
    training: dict[str, float | list[int] | str | None] | None = None, **facts: Any
) -> list[str]:
    """All that is said of a record, but for its few images."""
    (match, _) = matches(
        **{**MNIST, **facts, "training": {**MNIST["training"], **(training or {})}}
    )
    assert match.setting_differences[-1] == IMAGES
    return list(match.setting_differences[:-1])


def test_what_is_as_in_the_paper_is_not_mentioned() -> None:
    assert departed() == []
    (match, _) = matches(**CIFAR)
    assert match.setting_differences == (IMAGES,)
    step = scale_exactly(0.003, 0.0078, 0.031)
    (smaller, _) = matches(
        **{**CIFAR, "eps": 0.0078, "attack": f"pgd:steps=20,step={format_number(step)}"}
    )
    assert smaller.setting_differences == (IMAGES,)  # the step that `wmr evaluate --eps` takes


@pytest.mark.parametrize(
    ("facts", "said"),
    [
        ({"model": "resnet18"}, ["network resnet18 for small-cnn"]),
        (
            {"model": "small-cnn:mean=0.1,std=0.3"},
            ["network small-cnn:mean=0.1,std=0.3 for small-cnn"],
        ),
        ({"model": "my net, (x"}, ["network my net, (x for small-cnn"]),
        ({"defense": "trades:beta=1"}, ["beta 1 for 6"]),
        ({"defense": "trades:beta=6.0,terms=adv"}, ["terms adv"]),
        ({"weights": "best.safetensors", "epoch": 7}, ["the best weights for the last"]),
        ({"weights": "ema.safetensors"}, ["averaged weights for the last"]),
        ({"epoch": 40}, ["weights after 40 epochs for 100"]),
        ({"attack": "pgd:steps=40,step=0.3"}, ["step size 0.3 for 0.01"]),
        ({"attack": "pgd:steps=40"}, ["step size 0.01875 for 0.01"]),
        ({"attack": "pgd:steps=40,step=0.01,start=gauss:0.001"}, ["start gauss:0.001 for uniform"]),
        ({"attack": "pgd:steps=40,step=0.01,keep=best"}, ["the best step for the last"]),
        ({"attack": "authors-eval:steps=40,step=0.01"}, ["restarts 1 for 10"]),
        ({"config": None}, ["settings of training not recorded"]),
    ],
    ids=str,
)
def test_departures_of_weights_and_attack_are_told(facts: dict[str, Any], said: list[str]) -> None:
    assert departed(**facts) == said


@pytest.mark.parametrize(
    ("training", "said"),
    [
        ({"epochs": 100, "eps": 0.2}, ["ε of training 0.2 for 0.3"]),
        (
            {"steps": 1, "step_size": 0.3},
            ["steps of training 1 for 40", "step size of training 0.3 for 0.01"],
        ),
        ({"optimizer": "adam", "momentum": 0.5}, ["optimizer adam for sgd"]),
        ({"schedule": "cosine", "milestones": [], "gamma": 1.0}, ["schedule cosine for multistep"]),
        ({"milestones": [30, 60]}, ["milestones 30/60 for 55/75/90"]),
        ({"weight_grad": "none"}, ["gradient of weights none for both"]),
        ({"normalize": "batch"}, ["weights normalised by batch for none"]),
        ({"max_weight": 2.0}, ["largest weight 2 for none"]),
        ({"batch_size": 64, "lr": 0.1}, ["batch size 64 for 128", "learning rate 0.1 for 0.01"]),
        ({"seed": 3, "select": "none", "validate_every": 5, "preset": None}, []),
    ],
    ids=str,
)
def test_departures_of_training_are_told(
    training: dict[str, float | list[int] | str | None], said: list[str]
) -> None:
    assert departed(training) == said


def test_a_short_training_and_restarts_are_told() -> None:
    assert departed({"epochs": 7}, epoch=7) == ["7 epochs for 100"]
    (match,) = changed(attack={"restarts": 10})
    assert match.setting_differences[0] == "restarts 10 for 1"
    (note,) = tables.make_match_table([match]).notes
    assert note == f"beside the paper, digits-trades-a2-s0: restarts 10 for 1, {IMAGES}"


def test_yours_the_papers_and_the_difference_stand_below_each_other() -> None:
    found = matches(**MNIST)
    sheet = tables.make_match_table(found)
    assert [row[0] for row in sheet.rows[:3]] == [
        "digits-trades-a2-s0",
        f"paper: TRADES+ours, α 2 ({', '.join(found[0].tables)})",
        "difference",
    ]
    assert [row[1:5] for row in sheet.rows[:3]] == [
        ("mnist", "pgd:steps=40,step=0.01", "0.3", "1"), ("mnist", "40-PGD", "0.3", "1"), ("mnist", "", "0.3", "1"),
    ]  # fmt: skip
    assert sheet.rules_after == {2, 5}
    lines_of_csv = list(csv.DictReader(tables.matches_to_csv(found).splitlines()))
    assert float(lines_of_csv[1]["paper"]) == 0.952
    assert float(lines_of_csv[1]["difference"]) == not_none(found[0].difference("a_rob"))[0]
    (first, _) = tables.matches_to_json(found)
    assert first["a_rob"]["difference"]["value"] == not_none(found[0].difference("a_rob"))[0]


def test_the_results_are_the_ones_that_were_checked() -> None:
    """Whoever corrects a number changes this line with it."""
    content = msgspec.json.encode(results.load_results(), order="deterministic")
    assert hashlib.sha256(content).hexdigest()[:16] == "cd29336c954ec56e"

"""Cells of the main table and of the tables after it, and CSV."""

import csv
import io
from statistics import fmean

import msgspec
import pytest
from rich.console import Console

from wmr_cli.measures import Estimate, spread, wilson
from wmr_cli.reporting.rows import make_rows
from wmr_cli.reporting.tables import main
from wmr_cli.reporting.tables.details import make_detail_tables
from wmr_cli.reporting.tables.formatting import format_estimate, format_training_spread
from wmr_cli.reporting.tables.text_table import TextTable
from wmr_cli.storage.records import (
    AlphaRow,
    AttackFacts,
    CheckpointFacts,
    ClassAlphaRow,
    ClassRow,
    DatasetFacts,
    DroRow,
    Record,
    RepeatAlphaRow,
    RepeatRow,
    Threat,
)

PLAIN = Record(
    id="0" * 16,
    created="2026-01-01T00:00:00+00:00",
    wmr="0.1.0",
    kernel="exp",
    device="cpu",
    precision="32",
    checkpoint=CheckpointFacts(
        path="runs/x; y/last.safetensors",
        sha256="0",
        model="m",
        defense="d",
        kernel="exp",
        alpha_train=2.0,
        seed=0,
    ),
    dataset=DatasetFacts(name="digits", split="test", n=1000, sha256="0"),
    threat=Threat(norm="linf", eps=0.1),
    attack=AttackFacts(spec="pgd:steps=2", seed=0, restarts=1),
    a_nat=wilson(900, 1000),
    a_rob=wilson(500, 1000),
    by_alpha=[
        AlphaRow(alpha_test=alpha, a_sa=Estimate(0.4, 0.35, 0.45, 800.0), a_tr=None)
        for alpha in (1.0, 2.0)
    ],
    seconds=1.0,
    images_per_second=4.0,
    versions={},
    plugins={},
    config={},
)

DRO_ROW = DroRow(
    rho=0.1,
    attack_loss="ce",
    loss=1.2345,
    accuracy=0.4321,
    worst_accuracy=0.2,
    ess=833.3,
    zero_weights=17,
    unique=True,
)


def class_row(label: int, hits: int, name: str | None = None) -> ClassRow:
    at_alphas = [
        ClassAlphaRow(alpha_test=alpha, a_sa=Estimate(0.25, 0.2, 0.3, 4.0), share=fraction)
        for alpha, fraction in ((1.0, 0.1), (2.0, 0.2))
    ]
    attacked = wilson(hits, 100)
    return ClassRow(
        label=label,
        name=name,
        n=100,
        a_nat=wilson(90, 100),
        a_rob=attacked,
        joint=wilson(hits, 100, num_intervals=3),
        by_alpha=at_alphas,
    )


def repeat(seed: int, a_rob: float, a_sa: float) -> RepeatRow:
    return RepeatRow(
        seed=seed, a_rob=a_rob, by_alpha=[RepeatAlphaRow(alpha_test=2.0, a_sa=a_sa, a_tr=None)]
    )


CLASSES = msgspec.structs.replace(
    PLAIN, per_class=[class_row(0, 60), class_row(1, 30, "[b]fox|"), class_row(2, 50)]
)
REPEATED = msgspec.structs.replace(PLAIN, repeats=[repeat(0, 0.50, 0.40), repeat(1, 0.52, 0.44)])


def test_plain_record_has_no_detail_tables() -> None:
    assert list(make_detail_tables([PLAIN])) == []


def test_rounding_errors_of_weighted_sums_are_not_shown() -> None:
    row = msgspec.structs.replace(
        DRO_ROW, rho=0.0, accuracy=0.6174999999999999, worst_accuracy=0.6175
    )
    (table,) = make_detail_tables([msgspec.structs.replace(PLAIN, dro=[row])])
    cells = dict(zip(table.headings, table.rows[0], strict=True))
    assert (
        cells["accuracy"],
        cells["worst accuracy"],
        format_estimate(wilson(247, 400)).split()[0],
    ) == ("61.8",) * 3


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ((0.0, 1.0), "50.0 ± 70.7 (no interval)"),
        ((1.0, 1.0), "100 (all correct)"),
        ((0.0, 0.0), "0 (none correct)"),
        ((0.25, 0.25), "25.0 (no interval)"),
    ],
)
def test_degenerate_estimates_have_no_interval(values: tuple[float, float], expected: str) -> None:
    estimate = Estimate(fmean(values), fmean(values), fmean(values), 1.0)
    assert format_training_spread(estimate, spread(values)) == expected
    assert format_estimate(estimate) == expected.replace(" ± 70.7", "")


def test_worst_cases_of_all_records_share_a_table() -> None:
    one = msgspec.structs.replace(PLAIN, dro=[DRO_ROW])
    (table,) = make_detail_tables([one, PLAIN, one])
    assert len(table.rows) == 2
    cells = dict(zip(table.headings, table.rows[0], strict=True))
    assert cells == {
        "run": "x; y",
        "attack": "pgd:steps=2",
        "ε": "0.1",
        "loss": "ce",
        "ρ": "0.1",
        "worst loss": "1.234",
        "accuracy": "43.2",
        "worst accuracy": "20.0",
        "zero weights": "17",
        "ESS": "833",
    }


def test_worst_class_has_a_joint_interval() -> None:
    (table,) = make_detail_tables([CLASSES])
    assert ["worst" in row[3] for row in table.rows] == [False, True, False]
    assert table.rows[1][0] == "1 [b]fox|"
    joint = format_estimate(wilson(30, 100, num_intervals=3))
    assert table.rows[1][3] == f"{format_estimate(wilson(30, 100))}; worst {joint}"
    assert "A_sa at α 2" in table.headings
    assert {row[5] for row in table.rows} == {"20.0"}
    assert {row[6] for row in table.rows} == {"4 (few)"}


def test_without_attack_the_worst_class_is_that_of_clean_images() -> None:
    rows = [
        msgspec.structs.replace(row, a_rob=None, joint=row.a_nat, by_alpha=[])
        for row in CLASSES.per_class
    ]
    (table,) = make_detail_tables([msgspec.structs.replace(CLASSES, per_class=rows)])
    assert ["worst" in row[2] for row in table.rows] == [True, False, False]
    assert {row[3:] for row in table.rows} == {("-", "-", "-", "-")}


def test_markdown_keeps_user_text_in_its_cell() -> None:
    (table,) = make_detail_tables([CLASSES])
    lines = [line for line in table.to_markdown().splitlines() if line.startswith("|")]
    assert len(lines) == 2 + 3
    assert {line.replace("\\|", "").count("|") for line in lines} == {len(table.headings) + 1}
    assert table.to_rich_table().row_count == 3


def render(table: TextTable, width: int) -> str:
    stream = io.StringIO()
    Console(file=stream, width=width).print(table.to_rich_table(width))
    return stream.getvalue()


def test_narrow_terminal_moves_shared_columns_and_intervals() -> None:
    everything = msgspec.structs.replace(
        REPEATED, dro=[DRO_ROW, DRO_ROW], per_class=CLASSES.per_class
    )
    for table in (main.make_table([everything]), *make_detail_tables([everything])):
        wide, narrow = (render(table, width).splitlines() for width in (250, 84))
        for cell in (cell for row in table.rows for cell in row if not cell.startswith("pgd")):
            parts = (
                cell.replace(" [", "; [").split("; ")
                if "[b]" not in cell and cell != "x; y"
                else [cell]
            )
            assert all(any(part in line for line in narrow) for part in parts), (
                cell
            )  # no word is cut
        assert len(wide) < len(narrow)
    (worst_case, _) = make_detail_tables([everything])
    assert "run x; y · attack pgd:steps=2 · ε 0.1 · loss ce" in " ".join(
        render(worst_case, 84).split()
    )


def test_spread_over_attack_seeds_follows_the_value_at_its_alpha() -> None:
    first, second = (main.format_row(row) for row in make_rows([REPEATED]))
    assert second["A_rob"].endswith("; 51.0 ± 1.4")
    assert second["A_sa"].endswith("; 42.0 ± 2.8")
    assert ";" not in first["A_sa"]  # no repetition at that alpha
    assert second["A_tr"] == "-"
    assert second["run"] == "x; y"
    assert main.ATTACK_SEEDS_NOTE in main.make_table([REPEATED]).to_markdown()
    assert main.ATTACK_SEEDS_NOTE not in main.make_table([PLAIN]).to_markdown()


def test_kernels_other_than_the_default_are_columns() -> None:
    trained = msgspec.structs.replace(PLAIN.checkpoint, kernel="mail")
    other = msgspec.structs.replace(PLAIN, kernel="cvar:q=0.1", checkpoint=trained)
    assert not {"kernel_train", "kernel_test", "seeds"} & set(main.make_table([PLAIN]).headings)
    both = main.make_table([PLAIN, other])
    columns = dict(zip(both.headings, zip(*both.rows, strict=True), strict=True))
    assert set(columns["kernel_train"]) == {"exp", "mail"}
    assert set(columns["kernel_test"]) == {"exp", "cvar:q=0.1"}
    (classes,) = make_detail_tables([msgspec.structs.replace(other, per_class=CLASSES.per_class)])
    assert classes.title.endswith("kernel cvar:q=0.1")
    assert "mail" in main.to_csv([other])


def test_csv_columns_do_not_depend_on_the_metrics() -> None:
    everything = msgspec.structs.replace(REPEATED, dro=[DRO_ROW], per_class=CLASSES.per_class)
    plain, full = (list(csv.reader(main.to_csv([one]).splitlines())) for one in (PLAIN, everything))
    assert plain[0] == full[0]
    assert {len(line) for line in plain + full} == {len(plain[0])}
    line = dict(zip(*full[::2], strict=True))
    assert (line["seeds"], line["a_rob_mean"], line["a_tr_sd"]) == ("2", "0.51", "")
    assert float(line["a_rob_sd"]) == pytest.approx(0.0141421356)
    assert dict(zip(*plain[:2], strict=True))["seeds"] == "1"

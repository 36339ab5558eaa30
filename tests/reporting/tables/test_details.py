"""What is printed after the main table, and what a reader is warned of."""

import csv
import io
from statistics import fmean

import msgspec
import pytest
from rich.console import Console

from wmr_cli.measures import Estimate, spread, wilson
from wmr_cli.reporting.caveats import list_caveats
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
    id="0" * 16, created="2026-01-01T00:00:00+00:00", wmr="0.1.0", kernel="exp", device="cpu", precision="32",
    checkpoint=CheckpointFacts(
        path="runs/x; y/last.safetensors", sha256="0", model="m", defense="d", kernel="exp", alpha_train=2.0, seed=0
    ),
    dataset=DatasetFacts(name="digits", split="test", n=1000, sha256="0"),
    threat=Threat(norm="linf", eps=0.1), attack=AttackFacts(spec="pgd:steps=2", seed=0, restarts=1),
    a_nat=wilson(900, 1000), a_rob=wilson(500, 1000),
    by_alpha=[AlphaRow(alpha_test=alpha, a_sa=Estimate(0.4, 0.35, 0.45, 800.0), a_tr=None) for alpha in (1.0, 2.0)],
    seconds=1.0, images_per_second=4.0, versions={}, plugins={}, config={},
)  # fmt: skip

IN_BALL = DroRow(
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
        ClassAlphaRow(alpha_test=alpha, a_sa=Estimate(0.25, 0.2, 0.3, 4.0), share=share)
        for alpha, share in ((1.0, 0.1), (2.0, 0.2))
    ]
    attacked = wilson(hits, 100)
    return ClassRow(
        label=label,
        name=name,
        n=100,
        a_nat=wilson(90, 100),
        a_rob=attacked,
        joint=wilson(hits, 100, looks=3),
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


def test_a_plain_record_has_no_further_sheet() -> None:
    assert list(make_detail_tables([PLAIN])) == []


def test_a_ball_of_no_radius_reads_as_the_plain_accuracy() -> None:
    """Sums of weights leave a last digit behind."""
    ball = msgspec.structs.replace(
        IN_BALL, rho=0.0, accuracy=0.6174999999999999, worst_accuracy=0.6175
    )
    (sheet,) = make_detail_tables([msgspec.structs.replace(PLAIN, dro=[ball])])
    cells = dict(zip(sheet.headings, sheet.rows[0], strict=True))
    assert (
        cells["accuracy"],
        cells["worst accuracy"],
        format_estimate(wilson(247, 400)).split()[0],
    ) == ("61.8",) * 3


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ((0.0, 1.0), "50.0 ± 70.7 (no interval)"),
        ((1.0, 1.0), "100 (all right)"),
        ((0.0, 0.0), "0 (all wrong)"),
        ((0.25, 0.25), "25.0 (no interval)"),
    ],
)
def test_all_right_is_said_of_nothing_else(values: tuple[float, float], said: str) -> None:
    share = Estimate(fmean(values), fmean(values), fmean(values), 1.0)
    assert format_training_spread(share, spread(values)) == said
    assert format_estimate(share) == said.replace(" ± 70.7", "")


def test_the_balls_of_all_records_share_a_sheet() -> None:
    one = msgspec.structs.replace(PLAIN, dro=[IN_BALL])
    (sheet,) = make_detail_tables([one, PLAIN, one])
    assert len(sheet.rows) == 2
    cells = dict(zip(sheet.headings, sheet.rows[0], strict=True))
    assert cells == {
        "run": "x; y", "attack": "pgd:steps=2", "ε": "0.1", "loss": "ce", "ρ": "0.1", "worst loss": "1.234",
        "accuracy": "43.2", "worst accuracy": "20.0", "zero weights": "17", "ESS": "833",
    }  # fmt: skip


def test_the_worst_class_is_marked_with_the_interval_for_many_looks() -> None:
    (sheet,) = make_detail_tables([CLASSES])
    assert ["worst" in row[3] for row in sheet.rows] == [False, True, False]
    assert sheet.rows[1][0] == "1 [b]fox|"
    assert (
        sheet.rows[1][3]
        == f"{format_estimate(wilson(30, 100))}; worst {format_estimate(wilson(30, 100, looks=3))}"
    )
    assert "A_sa at α 2" in sheet.headings
    assert {row[5] for row in sheet.rows} == {"20.0"}
    assert {row[6] for row in sheet.rows} == {"4 (few)"}
    assert "hold together" in sheet.caption


def test_without_an_attack_the_worst_class_is_that_of_clean_images() -> None:
    rows = [
        msgspec.structs.replace(row, a_rob=None, joint=row.a_nat, by_alpha=[])
        for row in CLASSES.per_class
    ]
    (sheet,) = make_detail_tables([msgspec.structs.replace(CLASSES, per_class=rows)])
    assert ["worst" in row[2] for row in sheet.rows] == [True, False, False]
    assert {row[3:] for row in sheet.rows} == {("-", "-", "-", "-")}


def test_sheets_in_markdown_keep_user_text_in_its_cell() -> None:
    (sheet,) = make_detail_tables([CLASSES])
    lines = [line for line in sheet.to_markdown().splitlines() if line.startswith("|")]
    assert len(lines) == 2 + 3
    assert {line.replace("\\|", "").count("|") for line in lines} == {len(sheet.headings) + 1}
    assert sheet.to_rich_table().row_count == 3


def printed(sheet: TextTable, width: int) -> str:
    stream = io.StringIO()
    Console(file=stream, width=width).print(sheet.to_rich_table(width))
    return stream.getvalue()


def test_on_a_narrow_terminal_shared_facts_move_up_and_intervals_down() -> None:
    everything = msgspec.structs.replace(
        REPEATED, dro=[IN_BALL, IN_BALL], per_class=CLASSES.per_class
    )
    for sheet in (main.make_table([everything]), *make_detail_tables([everything])):
        wide, narrow = (printed(sheet, width).splitlines() for width in (250, 84))
        for cell in (cell for row in sheet.rows for cell in row if not cell.startswith("pgd")):
            parts = (
                cell.replace(" [", "; [").split("; ")
                if "[b]" not in cell and cell != "x; y"
                else [cell]
            )
            assert all(any(part in line for line in narrow) for part in parts), (
                cell
            )  # no word is cut
        assert len(wide) < len(narrow)
    (ball, _) = make_detail_tables([everything])
    assert "run x; y · attack pgd:steps=2 · ε 0.1 · loss ce" in " ".join(printed(ball, 84).split())


def test_the_spread_over_seeds_stands_with_the_value_at_its_alpha() -> None:
    first, second = (main.format_row(line) for line in make_rows([REPEATED]))
    assert second["A_rob"].endswith("; 51.0 ± 1.4")
    assert second["A_sa"].endswith("; 42.0 ± 2.8")
    assert ";" not in first["A_sa"]  # no repetition at that alpha
    assert second["A_tr"] == "-"
    assert second["run"] == "x; y"
    assert main.ATTACK_SEEDS_NOTE in main.make_table([REPEATED]).to_markdown()
    assert main.ATTACK_SEEDS_NOTE not in main.make_table([PLAIN]).to_markdown()


def test_kernels_are_columns_where_they_are_not_the_usual_ones() -> None:
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


def test_csv_has_one_header_whatever_was_asked_for() -> None:
    everything = msgspec.structs.replace(REPEATED, dro=[IN_BALL], per_class=CLASSES.per_class)
    plain, full = (list(csv.reader(main.to_csv([one]).splitlines())) for one in (PLAIN, everything))
    assert plain[0] == full[0]
    assert {len(line) for line in plain + full} == {len(plain[0])}
    line = dict(zip(*full[::2], strict=True))
    assert (line["seeds"], line["a_rob_mean"], line["a_tr_sd"]) == ("2", "0.51", "")
    assert float(line["a_rob_sd"]) == pytest.approx(0.0141421356)
    assert dict(zip(*plain[:2], strict=True))["seeds"] == "1"


@pytest.mark.parametrize(
    ("ess", "images", "warns"),
    [
        (35, 36, False),
        (3.5, 36, True),
        (99, 199, False),
        (99, 200, True),
        (150, 1000, False),
        (150, 2000, True),
        (120, 1000, False),
    ],
)
def test_few_images_behind_a_number_are_said_where_the_weights_are_to_blame(
    ess: float, images: int, warns: bool
) -> None:
    record = msgspec.structs.replace(
        PLAIN,
        dataset=msgspec.structs.replace(PLAIN.dataset, n=images),
        by_alpha=[AlphaRow(alpha_test=1.0, a_sa=Estimate(0.4, 0.3, 0.5, ess), a_tr=None)],
    )
    assert bool([text for text in list_caveats(record) if "effective sample size" in text]) == warns


def test_a_plain_share_without_width_is_said_too() -> None:
    resampled = msgspec.structs.replace(PLAIN, a_nat=Estimate(1.0, 1.0, 1.0))
    assert list(list_caveats(resampled)) == [
        "A_nat: all images are right, so its interval says nothing"
    ]


def test_a_worst_case_that_cannot_be_had_is_said() -> None:
    asked = msgspec.structs.replace(PLAIN, config={"metrics": ["rob", "dro"]})
    assert ["zero-one" in text for text in list_caveats(asked)] == [True]
    assert list(list_caveats(msgspec.structs.replace(asked, dro=[IN_BALL]))) == []

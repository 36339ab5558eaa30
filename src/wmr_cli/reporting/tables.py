"""Records to the main table, and to CSV: a line per model and alpha_test."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from ..measures import Estimate
from ..spec import exact
from ..storage.records import Record
from .attacks import TOGETHER, Attacks, attacks_among
from .csvs import csv_text
from .lines import SHARES as NAMES
from .lines import Line, attack_name, ball_name, line_name, lines, lines_of, run_name
from .peers import Peers, by_setting, differing
from .percents import over_training, percent, with_spread
from .ranking import Evidence, strong
from .sheets import Sheet

SHARES = tuple(NAMES.values())
HEADINGS = (
    "run", "defense", "kernel_train", "α_train", "seeds", "data", "attack", "attack_seed", "ε", "kernel_test", "α_test",
    *SHARES, "n", "ESS",
)  # fmt: skip
USUAL = {"kernel_train": ("exp", "none"), "seeds": ("1",), "attack_seed": ("0",), "kernel_test": ("exp",)}
"""Columns that are shown where some line has something else to say; `none` is told by its missing α."""
DIFFERING = ("data",)
"""Columns that are shown where lines differ in them."""
FACTS = ("run", "defense", "kernel_train", "α_train", "seeds", "data", "attack", "attack_seed", "ε", "kernel_test", "n")
TEXTS = ("run", "defense", "kernel_train", "data", "attack", "kernel_test")
CAPTION = "percent, with 95 % intervals over test images; ESS is the effective sample size behind A_sa"
SEEDS = "mean ± standard deviation over seeds of the attack stand with the interval, which belongs to the first seed"
TRAINED = "runs that differ in the seed of training alone are one line: mean ± standard deviation over seeds, and mean interval"
BOLD = "bold (in plain text a star): the best of its column and all that cannot be told from it, among lines of the same α_test"
NO_BOLD = "nothing is bold: no line can be told from the best of its column"
APART = "only lines that were measured alike are compared; the others differ in {}"
REPEATED = ("a_rob", "a_sa", "a_tr")
CSV_HEADINGS = (
    "run", "id", "defense", "alpha_train", "kernel", "dataset", "split", "n", "norm", "eps", "attack", "alpha_test", "ess",
    *(name + part for name in NAMES for part in ("", "_low", "_high")),
    "seeds", *(name + part for name in REPEATED for part in ("_mean", "_sd")),
    "train_seed", "train_kernel", "peers", "model", "train_seeds",
    *(name + part for name in NAMES for part in ("_train_mean", "_train_sd")), "worst_of",
)  # fmt: skip


def cells(line: Line) -> dict[str, str]:
    """The texts of one line by their headings."""
    record = line.record
    return {
        "run": line_name(line),
        "defense": record.checkpoint.defense,
        "kernel_train": record.checkpoint.kernel,
        "α_train": _plain(record.checkpoint.alpha_train),
        "seeds": str(line.seeds),
        "data": f"{record.dataset.name} {record.dataset.split}",
        "attack": attack_name(record),
        "attack_seed": str(record.attack.seed),
        "ε": ball_name(record),
        "kernel_test": record.kernel,
        "α_test": _plain(line.alpha_test),
        **{heading: share_text(line, name) for name, heading in NAMES.items()},
        "n": str(record.dataset.n),
        "ESS": "-" if line.ess is None else f"{line.ess:.0f}",
    }


def share_text(line: Line, name: str) -> str:
    """A share with its interval, and with the spread over seeds of training or of the attack."""
    if line.seeds > 1:
        return over_training(line.share(name), line.over_training(name))
    return percent(line.share(name)) if name == "a_nat" else with_spread(line.share(name), line.over_seeds(name))


def sheet(records: Sequence[Record]) -> Sheet:
    """The main table with a row per record and alpha, nothing taken together and nothing ranked."""
    return _sheet(list(lines(records)), attacks_among(records))


def ranked_sheet(found: Sequence[Peers], evidence: Evidence) -> Sheet:
    """The main table with peers together, seeds of training taken together, and the best in bold."""
    rows: list[Line] = []
    bold: set[tuple[int, str]] = set()
    ends: set[int] = set()
    for peers in found:
        bold |= {(len(rows) + number, NAMES[name]) for number, name in strong(peers, evidence)}
        rows += [line for entry in peers.entries for line in lines_of(entry)]
        ends.add(len(rows) - 1)
    made = _sheet(rows, attacks_among(record for peers in found for record in peers.records))
    return replace(
        made,
        strong=frozenset(bold),
        ends=frozenset(ends),
        notes=(*made.notes, *_notes(found, is_trained=any(line.seeds > 1 for line in rows), is_bold=bool(bold))),
        splits=True,
    )


def _sheet(shown: Sequence[Line], attacks: Attacks) -> Sheet:
    texts = [{**cells(line), "attack": attacks.name(line.record)} for line in shown]
    headings = tuple(name for name in HEADINGS if _tells(name, {text[name] for text in texts}))
    rows = [tuple(text[name] for name in headings) for text in texts]
    records = [line.record for line in shown]
    return Sheet(headings, rows, caption(records), texts=TEXTS, facts=FACTS, shares=SHARES, notes=attacks.notes(records))


def _tells(name: str, values: set[str]) -> bool:
    """Whether a column has anything to say."""
    return len(values) > 1 if name in DIFFERING else not values <= set(USUAL.get(name, ()))


def _notes(found: Sequence[Peers], *, is_trained: bool, is_bold: bool) -> Iterable[str]:
    if is_trained:
        yield TRAINED
    if is_bold:
        yield BOLD
    elif any(len(peers.entries) > 1 for peers in found):
        yield NO_BOLD
    if len(found) > 1:
        words = {"eps": "ε", "data": "test images"}
        yield APART.format(" or ".join(words.get(word, word) for word in differing([peers.setting for peers in found])))


def caption(records: Iterable[Record]) -> str:
    """What the numbers are."""
    return f"{CAPTION}; {SEEDS}" if any(record.repeats for record in records) else CAPTION


def comma_separated(records: Sequence[Record]) -> str:
    """A line per record and alpha: fractions in full, every interval in columns of its own.

    Behind them how the line belongs to others: lines with one `peers` were measured alike, and those with one `model` besides
    differ in their training seed alone; they all carry mean and standard deviation over its seeds. Last the attacks whose worst
    case it is.
    """
    placed, attacks = places(by_setting(records)), attacks_among(records)
    return csv_text(
        CSV_HEADINGS,
        (
            [*_facts(line), *_measured(line), *_seeds(line, placed[line.record.id]), TOGETHER.join(attacks.of(line.record))]
            for line in lines(records)
        ),
    )


def _facts(line: Line) -> list[Any]:
    record = line.record
    return [
        run_name(record), record.id, record.checkpoint.defense, record.checkpoint.alpha_train, record.kernel,
        record.dataset.name, record.dataset.split, record.dataset.n, record.threat.norm, record.threat.eps,
        attack_name(record), line.alpha_test, line.ess,
    ]  # fmt: skip


def _measured(line: Line) -> list[float | None]:
    shares: list[Estimate | None] = [line.share(name) for name in NAMES]
    return [None if share is None else getattr(share, part) for share in shares for part in ("value", "low", "high")]


def _seeds(line: Line, place: "Place") -> list[Any]:
    """Over seeds of the attack, then over seeds of training."""
    whole = place.lines.get(line.alpha_test, line)
    attacked = [line.over_seeds(name) or (None, None) for name in REPEATED]
    trained = [(None, None) if one is None else (one.mean, one.sd) for one in map(whole.over_training, NAMES)]
    return [
        len(line.record.repeats) or 1, *(number for pair in attacked for number in pair),
        line.record.checkpoint.seed, line.record.checkpoint.kernel, place.peers, place.model, whole.seeds,
        *(number for pair in trained for number in pair),
    ]  # fmt: skip


class Place(NamedTuple):
    """Where a record stands among the others: the number of its peers, that of its model, and its lines over all seeds."""

    peers: int
    model: int
    seeds: int
    lines: dict[float | None, Line]


def places(found: Sequence[Peers]) -> dict[str, Place]:
    """The place of every record by its id."""
    entries = [(number, entry) for number, peers in enumerate(found, 1) for entry in peers.entries]
    return {
        record.id: Place(number, model, len(entry), {line.alpha_test: line for line in lines_of(entry)})
        for model, (number, entry) in enumerate(entries, 1)
        for records in entry
        for record in records
    }


def _plain(value: float | None) -> str:
    return "-" if value is None else exact(value)

"""Rows as data frames of pandas, an optional package: one line per image.

Columns have the names of the rows, such as `uniform/margin`. Beside them are whether each image is
correct, its weight, what a verifier has shown and, for several radii, its critical eps.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from .. import measures
from ..errors import BadInput, missing_extra
from ..measures import VerifiedMargins
from ..storage import records
from ..storage.records import Record, Rows
from .radii import CriticalRadii, group_radii
from .report import gather_records
from .rows import attack_name, run_name

if TYPE_CHECKING:
    import pandas as pd


def make_frame(record: Record, rows: Rows, alpha: float | None = None) -> "pd.DataFrame":
    """Return the rows of a record by the index of the image in its dataset, without logits.

    Weights sum to 1. They are left out where they are not available at this alpha.
    """
    try:
        import pandas as pd
    except ModuleNotFoundError:
        raise missing_extra("pandas") from None

    columns = {name: values for name, values in rows.items() if values.ndim == 1}
    for prefix, quantity in map(_split_name, rows):
        if quantity == "prediction":
            columns[f"{prefix}/correct"] = measures.is_correct(rows, prefix)
    sampled = measures.sampled_outcome(rows, record.kernel, alpha)
    if sampled is not None and sampled.log_weights is not None:
        weights = measures.normalized_weights(sampled.log_weights)
        columns[measures.at_alpha("uniform/weight", alpha)] = weights
    crafted = measures.crafted_outcome(rows, record.kernel, alpha)
    if crafted is not None and crafted.log_weights is not None:
        weights = measures.normalized_weights(crafted.log_weights)
        columns[f"{measures.at_alpha('weighted', alpha)}/weight"] = weights
    margins = VerifiedMargins.of(rows)
    if margins is not None:
        columns["certify/status"] = margins.statuses
    # columns of one prefix stand together, in the order of the rows
    prefixes = list(dict.fromkeys(_split_name(name)[0] for name in columns))
    names = sorted(columns, key=lambda name: prefixes.index(_split_name(name)[0]))
    return pd.DataFrame({name: columns[name] for name in names}).set_index("index")


def _split_name(name: str) -> tuple[str, str]:
    prefix, _, quantity = name.rpartition("/")
    return prefix, quantity


def read_rows(*paths: str | Path, alpha: float | None = None) -> "pd.DataFrame":
    """Return the rows of all records at or below these paths as a data frame of pandas.

    Paths are run folders, folders of records, or records. The index has the id of the record and
    the index of the image in its dataset. Each line has the `run`, `dataset`, `split`, `norm`,
    `attack` and `eps` of its record, then the columns of `Result.to_pandas`. Records at several
    radii also have `critical_eps`, as by `Result.critical_eps`.

    A value that a record lacks is missing. A record that cannot be read raises BadFile.

    ```python
    import wmr_cli as wmr

    frame = wmr.read_rows("notebook", alpha=2.0)
    print(frame.groupby(["run", "attack", "label"])["uniform/correct"].mean())
    ```
    """
    gathered = gather_records(map(Path, paths))
    if gathered.problems:
        raise gathered.problems[0]
    if not gathered.found:
        raise BadInput("no evaluations found", hint="make one with `wmr evaluate runs/NAME`")
    found = {file: records.load_record_rows(file, record) for file, record in gathered.found}
    frames = {
        file: _add_facts(make_frame(record, found[file], alpha), record)
        for file, record in gathered.found
    }
    _add_critical_eps(frames, gathered.found, found)
    import pandas as pd

    names = [record.id for _, record in gathered.found]
    return pd.concat(frames.values(), keys=names, names=["record"])


def _add_facts(frame: "pd.DataFrame", record: Record) -> "pd.DataFrame":
    """Insert what tells this record apart from others before the columns of its rows."""
    facts = {
        "run": run_name(record),
        "dataset": record.dataset.name,
        "split": record.dataset.split,
        "norm": record.threat.norm,
        "attack": attack_name(record),
        "eps": record.threat.eps,
    }
    for position, (name, value) in enumerate(facts.items()):
        frame.insert(position, name, value)
    return frame


def _add_critical_eps(
    frames: Mapping[Path, "pd.DataFrame"],
    found: Sequence[tuple[Path, Record]],
    rows: Mapping[Path, Rows],
) -> None:
    for series in group_radii(found):
        rows_by_eps = {record.threat.eps: rows[file] for file, record in series.found}
        critical = CriticalRadii.of(series, rows_by_eps).critical
        for file, _ in series.found:
            frames[file]["critical_eps"] = critical

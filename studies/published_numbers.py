"""Evaluate networks of others and keep the records, to compare them with the printed numbers.

Usage: `python studies/published_numbers.py CHECKPOINTS [NAME ...]`, with the datasets in
WMR_DATA_DIR.

`published_numbers.json` lists the networks, where CHECKPOINTS has their weights, and the errors in
percent that their authors printed. The records go to `records/published-numbers`. Their rows hold
predictions only. `docs/generate.py` makes the table of `docs/published-numbers.md` from both.
"""

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from wmr_cli.storage import records
from wmr_cli.storage.records import Record, Rows

STUDIES = Path(__file__).parent
RECORDS = STUDIES / "records" / "published-numbers"
KEPT_ROWS = ("index", "label", "clean/prediction", "uniform/prediction")

Network = dict[str, Any]
"""An entry of `published_numbers.json`."""


def list_networks() -> list[Network]:
    """Return all networks with their printed numbers."""
    text = (STUDIES / "published_numbers.json").read_text(encoding="utf-8")
    networks: list[Network] = json.loads(text)
    return networks


def list_commands(network: Network) -> Iterator[tuple[str, ...]]:
    """Yield the `wmr` commands that import a network and evaluate it in the current folder."""
    weights = Path(network["file"])
    model = ("--model", network["model"], "--dataset", network["dataset"])
    yield ("import", str(weights), *model, "--out", f"{network['name']}.safetensors")
    evaluate = ("evaluate", f"{network['name']}.safetensors")
    if not network["attacks"]:
        yield (*evaluate, "--metrics", "nat")
        return
    attacks = [word for spec in network["attacks"] for word in ("--attack", spec)]
    yield (*evaluate, "--eps", str(network["eps"]), *attacks, "--metrics", "nat,rob")


def evaluate(network: Network, checkpoints: Path, folder: Path) -> Iterator[tuple[Record, Rows]]:
    """Run the commands of a network in a folder, and yield its records with their rows."""
    architectures = (STUDIES / "published_networks.py").read_text(encoding="utf-8")
    (folder / "published_networks.py").write_text(architectures, encoding="utf-8")
    for command in list_commands(network):
        words = [str(checkpoints / word) if word == network["file"] else word for word in command]
        subprocess.run(
            [sys.executable, "-m", "wmr_cli", *words, "--quiet"],
            cwd=folder,
            stdout=subprocess.DEVNULL,
            check=True,
        )
    for file in records.find_records(folder / f"{network['name']}.evaluations"):
        record = records.load(file)
        # the combination of several attacks is computed from their rows
        if record.attack.of is None:
            yield record, records.load_record_rows(file, record)


def save_compactly(file: Path, record: Record, rows: Rows, folder: Path) -> None:
    """Save a record without the paths of this machine, and its predictions in small integers."""
    text = record.to_json().replace(f"{folder}/", "")
    kept = {name: rows[name] for name in KEPT_ROWS if name in rows}
    small = {
        name: values.astype(np.min_scalar_type(int(values.max()))) for name, values in kept.items()
    }
    file.parent.mkdir(parents=True, exist_ok=True)
    records.save(file, Record.from_json(text), small)


def main() -> None:
    """Evaluate the named networks, or all."""
    checkpoints = Path(sys.argv[1]).resolve()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name).resolve()
        for network in list_networks():
            if network["name"] not in (sys.argv[2:] or [network["name"]]):
                continue
            target = RECORDS / network["name"] / "evaluations"
            for old in target.glob("*"):
                old.unlink()
            for record, rows in evaluate(network, checkpoints, folder):
                save_compactly(target / f"{record.id}.json", record, rows, folder)


if __name__ == "__main__":
    main()

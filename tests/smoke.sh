#!/bin/sh
# Run every command of the `wmr` installed in the environment $1, in an empty folder, as a new user would.
set -eu
PATH=$1:$PATH
unset PYTHONPATH
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"

wmr --version
wmr doctor --numerics
wmr list >/dev/null
wmr plugins --check
wmr train --epochs 2 --steps 3 --quiet
wmr evaluate runs/digits-trades-a2-s0 --limit 60 --rho 0.1 --quiet
wmr attack runs/digits-trades-a2-s0 --limit 8 --grid attack.png --quiet
wmr report runs --out report.html --figures figures
wmr report --paper all >/dev/null
wmr plugins new mine --kind kernel
test -s report.html
test -s attack.png
ls figures/*.pdf >/dev/null
test -s wmr-mine/pyproject.toml
# from Python, and from the installed package rather than from a source tree
python - <<'PYTHON'
import sys

import wmr_cli as wmr

assert wmr.__file__.startswith(sys.prefix), wmr.__file__
print(wmr.create("attack", "pgd:steps=2", eps=0.1), type(wmr.load("runs/digits-trades-a2-s0/last.safetensors")).__name__)
PYTHON

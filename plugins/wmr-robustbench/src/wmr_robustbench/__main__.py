"""`python -m wmr_robustbench [DATASET [THREAT]]`: the names of the zoo."""

import argparse
import sys

from wmr_cli.errors import WmrError

from .models import THREATS
from .zoo import CLASSES, listed


def main() -> int:
    """Print a name per line, as it is given to --model; those that cannot be used are left out."""
    parser = argparse.ArgumentParser(
        prog="python -m wmr_robustbench", description="The networks of RobustBench, as models of wmr."
    )
    parser.add_argument("dataset", nargs="?", choices=list(CLASSES), default="cifar10")
    parser.add_argument("threat", nargs="?", choices=THREATS, default="Linf")
    asked = parser.parse_args()
    try:
        networks = listed(asked.dataset, asked.threat).values()
    except WmrError as error:
        sys.stderr.write(f"error: {error}\nhint: {error.hint}\n")
        return 2
    ending = "" if asked.threat == "Linf" else f",threat={asked.threat}"
    sys.stdout.writelines(f"robustbench:{network.name}{ending}\n" for network in networks if network.drive_ids)
    return 0


if __name__ == "__main__":
    sys.exit(main())

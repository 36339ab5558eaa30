"""`python -m wmr_robustbench [DATASET [THREAT]]`: list the models of the zoo."""

import argparse
import sys

from wmr_cli import WmrError

from .models import THREATS
from .zoo import NUM_CLASSES, list_models


def main() -> int:
    """Print one model per line, as the value of --model; leave out those that cannot be used."""
    parser = argparse.ArgumentParser(
        prog="python -m wmr_robustbench",
        description="List the models of RobustBench, as models of wmr.",
    )
    parser.add_argument("dataset", nargs="?", choices=list(NUM_CLASSES), default="cifar10")
    parser.add_argument("threat", nargs="?", choices=THREATS, default="Linf")
    arguments = parser.parse_args()
    try:
        models = list_models(arguments.dataset, arguments.threat)
    except WmrError as error:
        sys.stderr.write(f"error: {error}\nhint: {error.hint}\n")
        return 2
    suffix = "" if arguments.threat == "Linf" else f",threat={arguments.threat}"
    sys.stdout.writelines(
        f"robustbench:{model.name}{suffix}\n" for model in models.values() if model.has_files
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())

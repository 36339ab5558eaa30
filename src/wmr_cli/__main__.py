"""`python -m wmr_cli` is `wmr`."""

from .cli import main

main()

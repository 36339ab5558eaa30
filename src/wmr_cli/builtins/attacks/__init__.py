"""Attacks over the shared loops of `core.pgd`, `core.auto_pgd` and `core.restarts`."""

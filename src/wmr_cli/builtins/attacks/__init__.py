"""Attacks, one file each over the shared loops of `core.ascent` and `core.adaptive`."""

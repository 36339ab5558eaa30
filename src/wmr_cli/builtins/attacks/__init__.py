"""Attacks, one file each over the shared loop of `core.ascent`."""

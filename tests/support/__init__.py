"""Helpers: synthetic records, miniature datasets, special files, documented commands."""

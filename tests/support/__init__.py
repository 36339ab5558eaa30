"""Helpers of the tests: synthetic records, miniature datasets, special files, documented commands."""

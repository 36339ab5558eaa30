"""Loggers: copies of the log of a run for other tools. Importing one imports no other package."""

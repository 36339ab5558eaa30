"""The command line. One file per command; torch is imported inside the body of a command only."""

from .app import app, main

__all__ = ["app", "main"]

"""Flags in, tables and bars out. One file per command; torch is imported inside a command's body only."""

from .app import app, main

__all__ = ["app", "main"]

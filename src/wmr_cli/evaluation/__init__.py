"""Evaluate a model under attack."""

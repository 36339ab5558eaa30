"""Layers and rewrites of models: preprocessing, hooks, fusion."""

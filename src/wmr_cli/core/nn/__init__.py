"""Layers and rewrites of models: preprocessing, hooks, compilation, fusion."""

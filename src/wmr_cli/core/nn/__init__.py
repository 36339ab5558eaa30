"""Layers and rewrites of models: preprocessing, compilation, fusion."""

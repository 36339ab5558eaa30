"""Weighting kernels: log-weights of images, from their margins, losses, classes or a table."""

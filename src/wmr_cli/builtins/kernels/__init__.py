"""Weighting kernels: log-weights of images from their margins. One file each."""

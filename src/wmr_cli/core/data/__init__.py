"""Datasets: splits, image files, loaders, downloads, augmentation."""

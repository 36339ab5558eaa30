"""Networks on images in [0, 1], one file each."""

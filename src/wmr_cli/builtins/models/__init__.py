"""Models of images in [0, 1]."""

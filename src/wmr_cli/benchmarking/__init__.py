"""Measure the speed of attacks and training on this machine, for `wmr bench`."""

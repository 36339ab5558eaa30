"""How fast `wmr` is beside other libraries: the same network, data and settings, in turns, as ratios. `make bench` runs it."""

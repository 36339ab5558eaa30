"""Compare the speed of `wmr` with other libraries: `make bench`.

All run the same network, data and settings alternately, and the results are ratios.
"""

"""Files that wmr writes: runs, checkpoints and records. None of them can run code."""

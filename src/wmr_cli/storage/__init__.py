"""Files that wmr writes: run folders, checkpoints, evaluation records. None of them can run code."""

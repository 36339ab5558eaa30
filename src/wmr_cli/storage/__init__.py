"""Our files: run folders, checkpoints, evaluation records. Nobody else writes them, and nothing in them can run code."""

"""Train a model: setup, loop, learner, optimization, validation, checkpointing."""

"""Train a model: setup, loop, learner, schedules, validation, checkpointing."""

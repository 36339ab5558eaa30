"""Run a study: a grid of trainings and evaluations, here or on Slurm."""

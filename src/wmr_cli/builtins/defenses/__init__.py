"""Defenses: one training step each, from the attack to the optimizer step."""

"""Defenses: what a training step climbs and what the model pays. One file each."""

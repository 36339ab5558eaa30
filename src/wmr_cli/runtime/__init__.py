"""Devices, ranks and components."""

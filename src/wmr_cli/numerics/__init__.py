"""Check the arithmetic of a device against a small network with proved results."""

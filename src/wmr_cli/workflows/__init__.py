"""The walks, one page each. They yield events and print nothing."""

"""The HTML page of a report."""

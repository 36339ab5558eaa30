"""The paper's published numbers, their errata, and runs that match them."""

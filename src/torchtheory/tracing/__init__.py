"""A network as a list of operations."""

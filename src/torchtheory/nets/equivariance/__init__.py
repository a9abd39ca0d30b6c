"""Symmetries of networks: group actions, how far a network follows them, and where that ends."""

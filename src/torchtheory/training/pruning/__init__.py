"""Pruning: which weights and units of a network can go, and which sub-networks can be trained."""

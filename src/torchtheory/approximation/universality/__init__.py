"""Universality: which activations and which sums of units come near every continuous function."""

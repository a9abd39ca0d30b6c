"""Bounds of a network's outputs over a ball of inputs: intervals, and linear bounds (CROWN)."""

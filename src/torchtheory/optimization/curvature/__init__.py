"""Curvature of the loss as operators, and what it allows a step to be."""

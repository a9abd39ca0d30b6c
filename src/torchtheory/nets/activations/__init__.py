"""Activation functions: a table of them, what they are known to do, their Gaussian moments."""

"""Kernels, and learning with them: regression, Gaussian processes, random features."""

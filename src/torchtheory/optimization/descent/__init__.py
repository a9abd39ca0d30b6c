"""Descent and gradient flow: iterates, directions, mini-batches, noise, Newton steps."""

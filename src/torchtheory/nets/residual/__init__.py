"""Residual networks: shortcuts, their Jacobians, the networks for images, the flow they follow."""

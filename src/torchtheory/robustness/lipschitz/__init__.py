"""Lipschitz constants of layers and networks, as certified upper bounds."""

"""Pruning: which weights and units of a network can go, and which sub-networks can be trained."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)

"""Symmetries of networks: group actions, how far a network follows them, and where that ends."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)

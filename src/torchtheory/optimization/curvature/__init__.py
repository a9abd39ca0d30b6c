"""Curvature of the loss as operators, and what it allows a step to be."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)

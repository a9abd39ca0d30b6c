"""Bounds of a network's outputs over a ball of inputs: intervals, and linear bounds (CROWN)."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)

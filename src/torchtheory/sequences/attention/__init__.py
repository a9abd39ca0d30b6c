"""Attention: dot products, heads, positions, transformers for sequences and images, their cost."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)

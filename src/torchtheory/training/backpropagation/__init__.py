"""Backpropagation by its definition: along a chain, on a graph, and from scratch."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)

"""Linear networks of two and more layers: gradients, critical points, factorizations."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)

"""Kernels: kernel regression, random features, wide networks and the neural tangent kernel."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)

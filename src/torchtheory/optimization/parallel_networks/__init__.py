"""Sums of subnetworks: the convex problem under them, and certificates of global optimality."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)

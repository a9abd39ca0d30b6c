"""Rademacher complexity, covering numbers, and bounds by margins and norms."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)

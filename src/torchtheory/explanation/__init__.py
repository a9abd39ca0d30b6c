"""Explanation: which inputs made a network say what it says, and whether to believe it."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)

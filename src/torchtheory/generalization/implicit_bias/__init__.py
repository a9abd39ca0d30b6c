"""Which of many solutions gradient methods find: least norm, largest margin, balanced layers."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)

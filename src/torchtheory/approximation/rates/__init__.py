"""How large a network must be and may be: theorems, tables, lower bounds, bits."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)

"""How flat the loss is around the parameters, and what rescaling does to that."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)

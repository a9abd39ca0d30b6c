"""Functions by pieces: boxes, hats, finite elements, charts, local Taylor polynomials."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)

"""Sets and graphs: networks that respect the order of nothing, and graph spectra."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)

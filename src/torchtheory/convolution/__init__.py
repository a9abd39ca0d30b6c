"""Convolution as mathematics: operators, matrices, spectra, receptive fields, U-nets."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)

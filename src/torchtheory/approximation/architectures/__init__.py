"""What convolutional, recurrent, residual and skip-connected networks compute and approximate."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)

"""Networks of infinite width: what operations and activations make of covariances."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)

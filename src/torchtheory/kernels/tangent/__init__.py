"""The tangent kernel of a network, training in its closed form, and linearization."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)

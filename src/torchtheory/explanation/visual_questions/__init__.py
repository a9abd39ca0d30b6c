"""Visual question answering: a relation network, and what its answers rest on."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)

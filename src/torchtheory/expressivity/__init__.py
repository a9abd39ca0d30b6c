"""Expressivity: exact pieces and regions of networks, and what depth and width can say."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)

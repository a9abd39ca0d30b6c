"""Universality: which activations and which sums of units come near every continuous function."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)

"""Experiments with a verdict, one package per room, and the engine that runs them."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)

"""The trainer: its loop, its batches, what it records, and where it stops."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)

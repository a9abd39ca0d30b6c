"""A network as a list of operations: recorded, replayed, shown, and carried through by rules."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)

"""Statistical learning: laws, tasks, learners, and where an error comes from."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)

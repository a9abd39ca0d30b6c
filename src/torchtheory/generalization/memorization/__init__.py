"""Labels that mean nothing: do networks fit them, and what does that say?"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)

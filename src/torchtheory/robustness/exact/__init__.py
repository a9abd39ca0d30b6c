"""The smallest perturbation that changes the class of a small ReLU network, exactly."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)

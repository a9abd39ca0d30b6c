"""PAC-Bayes: bounds on the risk of stochastic classifiers, and certificates for networks."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)

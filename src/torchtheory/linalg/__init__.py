"""Matrix-free linear algebra: operators, Krylov spaces, spectra, densities, traces, solvers."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)

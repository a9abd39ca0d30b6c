"""What keeps a training from fitting everything: dropout, decay, augmentation, distillation."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)

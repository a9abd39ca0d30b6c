"""Language: tokenizers, decoding, BERT's objectives, sources with a known entropy."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)

"""torchtheory: the executable mathematics of deep learning, on PyTorch.

>>> import torchtheory as tt
>>> tt.find_lab("perceptron-novikoff").room
'neurons'

- `tt.audit(model, train, test)`: everything theory can say about your network.
- `tt.run_lab(name)`: a theorem, construction or figure as an experiment with a verdict.
- `tt.graphs`, `tt.generalization`, ...: the library, one package for each room.
"""

from __future__ import annotations

import importlib
from typing import Any

__version__ = "0.1.0"

_ROOMS = (
    "approximation",
    "audit",
    "convolution",
    "core",
    "data",
    "equivariance",
    "explanation",
    "expressivity",
    "generalization",
    "graphs",
    "kernels",
    "labs",
    "linalg",
    "models",
    "nets",
    "neurons",
    "optimization",
    "primer",
    "report",
    "robustness",
    "sequences",
    "tracing",
    "training",
)
_NAMES = {
    "Claim": "core.claim",
    "Problem": "models.problem",
    "Verdict": "core.claim",
    "find_lab": "labs.engine.registry",
    "finding": "audit.engine.finding",
    "lab": "labs.engine.registry",
    "run_lab": "labs.engine.run",
}

__all__ = [*sorted(_NAMES), *_ROOMS]


def __getattr__(name: str) -> Any:
    # Rooms load when they are first used, so that importing the package costs nearly nothing;
    # type checkers read __init__.pyi instead.
    if name in _ROOMS:
        return importlib.import_module(f"torchtheory.{name}")
    if name in _NAMES:
        return getattr(importlib.import_module(f"torchtheory.{_NAMES[name]}"), name)
    raise AttributeError(f"module 'torchtheory' has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*__all__, "__version__"]

"""torchtheory: the executable mathematics of deep learning, on PyTorch.

>>> import torchtheory as tt
>>> tt.find_lab("perceptron-novikoff").room
'nets'

- `tt.audit(model, train, test)`: everything theory can say about your network.
- `tt.run_lab(name)`: a theorem, construction or figure as an experiment with a verdict.
- `tt.nets`, `tt.generalization`, ...: the library, one package for each room.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_ROOMS = (
    "approximation",
    "audit",
    "core",
    "data",
    "expressivity",
    "generalization",
    "kernels",
    "labs",
    "linalg",
    "models",
    "nets",
    "optimization",
    "primer",
    "report",
    "robustness",
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

if TYPE_CHECKING:
    from torchtheory import approximation as approximation
    from torchtheory import audit as audit
    from torchtheory import core as core
    from torchtheory import data as data
    from torchtheory import expressivity as expressivity
    from torchtheory import generalization as generalization
    from torchtheory import kernels as kernels
    from torchtheory import labs as labs
    from torchtheory import linalg as linalg
    from torchtheory import models as models
    from torchtheory import nets as nets
    from torchtheory import optimization as optimization
    from torchtheory import primer as primer
    from torchtheory import report as report
    from torchtheory import robustness as robustness
    from torchtheory import training as training
    from torchtheory.audit.engine.finding import finding as finding
    from torchtheory.core.claim import Claim as Claim
    from torchtheory.core.claim import Verdict as Verdict
    from torchtheory.labs.engine.registry import find_lab as find_lab
    from torchtheory.labs.engine.registry import lab as lab
    from torchtheory.labs.engine.run import run_lab as run_lab
    from torchtheory.models.problem import Problem as Problem


def __getattr__(name: str) -> Any:
    # Rooms load when they are first used, so that importing the package costs nearly nothing.
    if name in _ROOMS:
        return importlib.import_module(f"torchtheory.{name}")
    if name in _NAMES:
        return getattr(importlib.import_module(f"torchtheory.{_NAMES[name]}"), name)
    raise AttributeError(f"module 'torchtheory' has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*__all__, "__version__"]

"""The engine of the labs, and all that a lab imports from it."""

from torchtheory.core.figure import COLORS
from torchtheory.core.intervals import Interval, clopper_pearson, fit_slope, mean_interval
from torchtheory.labs.engine.registry import lab
from torchtheory.labs.engine.run import Run

__all__ = [
    "COLORS",
    "Interval",
    "Run",
    "clopper_pearson",
    "fit_slope",
    "lab",
    "mean_interval",
]

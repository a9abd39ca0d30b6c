"""The engine of the labs, and all that a lab imports from it."""

from torchtheory.core.errors import InvalidInput
from torchtheory.core.figure import COLORS
from torchtheory.core.intervals import (
    Interval,
    clopper_pearson,
    fit_slope,
    hoeffding_radius,
    mean_interval,
    quantile_interval,
)
from torchtheory.labs.engine.registry import lab
from torchtheory.labs.engine.run import Run

__all__ = [
    "COLORS",
    "Interval",
    "InvalidInput",
    "Run",
    "clopper_pearson",
    "fit_slope",
    "hoeffding_radius",
    "lab",
    "mean_interval",
    "quantile_interval",
]

r"""How large a network a theorem asks for, or offers, for your class of functions and your error.

`size_needed` goes through the rows of `table` and gives for
each that applies the size: with its constant where the proof has one, else its order with constant
1 or one of your own, and says so. What does not apply comes with the reason.
"""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass
from typing import Any

from torchtheory.approximation.rates.table import theorems_of
from torchtheory.approximation.rates.theorems import RateTheorem, Setting
from torchtheory.core.checks import positive_number
from torchtheory.core.errors import InvalidInput

#: The smoothness of the classes that leave no choice.
FIXED_SMOOTHNESS = {
    "lipschitz": 1.0,
    "barron": 1.0,
    "korobov": 2.0,
    "manifold": 2.0,
    "manifold-wavelet": 1.0,
}
#: Classes whose theorems are about the mean squared error.
SQUARE_CLASSES = ("holder", "barron", "cartoon", "piecewise-holder", "manifold-wavelet")

#: Powers of ten from here on are no floats.
LARGEST_FLOAT = math.log10(sys.float_info.max)

KNOWN = "constant known"
ORDER = "order, constant unknown"


@dataclass(frozen=True, slots=True)
class SizeEstimate:
    """What one theorem says.

    Attributes:
        theorem: the row.
        log10_size: logarithm of the size; sizes in high dimension do not fit into a float.
        size: the number itself, rounded where it is an order; None where it does not fit into a
            float and is not counted.
        constant_known: whether the number is one, or an order with the table's constant.
        layers: affine layers, where the proof fixes them.
        log10_layers: where the depth is a power of the error, of its order.
        exponent, log_power: of the order.
        norm: of the error.
    """

    theorem: RateTheorem
    log10_size: float
    size: int | None
    constant_known: bool
    layers: int | None
    log10_layers: float | None
    exponent: float
    log_power: float
    norm: str

    @property
    def constant(self) -> str:
        """Whether the number is one, or an order."""
        return KNOWN if self.constant_known else ORDER

    def to_json(self) -> dict[str, Any]:
        row = self.theorem
        return {
            "id": row.id,
            "theorem": row.name,
            "side": row.side,
            "counts": row.counts,
            "size": self.size if self.log10_size < 15 else None,
            "log10_size": self.log10_size,
            "constant": self.constant,
            "constant_known": self.constant_known,
            "exponent": self.exponent,
            "log_power": self.log_power,
            "norm": self.norm,
            "activation": row.activation,
            "depth": row.depth,
            "layers": self.layers,
            "log10_layers": self.log10_layers,
            "continuous_weights": row.continuous,
            "encodable_weights": row.encodable,
            "erratum": row.erratum,
        }


@dataclass(frozen=True, slots=True)
class SizeTable:
    """All rows of a class: lower and upper bounds by size, and what does not apply.

    Attributes:
        function_class, setting: what was asked.
        lower, upper: smallest first.
        silent: the rows that do not apply, with the reason.
        constant: what stands before the sizes whose own constant is unknown.
    """

    function_class: str
    setting: Setting
    lower: tuple[SizeEstimate, ...]
    upper: tuple[SizeEstimate, ...]
    silent: tuple[tuple[RateTheorem, str], ...]
    constant: float = 1.0

    def to_json(self) -> dict[str, Any]:
        asked = {
            name: getattr(self.setting, name)
            for name in ("smoothness", "dimension", "error", "order")
        }
        return {
            "class": self.function_class,
            **asked,
            "p": "inf" if math.isinf(self.setting.p) else self.setting.p,
            "constant": self.constant,
            "lower": [e.to_json() for e in self.lower],
            "upper": [e.to_json() for e in self.upper],
            "not_applicable": [
                {"id": row.id, "theorem": row.name, "side": row.side, "reason": reason}
                for row, reason in self.silent
            ],
        }


def size_needed(
    function_class: str,
    *,
    smoothness: float | None = None,
    dimension: int,
    error: float,
    p: float | None = None,
    order: float = 0.0,
    lipschitz: float = 1.0,
    barron_constant: float = 1.0,
    radius: float = 1.0,
    ambient: int = 100,
    charts: int = 1,
    weights_exponent: float | None = None,
    constant: float = 1.0,
    shallow: bool = False,
    continuous: bool = False,
) -> SizeTable:
    r"""What is proved about the size of networks within $\epsilon$ of a class.

    Args:
        function_class: a key of `FUNCTION_CLASSES`.
        smoothness, dimension, error: $n$, $d$, $\epsilon$; the classes of fixed
            smoothness (Lipschitz, Barron, Korobov, manifolds) have their own.
        p, order: the error is measured in $W^{r,p}$, $r$ the order; unless told, `p`
            is that of the theorems of the class, infinite or 2. Only `sobolev` has theorems
            whose error counts derivatives.
        lipschitz, barron_constant, radius, ambient, charts, weights_exponent: see
            `Setting`.
        constant: stands before the sizes whose own constant is unknown, for instance one that was
            measured.
        shallow, continuous: only networks of one hidden layer; only weights that depend
            continuously on the function.

    >>> table = size_needed("sobolev", smoothness=2, dimension=1, error=1e-4)
    >>> [(e.theorem.id, e.size) for e in table.lower]
    [('X-34', 1), ('X-16', 24)]
    >>> table.upper[0].theorem.id, table.upper[0].size, table.upper[0].constant_known
    ('X-37', 10, False)
    >>> [e.size for e in table.upper if e.theorem.id == "L-071"]
    [36]
    """
    rows = theorems_of(function_class)
    fixed = FIXED_SMOOTHNESS.get(function_class)
    if smoothness is None and fixed is None:
        raise InvalidInput(f"the class {function_class!r} needs its smoothness")
    if fixed is not None and smoothness not in (None, fixed):
        raise InvalidInput(
            f"the class {function_class!r} has no smoothness to choose; leave it out"
        )
    if order and function_class != "sobolev":
        raise InvalidInput(
            "only the class 'sobolev' has theorems whose error counts derivatives; leave the order "
            f"out for {function_class!r}"
        )
    positive_number(constant, "constant")
    if p is None:
        p = 2.0 if function_class in SQUARE_CLASSES else math.inf
    setting = Setting(
        smoothness=fixed if smoothness is None and fixed is not None else float(smoothness or 0),
        dimension=dimension,
        error=error,
        p=p,
        order=order,
        lipschitz=lipschitz,
        barron_constant=barron_constant,
        radius=radius,
        ambient=ambient,
        charts=charts,
        weights_exponent=weights_exponent,
    )
    found: dict[str, list[SizeEstimate]] = {"lower": [], "upper": []}
    silent = []
    for row in rows:
        missing = row.missing(setting) or _other_kind(row, shallow, continuous)
        if missing:
            silent.append((row, missing))
        else:
            found[row.side].append(_estimate(row, setting, constant))
    for side in found.values():
        side.sort(key=lambda e: e.log10_size)
    return SizeTable(
        function_class,
        setting,
        tuple(found["lower"]),
        tuple(found["upper"]),
        tuple(silent),
        constant,
    )


def _other_kind(row: RateTheorem, shallow: bool, continuous: bool) -> str:
    """Why an upper bound has other networks than asked for; a lower bound holds for a part too."""
    if row.side == "lower":
        return ""
    if shallow and not row.shallow:
        return "its networks have more than one hidden layer"
    if continuous and not row.continuous:
        return "its weights are not known to depend continuously on the function"
    return ""


def _estimate(row: RateTheorem, setting: Setting, constant: float) -> SizeEstimate:
    counted = None
    if row.number is not None:
        try:
            counted = row.number(setting)
        except (InvalidInput, OverflowError):  # beyond what can be counted: its order is told
            counted = None
    layers = counted.layers if counted else None
    log_layers = None
    if row.layers_exponent is not None:
        log_layers = -row.layers_exponent(setting) * math.log10(setting.error)
    size: int | None
    if counted is None:
        log10_size = row.log10_order(setting) + math.log10(constant)
        size = round(10**log10_size) if log10_size < LARGEST_FLOAT else None
    else:
        size, log10_size = counted.size, math.log10(max(1, counted.size))
    return SizeEstimate(
        row,
        log10_size,
        size,
        counted is not None,
        layers,
        log_layers,
        row.exponent(setting),
        row.log_power(setting),
        row.norm_in_words(setting),
    )

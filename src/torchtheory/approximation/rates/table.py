r"""What is proved about the size of networks that approximate a class of functions: the table.

Rows compare: a lower bound holds for every upper bound whose networks it speaks about, so its
exponent cannot be larger; `exponent_gaps` goes through all pairs.
Source: Mathematical Aspects of Deep Learning, chapters 1 and 3; the corrections are the errata's.
"""

from __future__ import annotations

import math

from torchtheory.approximation.rates.explicit_sizes import (
    CountedSize,
    barron_units,
    box_units,
    interpolant_units,
    yarotsky_units,
)
from torchtheory.approximation.rates.lower_bounds import (
    continuous_selection_minimum,
    vc_minimum_weights,
)
from torchtheory.approximation.rates.theorems import (
    FUNCTION_CLASSES,
    Hypothesis,
    RateTheorem,
    Setting,
)
from torchtheory.core.errors import InvalidInput, UnknownName


def _d_over_n(s: Setting) -> float:
    return s.dimension / s.smoothness


def _selection(s: Setting) -> CountedSize | None:
    if not math.isinf(s.p) or s.smoothness > 12:
        return None
    return CountedSize(continuous_selection_minimum(s.error, int(s.smoothness), s.dimension))


def _labels(s: Setting) -> CountedSize | None:
    if not math.isinf(s.p) or s.smoothness > 12:
        return None
    n, r = int(s.smoothness), int(s.order)
    return CountedSize(vc_minimum_weights(s.error, n, s.dimension, derivative=r))


def _taylor(s: Setting) -> CountedSize | None:
    # the factorials of more derivatives are no floats
    return None if s.smoothness > 150 else yarotsky_units(s.error, int(s.smoothness), s.dimension)


_WHOLE: Hypothesis = ("the smoothness must be a whole number", lambda s: s.whole)
_SUP: Hypothesis = ("it is about p = inf", lambda s: math.isinf(s.p))
_FINITE_P: Hypothesis = ("it is about a finite p", lambda s: math.isfinite(s.p))
_NO_DERIVATIVE: Hypothesis = ("its error counts no derivatives", lambda s: s.order == 0)
_BANACH: Hypothesis = ("p must be at least 1", lambda s: s.p >= 1)
_LINE: Hypothesis = ("it is about one dimension", lambda s: s.dimension == 1)
_PLANE: Hypothesis = ("the dimension must be at least 2", lambda s: s.dimension >= 2)
_SQUARE: Hypothesis = ("it is about p = 2", lambda s: s.p == 2)
_ONE_OR_TWO: Hypothesis = ("it is proved for smoothness 1 or 2", lambda s: s.smoothness in (1, 2))
_TWICE: Hypothesis = ("the smoothness is 2", lambda s: s.smoothness == 2)

THEOREMS: tuple[RateTheorem, ...] = (
    RateTheorem(
        "X-15", "sums of ridge functions, one hidden layer", "sobolev", "lower", "units",
        lambda s: (s.dimension - 1) / s.smoothness,
        "L2", "any continuous", "1 hidden layer", "mean",
        shallow=True,
        hypotheses=(_WHOLE, _SQUARE, _PLANE, _NO_DERIVATIVE),
        printed=lambda s: s.dimension - 1 / s.smoothness,
        erratum="printed with the exponent d - 1/n, above the upper bound d/n",
    ),
    RateTheorem(
        "X-16", "weights chosen continuously (nonlinear widths)", "sobolev", "lower", "weights",
        _d_over_n, "Lp", "any", "any", "mean",
        continuous=True, number=_selection,
        hypotheses=(_WHOLE, _BANACH, _NO_DERIVATIVE),
    ),
    RateTheorem(
        "X-34", "labels shattered (VC dimension)", "sobolev", "lower", "weights",
        lambda s: s.dimension / (2 * (s.smoothness - s.order)),
        "sup, or sup with first derivatives", "ReLU", "any", "sup",
        hypotheses=(
            _WHOLE, _BANACH,
            ("its error counts 0 or 1 derivatives", lambda s: s.order in (0, 1)),
            ("the smoothness must exceed the derivatives counted",
             lambda s: s.smoothness > s.order),
        ),
        number=_labels,
        erratum="the proof's levels are one error apart, too close to be told apart",
    ),
    RateTheorem(
        "L-071", "broken line through equally spaced values", "sobolev", "upper", "units",
        lambda s: 1 / min(s.smoothness, 2), "sup", "ReLU", "1 hidden layer", "sup",
        shallow=True, continuous=True,
        hypotheses=(_WHOLE, _LINE, _SUP, _NO_DERIVATIVE),
        number=lambda s: interpolant_units(s.error, smooth=s.smoothness >= 2),
    ),
    RateTheorem(
        "X-18, A-31", "polynomials by one layer of a smooth activation", "sobolev", "upper",
        "units", _d_over_n, "Lp", "smooth, no polynomial", "1 hidden layer", "mean",
        shallow=True, continuous=True,
        hypotheses=(_WHOLE, _BANACH, _NO_DERIVATIVE),
        printed=lambda s: s.smoothness / s.dimension,
        erratum="A-31 is printed with $n^{-d/k}$, whose size falls with the dimension",
    ),
    RateTheorem(
        "X-31", "partition of unity times Taylor polynomials", "sobolev", "upper", "units",
        _d_over_n, "sup", "ReLU", "depth of order log(1/error)", "sup",
        log_power=lambda s: 1.0, continuous=True,
        hypotheses=(_WHOLE, _SUP, _NO_DERIVATIVE),
        number=_taylor,
    ),
    RateTheorem(
        "X-32, A-92", "Taylor patches, derivatives in the error", "sobolev", "upper", "weights",
        lambda s: s.dimension / (s.smoothness - s.order),
        "$W^{r,p}$", "ReLU", "depth of order log(1/error)", "derivative",
        # log^2 of error^(-n/(n - r))
        log_power=lambda s: 2.0, continuous=True,
        log10_prefactor=lambda s: 2 * math.log10(s.smoothness / (s.smoothness - s.order)),
        hypotheses=(
            _WHOLE, _BANACH, ("the smoothness must be at least 2", lambda s: s.smoothness >= 2),
        ),
    ),
    RateTheorem(
        "X-37", "depth traded for weights, chosen discontinuously", "sobolev", "upper", "weights",
        lambda s: s.traded, "sup", "ReLU", "depth of order error to the power zeta - d/n", "sup",
        hypotheses=(_WHOLE, _SUP, _NO_DERIVATIVE),
        layers_exponent=lambda s: _d_over_n(s) - s.traded,
        erratum="the depth is printed with the exponent d/(r(zeta - 1)), which has r = 0",
    ),
    RateTheorem(
        "X-83", "convolutional layers only", "sobolev", "upper", "layers",
        lambda s: 2 * s.dimension / (s.dimension + 2),
        "sup", "ReLU", "depth as counted", "sup",
        log_power=lambda s: s.dimension / (s.dimension + 2),
        hypotheses=(
            _WHOLE, _SQUARE, _NO_DERIVATIVE,
            ("the smoothness must exceed d/2 + 2", lambda s: s.smoothness > s.dimension / 2 + 2),
        ),
        printed=lambda s: 1 / s.dimension,
        erratum="printed with a depth of 1/error to the power 1/d, below what labels allow",
    ),
    RateTheorem(
        "L-075", "one box of ReLUs a cell", "sobolev", "upper", "units",
        lambda s: float(s.dimension), "L1", "ReLU", "2 hidden layers", "mean",
        continuous=True, hypotheses=(_WHOLE, _SUP, _NO_DERIVATIVE),
        number=lambda s: box_units(s.error, s.dimension, float(s.dimension)),
    ),
    RateTheorem(
        "X-16", "weights chosen continuously (nonlinear widths)", "lipschitz", "lower", "weights",
        lambda s: float(s.dimension), "sup", "any", "any", "sup", continuous=True,
        log10_prefactor=lambda s: s.dimension * math.log10(s.lipschitz),
        hypotheses=(_SUP,),
        number=lambda s: CountedSize(
            continuous_selection_minimum(s.error, 1, s.dimension, lipschitz=s.lipschitz)
        ),
    ),
    RateTheorem(
        "X-31", "partition of unity times values", "lipschitz", "upper", "units",
        lambda s: float(s.dimension), "sup", "ReLU", "depth of order log(1/error)", "sup",
        log_power=lambda s: 1.0, continuous=True,
        log10_prefactor=lambda s: s.dimension * math.log10(s.lipschitz),
    ),
    RateTheorem(
        "L-071", "steps", "lipschitz", "upper", "units", lambda s: 1.0,
        "sup", "threshold", "1 hidden layer", "sup", shallow=True, continuous=True,
        hypotheses=(_LINE,),
        number=lambda s: interpolant_units(s.error, lipschitz=s.lipschitz),
    ),
    RateTheorem(
        "L-071", "broken line through equally spaced values", "lipschitz", "upper", "units",
        lambda s: 1.0, "sup", "ReLU", "1 hidden layer", "sup", shallow=True, continuous=True,
        hypotheses=(_LINE,),
        number=lambda s: interpolant_units(s.error, lipschitz=s.lipschitz),
    ),
    RateTheorem(
        "L-075", "one box of ReLUs a cell", "lipschitz", "upper", "units",
        lambda s: float(s.dimension), "L1", "ReLU", "2 hidden layers", "mean", continuous=True,
        number=lambda s: box_units(s.error, s.dimension, s.lipschitz),
    ),
    RateTheorem(
        "X-42, X-43", "bits of a description", "holder", "lower", "weights",
        _d_over_n, "L2", "any", "any", "mean", encodable=True,
        hypotheses=(
            _WHOLE, ("it is about a finite p of at least 2", lambda s: 2 <= s.p < math.inf),
        ),
    ),
    RateTheorem(
        "X-38", "depth fixed, weights of few bits", "holder", "upper", "weights",
        _d_over_n, "Lp", "ReLU", "fixed depth", "mean",
        encodable=True, hypotheses=(_FINITE_P,),
        erratum="the printed depth log(n) n/d is not positive for n <= 1",
    ),
    RateTheorem(
        "X-19, N-34", "sampled from the Fourier integral", "barron", "upper", "units",
        lambda s: 2.0, "L2", "sigmoidal or threshold", "1 hidden layer", "mean", shallow=True,
        hypotheses=(_SQUARE,),
        number=lambda s: barron_units(s.error, s.barron_constant, s.radius),
    ),
    RateTheorem(
        "X-19", "Fourier integral, sampled in strata", "barron", "upper", "units",
        lambda s: 2 * s.dimension / (s.dimension + 1),
        "L2", "sigmoidal or threshold", "1 hidden layer", "mean", shallow=True,
        hypotheses=(_SQUARE,),
    ),
    RateTheorem(
        "X-42, X-43", "bits of a description", "cartoon", "lower", "weights",
        lambda s: 2 * (s.dimension - 1) / s.smoothness, "L2", "any", "any", "mean",
        encodable=True, hypotheses=(_ONE_OR_TWO, _PLANE, _SQUARE),
    ),
    RateTheorem(
        "X-48", "shearlets by networks", "cartoon", "upper", "weights",
        lambda s: 2 / s.smoothness, "L2", "ReLU or smooth", "fixed depth", "mean",
        encodable=True,
        hypotheses=(_ONE_OR_TWO, _SQUARE, ("it is about the plane", lambda s: s.dimension == 2)),
    ),
    RateTheorem(
        "X-50", "bits of a description", "piecewise-holder", "lower", "weights",
        lambda s: s.p * (s.dimension - 1) / s.smoothness, "Lp", "any", "any", "mean",
        encodable=True, hypotheses=(_PLANE, _FINITE_P),
    ),
    RateTheorem(
        "X-50", "horizon functions pieced together", "piecewise-holder", "upper", "weights",
        lambda s: s.p * (s.dimension - 1) / s.smoothness,
        "Lp", "ReLU", "fixed depth", "mean",
        encodable=True, hypotheses=(_PLANE, _FINITE_P),
    ),
    RateTheorem(
        "X-53", "sparse grid of hats", "korobov", "upper", "units", lambda s: 0.5,
        "sup", "ReLU", "depth of order log(1/error) log(d)", "sup",
        log_power=lambda s: 1.5 * (s.dimension - 1) + 1, hypotheses=(_TWICE,),
    ),
    RateTheorem(
        "X-56", "charts and wavelets", "manifold", "upper", "weights",
        lambda s: s.dimension / 2, "sup", "ReLU", "3 hidden layers", "sup",
        log10_prefactor=lambda s: math.log10(s.dimension * s.charts),
        offset=lambda s: float(s.ambient * s.charts),
        hypotheses=(_TWICE,),
    ),
    RateTheorem(
        "X-56", "charts and wavelets", "manifold-wavelet", "upper", "weights",
        lambda s: 2.0, "L2", "ReLU", "3 hidden layers", "mean",
        log10_prefactor=lambda s: math.log10(s.dimension * s.charts**2),
        offset=lambda s: float(s.ambient * s.charts),
        hypotheses=(_SQUARE,),
        printed=lambda s: 1.0,
        erratum="printed with the exponent 1, which is that of the squared error",
    ),
)  # fmt: skip


def theorems_of(function_class: str) -> list[RateTheorem]:
    """The rows of a class.

    >>> [row.id for row in theorems_of("korobov")]
    ['X-53']
    """
    if function_class not in FUNCTION_CLASSES:
        raise UnknownName("function class", function_class, FUNCTION_CLASSES)
    return [row for row in THEOREMS if row.function_class == function_class]


def speaks_about(lower: RateTheorem, upper: RateTheorem, setting: Setting) -> bool:
    """Whether the networks of an upper bound are among those a lower bound speaks about.

    Its kind of depth, of activation and of weights must be met, its error not be stronger, and
    both must apply. Weights are no fewer than units, and of the same order where only the last
    layer or a fixed number of weights a layer belongs to a unit.
    """
    if lower.function_class != upper.function_class:
        return False
    if lower.side != "lower" or upper.side != "upper":
        return False
    if lower.missing(setting) or upper.missing(setting):
        return False
    if _strength(lower, setting) > _strength(upper, setting):
        return False
    return (
        (upper.shallow or not lower.shallow)
        and (upper.continuous or not lower.continuous)
        and (upper.encodable or not lower.encodable)
        and (lower.activation != "ReLU" or upper.activation == "ReLU")
    )


def _strength(row: RateTheorem, setting: Setting) -> int:
    """Norms in the order of strength: L1, Lp, sup, sup with derivatives."""
    if row.norm == "L1":
        return 0
    if row.errors_in == "sup":
        return 3 if row.side == "lower" and setting.order else 2
    # an L_p norm with p = inf is the sup norm
    sup = math.isinf(setting.p) and row.norm != "L2"
    return (3 if row.errors_in == "derivative" else 2) if sup else 1


def exponent_gaps(setting: Setting, *, as_printed: bool = False) -> list[tuple[str, str, float]]:
    """Upper minus lower exponent for every pair of rows that compare; none may be negative.

    Args:
        as_printed: with the exponents of the source, also where the errata correct them.

    >>> flat = Setting(smoothness=2, dimension=3, error=0.1, p=2.0)
    >>> min(gap for *_, gap in exponent_gaps(flat)) >= 0
    True
    >>> min(gap for *_, gap in exponent_gaps(flat, as_printed=True)) < 0
    True
    """
    found = []
    for lower in THEOREMS:
        for upper in THEOREMS:
            if speaks_about(lower, upper, setting):
                gap = _exponent(upper, setting, as_printed) - _exponent(lower, setting, as_printed)
                found.append((lower.id, upper.id, gap))
    return found


def _exponent(row: RateTheorem, setting: Setting, as_printed: bool) -> float:
    if as_printed and row.printed is not None:
        return row.printed(setting)
    return row.exponent(setting)


def depth_for_weights(
    smoothness: float, dimension: int, weights_exponent: float
) -> tuple[float, float]:
    r"""Exponents of the weights and of the layers: $(\zeta,\ d/n-\zeta)$.

    For $\zeta\in[d/2n,d/n)$ (Yarotsky and Zhevnerchuk 2020). At $\zeta=d/2n$ both are
    equal: a network of bounded width.

    >>> depth_for_weights(2, 4, 1.0)
    (1.0, 1.0)
    """
    setting = Setting(smoothness, dimension, 0.5, weights_exponent=weights_exponent)
    return setting.traded, _d_over_n(setting) - setting.traded


def code_exponent(function_class: str, smoothness: float, dimension: int) -> float:
    r"""The optimal exponent $\gamma^*$: $d/n$ for `holder`, $2(d-1)/n$ for
    `cartoon` ($n\in\{1,2\}$).

    >>> code_exponent("holder", 2, 3), code_exponent("cartoon", 2, 3)
    (1.5, 2.0)
    """
    rows = [r for r in theorems_of(function_class) if r.id.startswith("X-42")]
    if not rows:
        raise InvalidInput(f"no optimal exponent is stated for the class {function_class!r}")
    setting = Setting(smoothness, dimension, 0.5, p=2.0)
    missing = rows[0].missing(setting)
    if missing:
        raise InvalidInput(f"the optimal exponent is not stated here: {missing}")
    return rows[0].exponent(setting)

r"""A theorem on the size of networks, as a row that can be asked and compared.

A row says: for the functions of a class and an error $\epsilon$ in a norm, the size is of
order $\epsilon^{-a}\log_2^b(1/\epsilon)$, from below for every network of a kind or from
above for some. Exponents are functions of the `Setting`: the smoothness $n$, the
dimension $d$ and whatever else the theorem asks for. The rows themselves stand in
`table`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from torchtheory.approximation.rates.explicit_sizes import CountedSize
from torchtheory.core.checks import positive_number, whole_number
from torchtheory.core.errors import InvalidInput

#: The classes of functions, each in words.
FUNCTION_CLASSES = {
    "sobolev": "unit ball of W^(n,p) on [0,1]^d, n whole",
    "holder": "unit ball of C^n on a cube, n > 0 (also fractions)",
    "lipschitz": "functions with Lipschitz constant rho in the maximum norm on [0,1]^d",
    "barron": "functions on a ball of radius r with Fourier moment C",
    "cartoon": "f1 + 1_B f2 with f1, f2 and the edge of B in the unit ball of C^n, d >= 2",
    "piecewise-holder": "1_K g with the edge of K in C^n and g in C^(dn/(p(d-1))), d >= 2",
    "korobov": "mixed derivatives up to order 2 in each variable, 0 at the boundary of [0,1]^d",
    "manifold": "twice differentiable functions on a d-dimensional manifold in R^D",
    "manifold-wavelet": "functions on such a manifold with summable wavelet coefficients",
}


#: Sizes grow as powers of the dimension: beyond, they take long to count and say nothing more.
_LARGEST = 100_000


@dataclass(frozen=True, slots=True)
class Setting:
    r"""What a row is asked about.

    Attributes:
        smoothness: $n$.
        dimension: $d$.
        error: $\epsilon$, in the norm below.
        p: the norm of the class $W^{n,p}$ and of an $L_p$ error; infinite for sup.
        order: $r$, derivatives the error counts: its norm is that of $W^{r,p}$.
        lipschitz: $\rho$.
        barron_constant: $C$.
        radius: $r$ of the ball.
        ambient: $D$.
        charts: $C_K$ of the manifold.
        weights_exponent: $\zeta$, where depth is traded for weights;
            $d/2n$ unless told.
    """

    smoothness: float
    dimension: int
    error: float
    p: float = math.inf
    order: float = 0.0
    lipschitz: float = 1.0
    barron_constant: float = 1.0
    radius: float = 1.0
    ambient: int = 100
    charts: int = 1
    weights_exponent: float | None = None

    def __post_init__(self) -> None:
        for name in ("smoothness", "lipschitz", "barron_constant", "radius"):
            positive_number(getattr(self, name), name)
        for name in ("dimension", "ambient", "charts"):
            if whole_number(getattr(self, name), name, least=1) > _LARGEST:
                raise InvalidInput(f"the {name} is at most {_LARGEST}, not {getattr(self, name)}")
        if not 0 < self.error < 1:
            raise InvalidInput(f"the error lies strictly between 0 and 1, not at {self.error!r}")
        if not self.p > 0:
            raise InvalidInput(f"p is a positive number or inf, not {self.p!r}")
        if not 0 <= self.order <= 1:
            raise InvalidInput(f"the error counts 0 to 1 derivatives, not {self.order!r}")
        low, high = self.dimension / (2 * self.smoothness), self.dimension / self.smoothness
        if self.weights_exponent is not None and not low <= self.weights_exponent < high:
            raise InvalidInput(
                f"weights can be traded for depth down to the exponent d/2n = {low:g} and below "
                f"d/n = {high:g}, not at {self.weights_exponent:g}"
            )

    @property
    def whole(self) -> bool:
        """Whether the smoothness is a whole number."""
        return self.smoothness == int(self.smoothness)

    @property
    def traded(self) -> float:
        r"""$\zeta$."""
        if self.weights_exponent is not None:
            return self.weights_exponent
        return self.dimension / (2 * self.smoothness)


Exponent = Callable[[Setting], float]
Hypothesis = tuple[str, Callable[[Setting], bool]]


@dataclass(frozen=True, slots=True)
class RateTheorem:
    r"""One row: what a theorem says about the size.

    Attributes:
        id: the catalogue's ids.
        name: the theorem in a few words.
        function_class: one of `FUNCTION_CLASSES`.
        side: whether the size is needed (`lower`) or enough (`upper`).
        counts: what the size counts.
        exponent: $a$ of $\epsilon^{-a}$.
        log_power: $b$ of $\log_2^b(1/\epsilon)$.
        norm: of the error, in words.
        activation: which networks.
        depth: of the networks, as a formula in words.
        shallow: one hidden layer.
        continuous: lower: speaks only about weights that depend continuously on the function;
            upper: its weights do.
        encodable: the same for weights of $O(\log1/\epsilon)$ bits.
        hypotheses: what must hold, each with its words.
        errors_in: `sup`, `mean` (an $L_p$ norm, `p` finite) or `derivative`; a bound
            from below in a norm holds in every stronger one.
        log10_prefactor, offset: what stands beside the power: `offset + prefactor * power`; the
            logarithm, as a constant to the power of the dimension does not fit into a float.
        layers_exponent: where the depth is itself a power of the error.
        number: the size with its constant, where it is known; may give None where it is not.
        printed: the exponent as the source prints it, where that is wrong.
        erratum: what is wrong about it.
    """

    id: str
    name: str
    function_class: str
    side: Literal["lower", "upper"]
    counts: Literal["units", "weights", "layers"]
    exponent: Exponent
    norm: str
    activation: str
    depth: str
    errors_in: Literal["sup", "mean", "derivative"]
    log_power: Exponent = lambda s: 0.0
    shallow: bool = False
    continuous: bool = False
    encodable: bool = False
    hypotheses: tuple[Hypothesis, ...] = ()
    log10_prefactor: Exponent = lambda s: 0.0
    offset: Exponent = lambda s: 0.0
    layers_exponent: Exponent | None = None
    number: Callable[[Setting], CountedSize | None] | None = None
    printed: Exponent | None = None
    erratum: str = ""

    def missing(self, setting: Setting) -> str:
        """Why the row does not apply, or nothing if it does."""
        return "; ".join(words for words, holds in self.hypotheses if not holds(setting))

    def norm_in_words(self, setting: Setting) -> str:
        """The norm of the error, with the setting's numbers."""
        if self.errors_in == "derivative":
            return f"W^({setting.order:g},{setting.p:g})"
        if self.norm == "Lp":
            return "sup" if math.isinf(setting.p) else f"L{setting.p:g}"
        if self.norm.startswith("sup"):
            counted = self.norm != "sup" and setting.order
            return "sup, with derivatives" if counted else "sup"
        if self.norm == "L1" and setting.p > 1:
            return "L1, weaker than asked"
        return self.norm

    def log10_order(self, setting: Setting) -> float:
        r"""$\log_{10}$ of the power with its logarithm, constant 1."""
        log = math.log10(max(1.0, math.log2(1 / setting.error)))
        power = -self.exponent(setting) * math.log10(setting.error) + self.log_power(setting) * log
        power += self.log10_prefactor(setting)
        offset = self.offset(setting)
        if not offset:
            return power
        larger, smaller = max(power, math.log10(offset)), min(power, math.log10(offset))
        return larger + math.log10(1 + 10 ** (smaller - larger))

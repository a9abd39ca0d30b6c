r"""How large any network must be: counting continuous parameters, and counting labelings.

*Continuous selection.* Let every $f$ of the unit ball $F^\infty_{n,d}$ of
$W^{n,\infty}([0,1]^d)$ be encoded by $M$ numbers that depend continuously on it, and
decoded in any way. With $m=\lceil(M+1)^{1/d}\rceil$ cells a side, the sums of bumps of
height at most $\rho=c_\phi m^{-n}$ lie in the ball; their coefficients form a cube of more
than $M$ dimensions, so by Borsuk and Ulam some $f$ of height $\rho$ has the same
code as $-f$, and whatever is decoded misses one of the two by $\rho$ or more.

*Labels.* Without continuity: an architecture that meets every function of the ball within
$\epsilon$ shatters $N^d$ points once $N^{-n}c_\phi>2\epsilon$, and a ReLU network
of $M$ weights shatters at most $4M(3M+4)$.
Sources: Mathematical Aspects of Deep Learning, Theorems 3.7 and 3.12 (DeVore, Howard and
Micchelli 1989; Yarotsky 2017).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from scipy import optimize
from torch import Tensor

from torchtheory.approximation.piecewise.boxes import cell_centers
from torchtheory.approximation.piecewise.bumps import BumpSum, SplineBump
from torchtheory.core.checks import first_entry, positive_number, whole_number
from torchtheory.core.errors import InvalidInput, NonFinite, NotConverged, ShapeMismatch
from torchtheory.core.random import RandomSource, as_generator
from torchtheory.generalization.vc.bounds import first_whole_number
from torchtheory.generalization.vc.networks import anthony_bartlett_vc_bound

Encoder = Callable[[BumpSum], Tensor]

#: Whole numbers are counted up to this many bits; arithmetic with longer ones takes for ever.
MOST_BITS = 1 << 20

#: Codes that differ by no more than this are the same one.
_SAME_CODE = 1e-9


def selection_cells(parameters: int, dimension: int) -> int:
    r"""$\lceil(M+1)^{1/d}\rceil$: that many cells a side are more than $M$ cells.

    >>> selection_cells(7, 3), selection_cells(8, 3)
    (2, 3)
    """
    whole_number(parameters, "parameters", least=0)
    whole_number(dimension, "dimension", least=1)
    return first_whole_number(lambda m: m**dimension > parameters, 1)


def continuous_selection_floor(
    parameters: int, smoothness: int, dimension: int, *, lipschitz: float | None = None
) -> float:
    r"""No $M$ continuously chosen parameters have a smaller worst sup error.

    $c_\phi\lceil(M+1)^{1/d}\rceil^{-n}$ over the unit ball of $W^{n,\infty}$, see
    `SplineBump` for $c_\phi$. With `lipschitz`
    the class is that of the functions $\rho$-Lipschitz in the maximum norm, `smoothness`
    is 1, and a cell holds a pyramid of height $\rho/2m$.

    >>> continuous_selection_floor(9, 1, 1, lipschitz=1.0)
    0.05
    >>> round(continuous_selection_floor(9, 2, 1) * 1600, 9)
    1.0
    """
    cells = selection_cells(parameters, dimension)
    return _constant(smoothness, dimension, lipschitz) * float(cells) ** -smoothness


def continuous_selection_minimum(
    error: float, smoothness: int, dimension: int, *, lipschitz: float | None = None
) -> int:
    r"""The fewest parameters `continuous_selection_floor` does not exclude for an error.

    $(\lceil(c_\phi/\epsilon)^{1/n}\rceil-1)^d$.

    >>> continuous_selection_minimum(0.05, 1, 1, lipschitz=1.0)
    9
    >>> continuous_selection_minimum(0.01, 1, 10, lipschitz=1.0) == 49**10
    True
    """
    whole_number(dimension, "dimension", least=1)
    constant = _constant(smoothness, dimension, lipschitz)
    ratio = (constant / positive_number(error, "error")) ** (1 / smoothness)
    cells = max(1, math.ceil(ratio - 1e-9))
    return _countable_power(cells - 1, dimension)


@dataclass(frozen=True, slots=True)
class SelectionWitness:
    r"""A function an encoder confuses with its negative.

    Attributes:
        function: $f$ of the unit ball of $W^{n,\infty}([0,1]^d)$.
        radius: $\|f\|_\infty$; one of $f,-f$ is met no better than that.
        residual: $\|P(f)-P(-f)\|_\infty$, 0 up to rounding.
        peaks: `[k, d]`, the middles of the cells, where $|f|$ attains its values.
    """

    function: BumpSum
    radius: float
    residual: float
    peaks: Tensor

    def worst_error(
        self, encode: Encoder, decode: Callable[[Tensor], Callable[[Tensor], Tensor]]
    ) -> float:
        r"""The larger sup error of decoding $f$ and $-f$, looked for at the peaks."""
        missed = []
        for f in (self.function, -self.function):
            made = decode(encode(f))
            missed.append(float((f(self.peaks) - made(self.peaks)).abs().max()))
        return max(missed)


def linear_witness(
    encoder: Encoder, parameters: int, smoothness: int, dimension: int = 1
) -> SelectionWitness:
    r"""The witness against a linear encoder: a null vector of the $M\times m^d$ matrix
    $(P\phi_i)$.

    Args:
        encoder: from a function (called at points `[k, d]`, giving `[k]`) to `[M]`; its
            linearity is tested on a random sum.
        parameters: $M$.

    Cost: $m^d$ calls of the encoder and a singular value decomposition.

    >>> nodes = torch.tensor([[0.25], [0.75]]).double()
    >>> found = linear_witness(lambda f: f(nodes), 2, smoothness=1)
    >>> round(found.radius, 9), found.residual              # 1 / (2 * 3)
    (0.166666667, 0.0)
    """
    bump, cells, peaks, radius = _bumps(parameters, smoothness, dimension)
    count = len(peaks)
    unit = torch.eye(count, dtype=torch.float64)
    columns = [_code(encoder, BumpSum(e, cells, radius, bump), parameters) for e in unit]
    matrix = torch.stack(columns, dim=1)
    test = torch.linspace(-1, 1, count, dtype=torch.float64) ** 3 + 0.3
    met = _code(encoder, BumpSum(test, cells, radius, bump), parameters)
    scale = float(matrix.abs().max()) or 1.0
    if not torch.allclose(met, matrix @ test, rtol=1e-8, atol=1e-8 * scale):
        raise InvalidInput("the encoder is not linear; antipodal_witness takes any continuous one")
    null = torch.linalg.svd(matrix, full_matrices=True).Vh[-1]
    return _witness(encoder, null / null.abs().max(), bump, cells, radius, peaks, parameters)


def antipodal_witness(
    encoder: Encoder,
    parameters: int,
    smoothness: int,
    dimension: int = 1,
    *,
    attempts: int = 20,
    generator: RandomSource = None,
) -> SelectionWitness:
    r"""The witness against any continuous encoder: $v$ with $P(f_v)=P(f_{-v})$.

    Borsuk and Ulam promise it on the boundary of the cube $\|v\|_\infty=1$; it is looked for
    by Gauss-Newton steps on the odd map $v\mapsto P(f_v)-P(f_{-v})$ from random starts,
    which may fail for a wild encoder: then `NotConverged`, and nothing is proved or refuted.

    >>> nodes = torch.tensor([[0.2], [0.9]]).double()
    >>> found = antipodal_witness(lambda f: torch.atan(9 * f(nodes)) + f(nodes)[0] ** 3, 2, 1)
    >>> found.residual < 1e-9
    True
    """
    bump, cells, peaks, radius = _bumps(parameters, smoothness, dimension)
    generator = as_generator(generator)

    def on_cube(v: np.ndarray[tuple[int], np.dtype[np.float64]]) -> BumpSum:
        coefficients = torch.from_numpy(v / np.abs(v).max())
        return BumpSum(coefficients, cells, radius, bump)

    def odd(v: np.ndarray[tuple[int], np.dtype[np.float64]]) -> list[float]:
        f = on_cube(v)
        gap = _code(encoder, f, parameters) - _code(encoder, -f, parameters)
        # a last equation keeps the free scale of v from drifting to 0
        return [*gap.tolist(), float(np.abs(v).max()) - 1.0]

    best = math.inf
    for _ in range(whole_number(attempts, "attempts", least=1)):
        start = torch.randn(len(peaks), dtype=torch.float64, generator=generator).numpy()
        found = optimize.least_squares(odd, start, xtol=1e-15, ftol=1e-15, gtol=1e-15)
        residual = float(np.abs(found.fun[:-1]).max(initial=0.0))
        if residual <= _SAME_CODE:
            f = on_cube(found.x).coefficients
            return _witness(encoder, f, bump, cells, radius, peaks, parameters)
        best = min(best, residual)
    raise NotConverged(
        f"no function with the code of its negative was found in {attempts} attempts; the codes "
        f"still differ by {best:.1e}"
    )


def weights_vc_bound(parameters: int, *, derivative: int = 0) -> int:
    r"""$4M(3M+4)$: no ReLU network with $M$ weights and biases shatters more points.

    A class with $M$ real parameters computed in $t$ additions, multiplications and
    comparisons has VC dimension at most $4M(t+2)$ (Anthony and Bartlett 1999, Theorem 8.4).
    Each weight costs a product and a sum, each of at most $M$ units a comparison, the
    threshold and the output one step each: $t\le3M+2$. A partial derivative of the network
    (`derivative` 1) is carried along with another product and sum a weight: $t\le5M+2$.

    >>> weights_vc_bound(10), weights_vc_bound(10, derivative=1)
    (1360, 2160)
    """
    whole_number(parameters, "parameters", least=1)
    if derivative not in (0, 1):
        raise InvalidInput(f"derivative is 0 or 1, not {derivative}")
    return 4 * parameters * ((3 + 2 * derivative) * parameters + 4)


def label_cells(error: float, smoothness: int, dimension: int, *, derivative: int = 0) -> int:
    r"""$N$, the most cells a side whose labels survive an error $\epsilon$.

    The levels 0 and $c_\phi N^{-n}$ must be more than $2\epsilon$ apart; with three
    times $\epsilon$, as in the proof, $N=\lfloor(c_\phi/3\epsilon)^{1/n}\rfloor$. With
    `derivative` 1 the error is that of $W^{1,\infty}$, and slopes carry the labels:
    $\|\partial_1\phi\|_\infty c_\phi N^{1-n}$ against 0.

    >>> label_cells(1e-4, 2, 1), label_cells(1e-4, 2, 1, derivative=1)
    (14, 833)
    """
    bump = SplineBump(smoothness, dimension)
    if derivative not in (0, 1) or derivative >= smoothness:
        raise InvalidInput(
            f"derivative is 0, or 1 for a smoothness of at least 2 (derivative = {derivative!r}, "
            f"smoothness = {smoothness!r})"
        )
    level = bump.height * bump.derivative_norms[derivative]
    ratio = level / (3 * positive_number(error, "error"))
    return int(ratio ** (1 / (smoothness - derivative)) + 1e-9)


def vc_minimum_weights(
    error: float,
    smoothness: int,
    dimension: int,
    *,
    derivative: int = 0,
    layers: int | None = None,
) -> int:
    r"""The fewest weights of a ReLU architecture that meets all of $F^\infty_{n,d}$.

    The smallest $M$ whose `weights_vc_bound` is at least $N^d$, $N$ from
    `label_cells`; for a given number of layers, and the function itself, also with
    $N^d$ at most the bound of Anthony and Bartlett for $M$ weights and units in so
    many layers. No continuity is asked of the weights.

    >>> vc_minimum_weights(1e-4, 2, 1), vc_minimum_weights(1e-6, 2, 4)
    (1, 5986)
    """
    if layers is not None:
        whole_number(layers, "layers", least=1)
    points = _countable_power(
        label_cells(error, smoothness, dimension, derivative=derivative), dimension
    )

    # the root of 4M(aM + 4) = points: the numbers have hundreds of digits in high dimension
    a = 3 + 2 * derivative
    least = max(1, (math.isqrt(4 + a * points) - 4) // (2 * a))
    while weights_vc_bound(least, derivative=derivative) < points:
        least += 1
    if layers is None or derivative:
        return least
    return first_whole_number(
        lambda m: anthony_bartlett_vc_bound(max(m, 2), m, layers) >= points, max(least, layers)
    )


def _countable_power(cells: int, dimension: int) -> int:
    if dimension * cells.bit_length() > MOST_BITS:
        raise InvalidInput(
            f"{cells:.3g} cells per side in {dimension} dimensions are more than 2^{MOST_BITS}: "
            "too many to count one by one"
        )
    power: int = cells**dimension
    return power


def _constant(smoothness: int, dimension: int, lipschitz: float | None) -> float:
    if lipschitz is None:
        return SplineBump(smoothness, dimension).height
    if smoothness != 1:
        raise InvalidInput(f"Lipschitz functions have smoothness 1, not {smoothness!r}")
    return positive_number(lipschitz, "lipschitz") / 2


def _bumps(
    parameters: int, smoothness: int, dimension: int
) -> tuple[SplineBump, int, Tensor, float]:
    whole_number(parameters, "parameters", least=1)
    bump = SplineBump(smoothness, dimension)
    cells = selection_cells(parameters, dimension)
    peaks = cell_centers(((0.0, 1.0),) * dimension, cells)
    return bump, cells, peaks, bump.height * float(cells) ** -smoothness


def _code(encoder: Encoder, f: BumpSum, parameters: int) -> Tensor:
    code = encoder(f)
    if not isinstance(code, Tensor) or code.numel() != parameters:
        raise ShapeMismatch(f"the encoder must give {parameters} numbers")
    code = code.detach().double().flatten()
    if not bool(torch.isfinite(code).all()):
        raise NonFinite(
            "the encoder gives numbers that are not finite: "
            f"{first_entry(code, 'the value', ~torch.isfinite(code))}"
        )
    return code


def _witness(
    encoder: Encoder,
    coefficients: Tensor,
    bump: SplineBump,
    cells: int,
    radius: float,
    peaks: Tensor,
    parameters: int,
) -> SelectionWitness:
    f = BumpSum(coefficients, cells, radius, bump)
    gap = _code(encoder, f, parameters) - _code(encoder, -f, parameters)
    return SelectionWitness(f, radius, float(gap.abs().max()), peaks)

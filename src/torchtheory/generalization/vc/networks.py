r"""VC dimension of networks with piecewise polynomial activations.

Orders of magnitude as the literature states them, never to be read as certified values, and an
upper bound with explicit constants, derived as in Bartlett, Harvey, Liaw and Mehrabian (2019).

Fix $m$ inputs and process the layers in turn. Once the parameters of the first
$i-1$ layers lie in one cell of a partition of parameter space, the inputs of the
$k_i$ units of layer $i$ are polynomials of degree $D_i=1+\ell D_{i-1}$,
$D_1=1$, in the $W_i$ parameters of the layers up to $i$, where $\ell$ is
the degree of the activation. Their signs relative to its $p-1$ breakpoints are those of
$M_i=mk_i(p-1)$ polynomials, which take at most
$\min(2^{M_i},\,2(2eM_iD_i/W_i)^{W_i})$ values (for $M_i\ge W_i$; Anthony and Bartlett,
Theorem 8.3), and each of these refines the cell. The output is one polynomial an input. The
product of the counts bounds the number of labelings of $m$ points.
Sources: Mathematical Aspects of Deep Learning, Theorem 1.20 and section 1.2.2; Foundations of
Deep Learning, section 8.3.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate, pairwise

from torchtheory.core.errors import InvalidInput
from torchtheory.generalization.vc.bounds import first_whole_number
from torchtheory.nets.feedforward import parameter_count


def piecewise_linear_vc_order(parameters: int, layers: int) -> float:
    r"""$P\,L\log P$, the upper order of the VC dimension of piecewise linear networks.

    Up to a constant that is not stated. Source: Foundations of Deep Learning, section 8.3.

    >>> round(piecewise_linear_vc_order(1000, 3))
    20723
    """
    _check_size(parameters, layers)
    return parameters * layers * math.log(parameters)


def piecewise_linear_vc_lower_order(parameters: int, layers: int) -> float:
    r"""$P\,L\log(P/L)$, the order some ReLU network of this size attains.

    Up to a constant that is not stated, for $P$ above a constant times $L$.
    Source: Mathematical Aspects of Deep Learning, section 1.2.2 (Bartlett et al. 2019).

    >>> piecewise_linear_vc_lower_order(1000, 3) < piecewise_linear_vc_order(1000, 3)
    True
    """
    _check_size(parameters, layers)
    if parameters <= layers:
        raise InvalidInput(f"{layers} layers have more than {parameters} parameters")
    return parameters * layers * math.log(parameters / layers)


def piecewise_polynomial_vc_order(parameters: int, layers: int) -> float:
    r"""$P\,L\log P+P\,L^2$, up to a constant that depends on the activation.

    Source: Mathematical Aspects of Deep Learning, Theorem 1.20.

    >>> round(piecewise_polynomial_vc_order(1000, 3))
    29723
    """
    return piecewise_linear_vc_order(parameters, layers) + parameters * layers**2


def log2_network_growth_bound(
    widths: Sequence[int], samples: int, *, pieces: int = 2, degree: int = 1
) -> float:
    r"""An upper bound of $\log_2S(m)$ for the signs of dense networks; see the module.

    Args:
        widths: `(N_0, ..., N_{L-1}, 1)`, every layer affine.
        samples: $m$.
        pieces, degree: of the activation; 2 and 1 for the ReLU.

    >>> log2_network_growth_bound((1, 2, 1), 3)          # too few points to say anything
    9.0
    >>> log2_network_growth_bound((2, 1), 100) < 100     # half-planes: W = 3, degree 1
    True
    """
    if len(widths) < 2 or widths[-1] != 1 or min(widths) < 1:
        raise InvalidInput(f"widths are (N_0, ..., 1) with positive numbers, not {tuple(widths)}")
    if samples < 1 or pieces < 1 or degree < 0:
        raise InvalidInput(
            "samples and pieces are at least 1, and a degree is not negative (samples = "
            f"{samples!r}, pieces = {pieces!r}, degree = {degree!r})"
        )
    counts = list(accumulate(parameter_count(pair) for pair in pairwise(widths)))
    total, power = 0.0, 1
    for layer, (width, parameters) in enumerate(zip(widths[1:], counts, strict=True), start=1):
        last = layer == len(counts)
        polynomials = samples * width * (1 if last else pieces - 1)
        bits = float(polynomials)
        if polynomials >= parameters:
            each = math.log2(2 * math.e * polynomials * power / parameters)
            bits = min(bits, 1 + parameters * each)
        total += bits
        power = 1 + degree * power
    return total


def network_vc_bound(widths: Sequence[int], *, pieces: int = 2, degree: int = 1) -> int:
    r"""An upper bound of the VC dimension of the signs of dense networks, constants included.

    The largest $m$ with $m\le\log_2$ of the bound of
    `log2_network_growth_bound`: more points cannot be shattered.

    >>> network_vc_bound((2, 1))                         # half-planes, whose VC dimension is 3
    15
    >>> network_vc_bound((2, 8, 1)) < network_vc_bound((2, 8, 8, 1))
    True
    """
    # the bound over m is 1 until the last layer's count turns polynomial, then falls for good
    least = parameter_count(widths)
    return (
        first_whole_number(
            lambda m: log2_network_growth_bound(widths, m, pieces=pieces, degree=degree) < m,
            least,
        )
        - 1
    )


def anthony_bartlett_vc_bound(
    parameters: int, units: int, layers: int, *, pieces: int = 2, degree: int = 1
) -> float:
    r"""$2WL\log_2(4WLpk/\ln2)+2WL^2\log_2(\ell+1)+2L$.

    $W$ parameters and $k$ units in $L$ layers, the output a threshold, the
    others with $p$ pieces of degree at most $\ell$ (Anthony and Bartlett 1999,
    Theorem 8.8). It needs no widths and is larger than `network_vc_bound`.

    >>> anthony_bartlett_vc_bound(33, 9, 2) > network_vc_bound((2, 8, 1))
    True
    """
    _check_size(parameters, layers)
    if units < layers or pieces < 1 or degree < 0:
        raise InvalidInput(
            f"there is at least one unit per layer, one piece and a degree >= 0 "
            f"(units = {units!r}, layers = {layers!r}, pieces = {pieces!r}, degree = {degree!r})"
        )
    first = (
        2 * parameters * layers * math.log2(4 * parameters * layers * pieces * units / math.log(2))
    )
    return first + 2 * parameters * layers**2 * math.log2(degree + 1) + 2 * layers


def _check_size(parameters: int, layers: int) -> None:
    if parameters < 2 or layers < 1:
        raise InvalidInput(
            f"a network has 2 parameters and 1 layer or more, not {parameters} and {layers}"
        )

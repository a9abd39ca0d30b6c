r"""The table of promises: what a theorem says of $f(x_k)$ under which assumptions.

Each row is a theorem on a descent method: which constants it needs, up to which step it holds, what
it bounds, and the bound at every $k$. `certify`
compares them with runs. Sources: Foundations of Deep Learning, sections 5.4 to 5.7; notes "Deep
Learning", section 3.3; for the heavy ball, Polyak (1964).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from torchtheory.core.checks import number_between

Kind = Literal[
    "quadratic",
    "strongly convex",
    "strongly convex distance",
    "convex",
    "smooth",
    "polyak-lojasiewicz",
    "stochastic",
    "averaged",
    "heavy ball",
    "nesterov",
    "nesterov strongly convex",
]
Measure = Literal[
    "gap", "squared distance", "best squared gradient", "mean squared gradient", "mean gap"
]
Effect = Literal["stronger", "weaker", "limit"]
"""What a larger constant does to a promise: demand more, demand less, or only lower the step."""

Values = Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Promise:
    r"""A theorem on a descent method.

    Attributes:
        title: the functions and the method, in words.
        statement: the inequality, LaTeX.
        measure: what it bounds.
        effect: the constants it takes besides the step, and what a larger value of each does to it.
        limit: the largest step it holds for, a key of `LIMITS`.
        curve: the bound at the times `[T]`.
        first: the first $k$ it speaks of.
        expected: whether it is about expectations.
        source: where it stands.
    """

    title: str
    statement: str
    measure: Measure
    effect: Mapping[str, Effect]
    limit: str
    curve: Callable[[Values, Tensor], Tensor]
    first: int = 0
    expected: bool = False
    source: str = "Foundations of Deep Learning, chapter 5"


LIMITS: Mapping[str, Callable[[Values], float]] = {
    "1/L": lambda c: 1 / c["smoothness"],
    "2/L": lambda c: 2 / c["smoothness"],
    "(1+√β)²/L": lambda c: (1 + math.sqrt(c["momentum"])) ** 2 / c["smoothness"],
    "no limit": lambda c: math.inf,
}
"""The largest step a theorem holds for, by its formula."""


def quadratic_factor(step: float, smallest: float, largest: float) -> float:
    r"""$\max_i|1-\eta\lambda_i|$ over eigenvalues in $[\lambda_{\min},\lambda_{\max}]$.

    >>> quadratic_factor(0.5, 1.0, 3.0)
    0.5
    """
    return max(abs(1 - step * smallest), abs(1 - step * largest))


def dominated_factor(step: float, dominance: float, smoothness: float) -> float:
    r"""The factor $1-\eta\mu(2-\eta L)$ of one step under the Polyak-Łojasiewicz inequality.

    $1-\mu/L$ at the step $1/L$, and $1-\frac34\mu/L$ at half of it. Where two
    estimates have $\mu>L$, which no function has, it is 0 rather than negative.

    >>> dominated_factor(0.5, 1.0, 2.0), dominated_factor(0.25, 1.0, 2.0)
    (0.5, 0.625)
    """
    return max(0.0, 1 - step * dominance * (2 - step * smoothness))


def heavy_ball_factors(momentum: float, times: Tensor) -> Tensor:
    r"""$\beta^{k/2}(1+k+k\sqrt\beta)$, the worst $\|x_k-x^\star\|/\|x_0-x^\star\|$.

    On a quadratic the error along an eigenvector is $p_k=\beta^{k/2}(U_k(t)-\sqrt\beta U_{k-1}(t))$
    with $t=(1+\beta-\eta\lambda)/(2\sqrt\beta)$ and Chebyshev polynomials of the
    second kind. While $(1-\sqrt\beta)^2\le\eta\lambda\le(1+\sqrt\beta)^2$ it is
    $|t|\le1$, and the size is largest at $t=-1$, where it is this.

    >>> heavy_ball_factors(0.25, torch.tensor([0, 1, 2])).tolist()
    [1.0, 1.25, 1.0]
    """
    number_between(momentum, "the momentum", 0, 1, closed="left")
    k = times.double()
    return momentum ** (k / 2) * (1 + k * (1 + math.sqrt(momentum)))


def _convex_factor(c: Values) -> float:
    return max(0.0, 1 - c["step"] * c["convexity"])


def _stationary(c: Values, k: Tensor) -> Tensor:
    slack = 1 - max(1.0, c["step"] * c["smoothness"]) / 2
    return c["gap"] / (c["step"] * slack * (k + 1)) if slack > 0 else torch.full_like(k, math.inf)


PROMISES: Mapping[Kind, Promise] = {
    "quadratic": Promise(
        "quadratics",
        r"f(x_k)-f^\star\le\max_i|1-\eta\lambda_i|^{2k}\,(f(x_0)-f^\star)",
        "gap",
        {"smoothness": "weaker", "convexity": "stronger", "minimum": "weaker"},
        "2/L",
        lambda c, k: (
            quadratic_factor(c["step"], c["convexity"], c["smoothness"]) ** (2 * k) * c["gap"]
        ),
    ),
    "strongly convex": Promise(
        "smooth and strongly convex functions",
        r"f(x_k)-f^\star\le\tfrac L2(1-\eta\mu)^k\|x_0-x^\star\|^2",
        "gap",
        {
            "smoothness": "weaker",
            "convexity": "stronger",
            "minimum": "weaker",
            "distance": "weaker",
        },
        "1/L",
        lambda c, k: c["smoothness"] / 2 * _convex_factor(c) ** k * c["distance"] ** 2,
    ),
    "strongly convex distance": Promise(
        "smooth and strongly convex functions",
        r"\|x_k-x^\star\|^2\le(1-\eta\mu)^k\|x_0-x^\star\|^2",
        "squared distance",
        {"smoothness": "limit", "convexity": "stronger", "distance": "weaker"},
        "1/L",
        lambda c, k: _convex_factor(c) ** k * c["distance"] ** 2,
    ),
    "convex": Promise(
        "smooth convex functions",
        r"f(x_k)-f^\star\le\frac{\|x_0-x^\star\|^2}{2\eta k}",
        "gap",
        {"smoothness": "limit", "minimum": "weaker", "distance": "weaker"},
        "1/L",
        lambda c, k: c["distance"] ** 2 / (2 * c["step"] * k),
        first=1,
    ),
    "smooth": Promise(
        "smooth functions, convex or not",
        r"\min_{i\le k}\|\nabla f(x_i)\|^2\le\frac{f(x_0)-f^\star}{\eta\,(1-\frac12\max(1,\eta L))"
        r"\,(k+1)}",
        "best squared gradient",
        {"smoothness": "weaker", "minimum": "stronger"},
        "2/L",
        _stationary,
    ),
    "polyak-lojasiewicz": Promise(
        "smooth functions with the Polyak-Łojasiewicz inequality",
        r"f(x_k)-f^\star\le(1-\eta\mu(2-\eta L))^k\,(f(x_0)-f^\star)",
        "gap",
        {"smoothness": "weaker", "dominance": "stronger", "minimum": "weaker"},
        "2/L",
        lambda c, k: dominated_factor(c["step"], c["dominance"], c["smoothness"]) ** k * c["gap"],
    ),
    "stochastic": Promise(
        "stochastic descent on smooth functions, with bounded gradients",
        r"\frac1k\sum_{i<k}\mathbb E\|\nabla f(x_i)\|^2\le\frac{f(x_0)-f^\star}{\eta k}"
        r"+\frac{L\eta\sigma^2}2",
        "mean squared gradient",
        {"smoothness": "weaker", "minimum": "stronger", "gradient_bound": "weaker"},
        "no limit",
        lambda c, k: (
            c["gap"] / (c["step"] * k) + c["smoothness"] * c["step"] * c["gradient_bound"] ** 2 / 2
        ),
        first=1,
        expected=True,
    ),
    "averaged": Promise(
        "averaged stochastic descent on convex functions, with bounded gradients",
        r"\mathbb E f(\bar x_k)-f^\star\le\frac1k\sum_{i<k}\mathbb E f(x_i)-f^\star"
        r"\le\frac{\|x_0-x^\star\|^2}{2\eta k}+\frac{\eta\sigma^2}2",
        "mean gap",
        {"minimum": "weaker", "distance": "weaker", "gradient_bound": "weaker"},
        "no limit",
        lambda c, k: (
            c["distance"] ** 2 / (2 * c["step"] * k) + c["step"] * c["gradient_bound"] ** 2 / 2
        ),
        first=1,
        expected=True,
    ),
    "heavy ball": Promise(
        "the heavy ball on quadratics",
        r"f(x_k)-f^\star\le\beta^k(1+k+k\sqrt\beta)^2\,(f(x_0)-f^\star)",
        "gap",
        {"smoothness": "limit", "convexity": "limit", "minimum": "weaker", "momentum": "weaker"},
        "(1+√β)²/L",
        lambda c, k: heavy_ball_factors(c["momentum"], k).square() * c["gap"],
        source="B. T. Polyak (1964); Foundations of Deep Learning, section 5.4, without momentum",
    ),
    "nesterov": Promise(
        "Nesterov's method on smooth convex functions",
        r"f(x_k)-f^\star\le\frac{2\|x_0-x^\star\|^2}{\eta(k+1)^2}",
        "gap",
        {"smoothness": "limit", "minimum": "weaker", "distance": "weaker"},
        "1/L",
        lambda c, k: 2 * c["distance"] ** 2 / (c["step"] * (k + 1) ** 2),
        first=1,
        source='notes "Deep Learning", section 3.3',
    ),
    "nesterov strongly convex": Promise(
        "Nesterov's method on smooth and strongly convex functions",
        r"f(x_k)-f^\star\le(1-\sqrt{\eta\mu})^k\bigl(f(x_0)-f^\star+\tfrac\mu2"
        r"\|x_0-x^\star\|^2\bigr)",
        "gap",
        {"smoothness": "limit", "convexity": "stronger", "minimum": "weaker", "distance": "weaker"},
        "1/L",
        lambda c, k: (
            max(0.0, 1 - math.sqrt(c["step"] * c["convexity"])) ** k
            * (c["gap"] + c["convexity"] / 2 * c["distance"] ** 2)
        ),
        source='notes "Deep Learning", section 3.3',
    ),
}
"""The theorems by the kind of function and method."""

POWER_LAWS: tuple[Kind, ...] = ("convex", "smooth", "stochastic", "averaged", "nesterov")
"""The kinds whose promise falls like a power of the time; the others fall geometrically."""

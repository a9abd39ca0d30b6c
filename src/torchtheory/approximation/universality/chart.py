r"""Which universality theorem covers which activation, and for which space of functions.

Each row of the chart is a theorem with its hypotheses on $\sigma$ and the spaces in which
networks with one hidden layer are dense under them. The hypotheses are checked on measured
properties of the function (`inspect_activation`).
Source: Mathematical Aspects of Deep Learning, section 3.2.1.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from torchtheory.core.errors import UnknownName
from torchtheory.nets.activations.properties import ActivationProperties, inspect_activation

Condition = Callable[[ActivationProperties], bool]

#: The spaces of the chart: K compact, mu a probability measure, n derivatives.
SPACES: tuple[str, ...] = ("C(K)", "C^n(K)", "L1(K)", "L2(K)", "Lp(mu)", "Wnp(K)")


def _limits(p: ActivationProperties) -> bool:
    return abs(p.left_limit) < 1e-6 and abs(p.right_limit - 1) < 1e-6


_CONDITIONS: dict[str, Condition] = {
    "continuous": lambda p: p.continuous,
    "bounded": lambda p: p.bounded,
    "increasing": lambda p: p.increasing,
    "not constant": lambda p: p.lowest < p.highest,
    "not a polynomial": lambda p: p.universal,
    "limits 0 and 1": _limits,
    # the theorems ask for as many derivatives as the space has; one is the first case
    "differentiable": lambda p: p.differentiable,
}


@dataclass(frozen=True, slots=True)
class UniversalityTheorem:
    """One row of the chart.

    Attributes:
        authors: and year.
        hypotheses: on the activation, in words; each can be checked.
        spaces: in which networks with one hidden layer are dense.
        method: of the proof.
    """

    authors: str
    hypotheses: tuple[str, ...]
    spaces: tuple[str, ...]
    method: str


#: The chart, in the order of the source.
UNIVERSALITY_CHART: tuple[UniversalityTheorem, ...] = (
    UniversalityTheorem(
        "Funahashi 1989",
        ("not constant", "bounded", "increasing", "continuous"),
        ("C(K)",),
        "Fourier and Paley-Wiener theory, the integral formula of Irie and Miyake",
    ),
    UniversalityTheorem(
        "Hornik, Stinchcombe and White 1989",
        ("increasing", "limits 0 and 1"),
        ("C(K)", "Lp(mu)"),
        "Stone-Weierstrass theorem",
    ),
    UniversalityTheorem(
        "Cybenko 1989",
        ("continuous", "limits 0 and 1"),
        ("C(K)", "L1(K)"),
        "Hahn-Banach and Riesz representation theorems",
    ),
    UniversalityTheorem(
        "Chui and Li 1992",
        ("continuous", "limits 0 and 1"),
        ("C(K)",),
        "discrete choices of weights and biases",
    ),
    UniversalityTheorem(
        "Gallant and White 1988, Hecht-Nielsen 1989",
        ("limits 0 and 1",),
        ("L2(K)",),
        "Fourier networks",
    ),
    UniversalityTheorem(
        "Carroll and Dickinson 1989",
        ("continuous", "limits 0 and 1"),
        ("L2(K)",),
        "Radon transform",
    ),
    UniversalityTheorem(
        "Hornik et al. 1990, Hornik 1991",
        ("differentiable", "bounded", "not constant"),
        ("C^n(K)", "Wnp(K)"),
        # the source asks for smoothness only, which polynomials have; Hornik for more
        "functional analysis; as many derivatives as the space asks for",
    ),
    UniversalityTheorem(
        "Leshno et al. 1993",
        ("continuous", "not a polynomial"),
        ("C(K)",),
        "monomials by derivatives in the weights, smoothing",
    ),
)


@dataclass(frozen=True, slots=True)
class TheoremCoverage:
    """Whether a theorem covers an activation.

    Attributes:
        theorem: the row of the chart.
        met: hypotheses the activation satisfies.
        failed: those it does not.
    """

    theorem: UniversalityTheorem
    met: tuple[str, ...]
    failed: tuple[str, ...]

    @property
    def applies(self) -> bool:
        return not self.failed


def which_universality(
    activation: Callable[[Tensor], Tensor], space: str | None = None
) -> list[TheoremCoverage]:
    r"""The theorems on a space, each with the hypotheses an activation meets and fails.

    Args:
        activation: a function or a module; see
            `inspect_activation`, which looks at
            [-10, 10] and at far points.
        space: one of `SPACES`, or all of them.

    >>> import torch
    >>> [c.theorem.authors for c in which_universality(torch.relu) if c.applies]
    ['Leshno et al. 1993']
    >>> which_universality(torch.relu, "L2(K)")[0].failed
    ('limits 0 and 1',)
    """
    if space is not None and space not in SPACES:
        raise UnknownName("space of the chart", space, SPACES)
    found = inspect_activation(activation)
    rows = []
    for theorem in UNIVERSALITY_CHART:
        if space is None or space in theorem.spaces:
            met = tuple(h for h in theorem.hypotheses if _CONDITIONS[h](found))
            failed = tuple(h for h in theorem.hypotheses if h not in met)
            rows.append(TheoremCoverage(theorem, met, failed))
    return rows

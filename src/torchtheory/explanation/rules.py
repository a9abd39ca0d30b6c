r"""Rules by which a layer hands the relevance of its outputs to its inputs.

A linear layer $z_k=\sum_jx_jw_{jk}+b_k$ hands on relevance in proportion to *contributions*
$c_{jk}$, in which the rules differ:

$$
R_j=\sum_k\frac{c_{jk}}{\sum_lc_{lk}+h(b_k)+\varepsilon\operatorname{sign}(\cdot)}R_k .
$$

| rule | contributions $c_{jk}$ | bias |
|---|---|---|
| `Zero` | $x_jw_{jk}$ | $b_k$ |
| `Epsilon` | $x_jw_{jk}$, and $\varepsilon$ in the denominator | $b_k$ |
| `Gamma` | $x_jw_{jk}+\gamma(x_jw_{jk})^+$ | $b_k+\gamma b_k^+$ |
| `AlphaBeta` | $\alpha$ times the positive ones, $-\beta$ times the negative ones | by its sign |
| `Flat` | 1 for every input that the output sees | none |
| `WSquare` | $w_{jk}^2$ | none |
| `ZBox` | $x_jw_{jk}-L_jw_{jk}^+-H_jw_{jk}^-$ | none |
| `RootPoint` | $v_jw_{jk}$ for a direction $v$ in which a root is searched | none |

A rule is a short table of `Part`s; how sums over contributions are computed for a convolution or a
pooling layer is not its business (`explanation.propagation`). Nothing is divided by 0: an output
with $\sum_lc_{lk}=0$ has nothing to hand on. Source: Mathematical Aspects of Deep Learning,
Table 5.1 and Eq. (5.13).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

import torch
from torch import Tensor

from torchtheory.core.checks import all_finite
from torchtheory.core.errors import InvalidInput

#: What a term takes of the inputs: themselves, their positive or negative part, ones, or another.
OfInput = Literal["itself", "positive", "negative", "one"] | Callable[[Tensor], Tensor]
OfWeight = Callable[[Tensor], Tensor]


#: A layer multiplies what is for and against an output by so much at most; half precision holds it.
_LARGEST_BETA = 1e4


@dataclass(frozen=True, slots=True)
class Term:
    r"""Contributions $a(x_j)\,g(w_{jk})$, one product of a function of the input and one of the weight.

    Attributes:
        of_input: $a$.
        of_weight: $g$, entry by entry; for coefficients that have no tensor, such as those of an
            average, it is asked for $g(1)$.
    """  # noqa: E501

    of_input: OfInput
    of_weight: OfWeight


@dataclass(frozen=True, slots=True)
class Part:
    r"""What a share of the relevance is proportional to: a sum of terms.

    Attributes:
        terms: whose sum is the contributions.
        of_bias: the contribution of a bias; None if it gets nothing.
        where: only outputs of this sign; None for all.
    """

    terms: tuple[Term, ...]
    of_bias: Callable[[Tensor], Tensor] | None = None
    where: Literal["positive", "negative"] | None = None


def _itself(w: Tensor) -> Tensor:
    return w


def _positive(w: Tensor) -> Tensor:
    return w.clamp_min(0)


def _negative(w: Tensor) -> Tensor:
    return w.clamp_max(0)


@dataclass(frozen=True)
class Rule(ABC):
    """How a linear operation hands on relevance; the classes below are the rules there are.

    Attributes:
        epsilon: what is added to the size of denominators.
    """

    epsilon: float = field(default=0.0, init=False)

    @property
    @abstractmethod
    def name(self) -> str:
        """In words, as the ledger prints it."""

    @property
    @abstractmethod
    def parts(self) -> tuple[Part, ...] | None:
        """Its table; None for $x_jw_{jk}$ as it stands, whose sum is the output itself."""

    @property
    def wants_positive_inputs(self) -> bool:
        """Whether its derivation is about layers that receive activations of ReLUs."""
        return False


@dataclass(frozen=True)
class Zero(Rule):
    """In proportion to what each input adds to the output.

    On a network of ReLUs, with this rule in all layers, relevance is the gradient times the input.
    """

    @property
    def name(self) -> str:
        return "zero"

    @cached_property
    def parts(self) -> None:
        return None


@dataclass(frozen=True)
class Epsilon(Rule):
    r"""As `Zero` with $z_k+\varepsilon\operatorname{sign}(z_k)$ below.

    A weak output loses the fraction $\varepsilon/(|z_k|+\varepsilon)$ of its relevance. The sign is
    that of the output: with $+\varepsilon$ throughout, outputs in $(-\varepsilon,0)$ would turn the
    sign of their relevance around.

    Args:
        epsilon: in the units of the outputs.
    """

    epsilon: float = 1e-6

    def __post_init__(self) -> None:
        if not 0 <= self.epsilon < float("inf"):
            raise InvalidInput(f"epsilon must be at least 0 and finite, not {self.epsilon}")

    @property
    def name(self) -> str:
        return f"epsilon {self.epsilon:g}"

    @cached_property
    def parts(self) -> None:
        return None


@dataclass(frozen=True)
class Gamma(Rule):
    r"""Prefers what speaks for an output over what speaks against it.

    Contributions $c+\gamma c^+$ of $c=x_jw_{jk}$ for outputs $z_k>0$, which for inputs
    $x\ge0$ is the table's $x_j(w_{jk}+\gamma w_{jk}^+)$; for outputs $z_k<0$, where the table's
    denominator may vanish, $c+\gamma c^-$, so that the rule is symmetric in the sign of the output.
    Denominators are at least $|z_k|$. Costs one more pass through the layer.

    Args:
        gamma: 0 is `Zero`, infinity would be `AlphaBeta(1, 0)` for $z_k>0$.
    """

    gamma: float = 0.25

    def __post_init__(self) -> None:
        if not 0 <= self.gamma < float("inf"):
            raise InvalidInput(f"gamma must be at least 0 and finite, not {self.gamma}")

    @property
    def name(self) -> str:
        return f"gamma {self.gamma:g}"

    @cached_property
    def parts(self) -> tuple[Part, ...]:
        def more_positive(w: Tensor) -> Tensor:
            return torch.where(w > 0, (1 + self.gamma) * w, w)

        def more_negative(w: Tensor) -> Tensor:
            return torch.where(w < 0, (1 + self.gamma) * w, w)

        plus: Literal["positive"] = "positive"
        minus: Literal["negative"] = "negative"
        return (
            Part(
                (Term(plus, more_positive), Term(minus, more_negative)), more_positive, "positive"
            ),
            Part(
                (Term(plus, more_negative), Term(minus, more_positive)), more_negative, "negative"
            ),
        )

    @property
    def wants_positive_inputs(self) -> bool:
        return self.gamma > 0


@dataclass(frozen=True)
class AlphaBeta(Rule):
    r"""Positive contributions get $\alpha R_k$, negative ones $-\beta R_k$, with $\alpha-\beta=1$.

    Contributions of one sign may be missing, and their share has nowhere to go. With
    `empty="rescale"` those of the other sign get $R_k$, so that nothing is lost; with
    `empty="leak"` the formula is taken literally, and the ledger shows the leak.

    Args:
        alpha, beta: 1 and 0 hand on no negative relevance, 2 and 1 are the usual signed choice.
        empty: what to do about outputs without contributions of one sign.
    """

    alpha: float = 1.0
    beta: float = 0.0
    empty: Literal["rescale", "leak"] = "rescale"

    def __post_init__(self) -> None:
        if not (self.beta >= 0 and abs(self.alpha - self.beta - 1) <= 1e-9):
            raise InvalidInput(
                f"alpha - beta must be 1 and beta at least 0, not {self.alpha:g} and {self.beta:g}"
            )
        if self.beta > _LARGEST_BETA:
            raise InvalidInput(f"beta must be at most {_LARGEST_BETA:g}, not {self.beta:g}")
        if self.empty not in ("rescale", "leak"):
            raise InvalidInput(f"empty is 'rescale' or 'leak', not {self.empty!r}")

    @property
    def name(self) -> str:
        return f"alpha {self.alpha:g} beta {self.beta:g}"

    @cached_property
    def parts(self) -> tuple[Part, ...]:
        return (
            Part((Term("positive", _positive), Term("negative", _negative)), _positive),
            Part((Term("positive", _negative), Term("negative", _positive)), _negative),
        )

    @property
    def wants_positive_inputs(self) -> bool:
        return True


@dataclass(frozen=True)
class Flat(Rule):
    """All inputs that an output sees get the same: shows the field of view, nothing else."""

    @property
    def name(self) -> str:
        return "flat"

    @cached_property
    def parts(self) -> tuple[Part, ...]:
        return (Part((Term("one", torch.ones_like),)),)


@dataclass(frozen=True)
class WSquare(Rule):
    """In proportion to squared weights: for a first layer whose inputs may be any real numbers."""

    @property
    def name(self) -> str:
        return "squared weights"

    @cached_property
    def parts(self) -> tuple[Part, ...]:
        return (Part((Term("one", torch.square),)),)


@dataclass(frozen=True)
class ZBox(Rule):
    r"""For a first layer whose inputs lie in a box $L\le x\le H$, such as pixels.

    Args:
        low, high: of the inputs as the layer sees them: numbers, or tensors that broadcast to a
            sample, such as `[C, 1, 1]` for channels that were normalized.
    """

    low: float | Tensor = 0.0
    high: float | Tensor = 1.0

    def __post_init__(self) -> None:
        low, high = torch.as_tensor(self.low), torch.as_tensor(self.high)
        all_finite(low, "low")
        all_finite(high, "high")
        if not bool((low <= high).all()):
            raise InvalidInput("low must be at most high in every entry of the box")

    @property
    def name(self) -> str:
        if isinstance(self.low, Tensor) or isinstance(self.high, Tensor):
            return "box"
        return f"box {self.low:g} to {self.high:g}"

    @cached_property
    def parts(self) -> tuple[Part, ...]:
        def of(bound: float | Tensor) -> Callable[[Tensor], Tensor]:
            def negated(x: Tensor) -> Tensor:
                return -torch.as_tensor(bound, dtype=x.dtype, device=x.device).expand_as(x)

            return negated

        def inside(x: Tensor) -> Tensor:
            low = torch.as_tensor(self.low, dtype=x.dtype, device=x.device)
            high = torch.as_tensor(self.high, dtype=x.dtype, device=x.device)
            try:
                within = bool(((x >= low) & (x <= high)).all())
            except RuntimeError as error:
                raise InvalidInput(
                    f"bounds {list(low.shape)} and {list(high.shape)} do not fit inputs "
                    f"{list(x.shape)}"
                ) from error
            if not within:
                raise InvalidInput(
                    f"inputs between {float(x.min()):.3g} and {float(x.max()):.3g} leave the "
                    f"{self.name}: give the bounds of what the layer receives"
                )
            return x

        terms = (
            Term(inside, _itself),
            Term(of(self.low), _positive),
            Term(of(self.high), _negative),
        )
        return (Part(terms),)


@dataclass(frozen=True)
class RootPoint(Rule):
    r"""The rule that a direction of search makes, by deep Taylor decomposition.

    An active neuron $z=w^\top x+b$ is expanded at the root on the line $\tilde x=x-tv$, which is
    at $t=z/(w^\top v)$; the first-order terms $(x_j-\tilde x_j)w_j$ hand on all of its relevance,
    in proportion to $v_jw_j$ and with nothing for the bias. Without biases,

    | direction $v_j$ | rule |
    |---|---|
    | $x_j$ | `Zero` |
    | $x_j(1+\gamma1_{w_j\ge0})$ | `Gamma` |
    | $x_j1_{w_j\ge0}$ | `AlphaBeta(1, 0)` |
    | $w_j$ | `WSquare` |
    | $x_j-L1_{w_j\ge0}-H1_{w_j<0}$ | `ZBox(L, H)` |

    Args:
        direction: $v_j=\sum_ma_m(x_j)g_m(w_j)$ as pairs of functions $(a_m,g_m)$ of tensors, each
            entry by entry.
        called: its name in the ledger.

    >>> zero = RootPoint([(lambda x: x, torch.ones_like)])
    """

    direction: tuple[tuple[Callable[[Tensor], Tensor], OfWeight], ...]
    called: str = "root point"

    def __init__(
        self,
        direction: list[tuple[Callable[[Tensor], Tensor], OfWeight]]
        | tuple[tuple[Callable[[Tensor], Tensor], OfWeight], ...],
        called: str = "root point",
    ) -> None:
        object.__setattr__(self, "direction", tuple(direction))
        object.__setattr__(self, "called", called)
        object.__setattr__(self, "epsilon", 0.0)
        if not self.direction:
            raise InvalidInput("a direction needs at least one pair of functions")

    @property
    def name(self) -> str:
        return self.called

    @cached_property
    def parts(self) -> tuple[Part, ...]:
        def weighted(g: OfWeight) -> OfWeight:
            return lambda w: g(w) * w

        return (Part(tuple(Term(a, weighted(g)) for a, g in self.direction)),)


@dataclass(frozen=True, slots=True)
class Product:
    r"""How a product $x_k=x_gx_j$ of two signals hands on relevance.

    A *gate* $x_g$ is what comes out of a sigmoid, a softmax or an exponential; $x_j$ is the signal
    that it lets pass.

    | share | signal | gate |
    |---|---|---|
    | `"all"` | $R_k$ | 0 |
    | `"prop"` | $x_j/(x_j+x_g)\,R_k$ | $x_g/(x_j+x_g)\,R_k$ |
    | `"half"` | $R_k/2$ | $R_k/2$ |

    `"prop"` has poles at $x_j=-x_g$. Two signals of which neither is a gate, or both are, get half
    each under `"all"` as well. A factor $1/x$ or $1/\sqrt x$ is a denominator, which gets nothing.
    Source: Mathematical Aspects of Deep Learning, section 5.4.3.
    """

    share: Literal["all", "prop", "half"] = "all"

    def __post_init__(self) -> None:
        if self.share not in ("all", "prop", "half"):
            raise InvalidInput(f"a product shares 'all', 'prop' or 'half', not {self.share!r}")

    @property
    def name(self) -> str:
        return f"product {self.share}"

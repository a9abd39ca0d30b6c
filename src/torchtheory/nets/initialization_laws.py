r"""The laws that layers draw their weights from, and whether weights still look like such a draw.

`nn.Linear` and convolutions draw uniformly on $[-b, b]$ with $b=1/\sqrt{\text{fan-in}}$ (what
`kaiming_uniform_` with $a=\sqrt5$ comes to), recurrent layers with $b=1/\sqrt{\text{width}}$,
embeddings from $N(0,1)$; normalizations begin with ones and zeros. Users draw by the rules of
`nn.init`. A draw is told from other weights by Kolmogorov's distance

$$ D_n=\sup_t|F_n(t)-F(t)|,\qquad \sqrt n\,D_n \Rightarrow \sup_t|B(t)|, $$

with the Brownian bridge $B$, and by the bounds: one weight beyond them is no draw.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from scipy import special
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.conv import _ConvNd

from torchtheory.core.checks import (
    as_module,
    as_vector,
    module_with_values,
    one_of,
    positive_number,
)

#: Entries that are held in double precision at a time.
AT_ONCE = 2**20

_NORMALIZATIONS = (_NormBase, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm, nn.PReLU)
_RECURRENT = (nn.RNNBase, nn.RNNCellBase)


@dataclass(frozen=True, slots=True)
class Law:
    """A law of independent entries with mean 0.

    Attributes:
        rule: who draws by it, such as `"kaiming_normal_"`.
        kind: `uniform` on [-scale, scale], or `normal` with this standard deviation.
        scale: bound or standard deviation.
    """

    rule: str
    kind: str
    scale: float

    def __post_init__(self) -> None:
        one_of(self.kind, "kind", ("uniform", "normal"))
        positive_number(self.scale, "scale")

    @property
    def deviation(self) -> float:
        """Standard deviation of an entry."""
        return self.scale / math.sqrt(3) if self.kind == "uniform" else self.scale

    def p_value(self, values: Tensor, *, rounding: float | None = None) -> float:
        r"""Probability that a draw of this law is as far from it as the given entries.

        Kolmogorov's limit at $(\sqrt n + 0.12 + 0.11/\sqrt n) D_n$ (Stephens, 1970), which is
        good from n = 5 on; 0 for a uniform law with an entry beyond its bounds, and for any law
        whose mean square is eight standard errors or more from that of the entries. All entries
        count: a law that 20,000 of them cannot be told from may be excluded by a million.

        Args:
            values: the entries.
            rounding: relative size of the last digit that they were kept with, that of their
                dtype unless given. Rounding moves an entry, and distances allow for that.

        $O(n\log n)$ for n entries where the sizes agree, else $O(n)$; memory for another copy.

        >>> grid = (torch.arange(1000.0) + 0.5) / 500 - 1
        >>> Law("", "uniform", 1.0).p_value(grid), Law("", "uniform", 0.9).p_value(grid)
        (1.0, 0.0)
        >>> Law("", "normal", 1.0).p_value(grid) < 1e-9
        True
        """
        if rounding is None:
            rounding = torch.finfo(values.dtype).eps if values.is_floating_point() else 0.0
        short = values.is_floating_point() and values.dtype.itemsize < 4
        x = as_vector((values.float() if short else values).detach().flatten(), "the weights")
        if self.kind == "uniform" and float(x.abs().max()) > self.scale * (1 + 4 * rounding):
            return 0.0
        mean_square = float(torch.linalg.vector_norm(x, dtype=torch.float64)) ** 2 / len(x)
        if not self.size_fits(mean_square, len(x), rounding):
            return 0.0
        distance = self._distance(x.cpu().sort().values, rounding)
        root = math.sqrt(len(x))
        return float(special.kolmogorov((root + 0.12 + 0.11 / root) * distance))

    def size_fits(self, mean_square: float, entries: int, rounding: float = 0.0) -> bool:
        r"""Whether entries of this mean square can be a draw, as far as their size alone tells.

        The square of an entry has the relative variance 2 of a normal and 4/5 of a uniform law;
        more than eight standard errors away, or a last digit, it is no draw.

        >>> [Law("", "normal", 1.0).size_fits(1.01, n) for n in (10**3, 10**8)]
        [True, False]
        """
        spread = math.sqrt((2.0 if self.kind == "normal" else 0.8) / entries)
        return abs(mean_square / self.deviation**2 - 1) <= 8 * spread + 2 * rounding

    def _distance(self, ordered: Tensor, rounding: float) -> float:
        """Kolmogorov's distance of entries in their order, less what rounding explains."""
        n, largest = len(ordered), 0.0
        for start in range(0, n, AT_ONCE):
            x = ordered[start : start + AT_ONCE].double() / self.scale
            moved = x.abs().clamp_min(1.0) * (rounding / 2)
            place = torch.arange(start, start + len(x), dtype=torch.float64)
            above = (place + 1) / n - self._cumulative(x + moved)
            below = self._cumulative(x - moved) - place / n
            largest = max(largest, float(torch.maximum(above, below).max()))
        return largest

    def _cumulative(self, x: Tensor) -> Tensor:
        return (x.clamp(-1, 1) + 1) / 2 if self.kind == "uniform" else torch.special.ndtr(x)


@dataclass(frozen=True, slots=True)
class FreshDraw:
    """How well a parameter agrees with a draw by a known rule.

    Attributes:
        parameter: its name.
        rule: the rule that it agrees with best; empty if no rule is known for its kind.
        p_value: probability that a draw by this rule differs as much from its law.
        entries: of the parameter.
    """

    parameter: str
    rule: str
    p_value: float
    entries: int


def compare_with_fresh_draws(model: nn.Module) -> list[FreshDraw]:
    """Every parameter against the laws that it may have been drawn from; shared ones once.

    Entries that are all the same, as biases of 0 and scales of 1, are a draw as well: training
    moves them apart. $O(P)$ for P parameters.

    >>> _ = torch.manual_seed(0)
    >>> net = nn.Linear(50, 20)
    >>> [(d.rule, d.p_value > 0.001) for d in compare_with_fresh_draws(net)]
    [('nn.Linear', True), ('nn.Linear', True)]
    >>> _ = net.weight.data.mul_(1.1)
    >>> compare_with_fresh_draws(net)[0].p_value < 0.001
    True
    """
    module_with_values(model)
    found: list[FreshDraw] = []
    seen: set[int] = set()
    for place, module in as_module(model).named_modules():
        for name, parameter in module.named_parameters(recurse=False):
            if id(parameter) in seen or parameter.numel() == 0:
                continue
            seen.add(id(parameter))
            whole = f"{place}.{name}" if place else name
            rule, p = _best(module, parameter.detach())
            found.append(FreshDraw(whole, rule, p, parameter.numel()))
    return found


def _best(module: nn.Module, parameter: Tensor) -> tuple[str, float]:
    entries = parameter.flatten()
    if isinstance(module, nn.Embedding) and module.padding_idx is not None:
        kept = torch.arange(len(parameter), device=parameter.device) != module.padding_idx
        entries = parameter[kept].flatten()
    if not parameter.is_floating_point() or len(entries) == 0:
        return "", 1.0
    if bool((entries == entries[0]).all()) and (len(entries) > 1 or float(entries[0]) in (0, 1)):
        return "a constant", 1.0
    attention = isinstance(module, nn.MultiheadAttention) and parameter.ndim < 2
    if attention or isinstance(module, _NORMALIZATIONS):
        return "a constant", 0.0
    laws = _laws(module, parameter)
    best = max(((law.p_value(entries), law.rule) for law in laws), default=(1.0, ""))
    return best[1], best[0]


def _laws(module: nn.Module, parameter: Tensor) -> list[Law]:
    """The laws a parameter of a known kind of layer may have been drawn from."""
    own = f"nn.{type(module).__name__}"
    if isinstance(module, _RECURRENT):
        return [Law(own, "uniform", 1 / math.sqrt(module.hidden_size))]
    if isinstance(module, nn.Embedding | nn.EmbeddingBag):
        return [Law(own, "normal", 1.0), *_SMALL]
    dense = isinstance(module, nn.Linear | nn.Bilinear | _ConvNd)
    attention = isinstance(module, nn.MultiheadAttention)
    if not dense and not attention:
        return []
    weight = getattr(module, "weight", None) if dense else parameter
    if not isinstance(weight, Tensor) or weight.ndim < 2:
        return []
    fan_in, fan_out = nn.init._calculate_fan_in_and_fan_out(weight)
    if isinstance(module, nn.Bilinear):
        fan_in = module.in1_features
    bound = Law(own, "uniform", 1 / math.sqrt(max(1, fan_in)))
    if parameter.ndim < 2:
        return [bound]
    return [bound, *usual_laws(max(1, fan_in), max(1, fan_out))]


_SMALL = (
    Law("the normal law of transformers, of deviation 0.02", "normal", 0.02),
    Law("a normal law of deviation 0.01", "normal", 0.01),
)


def usual_laws(fan_in: int, fan_out: int) -> list[Law]:
    """Those that users draw matrices from, whatever the layer.

    The rules of `nn.init` with the gains of linear layers and of ReLU, and normal laws of a fixed
    small size.

    >>> usual_laws(8, 4)[1]
    Law(rule="Kaiming's normal initialization", kind='normal', scale=0.5)
    """
    variances = (
        ("Kaiming", "", 2 / fan_in),
        ("Kaiming", " by outputs", 2 / fan_out),
        ("LeCun", "", 1 / fan_in),
        ("Xavier", "", 2 / (fan_in + fan_out)),
    )
    found = []
    for rule, by, variance in variances:
        uniform, normal = (f"{rule}'s {kind} initialization{by}" for kind in ("uniform", "normal"))
        found.append(Law(uniform, "uniform", math.sqrt(3 * variance)))
        found.append(Law(normal, "normal", math.sqrt(variance)))
    return [*found, *_SMALL]

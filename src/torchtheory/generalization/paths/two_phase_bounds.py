r"""What two-phase training buys: a bound on the gap of the squared loss.

After phase one the features $\tilde z=\bar x\circ\bar\sigma(x,w_\sigma)$ of the
$m_\sigma=(1-\alpha)m$ fresh samples are independent, whatever phase two does. For the squared
loss the gap on them is at most

$$
\lambda_{\max}\Bigl(\mathbb E\tilde z\tilde z^\top-\tfrac1{m_\sigma}\sum_i\tilde z_i
\tilde z_i^\top\Bigr)\sum_k\|\bar w_k\|_2^2 + 2\sum_k\|\bar w_k\|_1\,\|v_k\|_\infty + c_y
$$

for every $w$, and three Bernstein inequalities bound the three factors with probability
$1-\delta$. The 0-1 risk is in `torchtheory.generalization.paths.two_phase_margins`.

Source: Mathematical Aspects of Deep Learning, section 2.5.3, Assumption 2.8, Theorem 2.9, Appendix
C4, with the norms paired as the proof pairs them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from torchtheory.core.checks import all_finite, nonnegative_number, open_fraction
from torchtheory.core.errors import (
    EmptyData,
    InvalidInput,
    ShapeMismatch,
)
from torchtheory.generalization.concentration import matrix_bernstein_radius
from torchtheory.kernels.paths.deep_paths import path_features
from torchtheory.kernels.paths.layers import has_bias, path_links
from torchtheory.kernels.paths.path_kernel import deep_path_kernel, number_of_paths, path_norms
from torchtheory.kernels.paths.rules import checked_inputs
from torchtheory.tracing.activations import ACTIVATION_LAYERS, layer_facts


@dataclass(frozen=True, slots=True)
class FeatureLaw:
    r"""The constants of Assumption 2.8, for one fresh sample.

    With $G=\mathbb E[\tilde z\tilde z^\top]-\tilde z\tilde z^\top$,
    $V_{kj}=Y_k\tilde z_j-\mathbb E[Y_k\tilde z_j]$ and $c=\mathbb E\|Y\|^2-\|Y\|^2$.

    Attributes:
        feature_bound, feature_variance: $C_{zz}\ge\lambda_{\max}(G)$ and
            $\gamma_{zz}^2\ge\|\mathbb E\,G^2\|$.
        product_bound, product_variance: $C_{yz}\ge\max|V_{kj}|$ and
            $\gamma_{yz}^2\ge\max\mathbb E\,V_{kj}^2$.
        label_bound, label_variance: $C_y\ge|c|$ and $\gamma_y^2\ge\mathbb E\,c^2$.
        paths: $d_z$.
        outputs: $d_y$.
    """

    feature_bound: float
    feature_variance: float
    product_bound: float
    product_variance: float
    label_bound: float
    label_variance: float
    paths: float
    outputs: int

    def __post_init__(self) -> None:
        for name in self.__slots__:
            value = getattr(self, name)
            if not (isinstance(value, int | float) and math.isfinite(value) and value >= 0):
                raise InvalidInput(f"{name} must be a finite number >= 0, not {value!r}")
        if self.paths < 1 or self.outputs < 1:
            raise InvalidInput(
                f"a network has at least one path and one output (paths = {self.paths!r}, outputs "
                f"= {self.outputs!r})"
            )


def measure_feature_law(
    gates: nn.Module,
    population: tuple[Tensor, Tensor],
    *,
    masses: Tensor | None = None,
    listed: bool = False,
) -> FeatureLaw:
    r"""The constants of Assumption 2.8 on a finite population.

    The spectral constants come from the path kernel, exactly: in coordinates of the span of the
    features, which has at most as many dimensions as there are points. The largest entry of
    $V$ depends on the path coordinates; as a feature is an input (or 1) times 0 or 1,
    $|V_{kj}|\le\max|Y_kx_i|+\max\mathbb E|Y_kx_i|$ and
    $\mathbb E\,V_{kj}^2\le \max\mathbb E\,Y_k^2x_i^2$ need no list of paths.

    Args:
        gates: the network that decides which paths are open.
        population: `(x[n, ...], y[n] or y[n, outputs])`; a sample in its place gives estimates,
            for which the theorem does not speak.
        masses: `[n]`, equal unless given.
        listed: write all paths down and take the exact maxima over them (small networks).

    Cost: $O(n^2)$ memory and $O(n^4)$ time at most, $n$ eigenvalue problems of
    the size of the span.

    >>> net = nn.Sequential(nn.Linear(1, 1, bias=False))      # one path, z = x
    >>> x = torch.ones(2, 1)
    >>> measure_feature_law(net, (x, torch.tensor([1.0, -1.0])), listed=True)
    ... # doctest: +NORMALIZE_WHITESPACE
    FeatureLaw(feature_bound=0.0, feature_variance=0.0, product_bound=1.0, product_variance=1.0,
               label_bound=0.0, label_variance=0.0, paths=1.0, outputs=1)
    """
    x = checked_inputs(gates, population[0], "x of the population")
    y = _targets(population[1], x)
    share = _population_shares(masses, x)
    squares, basis = torch.linalg.eigh(deep_path_kernel(gates, x))
    kept = squares > len(x) * torch.finfo(squares.dtype).eps * squares[-1].clamp_min(0)
    z = basis[:, kept] * squares[kept].sqrt()  # the features in coordinates of their span
    mean = z.mT @ (share[:, None] * z)
    single = mean - z[:, :, None] * z[:, None, :]
    paths = number_of_paths(gates, x.shape[1:])
    outside = -math.inf if z.shape[1] >= paths else 0.0  # G is 0 on the other directions
    lengths = z.square().sum(1)
    second = z.mT @ ((share * lengths)[:, None] * z) - mean @ mean
    sizes = y.square().sum(1)
    label = (share @ sizes) - sizes
    entries, variances = _products(gates, x, y, share, listed)
    tops = torch.linalg.eigvalsh(single)[:, -1] if z.shape[1] else z.new_zeros(1)
    variance = torch.linalg.eigvalsh(second)[-1] if z.shape[1] else z.new_zeros(())
    return FeatureLaw(
        feature_bound=max(float(tops.max()), outside, 0.0),
        feature_variance=max(float(variance), 0.0),
        product_bound=entries,
        product_variance=variances,
        label_bound=float(label.abs().max()),
        label_variance=float(share @ label.square()),
        paths=paths,
        outputs=y.shape[1],
    )


@dataclass(frozen=True, slots=True)
class TwoPhaseBound:
    r"""$\beta_1\sum_k\|\bar w_k\|_2^2+2\beta_2\sum_k\|\bar w_k\|_1+\beta_3$.

    Attributes:
        feature_radius, product_radius, label_radius: $\beta_1,\beta_2,\beta_3$.
        squared_norm, absolute_norm: $\sum_k\|\bar w_k\|_2^2$ and
            $\sum_k\|\bar w_k\|_1$.
    """

    feature_radius: float
    product_radius: float
    label_radius: float
    squared_norm: float
    absolute_norm: float

    @property
    def value(self) -> float:
        """What the gap does not exceed, with the probability asked for."""
        return (
            self.feature_radius * self.squared_norm
            + 2 * self.product_radius * self.absolute_norm
            + self.label_radius
        )


def two_phase_gap_bound(
    law: FeatureLaw,
    squared_norm: float,
    absolute_norm: float,
    samples: int,
    delta: float,
    *,
    relaxed: bool = True,
) -> TwoPhaseBound:
    r"""Theorem 2.9: with probability $1-\delta$ no value network has a larger gap.

    The gap is that of the squared loss between the population and the $m_\sigma$ fresh
    samples, for whatever weights phase two finds.

    Args:
        law: `measure_feature_law`, or constants known beforehand.
        squared_norm, absolute_norm: $\sum_k\|\bar w_k\|_2^2$ and
            $\sum_k\|\bar w_k\|_1$ of the value network, see `path_weight_sizes`.
        samples: $m_\sigma$.
        delta: probability of failure, one third for each inequality.
        relaxed: Bernstein's radius as the theorem has it; else the sharper root.

    >>> coin = FeatureLaw(0, 0, 1, 1, 0, 0, paths=1, outputs=1)
    >>> round(two_phase_gap_bound(coin, 0.01, 0.1, 100, 0.05).value, 6)
    0.06827
    """
    for name, value in (("squared_norm", squared_norm), ("absolute_norm", absolute_norm)):
        nonnegative_number(value, name)
    if isinstance(samples, bool) or not isinstance(samples, int) or samples < 1:
        raise EmptyData(f"the bound needs at least one fresh sample, not {samples!r}")
    open_fraction(delta, "delta")
    share, m = delta / 3, samples
    feature = _bernstein(law.feature_variance / m, law.feature_bound / m, law.paths, share, relaxed)
    events = 2 * law.outputs * law.paths  # both signs of every entry
    product = _bernstein(law.product_variance / m, law.product_bound / m, events, share, relaxed)
    label = _bernstein(law.label_variance / m, law.label_bound / m, 1, share, relaxed)
    return TwoPhaseBound(feature, product, label, float(squared_norm), float(absolute_norm))


def path_weight_sizes(values: nn.Module, input_shape: Sequence[int]) -> tuple[float, float]:
    r"""$\sum_k\|\bar w_k\|_2^2$ and $\sum_k\|\bar w_k\|_1$ of a value network.

    Two forward passes (`path_norms`).

    >>> net = nn.Sequential(nn.Linear(2, 2, bias=False), nn.ReLU(), nn.Linear(2, 1, bias=False))
    >>> _ = net[0].weight.data.copy_(torch.tensor([[1.0, -2.0], [0.0, 1.0]]))
    >>> _ = net[2].weight.data.copy_(torch.tensor([[3.0, -2.0]]))
    >>> path_weight_sizes(net, (2,))     # 3² (1² + 2²) + 2² 1², and 3 (1 + 2) + 2 (0 + 1)
    (49.0, 11.0)
    """
    squared = path_norms(values, input_shape).square().sum()
    return float(squared), float(path_norms(values, input_shape, order=1).sum())


# ---------------------------------------------------------------------------------------- details


def _bernstein(variance: float, bound: float, events: float, delta: float, relaxed: bool) -> float:
    """Bernstein's radius; 0 for what does not vary."""
    if variance == bound == 0:
        return 0.0
    return matrix_bernstein_radius(variance, bound, int(events), delta, relaxed=relaxed)


def _products(
    gates: nn.Module, x: Tensor, y: Tensor, share: Tensor, listed: bool
) -> tuple[float, float]:
    """The largest entry of V and the largest variance of one."""
    if listed:
        z = path_features(gates, x).features
        largest = variance = 0.0
        for k in range(y.shape[1]):
            products = y[:, k, None] * z
            centered = products - share @ products
            largest = max(largest, float(centered.abs().max()))
            variance = max(variance, float((share @ centered.square()).max()))
        return largest, variance
    links = path_links(gates)
    inputs = x.flatten(1).double().abs()
    if any(has_bias(link.module) for link in links):
        inputs = torch.cat([inputs, torch.ones_like(inputs[:, :1])], 1)
    steepest = math.prod(_steepest(link.module) for link in links)
    largest = float((y.abs().amax(1) * inputs.amax(1)).max())
    mean = (share[:, None] * y.abs()).mT @ inputs
    variance = float(((share[:, None] * y.square()).mT @ inputs.square()).max())
    return steepest * (largest + float(mean.max())), steepest**2 * variance


def _steepest(module: nn.Module) -> float:
    return layer_facts(module).lipschitz if type(module) in ACTIVATION_LAYERS else 1.0


def _targets(y: Tensor, x: Tensor) -> Tensor:
    y = torch.as_tensor(y)
    if y.ndim not in (1, 2) or len(y) != len(x):
        raise ShapeMismatch(f"{len(x)} inputs need targets [n] or [n, k], not {list(y.shape)}")
    y = y.to(dtype=torch.float64, device=x.device).reshape(len(x), -1)
    all_finite(y, "the targets")
    return y


def _population_shares(masses: Tensor | None, x: Tensor) -> Tensor:
    """Masses of the points, equal unless given; refuses what is no distribution."""
    if masses is None:
        return torch.full((len(x),), 1 / len(x), dtype=torch.float64, device=x.device)
    share = torch.as_tensor(masses, dtype=torch.float64, device=x.device)
    if share.shape != (len(x),) or bool((share < 0).any()) or abs(float(share.sum()) - 1) > 1e-9:
        raise InvalidInput(f"masses must be {len(x)} numbers >= 0 that sum to 1")
    return share

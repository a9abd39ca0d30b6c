r"""The empirical risk of a stochastic network, bounded from finitely many draws.

$\mathbb E_QR_S$ is a mean over weights that nobody can compute. Draws $W_1,\dots,W_M$,
independent and fresh (made after Q is final), give an upper bound that fails with a probability of
its own: by Chernoff's inequality, for independent values in [0, 1] with mean $\bar p$,
$\mathrm{kl}(\bar X\,\|\,\bar p)\le\ln(1/\delta')/M$ whenever $\bar X<\bar p$, with
probability at least $1-\delta'$. The values need not have one law: each sample (or block of
samples) may have a draw of its own, which makes one pass over the data worth $M=n$ draws.
Source: Foundations of Deep Learning, section 9.2 (the rows "SNN" of Table 1).
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from torchtheory.core.checks import open_fraction
from torchtheory.core.errors import InvalidInput, ShapeMismatch
from torchtheory.generalization.pac_bayes.bernoulli_kl import upper_kl_inverse
from torchtheory.generalization.pac_bayes.stochastic_network import StochasticNetwork
from torchtheory.models.model import one_output, real_rows
from torchtheory.models.samples import Samples

CHUNK = 2048
BLOCK = 32


@dataclass(frozen=True, slots=True)
class GibbsRisk:
    """The 0-1 risk of a stochastic network on a sample.

    Attributes:
        estimate: mean error over samples and draws.
        upper: at least the mean over *all* weights, but for probability `delta`.
        delta: failure probability of `upper`.
        draws: independent draws of the weights.
        block: samples that shared a draw.
    """

    estimate: float
    upper: float
    delta: float
    draws: int
    block: int

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def gibbs_risk(
    network: StochasticNetwork,
    samples: Samples,
    *,
    delta: float = 0.01,
    passes: int = 10,
    block: int | None = None,
) -> GibbsRisk:
    """Estimate the network's mean 0-1 risk over its weights, with an upper bound.

    Args:
        network: its means and variances are final.
        samples: inputs and targets as `Problem` prepares them.
        delta: failure probability of the upper bound.
        passes: how often to go through the samples.
        block: samples that share a draw; 1 where the network allows a draw for each row at the
            price of one (dense layers), 32 otherwise.

    Time: `passes` evaluations of the samples, twice the work each for rows of their own.

    >>> net = torch.nn.Linear(1, 1, bias=False)
    >>> with torch.no_grad(): _ = net.weight.fill_(1.0)
    >>> network = StochasticNetwork(net, spread=1.0)
    >>> risk = gibbs_risk(network, Samples(torch.ones(5000, 1), torch.ones(5000, 1)))
    >>> abs(risk.estimate - 0.158655) < 0.01 < 0.159 < risk.upper + 0.01    # P(1 + ξ < 0)
    True
    """
    open_fraction(delta, "delta")
    if passes < 1 or (block is not None and block < 1):
        raise InvalidInput(
            f"take at least one pass, and blocks of at least one sample (passes = {passes!r}, "
            f"block = {block!r})"
        )
    rows = block in (None, 1) and network.independent_rows(samples.x)
    size = 1 if rows else (block or BLOCK)
    wrong = 0
    with torch.no_grad():
        for _ in range(passes):
            for x, y in samples.chunks(CHUNK if rows else size):
                outputs = network(x, "local" if rows else "weights")
                wrong += int(mistakes(outputs, y).sum())
    n = len(samples)
    blocks = math.ceil(n / size)
    draws = blocks * passes
    # a last block that is not full counts as filled up with samples that are always right
    filled = blocks * size / n
    estimate = wrong / (n * passes)
    upper = filled * upper_kl_inverse(min(1.0, estimate / filled), math.log(1 / delta) / draws)
    return GibbsRisk(estimate, min(1.0, upper), delta, draws, size)


def mistakes(outputs: Tensor, y: Tensor) -> Tensor:
    """Which samples are misclassified, `[n]` of bool.

    One output per sample is the logit of class 1 (an output of 0 is wrong for either label);
    several are the logits of the classes (a tie for the largest is wrong). NaN is wrong.

    >>> mistakes(torch.tensor([[2.0], [-1.0], [0.0]]), torch.tensor([1.0, 1.0, 0.0]))
    tensor([False,  True,  True])
    """
    n = len(real_rows(one_output(outputs), len(y)))
    if outputs.numel() == n:
        return ~((2 * y.reshape(n) - 1) * outputs.reshape(n) > 0)
    if outputs.ndim != 2:
        raise ShapeMismatch(f"the model returns {list(outputs.shape)}, not one logit per class")
    own = outputs.gather(1, y.reshape(n, 1)).squeeze(1)
    others = outputs.scatter(1, y.reshape(n, 1), float("-inf")).amax(1)
    return ~(own > others)

r"""The one-hidden-layer sigmoid perceptron, with its gradients written out.

$$
f(x)=\sum_{j=1}^m\beta_j\,\sigma(w_j^\top x),\qquad
\mathcal L=\tfrac12(f(x)-y)^2
$$

Source: Foundations of Deep Learning, section 2.5, Eq. (2.1).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from torchtheory.core.checks import as_points, as_targets, whole_number
from torchtheory.core.errors import InvalidInput, ShapeMismatch
from torchtheory.core.random import RandomSource, as_generator, gaussian


class SigmoidPerceptron(nn.Module):
    r"""$f(x)=\sum_j\beta_j\sigma(w_j^\top x)$ without biases.

    As $\sigma(z)+\sigma(-z)=1$, every such function has
    $f(x)+f(-x)=\sum_j\beta_j$ for all $x$: the class is not universal. Append a
    constant feature to $x$ to give the hidden units a bias.

    Args:
        inputs: $n$.
        units: $m$.

    >>> net = SigmoidPerceptron(3, 5)
    >>> x = torch.ones(1, 3, dtype=torch.float64)
    >>> torch.allclose(net(x) + net(-x), net.beta.sum())
    True
    """

    def __init__(
        self,
        inputs: int,
        units: int,
        *,
        generator: RandomSource = None,
        dtype: torch.dtype = torch.float64,
        device: torch.device | str = "cpu",
    ) -> None:
        super().__init__()
        whole_number(inputs, "inputs", least=1)
        whole_number(units, "units", least=1)
        source = as_generator(generator)
        w = gaussian(units, inputs, generator=source, dtype=dtype, device=device)
        beta = gaussian(units, generator=source, dtype=dtype, device=device)
        self.w = nn.Parameter(w / inputs**0.5)
        self.beta = nn.Parameter(beta / units**0.5)

    def forward(self, x: Tensor) -> Tensor:
        """One number per row of `x[s, n]`."""
        return torch.sigmoid(x @ self.w.T) @ self.beta

    def gradients(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        r"""Gradients of the mean loss in $\beta$ `[m]` and $w$ `[m, n]`.

        For one sample, with $z_j=w_j^\top x$,

        $$
        \frac{\partial\mathcal L}{\partial\beta_j}=\frac{f(x)-y}{1+e^{-z_j}},\qquad
        \frac{\partial\mathcal L}{\partial w_{ji}}
        =(f(x)-y)\frac{1}{1+e^{-z_j}}\cdot\frac{\beta_jx_i}{1+e^{z_j}}.
        $$
        """
        if x.ndim != 2 or x.shape[1] != self.w.shape[1]:
            raise ShapeMismatch(f"x must be [samples, {self.w.shape[1]}], not {list(x.shape)}")
        with torch.no_grad():
            z = x @ self.w.T
            firing, resting = torch.sigmoid(z), torch.sigmoid(-z)
            residual = firing @ self.beta - y
            by_beta = residual @ firing / len(x)
            by_w = (residual.unsqueeze(1) * firing * resting * self.beta).T @ x / len(x)
        return by_beta, by_w

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        r"""Mean of $\tfrac12(f(x)-y)^2$."""
        residual: Tensor = self(x) - y
        return 0.5 * residual.square().mean()

    def fit(
        self,
        x: Tensor,
        y: Tensor,
        *,
        rate: float,
        epochs: int,
        batch: int = 1,
        generator: RandomSource = None,
    ) -> list[float]:
        r"""Stochastic gradient descent $\theta\leftarrow\theta-\eta\,\partial\mathcal L$.

        Changes this module's parameters. A sample (or `batch` of them) at a time, in a new
        random order each epoch; gives the mean loss after every epoch.
        """
        x = as_points(x)
        y = as_targets(y, x)
        if y.ndim != 1:
            raise ShapeMismatch(f"y must be [samples], not {list(y.shape)}")
        if not rate > 0:
            raise InvalidInput(f"rate must be a positive number, not {rate!r}")
        whole_number(epochs, "epochs", least=1)
        whole_number(batch, "batch", least=1)
        source = as_generator(generator)
        losses = []
        for _ in range(epochs):
            order = torch.randperm(len(x), generator=source, device=source.device).to(x.device)
            for chosen in torch.split(order, batch):
                by_beta, by_w = self.gradients(x[chosen], y[chosen])
                with torch.no_grad():
                    self.beta.sub_(rate * by_beta)
                    self.w.sub_(rate * by_w)
            with torch.no_grad():
                losses.append(float(self.loss(x, y)))
        return losses

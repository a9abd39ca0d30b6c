r"""A multilayer perceptron in plain tensor code: layer classes with a forward and a backward.

What the lectures write in numpy, in torch tensors without autograd, `nn` or `optim`; the
weights are stored as the text does, `[inputs, outputs]`. The text's own code divides the
gradients of a linear layer by the number of samples a second time; `divide_again` reproduces
that. For anything but reading, use `torch.nn`. Source: Foundations of Deep Learning, section 2.7.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from torchtheory.core.checks import whole_number
from torchtheory.core.errors import InvalidInput, NonFinite, ShapeMismatch
from torchtheory.core.random import RandomSource, as_generator, gaussian
from torchtheory.data.two_clouds import legacy_stream, two_gaussian_clouds
from torchtheory.nets.feedforward import dense


class BinaryCrossEntropy:
    r"""The mean of $-[y\log\hat y+(1-y)\log(1-\hat y)]$, $\hat y=\sigma(z)$.

    Args:
        clip: keep $\hat y$ this far from 0 and 1, as the text does with `1e-12`. Then the
            loss is flat where it clips, and `backward` is not its derivative there. Without
            it the loss is computed from $z$ and never overflows.

    >>> loss = BinaryCrossEntropy()
    >>> value, y_hat = loss.forward(torch.zeros(2, 1), torch.tensor([[0.0], [1.0]]))
    >>> round(float(value), 4), loss.backward(y_hat, torch.tensor([[0.0], [1.0]])).tolist()
    (0.6931, [[0.25], [-0.25]])
    """

    def __init__(self, clip: float | None = None) -> None:
        if clip is not None and not 0 < clip < 0.5:
            raise InvalidInput(f"clip must lie strictly between 0 and 1/2, not {clip!r}")
        self.clip = clip

    def forward(self, z: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Mean loss and predicted probabilities from logits `z` and labels `y`, `[n, 1]`."""
        if z.shape != y.shape or len(y) == 0:
            raise ShapeMismatch(f"logits are {list(z.shape)} and labels {list(y.shape)}")
        y_hat = torch.sigmoid(z)
        if self.clip is None:
            return F.binary_cross_entropy_with_logits(z, y), y_hat
        y_hat = y_hat.clamp(self.clip, 1 - self.clip)
        return -(y * y_hat.log() + (1 - y) * (1 - y_hat).log()).sum() / len(y), y_hat

    def backward(self, y_hat: Tensor, y: Tensor) -> Tensor:
        r"""$dL/dz=(\hat y-y)/n$."""
        return (y_hat - y) / len(y)


class ReLU:
    """`max(0, z)`, with derivative 0 at 0.

    >>> relu = ReLU()
    >>> relu.forward(torch.tensor([-1.0, 0.0, 2.0])), relu.backward(torch.ones(3))
    (tensor([0., 0., 2.]), tensor([0., 0., 1.]))
    """

    z: Tensor

    def forward(self, z: Tensor) -> Tensor:
        self.z = z
        return torch.clamp(z, min=0)

    def backward(self, d_out: Tensor) -> Tensor:
        return d_out * (self.z > 0)


class LinearLayer:
    r"""$Z=XW+b$ with $dW=X^\top dZ$, $db=\sum dZ$, $dX=dZ\,W^\top$.

    Args:
        inputs, outputs: widths $d_\text{in}$, $d_\text{out}$.
        generator: a torch generator or seed, or a numpy `RandomState` for the text's own numbers.
            $W$ is Gaussian of variance $2/(d_\text{in}+d_\text{out})$, $b$ is 0.
        divide_again: divide $dW$ and $db$ by the number of samples, as the text's code
            does, although the loss has done so: then they are $1/n$ times the gradient.

    >>> layer = LinearLayer(3, 2)
    >>> layer.forward(torch.ones(5, 3).double()).shape
    torch.Size([5, 2])
    >>> layer.backward(torch.ones(5, 2).double()).shape
    torch.Size([5, 3])
    >>> layer.db
    tensor([5., 5.], dtype=torch.float64)
    """

    x: Tensor
    dW: Tensor
    db: Tensor

    def __init__(
        self,
        inputs: int,
        outputs: int,
        generator: RandomSource | np.random.RandomState = None,
        *,
        divide_again: bool = False,
    ) -> None:
        whole_number(inputs, "inputs", least=1)
        whole_number(outputs, "outputs", least=1)
        self.W = _standard_normal(inputs, outputs, generator) / math.sqrt((inputs + outputs) / 2)
        self.b = self.W.new_zeros(outputs)
        self.divide_again = divide_again

    def forward(self, x: Tensor) -> Tensor:
        """`[n, inputs]` to `[n, outputs]`; the input is kept for the way back."""
        if x.ndim != 2 or x.shape[1] != len(self.W):
            raise ShapeMismatch(f"x must be [n, {len(self.W)}], not {list(x.shape)}")
        self.x = x
        return x @ self.W + self.b

    def backward(self, dz: Tensor) -> Tensor:
        """`dL/dZ [n, outputs]` to `dL/dX [n, inputs]`; leaves `dW` and `db`."""
        self.dW, self.db = self.x.T @ dz, dz.sum(0)
        if self.divide_again:
            self.dW, self.db = self.dW / len(self.x), self.db / len(self.x)
        return dz @ self.W.T


class MLP:
    """Linear, ReLU, ..., linear: logits out.

    Args:
        widths: `[inputs, hidden, ..., outputs]`; `[2, 10, 5, 1]` has two hidden layers.
        generator, divide_again: as for `LinearLayer`.

    >>> net = MLP([2, 10, 5, 1])
    >>> len(net.linear_layers), net.hidden_layers
    (3, 2)
    """

    def __init__(
        self,
        widths: Sequence[int],
        generator: RandomSource | np.random.RandomState = None,
        *,
        divide_again: bool = False,
    ) -> None:
        if len(widths) < 2:
            raise InvalidInput(
                "a network needs at least the widths of its input and its output, not "
                f"{list(widths)}"
            )
        source = (
            generator if isinstance(generator, np.random.RandomState) else as_generator(generator)
        )
        self.layers: list[LinearLayer | ReLU] = []
        for i, (inputs, outputs) in enumerate(pairwise(widths)):
            self.layers.append(LinearLayer(inputs, outputs, source, divide_again=divide_again))
            if i < len(widths) - 2:
                self.layers.append(ReLU())

    @property
    def linear_layers(self) -> list[LinearLayer]:
        return [layer for layer in self.layers if isinstance(layer, LinearLayer)]

    @property
    def hidden_layers(self) -> int:
        """How many layers are neither input nor output."""
        return sum(isinstance(layer, ReLU) for layer in self.layers)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer.forward(x)
        return x

    def backward(self, d_logits: Tensor) -> None:
        """Back through the layers; each linear layer is left with its `dW` and `db`."""
        for layer in reversed(self.layers):
            d_logits = layer.backward(d_logits)

    def as_torch(self) -> nn.Sequential:
        """The same function as an `nn.Sequential`, with copies of the weights."""
        modules: list[nn.Module] = [
            dense(layer.W.T, layer.b) if isinstance(layer, LinearLayer) else nn.ReLU()
            for layer in self.layers
        ]
        return nn.Sequential(*modules)


class GradientDescent:
    r"""$W\leftarrow W-(\eta\,dW+\lambda W)$, $b\leftarrow b-\eta\,db$.

    The decay $\lambda$ is not multiplied by the rate: it is that of
    `torch.optim.SGD(lr=rate, weight_decay=decay / rate)` on the weights alone.
    """

    def __init__(self, rate: float = 1e-3, decay: float = 0.0) -> None:
        if not (math.isfinite(rate) and rate > 0 and math.isfinite(decay) and decay >= 0):
            raise InvalidInput(f"the rate must be positive and the decay >= 0: {rate!r}, {decay!r}")
        self.rate = rate
        self.decay = decay

    def step(self, model: MLP) -> None:
        for layer in model.linear_layers:
            layer.W = layer.W - (self.rate * layer.dW + self.decay * layer.W)
            layer.b = layer.b - self.rate * layer.db


@dataclass(frozen=True, slots=True)
class TrainingRun:
    """What full-batch gradient descent did.

    Attributes:
        model: as it was left.
        losses: `[iterations]`, each before its step.
        accuracies: `[iterations]`, likewise.
    """

    model: MLP
    losses: Tensor
    accuracies: Tensor


def train_mlp(
    model: MLP,
    x: Tensor,
    y: Tensor,
    optimizer: GradientDescent,
    *,
    steps: int = 500,
    loss: BinaryCrossEntropy | None = None,
) -> TrainingRun:
    """The training loop: forward, loss, backward, step, on the whole sample.

    >>> x, y = two_gaussian_clouds(20)
    >>> run = train_mlp(MLP([2, 8, 1]), x, y, GradientDescent(0.5), steps=50)
    >>> bool(run.losses[-1] < run.losses[0])
    True
    """
    whole_number(steps, "steps", least=1)
    judge = loss or BinaryCrossEntropy()
    losses, accuracies = [], []
    for i in range(steps):
        value, y_hat = judge.forward(model.forward(x), y)
        if not math.isfinite(float(value)):
            raise NonFinite(f"the loss is {float(value)} at iteration {i}: lower the rate")
        losses.append(value)
        accuracies.append(((y_hat > 0.5) == (y > 0.5)).to(x).mean())
        model.backward(judge.backward(y_hat, y))
        optimizer.step(model)
    return TrainingRun(model, torch.stack(losses), torch.stack(accuracies))


def lecture_run(
    samples: int = 1000,
    widths: Sequence[int] = (2, 200, 200, 1),
    *,
    rate: float = 0.5,
    steps: int = 500,
    divide_again: bool = True,
    generator: np.random.RandomState | int = 0,
) -> TrainingRun:
    """The run of section 2.7.7: its data, its weights out of the same stream, its 500 steps.

    With `divide_again=False` the gradients are those of the mean loss; the rate then means what
    it says, and is `2 * samples` times larger than the one the printed code really uses.

    >>> run = lecture_run(20, (2, 5, 1), steps=3)
    >>> len(run.losses)
    3
    """
    stream = legacy_stream(generator)
    x, y = two_gaussian_clouds(samples, stream)
    model = MLP(widths, stream, divide_again=divide_again)
    return train_mlp(
        model, x, y, GradientDescent(rate), steps=steps, loss=BinaryCrossEntropy(1e-12)
    )


def _standard_normal(
    rows: int, columns: int, generator: RandomSource | np.random.RandomState
) -> Tensor:
    if isinstance(generator, np.random.RandomState):
        return torch.from_numpy(generator.randn(rows, columns))
    return gaussian(rows, columns, generator=as_generator(generator), dtype=torch.float64)

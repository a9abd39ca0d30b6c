r"""What convolutional networks can and cannot be, written down: by averaging, padding, subsampling.

A network of circular convolutions commutes with shifts, so it is at least $\|f-\bar f\|$ away from
any $f$, where $\bar f$ is the average over shifts (`group_average`). The average of a network with
one hidden layer *is* a circular convolutional network, so the distance is attained. Zeros at the
border, or subsampling, tell positions apart, and then every function is within reach.

Source: Mathematical Aspects of Deep Learning, §1.6.1.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

from torchtheory.core.checks import as_module, described_layers, whole_number
from torchtheory.core.errors import InvalidInput, UnsupportedModel


def circular_average(network: nn.Module) -> nn.Sequential:
    r"""The average over circular shifts of a network with one hidden layer, as convolutions.

    For $f(x)=V\varrho(Wx+b)+c$ on $\mathbb R^N$,
    $$\bar f(x)_i=\frac1N\sum_{u}\sum_j V_{(i-j),u}\,
    \varrho\Bigl(\sum_kW_{u,k}x_{j+k}+b_u\Bigr)+\bar c,$$
    indices modulo $N$: two circular convolutions with kernels of length $N$ and as many channels
    as there are hidden units.

    Args:
        network: `nn.Sequential(nn.Linear(N, H), activation, nn.Linear(H, N))`.

    Returns:
        A network of signals `[n, 1, N]`.

    >>> net = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 3))
    >>> circular_average(net)(torch.zeros(2, 1, 3)).shape
    torch.Size([2, 1, 3])
    """
    first, activation, second = _hidden_layer(network)
    size, units = first.in_features, first.out_features
    if second.out_features != size:
        raise InvalidInput(
            f"a function of signals has as many outputs as inputs, and the network has {size} "
            f"inputs and {second.out_features} outputs"
        )
    like = {"dtype": first.weight.dtype, "device": first.weight.device}
    reading = nn.Conv1d(1, units, size, **like)  # type: ignore[arg-type]
    writing = nn.Conv1d(units, 1, size, **like)  # type: ignore[arg-type]
    back = (-torch.arange(size)) % size
    with torch.no_grad():
        reading.weight.copy_(first.weight[:, None])
        _bias(reading).copy_(_bias_of(first))
        writing.weight.copy_(second.weight[back].T[None] / size)
        _bias(writing).copy_(_bias_of(second).mean())
    around = nn.CircularPad1d((0, size - 1))
    return nn.Sequential(around, reading, activation, nn.CircularPad1d((0, size - 1)), writing)


def subsampled_network(network: nn.Module) -> nn.Sequential:
    r"""A network with one hidden layer as convolutions with subsampling: the same function.

    Kernels of length 2 and stride 2 turn pairs of positions into channels. After $\log_2N$ of
    them every position is a channel, and convolutions of length 1 are the layers themselves.

    Args:
        network: `nn.Sequential(nn.Linear(N, H), activation, nn.Linear(H, K))`, $N$ a power of 2.

    Returns:
        A network from signals `[n, 1, N]` to `[n, K, 1]`.

    >>> net = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 2))
    >>> x = torch.ones(3, 1, 4)
    >>> bool(torch.allclose(subsampled_network(net)(x)[..., 0], net(x[:, 0]), atol=1e-5))
    True
    """
    first, activation, second = _hidden_layer(network)
    size = first.in_features
    if size & (size - 1):
        raise InvalidInput(f"halving a signal to one position needs a power of 2, not {size}")
    like = {"dtype": first.weight.dtype, "device": first.weight.device}
    layers: list[nn.Module] = []
    places = torch.zeros(1, dtype=torch.long)  # which input a channel at the first position is
    channels, step = 1, 1
    while channels < size:
        halving = nn.Conv1d(channels, 2 * channels, 2, stride=2, bias=False, **like)  # type: ignore[arg-type]
        with torch.no_grad():
            one = torch.eye(channels, **like)  # type: ignore[call-overload]
            none = torch.zeros_like(one)
            halving.weight.copy_(
                torch.cat([torch.stack([one, none], 2), torch.stack([none, one], 2)])
            )
        layers.append(halving)
        places = torch.cat([places, places + step])
        channels, step = 2 * channels, 2 * step
    reading = nn.Conv1d(size, first.out_features, 1, **like)  # type: ignore[arg-type]
    writing = nn.Conv1d(first.out_features, second.out_features, 1, **like)  # type: ignore[arg-type]
    with torch.no_grad():
        reading.weight.copy_(first.weight[:, places, None])
        _bias(reading).copy_(_bias_of(first))
        writing.weight.copy_(second.weight[..., None])
        _bias(writing).copy_(_bias_of(second))
    return nn.Sequential(*layers, reading, activation, writing)


def first_position(
    size: int,
    *,
    padding_mode: Literal["zeros", "circular"] = "zeros",
    dtype: torch.dtype = torch.float64,
) -> nn.Sequential:
    r"""Convolutions with kernels of length 3 that keep the first entry of a signal and no other.

    $2(N-1)$ layers: shift to the right until only $x_0$ is left, the others having gone over the
    edge into the zeros, and back again. Circular convolutions of the same kernels are the
    identity.

    Args:
        size: length of the signals, $N$.
        padding_mode: of the convolutions.

    >>> first_position(3)(torch.tensor([[[1.0, 2.0, 3.0]]]).double()).tolist()
    [[[1.0, 0.0, 0.0]]]
    """
    size = whole_number(size, "size", least=1)
    layers = []
    for weight in [[1.0, 0.0, 0.0]] * (size - 1) + [[0.0, 0.0, 1.0]] * (size - 1):
        layer = nn.Conv1d(1, 1, 3, padding=1, padding_mode=padding_mode, bias=False, dtype=dtype)
        with torch.no_grad():
            layer.weight.copy_(torch.tensor(weight)[None, None])
        layers.append(layer)
    return nn.Sequential(*layers)


def _hidden_layer(network: nn.Module) -> tuple[nn.Linear, nn.Module, nn.Linear]:
    layers = list(as_module(network).children())
    if (
        not isinstance(network, nn.Sequential)
        or len(layers) != 3
        or not isinstance(layers[0], nn.Linear)
        or not isinstance(layers[2], nn.Linear)
    ):
        raise UnsupportedModel(
            "the network must be nn.Sequential(nn.Linear, activation, nn.Linear), one hidden "
            f"layer, not {described_layers(network)}"
        )
    return layers[0], layers[1], layers[2]


def _bias(layer: nn.Conv1d) -> Tensor:
    assert layer.bias is not None
    return layer.bias


def _bias_of(layer: nn.Linear) -> Tensor:
    empty = layer.bias is None
    return layer.weight.new_zeros(layer.out_features) if empty else layer.bias.detach()

r"""The path norm beside the products of layer norms that older bounds use.

Expanding the products shows that every squared path weight is a term of
$\prod_\ell\|W^{(\ell)}\|_F^2$, so that

$$
\sum_k\|\bar w_k\|_2^2\;\le\;\prod_{\ell=1}^L\|W^{(\ell)}\|_F^2 ,
$$

with equality when all hidden layers have one unit. $W^{(\ell)}$ is the whole matrix of a
layer: a filter of a convolution counts once for every place it is applied at. Unlike the products,
the path norm does not change when units are rescaled. Source: Mathematical Aspects of Deep
Learning, section 2.5.2.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import nn

from torchtheory.kernels.paths.layers import has_bias, path_links
from torchtheory.kernels.paths.path_kernel import path_norms
from torchtheory.models.model import PureFunction, evaluation_mode
from torchtheory.robustness.lipschitz.layers import layer_norms


@dataclass(frozen=True, slots=True)
class NormProducts:
    r"""One number for the weights of a network, in several ways.

    Attributes:
        path: $\sqrt{\sum_k\|\bar w_k\|_2^2}$.
        path_sum: $\max_k\|\bar w_k\|_1$; times $\max(1,\|x\|_\infty)$ it bounds the
            outputs.
        frobenius: $\prod_\ell\|W^{(\ell)}\|_F$.
        spectral: $\prod_\ell\|W^{(\ell)}\|_2$, of convolutions an upper bound.
        depth: $L$, the number of layers with weights.
    """

    path: float
    path_sum: float
    frobenius: float
    spectral: float
    depth: int

    @property
    def peeling(self) -> float:
        r"""$2^{L-1}\prod_\ell\|W^{(\ell)}\|_F$, what peeling and contraction leave."""
        return 2.0 ** (self.depth - 1) * self.frobenius


def compare_norms(model: nn.Module, input_shape: Sequence[int]) -> NormProducts:
    r"""Path norm, Frobenius product and spectral product of a network.

    Takes the networks of `path_norms`. Where there are
    biases, the matrices of the products are those in homogeneous coordinates,
    $\begin{pmatrix}W&b\\0&1\end{pmatrix}$, whose paths are those with biases (without the
    last row where no bias follows), in the Frobenius product; the spectral one is of $W$.
    Between two layers with weights there should be no more than one max pool: the windows of two
    that overlap count a path several times.

    >>> net = nn.Sequential(nn.Linear(2, 1, bias=False), nn.ReLU(), nn.Linear(1, 1, bias=False))
    >>> _ = net[0].weight.data.copy_(torch.tensor([[3.0, 4.0]])), net[2].weight.data.fill_(2.0)
    >>> found = compare_norms(net, (2,))
    >>> found.path, found.frobenius, found.peeling
    (10.0, 10.0, 20.0)
    """
    links = path_links(model)
    euclidean, absolute = (path_norms(model, input_shape, order=p) for p in (2, 1))
    norms = layer_norms(model, input_shape)
    like = PureFunction(model).reference()
    value = torch.zeros(1, *input_shape, dtype=like.dtype, device=like.device)
    shifts = []
    with torch.no_grad(), evaluation_mode(model):
        for link in links:
            after = link.module(torch.zeros_like(value))  # of 0 a layer leaves its bias
            shifts.append(float(after.double().square().sum()) if has_bias(link.module) else 0.0)
            value = after
    last = max((i for i, link in enumerate(links) if has_bias(link.module)), default=-1)
    product, spectral, depth = 1.0, 1.0, 0
    for i, (norm, shift) in enumerate(zip(norms, shifts, strict=True)):
        if norm.frobenius is None:
            continue
        carried = 1.0 if i < last else 0.0
        product *= math.sqrt(norm.frobenius**2 + shift + carried)
        spectral *= norm.lipschitz
        depth += 1
    return NormProducts(float(euclidean.norm()), float(absolute.max()), product, spectral, depth)

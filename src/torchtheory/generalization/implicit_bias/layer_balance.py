r"""What gradient flow conserves between neighboring layers, and how linear layers line up.

In a network $f(x)=W_L\varrho(W_{L-1}\cdots\varrho(W_1x))$ whose activation satisfies
$\varrho(u)=u\varrho'(u)$, gradient flow of any loss keeps, for each hidden neuron, the
squared norm of the weights that leave it less that of those that enter it; summed over a layer,
$\|W_{\ell+1}\|_F^2-\|W_\ell\|_F^2$. In linear networks it keeps the whole matrix
$W_{\ell+1}^\top W_{\ell+1}-W_\ell W_\ell^\top$. A bias counts as one more weight that enters.
Weights are in torch's layout, `[out, in]`.
Source: Mathematical Aspects of Deep Learning, section 1.2.3, Eq. (1.27).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor, nn

from torchtheory.core.checks import described
from torchtheory.core.errors import InvalidInput, InvalidType, ShapeMismatch, UnsupportedModel
from torchtheory.core.random import RandomSource, as_generator, gaussian
from torchtheory.nets.activations.properties import inspect_activation
from torchtheory.tracing.chain import as_chain

#: A chain of dense layers: a network, or its weights from the input on.
Layers = nn.Module | Sequence[Tensor]


@dataclass(frozen=True, slots=True)
class LayerBalance:
    r"""The invariants of gradient flow, for the $L-1$ pairs of neighboring layers.

    Attributes:
        layers: $\|W_{\ell+1}\|_F^2-\|W_\ell\|_F^2$ (less $\|b_\ell\|^2$), `[L - 1]`.
        neurons: $\|(W_{\ell+1})_{:,j}\|^2-\|(W_\ell)_{j,:}\|^2$ (less $b_j^2$) of all
            hidden neurons, in one row.
        matrices: $W_{\ell+1}^\top W_{\ell+1}-W_\ell W_\ell^\top$ (less
            $b_\ell b_\ell^\top$); its diagonal holds the neurons' numbers.
        conserved: which of them gradient flow keeps: `matrices` (all three), `neurons` (those
            and `layers`) or `nothing`; from the activations, taken as linear if only weights
            were given.
    """

    layers: Tensor
    neurons: Tensor
    matrices: tuple[Tensor, ...]
    conserved: str


def layer_balance_of(layers: Layers) -> LayerBalance:
    r"""The invariants of a chain of dense layers; compare them before and after training.

    Descent with steps $\eta$ changes them by $O(\eta)$ in a given time: a step adds
    $\eta^2(\|\nabla_{W_{\ell+1}}\|^2-\|\nabla_{W_\ell}\|^2)$ to the first. Weight decay
    $c\|\theta\|^2/2$ shrinks them like $e^{-2ct}$.

    >>> net = nn.Sequential(nn.Linear(2, 2, bias=False), nn.ReLU(), nn.Linear(2, 1, bias=False))
    >>> _ = [nn.init.ones_(p) for p in net.parameters()]
    >>> found = layer_balance_of(net)
    >>> found.layers.tolist(), found.neurons.tolist(), found.conserved
    ([-2.0], [-1.0, -1.0], 'neurons')
    """
    weights, biases, conserved = _chain(layers)
    matrices = []
    for before, bias, after in zip(weights[:-1], biases[:-1], weights[1:], strict=True):
        entering = before @ before.T
        if bias is not None:
            entering = entering + torch.outer(bias, bias)
        matrices.append(after.T @ after - entering)
    diagonals = [m.diagonal() for m in matrices]
    sums = torch.stack([d.sum() for d in diagonals])
    return LayerBalance(sums, torch.cat(diagonals), tuple(matrices), conserved)


def layer_alignment(layers: Layers) -> Tensor:
    r"""$|\langle u_1(W_\ell),v_1(W_{\ell+1})\rangle|$ for neighboring layers, `[L - 1]`.

    The first left singular vector of a layer and the first right one of the next; 1 if aligned.

    >>> layer_alignment([torch.diag(torch.tensor([2.0, 1.0])), torch.tensor([[3.0, 4.0]])])
    tensor([0.6000])
    """
    weights, _, _ = _chain(layers)
    parts = [torch.linalg.svd(w, full_matrices=False) for w in weights]
    pairs = zip(parts[1:], parts[:-1], strict=True)
    return torch.stack([(after[2][0] @ before[0][:, 0]).abs() for after, before in pairs])


def alignment_bound(layers: Layers, matrices: Sequence[Tensor]) -> Tensor:
    r"""What conservation alone says about the alignment of linear layers, `[L - 1]`.

    With the conserved $D_\ell=W_{\ell+1}^\top W_{\ell+1}-W_\ell W_\ell^\top$, spectral norms
    $\sigma_\ell=\|W_\ell\|_2$ and the bound $E_L=\|W_L\|_F^2-\sigma_L^2$ (0 for one
    output), $E_\ell=E_{\ell+1}-\operatorname{tr}D_\ell+\|D_\ell\|_2$ on the other singular
    values,

    $$
    \langle u_1(W_\ell),v_1(W_{\ell+1})\rangle^2\ge
    \frac{\sigma_\ell^2-\|D_\ell\|_2-E_{\ell+1}}{\sigma_{\ell+1}^2}:
    $$

    as the layers grow and $D$ stays, they align. 0 where the bound says nothing.

    Args:
        layers: as they are now.
        matrices: the $D_\ell$ of the start.

    >>> w = [torch.eye(2), torch.tensor([[3.0, 4.0]])]
    >>> bool(alignment_bound(w, layer_balance_of(w).matrices) <= layer_alignment(w))
    True
    """
    weights, _, _ = _chain(layers)
    if len(matrices) != len(weights) - 1:
        raise ShapeMismatch(f"{len(weights)} layers have {len(weights) - 1} matrices between them")
    tops = [float(torch.linalg.matrix_norm(w, 2)) ** 2 for w in weights]
    rest = float(weights[-1].square().sum()) - tops[-1]
    bounds: list[float] = []
    for k in range(len(weights) - 2, -1, -1):
        size = float(torch.linalg.matrix_norm(matrices[k], 2))
        square = (tops[k] - size - rest) / tops[k + 1] if tops[k + 1] > 0 else 0.0
        bounds.append(math.sqrt(max(0.0, square)))
        rest = rest - float(matrices[k].trace()) + size
    return weights[0].new_tensor(bounds[::-1])


def balanced_weights(
    product: Tensor, hidden: Sequence[int], *, generator: RandomSource = None
) -> list[Tensor]:
    r"""Layers $W_1,\dots,W_L$ with a given product, all $D_\ell=0$.

    $W_\ell=Q_{\ell}\Sigma^{1/L}Q_{\ell-1}^\top$ with random orthonormal columns between the
    singular vectors of $W_L\cdots W_1=U\Sigma V^\top$. Under gradient flow such layers stay
    balanced, and each one's left singular vectors stay the next one's right.

    Args:
        product: `[out, in]`.
        hidden: widths of the hidden layers, none below the rank of the product.

    >>> w = balanced_weights(torch.tensor([[3.0, 4.0]]), [2, 2])
    >>> (w[2] @ w[1] @ w[0]).round(decimals=4), bool(layer_balance_of(w).neurons.abs().max() < 1e-5)
    (tensor([[3., 4.]]), True)
    """
    if product.ndim != 2 or not product.is_floating_point():
        raise ShapeMismatch(f"the product must be a real matrix, not {list(product.shape)}")
    if not hidden:
        raise InvalidInput("at least one hidden layer is needed")
    u, s, vt = torch.linalg.svd(product.detach(), full_matrices=False)
    rank = int((s > torch.finfo(s.dtype).eps * max(product.shape) * s[:1]).sum())
    if min(hidden) < rank:
        raise InvalidInput(f"the product has rank {rank}: no hidden layer can have fewer neurons")
    source = as_generator(generator)
    frames = [vt[:rank].T]
    for width in hidden:
        draw = gaussian(width, rank, generator=source, dtype=product.dtype, device=product.device)
        frames.append(torch.linalg.qr(draw).Q)
    frames.append(u[:, :rank])
    root = s[:rank] ** (1 / (len(hidden) + 1))
    return [(after * root) @ before.T for before, after in pairwise(frames)]


def _chain(layers: Layers) -> tuple[list[Tensor], list[Tensor | None], str]:
    """The weights and biases from the input on, and what gradient flow keeps."""
    conserved = "matrices"
    weights: list[Tensor] = []
    biases: list[Tensor | None] = []
    if isinstance(layers, nn.Module):
        for link in as_chain(layers):
            module = link.module
            if isinstance(module, nn.Linear):
                weights.append(module.weight.detach())
                biases.append(None if module.bias is None else module.bias.detach())
            elif isinstance(module, nn.Identity | nn.Flatten):
                continue
            elif [*module.parameters(), *module.buffers()]:
                raise UnsupportedModel(f"{module} is neither a dense layer nor an activation")
            elif conserved != "nothing":
                conserved = "neurons" if inspect_activation(module).euler else "nothing"
    elif isinstance(layers, Sequence) and all(isinstance(w, Tensor) for w in layers):
        weights, biases = [w.detach() for w in layers], [None] * len(layers)
    else:
        raise InvalidType(
            "layers must be a network or its weights, tensors from the input on, not "
            f"{described(layers)}"
        )
    if len(weights) < 2:
        raise InvalidInput(f"at least two layers are needed, not {len(weights)}")
    for k, (before, after) in enumerate(pairwise(weights), 1):
        if before.ndim != 2 or after.ndim != 2 or after.shape[1] != before.shape[0]:
            raise ShapeMismatch(
                f"layer {k} is {list(before.shape)} and layer {k + 1} {list(after.shape)}: weights "
                "are [out, in], and what one gives the next must take"
            )
    return weights, biases, conserved

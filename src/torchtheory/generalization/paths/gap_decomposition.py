r"""The squared-loss generalization gap of a ReLU network, taken apart exactly.

With $f_k(x) = z(x)^\top\bar w_k$ over the paths of the network, the loss
$\|f(x)-y\|_2^2$, a training sample of $m$ points and a population,

$$
R - R_S = c_y + \sum_k \bigl(2\,v_k^\top\bar w_k + \bar w_k^\top G\bar w_k\bigr),
$$

where $G = \mathbb E[zz^\top] - \frac1m\sum_i z_iz_i^\top$,
$v_k = \frac1m\sum_i Y_k^{(i)}z_i - \mathbb E[Y_kz]$ and
$c_y = \mathbb E\|Y\|^2 - \frac1m\sum_i\|Y^{(i)}\|^2$. Nothing is assumed about how the
sample came about. With the eigenpairs $(\lambda_j,u_j)$ of $G$,

$$
R - R_S - c_y = \sum_k\Bigl(2\|v_k\|\|\bar w_k\|\cos(v_k,\bar w_k)
+ \|\bar w_k\|^2\sum_j\lambda_j\cos^2(u_j,\bar w_k)\Bigr)
\le \sum_k\bigl(2\|v_k\|\|\bar w_k\| + \lambda_{\max}(G)\|\bar w_k\|^2\bigr).
$$

Source: Mathematical Aspects of Deep Learning, Theorem 2.7 and Eq. (2.2).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from torchtheory.core.checks import all_finite
from torchtheory.core.errors import InvalidInput, ShapeMismatch
from torchtheory.kernels.paths.path_kernel import deep_path_kernel, number_of_paths, path_norms
from torchtheory.kernels.paths.rules import checked_inputs
from torchtheory.models.model import evaluation_mode, one_output, real_rows

Pair = tuple[Tensor, Tensor]


@dataclass(frozen=True, slots=True)
class GapDecomposition:
    r"""The parts of $R - R_S$.

    Attributes:
        train_risk, population_risk: $R_S$ and $R$, mean squared distances.
        label_term: $c_y$, which no weights change.
        linear, quadratic: $2v_k^\top\bar w_k$ and $\bar w_k^\top G\bar w_k$,
            `[outputs]`.
        label_norms: $\|v_k\|$, `[outputs]`.
        path_norms: $\|\bar w_k\|$, `[outputs]`.
        eigenvalues: of $G$, decreasing, `[r]`; it is zero on all other paths.
        alignments: $\cos^2(u_j,\bar w_k)$, `[r, outputs]`.
        paths: the number of paths, the size of $G$.
    """

    train_risk: float
    population_risk: float
    label_term: float
    linear: Tensor
    quadratic: Tensor
    label_norms: Tensor
    path_norms: Tensor
    eigenvalues: Tensor
    alignments: Tensor
    paths: float

    @property
    def gap(self) -> float:
        """Population minus training risk."""
        return self.population_risk - self.train_risk

    @property
    def cosines(self) -> Tensor:
        r"""$\cos(v_k,\bar w_k)$, `[outputs]`; 0 where one of them is 0."""
        lengths = 2 * self.label_norms * self.path_norms
        return torch.where(lengths > 0, self.linear / lengths, 0.0)

    @property
    def largest_eigenvalue(self) -> float:
        r"""$\lambda_{\max}(G)$; at least 0 unless the points span all of path space."""
        top = float(self.eigenvalues[0]) if len(self.eigenvalues) else 0.0
        return top if len(self.eigenvalues) >= self.paths else max(top, 0.0)

    @property
    def bound(self) -> float:
        """The theorem's upper bound on the gap, label term included."""
        linear = 2 * self.label_norms * self.path_norms
        quadratic = self.largest_eigenvalue * self.path_norms.square()
        return self.label_term + float((linear + quadratic).sum())

    @property
    def ratio(self) -> float:
        """How much of the bound is slack: bound over gap, both without the label term."""
        rest = self.gap - self.label_term
        return (self.bound - self.label_term) / rest if rest else math.inf


def decompose_gap(
    model: nn.Module,
    train: Pair,
    population: Pair,
    *,
    masses: Tensor | None = None,
) -> GapDecomposition:
    r"""Take the gap between the squared losses on two sets of samples apart.

    The population is finite: points with `masses` that sum to 1, equal unless given. A test set
    in its place makes the identity one between training and test risk: it then says nothing about
    a distribution. Networks and paths are those of
    `deep_path_kernel`, which is used here: with $Z$
    the features of all $N$ points, $K=ZZ^\top$ and $G=Z^\top DZ$, the nonzero
    eigenvalues of $G$ are those of $DK$, and $u_j^\top\bar w_k$ follows from
    the outputs $Z\bar w_k$.

    Args:
        model: network with one or several outputs; run in evaluation mode, not changed.
        train, population: `(x[n, ...], y[n] or y[n, outputs])`.
        masses: `[n]` of the population.

    Costs a path kernel of all points and its eigenvalues: $O(N^2)$ memory and
    $O(N^3)$ time, so take a few thousand points at most.

    >>> net = nn.Sequential(nn.Linear(1, 1, bias=False))      # one path, z = x
    >>> _ = net[0].weight.data.fill_(3.0)
    >>> x = torch.tensor([[1.0], [2.0]])
    >>> found = decompose_gap(net, (x, x), (2 * x, 2 * x))
    >>> found.gap, found.label_term, found.linear.item(), found.quadratic.item()
    (30.0, 7.5, -45.0, 67.5)
    """
    x, y, outputs, signs = _joined(model, train, population, masses)
    train_size = len(train[0])
    losses = (outputs - y).square().sum(1)
    kernel = deep_path_kernel(model, x)
    weighted = -signs[:, None] * y  # v_k = Z' weighted_k
    label_norms = (weighted * (kernel @ weighted)).sum(0).clamp_min(0).sqrt()
    norms = path_norms(model, x.shape[1:])
    eigenvalues, inner = _spectrum(kernel, signs, outputs)
    lengths = torch.where(norms > 0, norms, 1.0)
    return GapDecomposition(
        train_risk=-float(signs[:train_size] @ losses[:train_size]),
        population_risk=float(signs[train_size:] @ losses[train_size:]),
        label_term=float(signs @ y.square().sum(1)),
        linear=2 * (weighted * outputs).sum(0),
        quadratic=signs @ outputs.square(),
        label_norms=label_norms,
        path_norms=norms,
        eigenvalues=eigenvalues,
        alignments=(inner / lengths).square(),
        paths=number_of_paths(model, x.shape[1:]),
    )


def _spectrum(kernel: Tensor, signs: Tensor, outputs: Tensor) -> tuple[Tensor, Tensor]:
    r"""Eigenvalues of $G$ on the span of the features, and $u_j^\top\bar w_k$.

    $K=US^2U^\top$ gives $Z=USQ^\top$ with orthonormal columns of $Q$, unknown but
    not needed: $G=Q(SU^\top DUS)Q^\top$ and $Q^\top\bar w_k=S^{-1}U^\top f_k$.
    """
    squares, basis = torch.linalg.eigh(kernel)
    kept = squares > len(kernel) * torch.finfo(kernel.dtype).eps * squares[-1].clamp_min(0)
    size, basis = squares[kept].sqrt(), basis[:, kept]
    inside = size[:, None] * (basis.mT @ (signs[:, None] * basis)) * size
    eigenvalues, vectors = torch.linalg.eigh((inside + inside.mT) / 2)
    inner = vectors.mT @ ((basis.mT @ outputs) / size[:, None])
    return eigenvalues.flip(0), inner.flip(0)


def _joined(
    model: nn.Module, train: Pair, population: Pair, masses: Tensor | None
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """All points, their targets and outputs, and the signed masses of population minus sample."""
    sets: list[Tensor] = []
    targets, outputs = [], []
    for name, (x, y) in (("train", train), ("population", population)):
        x = checked_inputs(model, x, f"x of the {name}")
        if sets and x.shape[1:] != sets[0].shape[1:]:
            raise ShapeMismatch(
                f"x of the train has shape {list(sets[0].shape[1:])} a sample, that of the "
                f"population {list(x.shape[1:])}"
            )
        with torch.no_grad(), evaluation_mode(model):
            parts = [real_rows(one_output(model(p)), len(p)) for p in torch.split(x, 512)]
            out = torch.cat([made.reshape(len(made), -1) for made in parts])
        y = torch.as_tensor(y).to(x).reshape(len(y), -1)
        if y.shape != out.shape:
            raise ShapeMismatch(
                f"y of the {name} must be {list(out.shape)} as the outputs are, not {list(y.shape)}"
            )
        all_finite(y, f"y of the {name}")
        sets.append(x)
        targets.append(y.double())
        outputs.append(out.double())
    m, n = len(sets[0]), len(sets[1])
    ones = torch.ones(max(m, n), dtype=torch.float64, device=sets[0].device)
    share = ones[:n] / n if masses is None else masses.to(ones)
    if share.shape != (n,) or bool((share < 0).any()) or abs(float(share.sum()) - 1) > 1e-9:
        raise InvalidInput(f"masses must be {n} numbers >= 0 that sum to 1")
    signs = torch.cat([-ones[:m] / m, share])
    return torch.cat(sets), torch.cat(targets), torch.cat(outputs), signs

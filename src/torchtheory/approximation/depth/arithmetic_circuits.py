r"""Convolutional arithmetic circuits: one product of everything against products of pairs.

An image of $m$ places with $r$ features each gets the score

$$
h(X)=\sum_{i_1,\dots,i_m=1}^r c_{i_1\dots i_m}\prod_{j=1}^m f_{i_j}(x_j).
$$

A circuit is a network of $1\times1$ convolutions, no activation and product pooling. With
one pooling over all places it is a CP decomposition of $c$; with pairwise poolings in
$\log_2m$ levels, a hierarchical Tucker decomposition. The rank of $c$ as a matrix of
odd against even places tells them apart: at most $Z$ for a CP decomposition of $Z$
terms, and $r^{m/2}$ for almost every deep circuit. Source: Mathematical Aspects of Deep
Learning, section 3.8.1 (Cohen et al. 2016).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor, nn

from torchtheory.core.checks import all_finite, whole_number, whole_numbers
from torchtheory.core.errors import InvalidInput, ShapeMismatch
from torchtheory.core.random import RandomSource, as_generator, gaussian

#: A Mersenne prime: the product of two residues fits into 63 bits.
_PRIME = 2**31 - 1


class ShallowCircuit(nn.Module):
    r"""Scores by a CP decomposition, $c^n=\sum_{z\le Z}a^n_z\,a^{z,1}\otimes\dots$.

    Args:
        factors: `[m, Z, r]`, the vectors $a^{z,j}$: a convolution of its own at each place.
        outputs: `[N, Z]`, the numbers $a^n_z$.

    Maps features `[n, m, r]` to scores `[n, N]`.

    >>> circuit = ShallowCircuit(torch.ones(2, 1, 1), torch.ones(1, 1))
    >>> circuit(torch.tensor([[[3.0], [5.0]]])).item()          # one term: the product
    15.0
    """

    def __init__(self, factors: Tensor, outputs: Tensor) -> None:
        super().__init__()
        if factors.ndim != 3 or outputs.ndim != 2 or factors.shape[1] != outputs.shape[1]:
            raise ShapeMismatch(
                "a shallow circuit has factors [m, Z, r] and outputs [N, Z], not "
                f"{list(factors.shape)} and {list(outputs.shape)}"
            )
        _finite(factors, outputs)
        self.factors = nn.Parameter(factors.clone())
        self.outputs = nn.Parameter(outputs.clone())

    def forward(self, features: Tensor) -> Tensor:
        m, _, r = self.factors.shape
        _features(features, m, r)
        return torch.einsum("nmr,mzr->nmz", features, self.factors).prod(1) @ self.outputs.T


class DeepCircuit(nn.Module):
    r"""Scores by a hierarchical Tucker decomposition: convolve, multiply neighbors, repeat.

    Args:
        levels: `[m, r_0, r]`, `[m/2, r_1, r_0]`, ..., `[2, r_l, r_{l-1}]`: the convolution
            of each level, one matrix a place (a single matrix `[1, ., .]` is shared by all).
        outputs: `[N, r_l]`.

    Maps features `[n, m, r]` to scores `[n, N]`; $m=2^{l+1}$ places.

    >>> one = torch.ones(1, 1, 1)
    >>> circuit = DeepCircuit([one, one], torch.ones(1, 1))
    >>> circuit(torch.tensor([[[2.0], [3.0], [5.0], [7.0]]])).item()
    210.0
    """

    def __init__(self, levels: Sequence[Tensor], outputs: Tensor) -> None:
        super().__init__()
        places = 2 ** len(levels)
        widths = [w.shape[1] for w in levels if w.ndim == 3]
        fits = len(levels) > 0 and len(widths) == len(levels) and outputs.ndim == 2
        fits = fits and all(
            w.shape[0] in (1, places >> k) and (k == 0 or w.shape[2] == widths[k - 1])
            for k, w in enumerate(levels)
        )
        if not fits or outputs.shape[1] != widths[-1]:
            raise ShapeMismatch(
                "a deep circuit has levels [m, r_0, r], [m/2, r_1, r_0], ... down to two places "
                f"and outputs [N, r_l], not {[list(w.shape) for w in levels]} and "
                f"{list(outputs.shape)}"
            )
        _finite(*levels, outputs)
        self.levels = nn.ParameterList(nn.Parameter(w.clone()) for w in levels)
        self.outputs = nn.Parameter(outputs.clone())

    @property
    def places(self) -> int:
        """The number $m$ of places."""
        return 1 << len(self.levels)

    def forward(self, features: Tensor) -> Tensor:
        _features(features, self.places, self.levels[0].shape[2])
        h = features
        for w in self.levels:
            h = torch.einsum("nmr,msr->nms", h, w.expand(h.shape[1], -1, -1))
            h = h[:, ::2] * h[:, 1::2]
        return h[:, 0] @ self.outputs.T


def random_deep_circuit(
    places: int,
    ranks: Sequence[int],
    features: int,
    outputs: int = 1,
    *,
    shared: bool = False,
    generator: RandomSource = None,
) -> DeepCircuit:
    """A deep circuit with normal weights, in double precision.

    Args:
        places: `m`, a power of 2, at least 2.
        ranks: `r_0, r_1, ...`, one number a level, `log2(m)` of them.
        features: `r`.
        shared: one matrix a level, as a convolution has it, instead of one a place.

    >>> random_deep_circuit(8, [2, 2, 2], 2)(torch.ones(5, 8, 2).double()).shape
    torch.Size([5, 1])
    """
    whole_number(places, "places", least=2)
    levels = places.bit_length() - 1
    if places != 1 << levels or len(ranks) != levels:
        raise InvalidInput(
            f"a deep circuit has 2^l places and l ranks, not {places} places and {len(ranks)} ranks"
        )
    whole_numbers(ranks, "ranks", fewest=0)
    whole_number(features, "features", least=1)
    whole_number(outputs, "outputs", least=1)
    source = as_generator(generator)
    weights, inner = [], features
    for k, rank in enumerate(ranks):
        copies = 1 if shared else places >> k
        weights.append(gaussian(copies, rank, inner, generator=source, dtype=torch.float64))
        inner = rank
    return DeepCircuit(weights, gaussian(outputs, inner, generator=source, dtype=torch.float64))


def coefficient_tensor(circuit: ShallowCircuit | DeepCircuit) -> Tensor:
    r"""The coefficients $c^n_{i_1\dots i_m}$ of a circuit, `[N, r, ..., r]`.

    Time and memory `O(N Z r^m)`, with the last rank for `Z`.

    >>> circuit = ShallowCircuit(torch.tensor([[[1.0, 2.0]], [[1.0, 3.0]]]), torch.ones(1, 1))
    >>> coefficient_tensor(circuit)[0].tolist()
    [[1.0, 3.0], [2.0, 6.0]]
    """
    with torch.no_grad():
        if isinstance(circuit, ShallowCircuit):
            m, _, r = circuit.factors.shape
            parts = list(circuit.factors)
            while len(parts) > 1:
                parts = [_outer(parts[0], parts[1]), *parts[2:]]
            flat: Tensor = circuit.outputs @ parts[0]
            return flat.reshape(-1, *[r] * m)
        r = circuit.levels[0].shape[2]
        grown = [torch.eye(r).to(circuit.outputs)] * circuit.places
        for w in circuit.levels:
            mixed = [a @ b for a, b in zip(w.expand(len(grown), -1, -1), grown, strict=True)]
            grown = [_outer(a, b) for a, b in zip(mixed[::2], mixed[1::2], strict=True)]
        made: Tensor = (circuit.outputs @ grown[0]).reshape(-1, *[r] * circuit.places)
        return made


def matricize(tensor: Tensor, split: Literal["odd-even", "halves"] = "odd-even") -> Tensor:
    r"""A tensor of even order as a matrix: odd places are the rows, even ones the columns.

    `"halves"` takes the first half of the places for the rows. The tensor of a deep circuit has
    a large rank in the first way and, in the second, no larger one than its last rank.

    >>> matricize(torch.arange(16.0).reshape(2, 2, 2, 2)).tolist()[0]
    [0.0, 1.0, 4.0, 5.0]
    """
    if tensor.ndim < 2 or tensor.ndim % 2:
        raise ShapeMismatch(f"a tensor of even order becomes a matrix, not one of {tensor.ndim}")
    if split not in ("odd-even", "halves"):
        raise InvalidInput(f"split is 'odd-even' or 'halves', not {split!r}")
    order = range(tensor.ndim)
    if split == "odd-even":
        tensor = tensor.permute(*order[::2], *order[1::2])
    rows = tensor.shape[: tensor.ndim // 2].numel()
    return tensor.reshape(rows, -1)


def matricization_rank(tensor: Tensor, split: Literal["odd-even", "halves"] = "odd-even") -> int:
    """The rank of `matricize`: singular values above a tolerance times the largest.

    The tolerance is a hundred times the rounding of a matrix of that size, since the tensor itself
    is a sum of rounded products.

    >>> matricization_rank(torch.ones(2, 2, 2, 2))
    1
    """
    matrix = matricize(tensor, split)
    tolerance = 100 * max(matrix.shape) * torch.finfo(matrix.dtype).eps
    values = torch.linalg.svdvals(matrix)
    return int((values > tolerance * values[0]).sum()) if float(values[0]) > 0 else 0


def generic_rank(
    places: int,
    ranks: Sequence[int],
    features: int,
    *,
    shared: bool = False,
    generator: RandomSource = None,
) -> int:
    r"""The rank of the odd-even matricization of almost every deep circuit, exactly.

    The weights are drawn among the whole numbers modulo a prime, where there is no rounding; the
    floating-point rank of a random circuit is unsafe, since its smallest singular values are
    often below rounding. The rank found is never larger than that of almost every real circuit,
    and smaller only with a probability of order `degree / 2**31` (Schwartz and Zippel).
    Time `O(r^{3m/2})`.

    >>> generic_rank(4, [3, 3], 3), generic_rank(4, [2, 3], 3), generic_rank(8, [2, 2, 2], 2)
    (9, 4, 16)
    """
    like = random_deep_circuit(places, ranks, features, shared=shared)
    shapes = [tuple(w.shape) for w in like.levels]
    source = as_generator(generator)

    def draw(*shape: int) -> Tensor:
        return torch.randint(0, _PRIME, shape, generator=source, device=source.device).cpu()

    def times(a: Tensor, b: Tensor) -> Tensor:
        # reduced before the sum: one product of two residues just fits into 63 bits
        return (a[:, :, None] * b[None] % _PRIME).sum(1) % _PRIME

    grown = [torch.eye(features, dtype=torch.int64)] * places
    for shape in shapes:
        level = draw(*shape)
        mixed = [times(a, b) for a, b in zip(level.expand(len(grown), -1, -1), grown, strict=True)]
        pairs = zip(mixed[::2], mixed[1::2], strict=True)
        grown = [_outer(a, b) % _PRIME for a, b in pairs]
    tensor = times(draw(1, ranks[-1]), grown[0]).reshape([features] * places)
    return _rank_modulo(matricize(tensor), _PRIME)


def _rank_modulo(matrix: Tensor, prime: int) -> int:
    """The rank over the field of a prime, by elimination."""
    rows = matrix.clone()
    rank = 0
    for column in range(rows.shape[1]):
        below = rows[rank:, column].nonzero().flatten()
        if len(below) == 0:
            continue
        pivot = rank + int(below[0])
        rows[[rank, pivot]] = rows[[pivot, rank]]
        rows[rank] = rows[rank] * pow(int(rows[rank, column]), -1, prime) % prime
        rest = rows[rank + 1 :]
        rows[rank + 1 :] = (rest - rest[:, column : column + 1] * rows[rank] % prime) % prime
        rank += 1
        if rank == len(rows):
            break
    return rank


def shallow_from_tensor(tensor: Tensor) -> ShallowCircuit:
    r"""A shallow circuit with any coefficients `[r, ..., r]`, of $r^{m-1}$ terms.

    One term for each choice of all places but the last; its vectors are unit vectors there and a
    row of the tensor at the last place. So every score function is a shallow circuit, of a size
    that is exponential in the number of places.

    >>> circuit = shallow_from_tensor(torch.tensor([[1.0, 2.0], [3.0, 4.0]]))
    >>> coefficient_tensor(circuit)[0].tolist()
    [[1.0, 2.0], [3.0, 4.0]]
    """
    m, r = tensor.ndim, tensor.shape[-1] if tensor.ndim else 0
    if m < 2 or set(tensor.shape) != {r}:
        raise ShapeMismatch(f"coefficients have one size for all places, not {list(tensor.shape)}")
    rows = tensor.reshape(-1, r)
    choices = torch.cartesian_prod(*[torch.arange(r, device=tensor.device)] * (m - 1))
    choices = choices.reshape(len(rows), m - 1)
    units = torch.eye(r).to(tensor)[choices.T]
    return ShallowCircuit(torch.cat([units, rows[None]]), tensor.new_ones(1, len(rows)))


def best_shallow_circuit(
    tensor: Tensor, terms: int, *, sweeps: int = 50, generator: RandomSource = None
) -> ShallowCircuit:
    r"""A shallow circuit of `terms` terms near a tensor, by alternating least squares.

    Each step solves exactly for the vectors of one place. The distance falls with every step, to
    a local minimum in general; no circuit of $Z$ terms comes closer than the Euclidean norm
    of the singular values after the $Z$-th of any matricization (Eckart and Young).
    Time `O(sweeps * m * Z * r^m)`.

    >>> c = coefficient_tensor(best_shallow_circuit(torch.ones(2, 2, 2, 2).double(), 1))
    >>> bool((c - 1).abs().max() < 1e-9)
    True
    """
    whole_number(terms, "terms", least=1)
    whole_number(sweeps, "sweeps", least=1)
    _finite(tensor)
    m, r = tensor.ndim, tensor.shape[-1] if tensor.ndim else 0
    if m < 2 or set(tensor.shape) != {r}:
        raise ShapeMismatch(f"coefficients have one size for all places, not {list(tensor.shape)}")
    source = as_generator(generator)
    factors = [gaussian(terms, r, generator=source, dtype=tensor.dtype) for _ in range(m)]
    factors = [f.to(tensor.device) for f in factors]
    for _ in range(sweeps):
        for j in range(m):
            others = [f / f.norm(dim=1, keepdim=True) for f in factors[:j] + factors[j + 1 :]]
            joint = others[0]
            for f in others[1:]:
                joint = _outer(joint, f)
            target = tensor.movedim(j, 0).reshape(r, -1)
            # a tiny ridge: two terms that run together would make the system singular
            gram = joint @ joint.T + 1e-12 * torch.eye(terms).to(joint)
            factors[j] = torch.linalg.solve(gram, joint @ target.T)
            factors[:j], factors[j + 1 :] = others[:j], others[j:]
    return ShallowCircuit(torch.stack(factors), tensor.new_ones(1, terms))


def _outer(a: Tensor, b: Tensor) -> Tensor:
    """Row by row the tensor product, flattened: `[z, p]` and `[z, q]` to `[z, p q]`."""
    return (a[:, :, None] * b[:, None, :]).flatten(1)


def _features(features: Tensor, places: int, count: int) -> None:
    if features.ndim != 3 or features.shape[1:] != (places, count):
        raise ShapeMismatch(
            f"this circuit takes features [n, {places}, {count}], not {list(features.shape)}"
        )


def _finite(*tensors: Tensor) -> None:
    for tensor in tensors:
        all_finite(tensor, "a circuit's numbers")

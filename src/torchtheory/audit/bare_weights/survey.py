"""What weights alone tell, measured tensor by tensor: values, units, laws, spectra, tails."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from torchtheory.audit.bare_weights.checkpoint import Checkpoint
from torchtheory.audit.bare_weights.origins import fresh_law
from torchtheory.core import progress
from torchtheory.core.errors import TorchTheoryError
from torchtheory.generalization.noise_bulk import NoiseBulk, noise_bulk
from torchtheory.linalg.equal_rows import copied_rows
from torchtheory.linalg.operators import LinearOperator
from torchtheory.linalg.singular_values import operator_norm, operator_norm_upper_bound
from torchtheory.nets.initialization_laws import Law
from torchtheory.primer.power_laws import (
    LikelihoodRatio,
    PowerLaw,
    fit_power_law,
    power_law_against,
    power_law_p_value,
)

#: Matrices whose smaller side is longer have only their largest singular value computed.
LARGEST_DENSE = 2048

#: Shorter sides have too few singular values for a tail, or for a bulk.
LEAST_TAIL, LEAST_BULK = 50, 32

#: Confidence that a layer of noise has no singular value beyond it: there are many layers.
NOISE = 0.9999

#: Rows whose difference is below this share of their size are copies, a smaller norm is none.
COPY, NOTHING = 1e-4, 1e-6

#: Singular values below this share of the largest may be nothing but rounding.
ROUNDING = 1e-6

# Seconds for values, however little time there is.
_LOOKING = 2.0

#: Multiplications of a matrix by a vector that its norm takes, about.
LANCZOS = 200

# Seconds per multiplication of a dense decomposition, until one was timed.
_SECONDS = 3e-10


@dataclass(frozen=True, slots=True)
class Values:
    """One tensor: its entries.

    Attributes:
        name, shape, dtype: of the tensor.
        floating: whether its numbers are real, not counts or flags.
        buffer: whether nobody trains it.
        count, nans, infinite, zeros: numbers of entries.
        largest: the largest size of a finite entry.
        frobenius: the root of the sum of squares of the finite entries.
        low, high: the smallest and the largest finite entry.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    floating: bool
    buffer: bool
    count: int
    nans: int
    infinite: int
    zeros: int
    largest: float
    frobenius: float
    low: float
    high: float

    @property
    def finite(self) -> bool:
        return self.nans == self.infinite == 0

    @property
    def measurable(self) -> bool:
        """Whether the squares of its entries can be added up in float64."""
        return self.finite and math.isfinite(self.frobenius * self.frobenius)

    @property
    def constant(self) -> bool:
        """Whether all entries are the same number."""
        return self.finite and self.low == self.high


@dataclass(frozen=True, slots=True)
class Units:
    """The rows of a matrix: units with their incoming weights, or the vectors of an embedding.

    Attributes:
        silent: rows of (nearly) nothing but zeros.
        unread: columns of (nearly) nothing but zeros.
        copies: rows that are the same as one before them.
    """

    silent: int
    unread: int
    copies: int


@dataclass(frozen=True, slots=True)
class Spectrum:
    """The singular values of a matrix.

    Attributes:
        norm, norm_high: the largest, and what it is at most.
        values: all of them, descending; None where there are too many to compute.
        bulk: what of them noise explains; None for a small matrix.
        tail: the power law of their squares; None where there are too few.
        plausible: the p-value of that law; None where there was no time.
        against: the law against an exponential and a lognormal one.
    """

    norm: float
    norm_high: float
    values: Tensor | None = None
    bulk: NoiseBulk | None = None
    tail: PowerLaw | None = None
    plausible: float | None = None
    against: dict[str, LikelihoodRatio] = field(default_factory=dict)


@dataclass(slots=True)
class Matrix:
    """A tensor as a matrix: one row for each output.

    Attributes:
        values: its entries.
        rows, columns: outputs, and inputs times the entries of a kernel.
        units: its rows and columns.
        law: the law of fresh weights that its entries cannot be told from.
        spectrum: its singular values; None where there was no time.
    """

    values: Values
    rows: int
    columns: int
    units: Units
    law: Law | None
    spectrum: Spectrum | None = None

    @property
    def name(self) -> str:
        return self.values.name

    @property
    def short(self) -> int:
        return min(self.rows, self.columns)

    @property
    def too_large(self) -> bool:
        """Whether it has more singular values than are computed."""
        return self.short > LARGEST_DENSE

    @property
    def is_table(self) -> bool:
        """Whether it looks like an embedding, whose rows are not units."""
        last = self.name.lower()
        named = any(part in last for part in ("emb", "wte", "wpe", "token"))
        return named or (self.rows >= 1000 and self.rows >= 8 * self.columns)

    @property
    def gain(self) -> float:
        """How much longer it makes a random vector of inputs, per output."""
        return self.values.frobenius / math.sqrt(self.rows)

    @property
    def norm(self) -> float:
        """The spectral norm, or what it is at least; 0 where it is unknown."""
        return 0.0 if self.spectrum is None else self.spectrum.norm

    @property
    def singular(self) -> Tensor | None:
        """All singular values, descending, where they are known."""
        return None if self.spectrum is None else self.spectrum.values

    @property
    def outliers(self) -> int | None:
        """How many singular values are beyond noise, where that is known."""
        bulk = None if self.spectrum is None else self.spectrum.bulk
        return None if bulk is None else bulk.outliers

    @property
    def tail(self) -> PowerLaw | None:
        return None if self.spectrum is None else self.spectrum.tail

    @property
    def stable_rank(self) -> float | None:
        """Squared Frobenius over squared spectral norm."""
        return (self.values.frobenius / self.norm) ** 2 if self.norm else None

    @property
    def effective_rank(self) -> float | None:
        r"""$e^H$, with $H$ the entropy of the squared singular values over their sum."""
        if self.singular is None or self.norm == 0:
            return None
        shares = self.singular.square()
        shares = shares[shares > 0] / shares.sum()
        return math.exp(-float((shares * shares.log()).sum()))

    @property
    def rank(self) -> int | None:
        """Singular values that rounding does not explain."""
        if self.singular is None:
            return None
        return int((self.singular > ROUNDING * self.norm).sum())

    @property
    def condition(self) -> float | None:
        """The largest singular value over the smallest; infinite where rounding hides that."""
        if self.rank is None or self.singular is None:
            return None
        return math.inf if self.rank < self.short else self.norm / float(self.singular[-1])


@dataclass(slots=True)
class Survey:
    """Everything that was measured.

    Attributes:
        title: of the weights.
        tensors: all of them, in their order.
        matrices: those that are trained and have at least two rows and columns.
        normalizations: for each normalization with running statistics, its tensors by their last
            name.
        unseen: how many tensors there was no time to look at.
    """

    title: str
    tensors: list[Values]
    matrices: list[Matrix]
    normalizations: dict[str, dict[str, Tensor]]
    unseen: int = 0

    @property
    def parameters(self) -> int:
        return sum(t.count for t in self.tensors if t.floating and not t.buffer)


def survey(checkpoint: Checkpoint, *, seconds: float = math.inf, seed: int = 0) -> Survey:
    """Measure what weights alone tell.

    Values, units and laws take one reading of the tensors. Spectra take a second one, small
    matrices first, and go on while there is time: a dense decomposition of `[m, n]` costs
    $O(mn\\min(m,n))$ and is made up to a smaller side of 2048, larger matrices have their norm by
    Lanczos. Memory: two copies of one tensor, and a square matrix of its smaller side.
    """
    start = time.perf_counter()
    found = Survey(checkpoint.title, [], [], {})
    for name, tensor in progress.track(
        checkpoint.tensors(), "weights", total=len(checkpoint.names)
    ):
        if time.perf_counter() - start > max(seconds, _LOOKING):
            found.unseen = len(checkpoint.names) - len(found.tensors)
            break
        values = _values(name, tensor, checkpoint.is_buffer(name))
        found.tensors.append(values)
        _keep_statistics(found.normalizations, name, tensor)
        matrix = _as_matrix(tensor) if values.floating and not values.buffer else None
        if matrix is None or not values.measurable or name.rpartition(".")[2] == "bias":
            continue
        units, law = _units(matrix, seed), fresh_law(name, tensor)
        found.matrices.append(Matrix(values, matrix.shape[0], matrix.shape[1], units, law))
    pace = _SECONDS
    by_size = sorted(found.matrices, key=lambda m: m.rows * m.columns * m.short)
    for one in progress.track(by_size, "spectra"):
        left = seconds - (time.perf_counter() - start)
        if left <= 0:
            break
        work = float(one.rows) * one.columns * one.short + one.short**3
        matrix = _as_matrix(checkpoint.read(one.name))
        assert matrix is not None  # it was one before
        if not one.too_large and pace * work < left:
            begun = time.perf_counter()
            one.spectrum = _dense(matrix, one.units)
            if work > 1e8:  # what is shorter tells nothing about the speed
                pace = 1.5 * (time.perf_counter() - begun) / work
        elif pace * LANCZOS * one.rows * one.columns < left:
            one.spectrum = _by_lanczos(matrix, seed)
    for one in found.matrices:
        if one.spectrum is not None and one.spectrum.tail is not None:
            if time.perf_counter() - start > seconds:
                break
            one.spectrum = _judged(one.spectrum, seed)
    return found


def _values(name: str, tensor: Tensor, buffer: bool) -> Values:
    floating = tensor.is_floating_point()
    nans = infinite = 0
    # half precision knows few operations, and eight bits none
    finite = plain = tensor.float() if floating and tensor.dtype.itemsize < 4 else tensor
    if floating:
        nans, infinite = int(plain.isnan().sum()), int(plain.isinf().sum())
        if nans or infinite:
            finite = finite[finite.isfinite()]
    known = floating and finite.numel() > 0
    largest = float(finite.abs().max()) if known else 0.0
    return Values(
        name,
        tuple(tensor.shape),
        str(tensor.dtype).removeprefix("torch."),
        floating,
        buffer,
        tensor.numel(),
        nans,
        infinite,
        tensor.numel() - int(torch.count_nonzero(plain)),
        largest,
        # in float64: the sum of squares of ten million float32 numbers loses digits
        float(torch.linalg.vector_norm(finite, dtype=torch.float64)) if known else 0.0,
        float(finite.min()) if known else 0.0,
        float(finite.max()) if known else 0.0,
    )


def _as_matrix(tensor: Tensor) -> Tensor | None:
    """One row for each output; None for what has fewer than two rows or columns."""
    if tensor.ndim < 2 or tensor.numel() == 0:
        return None
    matrix = tensor.flatten(1)
    matrix = matrix.float() if matrix.dtype.itemsize < 4 else matrix
    return matrix if min(matrix.shape) >= 2 else None


def _keep_statistics(kept: dict[str, dict[str, Tensor]], name: str, tensor: Tensor) -> None:
    place, _, last = name.rpartition(".")
    if last in ("running_mean", "running_var", "num_batches_tracked"):
        kept.setdefault(place, {})[last] = tensor.double()


def _units(matrix: Tensor, seed: int) -> Units:
    """Silent and equal rows; a few products of the matrix with a vector."""
    rows = torch.linalg.vector_norm(matrix, dim=1)
    columns = torch.linalg.vector_norm(matrix, dim=0)
    silent = rows <= NOTHING * (float(rows.max()) or 1.0)
    heard = matrix[~silent] if bool(silent.any()) else matrix
    copied = copied_rows(heard, COPY, generator=seed)
    unread = int((columns <= NOTHING * float(columns.max())).sum())
    return Units(int(silent.sum()), unread, int(copied.sum()))


def _dense(matrix: Tensor, units: Units) -> Spectrum:
    double = matrix.double()
    # through the smaller Gram matrix: four times as fast as a decomposition, and in double
    # precision as accurate as weights in single precision are
    gram = double @ double.T if matrix.shape[0] <= matrix.shape[1] else double.T @ double
    values = torch.linalg.eigvalsh(gram).clamp_min(0).sqrt().flip(0)
    norm = float(values[0])
    if norm == 0:
        return Spectrum(0.0, 0.0, values)
    # rows and columns of zeros are not noise: they would make the rest look large
    rows, columns = matrix.shape[0] - units.silent, matrix.shape[1] - units.unread
    short = min(rows, columns)
    bulk = None
    if short >= LEAST_BULK:
        bulk = noise_bulk(values[:short], rows, columns, confidence=NOISE)
    tail = None
    squares = _squares(values)
    if len(squares) >= LEAST_TAIL:
        try:
            tail = fit_power_law(squares)
        except TorchTheoryError:  # all values are the same, as those of an orthogonal matrix
            tail = None
    return Spectrum(norm, norm, values, bulk, tail)


def _squares(values: Tensor) -> Tensor:
    """Squared singular values, without those that rounding may have made."""
    return values[values > ROUNDING * float(values[0])].square()


def _by_lanczos(matrix: Tensor, seed: int) -> Spectrum:
    operator = LinearOperator.from_matrix(matrix)
    norm = operator_norm(operator, tolerance=1e-3, steps=60, generator=seed)
    high = operator_norm_upper_bound(operator, generator=seed)
    return Spectrum(norm.value, max(high, norm.value))


def _judged(spectrum: Spectrum, seed: int) -> Spectrum:
    """The same with what speaks for and against the power law of its tail."""
    assert spectrum.values is not None
    assert spectrum.tail is not None
    squares, law = _squares(spectrum.values), spectrum.tail
    return replace(
        spectrum,
        plausible=power_law_p_value(squares, law, generator=seed),
        against={
            "exponential": power_law_against(squares, law, "exponential"),
            "lognormal": power_law_against(squares, law, "lognormal"),
        },
    )

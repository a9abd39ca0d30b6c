r"""Shearlets: elements that are long, thin and turned, for edges in images.

$$
A_j=\begin{pmatrix}2^j&0\\0&2^{j/2}\end{pmatrix},\quad S_k=\begin{pmatrix}1&k\\0&1\end{pmatrix},
\quad\psi_{j,k,n}(x)=2^{3j/4}\,\psi(S_kA_jx-n)
$$

Their width is the square of their length. The literal system prefers one axis; for images there is
a frame adapted to two cones of directions, here as windows that tile the plane of frequencies,
normalized so that their squares add to 1 (a Parseval frame). Source: The Modern Mathematics of Deep
Learning, section 3.5.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from torchtheory.approximation.dictionaries.networks import dictionary_element
from torchtheory.approximation.targets import Function
from torchtheory.core.checks import whole_number
from torchtheory.core.errors import InvalidInput, ShapeMismatch


def parabolic_scaling(j: int) -> Tensor:
    r"""$A_j=\mathrm{diag}(2^j,2^{j/2})$.

    >>> parabolic_scaling(2).tolist()
    [[4.0, 0.0], [0.0, 2.0]]
    """
    return torch.diag(torch.tensor([2.0**j, 2.0 ** (j / 2)], dtype=torch.float64))


def shear(k: int) -> Tensor:
    r"""$S_k$.

    >>> shear(3).tolist()
    [[1.0, 3.0], [0.0, 1.0]]
    """
    return torch.tensor([[1.0, float(k)], [0.0, 1.0]], dtype=torch.float64)


def shearlet(generator: Function, j: int, k: int, shift: Tensor | None = None) -> Function:
    r"""$\psi_{j,k,n}(x)=2^{3j/4}\psi(S_kA_jx-n)$ as a function of `x[m, 2]`.

    $|\det S_kA_j|^{1/2}=2^{3j/4}$, so all elements have the norm of $\psi$.

    >>> box = lambda x: ((x >= 0) & (x < 1)).all(1).double()
    >>> values = shearlet(box, 2, 0)(torch.tensor([[0.2, 0.4], [0.3, 0.4]]).double())
    >>> [round(v, 9) for v in values.tolist()]
    [2.828427125, 0.0]
    """
    n = torch.zeros(2, dtype=torch.float64) if shift is None else shift
    return dictionary_element(generator, shear(k) @ parabolic_scaling(j), n)


@dataclass(frozen=True, slots=True)
class ShearletFrame:
    r"""A cone-adapted Parseval frame for images of `size` by `size` pixels.

    Window `w` belongs to scale `scales[w]` (0 is the low frequencies), and its elements look
    along an edge whose normal has the angle `angles[w]`. Each window is sampled on a grid just
    fine enough for its frequencies, so that the number of coefficients is a small multiple of that
    of the pixels.

    Attributes:
        windows: `[W, size, size]` over the frequencies of `torch.fft.fft2`, not negative,
            with squares adding to 1.
        scales, angles: one a window.
        grids: the sampling grid of every window.
    """

    windows: Tensor
    scales: tuple[int, ...]
    angles: tuple[float, ...]
    grids: tuple[tuple[int, int], ...]

    @property
    def size(self) -> int:
        """Pixels a side."""
        return self.windows.shape[1]

    def analyze(self, image: Tensor) -> list[Tensor]:
        """All coefficients, one array a window. Time `O(W size^2 log size)`."""
        if image.shape != (self.size, self.size):
            raise ShapeMismatch(f"the frame is for images of {self.size} pixels a side")
        transform = torch.fft.fft2(image.double(), norm="ortho")
        found = []
        for window, grid in zip(self.windows, self.grids, strict=True):
            folded = _fold(window * transform, grid)
            found.append(torch.fft.ifft2(folded, norm="ortho").real)
        return found

    def synthesize(self, coefficients: list[Tensor]) -> Tensor:
        """The adjoint of `analyze`, which is its left inverse."""
        signed = _signed(self.size)
        total = torch.zeros(self.size, self.size, dtype=torch.complex128)
        for window, grid, values in zip(self.windows, self.grids, coefficients, strict=True):
            folded = torch.fft.fft2(values.to(torch.complex128), norm="ortho")
            total += window * folded[signed % grid[0]][:, signed % grid[1]]
        image: Tensor = torch.fft.ifft2(total, norm="ortho").real
        return image

    def element(self, window: int) -> Tensor:
        """One element in the middle of the image, `[size, size]`."""
        values = torch.fft.ifft2(self.windows[window].to(torch.complex128), norm="ortho").real
        centered: Tensor = torch.fft.fftshift(values)
        return centered

    def largest(self, image: Tensor, terms: int) -> Tensor:
        """The image from its `terms` largest coefficients (thresholding of the frame).

        The squared error is at most the sum of the squares of the coefficients left out.
        """
        coefficients = self.analyze(image)
        flat = torch.cat([c.flatten() for c in coefficients])
        if not 1 <= terms <= len(flat):
            raise InvalidInput(f"terms must lie in 1..{len(flat)}, not {terms}")
        least = flat.abs().topk(terms).values[-1]
        return self.synthesize([torch.where(c.abs() >= least, c, 0.0) for c in coefficients])


def shearlet_frame(size: int, scales: int = 3) -> ShearletFrame:
    r"""Windows for `scales` scales, with $2^{\lfloor j/2\rfloor+2}$ slopes in each cone.

    Scale $j$ takes frequencies of about $2^{j-J}$ of the largest in the maximum norm,
    cut into directions of equal slope, so that halving the width doubles the number of directions
    every second scale: the parabolic law.

    Args:
        size: pixels a side, even, at least 16.
        scales: $J$.

    >>> frame = shearlet_frame(32, 2)
    >>> bool((frame.windows.square().sum(0) - 1).abs().max() < 1e-12)
    True
    """
    if whole_number(size, "size", least=16) % 2:
        raise InvalidInput(f"an even number of pixels a side is needed, not {size}")
    whole_number(scales, "scales", least=1)
    if size < 2 ** (scales + 2):
        raise InvalidInput(f"{scales} scales need at least {2 ** (scales + 2)} pixels a side")
    signed = _signed(size).double()
    fx, fy = torch.meshgrid(signed, signed, indexing="ij")
    radius = torch.maximum(fx.abs(), fy.abs()) / (size / 2)
    # the angle of the slope in quarter turns of the square: 0 at (1, 0), 1 at (1, 1), 2 at (0, 1)
    turn = _square_angle(fx, fy)
    made = [_low_pass(radius * 2**scales)]
    levels, angles = [0], [0.0]
    for j in range(1, scales + 1):
        band = _band(radius * 2 ** (scales - j), last=j == scales)
        count = 4 * 2 ** (j // 2 + 1)
        for k in range(count):
            center = 4.0 * k / count
            # lines have no sign: a turn of half the square, 4, is the same direction
            gap = (turn - center + 2) % 4 - 2
            made.append(band * _bump(gap * count / 4))
            levels.append(j)
            angles.append(_plain_angle(center))
    windows = torch.stack(made)
    # a frequency of size/2 stands for itself and its opposite: windows must be even there as well
    windows = (windows + windows.flip(1, 2).roll((1, 1), (1, 2))) / 2
    # cos(π/2) is not quite 0 in floating point, and a support must end
    windows = torch.where(windows > 1e-9, windows, 0.0)
    windows = windows / windows.square().sum(0).sqrt()
    grids = tuple(_grid(w) for w in windows)
    return ShearletFrame(windows, tuple(levels), tuple(angles), grids)


def _signed(size: int) -> Tensor:
    k = torch.arange(size)
    return torch.where(k < size // 2, k, k - size)


def _square_angle(x: Tensor, y: Tensor) -> Tensor:
    """Directions of lines by the place where they meet the unit square, in [0, 4)."""
    flat = torch.where(x == 0, 1.0, x)
    steep = torch.where(y == 0, 1.0, y)
    across = (y / flat) % 4
    upward = (2 - x / steep) % 4
    return torch.where(x.abs() >= y.abs(), across, upward)


def _plain_angle(turn: float) -> float:
    """The angle of a place on the unit square."""
    if turn <= 1 or turn >= 3:
        return math.atan(turn if turn <= 1 else turn - 4) % math.pi
    return math.pi / 2 - math.atan(2 - turn)


def _bump(t: Tensor) -> Tensor:
    """A smooth window on (-1, 1) whose squares at whole distances add to 1."""
    return torch.cos(math.pi / 2 * t.abs().clamp(0, 1))


def _low_pass(r: Tensor) -> Tensor:
    """1 up to 1/2, 0 from 1, a quarter of a cosine in octaves between."""
    return torch.cos(math.pi / 2 * (torch.log2(r.clamp_min(0.5)) + 1).clamp(0, 1))


def _band(r: Tensor, *, last: bool) -> Tensor:
    """One octave up and one down around 1 (the last scale keeps all above)."""
    rise = torch.sin(math.pi / 2 * (torch.log2(r.clamp_min(0.25)) + 2).clamp(0, 1))
    return rise if last else rise * _low_pass(r)


def _fold(values: Tensor, grid: tuple[int, int]) -> Tensor:
    """Frequencies modulo the sampling grid: nothing is lost where the support meets itself not."""
    size = values.shape[0]
    signed = _signed(size)
    place = (signed % grid[0]).unsqueeze(1) * grid[1] + (signed % grid[1]).unsqueeze(0)
    folded = torch.zeros(grid[0] * grid[1], dtype=values.dtype)
    folded.index_add_(0, place.flatten(), values.flatten())
    return folded.reshape(grid)


def _grid(window: Tensor) -> tuple[int, int]:
    """The smallest grid of powers of 2 (or the size itself) on which the support does not fold."""
    size = window.shape[0]
    signed = _signed(size)
    rows, columns = (window > 0).nonzero().unbind(1)
    x, y = signed[rows], signed[columns]
    sides = [2**k for k in range(2, size.bit_length()) if 2**k < size] + [size]
    options = sorted((a * b, a, b) for a in sides for b in sides)
    for _, a, b in options:
        if len(torch.unique((x % a) * b + y % b)) == len(x):
            return a, b
    return size, size

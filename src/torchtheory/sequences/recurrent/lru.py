r"""The linear recurrent unit: a diagonal complex recurrence that is stable by construction.

$$
\zeta_t=\lambda\odot\zeta_{t-1}+\gamma\odot Cx_t,\qquad
\lambda=\exp(-e^{\nu}+i\phi),\qquad y_t=g(\operatorname{Re}(W\zeta_t)+Dx_t).
$$

$|\lambda|=\exp(-e^\nu)<1$ whatever $\nu$ is. All non-linearity is in the output map $g$. Sources:
Deep Learning (notes), section 5.2; A. Orvieto et al., Resurrecting recurrent neural networks for
long sequences (2023).
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor, nn

from torchtheory.core.checks import number_between, one_of, whole_number
from torchtheory.core.errors import InvalidInput
from torchtheory.core.random import RandomSource, as_generator
from torchtheory.nets.feedforward import drawn_linear
from torchtheory.sequences.recurrent.linear_scans import linear_scan
from torchtheory.sequences.recurrent.linear_systems import causal_convolution

Spread = Literal["radius", "area"]
Method = Literal["scan", "convolution"]


def ring_initialization(
    units: int,
    smallest: float,
    largest: float,
    *,
    spread: Spread = "area",
    largest_phase: float = 2 * math.pi,
    generator: RandomSource = None,
    dtype: torch.dtype = torch.float64,
) -> tuple[Tensor, Tensor]:
    r"""$(\nu,\phi)$, each `[m]`, of random eigenvalues with $r_{\min}\le|\lambda|\le r_{\max}$.

    Args:
        units: m.
        smallest: $r_{\min}$, 0 or above.
        largest: $r_{\max}$, below 1 (at 1 the modulus could be 1, where $\nu=-\infty$).
        spread: `area`: uniform in the ring, $r^2$ uniform, as Orvieto et al. have it; `radius`: $r$
            uniform, as in the notes, which puts more of them near the center.
        largest_phase: phases are uniform on $[0,\text{this}]$.

    >>> nu, phi = ring_initialization(1000, 0.9, 0.99)
    >>> radii = modulus(nu)
    >>> bool((radii >= 0.9).all() and (radii <= 0.99).all())
    True
    """
    whole_number(units, "units", least=1)
    one_of(spread, "spread", ("radius", "area"))
    number_between(smallest, "smallest", 0, 1, closed="left")
    number_between(largest, "largest", 0, 1, closed="neither")
    number_between(largest_phase, "largest_phase", 0, 2 * math.pi)
    if smallest > largest:
        raise InvalidInput(f"the ring ends at {largest}, before it begins at {smallest}")
    source = as_generator(generator)
    u, v = torch.rand(2, units, generator=source, dtype=torch.float64, device=source.device)
    if spread == "area":
        radii = (smallest**2 + u * (largest**2 - smallest**2)).sqrt()
    else:
        radii = smallest + u * (largest - smallest)
    # a draw of exactly 0 has no logarithm
    nu = (-radii.clamp(min=1e-300).log()).log()
    return nu.to(dtype), (largest_phase * v).to(dtype)


def modulus(nu: Tensor) -> Tensor:
    r"""$r=\exp(-e^\nu)$.

    >>> round(float(modulus(torch.tensor(0.0))), 6)
    0.367879
    """
    return (-nu.exp()).exp()


def memory_horizon(nu: Tensor) -> Tensor:
    r"""Steps $e^{-\nu}$ after which a state has decayed to $1/e$, since $r^k=e^{-ke^\nu}$.

    >>> nu = torch.tensor(0.99).log().neg().log()
    >>> round(float(memory_horizon(nu)), 1)
    99.5
    """
    return (-nu).exp()


class LRU(nn.Module):
    r"""The layer; sequences `[..., T, n]` to sequences `[..., T, q]`.

    Args:
        inputs: n.
        units: m complex states.
        outputs: q.
        smallest, largest, largest_phase: of the ring, see `ring_initialization`.
        normalized: whether inputs are scaled by $\gamma=\sqrt{1-|\lambda|^2}$, a parameter (its
            logarithm is), so that white noise with $\mathbb E|Cx|^2=1$ gives a state of mean
            square 1 whatever the memory.
        head: the output map $g$; the identity unless given.

    >>> layer = LRU(3, 16, 2)
    >>> x = torch.randn(4, 50, 3, generator=torch.Generator().manual_seed(0)).double()
    >>> bool(torch.allclose(layer(x), layer(x, method="convolution")))
    True
    """

    def __init__(
        self,
        inputs: int,
        units: int,
        outputs: int,
        *,
        smallest: float = 0.0,
        largest: float = 0.999,
        largest_phase: float = 2 * math.pi,
        normalized: bool = True,
        head: nn.Module | None = None,
        generator: RandomSource = None,
        dtype: torch.dtype = torch.float64,
    ) -> None:
        super().__init__()
        whole_number(inputs, "inputs", least=1)
        whole_number(outputs, "outputs", least=1)
        source = as_generator(generator)
        nu, phi = ring_initialization(
            units, smallest, largest, largest_phase=largest_phase, generator=source, dtype=dtype
        )
        self.nu, self.phi = nn.Parameter(nu), nn.Parameter(phi)
        self.register_parameter(
            "log_scale",
            nn.Parameter((1 - modulus(nu).square()).log() / 2) if normalized else None,
        )
        complex_type = torch.complex(nu[:1], phi[:1]).dtype

        def draw(rows: int, columns: int) -> nn.Parameter:
            """Complex normal numbers of mean square 1 over the fan-in, as pairs of real ones."""
            made = torch.randn(
                rows, columns, generator=source, dtype=complex_type, device=source.device
            )
            return nn.Parameter(torch.view_as_real(made / math.sqrt(columns)))

        # real parameters, as every optimizer, every change of precision and the audit take them
        self.entering_pairs, self.leaving_pairs = draw(units, inputs), draw(outputs, units)
        self.through = drawn_linear(inputs, outputs, bias=False, generator=source, dtype=dtype)
        self.head = nn.Identity() if head is None else head

    log_scale: nn.Parameter | None

    @property
    def entering(self) -> Tensor:
        """$C$, `[m, n]`, complex."""
        return torch.view_as_complex(self.entering_pairs)

    @property
    def leaving(self) -> Tensor:
        """$W$, `[q, m]`, complex."""
        return torch.view_as_complex(self.leaving_pairs)

    @property
    def eigenvalues(self) -> Tensor:
        r"""$\lambda=\exp(-e^\nu+i\phi)$, `[m]`."""
        return torch.polar(modulus(self.nu), self.phi)

    @property
    def scaled(self) -> Tensor:
        r"""$\gamma\odot C$, `[m, n]`."""
        if self.log_scale is None:
            return self.entering
        return self.log_scale.exp().unsqueeze(1) * self.entering

    def states(self, x: Tensor, initial: Tensor | None = None) -> Tensor:
        r"""$\zeta_1,\dots,\zeta_T$, `[..., T, m]`, complex."""
        return linear_scan(
            self.eigenvalues, x.to(self.entering.dtype) @ self.scaled.mT, initial=initial
        )

    def kernel(self, steps: int) -> Tensor:
        r"""$\operatorname{Re}(W\lambda^k\gamma C)$ for $k<T$, `[T, q, n]`; not the direct term."""
        times = torch.arange(steps, device=self.nu.device, dtype=self.nu.dtype)
        # powers by their logarithms: λ^k = exp(k(-e^ν + iφ))
        decay = (-times[:, None] * self.nu.exp()).exp()
        powers = torch.polar(decay, times[:, None] * self.phi)
        return torch.einsum("qm,km,mn->kqn", self.leaving, powers, self.scaled).real

    def forward(self, x: Tensor, initial: Tensor | None = None, method: Method = "scan") -> Tensor:
        one_of(method, "method", ("scan", "convolution"))
        if method == "scan":
            made = (self.states(x, initial) @ self.leaving.mT).real
        elif initial is not None:
            raise InvalidInput("the convolution starts from the state 0: use the scan")
        else:
            made = causal_convolution(self.kernel(x.shape[-2]), x)
        out: Tensor = self.head(made + self.through(x))
        return out

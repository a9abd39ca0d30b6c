"""Linear recurrences: diagonal, as convolutions, and stable by construction."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from torchtheory.convolution.discrete import convolve
from torchtheory.labs.engine import COLORS, Run, lab
from torchtheory.labs.nets.comparing import gap
from torchtheory.sequences.recurrent.cells import ElmanCell
from torchtheory.sequences.recurrent.linear_scans import linear_scan
from torchtheory.sequences.recurrent.linear_systems import METHODS, diagonalize, impulse_response, linear_states
from torchtheory.sequences.recurrent.lru import LRU, memory_horizon, modulus, ring_initialization
from torchtheory.sequences.recurrent.networks import Recurrent


@lab(
    "linear-recurrences",
    room="sequences",
    covers=["N-76", "N-77", "N-78"],
    title="A linear recurrence is a scan and a convolution, and its eigenvalues are its memory",
    full={"steps": 3000, "units": 24, "draws": 100_000},
    least={"steps": 50, "units": 2, "draws": 1_000},
)
def linear_recurrences(run: Run, steps: int = 200, units: int = 6, draws: int = 4000) -> None:
    """Loop, scan and convolution give the same states; the linear recurrent unit is stable.

    In a basis of eigenvectors every entry runs for itself. The basis is badly conditioned near a
    matrix with a Jordan block, which is refused. Eigenvalues exp(-exp(ν) + iφ) lie inside of the
    circle whatever the parameters are: bounded inputs give bounded states, and exp(-ν) steps are
    remembered. Uniform radii crowd towards the center; drawn evenly over the ring they do not. The
    picture shows both rings, and how long states of three moduli are remembered.

    Args:
        steps: length of the sequences.
        units: of the recurrences.
        draws: eigenvalues drawn in the ring.
    """
    three_ways(run, steps, units)
    conditioning(run)
    ring(run, draws)
    unit(run, steps, units)
    bounded(run, steps)


def three_ways(run: Run, steps: int, units: int) -> None:
    A, B = run.randn(units, units), run.randn(units, 2)
    A = 0.95 * A / float(torch.linalg.eigvals(A).abs().max())
    x = run.randn(3, steps, 2)
    states = {m: linear_states(A, B, x, method=m) for m in METHODS}
    scale = float(states["loop"].abs().max())
    rounding = 1e-12 * diagonalize(A, B).condition
    says = run.states(
        "N-76, N-78", r"z_t=Az_{t-1}+Bx_t:\ \text{loop}=\text{scan in }P^{-1}z=\text{convolution with }A^kB"
    )
    others = [states["scan"], states["convolution"]]
    says.equal([gap(s, states["loop"]) / scale for s in others], within=rounding, where="over the largest state")
    bent = ElmanCell(2, units, "tanh")
    with torch.no_grad():
        bent.recurrent.copy_(A)
        bent.entering.copy_(B)
    bends = Recurrent(bent)(x)
    says.fails("a loop with tanh, which is not linear", [gap(s, bends) / scale for s in others])
    system = diagonalize(A, B)
    powers = system.eigenvalues ** torch.arange(12).double()[:, None]
    found = torch.einsum("im,km,mn->kin", system.basis, powers, system.entering)
    says = run.states("N-76", r"A^kB=P\Lambda^kC,\ C=P^{-1}B")
    says.equal(gap(found, impulse_response(A, B, 12).to(found.dtype)), within=rounding)
    unchanged = torch.einsum("im,km,mn->kin", system.basis, powers, B.to(found.dtype))
    says.fails("inputs not taken to the basis, C = B", gap(unchanged, impulse_response(A, B, 12).to(found.dtype)))
    # one entry: the kernel is a sequence of numbers
    line = x[:, :, 0]
    factor, one = (torch.tensor([[v]], dtype=torch.float64) for v in (0.9, 1.0))
    single = linear_states(factor, one, line.unsqueeze(-1))
    kernel = 0.9 ** torch.arange(steps).double()
    says = run.states("N-76", r"z_t=\sum_k\lambda^kx_{t-k}=(x*\lambda^{(\cdot)})_t")
    says.equal(gap(single[..., 0], convolve(line, kernel)[:, :steps]), within=1e-11, where="λ = 0.9")
    says.fails(
        "on a circle: the end comes in at the start", gap(single[..., 0], convolve(line, kernel, mode="circular"))
    )


def conditioning(run: Run) -> None:
    deltas = [10.0**-k for k in range(1, 7)]
    unit = torch.eye(2).double()

    def conditions(second: float) -> list[float]:
        return [diagonalize(torch.tensor([[0.9, 1.0], [d, second]]).double(), unit).condition for d in deltas]

    near, apart = conditions(0.9), conditions(0.5)
    says = run.states("N-76", r"\kappa(P)=\delta^{-1/2}\text{ at the distance }\delta\text{ from a Jordan block}")
    says.slope(deltas, near, -0.5, 0.01, against=(-1.0, -0.25, 0.0))
    says.fails("eigenvalues 0.9 and 0.5 in place of one twice", deltas, apart)
    run.curves(
        "condition",
        deltas,
        {"eigenvalue 0.9 twice": near, "eigenvalues 0.9 and 0.5": apart},
        {r"$\delta^{-1/2}$": [d**-0.5 for d in deltas]},
        axes=("distance δ", "condition number of the basis"),
        log="xy",
        caption="What eigenvectors of ((0.9, 1), (δ, 0.9)) do to rounding errors, and those of ((0.9, 1), (δ, 0.5)).",
    )


def ring(run: Run, draws: int) -> None:
    low, high = 0.4, 0.95
    nu, phi = ring_initialization(draws, low, high, generator=run.generator)
    by_radius, _ = ring_initialization(draws, low, high, spread="radius", generator=run.generator)
    evenly, radially = (low**2 + high**2) / 2, (low**2 + low * high + high**2) / 3
    says = run.states("N-77", r"\text{evenly over the ring: }\mathbb E|\lambda|^2=(r_{\min}^2+r_{\max}^2)/2")
    says.mean(modulus(nu).square(), evenly, against=(radially, 0.5 * evenly))
    says.fails("radii drawn evenly", modulus(by_radius).square())
    says = run.states("N-77", r"r\sim U(r_{\min},r_{\max}):\ \mathbb E\,r=(r_{\min}+r_{\max})/2")
    middle = (low + high) / 2
    says.mean(modulus(by_radius), middle, against=(middle + 0.02, middle - 0.02))
    says.fails("evenly over the ring", modulus(nu))
    says = run.states("N-77", r"r=\exp(-e^\nu)\iff\nu=\log(-\log r),\qquad r^{\exp(-\nu)}=1/e")
    r = modulus(nu)
    says.equal([gap((-r.log()).log(), nu), gap(r ** memory_horizon(nu), torch.full_like(nu, 1 / math.e))], within=1e-10)
    wide = torch.linspace(-12, 6, 1000).double()
    says = run.states("N-77", r"|\lambda|<1\text{ for every }\nu")
    says.below(float(modulus(wide).max()), 1.0, where="ν from -12 to 6")
    angles = 2 * math.pi * run.rand(draws)
    run.figure(
        "ring",
        lambda axes: plot_ring(axes, torch.polar(r, phi)[:1500], torch.polar(modulus(by_radius), angles)[:1500]),
        caption="Left and middle: eigenvalues drawn with |λ| between 0.4 and 0.95, evenly over the ring and with even "
        "radii. Right: what is left of a state, and the number of steps exp(-ν) as a dot.",
        grid=(1, 3),
        size=(10, 3.2),
    )


def unit(run: Run, steps: int, units: int) -> None:
    layer = LRU(2, units, 3, smallest=0.5, largest=0.98, generator=run.generator)
    x = run.randn(3, steps, 2)
    says = run.states(
        "N-78", r"y=\operatorname{Re}(W\zeta)+Dx:\ \text{scan}=\text{convolution with }\operatorname{Re}(W\lambda^kC)"
    )
    says.equal(gap(layer(x), layer(x, method="convolution")), within=1e-11)
    other = LRU(2, units, 3, smallest=0.5, largest=0.98, head=nn.Tanh(), generator=run.generator)
    other.load_state_dict(layer.state_dict())
    says.fails("a non-linear output map on one side", gap(other(x), layer(x, method="convolution")))
    with torch.no_grad():
        values, entering = layer.eigenvalues, layer.scaled
        A = torch.cat([torch.cat([values.real.diag(), -values.imag.diag()], 1),
                       torch.cat([values.imag.diag(), values.real.diag()], 1)])  # fmt: skip
        dense = linear_states(A, torch.cat([entering.real, entering.imag]), x, method="loop")
        out = dense @ torch.cat([layer.leaving.real, -layer.leaving.imag], 1).T + layer.through(x)
    says = run.states("N-78", r"\text{the same as a dense real recurrence with twice the units}")
    says.equal(gap(layer(x), out), within=1e-11)
    # many short memories, so that the first step has been forgotten at the last
    quick = LRU(2, 8, 3, smallest=0.6, largest=0.8, generator=run.generator)
    plain = LRU(2, 8, 3, smallest=0.6, largest=0.8, normalized=False, generator=run.generator)
    noise = run.randn(2000, 60, 2)
    with torch.no_grad():
        found = [n.states(noise)[:, -1, 0].abs().square() / n.entering[0].abs().square().sum() for n in (quick, plain)]
    says = run.states("N-78", r"\gamma=\sqrt{1-|\lambda|^2}:\ \mathbb E|\zeta_t|^2=\|C\|^2\text{ for white noise}")
    says.mean(found[0], 1.0, 1e-6, against=(0.8, 1.2))
    says.fails("without the factor γ", found[1])


def bounded(run: Run, steps: int) -> None:
    r = torch.tensor([0.3, 0.7, 0.9], dtype=torch.float64)
    x = torch.ones(10 * steps, 1).double()
    states = linear_scan(r, x.expand(-1, 3)).abs().amax(0)
    noisy = linear_scan(r, (2 * run.rand(10 * steps, 3) - 1)).abs().amax(0)
    says = run.states("N-77", r"|\zeta_t|\le\sup|Cx|/(1-r)")
    says.at_most(
        torch.cat([states, noisy]), [*(1 / (1 - r)), *(1 / (1 - r))], within=1e-12, where="constant and random input"
    )
    kept = linear_scan(torch.ones(3).double(), x.expand(-1, 3)).abs().amax(0)
    says.fails("|λ| = 1", kept, promised=[*(1 / (1 - r))])


def plot_ring(axes: Any, evenly: Tensor, radially: Tensor) -> None:
    left, middle, right = axes[0]
    circle = torch.linspace(0, 2 * math.pi, 200)
    for ax, values, title in ((left, evenly, "even over the ring"), (middle, radially, "even radii")):
        ax.plot(circle.cos(), circle.sin(), "k--", lw=0.8)
        ax.plot(values.real, values.imag, ".", ms=2, color=COLORS[0])
        ax.set(title=title, aspect="equal", xlabel="Re λ", ylabel="Im λ")
    lags = torch.arange(0, 100).double()
    for color, r in zip(COLORS, (0.8, 0.95, 0.99), strict=False):
        horizon = float(memory_horizon(torch.tensor(-math.log(r)).log()))
        right.plot(lags, r**lags, color=color, label=f"|λ| = {r:g}")
        if horizon < 100:
            right.plot([horizon], [1 / math.e], "o", color=color)
    right.set(xlabel="steps", ylabel="$|λ|^k$", title="memory")
    right.legend()

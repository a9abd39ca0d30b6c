"""Attention does not see order: equivariance, and the encodings that end it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from torchtheory.core.errors import InvalidInput
from torchtheory.equivariance.measure import measure_equivariance
from torchtheory.labs.engine import Run, lab
from torchtheory.sequences.attention.heads import MultiHeadAttention
from torchtheory.sequences.attention.positions import (
    LearnedPositions,
    SinusoidalPositions,
    frequencies,
    shift_matrix,
    sinusoidal_encoding,
)
from torchtheory.sequences.attention.transformers import TransformerEncoder


@lab(
    "positional-encodings",
    room="sequences",
    covers=["M-105", "M-106", "N-86", "N-87"],
    errata=[
        "equivariance-explained-as-invariance",
        "transformer-called-invariant",
        "positions-of-growing-frequency",
    ],
    title="Sines and cosines that turn by the same angle at every step",
    full={"length": 1000, "width": 128},
    least={"width": 8, "length": 12},
)
def positional_encodings(run: Run, length: int = 60, width: int = 32) -> None:
    """What order means to a transformer without positions, and what encodings add.

    Without positions the outputs are permuted as the tokens are, and do change with the order: they are
    equivariant and not invariant. Sinusoidal encodings have one length, products that depend on the distance
    only, and are turned by one rotation for each distance, so that a linear map looks a number of steps away.
    Vectors drawn for each position have none of this, and end where the table ends. The pictures show the
    encoding, the one with the frequencies as one source prints them, and how alike positions are.

    Args:
        length: number of positions.
        width: of the encodings, even.
    """
    run.assumes(length >= width + 4, f"{length} positions do not determine maps of width {width}")
    identities(run, length, width)
    shifts(run, length, width)
    equivariance(run)
    ends(run, width)
    pictures(run, length, width)


def own_frequencies(length: int, width: int, sign: float) -> Tensor:
    """A frequency C^(sign k / d) for each column, where a sine and its cosine have two; `[length, width]`."""
    k = torch.arange(width, dtype=torch.float64)
    angles = torch.arange(length, dtype=torch.float64)[:, None] * 1e4 ** (sign * k / width)
    return torch.where(k % 2 == 0, angles.sin(), angles.cos())


def spreads(p: Tensor) -> list[float]:
    """How much the products of positions at distances 1, 2 and 5 differ, relative to the squared length."""
    size = p.shape[1] / 2
    return [float((p[s:] * p[:-s]).sum(1).std()) / size for s in (1, 2, 5)]


def identities(run: Run, length: int, width: int) -> None:
    p, apart = sinusoidal_encoding(length, width), own_frequencies(length, width, -1)
    both = ["N-87", "M-105"]
    says = run.states(both, r"\|p_t\|^2=d/2")
    says.equal(p.square().sum(1), width / 2, 1e-12)
    says.fails("a sine and its cosine of two frequencies", apart[1:].square().sum(1))
    places = torch.arange(length)
    by_distance = (places.double()[:, None] * frequencies(width)).cos().sum(1)
    expected = by_distance[(places[:, None] - places).abs()]
    says = run.states("N-87", r"\langle p_t,p_s\rangle=\sum_i\cos(\omega_i(t-s))")
    says.equal(p @ p.T, expected, 1e-11)
    says.fails("a sine and its cosine of two frequencies", apart @ apart.T)
    says = run.states(both, r"p_0=(0,1,0,1,\dots);\ d=4:\ p_1=(0.841471,0.540302,0.0099998,0.99995)")
    hand = torch.tensor([0.841471, 0.540302, 0.0099998, 0.99995], dtype=torch.float64)
    start = torch.tensor([0.0, 1.0, 0.0, 1.0], dtype=torch.float64)
    says.equal(sinusoidal_encoding(2, 4), torch.stack([start, hand]), 1e-6)
    says.fails("a base of 10", sinusoidal_encoding(2, 4, 10.0, start=1))
    says = run.states(
        "N-87", r"\operatorname{sd}_t\langle p_{t+s},p_t\rangle=0\text{: products depend on the distance only}"
    )
    says.equal(spreads(p), within=1e-12, where="distances 1, 2 and 5")
    says.fails("a vector drawn for each position", spreads(run.randn(length, width)))
    printed = run.refutes(
        "positions-of-growing-frequency",
        r"\omega_k=C^{k/d}:\ \langle p_{t+s},p_t\rangle\text{ depends on the distance only}",
    )
    printed.equal(spreads(own_frequencies(length, width, 1)), within=0.01, where="spread over t, by the squared length")


def shifts(run: Run, length: int, width: int) -> None:
    p = sinusoidal_encoding(length, width)
    far = sinusoidal_encoding(length, width, start=5000)
    steps = [1, 3, 10, -4]

    def missed(table: Tensor) -> list[float]:
        """What is left of p(t + s) after the rotation of p(t) by s steps."""
        found = []
        for s in steps:
            before, after = (table[:-s], table[s:]) if s > 0 else (table[-s:], table[:s])
            found.append(float((before @ shift_matrix(s, width).T - after).abs().max()))
        return found

    drawn = LearnedPositions(length, width, spread=0.7, generator=run.generator).weight.detach()
    says = run.states(["M-105", "N-87"], r"p_{t+s}=R_sp_t\text{ with one rotation for all }t")
    says.equal(missed(p) + missed(far), within=1e-9, where="1, 3, 10 steps on and 4 back, also after 5000")
    says.fails("a vector drawn for each position", missed(drawn) * 2)

    def best(table: Tensor) -> float:
        """The relative residual of the best linear map from p(t) to p(t + 3)."""
        before, after = table[:-3], table[3:]
        fitted = torch.linalg.lstsq(before, after, driver="gelsd").solution
        return float((before @ fitted - after).norm() / after.norm())

    says = run.states("M-105", r"\min_M\|p_{t+3}-Mp_t\|=0\text{ over all }t")
    says.equal(best(p), within=1e-6, where=f"{length} positions of size {width}")
    says.fails("a vector drawn for each position", best(drawn))


def equivariance(run: Run) -> None:
    n, d = 7, 8

    def encoder(positions: nn.Module | None = None) -> TransformerEncoder:
        return TransformerEncoder(d, 16, 2, 2, positions=positions, generator=run.seed)

    x = run.randn(4, n, d)

    def defect(model: nn.Module, on_output: str = "equivariant") -> float:
        return measure_equivariance(model, "permutations", x, on_output=on_output, generator=run.seed).largest

    class Causal(nn.Module):
        """The same encoder, no token of which looks at a later one."""

        def __init__(self) -> None:
            super().__init__()
            self.blocks = encoder().blocks

        def forward(self, z: Tensor) -> Tensor:
            for block in self.blocks:
                z = block(z, causal=True)
            return z

    learned = LearnedPositions(n, d, spread=1.0, generator=run.generator)
    says = run.states(["N-86", "M-105"], r"T(PX)=P\,T(X)\text{ without positions and masks}")
    broken = {"a causal mask": Causal(), "sinusoidal positions": encoder(SinusoidalPositions(d))}
    for words, model in broken.items():
        says.equal(defect(encoder()), within=1e-10, where="an encoder of two blocks, random permutations")
        says.fails(words, defect(model))
    says = run.states("M-106", r"p_1=\dots=p_T:\ T(PX+p)=P\,T(X+p)")
    says.equal(defect(encoder(Same(learned))), within=1e-10)
    says.fails("a learned vector of its own for each position", defect(encoder(learned)))
    first = run.refutes("equivariance-explained-as-invariance", r"\operatorname{Att}(PX)=\operatorname{Att}(X)")
    first.equal(defect(MultiHeadAttention(d, 2, generator=run.generator), "invariant"), within=1e-6)
    second = run.refutes("transformer-called-invariant", r"T(PX)=T(X)")
    second.equal(defect(encoder(), "invariant"), within=1e-6)
    says = run.states(["N-86", "M-105"], r"\frac1T\sum_tT(X)_t\text{ is invariant, }T(X)\text{ is not}")
    says.equal(defect(nn.Sequential(encoder(), Mean()), "invariant"), within=1e-10)
    says.fails("the tokens themselves", defect(encoder(), "invariant"))


class Mean(nn.Module):
    """The mean over the tokens."""

    def forward(self, x: Tensor) -> Tensor:
        return x.mean(1)


class Same(nn.Module):
    """The first of the learned vectors, at every position."""

    def __init__(self, learned: LearnedPositions) -> None:
        super().__init__()
        self.first = learned.weight[0].detach()

    def forward(self, x: Tensor) -> Tensor:
        return x + self.first


def ends(run: Run, width: int) -> None:
    most = 12
    learned = LearnedPositions(most, width, generator=run.generator)

    def accepted(positions: nn.Module) -> list[float]:
        found = []
        for tokens in (1, most, most + 1, 2 * most, 4 * most):
            try:
                positions(run.randn(1, tokens, width))
                found.append(1.0)
            except InvalidInput:
                found.append(0.0)
        return found

    says = run.states("M-106", r"\text{learned positions end where their table ends}")
    says.equal(accepted(learned)[2:], [0.0, 0.0, 0.0], where=f"{most} positions, {most + 1} and more tokens")
    says.fails("sinusoidal positions", accepted(SinusoidalPositions(width))[2:])
    x = run.randn(2, most - 3, width)
    fixed, encoding = SinusoidalPositions(width), sinusoidal_encoding(most - 3, width)
    says = run.states(["M-105", "N-87"], r"\text{tokens become }X+P")
    says.equal(fixed(x) - x, encoding.expand_as(x), 1e-12)
    says.fails("a sequence that goes on after three tokens", fixed(x, 3) - x)
    says = run.states("M-106", r"X+P,\ P=(p_1,\dots,p_T)")
    says.equal(learned(x) - x, learned.weight[: most - 3].detach().expand_as(x), 1e-12)
    says.fails("a sequence that goes on after three tokens", learned(x, 3) - x)


def pictures(run: Run, length: int, width: int) -> None:
    p, printed = sinusoidal_encoding(length, width), own_frequencies(length, width, 1)

    def plot(axes: Any) -> None:
        for ax, table, title in zip(
            axes[0], (p, printed), ("encoding", r"frequencies $C^{k/d}$, as printed"), strict=False
        ):
            ax.imshow(table.T.numpy(), aspect="auto", cmap="RdBu", vmin=-1, vmax=1)
            ax.set(title=title, xlabel="position", ylabel="entry")
            ax.grid(False)
        middle = length // 2
        for table, style, label in ((p, "-", "encoding"), (printed, "--", "as printed")):
            alike = table @ table[middle] / (table.norm(dim=1) * table[middle].norm())
            axes[0, 2].plot(range(-middle, length - middle), alike.tolist(), style, label=label, lw=1.3)
        axes[0, 2].set(title="how alike positions are", xlabel="distance", ylabel="cosine of the angle")
        axes[0, 2].legend(loc="upper right", fontsize="small")

    run.figure(
        "encodings",
        plot,
        grid=(1, 3),
        size=(13, 3.6),
        caption="Left: sinusoidal encoding. Middle: with frequencies that grow, which whole positions cannot tell "
        "apart. Right: the middle position against all others.",
    )

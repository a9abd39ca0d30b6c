"""What counting parameters says about networks in use, and about functions of many variables."""

from __future__ import annotations

import itertools
import math
from typing import Any

import torch

from torchtheory.generalization.vc.hypothesis_sets import all_labelings
from torchtheory.generalization.vc.parameter_counting import (
    count_parameters_bounds,
    input_dimension,
    log10_parameters_needed,
)
from torchtheory.generalization.vc.shattering import relu_shattering
from torchtheory.labs.engine import COLORS, Run, fit_slope, lab


@lab(
    "parameter-counting",
    room="generalization",
    covers=["A-46", "A-47", "A-51"],
    title="More parameters than samples: bounds that count parameters say nothing",
    errata=["cifar-pixels-as-dimension"],
    full={"samples": 14, "cells": 24},
    least={"samples": 3, "cells": 4},
    most={"samples": 14, "cells": 64},
)
def parameter_counting(run: Run, samples: int = 10, cells: int = 12) -> None:
    """A network with 1.6 million parameters fits the 50 000 images of CIFAR-10.

    The bounds by parameters (its order, the bits of a float, the VC dimension) are evaluated for
    such networks: all are above 1, which any risk is. They become meaningful only when samples
    outnumber parameters by far. That so many parameters can fit anything is shown on random
    labels, with d + 2m of them. Then the curse of dimensionality: the number of parameters for
    Lipschitz functions of as many variables as an image has pixels, and why it is a lower bound: a
    Lipschitz function can vanish at all points of a grid. Look at the second panel.

    Args:
        samples: that networks shatter, 3 to 14.
        cells: of the grid in the part on the curse of dimension, 4 to 64.
    """
    vacuity(run, samples)
    dimensions(run)
    curse(run, cells)
    run.figure(
        "counting",
        plot,
        caption="Left, the bounds for a network with 1.6 million parameters against the number of "
        "samples; the line at 1 is what is true of any network, the dots are CIFAR-10. Right, the "
        "parameters needed for error ½ against the dimension.",
        grid=(1, 2),
    )


def vacuity(run: Run, samples: int) -> None:
    """The case of the source, and one where the bounds say something."""
    found = count_parameters_bounds(1_600_000, 50_000, layers=10, inputs=3072)
    small = count_parameters_bounds(1000, 5_000_000, layers=2, inputs=10)
    says = run.states(["A-46"], r"\sqrt{P\ln P/m}=21.4\ \text{ for } P=1.6\cdot10^6,\ m=5\cdot10^4")
    says.equal(found.order, 21.4, 0.0025)
    says.fails("as many samples as parameters", count_parameters_bounds(1_600_000, 1_600_000).order)
    says = run.states("A-46", r"\min(\text{order, bits, VC})\ge1:\ \text{ vacuous}")
    more = count_parameters_bounds(79_510, 500_000, layers=2, inputs=784)
    says.at_least(
        [found.order, found.bits, found.vc, more.order, more.bits, more.vc],
        1.0,
        where=f"{found.load:.0f} parameters a sample, enough to fit any labels: "
        f"{'yes' if found.interpolation_possible else 'no'}; and 784-100-10 on half a million digits",
    )
    says.fails("1000 parameters and five million samples", [small.order, small.bits, small.vc])
    cases = [
        ("CNN on CIFAR-10", 1_600_000, 50_000, 10, 3072),
        ("784-100-10 on MNIST", 79_510, 60_000, 2, 784),
        ("the same, 1000 times the samples", 79_510, 60_000_000, 2, 784),
        ("1000 parameters", 1000, 5_000_000, 2, 10),
    ]
    rows = []
    for name, p, m, depth, d in cases:
        b = count_parameters_bounds(p, m, layers=depth, inputs=d)
        rows.append([name, p, m, b.load, b.interpolation_possible, b.order, b.bits, b.vc,
                     b.vacuous])  # fmt: skip
    run.table(
        "bounds",
        ["network", "P", "m", "P/m", "can fit anything", "√(P log P/m)", "32 bits each",
         "VC, constant 1", "vacuous"],
        rows,
        caption="A bound of 1 or more is true of every network. Only the column of the bits is a "
        "certificate; the others are up to constants.",
    )  # fmt: skip
    x = run.randn(samples, 3)
    net, weights = relu_shattering(x)
    row = int(torch.randint(0, 2**samples, (1,), generator=run.generator))
    labels = all_labelings(samples)[row]
    with torch.no_grad():
        features = net[1](net[0](x))
    fewer = weights[row].clone()
    fewer[samples // 2 :] = 0
    says = run.states("A-46", r"d+2m \text{ parameters fit } m \text{ points with any labels}")
    says.equal(
        ((features @ weights[row]).sign() != labels).sum(),
        where="one direction, a kink and an output weight for each point; random labels",
    )
    says.fails("half of the units", ((features @ fewer).sign() != labels).sum())


def dimensions(run: Run) -> None:
    """The sizes of images."""
    names = ("MNIST", "CIFAR-10", "CIFAR-100", "ImageNet")
    says = run.states("A-47", r"d=784,\ 3072,\ 3072,\ 196608\ \text{ (MNIST, CIFAR-10, CIFAR-100, ImageNet)}")
    says.equal([input_dimension(n) for n in names], [28 * 28, 3 * 32 * 32, 3 * 32 * 32, 3 * 256 * 256])
    says.fails("pixels only", [input_dimension(n, colors=False) for n in names])
    run.refutes("cifar-pixels-as-dimension", r"d=1024\ \text{ for CIFAR-10}").equal(input_dimension("CIFAR-10"), 1024)


def curse(run: Run, cells: int) -> None:
    """epsilon^-d, and a Lipschitz function that a grid of k^d points does not see."""
    says = run.states(
        "A-51",
        r"\varepsilon=\tfrac12,\ d=784:\ 2^{784}\approx10^{236.0},\ \text{ discontinuous: }2^{392}\approx10^{118.0}",
    )
    says.equal(
        [log10_parameters_needed(784, 0.5), log10_parameters_needed(784, 0.5, discontinuous=True)],
        [math.log10(2**784), math.log10(2**392)],
        1e-12,
    )
    says.fails("the pixels of CIFAR-10 instead", log10_parameters_needed(1024, 0.5), promised=math.log10(2**784))
    hidden, promised, squared, slopes = [], [], [], []
    for d in (1, 2, 3):
        worst = []
        for k in range(2, cells + 1):
            # distance to the centers of k^d cells, in the maximum norm: 1-Lipschitz, 0 at all p
            line = torch.arange(0, 2 * k + 1).double() / (2 * k)
            centers = (torch.arange(k).double() + 0.5) / k
            away = (line[:, None] - centers).abs().amin(1)
            worst.append(float(away.max()))
            hidden.append(worst[-1])
            promised.append(0.5 * (k**d) ** (-1 / d))
            squared.append(float(away.square().max()))
        slopes.append(fit_slope([float(k**d) for k in range(2, cells + 1)], worst).estimate)
    says = run.states(
        "A-51",
        r"\max|f|=\tfrac12p^{-1/d}\ \text{ for a 1-Lipschitz } f \text{ that is 0 at all } p=k^d "
        r"\text{ points of a grid}",
    )
    says.equal(
        hidden, promised, 1e-12, where="f and -f look alike on the grid, so one of them is missed by at least this"
    )
    says.fails("its square, which is much flatter", squared)
    run.states("A-51", r"\varepsilon\sim p^{-1/d}:\ \text{ the exponents for } d=1,2,3").equal(
        slopes, [-1.0, -1 / 2, -1 / 3], 1e-9
    )


def plot(axes: Any) -> None:
    left, right = axes[0]
    samples = [10**k for k in range(3, 13)]
    found = [count_parameters_bounds(1_600_000, m, layers=10) for m in samples]
    for name, label, color in (
        ("bits", "32 bits a parameter", COLORS[0]),
        ("order", "√(P log P / m)", COLORS[1]),
        ("vc", "VC, constant 1", COLORS[2]),
    ):
        values = [getattr(b, name) for b in found]
        shown = [v if math.isfinite(v) else math.nan for v in values]
        left.loglog(samples, shown, color=color, label=label)
    here = count_parameters_bounds(1_600_000, 50_000, layers=10)
    left.loglog([50_000], [here.bits], "o", color=COLORS[0])
    left.loglog([50_000], [here.order], "o", color=COLORS[1])
    left.axhline(1, color=COLORS[6], lw=0.8, ls="--")
    left.set(xlabel="samples m", ylabel="bound", title="1.6 million parameters")
    left.legend()
    d = list(itertools.chain(range(1, 785, 8), (784,)))
    right.plot(d, [log10_parameters_needed(k, 0.5) for k in d], label="continuous", color=COLORS[0])
    right.plot(d, [log10_parameters_needed(k, 0.5, discontinuous=True) for k in d],
               label="discontinuous, deep", color=COLORS[1])  # fmt: skip
    right.set(xlabel="dimension", ylabel="parameters, powers of ten", title="error ½")
    right.legend()

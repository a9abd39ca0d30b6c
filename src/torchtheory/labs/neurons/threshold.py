"""Which Boolean functions does one McCulloch-Pitts neuron compute?"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import Tensor

from torchtheory.labs.engine import COLORS, Run, lab
from torchtheory.neurons.dichotomies import realizable_dichotomies
from torchtheory.neurons.threshold_neuron import (
    Gate,
    boolean_inputs,
    count_neuron_functions,
    logic_gate,
    neuron_functions,
    truth_table,
)

GATES: dict[Gate, Callable[[Tensor], Tensor]] = {
    "and": lambda bits: bits.all(1),
    "or": lambda bits: bits.any(1),
    "nand": lambda bits: ~bits.all(1),
    "nor": lambda bits: ~bits.any(1),
}


@lab(
    "threshold-neuron",
    room="neurons",
    covers=["N-02"],
    title="One McCulloch-Pitts neuron computes n·2ⁿ + 2 Boolean functions, and never XOR",
    full={"inputs": 8},
    least={"inputs": 3},
    most={"inputs": 10},
)
def threshold_neuron(run: Run, inputs: int = 6, cube: Literal[3, 4] = 4) -> None:
    """A neuron with synapses ±1 fires when enough of its inputs are as it likes them.

    All synapse vectors and thresholds are run through all bit patterns, and the distinct truth
    tables are counted for up to `inputs` inputs. They are exactly the functions "at least j of n
    literals are true", n·2ⁿ + 2 of them. For up to `cube` inputs they are compared with the
    functions a hyperplane with real weights computes, which are listed by cutting the corners of
    the cube in all possible ways. XOR is in neither list; the projection on one bit is in the
    second only, because a synapse is never 0.
    """
    run.assumes(inputs >= cube, f"the functions of {cube} inputs are compared, and {inputs} are listed")
    sizes = range(1, inputs + 1)
    functions = {n: neuron_functions(n) for n in sizes}

    wrong = [
        int((truth_table(logic_gate(name, n)).bool() != compute(boolean_inputs(n).bool())).sum())
        for n in sizes
        for name, compute in GATES.items()
    ]
    wrong.append(int((truth_table(logic_gate("not", 1)) != torch.tensor([1, 0])).sum()))
    run.states("N-02", r"\text{AND, OR, NAND, NOR, NOT are one neuron each: wrong rows of the truth table}").equal(
        wrong
    )

    literals = [distance(at_least_of_literals(n), functions[n]).max() for n in sizes]
    says = run.states(
        "N-02", r"\text{“at least } j \text{ of } n \text{ literals” is one neuron: rows the best neuron has wrong}"
    )
    says.equal(torch.stack(literals))
    says.fails("XOR is not of that form", distance(parities(2), functions[2])[0])
    says = run.states("N-02", r"\#\{f[\sigma,\theta]\} = n2^n+2")
    says.equal([len(functions[n]) for n in sizes], [count_neuron_functions(n) for n in sizes])
    says.fails(
        "a synapse may be 0 as well, n = 2",
        len(functions_with_weights(2, (-1, 0, 1))),
        promised=count_neuron_functions(2),
    )

    pair: tuple[Gate, Gate] = ("and", "nand")
    separable = {n: hyperplane_functions(n) for n in range(1, cube + 1)}
    known = {1: 4, 2: 14, 3: 104, 4: 1882}
    run.states("N-02", r"\#\{\mathbb 1\{w^\top x\ge\theta\}: w\in\mathbb R^n\} = 4, 14, 104, 1882").equal(
        [len(found) for found in separable.values()],
        [known[n] for n in separable],
        where="counted by cutting the corners of the cube; the numbers are the known ones",
    )
    says = run.states("N-02", r"n\ge2:\ \text{fewer functions with synapses } \pm1 \text{ than with real weights}")
    says.below([len(functions[n]) for n in separable if n >= 2], [len(separable[n]) for n in separable if n >= 2])
    says.fails("n = 1", len(functions[1]), promised=len(separable[1]))
    says = run.states("N-02", r"n\ge2:\ x\mapsto x_1 \text{ is not one neuron: rows the best neuron has wrong}")
    says.at_least([int(distance(projection(n), functions[n]).min()) for n in sizes if n >= 2], 1)
    says.fails("n = 1", int(distance(projection(1), functions[1]).min()))

    says = run.states(
        "N-02",
        r"\text{XOR and XNOR are no threshold function, with } \sigma \text{ or with real } w:"
        r"\text{ rows the best one has wrong}",
    )
    says.at_least(torch.cat([distance(parities(n), found[n]) for found in (functions, separable) for n in (2, 3)]), 1)
    says.fails(
        "AND and NAND instead", distance(torch.stack([truth_table(logic_gate(g, 3)) for g in pair]), functions[3])
    )

    run.table(
        "counts",
        ["inputs", "(σ, θ) tried", "functions of one neuron", "n·2ⁿ + 2", "of a hyperplane", "all"],
        [
            (
                n,
                2**n * (n + 2),
                len(functions[n]),
                count_neuron_functions(n),
                len(separable[n]) if n in separable else "",
                2 ** (2**n) if n <= 4 else f"$2^{{{2**n}}}$",
            )
            for n in sizes
        ],
        caption="Boolean functions of n bits, and how many of them one unit computes",
    )
    run.figure(
        "sixteen-functions",
        lambda axis: plot_sixteen(axis, functions[2], separable[2]),
        caption="All functions of two bits: filled corners of the square fire, and the number "
        "lists the outputs for 00, 01, 10, 11. Ten are one threshold neuron, "
        "four more need a weight 0, and XOR and XNOR need a second layer.",
        size=(8, 2.8),
    )


def distance(tables: Tensor, functions: Tensor) -> Tensor:
    """Rows in which the nearest of the functions differs from each table."""
    return torch.cdist(tables.double(), functions.double(), p=1).min(1).values


def at_least_of_literals(n: int) -> Tensor:
    """Truth tables of "at least j of n literals", built without a neuron."""
    bits = boolean_inputs(n).bool()
    agreeing = (bits.unsqueeze(0) == bits.unsqueeze(1)).sum(2)
    return torch.cat([agreeing >= j for j in range(n + 2)])


def parities(n: int) -> Tensor:
    """Truth tables of XOR and XNOR of all bits."""
    odd = boolean_inputs(n).sum(1) % 2 == 1
    return torch.stack([odd, ~odd])


def projection(n: int) -> Tensor:
    """Truth table of the first bit."""
    return boolean_inputs(n)[:, 0].bool().unsqueeze(0)


def functions_with_weights(n: int, values: tuple[int, ...]) -> Tensor:
    """All threshold functions with weights from a list."""
    weights = torch.tensor(list(itertools.product(values, repeat=n)))
    heights = weights @ boolean_inputs(n).T
    thresholds = torch.arange(-n, n + 2)
    fires = heights.unsqueeze(1) >= thresholds.reshape(1, -1, 1)
    tables: Tensor = torch.unique(fires.reshape(-1, 2**n), dim=0)
    return tables


def hyperplane_functions(n: int) -> Tensor:
    """All truth tables a hyperplane with real weights makes of the corners of the cube."""
    return realizable_dichotomies(boolean_inputs(n).double(), bias=True).labels > 0


def plot_sixteen(axis: Any, neuron: Tensor, hyperplane: Tensor) -> None:
    corners = boolean_inputs(2)
    tables = [table.bool() for table in boolean_inputs(4)]
    groups = [
        ("one threshold neuron", COLORS[0]),
        ("one unit with real weights", COLORS[2]),
        ("two layers", COLORS[1]),
    ]

    def group(table: Tensor) -> int:
        if (neuron == table).all(1).any():
            return 0
        return 1 if (hyperplane == table).all(1).any() else 2

    names = {}
    for place, table in enumerate(sorted(tables, key=group)):
        name, color = groups[group(table)]
        names[name] = color
        across, down = place % 8, place // 8
        axis.plot(
            [2.2 * across + side for side in (0, 0, 1, 1, 0)],
            [-2.4 * down + side for side in (0, 1, 1, 0, 0)],
            color="0.8",
            linewidth=1,
            zorder=0,
        )
        axis.scatter(
            2.2 * across + corners[:, 0],
            -2.4 * down + corners[:, 1],
            s=90,
            c=[color if fires else "white" for fires in table],
            edgecolors=color,
            linewidths=1.5,
        )
        axis.annotate(
            "".join(str(int(fires)) for fires in table),
            (2.2 * across + 0.5, -2.4 * down - 0.55),
            ha="center",
            color="0.3",
            fontsize=8,
        )
    for name, color in names.items():
        axis.scatter([], [], s=60, color=color, label=name)
    axis.legend(loc="upper center", ncols=3, bbox_to_anchor=(0.5, 1.16), fontsize=9)
    axis.set(xlim=(-0.6, 17), ylim=(-3.3, 1.5), xticks=[], yticks=[], aspect="equal")
    for side in ("left", "bottom"):
        axis.spines[side].set_visible(False)

"""Boolean functions by threshold networks: minterms for all of them, depth for parity."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from torchtheory.approximation.certificates import network_size
from torchtheory.approximation.memorization.boolean import (
    least_terms,
    minterm_network,
    parity_network,
    parity_tree,
)
from torchtheory.labs.engine import Run, lab
from torchtheory.neurons.threshold_neuron import boolean_inputs, neuron_functions


@lab(
    "minterm-networks",
    room="approximation",
    covers=["S-40", "X-65"],
    title="$2^{d-1}$ threshold units make any Boolean function; parity needs d, or log d layers",
    full={"bits": 16},
    least={"bits": 5},
)
def minterm_networks(run: Run, bits: int = 12) -> None:
    """Every Boolean function of two and three bits is written down with one unit a minterm.

    The units are McCulloch-Pitts neurons, and with the complement where it is shorter never more
    than half the inputs are needed. Parity attains that number, and its shortest formula (DNF) has
    $2^{d-1}$ terms; but d threshold units that count do it as well, and so does a tree of exclusive
    ors. Look at how the three sizes part with the number of bits.

    Args:
        bits: of parity, at most.
    """
    every_function(run)
    parities = parity(run, bits)
    formulas(run)
    run.table(
        "parity",
        ["bits", "minterms", "counting units", "units of the tree", "layers of the tree"],
        parities,
        caption="Three threshold networks for parity",
    )
    d, minterms, counting, tree, _ = zip(*parities, strict=True)
    run.curves(
        "parity",
        d,
        {
            "one a minterm, one layer": minterms,
            "tree of exclusive ors": tree,
            "d units that count, one layer": counting,
        },
        axes=("bits d", "hidden units for parity"),
        log="y",
        caption="Hidden units for parity: one a minterm, d that count, and a tree of exclusive ors.",
    )


def tables(bits: int) -> Tensor:
    """All truth tables of so many bits."""
    return boolean_inputs(2**bits)


def wrong(network: Any, bits: int, table: Tensor) -> int:
    made = network(boolean_inputs(bits).double())[:, 0]
    return int((made != table).sum())


def every_function(run: Run) -> None:
    mistakes, widths, limits, early, plain, ones = [], [], [], [], [], []
    single = 0
    for d in (2, 3):
        for table in tables(d):
            network = minterm_network(table)
            mistakes.append(wrong(network, d, table))
            widths.append(network_size(network).units)
            limits.append(2 ** (d - 1))
            full = minterm_network(table, complement=False)
            plain.append(network_size(full).units)
            ones.append(max(1, int(table.sum())))
            with torch.no_grad():  # each unit fires one true literal too early
                network[0].bias.add_(1.0)  # type: ignore[operator]
            early.append(wrong(network, d, table))
        single += len(neuron_functions(d))
    says = run.states("S-40", r"\text{all } 16+256 \text{ Boolean functions of 2 and 3 bits: wrong values}")
    says.equal(mistakes, where=f"one McCulloch-Pitts neuron alone makes {single} of them")
    says.fails("thresholds |a| - 1 in place of |a|", early)
    says = run.states("S-40", r"\text{width}=|f^{-1}(1)|")
    says.equal(plain, ones)
    many = [i for i, (count, half) in enumerate(zip(ones, limits, strict=True)) if count > half]
    says.fails(
        "the complement, where more than half of the values are 1",
        [widths[i] for i in many],
        promised=[ones[i] for i in many],
    )
    says = run.states("S-40", r"\text{with the complement where it is shorter: width}\le2^{d-1}")
    says.at_most(widths, limits)
    says.fails(
        "without the complement, where more than half of the values are 1",
        [plain[i] for i in many],
        promised=[limits[i] for i in many],
    )


def parity(run: Run, bits: int) -> list[tuple[int, int, int, int, int]]:
    rows, mistakes, short, flat = [], [], [], []
    for d in range(2, bits + 1):
        table = boolean_inputs(d).sum(1) % 2
        counting, tree = parity_network(d), parity_tree(d)
        mistakes += [wrong(counting, d, table), wrong(tree, d, table)]
        cut = parity_network(d)
        with torch.no_grad():  # without the last unit
            cut[2].weight[0, -1] = 0.0  # type: ignore[operator]
        short.append(wrong(cut, d, table))
        flat.append(network_size(counting).depth - 1)
        minterms = network_size(minterm_network(table)).units
        size = network_size(tree)
        rows.append((d, minterms, network_size(counting).units, size.units, size.depth - 1))
    says = run.states(
        "S-40, X-65",
        rf"\text{{parity of 2 to {bits} bits, all inputs: wrong values of }}"
        r"\textstyle\sum_j(-1)^{j+1}\mathbf 1[\sum_ix_i\ge j] \text{ and of the tree}",
    )
    says.equal(mistakes)
    says.fails("without the unit that counts to d", short)
    says = run.states("S-40, X-65", r"\text{minterms of parity}=2^{d-1}")
    says.equal([row[1] for row in rows], [2 ** (d - 1) for d, *_ in rows])
    says.fails("the units that count", [row[2] for row in rows])
    says = run.states("X-65", r"\text{hidden layers of the tree}=\lceil\log_2d\rceil")
    says.equal([row[4] for row in rows], [math.ceil(math.log2(row[0])) for row in rows])
    says.fails("the units that count, in one layer", flat)
    says = run.states("X-65", r"\text{units of the tree}\le2(d-1)+\lceil\log_2d\rceil")
    says.at_most([row[3] for row in rows], [2 * (row[0] - 1) + math.ceil(math.log2(row[0])) for row in rows])
    says.fails("minterms", [row[1] for row in rows])
    return rows


def formulas(run: Run) -> None:
    """The shortest disjunction of conjunctions, found by search."""
    bits = (1, 2, 3, 4)
    parities = [least_terms(boolean_inputs(d).sum(1) % 2) for d in bits]
    majority = [least_terms((2 * boolean_inputs(d).sum(1) > d).long()) for d in bits]
    says = run.states("X-65", r"\text{terms of the shortest DNF of parity}=2^{d-1},\ d\le4")
    says.equal(parities, [2 ** (d - 1) for d in bits])
    says.fails("majority, where terms of fewer literals suffice", majority)
    most = max(least_terms(table) for table in tables(3))
    says = run.states("X-65", r"\text{no function of 3 bits has a longer shortest DNF than } 2^{d-1}")
    says.at_most(most, 4)
    says.fails("minterms in place of the shortest terms", max(int(table.sum()) for table in tables(3)))

"""Deep arithmetic circuits have tensors that shallow ones of polynomial size never reach."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from torchtheory.approximation.depth.arithmetic_circuits import (
    DeepCircuit,
    ShallowCircuit,
    best_shallow_circuit,
    coefficient_tensor,
    generic_rank,
    matricization_rank,
    matricize,
    random_deep_circuit,
    shallow_from_tensor,
)
from torchtheory.labs.engine import COLORS, Run, lab

#: places and features
SIZES: tuple[tuple[int, int], ...] = ((2, 3), (4, 2), (4, 3), (4, 5), (8, 2))


@lab(
    "arithmetic-circuits",
    room="approximation",
    covers=["X-78"],
    title="A random deep arithmetic circuit has rank $r^{m/2}$; a shallow one needs a term for each",
    full={"draws": 40, "sweeps": 400},
    least={"draws": 2, "sweeps": 1},
)
def arithmetic_circuits(run: Run, draws: int = 4, sweeps: int = 30) -> None:
    r"""Deep circuits are drawn, their coefficients written out, and matched by shallow ones.

    The scores of a circuit are those of its coefficient tensor. As a matrix of odd against even
    places, the tensor of a shallow circuit with Z terms has rank at most Z; that of every deep
    circuit drawn has rank $r^{m/2}$, so that a shallow circuit needs as many terms. With fewer,
    least squares stays above the bound of Eckart and Young, which is not zero. $r^{m-1}$ terms
    always do. Look at the error against the number of terms, and at the table of sizes.

    Args:
        draws: random deep circuits of each kind and size.
        sweeps: of alternating least squares over the factors of a shallow circuit.
    """
    scores(run)
    ranks(run, draws)
    universal(run)
    curve = fewer_terms(run, sweeps)
    sizes = parameters(run)
    run.figure(
        "terms",
        lambda axes: plot(axes, curve, sizes),
        grid=(1, 2),
        caption="Left: distance of shallow circuits from a deep one with 4 places and 3 features, "
        "and what no circuit of that many terms can beat. Right: parameters of either, 4 features.",
    )


def shallow(run: Run, places: int, terms: int, features: int, outputs: int = 1) -> ShallowCircuit:
    return ShallowCircuit(run.randn(places, terms, features), run.randn(outputs, terms))


def deep(run: Run, places: int, rank: int, features: int, *, shared: bool = False) -> DeepCircuit:
    levels = places.bit_length() - 1
    return random_deep_circuit(places, [rank] * levels, features, shared=shared, generator=run.generator)


def scored(tensor: Tensor, x: Tensor) -> Tensor:
    """The scores `[n, N]` by the definition: the sum over all indices."""
    found = tensor[None].expand(len(x), *tensor.shape)
    for j in range(x.shape[1]):
        found = torch.einsum("nor...,nr->no...", found, x[:, j])
    return found


def scores(run: Run) -> None:
    """The network against the sum over all coefficients."""
    apart, wrong = [], []
    for places, features in SIZES:
        levels = places.bit_length() - 1
        x = run.randn(20, places, features)
        many = random_deep_circuit(places, [features] * levels, features, 3, generator=run.generator)
        for circuit in (many, shallow(run, places, 4, features, 3)):
            tensor = coefficient_tensor(circuit)
            made = circuit(x).detach()
            apart.append(float((scored(tensor, x) - made).abs().max() / made.abs().max()))
            turned = scored(tensor, x.flip(1)) - made
            wrong.append(float(turned.abs().max() / made.abs().max()))
    says = run.states(
        "X-78", r"\text{circuit}(X)=\sum c_{i_1\dots i_m}\prod_jf_{i_j}(x_j): \text{ relative difference}"
    )
    says.equal(apart, within=1e-12)
    says.fails("the places in the opposite order", wrong)


def ranks(run: Run, draws: int) -> None:
    """Ranks of matrices of odd against even places."""
    found, promised, halves, last, poor = [], [], [], [], []
    terms, most = [], []
    rows = []
    for places, features in SIZES:
        for shared in (False, True):
            for _ in range(draws):
                tensor = coefficient_tensor(deep(run, places, features, features, shared=shared))[0]
                levels = [features] * (places.bit_length() - 1)
                found.append(generic_rank(places, levels, features, shared=shared, generator=run.generator))
                promised.append(features ** (places // 2))
                halves.append(matricization_rank(tensor, "halves"))
                last.append(features)
            rows.append((places, features, shared, promised[-1], found[-1], halves[-1]))
        levels = [features - 1] * (places.bit_length() - 1)
        narrow = generic_rank(places, levels, features, generator=run.generator)
        poor.append((narrow, features ** (places // 2)))
        for z in (1, 2, 3):
            most.append(z)
            terms.append(matricization_rank(coefficient_tensor(shallow(run, places, z, features))[0]))
    says = run.states("X-78", r"\text{almost every deep circuit with ranks }\ge r: \ \operatorname{rank}=r^{m/2}")
    says.equal(found, promised, where="whole-number weights modulo a prime: no rounding decides about the rank")
    says.fails("inner ranks r - 1 instead of r", [a for a, _ in poor], promised=[b for _, b in poor])
    small = [(features, promised) for _, features, _, promised, *_ in rows]
    says = run.states("X-78", r"\text{shallow circuit of } Z \text{ terms}:\ \operatorname{rank}\le Z")
    says.at_most(terms, most)
    says.fails(
        "deep circuits of ranks r, with r for Z",
        [rank for (_, features), rank in zip(small, (r[4] for r in rows), strict=True)],
        promised=[features for features, _ in small],
    )
    says = run.states("X-78", r"\text{the first half of the places against the second}:\ \operatorname{rank}\le r_\ell")
    says.at_most(halves, last, where="the last pooling meets only as many products of halves as the last rank")
    says.fails("odd against even places", found, promised=last)
    run.table(
        "ranks",
        ["places", "features", "shared", "$r^{m/2}$", "rank, odd-even", "rank, halves"],
        rows,
        caption="Random deep circuits: exact ranks of odd against even places",
    )


def universal(run: Run) -> None:
    """Any tensor is a shallow circuit of r^(m-1) terms."""
    apart, counts, expected, cut = [], [], [], []
    for places, features in SIZES:
        tensor = run.randn(*[features] * places)
        made = shallow_from_tensor(tensor)
        apart.append(float((coefficient_tensor(made)[0] - tensor).abs().max()))
        counts.append(made.outputs.shape[1])
        expected.append(features ** (places - 1))
        less = ShallowCircuit(made.factors[:, :-1], made.outputs[:, :-1])
        cut.append(float((coefficient_tensor(less)[0] - tensor).abs().max()))
    says = run.states("X-78", r"\text{every coefficient tensor is a shallow circuit: largest difference}")
    says.equal(apart, within=1e-14)
    says.fails("one term left out", cut)
    run.states("X-78", r"\text{of } r^{m-1} \text{ terms}").equal(counts, expected)


def fewer_terms(run: Run, sweeps: int) -> tuple[list[int], list[float], list[float]]:
    """Least squares with few terms, against the singular values that are left."""
    places, features = 4, 3
    tensor = coefficient_tensor(deep(run, places, features, features))[0]
    tensor = tensor / tensor.norm()
    values = torch.linalg.svdvals(matricize(tensor))
    whole = features ** (places // 2)
    count = list(range(1, whole + 1))
    floors = [float(values[z:].norm()) for z in count]
    errors = []
    for z in run.track(count, "terms"):
        made = [best_shallow_circuit(tensor, z, sweeps=sweeps, generator=run.generator) for _ in range(2)]
        errors.append(min(float((coefficient_tensor(a)[0] - tensor).norm()) for a in made))
    # the best matrix of rank 2 Z: no longer what Z terms can be
    left, kept, right = torch.linalg.svd(matricize(tensor))
    nearer = [
        float((left[:, : 2 * z] * kept[: 2 * z] @ right[: 2 * z] - matricize(tensor)).norm())
        for z in count[: whole - 1]
    ]
    says = run.states("X-78", r"Z<r^{m/2}:\ \|c-c_Z\|\ge\Big(\sum_{i>Z}\sigma_i^2\Big)^{1/2}")
    says.at_least(errors[: whole - 1], floors[: whole - 1], 1e-12)
    says.fails("matrices of rank 2Z instead of Z", nearer)
    says = run.states(
        "X-78", r"Z<r^{m/2}: \text{ the distance that no circuit of } Z \text{ terms goes below is not 0}"
    )
    says.above(floors[: whole - 1], 1e-12, loose="a distance is compared with 0")
    says.fails("Z = $r^{m/2}$", floors[-1])
    return count, errors, floors


def count(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())


def parameters(run: Run) -> list[tuple[int, int, float]]:
    """Parameters of a deep circuit, and of the smallest shallow one that could equal it."""
    features = 4
    formula, found, rows = [], [], []
    for levels in range(1, 7):
        places = 1 << levels
        circuit = deep(run, places, features, features)
        found.append(count(circuit))
        # m matrices, m/2 matrices, ..., 2 matrices of r x r, and the output
        formula.append((2 * places - 2) * features**2 + features)
        least = features ** (places // 2)
        rows.append((places, found[-1], float(least * (places * features + 1))))
    run.states("X-78", r"\text{deep: } (2m-2)r^2+r \text{ parameters}").equal(found, formula)
    run.table(
        "parameters",
        ["places", "deep", "shallow, at least"],
        rows,
        caption=f"Parameters of circuits with {features} features and ranks {features}",
    )
    return rows


def plot(
    axes: Any,
    curve: tuple[list[int], list[float], list[float]],
    sizes: list[tuple[int, int, float]],
) -> None:
    left, right = axes[0]
    terms, errors, floors = curve
    left.semilogy(terms, errors, "o-", color=COLORS[0], label="least squares, best of 2 starts")
    left.semilogy(terms[:-1], floors[:-1], "--", color=COLORS[1], label="singular values that are left")
    left.set(xlabel="terms Z", ylabel="relative distance", title="a deep circuit by shallow ones")
    left.legend()
    places = [m for m, *_ in sizes]
    right.semilogy(places, [d for _, d, _ in sizes], "o-", color=COLORS[0], label="deep")
    right.semilogy(places, [s for *_, s in sizes], "s--", color=COLORS[1], label="shallow, at least")
    right.set(xlabel="places m", ylabel="parameters", title="what either needs")
    right.legend()

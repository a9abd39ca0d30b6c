"""Different parameters, the same network: permutations, rescaling, sigmoid and tanh."""

from __future__ import annotations

import copy
import math
from typing import Literal

import torch
from torch import Tensor, nn

from torchtheory.labs.engine import Run, lab
from torchtheory.labs.nets.comparing import gap, linear_layer
from torchtheory.models.model import Parameters, flatten
from torchtheory.nets.activations.table import ACTIVATIONS
from torchtheory.nets.conversion import convert_activation
from torchtheory.nets.feedforward import dense, mlp
from torchtheory.nets.symmetries import (
    canonical_form,
    hidden_layers,
    is_permutation_matrix,
    log10_equivalent_parameters,
    permutation_distance,
    permutation_orbit,
    permute_units,
    rescalable_layers,
    rescale_units,
    with_parameters,
)


@lab(
    "network-symmetries",
    room="nets",
    covers=["N-23", "A-12"],
    title="Permuted and rescaled hidden units: many parameters, one function",
    errata=["permutation-matrix-by-sums"],
    full={"samples": 10_000, "width": 64},
    least={"width": 2},
)
def network_symmetries(run: Run, samples: int = 100, width: int = 8) -> None:
    """Units of a hidden layer can be renamed for every activation, and rescaled for ReLU.

    Networks with every activation of the table are permuted and compared on random inputs; the
    control permutes incoming weights only. The orbit of a tiny network is listed: ∏ m! parameter
    vectors, fewer when two units coincide. Sorting the units gives a canonical form, which finds
    out that two networks are the same. Rescaling leaves ReLU networks alone and changes tanh
    networks. The picture shows the loss along a line between two equivalent networks: equal at
    both ends, and not in between.

    Args:
        samples: random inputs.
        width: of the first hidden layer.
    """
    x = run.randn(samples, 3)
    sizes = [3, width, width - 1, 2]
    kept, half, matrix_form = [], [], []
    for row in ACTIVATIONS.values():
        net = mlp(sizes, row, generator=run.generator)
        theta: Parameters = {k: p.detach() for k, p in net.named_parameters()}
        moved, broken = theta, theta
        for layer in hidden_layers(net):
            order = torch.randperm(layer.units, generator=run.generator).roll(1)
            moved = permute_units(moved, layer, order)
            other = permute_units(broken, layer, order)
            broken = {**other, f"{layer.outgoing}.weight": broken[f"{layer.outgoing}.weight"]}
        out = net(x).detach()
        kept.append(gap(with_parameters(net, moved)(x), out))
        half.append(gap(with_parameters(net, broken)(x), out))
        p = torch.eye(width).double()[torch.randperm(width, generator=run.generator)]
        w, b = linear_layer(net, 0).weight.detach(), linear_layer(net, 0).bias.detach()
        permuted = row(x @ (p @ w).T + p @ b) @ torch.linalg.inv(p).T
        matrix_form.append(gap(permuted, row(x @ w.T + b)))
    says = run.states(
        ["N-23", "A-12"], r"(W^\ell,b^\ell,W^{\ell+1})\to(PW^\ell,Pb^\ell,W^{\ell+1}P^\top)\text{: same function}"
    )
    says.equal(kept, within=1e-13, where="every activation of the table, both hidden layers permuted")
    says.fails("the outgoing weights left as they were", half)
    run.states("N-23", r"F[W,b](x)=P^{-1}F[PW,Pb](x)").equal(matrix_form, within=1e-13)
    orbit(run)
    permutation_matrices(run)
    canonical(run, x, sizes)
    rescaling(run, x, sizes)
    net = mlp([3, 4, 2], "tanh", generator=run.generator)
    constant: nn.Sequential = copy.deepcopy(net)
    with torch.no_grad():
        linear_layer(constant, -1).weight.zero_()
    changed = copy.deepcopy(constant)
    with torch.no_grad():
        linear_layer(changed, 0).weight.copy_(run.randn(4, 3))
    bias = linear_layer(constant, -1).bias.detach()
    says = run.states("A-12", r"W^{(L)}=0\Rightarrow\Phi\equiv b^{(L)}\text{ whatever the other parameters}")
    says.equal([gap(constant(x), bias.expand(samples, 2)), gap(changed(x), constant(x))])
    says.fails("another layer set to 0 instead: W⁽¹⁾ = 0", first_layer_zero(net, x, bias))
    between(run)


def orbit(run: Run) -> None:
    """N-23, A-12: how many parameter vectors."""
    shapes = [(2, 3, 1), (2, 3, 2, 1), (1, 4, 1), (1, 2, 2, 2, 1)]
    nets = [mlp(s, "tanh", generator=run.generator) for s in shapes]
    double = copy.deepcopy(nets[0])
    with torch.no_grad():
        for p in (linear_layer(double, 0).weight, linear_layer(double, 0).bias):
            p[1] = p[0]
        linear_layer(double, 2).weight[:, 1] = linear_layer(double, 2).weight[:, 0]
    sizes = [math.prod(math.factorial(m) for m in s[1:-1]) for s in shapes]
    says = run.states(["N-23", "A-12"], r"\prod_\ell m_\ell!\text{ different parameter vectors with the same function}")
    says.equal([distinct(net) for net in nets], sizes)
    says.fails("two equal units", distinct(double), promised=sizes[0])
    x = run.randn(20, 2)
    members = [with_parameters(nets[1], theta)(x) for theta in permutation_orbit(nets[1])]
    run.states("A-12", r"\text{all of the orbit compute the same}").equal(
        [gap(m, nets[1](x)) for m in members], within=1e-14
    )
    run.states("N-23", r"\log_{10}\prod_\ell m_\ell!").equal(
        [log10_equivalent_parameters(hidden_layers(net)) for net in nets], [math.log10(s) for s in sizes], 1e-12
    )


def permutation_matrices(run: Run) -> None:
    """N-23's footnote."""
    n = 6
    p = torch.eye(n).double()[torch.randperm(n, generator=run.generator)]
    mixed = torch.full((2, 2), 0.5).double()
    says = run.states("N-23", r"\text{entries in }\{0,1\},\text{ rows and columns summing to 1: a permutation matrix}")
    says.equal([is_permutation_matrix(p), is_permutation_matrix(torch.eye(3))], 1)
    says.fails("½(1 1; 1 1)", is_permutation_matrix(mixed))
    units = torch.tensor([1.0, 2.0]).double()
    run.refutes(
        "permutation-matrix-by-sums", r"\text{rows and columns sum to 1}\Rightarrow P\text{ permutes: }|\det P|"
    ).equal(
        float(torch.linalg.det(mixed).abs()),
        1,
        1e-12,
        where=f"½(1 1; 1 1) has these sums and sends (1, 2) to {tuple((mixed @ units).tolist())}",
    )


def canonical(run: Run, x: Tensor, sizes: list[int]) -> None:
    """N-23, A-12: one representative of the orbit."""
    net = mlp(sizes, "tanh", generator=run.generator)
    theta: Parameters = {k: p.detach() for k, p in net.named_parameters()}
    for layer in hidden_layers(net):
        theta = permute_units(theta, layer, torch.randperm(layer.units, generator=run.generator))
    same = with_parameters(net, theta)
    stranger = mlp(sizes, "tanh", generator=run.generator)
    form = flatten(canonical_form(net))
    says = run.states(["N-23", "A-12"], r"\text{canonical forms of permuted networks are equal}")
    says.equal(gap(flatten(canonical_form(same)), form))
    says.fails("another network", gap(flatten(canonical_form(stranger)), form))
    says = run.states(["N-23", "A-12"], r"\text{distance after matching the units, layer by layer}")
    says.equal(permutation_distance(net, same))
    says.fails("another network", permutation_distance(net, stranger))
    run.states("A-12", r"\text{the canonical form computes the same function}").equal(
        gap(with_parameters(net, canonical_form(net))(x), net(x)), within=1e-13
    )


def rescaling(run: Run, x: Tensor, sizes: list[int]) -> None:
    """A-12: the further symmetry of homogeneous activations."""
    found: dict[str, float] = {}
    forms: dict[str, float] = {}
    for row in ACTIVATIONS.values():
        net = mlp(sizes, row, generator=run.generator)
        theta: Parameters = {k: p.detach() for k, p in net.named_parameters()}
        for layer in hidden_layers(net):
            theta = rescale_units(theta, layer, torch.exp(run.randn(layer.units)))
        scaled = with_parameters(net, theta)
        out = net(x).detach()
        found[row.name] = gap(scaled(x), out) / float(out.abs().max())
        if row.name == "relu":
            forms["plain"] = gap(flatten(canonical_form(scaled)), flatten(canonical_form(net)))
            forms["scaled"] = gap(
                flatten(canonical_form(scaled, rescaling=True)),
                flatten(canonical_form(net, rescaling=True)),
            )
    homogeneous = [r.name for r in ACTIVATIONS.values() if r.known.positively_homogeneous]
    says = run.states(
        "A-12",
        r"\varrho(\lambda z)=\lambda\varrho(z):\ "
        r"(\Lambda W^\ell,\Lambda b^\ell,W^{\ell+1}\Lambda^{-1})\text{: same function}",
    )
    says.equal([found[name] for name in homogeneous], within=1e-12, where=", ".join(homogeneous))
    says.fails("tanh", found["tanh"])
    detected = {r.name: len(rescalable_layers(mlp(sizes, r))) == 2 for r in ACTIVATIONS.values()}
    run.states("A-12", r"\text{rescalable layers are found by measuring homogeneity}").equal(
        list(detected.values()), [name in homogeneous for name in detected]
    )
    says = run.states("A-12", r"\text{canonical form with units of length 1: rescaled ReLU networks are recognized}")
    says.equal(forms["scaled"], within=1e-12)
    says.fails("sorted without rescaling", forms["plain"])


@lab(
    "sigmoid-tanh",
    room="nets",
    covers=["N-29", "L-055"],
    title="Every sigmoid network is a tanh network, and the other way round",
    full={"samples": 10_000},
)
def sigmoid_tanh(run: Run, samples: int = 200) -> None:
    """Weights are halved or doubled, constants go into the next bias: the outputs do not change.

    Networks of several depths, with and without biases, activations at the ends and dropout in
    between, are converted to the other activation and back. Swapping the activation without
    touching the weights is the control. Without an output bias the constant costs one more unit.

    Args:
        samples: random inputs.
    """
    x = run.randn(samples, 4)
    directions: tuple[tuple[Literal["tanh", "sigmoid"], str], ...]
    directions = (("tanh", "logistic"), ("sigmoid", "tanh"))
    for to, start in directions:
        nets = [
            mlp([4, 6, 2], start, generator=run.generator),
            mlp([4, 6, 5, 7, 3, 2], start, generator=run.generator),
            mlp([4, 6, 6, 1], start, bias=False, generator=run.generator),
            mlp([4, 6, 3], start, output=start, generator=run.generator),
            nn.Sequential(ACTIVATIONS[start].layer(), mlp([4, 3, 1], start, generator=run.generator)),
            nn.Sequential(
                *mlp([4, 5, 6], start, output=start, generator=run.generator),
                nn.Dropout(0.5),
                *mlp([6, 2], generator=run.generator),
            ).eval(),
        ]
        turned = [convert_activation(net, to) for net in nets]
        old = nn.Sigmoid if start == "logistic" else nn.Tanh
        new = nn.Tanh() if start == "logistic" else nn.Sigmoid()
        swapped = nn.Sequential(*(new if isinstance(m, old) else m for m in nets[0]))
        formula = (
            r"v^\top\sigma(Wx+b)=\tfrac12v^\top\tanh(\tfrac12(Wx+b))+\tfrac12\mathbf 1^\top v"
            if to == "tanh"
            else r"v^\top\tanh(Wx+b)=2v^\top\sigma(2(Wx+b))-\mathbf 1^\top v"
        )
        says = run.states(["N-29", "L-055"], formula)
        says.equal(
            [gap(a(x), b(x)) for a, b in zip(nets, turned, strict=True)],
            within=1e-13,
            where="six networks of depth 2 to 5",
        )
        says.fails("the activation swapped, the weights kept", gap(swapped(x), nets[0](x)))
        back = [convert_activation(net, "sigmoid" if to == "tanh" else "tanh") for net in turned]
        run.states("N-29", rf"\text{{converted to {to} and back again}}").equal(
            [gap(a(x), b(x)) for a, b in zip(nets, back, strict=True)], within=1e-13
        )
        run.states("N-29", rf"\text{{activations of the old kind left after converting to {to}}}").equal(
            [sum(isinstance(m, old) for m in net.modules()) for net in turned]
        )
    net = mlp([4, 6, 1], "logistic", last_bias=False, generator=run.generator)
    unit = extra_unit(net)
    plain = convert_activation(net, "tanh")
    says = run.states("N-29", r"v^\top\sigma(Wx+b)\in\mathcal G_{n,m+1}(\tanh)\text{: one more unit, with }w=0")
    says.equal(
        gap(unit(x), net(x)),
        within=1e-14,
        where="the class has no output bias; a unit that is constant stands in for it",
    )
    says.fails("the constant dropped", gap(plain(x) - linear_layer(plain, -1).bias, net(x)))
    z = torch.linspace(-4, 4, 201, dtype=torch.float64)
    run.curves(
        "identity",
        z,
        {"tanh z": torch.tanh(z), "σ(z)": torch.sigmoid(z)},
        {"2σ(2z) − 1": 2 * torch.sigmoid(2 * z) - 1},
        axes=("z", "activation"),
        caption="tanh is the logistic function, twice as steep and stretched to (−1, 1).",
    )


def distinct(net: nn.Module) -> int:
    """How many different parameter vectors the permutations give."""
    return len({tuple(flatten(theta).tolist()) for theta in permutation_orbit(net)})


def first_layer_zero(net: nn.Sequential, x: Tensor, bias: Tensor) -> float:
    changed = copy.deepcopy(net)
    with torch.no_grad():
        linear_layer(changed, 0).weight.zero_()
    return gap(changed(x), bias.expand(len(x), 2))


def extra_unit(net: nn.Sequential) -> nn.Sequential:
    """A sigmoid network without output bias as a tanh network without one, one unit wider."""
    w, b = linear_layer(net, 0).weight.detach(), linear_layer(net, 0).bias.detach()
    v = linear_layer(net, 2).weight.detach()
    first = dense(torch.cat([w / 2, 0 * w[:1]]), torch.cat([b / 2, torch.ones(1).double()]))
    constant = v.sum(1, keepdim=True) / 2 / math.tanh(1.0)
    return nn.Sequential(first, nn.Tanh(), dense(torch.cat([v / 2, constant], dim=1)))


def between(run: Run) -> None:
    """The loss on the way to a permuted copy of a trained network, and to the aligned one."""
    x = torch.linspace(-1, 1, 50, dtype=torch.float64).unsqueeze(1)
    y = torch.sin(4 * x)
    net = mlp([1, 10, 1], "tanh", generator=run.seed)
    optimizer = torch.optim.LBFGS(net.parameters(), max_iter=150, line_search_fn="strong_wolfe")

    def loss() -> Tensor:
        optimizer.zero_grad()
        value: Tensor = (net(x) - y).square().mean()
        value.backward()  # type: ignore[no-untyped-call]
        return value

    optimizer.step(loss)  # type: ignore[no-untyped-call]
    start: Parameters = {k: p.detach() for k, p in net.named_parameters()}
    layer = hidden_layers(net)[0]
    order = torch.randperm(layer.units, generator=torch.Generator().manual_seed(1))
    end = permute_units(start, layer, order)
    aligned = permute_units(end, layer, order.argsort())
    steps = torch.linspace(0, 1, 101, dtype=torch.float64)
    losses: dict[str, list[float]] = {}
    for label, goal in (("to the aligned copy", aligned), ("to the permuted copy", end)):
        for t in steps:
            theta = {k: (1 - t) * start[k] + t * goal[k] for k in start}
            values = torch.func.functional_call(net, theta, (x,))
            losses.setdefault(label, []).append(float((values - y).square().mean()))
    run.curves(
        "between",
        steps,
        losses,
        axes=("share of the way", "mean squared error"),
        log="y",
        caption="Loss of a trained network along straight lines of parameters. To a permuted copy "
        "of itself the way leads over a hill, although both ends are the same function; after "
        "alignment the hill is gone.",
    )

"""Dense networks: what they are, how many parameters they have, and life without biases."""

from __future__ import annotations

import math

import torch
from sklearn.linear_model import LogisticRegression
from torch import Tensor, nn

from torchtheory.labs.engine import Run, lab
from torchtheory.labs.nets.comparing import gap, linear_layer
from torchtheory.models.model import flatten, unflatten
from torchtheory.nets.activations.table import ACTIVATIONS, activation
from torchtheory.nets.biases import absorb_biases, augment, homogeneous
from torchtheory.nets.feedforward import (
    Architecture,
    decide,
    generalized_linear_models,
    mlp,
    parameter_count,
)
from torchtheory.tracing.layer_results import layer_outputs


@lab(
    "dense-networks",
    room="nets",
    covers=["N-22", "A-08", "A-13", "S-04"],
    title="A dense network is a composition of affine maps and activations, with P(N) parameters",
    errata=["bias-of-a-layer-has-input-length"],
    full={"samples": 10_000, "hypotheses": 200},
    least={"samples": 3},
)
def dense_networks(run: Run, samples: int = 200, hypotheses: int = 20) -> None:
    """The definition, evaluated from a flat parameter vector, against torch's own layers.

    For every activation of the table and several widths the recursion over (W, b) is compared
    with an nn.Sequential; layer by layer values are recorded and no hook stays behind. The number
    of parameters is P(N), 53 for the network of Figure 1.1. Signs and largest outputs turn
    functions into classifiers. Last, a small network fits a curve that no single generalized
    linear model can; a linear network of the same size is the control.

    Args:
        samples: random inputs.
        hypotheses: random networks of the hypothesis set.
    """
    widths = ((3, 4, 6, 1), (2, 1), (5, 5, 5, 5, 3))
    x = {n: run.randn(samples, n) for n in (2, 3, 5)}
    figure = Architecture((3, 4, 6, 1), activation("relu"))
    run.states("A-08", r"P(3,4,6,1)=53,\ \text{width }6,\ \text{depth }3").equal(
        [sum(p.numel() for p in mlp(figure.widths).parameters()), figure.width, figure.depth], [53, 6, 3]
    )
    drawn = [tuple(torch.randint(1, 9, (4,), generator=run.generator).tolist()) for _ in range(20)]
    says = run.states("A-08", r"P(N)=\sum_{\ell=1}^L N_\ell N_{\ell-1}+N_\ell")
    says.equal([sum(p.numel() for p in mlp(n).parameters()) for n in drawn], [parameter_count(n) for n in drawn])
    says.fails("layers without biases", [sum(p.numel() for p in mlp(n, bias=False).parameters()) for n in drawn])
    compared, wrong, recursion, last, unhooked, trips = [], [], [], [], [], []
    for name, row in ACTIVATIONS.items():
        for n in widths:
            net = mlp(n, row, generator=run.generator)
            theta = flatten({k: p.detach() for k, p in net.named_parameters()})
            shape = Architecture(n, row)
            out = net(x[n[0]]).detach()
            compared.append(gap(shape.realize(theta, x[n[0]]), out))
            if name == "logistic":
                wrong.append(gap(row(shape.realize(theta, x[n[0]])), out))
            values = layer_outputs(net, x[n[0]])
            before = list(shape.preactivations(theta, x[n[0]]))
            recursion += [gap(values[str(2 * i)], phi) for i, phi in enumerate(before)]
            recursion += [gap(values[str(2 * i + 1)], row(phi)) for i, phi in enumerate(before[:-1])]
            last.append(gap(list(values.values())[-1], out))
            unhooked.append(sum(len(m._forward_hooks) for m in net.modules()))
            trips.append(gap(shape.join(shape.layers(theta)), theta))
            trips.append(gap(flatten(unflatten(theta, dict(net.named_parameters()))), theta))
    says = run.states(
        ["A-08", "N-22"], r"\Phi^{(\ell+1)}=W^{(\ell+1)}\varrho(\Phi^{(\ell)})+b^{(\ell+1)}\text{ is nn.Sequential}"
    )
    says.equal(compared, within=1e-13, where="every activation of the table, three architectures")
    says.fails("an activation on the last layer too", wrong)
    run.states(
        ["N-22", "A-08"], r"x^\ell=F^\ell(x^{\ell-1});\ x^L=\text{output; recorded values of every layer}"
    ).equal([*recursion, *last], within=1e-13)
    run.states("N-22", r"\text{hooks left behind by the recorder}").equal(unhooked)
    run.states("A-08", r"\theta\mapsto((W^{(\ell)},b^{(\ell)}))_\ell\mapsto\theta\text{ is the identity}").equal(trips)
    single = mlp([5, 3], generator=run.generator)
    weight, bias = linear_layer(single, 0).weight, linear_layer(single, 0).bias
    run.states("A-08", r"L=1:\ \Phi(x)=Wx+b").equal(gap(single(x[5]), x[5] @ weight.T + bias), within=1e-14)
    run.refutes(
        "bias-of-a-layer-has-input-length",
        r"W\in\mathbb R^{m\times n}\Rightarrow b\in\mathbb R^n:\ \text{length of }b,\ n=5,\ m=3",
    ).equal(len(bias), 5, where="a bias of length 5 cannot be added to Wx, which has 3 entries")
    hypothesis_sets(run, x[2], hypotheses)
    generalized_linear(run, x[3])


def hypothesis_sets(run: Run, x: Tensor, hypotheses: int) -> None:
    """A-13: the functions of one architecture, and the classifiers made of them."""
    shape = Architecture((2, 6, 1), activation("tanh"))
    thetas = run.randn(hypotheses, shape.parameters)
    together = shape.realize(thetas, x)
    alone = torch.stack([shape.network(theta)(x).detach() for theta in thetas])
    run.states(
        "A-13", r"\mathcal F_a=\{\Phi_a(\cdot,\theta)\}:\ \text{many }\theta\text{ at once as one by one}"
    ).equal(gap(together, alone), within=1e-13)
    edge = torch.tensor([[-1e-300], [0.0], [1e-300]], dtype=torch.float64)
    signs_there = torch.tensor([-1, 1, 1])
    says = run.states(
        "A-13", r"\mathrm{sgn}(-\varepsilon)=-1,\ \mathrm{sgn}(0)=1,\ \mathrm{sgn}(\varepsilon)=1:\ \text{exceptions}"
    )
    says.equal(int((decide(edge) != signs_there).sum()))
    says.fails("torch.sign, which is 0 at 0", int((torch.sign(edge[:, 0]) != signs_there).sum()))
    signs = shape.classify(thetas, x)
    pair = torch.cat([torch.zeros_like(together), together], dim=-1)
    says = run.states("A-13", r"\arg\max(0,u)=2\text{nd}\iff\mathrm{sgn}(u)=1\ (u\ne0):\ \text{disagreements}")
    says.equal(
        int((2 * decide(pair) - 1 != signs)[together[..., 0] != 0].sum()),
        where="at u = 0 the argmax takes the first of two equals, while sgn(0) = 1",
    )
    says.fails("the argmax of (0, |u|)", int((2 * decide(pair.abs()) - 1 != signs).sum()))


def generalized_linear(run: Run, x: Tensor) -> None:
    """S-04: layers as generalized linear models, one alone, and what composing them adds."""
    net = mlp([3, 7, 5, 2], "tanh", output="logistic", generator=run.generator)
    value = x
    for model in generalized_linear_models(net):
        value = model(value)
    run.states(["S-04", "N-22"], r"\hat\phi(x;\theta)=f^{(L)}(\dots f^{(1)}(x,\theta^{(1)})\dots,\theta^{(L)})").equal(
        gap(value, net(x)), within=1e-14
    )
    labels = (x @ run.randn(3) + 0.5 * run.randn(len(x)) > 0).numpy()
    fitted = LogisticRegression().fit(x.numpy(), labels)
    unit = mlp([3, 1], output="logistic")
    state = {"0.weight": torch.tensor(fitted.coef_), "0.bias": torch.tensor(fitted.intercept_)}
    unit.load_state_dict(state)
    run.states("S-04", r"L=1\text{ with a logistic output is logistic regression (scikit-learn)}").equal(
        gap(unit(x)[:, 0], torch.tensor(fitted.predict_proba(x.numpy())[:, 1])), within=1e-12
    )
    t = torch.linspace(-1, 1, 60, dtype=torch.float64).unsqueeze(1)
    curve = torch.sin(4 * t) + 0.3 * t
    affine = homogeneous(t)
    line = affine @ torch.linalg.lstsq(affine, curve).solution
    best = float((line - curve).square().mean())
    fits = {name: fit_curve(run, name, t, curve) for name in ("tanh", "linear")}
    errors = {name: float((f - curve).square().mean()) for name, f in fits.items()}
    says = run.states("S-04", r"\text{composed models fit a curve better than the best affine function}")
    # from one start a unit may end as straight as the line, which is a critical point as well
    single = float((fit_curve(run, "tanh", t, curve, widths=(1, 1, 1), starts=5) - curve).square().mean())
    says.below(
        [errors["tanh"], single],
        best * (1 - 1e-6),
        where="mean squared error on 60 samples of sin 4t + 0.3t; widths 1, 12, 12, 1, and a single unit",
    )
    says.fails("identity as activation", errors["linear"])
    run.curves(
        "curve",
        t[:, 0],
        {f"{name} network": f[:, 0] for name, f in fits.items()},
        {"samples": curve[:, 0], "least-squares line": line[:, 0]},
        axes=("t", "value"),
        caption="A network of two hidden layers fits the samples; without activations it can only "
        "be the least-squares line.",
    )


@lab(
    "bias-removal",
    room="nets",
    covers=["A-11"],
    title="Biases can be carried by a constant unit, if the activation lets the constant through",
    errata=["bias-removal-needs-fixed-point"],
    full={"samples": 10_000},
)
def bias_removal(run: Run, samples: int = 100) -> None:
    """Append 1 to the input and carry it through every layer: then no layer needs a bias.

    The printed construction supposes that the carrying unit stays 1, i.e. ϱ(1) = 1. For every
    activation of the table it is compared with the original network, next to the general
    version, which divides by the constant that really arrives. The table lists both errors.

    Args:
        samples: random inputs.
    """
    x = run.randn(samples, 3)
    rows = []
    for name, row in ACTIVATIONS.items():
        net = mlp([3, 6, 5, 2], row, generator=run.generator)
        out = net(x).detach()
        general = absorb_biases(net)
        layers = [(m.weight.detach(), m.bias.detach()) for m in net if isinstance(m, nn.Linear)]
        value = homogeneous(x)
        for i, matrix in enumerate(augment(layers)):
            value = value @ matrix.T
            if i < len(layers) - 1:
                value = row(value)
        one = float(row(torch.ones(1, dtype=torch.float64)))
        left = sum(m.bias is not None for m in general.modules() if isinstance(m, nn.Linear))
        rows.append((name, one, gap(value, out), gap(general(x), out), left))
    faithful = [r for r in rows if math.isclose(r[1], 1.0)]
    others = [r for r in rows if not math.isclose(r[1], 1.0)]
    says = run.states(
        "A-11", r"\varrho(1)=1:\ \text{the printed network on }(x,1)\text{ equals the network with biases}"
    )
    says.equal([r[2] for r in faithful], within=1e-12, where=", ".join(r[0] for r in faithful))
    says.fails("ϱ(1) ≠ 1: " + ", ".join(r[0] for r in others), [r[2] for r in others])
    run.states("A-11", r"\text{rows }(0\ \ c/v),\ \text{columns }b/v,\ v=\varrho(c)\ne0:\ \text{equal always}").equal(
        [r[3] for r in rows], within=1e-12
    )
    run.states("A-11", r"\text{biases left}").equal([r[4] for r in rows])
    logistic = next(r for r in rows if r[0] == "logistic")
    run.refutes(
        "bias-removal-needs-fixed-point",
        r"\text{any network can be written without biases as printed: the logistic network}",
    ).equal(logistic[2], within=1e-12, where="ϱ(1) = 0.731, so 0.731 arrives where 1 was supposed to")
    run.table(
        "carried-constants",
        ["activation", "ϱ(1)", "error as printed", "error in general"],
        [r[:4] for r in rows],
        caption="Largest difference from the network with biases, widths 3, 6, 5, 2.",
    )


def fit_curve(
    run: Run, name: str, t: Tensor, curve: Tensor, widths: tuple[int, ...] = (1, 12, 12, 1), starts: int = 1
) -> Tensor:
    """Train a small network on the samples by L-BFGS; its values there, from the best of the starts."""
    nets = [mlp(list(widths), name, generator=run.generator) for _ in range(starts)]
    for net in nets:
        optimizer = torch.optim.LBFGS(net.parameters(), max_iter=150, line_search_fn="strong_wolfe")

        def loss(net: nn.Module = net, optimizer: torch.optim.Optimizer = optimizer) -> Tensor:
            optimizer.zero_grad()
            value: Tensor = (net(t) - curve).square().mean()
            value.backward()  # type: ignore[no-untyped-call]
            return value

        optimizer.step(loss)  # type: ignore[no-untyped-call]
    with torch.no_grad():
        outs: list[Tensor] = [net(t) for net in nets]
    return min(outs, key=lambda out: float((out - curve).square().mean()))

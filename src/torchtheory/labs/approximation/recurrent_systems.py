"""The shallow recurrent network: torch's own, unrolled, differentiated, without biases."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from torchtheory.approximation.architectures.recurrent_systems import (
    ShallowRNN,
    constant_neuron,
    rnn_with_bias,
    shallow_rnn,
)
from torchtheory.labs.engine import COLORS, Run, lab

ACTIVATIONS = ("tanh", "relu", "logistic", "softsign")


@lab(
    "recurrent-systems",
    room="approximation",
    covers=["X-89", "X-93"],
    title="A recurrent network is a system, a deep network, and a map from sequences to vectors",
    errata=["recurrent-spaces-swapped", "recurrent-matrices-transposed"],
    full={"states": 24, "time": 40, "networks": 8},
    least={"time": 3},
)
def recurrent_systems(
    run: Run, states: int = 6, inputs: int = 3, outputs: int = 2, time: int = 9, networks: int = 3
) -> None:
    """Random shallow recurrent networks in the three readings of the definitions.

    The recursion is compared with torch's `nn.RNN`, whose biases move to a neuron that never
    changes; with the feed-forward network of as many layers as there are steps, whose gradients
    add up to the recurrent one; and with the map from sequences of any length, the empty one
    included. Look at which inputs an output has seen: those before it, and not its own.

    Args:
        states: numbers in the state of a network.
        inputs: numbers per step that go in.
        outputs: numbers per step that come out.
        time: steps.
        networks: random networks.
    """
    torchs_own(run, states, inputs, outputs, time, networks)
    constant(run)
    unrolled(run, states, inputs, outputs, time, networks)
    through_time(run, states, inputs, outputs, time)
    influence = causality(run, states, inputs, outputs, time)
    sequences(run, states, inputs, outputs, time, networks)
    printed_shapes(run, states, inputs, outputs)
    run.figure(
        "unrolled",
        lambda axes: plot(axes, influence),
        grid=(1, 2),
        size=(10, 3.4),
        caption="Left: the recursion unrolled, with the same weights in every column. Right: how "
        "strongly the output at time t reacts to the input at time s; its own column is empty.",
    )


def draw(run: Run, n: int, m: int, p: int, nonlinearity: str) -> ShallowRNN:
    """Random matrices of moderate size, and a random initial state."""
    made = run.randn(n, n) / n**0.5, run.randn(n, m) / m**0.5, run.randn(p, n) / n**0.5
    return ShallowRNN(*made, nonlinearity, initial=run.randn(n))


def torchs_own(run: Run, n: int, m: int, p: int, time: int, networks: int) -> None:
    """The recursion is nn.RNN; its biases need a constant neuron."""
    theirs, ours, dropped = [], [], []
    for k in range(networks):
        for kind in ("tanh", "relu"):
            rnn = nn.RNN(m, n, nonlinearity=kind, batch_first=True, bias=k > 0).double()
            readout = nn.Linear(n, p, bias=k > 0).double()
            with torch.no_grad():
                for parameter in [*rnn.parameters(), *readout.parameters()]:
                    parameter.copy_(run.randn(*parameter.shape) / n**0.5)
                x = run.randn(5, time, m)
                theirs.append(readout(rnn(x)[0]).flatten())
                ours.append(shallow_rnn(rnn, readout).run(x).immediate.flatten())
                held = dict(rnn.named_parameters())
                bare = ShallowRNN(held["weight_hh_l0"], held["weight_ih_l0"], readout.weight, kind)
                dropped.append(bare.run(x).immediate.flatten())
    says = run.states("X-89", r"h_t=\sigma(Ah_{t-1}+Bx_t),\ y_t=Ch_t \text{ with a constant neuron is torch's nn.RNN}")
    says.equal(torch.cat(ours), torch.cat(theirs), 1e-11)
    says.fails("the biases dropped instead of carried", torch.cat(dropped))


def constant(run: Run, steps: int = 300) -> None:
    """A neuron that feeds itself stays where it is, for every activation that is not 0."""
    names = [*ACTIVATIONS, "arctan", "softplus", "elu", "gaussian"]
    found, kept, decayed = [], [], []
    for name in names:
        weight, value = constant_neuron(name)
        found.append((name, weight, value))
        kept.append(self_feeding(name, weight, value, steps))
        decayed.append(self_feeding(name, 1.0, 1.0, steps))
    says = run.states("X-89", r"v=\sigma(av) \text{ carries biases: } h_t/v \text{ after " + str(steps) + " steps}")
    says.equal([k / v for k, (*_, v) in zip(kept, found, strict=True)], 1.0, 1e-9)
    says.fails("weight 1 and initial value 1 for every activation", decayed)
    run.table(
        "constant-neurons",
        ["activation", "weight on itself", "value"],
        found,
        caption="The neuron that replaces the biases",
    )


def self_feeding(name: str, weight: float, value: float, steps: int) -> float:
    one = torch.ones(1, 1, dtype=torch.float64)
    lone = ShallowRNN(weight * one, one, one, name, initial=value * one[0])
    with torch.no_grad():
        return float(lone(torch.zeros(steps, 1, dtype=torch.float64)))


def unrolled(run: Run, n: int, m: int, p: int, time: int, networks: int) -> None:
    """As many layers as steps; each with the same weights."""
    recursion, feedforward, untied = [], [], []
    with torch.no_grad():
        for name in ACTIVATIONS:
            for k in range(networks):
                length = 1 + k * (time - 1) // max(1, networks - 1)
                rnn = draw(run, n, m, p, name)
                x = run.randn(4, length, m)
                joined = torch.cat([rnn.initial.expand(4, n), x.flatten(1)], dim=1)
                recursion.append(rnn.run(x).outputs.flatten())
                net = rnn.unroll(length)
                feedforward.append(net(joined).flatten())
                first = net.layers[0]
                assert isinstance(first, nn.Linear)
                first.weight.copy_(run.randn(*first.weight.shape) / n**0.5)
                untied.append(net(joined).flatten())
    says = run.states("X-89", r"\text{the feed-forward network of } T \text{ tied layers gives } y_0,\dots,y_T")
    says.equal(torch.cat(feedforward), torch.cat(recursion), 1e-12)
    says.fails("the first layer has weights of its own", torch.cat(untied))


def through_time(run: Run, n: int, m: int, p: int, time: int) -> None:
    """The gradient of the shared weights is the sum over the layers."""
    shared, summed, last = [], [], []
    for name in ACTIVATIONS:
        rnn = draw(run, n, m, p, name)
        x = run.randn(6, time, m)
        target = run.randn(6, time + 1, p)
        joined = torch.cat([rnn.initial.expand(6, n), x.flatten(1)], dim=1)
        loss = (rnn.run(x).outputs - target).square().mean()
        both = torch.autograd.grad(loss, [rnn.A, rnn.B])
        net = rnn.unroll(time)
        layers = [layer.weight for layer in net.layers if isinstance(layer, nn.Linear)]
        parts = torch.autograd.grad((net(joined) - target).square().mean(), layers)
        shared.append(torch.cat(both, dim=1).flatten())
        summed.append(torch.stack(parts).sum(0).flatten())
        last.append(parts[-1].flatten())
    says = run.states("X-89", r"\partial L/\partial(A,B)=\sum_{t=1}^T\partial L/\partial W_t")
    says.equal(torch.cat(summed), torch.cat(shared), 1e-12)
    says.fails("the last layer's gradient alone", torch.cat(last))


def causality(run: Run, n: int, m: int, p: int, time: int) -> Tensor:
    """Which inputs an output has seen, by its derivatives `[T + 1, T]`."""
    rnn = draw(run, n, m, p, "tanh")
    x = run.randn(time, m)
    jacobian = torch.func.jacrev(lambda v: rnn.run(v).outputs)(x)
    sizes: Tensor = torch.linalg.matrix_norm(jacobian.detach().permute(0, 2, 1, 3), ord=2)
    t, s = torch.arange(time + 1)[:, None], torch.arange(time)
    own = torch.cat([sizes[k + 1, k].reshape(1) for k in range(time)])
    says = run.states("X-89", r"h_{t+1}=f(h_t,x_t):\ \partial y_t/\partial x_s=0 \text{ for } s\ge t")
    says.equal(sizes[(s >= t).expand_as(sizes)])
    says.fails("the other convention, $h_t=f(h_{t-1},x_t)$, at s = t", own)
    run.states("X-89", r"\|\partial y_t/\partial x_s\|>0 \text{ for } s<t").above(sizes[(s < t).expand_as(sizes)], 0.0)
    run.states("X-89", r"h_t=f(h_{t-1},x_t):\ \|\partial y_t/\partial x_s\|>0 \text{ for } s\le t").above(
        sizes[1:][(s <= t[:-1]).expand(time, time)], 0.0, where="the same outputs, numbered one earlier"
    )
    return sizes


def sequences(run: Run, n: int, m: int, p: int, time: int, networks: int) -> None:
    """From sequences of any length to vectors."""
    last, encoded, backwards, joint, split = [], [], [], [], []
    empty, initial, elsewhere = [], [], []
    with torch.no_grad():
        for name in ACTIVATIONS[: max(2, networks)]:
            rnn = draw(run, n, m, p, name)
            empty.append(rnn.encode([]))
            initial.append(rnn.C @ rnn.initial)
            elsewhere.append(ShallowRNN(rnn.A, rnn.B, rnn.C, name).encode([]))
            x = run.randn(7, time, m)
            together = rnn.run(x).outputs  # all sequences and all times at once
            for length in range(2, time + 1):
                for k in range(3):
                    last.append(together[k, length])
                    encoded.append(rnn.encode(list(x[k, :length])))
                    backwards.append(rnn.encode(x[k, :length].flip(0)))
                    joint.append(rnn.encode(x[k, :length]))
                    middle = rnn.run(x[k, : length // 2]).states[-1]
                    later = ShallowRNN(rnn.A, rnn.B, rnn.C, name, initial=middle)
                    split.append(later.encode(x[k, length // 2 : length]))
    says = run.states(
        ["X-89", "X-93"], r"C\tilde f_{h_0}([x_1,\dots,x_i])=y_i, \text{ the last output of the system in a batch}"
    )
    says.equal(torch.cat(encoded), torch.cat(last), 1e-12)
    says.fails("the recursion begun at the other end", torch.cat(backwards))
    says = run.states("X-93", r"C\tilde f_{h_0}([\,])=Ch_0")
    says.equal(torch.cat(empty), torch.cat(initial), 1e-14)
    says.fails("the initial state 0 instead", torch.cat(elsewhere))
    run.states("X-93", r"\tilde f_{h_0}(uv)=\tilde f_{\tilde f_{h_0}(u)}(v) \text{ for a sequence cut in two}").equal(
        torch.cat(split), torch.cat(joint), 1e-12
    )
    lengths = list(range(time + 1))
    one = torch.ones(1, 1, dtype=torch.float64)
    counter = rnn_with_bias(one, 0 * one, one, one[0], "relu")
    forgetful = ShallowRNN(one, 0 * one, one, "relu")
    says = run.states(
        ["X-89", "X-93"], r"\text{two ReLU neurons, one of them constant, give the length of every sequence}"
    )
    says.equal([counter.encode(run.randn(i, 1)).item() for i in lengths], lengths)
    says.fails("one neuron and no bias", [forgetful.encode(run.randn(i, 1)).item() for i in lengths])


def printed_shapes(run: Run, n: int, m: int, p: int) -> None:
    """What the definition prints about its spaces, held against a network that runs."""
    rnn = draw(run, n, m, p, "tanh")
    path = rnn.run(run.randn(4, m)).states
    run.refutes("recurrent-spaces-swapped", r"h_t\in\mathbb R^m").equal(
        path.shape[-1], m, where=f"n = {n} states and m = {m} inputs"
    )
    defined = []
    for matrix, vector in (((m, n), m), ((n, p), n)):
        try:
            torch.mv(run.randn(*matrix), run.randn(vector))
            defined.append(1)
        except RuntimeError:
            defined.append(0)
    run.refutes(
        "recurrent-matrices-transposed",
        r"B\in\mathbb R^{m\times n},\ C\in\mathbb R^{n\times p}: \text{ products defined of 2}",
    ).equal(sum(defined), 2, where=f"n = {n}, m = {m}, p = {p}")


def plot(axes: Any, influence: Tensor) -> None:
    drawing, heat = axes[0]
    columns = 4
    for t in range(columns):
        for height, text, color in ((0, f"$x_{t}$", 2), (1, f"$h_{t}$", 0), (2, f"$y_{t}$", 1)):
            drawing.text(
                1.6 * t,
                height,
                text,
                ha="center",
                va="center",
                fontsize=12,
                bbox={"boxstyle": "circle", "facecolor": "white", "edgecolor": COLORS[color]},
            )
        arrow(drawing, (1.6 * t, 1.3), (1.6 * t, 1.7), "C", (0.1, 0))
        if t + 1 < columns:
            arrow(drawing, (1.6 * t + 0.32, 1), (1.6 * t + 1.28, 1), "A", (0, 0.1))
            arrow(drawing, (1.6 * t + 0.25, 0.2), (1.6 * t + 1.35, 0.8), "B", (0.12, -0.12))
    drawing.set(xlim=(-0.5, 1.6 * (columns - 1) + 0.5), ylim=(-0.4, 2.4))
    drawing.set_title("the same A, B, C at every step")
    drawing.set_axis_off()
    shown = influence.log10()
    image = heat.imshow(shown.where(torch.isfinite(shown), torch.nan), cmap="viridis", aspect="auto")
    heat.figure.colorbar(image, ax=heat, label=r"$\log_{10}\|\partial y_t/\partial x_s\|$")
    heat.grid(False)
    heat.set(xlabel="input at time s", ylabel="output at time t", title="only s < t is seen")


def arrow(
    axes: Any,
    start: tuple[float, float],
    end: tuple[float, float],
    text: str,
    shift: tuple[float, float],
) -> None:
    axes.annotate("", xy=end, xytext=start, arrowprops={"arrowstyle": "->", "color": "0.3"})
    middle = (start[0] + end[0]) / 2 + shift[0], (start[1] + end[1]) / 2 + shift[1]
    axes.text(*middle, text, ha="center", va="center", fontsize=9, style="italic")

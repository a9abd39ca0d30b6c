r"""Recurrent networks as dynamical systems: run, encode, unroll.

A system of $n$ states, $m$ inputs and $p$ outputs is

$$
h_{t+1}=f(h_t,x_t),\qquad y_t=g(h_t),\qquad h_t\in\mathbb R^n,\ x_t\in\mathbb R^m,\
y_t\in\mathbb R^p,
$$

and the shallow recurrent network is the one with $f(h,x)=\sigma(Ah+Bx)$ and
$g(h)=Ch$, where $A$ is `[n, n]`, $B$ is `[n, m]` and $C$ is
`[p, n]`. It is torch's `nn.RNN` without biases, for any activation; a bias becomes a weight on
a neuron that never changes. Source: Mathematical Aspects of Deep Learning, section 3.8.3.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from torchtheory.core.checks import all_finite, described, whole_number
from torchtheory.core.errors import InvalidInput, ShapeMismatch, UnsupportedModel
from torchtheory.nets.activations.table import Activation, as_layer, nth_derivative
from torchtheory.nets.feedforward import dense

Nonlinearity = str | Activation | nn.Module | type[nn.Module] | Callable[..., Any]


@dataclass(frozen=True, slots=True)
class Trajectory:
    """What a system did with a sequence of `T` inputs.

    Attributes:
        states: `[..., T + 1, n]`, from the initial state on.
        outputs: `[..., T + 1, p]`; output `t` has seen the inputs before `t`, not `x_t`.
    """

    states: Tensor
    outputs: Tensor

    @property
    def immediate(self) -> Tensor:
        r"""Outputs `[..., T, p]` of the convention $h_t=f(h_{t-1},x_t)$, as torch has it:
        output $t$ has seen $x_t$."""
        return self.outputs[..., 1:, :]


@dataclass(frozen=True, slots=True)
class DynamicalSystem:
    r"""A time-discrete system $\Sigma=(n,m,p,f,g)$.

    Attributes:
        states, inputs, outputs: $n,m,p$.
        step: $f$, from `[..., n]` and `[..., m]` to `[..., n]`.
        read: $g$, from `[..., n]` to `[..., p]`.

    >>> counter = DynamicalSystem(1, 1, 1, lambda h, x: h + 1, lambda h: h)
    >>> counter.run(torch.zeros(1), torch.zeros(3, 1)).outputs.flatten().tolist()
    [0.0, 1.0, 2.0, 3.0]
    """

    states: int
    inputs: int
    outputs: int
    step: Callable[[Tensor, Tensor], Tensor]
    read: Callable[[Tensor], Tensor]

    def run(self, initial: Tensor, inputs: Tensor) -> Trajectory:
        """Feed a sequence, or many of one length.

        Args:
            initial: `[n]` or `[..., n]`.
            inputs: `[T, m]` or `[..., T, m]`; `T` may be 0.

        Time: `T` steps one after the other; the leading dimensions run together.
        """
        h = _initial(initial, inputs, self.states, self.inputs)
        states = [h]
        for x in inputs.unbind(-2):
            h = self.step(h, x)
            if h.shape != states[0].shape:
                raise ShapeMismatch(
                    f"a step must keep the state's shape {list(states[0].shape)}, "
                    f"not make it {list(h.shape)}"
                )
            states.append(h)
        path = torch.stack(states, dim=-2)
        outputs = self.read(path)
        if outputs.shape != (*path.shape[:-1], self.outputs):
            raise ShapeMismatch(
                f"the system reads {self.outputs} outputs, and gave {list(outputs.shape)} "
                f"for states {list(path.shape)}"
            )
        return Trajectory(path, outputs)


class ShallowRNN(nn.Module):
    r"""The shallow recurrent network $f(h,x)=\sigma(Ah+Bx)$, $g(h)=Ch$.

    Args:
        A: `[n, n]`, from state to state.
        B: `[n, m]`, from input to state.
        C: `[p, n]`, from state to output.
        nonlinearity: $\sigma$, a name of the table of activations, a module or a function.
        initial: $h_0$, `[n]`; 0 unless told.

    Calling it maps `[..., T, m]` to the last output `[..., p]`: from sequences to vectors.

    >>> one = torch.ones(1, 1, dtype=torch.float64)
    >>> total = ShallowRNN(one, one, one, "relu")
    >>> total.encode([torch.tensor([2.0]), torch.tensor([3.0])]).item(), total.encode([]).item()
    (5.0, 0.0)
    """

    initial: Tensor

    def __init__(
        self,
        A: Tensor,
        B: Tensor,
        C: Tensor,
        nonlinearity: Nonlinearity = "tanh",
        *,
        initial: Tensor | None = None,
    ) -> None:
        super().__init__()
        if any(matrix.ndim != 2 for matrix in (A, B, C)):
            raise ShapeMismatch(
                f"A, B and C are matrices: [n, n], [n, m] and [p, n], not {list(A.shape)}, "
                f"{list(B.shape)} and {list(C.shape)}"
            )
        n = len(A)
        if A.shape[1] != n or len(B) != n or C.shape[1] != n:
            raise ShapeMismatch(
                f"for n states A is [n, n], B is [n, m] and C is [p, n], not {list(A.shape)}, "
                f"{list(B.shape)} and {list(C.shape)}"
            )
        start = A.new_zeros(n) if initial is None else initial.detach().to(A)
        if start.shape != (n,):
            raise ShapeMismatch(f"the initial state is [{n}], not {list(start.shape)}")
        for part, name in ((A, "A"), (B, "B"), (C, "C"), (start, "the initial state")):
            all_finite(part, name)
        self.A, self.B, self.C = (nn.Parameter(part.detach().to(A).clone()) for part in (A, B, C))
        self.nonlinearity = as_layer(nonlinearity)
        self.register_buffer("initial", start.clone())

    @property
    def system(self) -> DynamicalSystem:
        """The network as a dynamical system."""
        n, m = self.B.shape
        return DynamicalSystem(n, m, len(self.C), self.step, self.read)

    def step(self, h: Tensor, x: Tensor) -> Tensor:
        r"""$\sigma(Ah+Bx)$."""
        made: Tensor = self.nonlinearity(h @ self.A.T + x @ self.B.T)
        return made

    def read(self, h: Tensor) -> Tensor:
        """$Ch$."""
        return h @ self.C.T

    def run(self, inputs: Tensor, initial: Tensor | None = None) -> Trajectory:
        """States and outputs for inputs `[..., T, m]`, from the network's own initial state
        unless another is given."""
        return self.system.run(self.initial if initial is None else initial, inputs)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.run(inputs).outputs[..., -1, :]

    def encode(self, sequence: Tensor | Sequence[Tensor]) -> Tensor:
        r"""$C\tilde f_{h_0}([x_1,\dots,x_i])$, `[p]`, for a sequence of any length.

        $\tilde f_{h_0}([\,])=h_0$ and
        $\tilde f_{h_0}([x_1,\dots,x_i])= f(\tilde f_{h_0}([x_1,\dots,x_{i-1}]),x_i)$.

        Args:
            sequence: `[i, m]`, or a list of `i` tensors `[m]`, which may be empty.
        """
        h = self.initial
        for x in sequence:
            if x.shape != (self.B.shape[1],):
                raise ShapeMismatch(
                    f"every element of the sequence is [{self.B.shape[1]}], not {list(x.shape)}"
                )
            h = self.step(h, x.to(h))
        return self.read(h)

    def unroll(self, time: int) -> Unrolled:
        """The feed-forward network of `time` layers that computes the same; see
        `Unrolled`."""
        return Unrolled(self, time)


class Unrolled(nn.Module):
    r"""A recurrent network in time $T$ as a feed-forward network of $T$ layers.

    Layer $t$ is $h_t=\sigma(W_t(h_{t-1},x_{t-1}))$, an `nn.Linear` of its own with a
    copy of $(A,B)$; the input is $(h_0,x_0,\dots,x_{T-1})$ as one vector, the output
    all of $y_0,\dots,y_T$. The recurrent network's gradient is the sum over the copies.

    >>> net = ShallowRNN(torch.eye(2), torch.ones(2, 1), torch.ones(1, 2), "relu").unroll(3)
    >>> net(torch.zeros(5, 2 + 3)).shape
    torch.Size([5, 4, 1])
    """

    def __init__(self, rnn: ShallowRNN, time: int) -> None:
        super().__init__()
        whole_number(time, "time", least=0)
        self.states, self.inputs = rnn.B.shape
        joined = torch.cat([rnn.A.detach(), rnn.B.detach()], dim=1)
        self.layers = nn.ModuleList(dense(joined) for _ in range(time))
        self.nonlinearity = rnn.nonlinearity
        self.readout = dense(rnn.C.detach())

    def forward(self, x: Tensor) -> Tensor:
        """From `[batch, n + T m]` to `[batch, T + 1, p]`."""
        sizes = [self.states] + [self.inputs] * len(self.layers)
        if x.ndim != 2 or x.shape[1] != sum(sizes):
            raise ShapeMismatch(f"the input is [batch, {sum(sizes)}], not {list(x.shape)}")
        h, *fed = torch.split(x, sizes, dim=1)
        outputs = [self.readout(h)]
        for layer, entry in zip(self.layers, fed, strict=True):
            h = self.nonlinearity(layer(torch.cat([h, entry], dim=1)))
            outputs.append(self.readout(h))
        return torch.stack(outputs, dim=1)


def constant_neuron(nonlinearity: Nonlinearity) -> tuple[float, float]:
    r"""A weight $a$ and a value $v\ne0$ with $\sigma(av)=v$.

    A neuron that starts at $v$ and has the weight $a$ on itself stays there, and
    carries the biases $b$ of the others as weights $b/v$. Where $\sigma(0)\ne0$
    it needs no weight; otherwise $v=\sigma(s)$ and $a=s/v$ for the $s$ whose
    fixed point damps rounding most, $|a\sigma'(s)|$ least.

    >>> constant_neuron("relu"), constant_neuron("logistic")
    ((1.0, 1.0), (0.0, 0.5))
    """
    sigma = as_layer(nonlinearity)
    places = torch.tensor([0.0, 1.0, 2.0, 3.0, -1.0, -2.0, -3.0], dtype=torch.float64)
    values = sigma(places).detach()
    if float(values[0]) != 0:
        return 0.0, float(values[0])
    slopes = nth_derivative(sigma, places, 1)
    # a saturated unit would be the most stable one, but its weight grows with s: up to 3 is enough
    damping = torch.where(values == 0, torch.inf, (places / values * slopes).abs())
    best = int(damping.argmin())
    if not bool(torch.isfinite(damping[best])):
        raise InvalidInput("the activation is 0 wherever looked at: no neuron stays away from 0")
    return float(places[best] / values[best]), float(values[best])


def rnn_with_bias(
    A: Tensor,
    B: Tensor,
    C: Tensor,
    bias: Tensor,
    nonlinearity: Nonlinearity = "tanh",
    *,
    read_bias: Tensor | None = None,
    initial: Tensor | None = None,
) -> ShallowRNN:
    r"""$h'=\sigma(Ah+Bx+b)$, $y=Ch+c$ as a shallow RNN with one more neuron.

    The last of the $n+1$ states is the constant neuron of `constant_neuron`.

    Args:
        bias: $b$, `[n]`.
        read_bias: $c$, `[p]`; 0 unless told.
        initial: `[n]`, without the constant neuron.

    >>> one = torch.ones(1, 1, dtype=torch.float64)
    >>> counter = rnn_with_bias(one, 0 * one, one, one[0], "relu")
    >>> counter(torch.zeros(7, 1, dtype=torch.float64)).item()
    7.0
    """
    n, p = len(A), len(C)
    c = C.new_zeros(p) if read_bias is None else read_bias
    start = A.new_zeros(n) if initial is None else initial
    if bias.shape != (n,) or c.shape != (p,) or start.shape != (n,):
        raise ShapeMismatch(
            f"the biases are [{n}] and [{p}] and the initial state [{n}], not {list(bias.shape)}, "
            f"{list(c.shape)} and {list(start.shape)}"
        )
    weight, value = constant_neuron(nonlinearity)
    last = torch.cat([A.new_zeros(n), A.new_tensor([weight])])
    return ShallowRNN(
        torch.cat([torch.cat([A, bias.unsqueeze(1).to(A) / value], dim=1), last.unsqueeze(0)]),
        torch.cat([B, B.new_zeros(1, B.shape[1])]),
        torch.cat([C, c.unsqueeze(1).to(C) / value], dim=1),
        nonlinearity,
        initial=torch.cat([start.to(A), A.new_tensor([value])]),
    )


def shallow_rnn(rnn: nn.RNN, readout: nn.Linear) -> ShallowRNN:
    """The bias-free shallow network that computes what torch's `nn.RNN` and a readout compute.

    Biases, also the readout's, move to a constant neuron. Neither module is changed.

    >>> made = shallow_rnn(nn.RNN(2, 3), nn.Linear(3, 1))
    >>> made.A.shape, made.B.shape, made.C.shape
    (torch.Size([4, 4]), torch.Size([4, 2]), torch.Size([1, 4]))
    """
    if not isinstance(rnn, nn.RNN) or rnn.num_layers != 1 or rnn.bidirectional:
        raise UnsupportedModel(
            "a shallow network is an nn.RNN of one layer and one direction (given: "
            f"{described(rnn)})"
        )
    if not isinstance(readout, nn.Linear) or readout.in_features != rnn.hidden_size:
        raise UnsupportedModel(f"the readout is an nn.Linear of {rnn.hidden_size} inputs")
    held = {name: p.detach() for name, p in rnn.named_parameters()}
    A, B, C = held["weight_hh_l0"], held["weight_ih_l0"], readout.weight.detach()
    sigma = str(rnn.nonlinearity)
    bias = held["bias_hh_l0"] + held["bias_ih_l0"] if "bias_hh_l0" in held else None
    read_bias = dict(readout.named_parameters()).get("bias")
    if bias is None and read_bias is None:
        return ShallowRNN(A, B, C, sigma)
    return rnn_with_bias(
        A,
        B,
        C,
        A.new_zeros(len(A)) if bias is None else bias,
        sigma,
        read_bias=None if read_bias is None else read_bias.detach(),
    )


def _initial(initial: Tensor, inputs: Tensor, n: int, m: int) -> Tensor:
    """The initial state for every sequence, once both are known to have the right shapes."""
    if inputs.ndim < 2 or inputs.shape[-1] != m:
        raise ShapeMismatch(f"inputs are [..., T, {m}], not {list(inputs.shape)}")
    if initial.ndim < 1 or initial.shape[-1] != n:
        raise ShapeMismatch(f"an initial state is [..., {n}], not {list(initial.shape)}")
    all_finite(inputs, "inputs")
    all_finite(initial, "initial")
    leading = inputs.shape[:-2]
    if initial.ndim > 1 and leading and initial.shape[:-1] != leading:
        raise ShapeMismatch(
            f"initial states {list(initial.shape)} and inputs {list(inputs.shape)} do not pair up"
        )
    return initial.expand(*leading, n) if leading else initial

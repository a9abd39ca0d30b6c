r"""Does an output see the future? An audit of the autoregressive property, of any model.

A model of sequences is *causal* if its output at position t depends on the inputs up to t alone,

$$
\frac{\partial y_t}{\partial x_s}=0\quad\text{and}\quad y_t(x)=y_t(x')\text{ where }x_{\le t}=
x'_{\le t},\qquad s>t.
$$

What is trained to predict the next input must be: an output that sees $x_{t+1}$ has nothing left
to predict. Source: Foundations of Deep Learning (lectures), section 10.4.5.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from torchtheory.core.checks import all_finite, as_module, described, whole_number
from torchtheory.core.errors import (
    EmptyData,
    InvalidInput,
    InvalidType,
    ShapeMismatch,
    TorchTheoryError,
    UnsupportedModel,
)
from torchtheory.core.figure import Figure, draw
from torchtheory.core.random import RandomSource, as_generator, gaussian
from torchtheory.models.evaluation import called, evaluated, same_twice
from torchtheory.models.inputs import Rows, as_mapping
from torchtheory.models.model import (
    PureFunction,
    global_randomness_kept,
    main_output,
    one_output,
)
from torchtheory.models.samples import TARGET_KEYS
from torchtheory.sequences.attention.leaks import Leak, Pair, Passes
from torchtheory.tracing.network import mapped
from torchtheory.tracing.passes import network_of
from torchtheory.tracing.recorder import input_tensors

#: Sequences that are tried, at most, and sequences evaluated at once.
SEEN, AT_ONCE = 4, 128

#: Directions of an output that derivatives are taken in, where it has more numbers than these.
PROBES = 4

#: The inputs of a dictionary that hold the sequence, in the order they are looked for.
SEQUENCE_KEYS = ("input_ids", "inputs_embeds", "tokens", "x")


@dataclass(frozen=True, slots=True)
class Causality:
    r"""What outputs see of later inputs.

    Sizes are relative to the largest output (for derivatives, to the largest one).

    Attributes:
        length: number of positions T.
        places: the positions that were replaced and differentiated, `[P]`; all where there is
            room for them.
        influence: largest change of $y_t$ when the input at a place alone is replaced, `[T, P]`.
        later: largest change of $y_t$ when all inputs behind a place are, `[T, P]`; 0 where t is
            behind it.
        gradient: root mean square over samples of $\|\partial y_t/\partial x_s\|_F$, t a place,
            `[P, T]`; None for tokens, and where there is no derivative.
        coupling: largest change of a sample's outputs when the others of its batch are replaced.
        rounding: what rounding can make; changes below it count as 0.
        leak: the operation through which later inputs come in first; None if none does, or if it
            could not be followed.
        sequences: how many were tried.
    """

    length: int
    places: Tensor
    influence: Tensor = field(repr=False)
    later: Tensor = field(repr=False)
    gradient: Tensor | None = field(repr=False)
    coupling: float
    rounding: float
    leak: Leak | None
    sequences: int

    @property
    def largest(self) -> float:
        """The largest effect of a later input on an earlier output: 0 for a causal model."""
        return max(float(m.max()) for m in self._forbidden())

    @property
    def causal(self) -> bool:
        """Whether no output was seen to depend on a later input."""
        return self.largest <= self.rounding

    @property
    def couples(self) -> bool:
        """Whether a sample's outputs depend on the other samples of its batch."""
        return self.coupling > self.rounding

    @property
    def positions(self) -> list[int]:
        """The positions whose outputs see later inputs."""
        leaking = torch.zeros(self.length, dtype=torch.bool)
        alone, after, slopes = self._forbidden()
        leaking |= (alone > self.rounding).any(1) | (after > self.rounding).any(1)
        leaking[self.places] |= (slopes > self.rounding).any(1)
        return leaking.nonzero().flatten().tolist()

    @property
    def first(self) -> int | None:
        """The first position whose output sees a later input; None if none does."""
        return next(iter(self.positions), None)

    @property
    def reach(self) -> int:
        """How many positions ahead an output was seen to look; 0 for a causal model."""
        alone, after, slopes = self._forbidden()
        t, p = (alone > self.rounding).nonzero(as_tuple=True)
        ahead = [self.places[p] - t]
        t, p = (after > self.rounding).nonzero(as_tuple=True)
        ahead.append(self.places[p] + 1 - t)
        p, s = (slopes > self.rounding).nonzero(as_tuple=True)
        ahead.append(s - self.places[p])
        return int(torch.cat([torch.zeros(1, dtype=torch.long), *ahead]).max())

    def _forbidden(self) -> tuple[Tensor, Tensor, Tensor]:
        """The three maps where the input is later than the output, and 0 elsewhere."""
        times = torch.arange(self.length)
        alone = self.influence.where(self.places[None] > times[:, None], 0.0)
        if self.gradient is None:
            return alone, self.later, torch.zeros(len(self.places), self.length)
        return alone, self.later, self.gradient.where(times[None] > self.places[:, None], 0.0)

    def __repr__(self) -> str:
        tried = f"{self.sequences} sequence{'s' * (self.sequences > 1)} of {self.length} positions"
        if self.causal:
            said = f"Causal: no output sees a later input ({tried})"
        else:
            steps = "position" if self.reach == 1 else "positions"
            said = (
                f"Not causal: outputs see inputs up to {self.reach} {steps} ahead, first at "
                f"position {self.first}; {len(self.positions)} of {self.length} do ({tried})"
            )
        lines = [
            said,
            f"  largest effect of a later input: {self.largest:.3g} of the largest output; "
            f"rounding stays below {self.rounding:.2g}",
        ]
        if self.leak is not None:
            lines.append(f"  it comes in by {self.leak.place}")
        if self.couples:
            lines.append(
                f"  outputs depend on the other samples of a batch as well ({self.coupling:.3g})"
            )
        return "\n".join(lines)

    def plot(self, ax: Any) -> None:
        """How far each output depends on each input, on matplotlib's Axes.

        Derivatives where there are some, else changes when one input is replaced.
        """
        if self.gradient is None:
            shown, label = self.influence[self.places], "change of the output, of the largest"
        else:
            shown, label = self.gradient[:, self.places], "|∂y_t/∂x_s|, of the largest"
        floor = max(self.rounding, 1e-12)
        picture = shown.clamp(min=floor).log10().numpy()
        image = ax.imshow(
            picture, cmap="viridis", vmin=max(-8.0, float(torch.tensor(floor).log10())), vmax=0.0
        )
        right = [t + 0.5 for t in range(len(self.places)) for _ in (0, 1)]
        down = [t + side for t in range(len(self.places)) for side in (-0.5, 0.5)]
        ax.plot(right, down, color="white", lw=1)  # what is allowed ends here
        ax.grid(False)
        labels = [str(int(p)) for p in self.places]
        step = max(1, len(labels) // 8)
        ax.set_xticks(range(0, len(labels), step), labels[::step])
        ax.set_yticks(range(0, len(labels), step), labels[::step])
        ax.set(xlabel="input s", ylabel="output t")
        bar = ax.figure.colorbar(image, ax=ax, label=label)
        ticks = [t for t in range(-8, 1, 2) if t >= image.get_clim()[0]]
        bar.set_ticks(ticks, labels=[f"$10^{{{t}}}$" if t else "1" for t in ticks])

    def figure(self) -> Figure:
        """The plot as a figure that can be kept."""
        return draw(
            "causality",
            self.plot,
            caption="How far each output depends on each input; of a causal model, nothing to the "
            "right of the diagonal.",
            size=(4.6, 3.6),
        )


def measure_causality(
    model: nn.Module | PureFunction,
    x: Any,
    *,
    axis: int = 1,
    places: int = 64,
    draws: int = 2,
    vocabulary: int | None = None,
    output: int | str | None = None,
    generator: RandomSource = None,
) -> Causality:
    r"""Does an output at position t see inputs behind t, how far, and through which layer?

    Inputs are replaced: one position at a time, and everything behind a position; tokens by other
    tokens, real numbers by normal ones of the same mean and spread. Of real inputs the derivatives
    $\partial y_t/\partial x_s$ are taken as well. The model runs in evaluation mode and in double
    precision where its code allows that, and is not changed.

    What is rounding is measured: weights and inputs are changed in their last digit at random, and
    a sum of n numbers may lose n times as much as that changes the outputs.

    Args:
        model: a module of sequences `[B, T]` of tokens or `[B, T, ...]` of real numbers, with one
            output for each position, `[B, T, ...]`. One that takes several inputs by name (a model
            of the transformers library) gets them as a dictionary.
        x: sequences, of which the first four are used.
        axis: of the positions; 2 for `[B, channels, T]`.
        places: positions that are tried, at most; evenly spread where there are more. What lies
            between them is then only seen as a part of what is behind a place.
        draws: replacements of each.
        vocabulary: number of tokens to replace by; those that occur in `x` unless given.
        output: position or key of the output that is meant, of several.
        generator: randomness.

    Time: $2\cdot\text{places}\cdot\text{draws}$ forward passes of four sequences, and four backward
    passes for each place. Memory: what a model keeps for a backward pass of four sequences.

    >>> lstm = nn.LSTM(3, 4, batch_first=True)
    >>> x = torch.randn(2, 6, 3, generator=torch.Generator().manual_seed(0))
    >>> measure_causality(lstm, x).causal
    True
    >>> found = measure_causality(nn.LSTM(3, 4, batch_first=True, bidirectional=True), x)
    >>> found.causal, found.first, found.reach, found.leak.function
    (False, 0, 5, 'lstm')
    """
    source = as_generator(generator)
    whole_number(places, "places", least=2)
    whole_number(draws, "draws", least=1)
    sequences = _Sequences(model, x, axis, output)
    T = sequences.length
    base = torch.cat([sequences.x] * draws)
    other = _replacements(base, vocabulary, source)
    y = sequences.outputs(base)
    scale = float(y.abs().max()) or 1.0
    chosen = torch.unique(torch.linspace(0, T - 1, min(T, places)).round().long())
    alone, later = torch.zeros(T, len(chosen)), torch.zeros(T, len(chosen))
    for k, place in enumerate(chosen.tolist()):
        for start, end, table in ((place, place + 1, alone), (place + 1, T, later)):
            if start < end:
                made = sequences.outputs(sequences.joined(base, other, start, end), finite=False)
                table[:, k] = _difference(made, y).amax((0, 2)).cpu() / scale
        later[place + 1 :, k] = 0.0
    both = [torch.cat([base, z]) for z in (base, other)]
    here, there = (sequences.outputs(z, finite=False)[: len(base)] for z in both)
    found = Causality(
        T,
        chosen,
        alone,
        later,
        _derivatives(sequences, chosen.tolist(), source),
        float(_difference(here, there).max()) / scale,
        _rounding(sequences, base, y, scale, source),
        None,
        len(sequences.x),
    )
    return found if found.causal else replace(found, leak=_trace(found, sequences, base, other))


# ---------------------------------------------------------------------------------- the sequences


class _Sequences:
    """A model as a function of sequences alone, in double precision where it runs so."""

    def __init__(
        self, model: nn.Module | PureFunction, x: Any, axis: int, output: int | str | None
    ) -> None:
        if isinstance(model, PureFunction):
            self.function = copy.copy(model)
        else:
            self.function = PureFunction(as_module(model), output=output)
        self.key, self.rest, given = _apart(x)
        self.x, self.axis = _checked(given, axis), axis
        self.rest = {k: t[: len(self.x)] for k, t in self.rest.items()}
        like = self.function.reference()
        self.x = self.x.to(like.device)
        if self.x.is_floating_point() and like.numel():
            self.x = self.x.to(like.dtype)
        if output is None and not isinstance(model, PureFunction):
            with torch.no_grad(), global_randomness_kept():
                function, index = self._placed(self.x)
                returned = called(function, lambda t: function.call(function.parameters, t), index)
            self.function.output = main_output(returned)
        function, index = self._placed(self.x)
        if not same_twice(function, index):
            raise UnsupportedModel(
                "the model is no function of its input: the same sequences gave different outputs"
            )
        self.outputs(self.x)
        self._in_double()

    @property
    def length(self) -> int:
        return self.x.shape[self.axis]

    def outputs(
        self, x: Tensor, parameters: dict[str, Tensor] | None = None, *, finite: bool = True
    ) -> Tensor:
        """Outputs `[B, T, F]`; refused if they are not finite, unless told otherwise."""
        with torch.no_grad(), global_randomness_kept():
            parts = [self.at(part, parameters, finite) for part in torch.split(x, AT_ONCE)]
        return torch.cat(parts)

    def at(self, x: Tensor, parameters: dict[str, Tensor] | None, finite: bool) -> Tensor:
        """The same in one pass, with gradients if these are enabled."""
        function, index = self._placed(x)
        if parameters is not None:
            function = copy.copy(function)
            function.parameters = parameters
        if finite:
            y = evaluated(function, index)
        else:
            y = called(function, lambda t: function(function.parameters, t), index)
        return self._by_position(y)

    def joined(self, base: Tensor, other: Tensor, start: int, end: int) -> Tensor:
        """The base, with positions from `start` to `end` of the other."""
        made = base.clone()
        piece = other.narrow(self.axis, start, end - start)
        made.narrow(self.axis, start, end - start).copy_(piece)
        return made

    def leak(self, one: Tensor, two: Tensor, passes: Passes) -> Leak | None:
        """The operation through which later positions reach the outputs for `two`, not `one`."""
        (function, index), (other, again) = self._placed(one), self._placed(two)
        network = network_of(function, index)
        inputs = input_tensors(function, index), input_tensors(other, again)
        returned = passes.outputs(network, *inputs)
        pairs: dict[int, Pair] = {}

        def second(leaf: Any) -> Any:
            if isinstance(leaf, Pair):
                pairs[id(leaf.second)] = leaf
            return leaf.second if isinstance(leaf, Pair) else leaf

        key = None if isinstance(function.output, tuple) else function.output
        outputs = one_output(mapped(returned, second), key)
        if network.decisions and not bool((outputs == other(other.parameters, again)).all()):
            return None  # its way through the model depends on the inputs
        return pairs[id(outputs)].leak if id(outputs) in pairs else None

    def _placed(self, x: Tensor) -> tuple[PureFunction, Tensor]:
        """The function, and what to call it with for sequences x."""
        if not self.key:
            return self.function, x
        times = -(-len(x) // len(self.x))
        function = copy.copy(self.function)
        rest = {k: torch.cat([t] * times)[: len(x)] for k, t in self.rest.items()}
        function.rows = Rows({self.key: x, **rest}).taken_by(function.model)
        return function, torch.arange(len(x), device=x.device)

    def _by_position(self, y: Tensor) -> Tensor:
        T = self.length
        axes = [self.axis, *range(1, y.ndim)]
        found = next((a for a in axes if a < y.ndim and y.shape[a] == T), None)
        if found is None:
            raise ShapeMismatch(
                f"there must be one output for each of the {T} positions, and the model returns "
                f"{list(y.shape)} for {len(y)} sequences"
            )
        return y.movedim(found, 1).reshape(len(y), T, -1)

    def _in_double(self) -> None:
        single, x = self.function, self.x
        if single.reference().dtype == torch.float64:
            return
        self.function = single.in_precision(torch.float64)
        self.x = x.double() if x.is_floating_point() else x
        try:
            self.outputs(self.x)
        except TorchTheoryError:  # its code fixes a precision
            self.function, self.x = single, x


def _apart(x: Any) -> tuple[str, dict[str, Tensor], Any]:
    """Name of the part that holds the sequence, the other parts by name, and the sequence."""
    parts = as_mapping(x)
    if parts is None:
        return "", {}, x
    key = next((k for k in SEQUENCE_KEYS if k in parts), None)
    if key is None:
        raise InvalidInput(
            f"the inputs are {', '.join(map(str, parts))}; the sequences must be one of "
            f"{', '.join(SEQUENCE_KEYS)}"
        )
    rest = {
        str(k): v
        for k, v in parts.items()
        if isinstance(v, Tensor) and k != key and k not in TARGET_KEYS
    }
    return key, rest, parts[key]


def _checked(x: Any, axis: int) -> Tensor:
    if not isinstance(x, Tensor):
        raise InvalidType(f"x must be a tensor of sequences, not {described(x)}")
    if x.dtype == torch.bool or x.is_complex():
        raise InvalidType(f"sequences are tokens or real numbers, not {described(x)}")
    whole_number(axis, "axis", least=1)
    if x.ndim <= axis:
        raise ShapeMismatch(f"sequences need a batch and positions, [B, T] or more, not {x.ndim}-d")
    if x.numel() == 0:
        raise EmptyData(f"x holds no sequence, its shape is {list(x.shape)}")
    if x.shape[axis] < 2:
        raise ShapeMismatch("a sequence of one position has no future: give longer ones")
    if x.is_floating_point():
        all_finite(x, "x")
    return x.detach()[:SEEN]


def _replacements(base: Tensor, vocabulary: int | None, source: torch.Generator) -> Tensor:
    """Other tokens, different at every place, or other numbers."""
    if base.is_floating_point():
        drawn = gaussian(*base.shape, generator=source, dtype=base.dtype, device=base.device)
        return base.mean() + (float(base.std()) or 1.0) * drawn
    known: Tensor = torch.unique(base)
    if vocabulary is not None:
        whole_number(vocabulary, "vocabulary", least=int(known.max()) + 1)
        known = torch.arange(vocabulary, dtype=base.dtype, device=base.device)
    if len(known) < 2:
        raise InvalidInput("all tokens of x are the same: give vocabulary=, to replace them by")
    steps = torch.randint(1, len(known), base.shape, generator=source).to(base.device)
    return known[(torch.searchsorted(known, base) + steps) % len(known)]


# ----------------------------------------------------------------------------------- the numbers


def _difference(a: Tensor, b: Tensor) -> Tensor:
    return (a - b).abs().nan_to_num(nan=torch.inf).double()


def _rounding(
    sequences: _Sequences, base: Tensor, y: Tensor, scale: float, source: torch.Generator
) -> float:
    """What the longest sum can lose, if every number in it is off by its last digit."""
    function = sequences.function
    eps = torch.finfo(y.dtype).eps

    def nudged(t: Tensor) -> Tensor:
        if not t.is_floating_point():
            return t
        signs = torch.randint(0, 2, t.shape, generator=source).to(t) * 2 - 1
        return t * (1 + eps * signs)

    other = {k: nudged(p) for k, p in function.parameters.items()}
    moved = sequences.outputs(nudged(base), other)
    longest = max(
        [sequences.length, *(p[0].numel() for p in function.parameters.values() if p.ndim > 1)]
    )
    return longest * max(eps, float(_difference(moved, y).max()) / scale)


def _derivatives(
    sequences: _Sequences, places: Sequence[int], source: torch.Generator
) -> Tensor | None:
    """Sizes of the derivatives of outputs at the places, `[P, T]`, of the largest."""
    if not sequences.x.is_floating_point():
        return None
    x = sequences.x.clone().requires_grad_()
    try:
        with torch.enable_grad(), global_randomness_kept():
            y = sequences.at(x, None, True)
            if not y.requires_grad:
                return None
            count = y.shape[2]
            if count <= PROBES:
                directions = list(torch.eye(count, dtype=y.dtype, device=y.device))
            else:
                shape = (PROBES, count)
                drawn = gaussian(*shape, generator=source, dtype=y.dtype, device=y.device)
                directions = list(drawn / PROBES**0.5)
            rows = [_sizes(y[:, t], x, directions, sequences.axis) for t in places]
    except RuntimeError:  # something inside has no derivative
        return None
    sizes = torch.stack(rows).cpu()
    if not bool(torch.isfinite(sizes).all()):
        return None
    return sizes / (float(sizes.max()) or 1.0)


def _sizes(y: Tensor, x: Tensor, directions: list[Tensor], axis: int) -> Tensor:
    """Root mean square over samples of the derivatives of `y [B, F]` by position, `[T]`."""
    total = torch.zeros(x.shape[axis], dtype=torch.float64, device=x.device)
    for v in directions:
        (found,) = torch.autograd.grad((y @ v).sum(), x, retain_graph=True)
        total += found.double().square().movedim(axis, 0).flatten(1).sum(1)
    return (total / len(x)).sqrt()


def _trace(found: Causality, sequences: _Sequences, base: Tensor, other: Tensor) -> Leak | None:
    """The operation through which the strongest effect of a later input comes in."""
    alone, later, slopes = found._forbidden()
    if float(alone.max()) > found.rounding:
        start = int(found.places[int(alone.amax(0).argmax())])
        end = start + 1
    elif float(later.max()) > found.rounding:
        start, end = int(found.places[int(later.amax(0).argmax())]) + 1, found.length
    else:
        start = int(slopes.amax(0).argmax())
        end = start + 1
    changed = sequences.joined(base, other, start, end)[:AT_ONCE]
    try:
        passes = Passes(found.length, start, found.rounding)
        return sequences.leak(base[:AT_ONCE], changed, passes)
    except TorchTheoryError:  # something in it is not made by functions of torch
        return None

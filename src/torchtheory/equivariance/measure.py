r"""How far a network is from being equivariant, $f(gx) = g f(x)$, or invariant, $f(gx) = f(x)$.

The relative defect of an element $g$ at an input $x$ is

$$d(g,x)=\frac{\|f(gx)-g f(x)\|}{\sqrt{\tfrac12(\|f(gx)\|^2+\|gf(x)\|^2)}}\in[0,2],$$

0 for an equivariant network and $\sqrt2$ where the two outputs are orthogonal.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from torchtheory.core.checks import (
    all_finite,
    described,
    open_fraction,
    whole_number,
)
from torchtheory.core.errors import (
    InvalidInput,
    ShapeMismatch,
)
from torchtheory.core.figure import Figure, draw, label_text
from torchtheory.core.intervals import Interval, mean_interval
from torchtheory.core.random import RandomSource, as_generator
from torchtheory.equivariance.actions import (
    Actions,
    Element,
    GridGroup,
    Group,
    as_group,
)
from torchtheory.equivariance.functions import (
    checked_inputs,
    constant_part,
    exact_function,
    relative_defects,
)
from torchtheory.equivariance.layouts import Layout, act, input_layout
from torchtheory.equivariance.outputs import output_layout, refuse_unknown_output
from torchtheory.models.evaluation import evaluated
from torchtheory.models.model import PureFunction, global_randomness_kept

Act = Callable[[Element, Tensor], Tensor]


@dataclass(frozen=True, slots=True)
class ElementDefect:
    """The defects of one element of the group, over the inputs it was tried on.

    Attributes:
        element: the element.
        label: in words.
        mean, largest: of its relative defects.
        tried: on how many inputs.
    """

    element: Element
    label: str
    mean: float
    largest: float
    tried: int


@dataclass(frozen=True, slots=True)
class Equivariance:
    """How far a network is from commuting with a group.

    Attributes:
        group: in words.
        assumed: what the outputs are taken to do, a sentence.
        mean: mean relative defect over inputs and elements other than the identity, with its
            range over the draw of both.
        largest: the largest relative defect found, which is a lower bound of the supremum.
        worst: the element it was found at, in words.
        worst_input: the number of the input it was found at.
        acting: share of the elements that have a counterpart on the outputs; below 1 where their
            grid is coarser. Defects are of these.
        rounding: what rounding can make; a defect below it counts as 0.
        elements: the defects by element, the largest first.
        axes: number of axes that shifts move, 0 for other groups.
    """

    group: str
    assumed: str
    mean: Interval
    largest: float
    worst: str
    worst_input: int
    acting: float
    rounding: float
    elements: list[ElementDefect] = field(repr=False)
    axes: int = 0

    @property
    def exact(self) -> bool:
        """Whether no defect was found beyond rounding, and every element has a counterpart."""
        return self.largest <= self.rounding and self.acting == 1

    def __repr__(self) -> str:
        tried = sum(e.tried for e in self.elements)
        lines = [
            f"Equivariance under {self.group}: "
            + ("exact, up to rounding" if self.exact else self._verdict()),
            f"  relative defect: mean {self.mean.estimate:.3g} "
            f"({self.mean.confidence:.0%} range {self.mean.low:.3g} to {self.mean.high:.3g}), "
            f"largest {self.largest:.3g} ({self.worst}, input {self.worst_input})",
            f"  tried: {tried:,} pairs of {self.mean.trials:,} inputs and {len(self.elements):,} "
            "elements",
            f"  {self.assumed}",
        ]
        if self.acting < 1:
            lines.append(
                f"  {1 - self.acting:.3g} of the elements have no counterpart on the outputs' "
                "coarser grid, which breaks equivariance under them"
            )
        return "\n".join(lines)

    def _verdict(self) -> str:
        if self.largest <= self.rounding:
            return f"exact for {self.acting:.3g} of the elements, broken for the others"
        return "broken"

    def plot(self, ax: Any) -> None:
        """Mean defect of the elements that were tried, on matplotlib's Axes."""
        if self.axes == 2 and len(self.elements) > 12:
            _plot_plane(ax, self.elements)
            return
        if self.axes == 1:
            shown = sorted(self.elements, key=lambda e: int(e.element[2]))
            ax.plot([e.element[2] for e in shown], [e.mean for e in shown], "o-", ms=3.5)
            ax.set(xlabel="shift", ylabel="mean relative defect")
        else:
            shown = self.elements[:24]
            ax.barh(range(len(shown)), [e.mean for e in shown])
            ax.set_yticks(range(len(shown)), [label_text(e.label) for e in shown])
            ax.invert_yaxis()
            ax.set(xlabel="mean relative defect")
        low, high = (ax.get_xlim, ax.get_ylim)[self.axes == 1]()
        (ax.set_xlim, ax.set_ylim)[self.axes == 1](min(0.0, low), max(high, 1e-3))

    def figure(self) -> Figure:
        """The plot as a figure that can be kept."""
        return draw("equivariance", self.plot, caption=f"Defects under {self.group}.")


def measure_equivariance(
    model: nn.Module | PureFunction,
    group: str | Group | Actions,
    x: Tensor,
    *,
    on_output: str = "auto",
    stride: int | None = None,
    elements: int = 16,
    confidence: float = 0.95,
    output: int | str | None = None,
    chunk: int = 256,
    generator: RandomSource = None,
) -> Equivariance:
    r"""How far a network is from $f(gx)=gf(x)$, over inputs and elements of a group.

    Every input is tried with elements of its own, drawn without the identity, so that inputs are
    independent and Student's range of the mean covers the draw of both. The relative defect is
    $\|a-b\|\big/\sqrt{(\|a-c\|^2+\|b-c\|^2)/2}$ with $a=f(gx)$, $b=gf(x)$ and $c$ the mean of all
    $f(x)$ and $gf(x)$, so that a large constant in the outputs hides nothing. (Of one input whose
    outputs are to stay as they are nothing varies, and $c$ is 0.) The network runs in evaluation
    mode and in double precision where its code allows that, and is not changed.

    Args:
        model: a module of one tensor.
        group: a name from `torchtheory.equivariance.actions.GROUPS`, a group made there, or
            `Actions` of one's own.
        x: inputs `[n, ...]`; images are `[n, channels, height, width]`, sets `[n, elements, ...]`.
        on_output: `invariant`, `equivariant`, `orientations` (an axis of 4 or 8 before the grid),
            or `auto`: outputs without positions are taken to be invariant.
        stride: input pixels that are one step of the output's grid; see `output_layout`.
        elements: how many to try on each input; all of them where there are no more.
        confidence: of the range of the mean.
        output: position or key of the output that is meant, of several.
        chunk: inputs evaluated at once.
        generator: randomness.

    Time: $n\,(1+\text{elements})$ forward passes. Memory: the outputs of the inputs, and a chunk.

    >>> conv = nn.Conv2d(1, 2, 3, padding=1, padding_mode="circular")
    >>> x = torch.randn(4, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    >>> measure_equivariance(conv, "translations", x).exact
    True
    >>> measure_equivariance(nn.Conv2d(1, 2, 3, padding=1), "translations", x).exact
    False
    """
    group = as_group(group)
    x = checked_inputs(x, group)
    elements = whole_number(elements, "elements", least=1)
    chunk = whole_number(chunk, "chunk", least=1)
    open_fraction(confidence, "confidence")
    draw_from = as_generator(generator)
    function, x, rounding = exact_function(model, x, output)
    y = _outputs(function, x, chunk)
    on_input, on_outputs, choose, acting, assumed = _sides(
        group, x, y, refuse_unknown_output(on_output), stride, draw_from
    )
    pairs = [(i, g) for i in range(len(x)) for g in choose(elements)]
    constant = constant_part(
        lambda: itertools.chain([y], (on_outputs(g, y[i : i + 1]) for i, g in pairs))
    )
    defects = torch.cat(
        [
            _defects(function, on_input, on_outputs, x, y, pairs[k : k + chunk], constant)
            for k in range(0, len(pairs), chunk)
        ]
    )
    return _summary(group, pairs, defects, len(x), confidence, acting, assumed, rounding)


def equivariance_defect(
    model: nn.Module | PureFunction,
    group: str | Group | Actions,
    element: Element,
    x: Tensor,
    *,
    on_output: str = "auto",
    stride: int | None = None,
    output: int | str | None = None,
) -> Tensor:
    r"""The difference $f(gx)-gf(x)$ itself for one element, in the shape of the outputs.

    Args:
        element: an element as `Group.elements` lists them, such as `(0, 0, 1, 0)` for a shift of
            images down by one; the rest is as in `measure_equivariance`.

    >>> identity = nn.Identity()
    >>> bool((equivariance_defect(identity, "rotations", (0, 1, 0, 0), torch.eye(3)[None, None]) == 0).all())
    True
    """  # noqa: E501 - a doctest
    group = as_group(group)
    x = checked_inputs(x, group)
    function, x, _ = exact_function(model, x, output)
    y = _outputs(function, x, len(x))
    wanted = refuse_unknown_output(on_output)
    if isinstance(group, Actions):
        moved = _acted(group.on_input, element, x, "on_input")
        expected = (
            y if group.on_output is None else _acted(group.on_output, element, y, "on_output")
        )
        return _outputs(function, moved, len(x)) - expected
    layout = input_layout(group, x.shape)
    _refuse_other_elements(group, element, layout)
    after, _ = output_layout(group, x.shape, y.shape, wanted, stride)
    there, here = act(group, element, x, layout), act(group, element, y, after)
    if there is None or here is None:
        raise InvalidInput(
            f"{group.label(element)} has no counterpart on the outputs, whose grid is coarser"
        )
    return _outputs(function, there, len(x)) - here


def _refuse_other_elements(group: Group, element: Element, layout: Layout) -> None:
    first = next(group.elements(layout[0].grid))
    whole = isinstance(element, Sequence) and all(isinstance(k, int) for k in element)
    if not whole or len(element) != len(first):
        raise InvalidInput(
            f"an element of the {group.name} of this input is {len(first)} whole numbers, as in "
            f"{tuple(first)} for the identity, not {described(element)}"
        )


# ---------------------------------------------------------------------------------- the two sides

Chooser = Callable[[int], Sequence[Element]]


def _sides(
    group: Group | Actions,
    x: Tensor,
    y: Tensor,
    wanted: str,
    stride: int | None,
    generator: torch.Generator,
) -> tuple[Act, Act, Chooser, float, str]:
    """What an element does to inputs and outputs, a draw of some, the acting share, a sentence."""
    if isinstance(group, Actions):
        pair, listed = group, list(group.elements)
        return (
            lambda g, z: _acted(pair.on_input, g, z, "on_input"),
            lambda g, z: z if pair.on_output is None else _acted(pair.on_output, g, z, "on_output"),
            lambda count: _some(listed, count, generator),
            1.0,
            "The outputs are to stay as they are (invariance)."
            if pair.on_output is None
            else "The outputs are to do what the given action says.",
        )
    whole, before = group, input_layout(group, x.shape)
    after, assumed = output_layout(group, x.shape, y.shape, wanted, stride)
    grid = before[0].grid
    others = [m.grid for m in after]
    known = group.order(grid, others)
    if known < 2:
        _refuse_none(group, after)
    identity = next(group.elements(grid))

    def choose(count: int) -> Sequence[Element]:
        if count >= known - 1:
            return list(itertools.islice(whole.elements(grid, others), 1, None))
        chosen: dict[Element, None] = {}  # in the order they were drawn
        while len(chosen) < count:
            element = whole.draw(grid, generator, others)
            if element != identity:
                chosen[element] = None
        return list(chosen)

    return (
        lambda g, z: _moved(whole, g, z, before),
        lambda g, z: _moved(whole, g, z, after),
        choose,
        known / group.order(grid),
        assumed,
    )


def _refuse_none(group: Group, after: Layout) -> None:
    stride = max(max(m.grid.strides, default=1) for m in after)
    raise InvalidInput(
        f"none of the {group.name} has a counterpart on the outputs' grid of {after[-1].grid}, "
        f"{stride} times coarser than the inputs': take translations({stride})"
    )


def _some(items: Sequence[Element], count: int, generator: torch.Generator) -> Sequence[Element]:
    if count >= len(items):
        return items
    return [items[i] for i in torch.randperm(len(items), generator=generator)[:count].tolist()]


def _moved(group: Group, element: Element, z: Tensor, layout: Layout) -> Tensor:
    moved = act(group, element, z, layout)
    assert moved is not None  # elements that do not act are left out
    return moved


def _acted(action: Act, element: Element, z: Tensor, name: str) -> Tensor:
    moved = action(element, z.clone())  # which it may write to
    if not isinstance(moved, Tensor) or moved.shape != z.shape:
        raise ShapeMismatch(
            f"{name} must return a tensor like the one it is given, {list(z.shape)}, not "
            f"{described(moved)}"
        )
    return all_finite(moved, f"what {name} returns")


# ----------------------------------------------------------------------------------- the numbers


def _outputs(function: PureFunction, x: Tensor, chunk: int) -> Tensor:
    with torch.no_grad(), global_randomness_kept():
        return torch.cat([evaluated(function, part) for part in torch.split(x, chunk)])


def _defects(
    function: PureFunction,
    on_input: Act,
    on_output: Act,
    x: Tensor,
    y: Tensor,
    pairs: Sequence[tuple[int, Element]],
    constant: Tensor | None,
) -> Tensor:
    moved = torch.cat([on_input(g, x[i : i + 1]) for i, g in pairs])
    expected = torch.cat([on_output(g, y[i : i + 1]) for i, g in pairs])
    return relative_defects(_outputs(function, moved, len(moved)), expected, constant).cpu()


def _summary(
    group: Group | Actions,
    pairs: list[tuple[int, Element]],
    defects: Tensor,
    inputs: int,
    confidence: float,
    acting: float,
    assumed: str,
    rounding: float,
) -> Equivariance:
    places = torch.tensor([i for i, _ in pairs])
    counts = torch.bincount(places, minlength=inputs)
    means = torch.zeros(inputs, dtype=torch.float64).index_add(0, places, defects) / counts
    if inputs > 1:
        range_ = mean_interval(means, confidence)
        low, high = max(0.0, range_.low), min(2.0, range_.high)
        test = "Student t over inputs, each with elements of its own"
    else:
        low, high, test = 0.0, 2.0, "one input, which says nothing about others"
    mean = Interval(float(means.mean()), low, high, confidence, inputs, test)
    by_element: dict[Any, list[float]] = {}
    names: dict[Any, Element] = {}
    for (_, g), value in zip(pairs, defects.tolist(), strict=True):
        key = _key(g)
        names[key] = g
        by_element.setdefault(key, []).append(value)
    rows = [
        ElementDefect(names[k], group.label(names[k]), sum(v) / len(v), max(v), len(v))
        for k, v in by_element.items()
    ]
    rows.sort(key=lambda e: -e.mean)
    worst = int(defects.argmax())
    shifting = isinstance(group, GridGroup) and not (group.turns or group.flips)
    return Equivariance(
        group.name,
        assumed,
        mean,
        float(defects.max()),
        group.label(pairs[worst][1]),
        pairs[worst][0],
        acting,
        rounding,
        rows,
        len(pairs[worst][1]) - 2 if shifting else 0,
    )


def _key(element: Element) -> Any:
    """Something that tells elements apart, also those that cannot be hashed."""
    try:
        hash(element)
    except TypeError:
        return id(element)
    return id(element) if isinstance(element, Tensor) else element


def _plot_plane(ax: Any, rows: list[ElementDefect]) -> None:
    shifts = torch.tensor([e.element[2:] for e in rows])
    low, high = shifts.min(0).values, shifts.max(0).values
    picture = torch.full((high - low + 1).tolist(), float("nan"))
    for shift, row in zip(shifts - low, rows, strict=True):
        picture[shift[0], shift[1]] = row.mean
    ends = (low[1] - 0.5, high[1] + 0.5, high[0] + 0.5, low[0] - 0.5)
    top = max(float(max(e.mean for e in rows)), 1e-3)
    image = ax.imshow(
        picture.numpy(), extent=[float(e) for e in ends], vmin=0, vmax=top, interpolation="nearest"
    )
    ax.grid(False)
    ax.set_facecolor("0.85")  # not tried
    ax.set(xlabel="shift to the right", ylabel="shift down")
    ax.figure.colorbar(image, ax=ax, label="mean relative defect")

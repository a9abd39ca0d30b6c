r"""Where equivariance ends: the defect that each layer adds, and what it carries on.

A layer $h$ that reads $z$ is tried on its own: $h(gz)$ against $g h(z)$, with the action that its
place in the network asks for. That is the defect which it *introduces*. The *total* defect
compares its outputs in two passes of the network, on $gx$ and on $x$, and holds what earlier
layers did as well.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from torchtheory.core.errors import InvalidInput, TorchTheoryError
from torchtheory.core.figure import COLORS, Figure, draw, label_text
from torchtheory.equivariance.actions import Actions, Group, as_group
from torchtheory.equivariance.following import Following, LayerDefect, overall_defect
from torchtheory.equivariance.functions import checked_inputs, exact_function
from torchtheory.equivariance.layouts import act, input_layout
from torchtheory.equivariance.measure import measure_equivariance
from torchtheory.models.evaluation import evaluated
from torchtheory.models.model import PureFunction, global_randomness_kept
from torchtheory.tracing.passes import values_of

#: Inputs that layers are tried on, at most.
SEEN = 8

#: Elements that whole passes are made with, at most.
PASSES = 8


@dataclass(frozen=True, slots=True)
class LayerEquivariance:
    """Equivariance of a network, layer by layer, in the order they are applied.

    Attributes:
        group: in words.
        layers: what each layer does.
        rounding: what rounding can make.
        inputs: how many inputs were tried.
    """

    group: str
    layers: list[LayerDefect] = field(repr=False)
    rounding: float
    inputs: int

    @property
    def breaking(self) -> list[LayerDefect]:
        """The layers that break equivariance, in order."""
        return [layer for layer in self.layers if layer.breaks]

    @property
    def first(self) -> LayerDefect | None:
        """The first layer that breaks equivariance; None if none was seen to."""
        return next(iter(self.breaking), None)

    @property
    def unfollowed(self) -> LayerDefect | None:
        """The first layer behind which it is not known how the group acts."""
        return next((layer for layer in self.layers if not layer.followed), None)

    def __repr__(self) -> str:
        lines = [f"Equivariance under {self.group}, layer by layer ({self.inputs} inputs)"]
        if self.first is None:
            known = "" if self.unfollowed is None else f" before {self.unfollowed.place}"
            lines[0] += f": no layer{known} breaks it"
        else:
            lines[0] += f": it ends at {self.first.place}, which {self.first.reason}"
        lines.append(f"  {'layer':32} {'introduced':>10} {'total':>10}")
        for layer in self.layers:
            alone = (
                "lost"
                if layer.lost and layer.introduced <= self.rounding
                else _short(layer.introduced, self.rounding)
            )
            mark = f"  {layer.reason}" if layer.breaks else ""
            if not layer.followed:
                alone, mark = "?", "  how the group acts behind it is not known"
            total = _short(layer.total, self.rounding)
            lines.append(f"  {layer.place:32} {alone:>10} {total:>10}{mark}")
        return "\n".join(lines)

    def plot(self, ax: Any) -> None:
        """The defects that layers introduce and those they carry on, on matplotlib's Axes."""
        shown = [layer for layer in self.layers if layer.followed]
        across = range(len(shown))
        bars = [layer.introduced for layer in shown]
        ax.bar(across, bars, color=COLORS[1], label="introduced by the layer alone")
        ax.plot(across, [layer.total for layer in shown], "o-", ms=3.5, label="total")
        for i, layer in enumerate(shown):
            if layer.lost:
                ax.plot([i], [0], "x", color=COLORS[6], clip_on=False)
        ax.set_xticks(across, [label_text(layer.place) for layer in shown], rotation=45, ha="right")
        ax.set(ylabel="relative defect", ylim=(0, max([*bars, 1e-3, ax.get_ylim()[1]])))
        ax.legend()

    def figure(self) -> Figure:
        """The plot as a figure that can be kept."""
        return draw(
            "equivariance-by-layer",
            self.plot,
            caption=f"Defects under {self.group}. A cross: some elements have no counterpart "
            "behind the layer.",
            size=(max(5.0, 0.5 * len(self.layers)), 3.8),
        )


def equivariance_by_layer(
    model: nn.Module | PureFunction,
    group: str | Group | Actions,
    x: Tensor,
    *,
    output: int | str | None = None,
) -> LayerEquivariance:
    r"""Which layers of a network break equivariance, and why.

    The network runs as it is, on a few of the inputs; every layer and function that it calls is
    tried on the elements which generate those that act on what it reads. Behind a stride these
    are the shifts which the stride divides; that the others are lost is the stride's doing.
    Where layers break equivariance, and the network as a whole has it all the same, they are not
    accused: what they took apart comes together again, and how is not followed.

    Args:
        model: a module of one tensor; `nn.Module`s of torch are layers, and so are functions that
            a module of your own calls.
        group: a name or a group; see `measure_equivariance`.
        x: inputs `[n, ...]`, of which the first eight are used.
        output: position or key of the output that is meant, of several.

    Time: about four forward passes for each axis of the grid. Memory: what the layers return for
    eight inputs.

    >>> net = nn.Sequential(nn.Conv2d(1, 2, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(32, 3))
    >>> found = equivariance_by_layer(net, "translations", torch.rand(2, 1, 4, 4))
    >>> [(layer.place, layer.reason) for layer in found.breaking]
    [('0 (Conv2d)', 'pads the border with zeros'), ('3 (Linear)', 'has weights of its own for every position')]
    """  # noqa: E501 - a doctest
    group = as_group(group)
    if isinstance(group, Actions):
        raise InvalidInput(
            "layers are tried with groups that move positions; for actions of your own only "
            "measure_equivariance knows what they do to outputs"
        )
    x = checked_inputs(x, group)
    function, x, rounding = exact_function(model, x[:SEEN], output)
    with torch.no_grad():
        watch = Following(group, rounding, function, x)
        _carried_on(watch, function, x)
    layers = [s.defect for s in watch.steps if s.shown]
    suspects = [layer for layer in layers if layer.breaks]
    if suspects and _exact(function, group, x):
        # what they take apart is put together again further on, such as a border that goes around
        for layer in suspects:
            layer.lost, layer.reason, layer.followed = False, "", False
    return LayerEquivariance(group.name, layers, rounding, len(x))


def _exact(function: PureFunction, group: Group, x: Tensor) -> bool:
    """Whether the network commutes with the group, and not for want of any answer to its input."""
    try:
        if x.is_floating_point():
            with torch.no_grad(), global_randomness_kept():
                outputs = evaluated(function, torch.cat([x, -x]))
            if bool((outputs == outputs[:1]).all()):
                return False
        return measure_equivariance(function, group, x, elements=PASSES, generator=0).exact
    except TorchTheoryError:  # outputs on a grid of their own, or a batch of one size only
        return False


def _short(value: float, rounding: float) -> str:
    return "0" if value <= rounding else f"{value:.3g}"


def _carried_on(watch: Following, function: PureFunction, x: Tensor) -> None:
    """Passes on moved inputs, against those on the inputs themselves."""
    before = input_layout(watch.group, x.shape)
    for element in list(watch.tried)[:PASSES]:
        moved = act(watch.group, element, x, before)
        assert moved is not None
        try:
            others = values_of(function, watch.network, moved, *(s.value for s in watch.steps))
        except TorchTheoryError:
            return  # the path through the model depends on the input
        for here, there in zip(watch.steps, others, strict=True):
            if here.layout is None:
                continue
            wanted = act(watch.group, element, here.out, here.layout)
            if wanted is not None and wanted.shape == there.shape:
                here.defect.total = max(here.defect.total, overall_defect(there, wanted))

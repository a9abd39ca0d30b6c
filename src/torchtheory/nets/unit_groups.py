r"""Units that are permuted together: symmetries of networks with branches.

Where branches meet in a sum, unit $i$ of one is added to unit $i$ of the other, so that
$(W_a, W_b, V) \mapsto (PW_a, PW_b, VP^\top)$ leaves the function unchanged and permuting one of
them does not. All layers that write to such a stream of units are one group with all that read it:
a residual network has one for each width of its stream, besides one inside each block.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from torchtheory.core.errors import InvalidInput
from torchtheory.models.model import Parameters, PureFunction
from torchtheory.nets.symmetries import CHANNELWISE, POINTWISE, flattens
from torchtheory.tracing.chain import (
    Average,
    Link,
    Other,
    Rearrangement,
    Step,
    Sum,
    flow_of,
    has_own_forward,
)

_BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
#: Which dimension of a value the units are: counted from 0, or blocks of the last one.
_BLOCKS = -1


@dataclass(frozen=True, slots=True)
class UnitGroup:
    """Units that several layers write to and read, which may be permuted together.

    Attributes:
        incoming: names of the layers that write to them.
        outgoing: names of the layers that read them.
        units: how many there are.
        normalizations: names of normalizations on the way, with numbers of their own for each.
        with_statistics: those of them that have running statistics.
    """

    incoming: tuple[str, ...]
    outgoing: tuple[str, ...]
    units: int
    normalizations: tuple[str, ...] = ()
    with_statistics: frozenset[str] = field(default=frozenset(), repr=False)


@dataclass(frozen=True, slots=True)
class UnitGroups:
    """The groups of units of a network.

    Attributes:
        groups: those that may be permuted.
        left_out: of layers whose units may not be, by name, why.
    """

    groups: list[UnitGroup]
    left_out: dict[str, str]


def unit_groups(model: nn.Module | PureFunction, x: Tensor | None = None) -> UnitGroups:
    """The groups of units, or channels, that may be permuted, also of a network with branches.

    Layers that share weights, are used twice or compute their weights from others are left out, and
    so is every group that something else than functions of each unit touches.

    Args:
        model: a network, also from an archive.
        x: a few inputs, `[n, ...]`; without them some are made up, where it can be seen what the
            network takes.

    Raises:
        UnsupportedModel: if the model cannot be recorded.

    >>> class Block(nn.Module):
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.stem, self.inner, self.head = nn.Linear(2, 3), nn.Linear(3, 3), nn.Linear(3, 1)
    ...     def forward(self, x):
    ...         h = self.stem(x)
    ...         return self.head(torch.relu(h + self.inner(torch.relu(h))))
    >>> unit_groups(Block()).groups
    [UnitGroup(incoming=('stem', 'inner'), outgoing=('inner', 'head'), units=3, normalizations=())]
    """
    return _Streams(model, x).found()


def permute_group(parameters: Parameters, group: UnitGroup, permutation: Tensor) -> Parameters:
    r"""Parameters with the units of a group reordered in all layers that write or read them.

    Unit `permutation[i]` becomes unit `i`. Nothing is written to: changed entries are new tensors,
    the others are shared.

    Args:
        parameters: by name; of a group with batch normalizations their running statistics as well,
            as in `{**dict(net.named_parameters()), **dict(net.named_buffers())}`.
        group: one of `unit_groups`.
        permutation: of its units.

    >>> net = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 1))
    >>> (group,) = unit_groups(net).groups
    >>> theta = permute_group(dict(net.named_parameters()), group, torch.tensor([2, 0, 1]))
    >>> x = torch.randn(4, 2)
    >>> torch.allclose(torch.func.functional_call(net, theta, (x,)), net(x))
    True
    """
    if not torch.equal(permutation.sort().values.cpu(), torch.arange(group.units)):
        raise InvalidInput(f"a permutation of {group.units} units lists 0..{group.units - 1} once")
    changed = dict(parameters)
    for name in group.outgoing:
        weight = changed[f"{name}.weight"]
        by_unit = weight.reshape(len(weight), group.units, -1)
        changed[f"{name}.weight"] = by_unit[:, permutation].reshape(weight.shape)
    for owner in (*group.incoming, *group.normalizations):
        for part in ("weight", "bias", "running_mean", "running_var"):
            key = f"{owner}.{part}"
            if key in changed:
                changed[key] = changed[key][permutation]
            elif part.startswith("running") and owner in group.with_statistics:
                raise InvalidInput(
                    f"the units of layer {owner} have running statistics: give {key} as well, "
                    "{**dict(net.named_parameters()), **dict(net.named_buffers())}"
                )
    return changed


@dataclass(eq=False)
class _Stream:
    """Units that were seen to be the same so far."""

    units: int = 0
    incoming: list[str] = field(default_factory=list)
    outgoing: list[str] = field(default_factory=list)
    normalizations: list[str] = field(default_factory=list)
    reason: str = ""
    joined: _Stream | None = None

    def root(self) -> _Stream:
        return self if self.joined is None else self.joined.root()


class _Streams:
    """Follows units through the steps of a network."""

    def __init__(self, model: nn.Module | PureFunction, x: Tensor | None) -> None:
        self.flow = flow_of(model, x)
        model = model.model if isinstance(model, PureFunction) else model
        self.uses = Counter(id(step.link.module) for step in self.flow.steps)
        named = list(model.named_parameters(remove_duplicate=False))
        self.owners = Counter(id(p) for _, p in named)
        self.shared = {id(p) for name, p in named if name in self.flow.shared}
        self.running = frozenset(
            step.link.name for step in self.flow.steps if isinstance(step.link.module, _BATCH_NORMS)
        )
        self.streams: list[_Stream] = []
        given = _Stream(reason="they are the network's inputs")
        #: Of the value of step k at k + 1: its units, and where they stand.
        self.at: list[tuple[_Stream, int]] = [(given, 1)]

    def found(self) -> UnitGroups:
        for number, step in enumerate(self.flow.steps):
            stream, place = self._after(step, self.flow.dimensions[number])
            self.at.append((stream, place))
            if number in self.flow.returned:
                self._touch(stream, "they are the network's outputs")
        groups: dict[int, UnitGroup] = {}
        left_out: dict[str, str] = {}
        for stream in self.streams:
            root = stream.root()
            if root.reason or not root.outgoing:
                why = root.reason or "no layer reads them"
                left_out |= dict.fromkeys(root.incoming, why)
            else:
                groups[id(root)] = UnitGroup(
                    tuple(root.incoming), tuple(root.outgoing), root.units,
                    tuple(root.normalizations), self.running & set(root.normalizations),
                )  # fmt: skip
        return UnitGroups(list(groups.values()), left_out)

    def _after(self, step: Step, dimensions: int) -> tuple[_Stream, int]:
        """The units of what a step makes, and where they stand."""
        link, module = step.link, step.link.module
        given = [self.at[k + 1] for k in step.inputs]
        stream, place = given[0]
        words = f"{type(module).__name__} {link.name!r}" if link.name else type(module).__name__
        words = module.words if isinstance(module, Other) else words
        if not has_own_forward(module):
            return self._lost(given, f"they go through {words}")
        if isinstance(module, nn.Linear | nn.Conv1d | nn.Conv2d | nn.Conv3d):
            return self._affine(link, stream, place, dimensions)
        if isinstance(module, Sum):
            return self._added(given)
        if isinstance(module, (*_BATCH_NORMS, nn.LayerNorm, nn.RMSNorm)):
            return self._normalized(link, stream, place, dimensions)
        if isinstance(module, POINTWISE):
            return stream, place
        if place == 1 and dimensions > 2 and isinstance(module, CHANNELWISE):
            return stream, place
        if place == 1 and isinstance(module, nn.Flatten | Average | Rearrangement):
            before = step.inputs[0]
            space = (self.flow.dimensions[before] if before >= 0 else 0) - 2
            if space > 0 and flattens(module, space):
                return stream, _BLOCKS
            if space == 0 and isinstance(module, nn.Flatten):
                return stream, place
        return self._lost(given, f"they go through {words}")

    def _affine(
        self, link: Link, stream: _Stream, place: int, dimensions: int
    ) -> tuple[_Stream, int]:
        module = link.module
        assert isinstance(module, nn.Linear | nn.Conv1d | nn.Conv2d | nn.Conv3d)
        dense = isinstance(module, nn.Linear)
        shape = (
            (module.out_features, module.in_features)
            if isinstance(module, nn.Linear)
            else (module.out_channels, module.in_channels)
        )
        made = _Stream(shape[0], [link.name])
        self.streams.append(made)
        reason = self._unusual(link)
        if not isinstance(module, nn.Linear) and module.groups != 1:
            reason = f"{link.name!r} is a convolution in groups"
        if reason:
            self._touch(made, reason)
            self._touch(stream, reason)
        root = stream.root()
        # what a dense layer reads is the last dimension, what a convolution does is dimension 1
        fits = place in ((dimensions - 1, _BLOCKS) if dense else (1,))
        width = shape[1]
        blocks = root.units and (
            width % root.units == 0 if place == _BLOCKS else width == root.units
        )
        if not fits or (not root.reason and not blocks):
            self._touch(stream, f"{link.name!r} reads another dimension")
        elif link.name not in root.outgoing:
            root.outgoing.append(link.name)
        return made, dimensions - 1 if dense else 1

    def _added(self, given: list[tuple[_Stream, int]]) -> tuple[_Stream, int]:
        (one, place), (two, other) = given
        a, b = one.root(), two.root()
        if place != other or (a.units != b.units and not (a.reason or b.reason)):
            return self._lost(given, "they are added to units of another kind")
        if a is not b:
            for name in ("incoming", "outgoing", "normalizations"):
                mine, theirs = getattr(a, name), getattr(b, name)
                mine += [n for n in theirs if n not in mine]
            a.reason, a.units = a.reason or b.reason, a.units or b.units
            b.joined = a
        return a, place

    def _normalized(
        self, link: Link, stream: _Stream, place: int, dimensions: int
    ) -> tuple[_Stream, int]:
        module = link.module
        root = stream.root()
        sizes = tuple(getattr(module, "normalized_shape", ()))
        if isinstance(module, _BATCH_NORMS):
            fits = place == 1 and module.running_mean is not None
            sizes = (module.num_features,)
        else:
            fits = place == dimensions - 1
        if not root.reason and (not fits or sizes != (root.units,)):
            return self._lost([(stream, place)], f"{link.name!r} normalizes something else")
        reason = self._unusual(link) if list(module.parameters()) else ""
        if reason:
            self._touch(stream, reason)
        root.normalizations.append(link.name)
        return stream, place

    def _unusual(self, link: Link) -> str:
        """Why the weights of a layer are not its own alone; empty if they are."""
        module = link.module
        weights = [p for p in module._parameters.values() if p is not None]
        if "weight" not in module._parameters or not has_own_forward(module):
            return f"{link.name!r} computes its weights from others"
        alone = self.uses[id(module)] == 1 and all(self.owners[id(p)] == 1 for p in weights)
        if not alone or any(id(p) in self.shared for p in weights):
            return f"{link.name!r} shares weights, or is used twice"
        return ""

    def _lost(self, given: list[tuple[_Stream, int]], reason: str) -> tuple[_Stream, int]:
        """Units that something else than functions of each of them takes."""
        for stream, _ in given:
            self._touch(stream, reason)
        return _Stream(reason=reason), 1

    def _touch(self, stream: _Stream, reason: str) -> None:
        root = stream.root()
        root.reason = root.reason or reason

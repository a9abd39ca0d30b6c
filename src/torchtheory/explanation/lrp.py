r"""Layer-wise relevance propagation, for any network.

The score is put in at the output and handed back from operation to operation, each by its rule
(`explanation.rules`), until it lies on the inputs:

$$
f(x)=\sum_kR_k^{[L]}=\dots=\sum_iR_i^{[0]}\;+\;\text{what went to biases and to }\varepsilon .
$$

It works on operations, not on modules, so that a `+` in a user's forward, a functional ReLU, the
products of attention and the steps of an LSTM are handed through as well, and an operation without
a rule is named. Source: Mathematical Aspects of Deep Learning, section 5.4.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Sequence
from contextlib import AbstractContextManager

import torch
from torch import Tensor, nn

from torchtheory.core.budget import check_time
from torchtheory.core.checks import module_with_values
from torchtheory.core.errors import UnknownName, UnsupportedModel
from torchtheory.explanation.composites import DoubtfulRules, Rules, as_composite, doubts
from torchtheory.explanation.explanation import Explanation, explained
from torchtheory.explanation.ledger import Entry, Ledger
from torchtheory.explanation.propagation.linear_maps import Kept
from torchtheory.explanation.propagation.marks import Mark, is_signal, mark_of, noted, numbered
from torchtheory.explanation.propagation.operations import RULES
from torchtheory.explanation.propagation.tracing import Propagation, outputs_of
from torchtheory.explanation.score import (
    Inputs,
    Recorded,
    Score,
    Target,
    embedded,
    open_score,
    refuse_constant,
)
from torchtheory.tracing.folding import fold_batch_norm, has_batch_norm
from torchtheory.tracing.interpret import interpret
from torchtheory.tracing.network import Network


def lrp(
    model: nn.Module,
    x: Inputs,
    target: Target = None,
    rules: Rules = None,
    *,
    output: int | str | None = None,
    fold: bool = True,
) -> Explanation:
    r"""Relevance of the inputs by layer-wise relevance propagation, with its ledger.

    A score $\sum_cw_cf_c$ starts with $w_cf_c$ at output $c$. Another function of the outputs
    starts with outputs times its slopes; what these do not add up to goes to the biases. Maxima
    hand everything to the winner (of equal ones to the first in pooling and in `max` along a
    dimension, while `amax` and `maximum` let them share), averages are linear, normalizations by
    statistics of a sample count their scale as a constant.

    Batch normalization is folded into the linear layer or convolution beside it before anything is
    handed back, as the source does. With the rules zero, epsilon and flat this makes no difference
    but for $\varepsilon$; with gamma and alpha-beta, which treat positive and negative
    contributions differently, relevance of a network with normalizations that are not folded is
    another one, off by as much as its own size. What was folded, what could not be and why is in
    `ledger.folded` and `ledger.not_folded`; a normalization that is not folded is an affine map of
    each channel and has the rule that the choice of rules gives it.

    Args:
        model: the network; a private copy of it runs, in evaluation mode.
        x: inputs `[n, ...]`, or several tensors; whole numbers are words that are embedded.
        target: what is explained; see `open_score`.
        rules: one rule for all layers, a `Composite`, the name of a `preset`, a mapping from types
            or names of layers to rules, or nothing for `Epsilon(1e-6)`.
        output: position or key of the output that is meant, where there are several.
        fold: whether batch normalization is folded away first.

    Returns:
        Relevance in the shape of x, whose sum with the ledger's `to_biases`, `to_epsilon` and
        `leaked` is the score up to rounding. Time is about that of one pass forward and one back
        with `Zero` and `Epsilon`, and up to one more pass forward with other rules; memory is that
        of a gradient, for some samples at a time.

    Warns:
        DoubtfulRules: about rules that were given and are known to work badly together.

    Raises:
        UnsupportedModel: if relevance arrives at an operation that has no rule (the message names
            it and its layer), if the network ends in a softmax or sigmoid, mixes samples, or has no
            differentiable path from its inputs to the score.

    >>> net = nn.Sequential(nn.Linear(2, 2, bias=False), nn.ReLU(), nn.Linear(2, 1, bias=False))
    >>> found = lrp(net, torch.ones(1, 2))
    >>> bool((found.total - found.score).abs() < 1e-4)
    True
    """
    started = time.perf_counter()
    passes = _Passes(rules, fold=fold)
    with passes.opened(model, x, target, output) as score:
        relevance, ledger, _ = passes.propagated(score)
        if rules is not None:
            for sentence in passes.doubts:
                warnings.warn(sentence, DoubtfulRules, stacklevel=2)
        none = torch.zeros_like(score.values)
        return explained(score, relevance, "LRP", started=started, reference=none, ledger=ledger)


def layer_relevances(
    model: nn.Module,
    x: Inputs,
    target: Target = None,
    rules: Rules = None,
    layers: Sequence[str] = (),
    *,
    output: int | str | None = None,
    fold: bool = True,
) -> dict[str, Tensor]:
    """Relevance `[n, ...]` of the outputs of some layers, in their shapes, by the same pass.

    Args:
        model, x, target, rules, output, fold: as of `lrp`. A layer into which a normalization was
            folded has that one's outputs.
        layers: names of modules, as `model.named_modules()` has them. A module that is called
            several times has the sum of its calls.

    Raises:
        UnsupportedModel: if outputs of a layer do not have samples in their first dimension.
    """
    module_with_values(model)
    names = [name for name, _ in model.named_modules()]
    for layer in layers:
        if layer not in names:
            raise UnknownName("layer", layer, [n for n in names if n])
    passes = _Passes(rules, layers, fold=fold)
    with passes.opened(model, x, target, output) as score:
        return passes.propagated(score)[2]


class _Passes:
    """Passes of a score through its network, watched, some samples at a time.

    Args:
        rules, layers, fold: as they were given.
    """

    def __init__(self, rules: Rules, layers: Sequence[str] = (), *, fold: bool) -> None:
        self.rules, self.layers, self.fold = rules, layers, fold
        self.folded: dict[str, str] = {}
        self.not_folded: dict[str, str] = {}
        self.kept: tuple[Network, Kept] | None = None
        self.recorded: Recorded | None = None
        self.first: tuple[Propagation, Tensor, Tensor] | None = None
        self.doubts: dict[str, None] = {}

    def opened(
        self, model: nn.Module, x: Inputs, target: Target, output: int | str | None
    ) -> AbstractContextManager[Score]:
        """The score, whose network is without the batch normalizations that can be folded."""
        return open_score(
            model, x, target, output=output, first=self.begin, prepare=self.without_batch_norm
        )

    def without_batch_norm(self, network: nn.Module, x: Sequence[Tensor]) -> nn.Module:
        """The network with what can be folded folded, if its outputs stay the same."""
        if not has_batch_norm(network):
            return network
        if not self.fold:
            reason = "fold=False"
        else:
            try:
                found = fold_batch_norm(network, [t[:2] for t in x])
            except UnsupportedModel as error:
                reason = str(error)
            else:
                if found.unchanged:
                    self.folded, self.not_folded = found.into, found.kept
                    return found.model.requires_grad_(False)
                reason = "outputs would change"
        names = [n for n, m in network.named_modules() if has_batch_norm(m) and not [*m.children()]]
        self.not_folded = dict.fromkeys(names, reason)
        return network

    def begin(self, score: Score, points: Tensor) -> Tensor:
        """The first pass of a score."""
        self.first = self.watched(score, points, None)
        return self.first[2].detach().clone()  # on the way back its numbers are overwritten

    def watched(
        self, score: Score, points: Tensor, rows: Tensor | None
    ) -> tuple[Propagation, Tensor, Tensor]:
        """What watched a pass, its points and its outputs."""
        rules = as_composite(self.rules, score.network)
        self.recorded = self.recorded or Recorded(score.network, RULES.knows)
        with torch.enable_grad():
            start = points.detach().requires_grad_()
            arguments, vectors = score.arguments(start, rows)
        network = self.recorded.of(arguments)
        if self.kept is None or self.kept[0] is not network:
            self.kept = (network, Kept(network.tensors.values()))
        trace = Propagation(RULES, network, score.network, len(points), rules, self.kept[1])
        outputs = {name: outputs_of(network, name) for name in self.layers}
        trace.watched = {value: None for of in outputs.values() for value in of}
        with torch.enable_grad():
            for t in (*arguments, *(v for own in vectors for v in own)):
                noted(t, Mark(numbered(t)))
            trace.embedded = embedded(network, vectors)
            trace.watch(dict(zip(network.inputs, arguments, strict=True)))
            try:
                returned = score.main(interpret(network, trace, arguments, len(points)))
            except BaseException:
                trace.close()
                raise
        for name, of in outputs.items():
            met = [trace.watched[value] for value in of]
            trace.outputs[name] = [t for t in met if t is not None and is_signal(t)]
        return trace, start, returned

    def propagated(self, score: Score) -> tuple[Tensor, Ledger, dict[str, Tensor]]:
        """Relevance `[n, d]` of all entries, the ledger, and relevance of the layers."""
        parts: list[Tensor] = []
        books: list[list[Entry]] = []
        found: dict[str, list[Tensor]] = {name: [] for name in self.layers}
        rows = torch.arange(len(score), device=score.points.device)
        size = len(score) if self.first is not None else score.at_once
        for own in torch.split(rows, size):
            check_time()
            if self.first is not None:
                trace, points, outputs = self.first
            else:
                trace, points, outputs = self.watched(score, score.points[own], own)
                score.forwards += len(own)
            try:
                parts.append(_back(score, own, trace, points, outputs, found))
            finally:
                trace.close()
            books.append(trace.entries)
            self.doubts |= dict.fromkeys(doubts(trace.met, trace.rules.product))
        relevance = torch.cat(parts)
        entries = _merged(books, [len(p) for p in parts])
        ledger = Ledger(score.values, entries, relevance.sum(1), self.folded, self.not_folded)
        return relevance, ledger, {name: torch.cat(of) for name, of in found.items()}


def _back(
    score: Score,
    rows: Tensor,
    trace: Propagation,
    points: Tensor,
    outputs: Tensor,
    layers: dict[str, list[Tensor]],
) -> Tensor:
    """Relevance of the points; that of layers is put into `layers`."""
    refuse_constant(outputs)
    mark = mark_of(outputs)
    if mark.ends:
        raise UnsupportedModel(
            f"the network ends in a {mark.ends}, whose outputs are not made of contributions: "
            "explain the scores before it (a model without its last layer)"
        )
    trace.depth_of_output = mark.depth
    with torch.enable_grad():
        start = _start(score, outputs.detach().clone(), rows, trace)
    wanted = [t for name in layers for t in trace.outputs[name]]
    made, *others = torch.autograd.grad(outputs, [points, *wanted], start, allow_unused=True)
    _own_rows(mark.samples, outputs)  # only now: an operation without a rule was named before
    score.backwards += len(rows)
    for name, found in layers.items():
        calls = [others.pop(0) for _ in trace.outputs[name]]
        found.append(_of_layer(name, trace.outputs[name], calls, len(rows)))
    return torch.zeros_like(points) if made is None else made.detach()


def _own_rows(samples: Tensor | None, outputs: Tensor) -> None:
    """Each row of the outputs must be that of its own sample."""
    if samples is None:
        raise UnsupportedModel(
            "which outputs belong to which sample cannot be followed through this network (it may "
            "be a transform such as torch.func.vmap that hides them)"
        )
    if not bool((samples == numbered(outputs)).all()):
        raise UnsupportedModel("the network returns outputs of samples in rows of other samples")


def _start(score: Score, outputs: Tensor, rows: Tensor, trace: Propagation) -> Tensor:
    """Relevance of the outputs: each times the slope of the score in it."""
    leaf = outputs.requires_grad_()
    values = score.selected(leaf, rows)
    refuse_constant(values)
    (slopes,) = torch.autograd.grad(values.sum(), leaf)
    start: Tensor = slopes * outputs.detach()
    rest = values.detach() - start.reshape(len(rows), -1).sum(1)
    scale = start.abs().reshape(len(rows), -1).sum(1) + values.detach().abs()
    if bool((rest.abs() > 1e3 * torch.finfo(rest.dtype).eps * scale).any()):
        none = torch.zeros_like(rest)
        received = values.detach()
        trace.entries.append(
            Entry("", "target", "slope", received, received - rest, rest, none, none)
        )
    return start


def _of_layer(
    name: str, outputs: Sequence[Tensor], calls: Sequence[Tensor | None], count: int
) -> Tensor:
    """Relevance of a layer's outputs; the calls of a layer that is used several times add up."""
    if not outputs:
        raise UnsupportedModel(f"layer {name!r} is not used, or no signal of the inputs passes it")
    total: Tensor | None = None
    for t, relevance in zip(outputs, calls, strict=True):
        samples = mark_of(t).samples
        if samples is None or samples.shape[0] != count or samples.numel() != count:
            raise UnsupportedModel(f"outputs of layer {name!r} do not have one row per sample")
        own = torch.zeros_like(t) if relevance is None else relevance
        if total is not None and total.shape != own.shape:
            raise UnsupportedModel(f"layer {name!r} is used with outputs of several shapes")
        total = own if total is None else total + own
    assert total is not None
    return total.detach()


def _merged(books: Sequence[list[Entry]], sizes: Sequence[int]) -> tuple[Entry, ...]:
    """The books of several chunks as one; an operation that only some met has 0 in the others."""
    if len(books) == 1:
        return tuple(books[0])
    keyed = [_keyed(entries) for entries in books]
    order = max(keyed, key=len)
    keys = [*order, *(k for own in keyed for k in own if k not in order)]
    like = next(e.received for own in keyed for e in own.values()) if keys else None
    merged = []
    for key in dict.fromkeys(keys):
        columns = []
        for column in ("received", "passed", "to_biases", "to_epsilon", "leaked"):
            assert like is not None
            columns.append(
                torch.cat(
                    [
                        getattr(own[key], column) if key in own else like.new_zeros(size)
                        for own, size in zip(keyed, sizes, strict=True)
                    ]
                )
            )
        merged.append(Entry(*key[:3], *columns))
    return tuple(merged)


def _keyed(entries: Sequence[Entry]) -> dict[tuple[str, str, str, int], Entry]:
    """Entries by place and how often it was met before."""
    seen: dict[tuple[str, str, str], int] = {}
    found = {}
    for e in entries:
        place = (e.layer, e.operation, e.rule)
        seen[place] = seen.get(place, 0) + 1
        found[(*place, seen[place])] = e
    return found

r"""What is explained: one number per sample, as a function of real features.

An explanation is about a score $f_c(x)$: a class, a difference of two classes, a predicted value.
`Score` makes of a user's module and inputs a function from flat points `[m, d]` to scores `[m]`, so
that every method is written once: several inputs stand side by side in a point, and words are
represented by their embeddings, since nothing can be differentiated by the number of a word.
Source: Mathematical Aspects of Deep Learning, sections 5.3 and 5.4.1.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from torchtheory.core.budget import check_time
from torchtheory.core.checks import all_finite, as_module, described
from torchtheory.core.errors import EmptyData, InvalidInput, InvalidType, UnsupportedModel
from torchtheory.models.model import PureFunction, main_output, one_output
from torchtheory.models.opened import answer, opened
from torchtheory.tracing.network import Network, Operation
from torchtheory.tracing.recorder import record

#: A class, a class per sample, weights of the outputs, an index of one output, or a function of the
#: outputs `[n, ...]` that returns scores `[n]`; None for the predicted class.
Target = int | Tensor | tuple[int, ...] | Callable[[Tensor], Tensor] | None

Inputs = Tensor | Sequence[Tensor]

#: Entries of points at once: what a pass makes of many more would not stay in the cache.
AT_ONCE = 32 * 3 * 32 * 32


class Score:
    r"""The score $f_c$ of a network at some samples; `open_score` makes one.

    Attributes:
        x: the inputs as given, one tensor or more, each `[n, ...]`.
        points: `[n, d]`, the inputs as real numbers, side by side; words as their embeddings.
        values: `[n]`, the scores at the samples.
        outputs: what the network returns there.
        features: `[d]`, which feature an entry of a point belongs to: a number of a table, a pixel
            with all its channels, a word with its whole embedding.
        places: `[d]`, which number of the inputs, laid side by side, an entry of a point stands
            for: itself, or the word whose embedding it is in.
        classes: `[n]`, the class that is explained, or None if it is no class.
        first: outputs of the first pass as whoever asked for the score made them, if they did.
        forwards, backwards: samples that went through the network in each direction so far.
    """

    def __init__(
        self,
        network: nn.Module,
        x: Sequence[Tensor],
        target: Target,
        *,
        single: bool,
        output: int | str | None = None,
        probabilities: bool = False,
        first: Callable[[Score, Tensor], Tensor] | None = None,
    ) -> None:
        self.network, self.x, self._single = network, tuple(x), single
        self._part, self._probabilities = output, probabilities
        self.forwards = self.backwards = 0
        self._recorded = Recorded(network)
        given = any(not t.is_floating_point() for t in self.x)
        before = torch.get_rng_state()
        self.first: Tensor | None = None
        # (number of an input, what stands for it)
        self._parts: list[tuple[int, Tensor]] = [] if given else list(enumerate(self.x))
        self._lay_out()
        if first is not None and not given and len(self) <= 2 * self.at_once:
            self.first = first(self, self.points)
            outputs = self.first
        else:
            returned, found = self._asked(self.x)
            self._part = main_output(returned) if self._part is None else self._part
            self._parts = [(k, v) for k, own in enumerate(found) for v in own]
            self._lay_out()
            outputs = one_output(returned, self._part)
        self.forwards += len(self)
        if not torch.equal(before, torch.get_rng_state()):
            raise UnsupportedModel(
                "the model draws random numbers in evaluation mode, so it is no one function"
            )
        self.outputs = self._checked(outputs)
        if probabilities and (outputs.ndim != 2 or outputs.shape[1] == 1):
            raise InvalidInput(
                f"probabilities are for outputs [n, classes], not {list(outputs.shape)}: give a "
                "function of the outputs as the target, such as lambda out: out[:, 0].sigmoid()"
            )
        self.classes, self._select = _selection(self.outputs, target)
        self.values = self.selected(self.outputs, None)
        self.features = self._default_features()
        self.places = self._places()

    def __len__(self) -> int:
        return len(self.x[0])

    @property
    def at_once(self) -> int:
        """Points that should go through the network together."""
        return max(16, AT_ONCE // self.points.shape[1])

    def __call__(self, points: Tensor, rows: Tensor | None = None) -> Tensor:
        """Scores `[m]` of points `[m, d]` that stand for the samples `rows`, differentiable.

        Time is that of one pass forward over them all; see `at_once` and `in_chunks`.
        """
        check_time()
        self.forwards += len(points)
        return self.selected(self.run(points, rows), rows)

    def run(self, points: Tensor, rows: Tensor | None = None) -> Tensor:
        """Outputs of the network at points; nothing is counted."""
        arguments, vectors = self.arguments(points, rows)
        if not any(vectors):
            # copies: the model may write into them
            return self.main(answer(self.network, *(t.clone() for t in arguments)))
        network = self._recorded.of(arguments)
        given = embedded(network, vectors)

        def step(op: Operation, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            return given[op] if op in given else op.function(*args, **kwargs)

        return self.main(network.evaluate(arguments, len(points), step))

    def arguments(
        self, points: Tensor, rows: Tensor | None = None
    ) -> tuple[list[Tensor], list[list[Tensor]]]:
        """What the network is given at points, and the embeddings of each input that is words."""
        pieces = torch.split(points, self._columns, 1)
        found: list[Tensor] = []
        vectors: list[list[Tensor]] = []
        shaped = [
            (k, piece.reshape(len(points), *value.shape[1:]))
            for piece, (k, value) in zip(pieces, self._parts, strict=True)
        ]
        for k, given in enumerate(self.x):
            own = [piece for owner, piece in shaped if owner == k]
            real = given.is_floating_point()
            found += own if real else [given if rows is None else given[rows]]
            vectors.append([] if real else own)
        return found, vectors

    def main(self, returned: object) -> Tensor:
        """The output that is meant among what the network returns."""
        self._part = main_output(returned) if self._part is None else self._part
        return one_output(returned, self._part)

    def gradients(self, points: Tensor, rows: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Scores `[m]` and their gradients `[m, d]`.

        Raises:
            UnsupportedModel: if no differentiable path leads from the inputs to the score.
        """
        with torch.enable_grad():
            moved = points.detach().requires_grad_(True)
            values = self(moved, rows)
            refuse_constant(values)
            (gradient,) = torch.autograd.grad(values.sum(), moved)
        self.backwards += len(points)
        return values.detach(), gradient

    def in_chunks(self, points: Tensor, rows: Tensor | None = None) -> Tensor:
        """Scores `[m]` without gradients, some points at a time."""
        rows = torch.arange(len(points), device=points.device) if rows is None else rows
        size = self.at_once
        parts = zip(torch.split(points, size), torch.split(rows, size), strict=True)
        with torch.no_grad():
            return torch.cat([self(p, r) for p, r in parts])

    def gradients_in_chunks(
        self, points: Tensor, rows: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Scores `[m]` and their gradients `[m, d]`, some points at a time."""
        rows = torch.arange(len(points), device=points.device) if rows is None else rows
        size = self.at_once
        parts = zip(torch.split(points, size), torch.split(rows, size), strict=True)
        values, gradients = zip(*(self.gradients(p, r) for p, r in parts), strict=True)
        return torch.cat(values), torch.cat(gradients)

    def points_of(self, x: Inputs) -> Tensor:
        """Points `[m, d]` of other inputs `[m, ...]` of the same shapes; nothing is counted."""
        given = [x] if isinstance(x, Tensor) else list(x)
        if len(given) != len(self.x) or not all(isinstance(t, Tensor) for t in given):
            raise InvalidInput(f"{len(self.x)} inputs are needed, as many as the model takes")
        for t, own in zip(given, self.x, strict=True):
            if t.shape[1:] != own.shape[1:] or t.is_floating_point() != own.is_floating_point():
                raise InvalidInput(
                    f"inputs like {described(own)} are needed, any number of them, not "
                    f"{described(t)}"
                )
        if len({len(t) for t in given}) > 1 or len(given[0]) == 0:
            counts = " and ".join(str(len(t)) for t in given)
            raise EmptyData(f"the same number of each input is needed, 1 or more, not {counts}")
        given = [t.to(own) for t, own in zip(given, self.x, strict=True)]
        if all(t.is_floating_point() for t in given):
            return torch.cat([t.reshape(len(t), -1) for t in given], 1)
        found = self._asked(given)[1]
        return torch.cat([v.reshape(len(v), -1) for own in found for v in own], 1)

    def by_place(self, entries: Tensor) -> Tensor:
        """What entries `[m, d]` of each number of the inputs add up to, `[m, places]`."""
        count = int(self.places.max()) + 1
        if count == entries.shape[1]:
            return entries
        totals = entries.new_zeros(len(entries), count)
        return totals.index_add_(1, self.places, entries)

    def shared(self, numbers: Tensor) -> Tensor:
        """Entries `[m, d]` among which numbers `[m, places]` are shared equally."""
        sizes = torch.bincount(self.places).to(numbers)
        return (numbers / sizes)[:, self.places]

    def shaped(self, relevance: Tensor) -> Tensor | tuple[Tensor, ...]:
        """Relevance of entries `[n, d]` in the shape of the inputs; a word has its total."""
        found: list[Tensor | None] = [None] * len(self.x)
        for piece, (k, value) in zip(
            torch.split(relevance, self._columns, 1), self._parts, strict=True
        ):
            whole = piece.reshape(len(relevance), *value.shape[1:])
            if not self.x[k].is_floating_point():
                before = found[k]
                whole = whole.sum(-1) if before is None else before + whole.sum(-1)
            found[k] = whole
        shaped = tuple(f for f in found if f is not None)
        return shaped[0] if self._single else shaped

    def _asked(self, x: Sequence[Tensor]) -> tuple[object, list[list[Tensor]]]:
        """What the network returns, and what stands for each input: itself, or its embeddings."""
        if all(t.is_floating_point() for t in x):
            with torch.no_grad():
                return answer(self.network, *(t.clone() for t in x)), [[t] for t in x]
        network = self._recorded.of(x)
        uses = embeddings(network)
        found: list[list[Tensor]] = [[t] if t.is_floating_point() else [] for t in x]

        def step(op: Operation, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            made = op.function(*args, **kwargs)
            if op in uses:
                found[uses[op]].append(made)
            return made

        with torch.no_grad():
            returned = network.evaluate(x, len(x[0]), step)
        for t, parts in zip(x, found, strict=True):
            if not parts:
                raise UnsupportedModel(
                    f"no embedding takes the whole numbers {list(t.shape)} as they stand, so the "
                    "score has no slope in them: give real inputs (x.float()), or a model that "
                    "calls nn.Embedding on all of them, neither cut nor turned round"
                )
        return returned, found

    def _lay_out(self) -> None:
        """Points of what stands for the inputs, side by side."""
        self._columns = [math.prod(p.shape[1:]) for _, p in self._parts]
        flat = [p.detach().reshape(len(self), -1) for _, p in self._parts]
        self.points = torch.cat(flat, 1) if flat else self.x[0].new_zeros(len(self), 0)

    def _default_features(self) -> Tensor:
        """The entries that belong together: channels of a pixel, the embedding of a word."""
        numbers: list[Tensor] = []
        known: dict[int, Tensor] = {}
        count = 0
        for k, value in self._parts:
            given, shape = self.x[k], value.shape[1:]
            if not given.is_floating_point():  # [time, embedding]
                if k not in known:
                    known[k] = count + torch.arange(given[0].numel())
                    count += given[0].numel()
                each = known[k].reshape(*given.shape[1:], 1).expand(shape)
            elif len(shape) == 3:  # [channels, height, width]
                each = count + torch.arange(math.prod(shape[1:])).reshape(shape[1:]).expand(shape)
                count += math.prod(shape[1:])
            else:
                each = count + torch.arange(shape.numel())
                count += shape.numel()
            numbers.append(each.reshape(-1))
        return torch.cat(numbers).to(self.points.device)

    def _places(self) -> Tensor:
        """The number of the inputs that each entry stands for; see `places`."""
        sizes = [t[0].numel() for t in self.x]
        numbers: list[Tensor] = []
        for k, value in self._parts:
            each = sum(sizes[:k]) + torch.arange(sizes[k])
            if not self.x[k].is_floating_point():
                each = each.reshape(*self.x[k].shape[1:], 1).expand(value.shape[1:])
            numbers.append(each.reshape(-1))
        return torch.cat(numbers).to(self.points.device)

    def _checked(self, outputs: Tensor) -> Tensor:
        if outputs.ndim == 0 or len(outputs) != len(self):
            raise InvalidInput(
                f"the model returns {list(outputs.shape)} for {len(self)} samples: an explanation "
                "needs one row of outputs per sample"
            )
        return all_finite(outputs.detach(), "the outputs of the model")

    def selected(self, outputs: Tensor, rows: Tensor | None) -> Tensor:
        """Scores `[m]` that outputs of the samples `rows` have."""
        if not outputs.is_floating_point():  # votes, or a class
            outputs = outputs.to(self.points.dtype)
        if self._probabilities:
            outputs = torch.softmax(outputs, 1)
        return self._select(outputs, rows)


@contextmanager
def open_score(
    model: nn.Module,
    x: Inputs,
    target: Target = None,
    *,
    output: int | str | None = None,
    probabilities: bool = False,
    seed: int = 0,
    first: Callable[[Score, Tensor], Tensor] | None = None,
    prepare: Callable[[nn.Module, Sequence[Tensor]], nn.Module] | None = None,
) -> Iterator[Score]:
    """The score of a user's network at some samples, while the model stays as it was.

    Args:
        model: the network; a private copy of it runs, in evaluation mode.
        x: inputs `[n, ...]`, or several such tensors for a model of several inputs. Whole numbers
            are words: they must go through an embedding.
        target: what is explained: None for the class the model predicts (or its one output), a
            class, classes `[n]`, weights of the outputs `[C]` or `[n, C]`, the index of one entry
            of an output such as `(time, class)`, or a function of the outputs that returns `[n]`.
        output: position or key of the output that is meant, where there are several.
        probabilities: whether outputs go through a softmax first.
        seed: of what the model draws, which is an error.
        first: makes the outputs of the first pass out of the score and its points, by `Score.run`,
            for a method that has use for it; not asked for words, nor for many samples.
        prepare: makes of the private network and the inputs the network that is asked.

    Raises:
        UnsupportedModel: for a model in training mode with dropout, one that draws random numbers,
            and whole numbers that go through no embedding as they stand.

    >>> net = nn.Linear(2, 3)
    >>> with open_score(net, torch.ones(4, 2), target=1) as score:
    ...     bool((score.values == net(torch.ones(4, 2))[:, 1]).all()), score.points.shape
    (True, torch.Size([4, 2]))
    """
    single = isinstance(x, Tensor)
    given = [x] if isinstance(x, Tensor) else list(x) if isinstance(x, list | tuple) else []
    if not given or not all(isinstance(t, Tensor) for t in given):
        raise InvalidType(f"x must be a tensor, or several in a tuple, not {described(x)}")
    for t in given:
        if t.ndim == 0 or t.numel() == 0:
            raise EmptyData(f"x needs samples in its first dimension, not a shape {list(t.shape)}")
        if len(t) != len(given[0]):
            raise InvalidInput(f"the inputs have {len(given[0])} and {len(t)} samples")
        if t.is_complex():
            raise InvalidType("complex inputs have no relevance here; give real ones")
        if t.is_floating_point():
            all_finite(t, "x")
    _refuse_dropout(as_module(model))
    with torch.inference_mode(False), opened(model, given[0], seed) as network:
        weights = next((p for p in network.parameters() if p.is_floating_point()), None)
        if weights is not None:  # the model decides about precision and device
            given = [
                t.to(weights.device, weights.dtype if t.is_floating_point() else t.dtype)
                for t in given
            ]
        yield Score(
            network if prepare is None else prepare(network, given),
            given,
            target,
            single=single,
            output=output,
            probabilities=probabilities,
            first=first,
        )


def refuse_constant(values: Tensor) -> None:
    """Refuse scores of which no gradient can be taken."""
    if not values.requires_grad:
        raise UnsupportedModel(
            "no differentiable path leads from the inputs to the score (the model rounds, leaves "
            "torch, or runs under no_grad): use occlusion, shapley or lime, which only ask for "
            "outputs"
        )


def _refuse_dropout(model: nn.Module) -> None:
    for name, module in model.named_modules():
        if module.training and isinstance(module, nn.modules.dropout._DropoutNd) and module.p > 0:
            raise UnsupportedModel(
                f"the model is in training mode and layer {name!r} draws dropout, so it is no one "
                "function: call model.eval() first"
            )


def _selection(
    outputs: Tensor, target: Target
) -> tuple[Tensor | None, Callable[[Tensor, Tensor | None], Tensor]]:
    """The classes that are explained, if they are classes, and how to read scores off outputs."""
    n = len(outputs)
    if callable(target) and not isinstance(target, Tensor):
        return None, lambda out, rows: _one_per_sample(target(out), len(out))
    if isinstance(target, tuple):
        index: Any = (slice(None), *target)
        try:
            _one_per_sample(outputs[index], n)
        except IndexError as error:
            raise InvalidInput(
                f"target {target} is no index of outputs {list(outputs.shape[1:])}"
            ) from error
        return None, lambda out, rows: out[index]
    if outputs.ndim == 1 or outputs.shape[1:].numel() == 1:
        if target is not None and not (isinstance(target, int) and target == 0):
            raise InvalidInput("the model has one output, so target can be left out")
        return None, lambda out, rows: out.reshape(len(out))
    if outputs.ndim > 2:
        raise InvalidInput(
            f"the model returns {list(outputs.shape[1:])} per sample: say which entry is meant, "
            "such as target=(time, class), or give a function of the outputs"
        )
    width = outputs.shape[1]
    if width == 0:
        raise UnsupportedModel("the model has outputs of no column, so there is no score")
    if target is None:
        classes = outputs.argmax(1)
    elif isinstance(target, Tensor) and target.is_floating_point():
        if target.shape not in {(width,), (n, width)}:
            raise InvalidInput(
                f"weights of {width} outputs of {n} samples have the shape [{width}] or "
                f"[{n}, {width}], not {list(target.shape)}"
            )
        weights = all_finite(target, "the weights of the outputs").to(outputs).expand(n, width)
        return None, lambda out, rows: ((weights if rows is None else weights[rows]) * out).sum(1)
    elif isinstance(target, int | Tensor) and not isinstance(target, bool):
        if isinstance(target, int) and not 0 <= target < width:
            raise InvalidInput(f"the model has the classes 0 to {width - 1}: {described(target)}")
        classes = torch.as_tensor(target, device=outputs.device).long()
        if classes.shape not in {(), (n,)}:
            raise InvalidInput(f"one class, or one for each of {n} samples: {described(target)}")
        classes = classes.expand(n)
        if int(classes.min()) < 0 or int(classes.max()) >= width:
            raise InvalidInput(f"the model has the classes 0 to {width - 1}: {described(target)}")
    else:
        raise InvalidType(f"target cannot be {described(target)}")

    def select(out: Tensor, rows: Tensor | None) -> Tensor:
        own = classes if rows is None else classes[rows]
        return out.gather(1, own[:, None])[:, 0]

    return classes, select


def _one_per_sample(scores: Any, count: int) -> Tensor:
    if not isinstance(scores, Tensor) or scores.shape != (count,):
        kind = list(scores.shape) if isinstance(scores, Tensor) else described(scores)
        raise InvalidInput(
            f"the target must lead to one number per row of outputs, [{count}], not {kind}; it "
            "meets any number of rows, since many points are asked together"
        )
    return scores


class Recorded:
    """The operations of a network: recorded once, or anew where its way depends on the samples.

    Args:
        model: the network, which nobody else runs.
        known: which operations are to stay as they are; see `record`.
    """

    def __init__(self, model: nn.Module, known: Callable[[str], bool] | None = None) -> None:
        self._model, self._known = model, known
        self._function: PureFunction | None = None
        self._network: Network | None = None

    def of(self, x: Sequence[Tensor]) -> Network:
        """The network that runs on these inputs."""
        if self._network is not None:
            return self._network
        given, whole = tuple(t.detach() for t in x), self._function is not None
        self._function = self._function or PureFunction(self._model, private=False)
        network = record(self._function, given, known=self._known, whole=whole)
        if network.decisions and network.rows is None:
            return record(self._function, given, known=self._known, whole=True)
        self._network = network if network.rows is None else None
        return network


#: Operations that leave numbers of words where they are.
_AS_THEY_STAND = frozenset(
    """
    to long int type type_as clone contiguous detach alias identity view reshape view_as reshape_as
    lift_fresh cpu cuda
    """.split()
)


def embeddings(network: Network) -> dict[Operation, int]:
    """The operations that embed the words of an input as they stand, and which input."""
    owner = {value: k for k, value in enumerate(network.inputs)}
    found: dict[Operation, int] = {}
    for op in network:
        if op.name == "embedding":
            numbers = op.arguments.get("indices", op.arguments.get("input"))
            if numbers in owner:
                found[op] = owner[numbers]
        elif op.name in _AS_THEY_STAND and op.inputs and op.inputs[0] in owner:
            (made,) = op.outputs
            if made.shape == op.inputs[0].shape:
                owner[made] = owner[op.inputs[0]]
    return found


def embedded(network: Network, vectors: Sequence[Sequence[Tensor]]) -> dict[Operation, Tensor]:
    """Given vectors in the place of what embeddings return, in the same order."""
    left = [iter(own) for own in vectors]
    return {op: next(left[k]) for op, k in embeddings(network).items()}

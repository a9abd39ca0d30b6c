"""Operations that put entries elsewhere, repeat or leave out some, or do nothing.

They need no rule: the derivative takes the relevance of every entry where the entry came from.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from torch import Tensor

from torchtheory.explanation.propagation.marks import Mark, is_signal, mark_of, moved, noted
from torchtheory.explanation.propagation.names import function_named
from torchtheory.explanation.propagation.tracing import Handler, Propagation

_MOVES = """
    view reshape flatten unflatten ravel squeeze unsqueeze permute transpose movedim t adjoint flip
    fliplr flipud roll rot90 view_as reshape_as expand expand_as broadcast_to repeat tile
    repeat_interleave index_select gather take_along_dim __getitem__ select narrow chunk split
    split_with_sizes unbind tensor_split hsplit vsplit dsplit diagonal atleast_1d atleast_2d
    atleast_3d pixel_shuffle pixel_unshuffle channel_shuffle unfold
"""

_DROPOUTS = """
    dropout dropout1d dropout2d dropout3d alpha_dropout feature_dropout feature_alpha_dropout
"""


def _move(trace: Propagation, name: str, x: Any, *args: Any, **named: Any) -> Any:
    """An operation that puts entries of one signal elsewhere, or repeats or leaves out some."""
    if name.startswith("atleast") and args:  # several, each for itself
        with trace:
            return tuple(function_named(name)(t) for t in (x, *args))
    if not is_signal(x):
        return NotImplemented
    func = function_named(name)
    made = func(x, *args, **named)
    mark = mark_of(x)
    # numbers of samples are laid out in another way, so that they have no such view
    alike = {"view": "reshape", "view_as": "reshape_as"}.get(name)
    of_samples = func if alike is None else function_named(alike)
    samples = moved(mark.samples, x.shape, lambda s: of_samples(s, *args, **named))
    return _noted_like(made, samples, mark)


def _noted_like(made: Any, samples: Any, mark: Mark) -> Any:
    if isinstance(made, Tensor):
        return noted(made, replace(mark, samples=samples))
    each = [None] * len(made) if samples is None else samples
    for t, s in zip(made, each, strict=True):
        noted(t, replace(mark, samples=s))
    return made


def _property(trace: Propagation, name: str, x: Tensor) -> Any:
    """`x.T` and the like."""
    get = getattr(Tensor, name.removeprefix("get ")).__get__
    mark = mark_of(x)
    return _noted_like(get(x), moved(mark.samples, x.shape, get), mark)


def _same(trace: Propagation, name: str, x: Tensor, *args: Any, **named: Any) -> Any:
    """A cast, or a copy."""
    made = function_named(name)(x, *args, **named)
    return noted(made, mark_of(x)) if made is not x and is_signal(made) else made


def _itself(trace: Propagation, name: str, x: Tensor, *args: Any, **named: Any) -> Any:
    return x


def _dropout(
    trace: Propagation, name: str, x: Tensor, p: float = 0.5, training: Any = True, **named: Any
) -> Any:
    if (training or named.get("train", False)) and p > 0:
        raise trace.refusal("the network drops units at random")
    return x


def _iterated(trace: Propagation, name: str, x: Tensor) -> Any:
    with trace:
        return iter(x.unbind(0))


MOVES: dict[str, Handler] = {
    **dict.fromkeys(_MOVES.split(), _move),
    **{f"get {name}": _property for name in ("T", "mT", "H", "mH")},
    **dict.fromkeys(
        "to float double half bfloat16 type type_as cpu cuda contiguous clone alias".split(), _same
    ),
    **dict.fromkeys(("requires_grad", "alias_copy"), _itself),
    **dict.fromkeys(_DROPOUTS.split(), _dropout),
    "__iter__": _iterated,
}

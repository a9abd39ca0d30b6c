"""What may have been done to test inputs alone, as maps that undo it.

Each is named by what was done. Where it was done, undoing it takes the error off; where it was not,
it adds some. So the network itself tells, and a change that does it no harm is not brought up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import permutations

import torch
from scipy import optimize
from torch import Tensor

from torchtheory.audit.causes.layout import Layout, layouts
from torchtheory.core.naming import runs, several
from torchtheory.core.random import as_generator
from torchtheory.data.shift import column_shift
from torchtheory.data.wide_rows import rows_within
from torchtheory.models.problem import Problem
from torchtheory.models.samples import Samples

#: Samples that means and scales are taken from, at most.
ROWS = 5000

#: Most columns whose order is looked for, and most channels.
COLUMNS, CHANNELS = 200, 4

#: A column or channel is looked at if its scale or place differs by so much: a factor, and standard
#: deviations; and so many of them are undone one by one at most.
SCALE, SHIFT, SINGLE = 1.25, 0.25, 4

#: Standard errors of a mean by which another place of a column must fit better.
STAYS = 4.0


@dataclass(frozen=True, slots=True)
class Undoing:
    """A map of test inputs to inputs as in training.

    Attributes:
        family: `scale`, `orientation` or `order`; those of one family are versions of one cause.
        words: what was done, after 'the test inputs'.
        undo: the map of inputs `[n, ...]`.
    """

    family: str
    words: str
    undo: Callable[[Tensor], Tensor]

    def of(self, samples: Samples) -> Samples:
        return Samples(self.undo(samples.x).to(samples.x), samples.y)


def undoings(problem: Problem) -> list[Undoing]:
    """All that are tried; the simpler of one family come first."""
    assert problem.test is not None
    most, source = rows_within(ROWS, problem.train.x[0].numel(), least=2), as_generator(0)
    train, test = (s.some(most, source) for s in (problem.train, problem.test))
    every = layouts(problem)
    found = list(_scales(train.x, test.x))
    if len(train.x.shape) == 2:
        labels = (train.y, test.y) if problem.is_classification else None
        found += _columns(train.x, test.x, labels)
        found += _column_order(train.x, test.x)
    for layout in every:
        found += _channels(train.x, test.x, layout)
        found += orientations(layout)
        found += _moves(train.x, test.x, layout)
    return found


# ------------------------------------------------------------------------------- scale and place


def _scales(train: Tensor, test: Tensor) -> Iterator[Undoing]:
    """All entries multiplied, moved or inverted."""
    mean, size = float(train.double().mean()), float(train.double().std())
    there, spread = float(test.double().mean()), float(test.double().std())
    if not size > 0 or not spread > 0:
        return
    ratio, moved = spread / size, (there - mean) / size
    if not 1 / SCALE < ratio < SCALE:
        by, word = (ratio, "more") if ratio > 1 else (1 / ratio, "less")
        yield Undoing(
            "scale", f"are of another scale, varying {by:.3g} times {word}",
            lambda x: (x - there) / ratio + mean,
        )  # fmt: skip
        yield Undoing("scale", f"are multiplied by {ratio:.3g}", lambda x: x / ratio)
    elif abs(moved) > SHIFT:
        yield Undoing(
            "scale", f"are shifted by {moved:.2g} standard deviations", lambda x: x - there + mean
        )
    yield Undoing("scale", "are inverted, large for small", lambda x: (there - x) / ratio + mean)


def _columns(
    train: Tensor, test: Tensor, labels: tuple[Tensor, Tensor] | None
) -> Iterator[Undoing]:
    """Features of a table, those that differ most alone and all of them together."""
    found = column_shift(train, test, labels)
    by = torch.maximum(found.ratio, 1 / found.ratio)
    bad = ((by > SCALE) | (found.shift.abs() > SHIFT)).nonzero().flatten()
    bad = bad[(by.log() + found.shift.abs())[bad].argsort(descending=True)]
    columns = found.columns[bad]
    for some in (*(columns[k : k + 1] for k in range(min(SINGLE, len(bad)))), columns):
        if len(some):
            yield _restored(train, test, some.sort().values)


def _scaled(ratio: Tensor) -> Tensor:
    """Which scales differ by more than `SCALE`."""
    return torch.maximum(ratio, 1 / ratio) > SCALE


def _restored(train: Tensor, test: Tensor, columns: Tensor) -> Undoing:
    """Some columns are given the mean and deviation they have in training."""
    names = columns.tolist()
    one, two = train[:, columns].double(), test[:, columns].double()
    ratio = two.std(0) / one.std(0)

    def undo(x: Tensor) -> Tensor:
        made = x.clone()
        made[:, columns] = ((x[:, columns].double() - two.mean(0)) / ratio + one.mean(0)).to(x)
        return made

    how = "on another scale" if bool(_scaled(ratio).any()) else "shifted"
    if len(names) == 1:
        shift = float((two.mean(0) - one.mean(0)) / one.std(0))
        words = (
            f"have feature {names[0]} of {train.shape[1]} {how}: it varies "
            f"{float(ratio):.3g} times as much and lies {shift:.2g} standard deviations off"
        )
    else:
        words = f"have {len(names)} of {train.shape[1]} features {how}: {several(runs(names))}"
    return Undoing("scale", words, undo)


def _channels(train: Tensor, test: Tensor, layout: Layout) -> Iterator[Undoing]:
    """Channels of another scale, one by one and together; and their order."""
    channel = layout.channel
    if channel is None:
        return
    one, two = (_shaped(x, layout).transpose(0, channel).flatten(1).double() for x in (train, test))
    if len(one) < 2:
        return
    size, spread = one.std(1), two.std(1)
    off = (two.mean(1) - one.mean(1)) / size
    ratio = spread / size
    by = torch.maximum(ratio, 1 / ratio)
    bad = ((by > SCALE) | (off.abs() > SHIFT)) & (size > 0) & (spread > 0)
    names = bad.nonzero().flatten()
    names = names[(by.log() + off.abs())[names].argsort(descending=True)]
    what = "feature" if layout.places == (1,) else "channel"
    for some in (*(names[k : k + 1] for k in range(min(SINGLE, len(names)))), names):
        if 0 < len(some) < len(one) or len(some) == len(one) > 1:
            yield _restored_channels(one, two, some.sort().values, layout, what)
    if what == "channel" and len(one) <= CHANNELS and not layout.flat:
        for order in list(permutations(range(len(one))))[1:]:
            back = torch.tensor(order)

            def undo(x: Tensor, back: Tensor = back) -> Tensor:
                return x.index_select(channel, back.to(x.device))

            yield Undoing("order", f"have their channels in another order, {_order(order)}", undo)


def _order(order: tuple[int, ...]) -> str:
    """Where the channels of training are found."""
    return ", ".join(str(k) for k in order)


def _restored_channels(
    one: Tensor, two: Tensor, names: Tensor, layout: Layout, what: str
) -> Undoing:
    ratio = torch.ones(len(one), dtype=torch.float64)
    there, mean = torch.zeros_like(ratio), torch.zeros_like(ratio)
    ratio[names] = (two[names].std(1) / one[names].std(1)).cpu()
    there[names], mean[names] = two[names].mean(1).cpu(), one[names].mean(1).cpu()
    assert layout.channel is not None
    view = [1] * (1 + len(layout.shape))
    view[layout.channel] = len(one)

    def undo(x: Tensor) -> Tensor:
        shaped = _shaped(x, layout).double()
        a, b, c = (v.reshape(view).to(shaped) for v in (there, ratio, mean))
        return ((shaped - a) / b + c).reshape(x.shape)

    if len(names) == 1:
        k = int(names[0])
        shift = float((two[k].mean() - one[k].mean()) / one[k].std())
        words = (
            f"have {what} {k} (from 0) of {len(one)} on another scale: it varies "
            f"{float(ratio[k]):.3g} times as much and lies {shift:.2g} standard deviations off"
        )
    else:
        listed = several(runs(names.tolist()))
        words = f"have {what}s {listed} (from 0) of {len(one)} on another scale"
    return Undoing("scale", words, undo)


# -------------------------------------------------------------------------- order and orientation


def _column_order(train: Tensor, test: Tensor) -> Iterator[Undoing]:
    """Columns in another order, found by their laws: the assignment of nearest quantiles."""
    d = train.shape[1]
    if not 2 <= d <= COLUMNS:
        return
    levels = torch.linspace(0.05, 0.95, 19, dtype=torch.float64)
    one, two = (x.double().cpu().quantile(levels, 0) for x in (train, test))
    size = one.std(0).clamp(min=1e-12)
    apart = ((two[:, :, None] - one[:, None, :]) / size).abs().mean(0)  # [test, train]
    # of columns that chance cannot tell apart, each stays where it is
    apart -= STAYS * min(len(train), len(test)) ** -0.5 * torch.eye(d)
    rows, columns = optimize.linear_sum_assignment(apart.numpy())
    # where the column of training is found in the test data
    back = torch.empty(d, dtype=torch.long)
    back[torch.as_tensor(columns)] = torch.as_tensor(rows)
    moved = (back != torch.arange(d)).nonzero().flatten()
    if len(moved) == 0:
        return
    told = f"have {len(moved)} of {d} features in another order"
    first = [f"{int(k)} stands at {int(back[k])}" for k in moved]
    yield Undoing(
        "order", f"{told} ({several(first, 3)})", lambda x: x.index_select(1, back.to(x.device))
    )


def _shaped(x: Tensor, layout: Layout) -> Tensor:
    return x.reshape(len(x), *layout.shape)


def orientations(layout: Layout) -> Iterator[Undoing]:
    """Images mirrored, turned or transposed; sequences reversed."""
    maps: list[tuple[str, Callable[[Tensor], Tensor]]] = []
    if len(layout.places) == 1:
        (time,) = layout.places
        maps.append(("are in reverse order", lambda x: x.flip(time)))
    else:
        rows, columns = layout.places
        maps += [
            ("are mirrored left to right", lambda x: x.flip(columns)),
            ("are mirrored upside down", lambda x: x.flip(rows)),
            ("are rotated by 180 degrees", lambda x: x.flip(rows, columns)),
        ]
        if layout.shape[rows - 1] == layout.shape[columns - 1]:
            maps += [
                ("are transposed", lambda x: x.transpose(rows, columns)),
                ("are rotated by 90 degrees", lambda x: x.rot90(-1, (rows, columns))),
                ("are rotated by 270 degrees", lambda x: x.rot90(1, (rows, columns))),
                (
                    "are transposed about the other diagonal",
                    lambda x: x.transpose(rows, columns).flip(rows, columns),
                ),
            ]
    for words, turn in maps:
        yield Undoing("orientation", words, _in_shape(turn, layout))


def _in_shape(turn: Callable[[Tensor], Tensor], layout: Layout) -> Callable[[Tensor], Tensor]:
    """A map of samples of a shape, for samples as they are given."""
    return lambda x: turn(_shaped(x, layout)).reshape(x.shape)


def _moves(train: Tensor, test: Tensor, layout: Layout) -> Iterator[Undoing]:
    """Images moved by some pixels, as their means tell."""
    if len(layout.places) != 2:
        return
    by = _moved(_shaped(train, layout), _shaped(test, layout), layout)
    if by is not None:
        down, right = by
        yield Undoing(
            "orientation", f"are moved by {down} pixels down and {right} to the right",
            _in_shape(lambda x: x.roll((-down, -right), layout.places), layout),
        )  # fmt: skip


def _moved(train: Tensor, test: Tensor, layout: Layout) -> tuple[int, int] | None:
    """By how many pixels the mean test image is moved against that of training, if at all."""
    rows, columns = layout.places
    one, two = (x.double().mean(0) for x in (train, test))
    axes = (rows - 1, columns - 1)
    spectrum = torch.fft.fft2(two - two.mean(), dim=axes)
    spectrum = spectrum * torch.fft.fft2(one - one.mean(), dim=axes).conj()
    together = torch.fft.ifft2(spectrum, dim=axes).real
    if layout.channel is not None:
        together = together.sum(layout.channel - 1)
    height, width = together.shape
    down, right = divmod(int(together.argmax()), width)
    down, right = (k - n if k > n // 2 else k for k, n in ((down, height), (right, width)))
    return None if (down, right) == (0, 0) else (down, right)

r"""Is a network initialized at a scale that lets gradients through?

With independent weights every layer multiplies the length of the gradient by some factor on
average, and a factor other than 1 becomes exponential in depth. Here it is measured on the user's
own network and data, compared with what the norms of the weights predict, and the deviation that
would make it 1 is found and tried. Source: Foundations of Deep Learning, section 6.2.3.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from scipy.optimize import brentq
from torch import Tensor, nn

from torchtheory.core.errors import InvalidInput, NonFinite, TorchTheoryError, UnsupportedModel
from torchtheory.models.model import Parameters, parameters_from
from torchtheory.models.problem import Problem
from torchtheory.models.samples import Samples
from torchtheory.nets.fresh_weights import drawn_anew
from torchtheory.optimization.landscape.batch_statistics import (
    batch_normalizations,
    normalized_by_batch,
)
from torchtheory.tracing.watching import LayerSignal, watch_signals
from torchtheory.training.signal_propagation import predict_signal_of

#: Samples the signals are measured on.
SAMPLES = 256

#: Factors on the deviations among which the right one is sought.
SMALLEST_FACTOR, LARGEST_FACTOR = 0.02, 50.0

#: Pairs of places, over samples, that are predicted: of larger images fewer samples.
PAIRS = 1_000_000

#: Draws are kept where so many times their size fits into the memory.
KEPT = 4


@dataclass(frozen=True, slots=True)
class LayerScale:
    r"""One layer with a weight matrix, in the order of use.

    Attributes:
        layer: its name.
        fan_in, fan_out: numbers that arrive at one output, and outputs.
        deviation: of its weights at a fresh initialization (root mean square).
        advised: the deviation that lets gradients keep their length; None if none was found.
        predicted: length of the gradient in its outputs at a fresh initialization, from the norms
            of the weights alone; None where no limit of infinite width is known.
        fresh: the same measured; root mean square over samples and draws.
        now: the same at the weights the problem has.
        repaired: the same at the advised deviation.
    """

    layer: str
    fan_in: int
    fan_out: int
    deviation: float
    advised: float | None
    predicted: float | None
    fresh: float
    now: float
    repaired: float | None


@dataclass(frozen=True, slots=True)
class InitializationReport:
    r"""Gradients by depth at a fresh initialization and now.

    A growth is the logarithm of the factor a layer: of
    $(\|\partial\ell/\partial z_1\|/\|\partial\ell/\partial z_L\|)^{1/(L-1)}$, the mean over
    the draws. Above 0 gradients explode on their way back, below 0 they vanish.

    Attributes:
        layers: one row per layer.
        growth: at a fresh initialization.
        growth_now: at the weights the problem has.
        growth_predicted: in the limit of infinite width; None where none is known.
        growth_repaired: with every weight matrix multiplied by `factor`.
        factor: on all deviations, that brings the growth to 0; None if there is none.
        notes: sentences on what could not be told, and why.
    """

    layers: tuple[LayerScale, ...]
    growth: float
    growth_now: float
    growth_predicted: float | None
    growth_repaired: float | None
    factor: float | None
    notes: tuple[str, ...]


def initialization_report(
    problem: Problem, samples: Samples | None = None, *, draws: int = 3, seed: int = 0
) -> InitializationReport:
    r"""How gradients grow with depth at a fresh initialization, and what would keep their length.

    Fresh weights are drawn by the layers' own rules (`reset_parameters`); where a layer has
    none, the problem's `initial` weights stand for them. Batch normalization works on the samples
    as it does in training. The factor on the deviations is found
    by bisection on the measured growth, so it counts activations, normalization and skip
    connections as they are; biases stay as drawn. For a deep ReLU network it leads to
    $\sigma=\sqrt{2/n}$, whatever torch's default was.

    Args:
        problem: model, data and loss; the model is not changed.
        samples: where gradients are measured; some of the training data unless given.
        draws: of fresh weights.
        seed: of the draws.

    About `15 * draws` passes forward and backward over at most 256 samples.

    >>> net = nn.Sequential(*[m for _ in range(8) for m in (nn.Linear(64, 64), nn.ReLU())])
    >>> x = torch.randn(32, 64, generator=torch.Generator().manual_seed(0))
    >>> report = initialization_report(Problem(net, (x, x), task="regression"))
    >>> report.growth < -0.5, abs(report.growth_repaired) < 0.01       # torch's default: log √⅙
    (True, True)
    """
    samples = _samples(problem, samples, draws, seed)
    notes: list[str] = []
    fresh = _Draws(problem, draws, seed, notes)
    signals = [_signals(problem, samples, point) for point in fresh.points()]
    names = [s.layer for s in signals[0]]
    measured, growth = _lengths(signals), _mean_growth(signals)
    shapes = {k: p.shape for k, p in problem.parameters.items()}
    matrices = {name: _matrices_of(name, shapes) for name in names}
    scaled = {k for group in matrices.values() for k in group}
    factor = _factor(problem, samples, fresh, scaled, growth, notes)
    repaired = None
    if factor is not None:
        repaired = _scaled(problem, samples, fresh, scaled, factor)
    predicted = None
    if len(matrices) < len(names):
        notes.append("No prediction: layers share weights, which it takes to be independent.")
    elif batch_normalizations(problem):
        notes.append("No prediction: no limit is known for the statistics of batches.")
    else:
        predicted = _predicted(fresh.models(), samples.x, measured[-1], names, notes)
    now = _lengths([_signals(problem, samples, problem.parameters)])
    then = None if repaired is None else _lengths(repaired)
    squares = [
        {name: float(point[own[0]].double().square().mean()) for name, own in matrices.items()}
        for point in fresh.points()
    ]
    rows = []
    for k, name in enumerate(names):
        shape = shapes[matrices[name][0]]
        deviation = math.sqrt(math.fsum(s[name] for s in squares) / len(squares))
        rows.append(
            LayerScale(
                layer=name,
                fan_in=math.prod(shape[1:]),
                fan_out=shape[0],
                deviation=deviation,
                advised=None if factor is None else factor * deviation,
                predicted=None if predicted is None else predicted[k],
                fresh=measured[k],
                now=now[k],
                repaired=None if then is None else then[k],
            )
        )
    return InitializationReport(
        layers=tuple(rows),
        growth=growth,
        growth_now=_growth(now),
        growth_predicted=None if predicted is None else _growth(predicted),
        growth_repaired=None if repaired is None else _mean_growth(repaired),
        factor=factor,
        notes=tuple(notes),
    )


def fresh_growths(
    problem: Problem,
    samples: Samples | None = None,
    *,
    factor: float = 1.0,
    draws: int = 8,
    seed: int = 0,
) -> list[float]:
    r"""The growth of gradients a layer at each of several draws of fresh weights.

    With the `factor` of `initialization_report` and other seeds it tells whether that
    factor serves the network, or only the draws it was found with. A pass forward and backward for
    each draw.

    Args:
        problem: model, data and loss; the model is not changed.
        samples: where gradients are measured; some of the training data unless given.
        factor: on all weight matrices.
        draws: of fresh weights, by seeds `seed`, `seed + 1`, and so on.
        seed: of the first.

    >>> net = nn.Sequential(*[m for _ in range(8) for m in (nn.Linear(64, 64), nn.ReLU())])
    >>> x = torch.randn(32, 64, generator=torch.Generator().manual_seed(0))
    >>> p = Problem(net, (x, x), task="regression")
    >>> found = fresh_growths(p, factor=initialization_report(p).factor, seed=3)
    >>> abs(sum(found) / 8) < 0.05
    True
    """
    samples, notes = _samples(problem, samples, draws, seed), list[str]()
    fresh = _Draws(problem, draws, seed, notes)
    names = {s.layer for s in _signals(problem, samples, next(fresh.points()))}
    shapes = {k: p.shape for k, p in problem.parameters.items()}
    scaled = {k for name in names for k in _matrices_of(name, shapes)}
    return [
        _growth(_lengths([found])) for found in _scaled(problem, samples, fresh, scaled, factor)
    ]


def _samples(problem: Problem, samples: Samples | None, draws: int, seed: int) -> Samples:
    if draws < 1:
        raise InvalidInput(f"at least one draw is needed, not {draws}")
    if samples is not None:
        return samples
    return problem.train.some(min(SAMPLES, len(problem.train)), torch.Generator().manual_seed(seed))


def _signals(problem: Problem, samples: Samples, point: Parameters) -> list[LayerSignal]:
    """With batches normalized by themselves: averages of other weights do not belong to these."""
    return watch_signals(problem, samples, point, compute=normalized_by_batch)


class _Draws:
    """Fresh weights of a network, by a seed each; drawn again each time where many are too large.

    Where none can be drawn, the weights that training began with stand for them.
    """

    def __init__(self, problem: Problem, draws: int, seed: int, notes: list[str]) -> None:
        self._problem, self._seeds = problem, range(seed, seed + draws)
        self._known: list[nn.Module] | None = None
        self._start: Parameters | None = None
        parameters = problem.parameters.values()
        size = draws * sum(p.numel() * p.element_size() for p in parameters)
        try:
            if KEPT * size <= problem.memory:
                self._known = [self._draw(s) for s in self._seeds]
            else:
                self._draw(seed)
        except TorchTheoryError as error:
            if problem.initial is None:
                raise UnsupportedModel(
                    f"no fresh weights can be drawn ({error}), and the problem has no initial "
                    "weights either: give it initial=..."
                ) from None
            notes.append("The weights training began with stand for a fresh initialization.")
            self._start = {**problem.parameters, **problem.initial}

    def _draw(self, seed: int) -> nn.Module:
        return drawn_anew(self._problem.model, seed)

    def models(self) -> Iterator[nn.Module]:
        """The networks that hold them; none where only the start is known."""
        if self._start is not None:
            return iter(())
        return (self._draw(s) for s in self._seeds) if self._known is None else iter(self._known)

    def points(self) -> Iterator[Parameters]:
        """The parameters of each."""
        if self._start is not None:
            yield self._start
            return
        for model in self.models():
            yield {**self._problem.parameters, **parameters_from(self._problem.model, model)}


def _matrices_of(layer: str, shapes: Mapping[str, torch.Size]) -> list[str]:
    """Its weights; several in recurrent layers and attention, more in layers inside it."""
    own = [k for k in shapes if k == layer or k.startswith(f"{layer}.")]
    # a matrix may be made of a vector, which then is the weight
    return [k for k in own if len(shapes[k]) > 1] or own


def _lengths(signals: list[list[LayerSignal]]) -> list[float]:
    """Root mean square over draws of the gradient's length, by layer."""
    return [
        math.hypot(*(s.backward for s in row)) / math.sqrt(len(row))
        for row in zip(*signals, strict=True)
    ]


def _growth(lengths: list[float]) -> float:
    if len(lengths) < 2:
        raise UnsupportedModel(
            f"fewer than two layers have a weight matrix: nothing grows with depth ({len(lengths)} "
            "of them)"
        )
    if not all(math.isfinite(v) for v in lengths):
        raise NonFinite("gradients overflow on their way through the network")
    if lengths[-1] == 0:
        raise InvalidInput("the gradient in the output is 0: the loss has nothing to send back")
    return math.log(max(lengths[0], 1e-300) / lengths[-1]) / (len(lengths) - 1)


def _mean_growth(signals: list[list[LayerSignal]]) -> float:
    return math.fsum(_growth(_lengths([found])) for found in signals) / len(signals)


def _scaled(
    problem: Problem, samples: Samples, fresh: _Draws, names: set[str], factor: float
) -> list[list[LayerSignal]]:
    def at(point: Parameters) -> list[LayerSignal]:
        scaled = {k: factor * p if k in names else p for k, p in point.items()}
        return _signals(problem, samples, scaled)

    return [at(point) for point in fresh.points()]


def _factor(
    problem: Problem,
    samples: Samples,
    fresh: _Draws,
    names: set[str],
    here: float,
    notes: list[str],
) -> float | None:
    def growth(logarithm: float) -> float:
        return _mean_growth(_scaled(problem, samples, fresh, names, math.exp(logarithm)))

    if here == 0:
        return 1.0
    # outwards from where the network is: far away signals may overflow
    low, high = (-0.7, 0.0) if here > 0 else (0.0, 0.7)
    try:
        while here * growth(low if here > 0 else high) > 0:
            low, high = (low - 0.7, low) if here > 0 else (high, high + 0.7)
            if not math.log(SMALLEST_FACTOR) < low <= high < math.log(LARGEST_FACTOR):
                notes.append(
                    "No factor on the deviations between 0.02 and 50 makes gradients keep their "
                    "length: normalization or skip connections set it, or units are dead."
                )
                return None
    except NonFinite:
        notes.append("Gradients overflow before a factor is found that keeps their length.")
        return None
    return math.exp(float(brentq(growth, low, high, xtol=1e-3)))


def _predicted(
    models: Iterator[nn.Module], x: Tensor, last: float, names: list[str], notes: list[str]
) -> list[float] | None:
    """Lengths by layer from the limit of infinite width, given that in the output."""
    found = []
    try:
        for model in models:
            places = math.prod(x.shape[2:]) if x.ndim != 3 else max(x.shape[1:])
            found.append(predict_signal_of(model, x[: max(2, PAIRS // places**2)]))
    except TorchTheoryError as error:
        notes.append(f"No prediction: {error}.")
        return None
    if not found or any(list(f.names) != names for f in found):
        notes.append("No prediction: some of the layers are in none of its rules.")
        return None
    rows = [torch.tensor(f.entries, dtype=torch.float64) * f.backward.double() for f in found]
    squares = torch.stack([r / r[-1] for r in rows]).mean(0)
    return [last * math.sqrt(float(v)) for v in squares]

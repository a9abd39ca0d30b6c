r"""In how many ways networks of one architecture can be right and wrong on $m$ samples.

The counting of `torchtheory.generalization.vc.networks` for the network at hand: convolutions
share their parameters among many units, and several classes are several comparisons. Layer
$i$ with $k_i$ units and $b_i$ breakpoints of the activation behind it has
$M_i=mk_ib_i$ polynomials of degree $d_i$ in the $W_i$ parameters so far, and the
error of sample $x,y$ is decided by the signs of $f_y-f_j$, $j\ne y$. The degree counts the weighted
layers on the longest way from the input: a shortcut or a concatenation adds none, since sums of
polynomials have the largest of their degrees; that of a product is the sum of theirs.

A maximum over a window of $k$ entries is decided by the signs of their $k(k-1)/2$ differences,
polynomials of the degree of the entries: one more layer of counting, without parameters. So is a
comparison.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from torchtheory.core.errors import UnsupportedModel
from torchtheory.generalization.vc.bounds import first_whole_number
from torchtheory.generalization.vc.growth import log_sauer_polynomial, sauer_bound
from torchtheory.models.problem import Problem
from torchtheory.tracing.activations import ACTIVATION_FACTS, activation_facts
from torchtheory.tracing.interpret import Call, Rule, Rules, in_terms_of, interpret
from torchtheory.tracing.kinds import AVERAGES, MAXIMA, PADS, RESIZES
from torchtheory.tracing.network import Network, Value, leaves, mapped
from torchtheory.tracing.recorder import record

#: Beyond this dimension the Sauer-Shelah bound is taken in its polynomial form.
EXACT = 100


@dataclass(frozen=True, slots=True)
class NetworkSize:
    r"""An architecture as far as counting needs it.

    Attributes:
        breaks: $k_ib_i$ of every decision but the last, for one sample.
        parameters: $W_i$, those that had a say up to the $i$-th.
        degrees: $d_i$, of the polynomials whose signs decide.
        comparisons: signs that decide an error, 1 for one logit and classes - 1 otherwise.
        halfspaces: parameters of a linear classifier with one logit, which are the VC dimension
            of its losses (an output of 0 is an error for either label); None for another network.
    """

    breaks: tuple[int, ...]
    parameters: tuple[int, ...]
    degrees: tuple[int, ...]
    comparisons: int
    halfspaces: int | None = None

    def log2_growth(self, samples: int) -> float:
        """Bound of the logarithm of the number of ways to err on so many samples.

        >>> NetworkSize((2,), (4, 7), (1, 2), 1).log2_growth(3)      # widths 1, 2, 1
        9.0
        """
        if self.halfspaces is not None:
            if samples <= self.halfspaces:
                return float(samples)
            if self.halfspaces > EXACT:
                return log_sauer_polynomial(samples, self.halfspaces) / math.log(2)
            return math.log2(sauer_bound(samples, self.halfspaces))
        total = 0.0
        counts = (*self.breaks, self.comparisons)
        for each, parameters, degree in zip(counts, self.parameters, self.degrees, strict=True):
            polynomials = samples * each
            bits = float(polynomials)
            if polynomials >= parameters > 0:
                ratio = 2 * math.e * polynomials * degree / parameters
                bits = min(bits, 1 + parameters * math.log2(ratio))
            total += bits
        return total


def loss_dimension(size: NetworkSize) -> int:
    """Bound of the VC dimension of the 0-1 losses: no more samples are shattered.

    >>> loss_dimension(NetworkSize((), (3,), (1,), 1, 3))     # half-planes
    3
    >>> loss_dimension(NetworkSize((), (3,), (1,), 1))                # the same, merely counted
    15
    """
    if size.halfspaces is not None:
        return size.halfspaces
    least = max(1, math.ceil(size.parameters[-1] / size.comparisons))
    return max(1, first_whole_number(lambda m: size.log2_growth(m) < m, least) - 1)


def measure_size(problem: Problem) -> NetworkSize:
    """The architecture of a network that is a polynomial of its parameters piece by piece.

    Linear operations, piecewise linear activations, maxima, comparisons and products, in any order
    and with branches, as a module or out of an archive.

    Raises:
        UnsupportedModel: if an operation is of another kind; the message names it.
    """
    if problem.several_inputs or not problem.train.x.is_floating_point():
        raise UnsupportedModel("counting needs one input tensor of real numbers")
    network = in_terms_of(record(problem.function, problem.train.x), RULES)
    if network.rows is not None:
        raise UnsupportedModel(
            "the rows of the input belong together, so they are no independent samples: "
            + network.fixed_because
        )
    counts = _Counts(_free_numbers(network))
    made = interpret(network, RULES, [Polynomial(0, counts)], samples=1)
    degree = max((p.degree for p in leaves(made) if isinstance(p, Polynomial)), default=0)
    if not counts.entries:
        raise UnsupportedModel("counting needs a network with parameters")
    total = sum(counts.entries.values())
    linear = set(counts.weighted) == {"linear"} and not counts.breaks and degree == 1
    return NetworkSize(
        tuple(counts.breaks),
        (*counts.parameters, total),
        (*counts.degrees, degree),
        1 if problem.task == "binary" else (problem.classes or 2) - 1,
        total if problem.task == "binary" and linear else None,
    )


# ----------------------------------------------------------------------------- the counting


@dataclass(eq=False)
class _Counts:
    """What has been counted so far.

    Attributes:
        numbers: of every value that is made of parameters, the tensor whose entries are the free
            numbers in it, and how many these are.
        entries: those that had a say.
        weighted: the operations with parameters.
        breaks, parameters, degrees: of every decision, as in `NetworkSize`.
    """

    numbers: dict[Value, tuple[Value, int]]
    entries: dict[Value, int] = field(default_factory=dict)
    weighted: list[str] = field(default_factory=list)
    breaks: list[int] = field(default_factory=list)
    parameters: list[int] = field(default_factory=list)
    degrees: list[int] = field(default_factory=list)

    def degree(self, name: str, raw: Any, held: Any) -> int:
        """Of an argument of an operation; parameters are counted."""
        if isinstance(held, Polynomial):
            return held.degree
        if not isinstance(raw, Value) or raw not in self.numbers:
            return 0
        tensor, entries = self.numbers[raw]
        self.entries[tensor] = entries
        self.weighted.append(name)
        return 1

    def decide(self, signs: int, degree: int) -> None:
        """The signs of so many polynomials of a degree; of degree 0 they are the inputs' alone."""
        if signs and degree:
            self.breaks.append(signs)
            self.parameters.append(sum(self.entries.values()))
            self.degrees.append(degree)


def _free_numbers(network: Network) -> dict[Value, tuple[Value, int]]:
    """A transposed weight has the entries of the weight; a normalized one has its own."""
    found = {v: (v, network.tensors[v].numel()) for v in network.parameters.values()}
    for op in network:
        roots = [found[v] for v in op.inputs if v in found]
        if op.follows or not roots:
            continue
        moved = op.kind in ("moves", "selects") and len(roots) == 1
        for made in op.outputs:
            own = (made, math.prod(s for s in made.shape if isinstance(s, int)))
            found[made] = roots[0] if moved else own
    return found


@dataclass(eq=False)
class Polynomial:
    """A value whose entries are polynomials of a degree in the parameters, piece by piece."""

    degree: int
    counts: _Counts


def _counts(call: Call) -> _Counts:
    given = leaves((call.args, call.kwargs))
    return next(leaf.counts for leaf in given if isinstance(leaf, Polynomial))


def _degree(call: Call, *names: str) -> int:
    """The highest in some arguments: 1 of parameters, which are counted, and 0 of constants."""
    counts, highest = _counts(call), 0
    for name in names:
        pairs = zip(leaves(call.operation.arguments.get(name)), leaves(call.get(name)), strict=True)
        highest = max([highest, *(counts.degree(call.name, raw, held) for raw, held in pairs)])
    return highest


def _made(call: Call, degree: int) -> Any:
    counts = _counts(call)
    return mapped(call.operation.result, lambda leaf: Polynomial(degree, counts))


def _units(call: Call) -> int:
    """Entries of the first result, for one sample."""
    return _size(call.operation.outputs[0])


def _size(value: Value) -> int:
    return math.prod(s if isinstance(s, int) else s.of(1) for s in value.shape)


def _joint(call: Call) -> Any:
    """Sums, and entries that change their places."""
    return _made(call, _degree(call, *call.arguments))


def _product(*factors: str) -> Rule:
    """The degrees of factors (of all arguments unless told) add up; others are added to them."""

    def rule(call: Call) -> Any:
        others = [name for name in call.arguments if factors and name not in factors]
        product = sum(_degree(call, name) for name in factors or call.arguments)
        return _made(call, max(product, _degree(call, *others)))

    return rule


def _einsum(call: Call) -> Any:
    counts = _counts(call)
    both = zip(call.operation.arguments["operands"], call["operands"], strict=True)
    return _made(call, sum(counts.degree(call.name, raw, held) for raw, held in both))


def _quotient(call: Call) -> Any:
    if isinstance(call["other"], Polynomial) or call.get("rounding_mode") is not None:
        raise call.refusal(f"{RULES.subject}: a quotient of values that depend on the input")
    return _made(call, _degree(call, "input", "other"))


def _power(call: Call) -> Any:
    exponent = 2 if call.name == "square" else call.get("exponent")
    if not isinstance(exponent, int | float) or exponent != int(exponent) or exponent < 0:
        raise call.refusal(f"{RULES.subject}: a power {exponent} is no polynomial")
    return _made(call, int(exponent) * _degree(call, "input"))


def _batch_norm(call: Call) -> Any:
    """A scale and a shift for every channel."""
    if call.get("training") or call.get("running_mean") is None:
        raise call.refusal(f"{RULES.subject}: batch_norm mixes the samples of a batch")
    counts, key = _counts(call), call.operation.arguments["running_mean"]
    counts.entries[key] = 2 * call["running_mean"].numel()
    counts.weighted.append(call.name)
    return _made(call, _degree(call, "input") + 1)


def _breaking(*places: str | int, power: int = 1) -> Rule:
    """At each of its units as many breakpoints as it has, or as arguments of it are given."""

    def rule(call: Call) -> Any:
        own = power * _degree(call, "input")
        at = [p for p in places if isinstance(p, str) and call.get(p) is not None]
        degree = max([own, *(_degree(call, name) for name in at)])
        count = sum(p for p in places if isinstance(p, int)) + len(at)
        _counts(call).decide(_units(call) * count, degree)
        return _made(call, degree)

    return rule


def _activation(call: Call) -> Any:
    """Made of polynomials between its kinks and jumps."""
    facts = activation_facts(call.name, **call.arguments)
    if facts.degree is None:
        return NotImplemented
    return _breaking(len(facts.kinks) + len(facts.jumps), power=facts.degree)(call)


def _prelu(call: Call) -> Any:
    degree = _degree(call, "input")
    _counts(call).decide(_units(call), degree)
    return _made(call, degree + _degree(call, "weight"))


def _comparison(call: Call) -> Any:
    """Its sign decides, and it is a constant then."""
    degree = _degree(call, "input", "other")
    _counts(call).decide(_units(call), degree)
    return _made(call, 0)


def _choice(call: Call) -> Any:
    """Decided by the differences of the entries of every window."""
    degree = _degree(call, *call.arguments)
    if call.get("other") is not None:
        signs = _units(call)
    elif "pool" in call.name and not call.name.startswith("adaptive"):
        signs = _units(call) * _pairs(_window(call["kernel_size"], int(call.name[-2])))
    else:  # the entries are shared out evenly, or among all of a dimension
        value = call.operation.arguments["input"]
        signs = _units(call) * _pairs(-(-_size(value) // _units(call)))
        if call.name in ("sort", "msort", "topk", "kthvalue", "median", "cummax", "cummin"):
            dim = call.get("dim", 0 if call.name == "msort" else -1)
            sizes = [s if isinstance(s, int) else s.of(1) for s in value.shape]
            width = _size(value) if dim is None else sizes[dim]
            signs = _size(value) // width * _pairs(width)
    _counts(call).decide(signs, degree)
    return _made(call, degree)


def _window(size: int | Sequence[int], dimensions: int) -> int:
    """Entries of a window of a pooling."""
    sizes = [size] if isinstance(size, int) else list(size)
    return math.prod(sizes * dimensions if len(sizes) == 1 else sizes)


def _pairs(entries: int) -> int:
    return entries * (entries - 1) // 2


def _known(rule: Rule) -> Rule:
    """What does not depend on the input after all is computed."""

    def checked(call: Call) -> Any:
        given = leaves((call.args, call.kwargs))
        if any(isinstance(leaf, Polynomial) for leaf in given):
            return rule(call)
        return call.function(*call.args, **call.kwargs)

    return checked


_WEIGHTED = _product("input", "weight")
_RULES: dict[str, Rule] = {
    "linear": _WEIGHTED,
    **{f"conv{kind}{n}d": _WEIGHTED for kind in ("", "_transpose") for n in (1, 2, 3)},
    "convolution": _WEIGHTED,
    **dict.fromkeys(
        "mul matmul rmatmul outer inner tensordot kron".split(),
        _product(),
    ),
    "addmm": _product("mat1", "mat2"),
    "addmv": _product("mat", "vec"),
    "baddbmm": _product("batch1", "batch2"),
    "addcmul": _product("tensor1", "tensor2"),
    "bilinear": _product("input1", "input2", "weight"),
    "einsum": _einsum,
    "div": _quotient,
    "pow": _power,
    "square": _power,
    "batch_norm": _batch_norm,
    **dict.fromkeys(
        (
            name
            for name in ACTIVATION_FACTS
            if name not in ("prelu", "clamp", "clamp_min", "clamp_max")
        ),
        _activation,
    ),
    **dict.fromkeys("sign sgn heaviside".split(), _breaking(1)),
    **dict.fromkeys(("clamp", "clamp_min", "clamp_max"), _breaking("min", "max")),
    "prelu": _prelu,
    **dict.fromkeys("gt ge lt le".split(), _comparison),
    **dict.fromkeys("logical_not logical_and logical_or bitwise_not bitwise_and".split(), _joint),
    **dict.fromkeys(MAXIMA, _choice),
    **dict.fromkeys(
        "max min amax amin maximum minimum sort msort topk kthvalue median cummax cummin".split(),
        _choice,
    ),
    **dict.fromkeys((*AVERAGES, *RESIZES, *PADS), _joint),
    **dict.fromkeys(
        """
        add sub rsub neg sum mean cumsum diff windows fold col2im im2col tril triu index_add
        scatter_add trace diag diag_embed diagflat
        """.split(),
        _joint,
    ),
}

#: Degree in the parameters, and the decisions on the way.
RULES = Rules(
    "counting needs polynomials and maxima",
    {name: _known(rule) for name, rule in _RULES.items()},
    {
        "moves": _known(_joint),
        "selects": _known(_joint),
        "joins": _known(_joint),
        "constant": _known(lambda call: _made(call, 0)),
    },
)

"""How a function is made wrong: its result changed, a term dropped, a constant replaced."""

from __future__ import annotations

import ast
import copy
import dataclasses
import functools
import hashlib
import importlib.machinery
import math
import numbers
import random
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from importlib.abc import MetaPathFinder
from types import CodeType, ModuleType
from typing import Any, TypeVar

import numpy as np
import torch

from torchtheory.core.errors import InvalidInput

F = TypeVar("F", bound=Callable[..., Any])

#: What is done to the numbers that a function returns.
CHANGES = ("halved", "doubled", "negated")

#: Constants below this guard against division by zero: nobody notices another one.
SMALLEST_CONSTANT = 1e-6

#: Arguments of these are counts and places, not terms of a formula.
_COUNTING = {"range", "arange", "zeros", "ones", "empty", "reshape", "view", "len", "linspace"}

_LONGEST = 90


@dataclass(frozen=True, slots=True, order=True)
class Function:
    """A library function, by where it is defined.

    >>> Function("torchtheory.neurons.hopfield", "Hopfield.energy").name
    'neurons.hopfield:Hopfield.energy'
    """

    module: str
    qualname: str

    @property
    def name(self) -> str:
        return f"{self.module.removeprefix('torchtheory.')}:{self.qualname}"

    @property
    def room(self) -> str:
        return self.module.split(".")[1]


@dataclass(frozen=True, slots=True, order=True)
class Mutant:
    """A function with one thing wrong.

    Attributes:
        function: which one.
        change: what is wrong: one of `CHANGES`, or an expression before and after.
    """

    function: Function
    change: str

    @property
    def id(self) -> str:
        """What the mutant is called in tables and in the list of those that are equivalent."""
        return f"{self.function.name} {self.change}"

    def to_json(self) -> dict[str, str]:
        return {"module": self.function.module, "qualname": self.function.qualname,
                "change": self.change}  # fmt: skip

    @classmethod
    def from_json(cls, data: dict[str, str]) -> Mutant:
        return cls(Function(data["module"], data["qualname"]), data["change"])


@dataclass(frozen=True, slots=True)
class Site:
    """A place in a function's text where it can be made wrong.

    Attributes:
        kind: `"term"` or `"constant"`.
        change: the expression before and after.
        apply: changes the syntax tree.
    """

    kind: str
    change: str
    apply: Callable[[], object]


def mutants_of(function: Function, source: str, limit: int, seed: int = 0) -> list[Mutant]:
    """At most `limit` mutants of a function, of as many kinds as there are.

    Args:
        source: the text of the module that defines it.
        seed: which of the terms and constants are taken.
    """
    found: dict[str, list[str]] = {"term": [], "constant": []}
    for site in sites(find_function(ast.parse(source), function.qualname)):
        found[site.kind].append(site.change)
    draw = random.Random(f"{seed} {function.name}")
    for changes in found.values():
        draw.shuffle(changes)
    # halved and doubled meet a bound from its two sides; a sign is the easiest to notice
    order: list[str] = ["halved", "doubled"]
    order += [kind[0] for kind in found.values() if kind]
    order.append("negated")
    order += [c for pair in _interleaved(*(kind[1:] for kind in found.values())) for c in pair]
    return [Mutant(function, change) for change in order[:limit]]


def _interleaved(first: Sequence[str], second: Sequence[str]) -> Iterator[Sequence[str]]:
    for k in range(max(len(first), len(second))):
        yield [*first[k : k + 1], *second[k : k + 1]]


def find_function(tree: ast.AST, qualname: str) -> ast.FunctionDef:
    """The definition of that name; the last one, as overloads come first."""
    for part in qualname.split("."):
        inside = [
            node
            for node in ast.walk(tree)
            if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name == part
            and node is not tree
        ]  # fmt: skip
        if not inside:
            raise InvalidInput(f"there is no function {qualname}")
        direct = [n for n in inside if n in getattr(tree, "body", [])]
        tree = (direct or inside)[-1]
    if not isinstance(tree, ast.FunctionDef):
        raise InvalidInput(f"{qualname} is no function")
    return tree


def sites(function: ast.FunctionDef) -> list[Site]:
    """The places at which what a function computes can be made wrong, in the order of the text.

    >>> tree = ast.parse("def f(x): return 2 * x + 1")
    >>> for site in sites(tree.body[0]):
    ...     print(site.kind, site.change)
    term `2 * x + 1` -> `2 * x`
    term `2 * x + 1` -> `1`
    constant `2 * x + 1` -> `2 * x + 2`
    constant `2 * x` -> `1 * x`
    """
    found: list[Site] = []
    for child, put in _slots(function):
        if child not in (*function.decorator_list, function.args, function.returns):
            found += _statement_sites(child, put)
    found.sort(key=lambda site: site.kind != "term")
    times: dict[str, int] = {}
    named = []
    for site in found:  # the same expression may stand twice
        times[site.change] = times.get(site.change, 0) + 1
        again = f" (no. {times[site.change]})" if times[site.change] > 1 else ""
        named.append(dataclasses.replace(site, change=site.change + again))
    return named


def mutated(source: str, mutant: Mutant) -> ast.Module:
    """The syntax tree of a module with the mutant in it."""
    tree = ast.parse(source)
    function = find_function(tree, mutant.function.qualname)
    if mutant.change in CHANGES:
        # innermost: properties, caches and torch's decorators go round it as round the function
        call = f"__import__({__name__!r}, fromlist=['_']).changing({mutant.change!r})"
        function.decorator_list.append(ast.parse(call, mode="eval").body)
    else:
        chosen = [site for site in sites(function) if site.change == mutant.change]
        if not chosen:
            raise InvalidInput(f"there is no place for the mutant {mutant.id}")
        chosen[0].apply()
    return ast.fix_missing_locations(tree)


class MutantFinder(MetaPathFinder):
    """Gives out the mutated module to whoever imports it.

    A name bound by `from module import f` is the mutant as well, since the text is changed before
    the module runs for the first time.
    """

    def __init__(self, mutant: Mutant) -> None:
        self.mutant = mutant

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != self.mutant.function.module:
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.origin is not None:
            spec.loader = _MutantLoader(fullname, spec.origin, self.mutant)
        return spec


class _MutantLoader(importlib.machinery.SourceFileLoader):
    def __init__(self, fullname: str, path: str, mutant: Mutant) -> None:
        super().__init__(fullname, path)
        self.mutant = mutant

    def get_code(self, fullname: str) -> CodeType | None:  # from the text, never from a cache
        text = self.get_source(fullname)
        assert text is not None
        return compile(mutated(text, self.mutant), self.path, "exec", dont_inherit=True)


def install(mutant: Mutant) -> None:
    """Let this process import the mutant; its module must not be loaded yet."""
    if mutant.function.module in sys.modules:
        raise InvalidInput(f"{mutant.function.module} is imported already")
    sys.meta_path.insert(0, MutantFinder(mutant))


@dataclass(slots=True)
class Reach:
    """Whether a changed result was any different from what the function returned."""

    changed: bool = False


REACH = Reach()


def changing(change: str) -> Callable[[F], F]:
    """A decorator that changes what a function returns."""

    def decorate(function: F) -> F:
        @functools.wraps(function)
        def wrong(*args: Any, **kwargs: Any) -> Any:
            return changed(function(*args, **kwargs), change)

        return wrong  # type: ignore[return-value]

    return decorate


def changed(value: Any, change: str) -> Any:
    """The value with all its numbers halved, doubled or negated; what is no number is kept.

    >>> changed((2.0, [3], True), "halved")
    (1.0, [1], True)
    """
    if isinstance(value, bool | str | bytes) or value is None:
        return value
    if isinstance(value, numbers.Number | torch.Tensor | np.ndarray):
        return _changed_number(value, change)
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(changed(v, change) for v in value))
    if type(value) in (tuple, list):
        return type(value)(changed(v, change) for v in value)
    if type(value) is dict:
        return {k: changed(v, change) for k, v in value.items()}
    if _is_record(value):
        other = copy.copy(value)
        for field in dataclasses.fields(value):
            # past a frozen class and its checks: the mutant is a wrong number, not a refused one
            object.__setattr__(other, field.name, changed(getattr(value, field.name), change))
        return other
    return value


def has_numbers(value: Any) -> bool:
    """Whether `changed` would find a number in it.

    >>> has_numbers((True, "a")), has_numbers({"a": [2]})
    (False, True)
    """
    if isinstance(value, bool | str | bytes) or value is None:
        return False
    if isinstance(value, torch.Tensor):
        return value.dtype is not torch.bool and value.numel() > 0
    if isinstance(value, np.ndarray):
        return value.dtype.kind in "iufc" and value.size > 0
    if isinstance(value, numbers.Number):
        return not isinstance(value, np.bool_)
    if isinstance(value, tuple | list):
        return any(has_numbers(v) for v in value)
    if type(value) is dict:
        return any(has_numbers(v) for v in value.values())
    if _is_record(value):
        return any(has_numbers(getattr(value, f.name)) for f in dataclasses.fields(value))
    return False


def _is_record(value: Any) -> bool:
    """A dataclass of results, not a network that happens to be one."""
    return dataclasses.is_dataclass(value) and not isinstance(value, type | torch.nn.Module)


def _changed_number(value: Any, change: str) -> Any:
    if isinstance(value, torch.Tensor):
        whole = not (value.is_floating_point() or value.is_complex())
        if value.dtype is torch.bool:
            return value
    elif isinstance(value, np.ndarray | np.generic):
        whole = value.dtype.kind in "iu"
        if value.dtype.kind not in "iufc":
            return value
    else:
        whole = isinstance(value, int)
    half = value // 2 if whole else value / 2
    other = {"halved": half, "doubled": value * 2, "negated": -value}[change]
    try:
        same = bool((torch.as_tensor(other) == torch.as_tensor(value)).all())
    except Exception:  # inside a transform of torch.func nothing can be asked
        same = False
    if isinstance(value, Fraction) or not same:
        REACH.changed = True
    return other


def _statement_sites(node: ast.AST, put: Callable[[Any], object]) -> Iterator[Site]:
    if isinstance(node, ast.Return | ast.Assign | ast.AnnAssign | ast.AugAssign):
        adds = isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Add | ast.Sub)
        if adds and not _is_text(node.value):
            yield Site("term", _words(node, ast.Pass()), functools.partial(put, ast.Pass()))
        if node.value is not None:
            yield from _expression_sites(node.value, functools.partial(setattr, node, "value"))
        return
    if isinstance(node, ast.expr):  # conditions, calls for their effect, messages
        return
    for child, place in _slots(node):
        yield from _statement_sites(child, place)


def _expression_sites(node: ast.AST, put: Callable[[Any], object]) -> Iterator[Site]:
    if isinstance(node, ast.JoinedStr | ast.Constant):
        return
    if isinstance(node, ast.Subscript):  # what stands in the brackets are places
        yield from _expression_sites(node.value, functools.partial(setattr, node, "value"))
        return
    if isinstance(node, ast.Call):
        name = getattr(node.func, "id", getattr(node.func, "attr", ""))
        yield from _expression_sites(node.func, functools.partial(setattr, node, "func"))
        if name not in _COUNTING:
            for k, argument in enumerate(node.args):
                place = functools.partial(node.args.__setitem__, k)
                yield from _expression_sites(argument, place)
        return  # keywords are options, shapes and axes
    if isinstance(node, ast.BinOp):
        yield from _operation_sites(node, put)
    for child, put_child in _slots(node):
        yield from _expression_sites(child, put_child)


def _operation_sites(node: ast.BinOp, put: Callable[[Any], object]) -> Iterator[Site]:
    if isinstance(node.op, ast.Add | ast.Sub) and not (_is_text(node.left) or _is_text(node.right)):
        alone = node.right
        if isinstance(node.op, ast.Sub):
            alone = ast.UnaryOp(ast.USub(), node.right)
        for rest in (node.left, alone):
            yield Site("term", _words(node, rest), functools.partial(put, rest))
    if isinstance(node.op, ast.Add | ast.Sub | ast.Mult | ast.Div | ast.Pow):
        for side in ("left", "right"):
            operand = getattr(node, side)
            other = _other_constant(operand)
            if other is not None:
                changed_node = copy.copy(node)
                setattr(changed_node, side, ast.Constant(other))
                words = _words(node, changed_node)
                yield Site("constant", words, functools.partial(setattr, node, side, ast.Constant(other)))


def _other_constant(node: ast.expr) -> float | None:
    if not isinstance(node, ast.Constant) or type(node.value) not in (int, float):
        return None
    value = node.value
    assert isinstance(value, int | float)
    if 0 < abs(value) < SMALLEST_CONSTANT or not math.isfinite(value):
        return None
    if isinstance(value, int):
        return value + 1 if value in (0, 1) else value - 1
    return 1.0 if value == 0 else 2 * value


def _is_text(node: ast.expr | None) -> bool:
    """Whether + puts texts or lists together there."""
    if isinstance(node, ast.Constant):
        return isinstance(node.value, str | bytes)
    return isinstance(node, ast.JoinedStr | ast.List | ast.Tuple | ast.ListComp)


def _slots(node: ast.AST) -> Iterator[tuple[ast.AST, Callable[[Any], object]]]:
    """The parts of a node, each with what puts another in its place."""
    for name, value in ast.iter_fields(node):
        if isinstance(value, ast.AST):
            yield value, functools.partial(setattr, node, name)
        elif isinstance(value, list):
            for k, item in enumerate(value):
                if isinstance(item, ast.AST):
                    yield item, functools.partial(value.__setitem__, k)


def _words(before: ast.AST, after: ast.AST) -> str:
    parts = []
    for node in (before, after):
        text = " ".join(ast.unparse(node).split())
        if len(text) > _LONGEST:
            digest = hashlib.sha256(text.encode()).hexdigest()[:6]
            text = f"{text[: _LONGEST - 10]}… {digest}"
        parts.append(f"`{text}`")
    return " -> ".join(parts)

r"""What a lab says before it computes: theorem, symbols, idea, what to try, an exercise.

They are sections of the lab's docstring, after its abstract:

```
Theorem:
    Let $x_1,\dots,x_n\in\mathbb R^d$ have labels $y_i\in\{-1,1\}$.
    *Bounded*: $\|x_i\|\le R$ for all $i$.
    *Separable*: some unit vector $u$ has $y_i\,u^\top x_i\ge\gamma>0$ for all $i$.
    Then the perceptron, started at $w_0=0$, makes at most $(R/\gamma)^2$ updates.

Symbols:
    $x_i, y_i$: samples and labels; $n$ of them, in $d$ dimensions.

Idea:
    Every update raises $u^\top w$ by at least $\gamma$ …

Try:
    margin=0.02: the bound grows 25 times; the updates grow far less.

Exercise:
    Find two samples in the plane on which the rule makes exactly 2 updates.
    check: perceptron(x, y).updates == 2
    answer: x, y = torch.eye(2), torch.tensor([1.0, -1.0])
```

A line that begins an item stands at the left, what continues it is indented further. A blank line
parts two theorems or two exercises.
"""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from inspect import cleandoc
from typing import Any

from torchtheory.core.errors import InvalidInput

#: The sections in the order in which a page shows them.
SECTIONS = ("Theorem", "Symbols", "Idea", "Try", "Exercise")

#: A lab suggests at least so many changes.
LEAST_CHANGES = 2


@dataclass(frozen=True, slots=True)
class Hypothesis:
    """What a theorem supposes, by the name its proof calls it."""

    name: str
    text: str


@dataclass(frozen=True, slots=True)
class Theorem:
    """What is given, what is supposed of it, what follows; all are prose with `$formulas$`."""

    given: str
    hypotheses: tuple[Hypothesis, ...]
    conclusion: str


@dataclass(frozen=True, slots=True)
class Definition:
    """Symbols (`$x_i, y_i$`) and what they mean."""

    symbols: str
    meaning: str


@dataclass(frozen=True, slots=True)
class Change:
    """Parameters to set and what to look for then.

    Attributes:
        settings: `name=value` each, or an option of the command (`--preset full`) by its words.
        look: what to look for.
    """

    settings: tuple[str, ...]
    look: str

    @property
    def values(self) -> dict[str, str]:
        """The parameters that are set, as text."""
        pairs = (s.partition("=") for s in self.settings if _SETTING.fullmatch(s))
        return {name: value for name, _, value in pairs}

    @property
    def options(self) -> str:
        """What a command line takes.

        >>> Change(("margin=0.02", "--seeds", "20"), "").options
        '--set margin=0.02 --seeds 20'
        """
        words = [["--set", s] if _SETTING.fullmatch(s) else [s] for s in self.settings]
        return shlex.join(word for pair in words for word in pair)


@dataclass(frozen=True, slots=True)
class Exercise:
    """A task, a Python expression that is true of its solution, and statements that solve it."""

    task: str
    check: str = ""
    answer: str = ""


@dataclass(frozen=True, slots=True)
class Teaching:
    """The sections of a lab's docstring that teach; empty where there are none."""

    theorems: tuple[Theorem, ...] = ()
    symbols: tuple[Definition, ...] = ()
    idea: str = ""
    changes: tuple[Change, ...] = ()
    exercises: tuple[Exercise, ...] = ()

    def __bool__(self) -> bool:
        return self != Teaching()

    @property
    def missing(self) -> tuple[str, ...]:
        """The sections a lab still owes.

        >>> Teaching(idea="Sum the squares.").missing
        ('Theorem', 'Symbols', 'Try', 'Exercise')
        """
        written = (
            bool(self.theorems),
            bool(self.symbols),
            bool(self.idea),
            len(self.changes) >= LEAST_CHANGES,
            bool(self.exercises),
        )
        return tuple(name for name, there in zip(SECTIONS, written, strict=True) if not there)

    @property
    def prose(self) -> list[str]:
        """Every piece of text with `$formulas$` in it."""
        theorems = [
            piece
            for t in self.theorems
            for piece in (t.given, *(f"*{h.name}*: {h.text}" for h in t.hypotheses), t.conclusion)
        ]
        symbols = [f"{d.symbols}: {d.meaning}" for d in self.symbols]
        rest = [self.idea, *(c.look for c in self.changes), *(e.task for e in self.exercises)]
        return [piece for piece in (*theorems, *symbols, *rest) if piece]

    def to_json(self) -> dict[str, Any]:
        changes = [{"options": c.options, "look": c.look} for c in self.changes]
        return {**asdict(self), "changes": changes}


def cut_sections(
    docstring: str, names: Collection[str] = (*SECTIONS, "Args")
) -> tuple[str, dict[str, str]]:
    r"""A docstring without the sections of these names, and those sections, flush left.

    A section is a name and a colon alone at the left margin, and the indented lines that follow.

    >>> cut_sections("A lab.\n\nIdea:\n    Sum\n    up.\n\nThe end.")
    ('A lab.\n\nThe end.', {'Idea': 'Sum\nup.'})
    """
    heading = "|".join(map(re.escape, names))
    section = re.compile(rf"(?m)^({heading}):[ \t]*\n((?:[ \t]+.*(?:\n|\Z)|[ \t]*\n)*)")
    found = {one[1]: cleandoc("\n" + one[2]) for one in section.finditer(docstring)}
    return section.sub("", docstring).strip(), found


def read_teaching(sections: Mapping[str, str]) -> Teaching:
    r"""The sections of a docstring as what they say.

    >>> said = read_teaching({"Idea": "A line,\na root.", "Try": "margin=0.02: a bound\n  grows."})
    >>> said.idea, said.changes[0].options, said.changes[0].look
    ('A line, a root.', '--set margin=0.02', 'a bound grows.')
    """
    return Teaching(
        tuple(map(_theorem, _parts(sections.get("Theorem", "")))),
        tuple(map(_definition, _items(sections.get("Symbols", "")))),
        _one_line(sections.get("Idea", "")),
        tuple(map(_change, _items(sections.get("Try", "")))),
        tuple(map(_exercise, _parts(sections.get("Exercise", "")))),
    )


_SETTING = re.compile(r"[A-Za-z_]\w*=.*", re.DOTALL)
_HYPOTHESIS = re.compile(r"\*([^*\n]+)\*:\s+(.+)", re.DOTALL)
# One or more formulas, then a colon.
_DEFINITION = re.compile(r"((?:\$[^$]+\$(?:, | and )?)+):\s+(.+)", re.DOTALL)
_CHANGE = re.compile(r"((?:[A-Za-z_]\w*=|--)[^:]*):\s+(.+)", re.DOTALL)
_LABELED = re.compile(r"(check|answer):\s+(.+)", re.DOTALL)


def _theorem(text: str) -> Theorem:
    given: list[str] = []
    hypotheses: list[Hypothesis] = []
    conclusion: list[str] = []
    for item in _items(text):
        found = _HYPOTHESIS.fullmatch(item)
        if found is None:
            (conclusion if hypotheses else given).append(item)
        elif conclusion:
            raise InvalidInput(
                f"Theorem: the hypothesis *{found[1]}* stands after the conclusion; list all of "
                "them before it, or part two theorems by a blank line"
            )
        else:
            hypotheses.append(Hypothesis(found[1], _one_line(found[2])))
    if not hypotheses:  # all of it is the statement
        given, conclusion = [], given
    if not conclusion:
        raise InvalidInput("Theorem: say after the hypotheses what follows from them")
    return Theorem(_one_line(" ".join(given)), tuple(hypotheses), _one_line(" ".join(conclusion)))


def _definition(item: str) -> Definition:
    found = _DEFINITION.fullmatch(item)
    if found is None:
        raise InvalidInput(f"Symbols: {item[:60]!r} must read '$symbol$: what it means'")
    return Definition(found[1], _one_line(found[2]))


def _change(item: str) -> Change:
    found = _CHANGE.fullmatch(item)
    if found is None:
        raise InvalidInput(f"Try: {item[:60]!r} must read 'parameter=value: what to look for'")
    return Change(tuple(shlex.split(found[1])), _one_line(found[2]))


def _exercise(text: str) -> Exercise:
    task: list[str] = []
    code: dict[str, str] = {}
    for item in _items(text):
        found = _LABELED.fullmatch(item)
        if found is None:
            task.append(item)
        else:
            code[found[1]] = cleandoc(found[2])
    for name, mode in (("check", "eval"), ("answer", "exec")):
        try:
            ast.parse(code.get(name, "0"), mode=mode)
        except SyntaxError:
            raise InvalidInput(f"Exercise: {code[name]!r} is no Python, which {name} is") from None
    if not task:
        raise InvalidInput("Exercise: say what to do before how it is checked")
    return Exercise(_one_line(" ".join(task)), code.get("check", ""), code.get("answer", ""))


def _parts(text: str) -> list[str]:
    return [part for part in re.split(r"\n\s*\n", text) if part.strip()]


def _items(text: str) -> Sequence[str]:
    """Lines that stand at the left, each with the indented lines that continue it."""
    return [item.rstrip() for item in re.split(r"\n(?=\S)", text.strip()) if item.strip()]


def _one_line(text: str) -> str:
    return " ".join(text.split())

"""Running a lab: seeded, timed, judged."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch

from torchtheory.core import progress
from torchtheory.core.checks import described, whole_number
from torchtheory.core.claim import Claim, Verdict, Weakness
from torchtheory.core.errors import InvalidInput, InvalidType
from torchtheory.core.record import Record
from torchtheory.labs.engine.confidence import judged_together
from torchtheory.labs.engine.power import if_shown, unrefuted
from torchtheory.labs.engine.registry import PRESETS, Lab, Preset, find_lab
from torchtheory.models.model import global_randomness_kept
from torchtheory.report.html import run_fragment
from torchtheory.report.plain_math import as_statement
from torchtheory.report.wording import listed_numbers

T = TypeVar("T")


class OutsideTheorem(InvalidInput):
    """The parameters of a run are outside of what its theorem is about."""


@dataclass(slots=True)
class Run(Record):
    """What a lab gets: randomness, progress, the preset, and a place for results.

    Attributes:
        lab: the lab being run.
        preset: `quick` or `full`.
        seed: everything random in the run follows from it.
        parameters: the values the lab was called with.
        generator: the run's own source of randomness.
        seconds: how long it took; set at the end.
    """

    lab: Lab = field(kw_only=True)
    preset: Preset = "quick"
    seed: int = 0
    parameters: dict[str, Any] = field(default_factory=dict)
    generator: torch.Generator = field(default_factory=torch.Generator)
    seconds: float = 0.0

    def randn(self, *shape: int) -> torch.Tensor:
        """Standard normal numbers in double precision from the run's generator."""
        return torch.randn(*shape, dtype=torch.float64, generator=self.generator)

    def rand(self, *shape: int) -> torch.Tensor:
        """Uniform numbers in [0, 1) in double precision from the run's generator."""
        return torch.rand(*shape, dtype=torch.float64, generator=self.generator)

    def signs(self, *shape: int) -> torch.Tensor:
        """Fair ±1 in double precision from the run's generator."""
        return torch.randint(0, 2, shape, generator=self.generator).double() * 2 - 1

    def track(self, items: Iterable[T], description: str = "") -> Iterator[T]:
        """Iterate with a progress bar."""
        return progress.track(items, description or self.lab.name)

    def assumes(self, holds: bool, otherwise: str) -> None:
        """Say 'not applicable' and end the run here unless a hypothesis of its theorem holds.

        A range keeps out what one parameter cannot be. This is for what several cannot be together.

        Args:
            holds: whether it does, with the parameters of this run.
            otherwise: why the theorem says nothing then, in a sentence with the numbers.
        """
        if not holds:
            raise OutsideTheorem(otherwise)

    @property
    def as_shipped(self) -> bool:
        """Whether all parameters are those of a preset."""
        presets = [self.lab.configure(preset, {}) for preset in PRESETS]
        return plain_parameters(self.parameters) in map(plain_parameters, presets)

    @property
    def applies(self) -> bool:
        """Whether any of its claims does."""
        return any(c.verdict is not Verdict.NOT_APPLICABLE for c in self.claims) or not self.claims

    @property
    def problems(self) -> list[str]:
        """Why the run fails, one sentence each; empty when it passes."""
        found = [f"{c.id}: ${c.statement}$ is violated" for c in self.claims if _violated(c)]
        controls = [c.control for c in self.claims if c.control is not None]
        found += [f"the control of {c.id} did not fail ({c.reason})" for c in controls if not _violated(c)]
        found += [
            f"{c.id}: ${c.statement}$ is not resolved, its interval contains {listed_numbers(c.accepted)} as well"
            for c in self.claims
            if c.accepted
        ]
        found += [f"erratum {e.key} is not refuted" for e in self.errata if not _violated(e.claim)]
        return found + self.declared_problems

    @property
    def declared_problems(self) -> list[str]:
        """What the lab declares and did not do, whatever its claims came to."""
        refuted = {e.key for e in self.errata}
        undeclared = [f"met erratum {k} without declaring it" for k in sorted(refuted - set(self.lab.errata))]
        idle = any(c.verdict is Verdict.NOT_APPLICABLE for c in self.claims)
        if idle and not self.as_shipped:  # a user left the theorem, and the run says so
            return undeclared
        found = []
        if all(c.control is None for c in self.claims):
            found.append("no claim has a control")
        # a claim that does not apply, or that promises nothing, exercises no entry
        judged = [c for c in self.claims if c.verdict in (Verdict.HOLDS, Verdict.VIOLATED)]
        met = {i for c in [*judged, *(e.claim for e in self.errata)] for i in c.ids}
        found += [f"covers {i}, but no claim is about it" for i in self.lab.covers if i not in met]
        found += [f"declares erratum {k}, but met none" for k in self.lab.errata if k not in refuted]
        return found + undeclared

    @property
    def weaknesses(self) -> list[tuple[str, Weakness]]:
        """Which checks have too little power, and why.

        A claim's key is its ids and its place, from 1, among the run's claims with the same ids:
        `N-08#2`.
        """
        return [(key, kind) for key, c in keyed(self.claims) for kind in c.weaknesses]

    @property
    def passed(self) -> bool:
        """Every claim holds, every control fails, everything declared was done."""
        return not self.problems

    def to_json(self) -> dict[str, Any]:
        return {
            "lab": self.lab.name,
            "room": self.lab.room,
            "title": self.lab.title,
            "preset": self.preset,
            "seed": self.seed,
            "parameters": plain_parameters(self.parameters),
            "seconds": round(self.seconds, 3),
            "passed": self.passed,
            "problems": self.problems,
            **self.content_json(),
        }

    def _repr_html_(self) -> str:
        return run_fragment(self)


def run_lab(
    lab: Lab | str,
    *,
    preset: Preset = "quick",
    seed: int = 0,
    settings: Mapping[str, Any] | None = None,
) -> Run:
    """Run one lab and return its claims, tables and figures.

    >>> run_lab("perceptron-novikoff", settings={"samples": 40}).passed
    True
    """
    if not isinstance(lab, Lab | str):
        raise InvalidType(f"a lab is given by its name or by find_lab(name), not {described(lab)}")
    found = find_lab(lab) if isinstance(lab, str) else lab
    seed = whole_number(seed, "seed", least=0, most=2**63 - 1)
    parameters = found.configure(preset, settings or {})
    run = Run(
        lab=found,
        preset=preset,
        seed=seed,
        parameters=parameters,
        generator=torch.Generator().manual_seed(seed),
    )
    start = time.perf_counter()
    # a lab draws from run.generator; what does not (a layer's own initialization) follows the seed
    with global_randomness_kept():
        torch.manual_seed(seed)
        try:
            found.function(run, **parameters)
        except OutsideTheorem as outside:
            judged = {i for c in run.claims for i in c.ids}
            left = [i for i in found.covers if i not in judged]
            run.not_applicable(left or found.covers, as_statement(found.title), str(outside))
    run.claims = judged_together(run.claims)
    if not run.as_shipped:  # numbers that whoever runs it has chosen may be too small
        run.claims = [if_shown(c) for c in run.claims]
        for e in [e for e in run.errata if unrefuted(e)]:
            run.errata.remove(e)
            run.not_applicable(e.claim.ids, e.claim.statement, unrefuted(e))
    run.seconds = time.perf_counter() - start
    return run


def keyed(claims: Iterable[Claim]) -> Iterator[tuple[str, Claim]]:
    """Each claim with its key: its ids and its place, from 1, among those with the same ids."""
    met = Counter[str]()
    for c in claims:
        met[c.id] += 1
        yield f"{c.id}#{met[c.id]}", c


def plain_parameters(parameters: dict[str, Any]) -> dict[str, Any]:
    """Parameters as they come back from JSON."""
    plain: dict[str, Any] = json.loads(json.dumps(parameters, default=str), parse_constant=str)
    return plain


def _violated(c: Claim) -> bool:
    return c.verdict is Verdict.VIOLATED

"""Running an audit: every finding on one problem, and the report that results."""

from __future__ import annotations

import hashlib
import math
import platform
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from torchtheory import __version__
from torchtheory.audit.engine.finding import (
    COSTS,
    WEIGHTS,
    Finding,
    FindingRecord,
    all_findings,
    examine,
)
from torchtheory.core import progress
from torchtheory.core.budget import seconds_of, within
from torchtheory.core.checks import as_module, open_fraction
from torchtheory.core.claim import Claim, Verdict
from torchtheory.core.errors import UnknownName
from torchtheory.core.files import write_together
from torchtheory.core.foreign_text import json_text
from torchtheory.core.memory import bytes_of
from torchtheory.core.random import as_generator
from torchtheory.models.model import Initial, process_kept
from torchtheory.models.problem import Loss, Problem, Task
from torchtheory.models.samples import Data
from torchtheory.models.untouched import ModelState
from torchtheory.report.html import audit_fragment, audit_page
from torchtheory.report.markdown import audit_markdown

#: Most sentences of a summary.
SENTENCES = 8

#: Under which fact it is said that the model is not as it was, should that ever happen.
CHANGED = "model changed"

#: A finding is stopped when it takes so many times what it planned with.
OVERRUN = 3.0


@dataclass(slots=True)
class Audit:
    """What theory says about one network.

    Attributes:
        title: the model's name.
        facts: what was audited, in words.
        findings: one record of claims, tables and figures for each finding, in the report's order.
        seconds: how long it took.
        interrupted: whether it was stopped before all findings were made.
    """

    title: str
    facts: dict[str, str]
    findings: list[FindingRecord]
    seconds: float
    interrupted: bool = False

    @property
    def claims(self) -> list[Claim]:
        """All claims of all findings."""
        return [c for f in self.findings for c in f.claims]

    @property
    def violated(self) -> list[Claim]:
        """The claims that the measurements refute, or whose control did not fail."""
        return [
            c
            for c in self.claims
            if c.verdict is Verdict.VIOLATED
            or (c.control is not None and c.control.verdict is not Verdict.VIOLATED)
        ]

    @property
    def summary(self) -> list[str]:
        """The audit in at most eight plain sentences: what is wrong, then what matters most."""
        broken = [
            f"{f.title}: what theory promises is not what was measured."
            for f in self.findings
            if not f.warnings and any(c in self.violated for c in f.claims)
        ]
        first = [self.facts[CHANGED]] if CHANGED in self.facts else []
        urgent = (first + self.warnings + broken)[:SENTENCES]
        said = [h for f in self.findings for h in f.headlines]
        ranked = [sentence for sentence, _ in sorted(said, key=lambda h: -h[1])]
        return urgent + ranked[: SENTENCES - len(urgent)]

    @property
    def warnings(self) -> list[str]:
        """What is wrong with the network, in sentences."""
        return [w for f in self.findings for w in f.warnings]

    def to_json(self) -> dict[str, Any]:
        return {
            "title": self.title,
            "facts": self.facts,
            "seconds": round(self.seconds, 3),
            "interrupted": self.interrupted,
            "summary": self.summary,
            "findings": [f.to_json() for f in self.findings],
        }

    def save(self, directory: str | Path) -> Path:
        """Write `report.html`, `report.md`, `audit.json` and `figures/`; returns the page.

        The directory is made if needed. Only these files are written, all of one report; others in
        it and in its `figures/` are left alone.
        """
        with process_kept():
            contents: dict[str, str | bytes] = {
                f"figures/{f.name}-{figure.name}.png": figure.png
                for f in self.findings
                for figure in f.figures
            }
            contents["audit.json"] = json_text(self.to_json())
            contents["report.md"] = audit_markdown(self)
            contents["report.html"] = audit_page(self)
            target = write_together(directory, contents)
        return target / "report.html"

    def _repr_html_(self) -> str:
        return audit_fragment(self)


def audit(
    model: nn.Module,
    train: Data,
    test: Data | None = None,
    *,
    loss: Loss | None = None,
    task: Task | None = None,
    initial: Initial | None = None,
    confidence: float = 0.95,
    seed: int = 0,
    only: Sequence[str] | None = None,
    budget: str | float | None = "60s",
    memory: str | int = "4GiB",
    learning_rate: float | None = None,
    prior: Initial | None = None,
    output: int | str | None = None,
    limit: int = 20_000,
    title: str | None = None,
) -> Audit:
    """Everything theory can say about a network.

    Args:
        model: any `nn.Module`, with one input or several. It is not changed.
        train: what it was trained on: `(x, y)`, a `Dataset` or a `DataLoader`.
        test: data it has not seen, if there is any.
        loss: mean loss; the task's usual one unless given.
        task: `regression`, `binary` or `multiclass`; inferred unless given.
        initial: the weights training began with, if you kept them (a state dict or a module of the
            same shape); some findings compare with them.
        confidence: of every statistical statement.
        seed: everything random follows from it.
        only: names of the findings to make; all unless given.
        budget: time it may take, such as `"2min"`; None for no limit. Cheap findings come first,
            estimates are refined while time remains, and what no time is left for is said.
        memory: what evaluating the model may take, such as `"4GiB"`.
        learning_rate: of the gradient descent that trained, or will train, the network, if you
            want to know what theory says of it.
        prior: a network of the same shape (or its state dict) that a PAC-Bayes bound may start
            from; it must not have seen the training data, and this is tested.
        output: position or key of the output that is meant, where the model returns several.
        limit: most samples used of either set.
        title: what to call the model in the report.

    >>> import torch
    >>> from torch import nn
    >>> x = torch.randn(40, 3)
    >>> report = audit(nn.Linear(3, 2), (x, (x[:, 0] > 0).long()), only=["layers"])
    >>> report.findings[0].tables[0].rows[0][:3]
    ('(model)', 'Linear', 8)
    """
    open_fraction(confidence, "confidence")
    start = time.perf_counter()
    seconds = seconds_of(budget)
    before = ModelState(as_module(model))
    with process_kept():
        known = all_findings()
        only = [only] if isinstance(only, str) else only
        for name in only or ():
            if name not in known:
                raise UnknownName("finding", name, known)
        problem = Problem(
            model,
            train,
            test,
            loss,
            task,
            initial=initial,
            learning_rate=learning_rate,
            prior=prior,
            output=output,
            limit=limit,
            memory=bytes_of(memory) // 2,  # weights, kernels and Krylov spaces take the other half
            seed=seed,
        )
        given = _fingerprint(problem)
        _ = problem.seconds_per_sample  # measured once, whatever the time
        with within(max(0.0, seconds - (time.perf_counter() - start))):
            # so few that a gradient of the training loss is cheap, and the outputs at the test data
            problem = problem.restricted(
                problem.affordable(3, share=0.04),
                problem.affordable(1, share=0.015),
                as_generator(seed),
            )
        chosen = [f for f in known.values() if only is None or f.name in only]
        order = sorted(chosen, key=lambda f: COSTS.index(f.cost))
        made: dict[str, FindingRecord] = {}
        interrupted = False
        with progress.display():
            try:
                pairs = _shared_out(order, start, seconds)
                for f, planned, most in progress.track(pairs, "findings", total=len(order)):
                    made[f.name] = examine(
                        f, problem, confidence=confidence, seed=seed, seconds=planned, at_most=most
                    )
            except KeyboardInterrupt:
                interrupted = True
    facts = {**_facts(problem, confidence, seed, seconds), "data": given}
    if changed := before.changes(model):
        facts[CHANGED] = _changed(changed, copied=problem.model is not model)
    if interrupted:
        left = [f.name for f in order if f.name not in made]
        facts["interrupted"] = f"before {', '.join(left)}"
    return Audit(
        title=title or type(model).__name__,
        facts=facts,
        findings=[made[f.name] for f in chosen if f.name in made],
        seconds=time.perf_counter() - start,
        interrupted=interrupted,
    )


def _changed(names: Sequence[str], *, copied: bool) -> str:
    shown = ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
    why = (
        "something outside of it, such as a hook, wrote to it"
        if copied
        else "no copy of it can be made, so it was run itself"
    )
    return f"Running the model changed {shown} of it: {why}; load it anew before you go on."


def _fingerprint(problem: Problem) -> str:
    """A short hash of the data: the same for the same samples."""
    digest = hashlib.blake2b(digest_size=6)
    rows = problem.function.rows
    parts = [] if rows is None else rows.tensors()
    for samples in (problem.train, problem.test):
        if samples is not None:
            parts += [samples.y] if rows is not None else [samples.x, samples.y]
    for tensor in parts:
        plain = tensor.detach().cpu().contiguous()
        digest.update(str((plain.dtype, tuple(plain.shape))).encode())
        digest.update(plain.view(torch.uint8).numpy().tobytes() if plain.ndim else b"")
    return digest.hexdigest()


def _shared_out(
    order: Sequence[Finding], start: float, seconds: float
) -> Iterator[tuple[Finding, float, float]]:
    """Findings with the time each plans with, and when it is stopped.

    It plans with its share of what those before it have left. What takes longer than it planned
    with (others may use the machine) has three times that before it is stopped.
    """
    for k, found in enumerate(order):
        left = seconds - (time.perf_counter() - start)
        share = WEIGHTS[found.cost] / sum(WEIGHTS[f.cost] for f in order[k:])
        planned = max(0.0, left) * share
        yield found, planned, min(max(0.0, left), OVERRUN * planned)


def _facts(problem: Problem, confidence: float, seed: int, seconds: float) -> dict[str, str]:
    sizes = f"{problem.train.population:,} train"
    tested = problem.test
    sizes += f", {tested.population:,} test" if tested is not None else ", no test set"
    facts = {
        "model": type(problem.model).__name__,
        "parameters": f"{problem.function.count:,}",
        "task": problem.task
        + (f", {problem.classes} classes" if problem.task == "multiclass" else ""),
        "samples": sizes,
        "input": problem.input_shapes,
        "precision": str(problem.function.reference().dtype).removeprefix("torch."),
        "confidence": f"{confidence:g}",
        "seed": str(seed),
        "time budget": "none" if seconds == math.inf else f"{seconds:g} s",
        "versions": f"torchtheory {__version__}, torch {torch.__version__}, "
        f"Python {platform.python_version()}",
    }
    if problem.function.output is not None:
        facts["output"] = f"{problem.function.output!r} of the several the model returns"
    notes = [s.note for s in (problem.train, problem.test) if s is not None and s.note]
    if notes:
        facts["sub-sampled"] = "; ".join(notes)
    return facts

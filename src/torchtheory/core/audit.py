"""Running an audit: every finding on one problem, and the report that results."""

from __future__ import annotations

import json
import platform
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from torchtheory import __version__
from torchtheory.core import progress
from torchtheory.core.claim import Claim, Verdict
from torchtheory.core.errors import FileProblem, InvalidInput, UnknownName
from torchtheory.core.finding import COSTS, FindingRecord, examine, findings
from torchtheory.core.model import Initial
from torchtheory.core.problem import Loss, Problem, Task
from torchtheory.core.samples import Data


@dataclass(slots=True)
class Audit:
    """What theory says about one network.

    Attributes:
        title: the model's name.
        facts: what was audited, in words.
        findings: one record of claims, tables and figures for each finding, in the report's order.
        seconds: how long it took.
    """

    title: str
    facts: dict[str, str]
    findings: list[FindingRecord]
    seconds: float

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
        """The audit in a few plain sentences."""
        return [s for f in self.findings for s in f.headlines]

    def to_json(self) -> dict[str, Any]:
        return {
            "title": self.title,
            "facts": self.facts,
            "seconds": round(self.seconds, 3),
            "summary": self.summary,
            "findings": [f.to_json() for f in self.findings],
        }

    def save(self, directory: str | Path) -> Path:
        """Write ``report.html``, ``audit.json`` and ``figures/``; returns the page's path.

        The directory is made if needed. Only these files are written, each in one step; others in
        it and in its ``figures/`` are left alone.
        """
        from torchtheory.report.html import audit_page

        target = Path(directory)
        try:
            target.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(prefix=".partial-", dir=target) as made:
                partial = Path(made)
                (partial / "figures").mkdir()
                for f in self.findings:
                    for figure in f.figures:
                        path = partial / "figures" / f"{f.name}-{figure.name}.png"
                        path.write_bytes(figure.png)
                text = json.dumps(self.to_json(), indent=1, allow_nan=False, ensure_ascii=False)
                (partial / "audit.json").write_text(text, encoding="utf-8")
                (partial / "report.html").write_text(audit_page(self), encoding="utf-8")
                (target / "figures").mkdir(exist_ok=True)
                names = [f"figures/{path.name}" for path in (partial / "figures").iterdir()]
                for name in (*names, "audit.json", "report.html"):
                    (partial / name).replace(target / name)
        except OSError as error:
            raise FileProblem(f"cannot write to {target}: {error.strerror}") from None
        return target / "report.html"

    def _repr_html_(self) -> str:
        from torchtheory.report.html import audit_fragment

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
    limit: int = 20_000,
    title: str | None = None,
) -> Audit:
    """Everything theory can say about a network.

    Args:
        model: any ``nn.Module`` from a batch of inputs to one tensor. It is not changed.
        train: what it was trained on: ``(x, y)``, a ``Dataset`` or a ``DataLoader``.
        test: data it has not seen, if there is any.
        loss: mean loss; the task's usual one unless given.
        task: ``regression``, ``binary`` or ``multiclass``; inferred unless given.
        initial: the weights training began with, if you kept them (a state dict or a module of the
            same shape); some findings compare with them.
        confidence: of every statistical statement.
        seed: everything random follows from it.
        only: names of the findings to make; all unless given.
        limit: most samples used of either set.
        title: what to call the model in the report.

    >>> import torch
    >>> from torch import nn
    >>> x = torch.randn(40, 3)
    >>> report = audit(nn.Linear(3, 2), (x, (x[:, 0] > 0).long()), only=["layers"])
    >>> report.findings[0].tables[0].rows[0][:3]
    ('(model)', 'Linear', 8)
    """
    if not 0 < confidence < 1:
        raise InvalidInput(f"confidence must lie strictly between 0 and 1, not {confidence}")
    known = findings()
    only = [only] if isinstance(only, str) else only
    for name in only or ():
        if name not in known:
            raise UnknownName("finding", name, known)
    start = time.perf_counter()
    problem = Problem(model, train, test, loss, task, initial=initial, limit=limit, seed=seed)
    chosen = [f for f in known.values() if only is None or f.name in only]
    order = sorted(chosen, key=lambda f: COSTS.index(f.cost))
    with progress.display():
        made = {
            f.name: examine(f, problem, confidence=confidence, seed=seed)
            for f in progress.track(order, "findings")
        }
    return Audit(
        title=title or type(model).__name__,
        facts=_facts(problem, confidence, seed),
        findings=[made[f.name] for f in chosen],
        seconds=time.perf_counter() - start,
    )


def _facts(problem: Problem, confidence: float, seed: int) -> dict[str, str]:
    sizes = f"{len(problem.train)} train"
    sizes += f", {len(problem.test)} test" if problem.test is not None else ", no test set"
    facts = {
        "model": type(problem.model).__name__,
        "parameters": f"{problem.function.count:,}",
        "task": problem.task
        + (f", {problem.classes} classes" if problem.task == "multiclass" else ""),
        "samples": sizes,
        "input": " × ".join(str(s) for s in problem.train.x.shape[1:]) or "scalar",
        "precision": str(problem.function.reference().dtype).removeprefix("torch."),
        "confidence": f"{confidence:g}",
        "seed": str(seed),
        "versions": f"torchtheory {__version__}, torch {torch.__version__}, "
        f"Python {platform.python_version()}",
    }
    notes = [s.note for s in (problem.train, problem.test) if s is not None and s.note]
    if notes:
        facts["sub-sampled"] = "; ".join(notes)
    return facts

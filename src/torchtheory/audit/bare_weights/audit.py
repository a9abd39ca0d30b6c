"""Running an audit of weights alone."""

from __future__ import annotations

import math
import platform
import time
from contextlib import ExitStack
from typing import Any, cast

import torch

from torchtheory import __version__
from torchtheory.audit.bare_weights.checkpoint import WeightSource, open_checkpoint
from torchtheory.audit.bare_weights.findings import FINDINGS, WeightFinding
from torchtheory.audit.bare_weights.survey import Survey, survey
from torchtheory.audit.engine.audit import Audit
from torchtheory.audit.engine.finding import Finding, FindingRecord, examine
from torchtheory.core import progress
from torchtheory.core.budget import seconds_of
from torchtheory.core.errors import InvalidInput, UnknownName
from torchtheory.core.figure import import_drawing
from torchtheory.models.model import process_kept

#: Share of the time for measuring; the rest is for what is said about it.
MEASURING = 0.8

#: Of a finding's ranges, of which weights alone need none: nothing is a sample here.
CONFIDENCE = 0.95


def weights(
    source: WeightSource,
    *,
    only: list[str] | str | None = None,
    budget: str | float | None = "30s",
    seed: int = 0,
    title: str | None = None,
) -> Audit:
    """What weights alone tell: values, sizes, origin, spectra, tails, units, running statistics.

    Neither the code of the model nor data is needed, and nothing of the model is run. Ten million
    weights take a few seconds; one tensor at a time is in memory where the file is
    `.safetensors`.

    Args:
        source: a state dict, a module, or a file: `.safetensors` (also the
            `.safetensors.index.json` of shards), or a `.pt` or `.pth` state dict.
        only: names of the findings to make; all unless given.
        budget: time it may take, such as `"30s"`; None for no limit. Values come first, then
            spectra, small layers first; what no time is left for is said.
        seed: everything random follows from it.
        title: what to call the weights in the report.

    >>> import torch
    >>> report = weights({"layer.weight": torch.zeros(8, 4)}, only="weight-values")
    >>> report.warnings
    ['layer.weight is nothing but zeros, and passes no signal.']
    """
    seconds = seconds_of(budget)
    chosen = _chosen([only] if isinstance(only, str) else only)
    with process_kept():
        import_drawing()
    start = time.perf_counter()  # imports do not count
    with process_kept(), torch.no_grad(), ExitStack() as stack, progress.display():
        checkpoint = open_checkpoint(source, stack)
        found = survey(checkpoint, seconds=MEASURING * seconds, seed=seed)
        if not found.unseen and not any(t.floating for t in found.tensors):
            raise InvalidInput(
                f"{found.title} holds no floating-point tensor, so there are no weights to audit"
            )
        made = [
            _examined(
                one,
                found,
                seed=seed,
                # what is said takes moments; a late start must not leave the page empty
                seconds=max(1.0, seconds - (time.perf_counter() - start)),
            )
            for one in chosen
        ]
    return Audit(
        title=title or found.title,
        facts=_facts(found, seed, seconds),
        findings=made,
        seconds=time.perf_counter() - start,
    )


def _chosen(only: list[str] | None) -> list[WeightFinding]:
    known = {f.name: f for f in FINDINGS}
    for name in only or ():
        if name not in known:
            raise UnknownName("finding about weights alone", name, known)
    return [f for f in FINDINGS if not only or f.name in only]


def _examined(one: WeightFinding, found: Survey, *, seed: int, seconds: float) -> FindingRecord:
    finding = Finding(
        name=one.name,
        area=one.area,
        title=one.title,
        cost="parameters",
        covers=(),
        needs=(),
        whole=True,
        function=lambda _, record: one(found, record),
    )
    nothing = cast(Any, None)  # there is no problem: the survey is what it speaks about
    return examine(finding, nothing, confidence=CONFIDENCE, seed=seed, seconds=seconds)


def _facts(found: Survey, seed: int, seconds: float) -> dict[str, str]:
    kinds = sorted({t.dtype for t in found.tensors if t.floating})
    return {
        "audited": "weights alone, without data",
        "parameters": f"{found.parameters:,}",
        "tensors": f"{len(found.tensors):,}, of which {len(found.matrices):,} layers",
        "precision": ", ".join(kinds) or "no real numbers",
        "seed": str(seed),
        "time budget": "none" if seconds == math.inf else f"{seconds:g} s",
        "versions": f"torchtheory {__version__}, torch {torch.__version__}, "
        f"Python {platform.python_version()}",
    }

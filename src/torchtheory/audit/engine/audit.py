"""Running an audit: every finding on one problem, and the report that results."""

from __future__ import annotations

import hashlib
import math
import platform
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from torchtheory import __version__
from torchtheory.audit.engine.diagnosis import (
    CHANGED,
    PROCESSOR,
    chosen_pictures,
    verdict_sentence,
    why_silent,
)
from torchtheory.audit.engine.finding import (
    COSTS,
    WEIGHTS,
    Finding,
    FindingRecord,
    all_findings,
    examine,
)
from torchtheory.audit.engine.quantities import QuantityRow, QuantityTable
from torchtheory.audit.graph_data import on_nodes
from torchtheory.core import progress
from torchtheory.core.budget import seconds_of, within
from torchtheory.core.checks import open_fraction
from torchtheory.core.claim import Claim
from torchtheory.core.diagnosis import Area, Assessment, State, diagnose
from torchtheory.core.errors import UnknownName
from torchtheory.core.figure import Figure
from torchtheory.core.marks import marked_markdown, record_text
from torchtheory.core.memory import bytes_of
from torchtheory.core.outputs import write_outputs
from torchtheory.core.random import as_generator
from torchtheory.core.threads import UsefulThreads
from torchtheory.graphs.node_samples import OnNodes
from torchtheory.labs.manifest import labs_by_id
from torchtheory.models.derivative import import_differentiation
from torchtheory.models.heads import Output
from torchtheory.models.model import Initial, process_kept
from torchtheory.models.problem import Loss, Problem, Task
from torchtheory.models.samples import Data
from torchtheory.models.sklearn_estimators import as_network
from torchtheory.models.targets import position_words
from torchtheory.models.untouched import ModelState
from torchtheory.report.html import audit_fragment, audit_page
from torchtheory.report.markdown import audit_markdown
from torchtheory.report.terminal import audit_text

#: A finding is stopped when it takes so many times what it planned with.
OVERRUN = 3.0

#: Share of the time for the outputs at all samples, and for the first round of findings. What is
#: left goes to those that would be better with more of it.
OUTPUTS, FIRST_ROUND = 0.25, 0.6

#: Fewest samples for gradients: what is said about fewer would be about them alone. A finding for
#: which these are too many runs out of time, and says so.
FEWEST = 64

#: A finding is made again only with so many times the time it planned with before.
WORTHWHILE = 1.5

#: Passes over the samples that a finding's time must be enough for: over the training samples,
#: whose gradients it may take, and over the test samples, whose outputs.
GRADIENTS, OUTPUTS_EACH = 10, 5

#: The findings that decide an area in little time, in the order they come, before all others.
DECIDERS = ("risk", "position-errors", "training-end")

#: Those that are always there, whatever the time: the outputs, and how often they are wrong. They
#: get as many samples as there is time for, and are not stopped.
ALWAYS = ("risk", "position-errors")

#: Seconds for the outputs that no budget is too small for.
AT_ONCE = 0.25

#: Share of a core below which it is said how much of one there was, and least seconds to tell.
CORE, TOLD = 0.7, 0.5


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
        """What theory says about the network, of all findings."""
        return [c for f in self.findings for c in f.claims if not c.self_check]

    @property
    def self_checks(self) -> list[Claim]:
        """How the numbers were checked: claims that only an error of ours could break."""
        return [c for f in self.findings for c in f.claims if c.self_check]

    @property
    def violated(self) -> list[Claim]:
        """The claims that the measurements refute, or whose control did not fail."""
        return [c for f in self.findings for c in f.claims if c.broken]

    @property
    def undone(self) -> list[FindingRecord]:
        """The findings that there was no time for, or not enough."""
        return [f for f in self.findings if not f.complete]

    @property
    def applicable(self) -> list[FindingRecord]:
        """The findings but for those that turned out to have nothing to say about this network."""
        return [f for f in self.findings if not f.complete or f.says_something]

    @property
    def mostly_undone(self) -> bool:
        """Whether more than half of the findings that may apply ran out of time."""
        return 2 * len(self.undone) > len(self.applicable)

    @property
    def diagnosis(self) -> list[Assessment]:
        """One assessment for each area a reader asks about, in the report's order."""
        said = [a for f in self.findings for a in f.assessments]
        silent = {area: why_silent(self.findings, area) for area in Area}
        return diagnose(said, silent)

    @property
    def verdict(self) -> str:
        """The audit in one sentence."""
        return verdict_sentence(self)

    @property
    def pictures(self) -> list[tuple[str, Figure]]:
        """The figures that say most, at most three, each with the name of its finding."""
        return chosen_pictures(self.findings)

    @property
    def labs(self) -> dict[str, tuple[str, ...]]:
        """Names of the labs that exercise each entry of the catalogue."""
        return labs_by_id()

    @property
    def quantities(self) -> QuantityTable:
        """All numbers with their ranges, as a table."""
        return QuantityTable(
            [QuantityRow.of(f.name, q) for f in self.findings for q in f.quantities]
        )

    @property
    def summary(self) -> list[str]:
        """The audit in at most nine plain sentences: the verdict, then what was measured."""
        said = sorted(self.diagnosis, key=lambda a: list(State).index(a.state))
        return [self.verdict] + [a.sentence for a in said if a.state is not State.UNMEASURED]

    @property
    def warnings(self) -> list[str]:
        """The defects of the network and its data, in sentences."""
        return [w for f in self.findings for w in f.warnings]

    @property
    def looks(self) -> list[str]:
        """What is worth a look though it need not be wrong, in sentences."""
        return [a.sentence for f in self.findings for a in f.assessments if a.state is State.LOOK]

    def to_json(self) -> dict[str, Any]:
        return {
            "title": self.title,
            "facts": self.facts,
            "seconds": round(self.seconds, 3),
            "interrupted": self.interrupted,
            "verdict": self.verdict,
            "diagnosis": [a.to_json() for a in self.diagnosis],
            "summary": self.summary,
            "findings": [f.to_json() for f in self.findings],
        }

    def save(self, directory: str | Path) -> Path:
        """Write `report.html`, `report.md`, `audit.json` and `figures/`; returns the page.

        The directory is made if needed. Only these files are written, and only earlier reports of
        torchtheory are replaced (see `torchtheory.core.outputs.write_outputs`); others in it and in
        its `figures/` are left alone.
        """
        with process_kept():
            contents: dict[str, str | bytes] = {
                f"figures/{f.name}-{figure.name}.png": figure.png
                for f in self.findings
                for figure in f.figures
            }
            contents["audit.json"] = record_text("audit", self.to_json())
            contents["report.md"] = marked_markdown("audit", audit_markdown(self))
            contents["report.html"] = audit_page(self)
            target = write_outputs(directory, contents)
        return target / "report.html"

    def __repr__(self) -> str:
        return audit_text(self)

    def _repr_html_(self) -> str:
        with process_kept():  # the figures are drawn now
            return audit_fragment(self)


def audit(
    model: nn.Module | Any,
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
    output: Output | None = None,
    limit: int = 20_000,
    title: str | None = None,
) -> Audit:
    """Everything theory can say about a network.

    Args:
        model: any `nn.Module`, with one input or several, or an estimator of scikit-learn that
            is a network (a linear model, a perceptron, a pipeline that ends in one). It is not
            changed.
        train: what it was trained on: `(x, y)`, a `Dataset` or a `DataLoader`; `x` alone for an
            autoencoder or a model without targets.
        test: data it has not seen, if there is any.
        loss: mean loss; the task's usual one unless given.
        task: `regression`, `count`, `ordinal`, `ranking`, `binary`, `multiclass`, `multilabel`
            (several yes-or-no labels per sample), `labeling` (a class for every token or pixel),
            `own` (targets that only your loss knows) or `unlabeled`; inferred from outputs,
            targets and loss unless given, and stated at the top of the report.
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
        output: position or key of the output that is meant, where the model returns several; or
            a weight for each of several, `{"logits": 1.0, "aux": 0.3}`, with targets of the same
            names.
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
    seconds = seconds_of(budget)
    with process_kept():
        known = all_findings()
        only = [only] if isinstance(only, str) else only
        for name in only or ():
            if name not in known:
                raise UnknownName("finding", name, known)
        chosen = [f for f in known.values() if only is None or f.name in only]
        if any(f.cost != "parameters" for f in chosen):
            import_differentiation()
    start, worked = time.perf_counter(), time.process_time()  # imports do not count
    title = title or type(model).__name__
    model = as_network(model)
    before = ModelState(model)
    given_model = model
    model, train, test = on_nodes(model, train, test)
    # the model is looked at again at the end, which takes as long
    working = max(0.0, seconds - (time.perf_counter() - start))
    with process_kept():
        # of torch about its own speed, which an audit's reader can do nothing about
        warnings.filterwarnings("ignore", message="There is a performance drop because")
        threads = UsefulThreads()
        threads.choose()
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
        least, whole, fewer = _samples_in_time(problem, start, working, seed)
        made: dict[str, FindingRecord] = {}
        interrupted = False
        with progress.display():
            try:
                for f, planned, most in _shared_out(chosen, made, start, working):
                    threads.choose()
                    again = examine(
                        f,
                        least
                        if f.name in ALWAYS
                        else whole
                        if f.whole
                        else _enlarged(fewer, whole, planned, seed),
                        confidence=confidence,
                        seed=seed,
                        seconds=planned,
                        at_most=most,
                    )
                    if f.name not in made or again.complete:
                        made[f.name] = again
            except KeyboardInterrupt:
                interrupted = True
    name = type(given_model).__name__
    facts = {**_facts(whole, name, confidence, seed, seconds), "data": given}
    if changed := before.changes(given_model):
        facts[CHANGED] = _changed(changed, copied=problem.model is not model)
    if interrupted:
        left = [f.name for f in chosen if f.name not in made]
        facts["interrupted"] = f"before {', '.join(left)}"
    facts |= _processor(time.process_time() - worked, time.perf_counter() - start)
    return Audit(
        title=title,
        facts=facts,
        findings=[made[f.name] for f in chosen if f.name in made],
        seconds=time.perf_counter() - start,
        interrupted=interrupted,
    )


def _processor(worked: float, passed: float) -> dict[str, str]:
    """How much of a core the audit had, where so little that it did not get far.

    >>> _processor(2.0, 10.0), _processor(9.0, 10.0)
    ({'processor': 'had 20% of a core'}, {})
    """
    if passed < TOLD or worked >= CORE * passed:
        return {}
    return {PROCESSOR: f"had {worked / passed:.0%} of a core"}


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


def _samples_in_time(
    problem: Problem, start: float, seconds: float, seed: int
) -> tuple[Problem, Problem, Problem]:
    """The problem on samples whose outputs there is always time for, on all, on some for gradients.

    The first has all samples as well, unless their outputs would take most of the time.
    """
    _ = problem.seconds_per_sample  # measured once, whatever the time
    with within(max(0.0, seconds - (time.perf_counter() - start))):
        # no pass may take so long that the time is overrun before it is looked at again
        problem.limit_chunk(problem.affordable(10, share=0.02))
        tested = 0 if problem.test is None else len(problem.test)
        at_once = int(AT_ONCE / problem.seconds_per_sample)
        every = max(at_once, problem.affordable(1, share=OUTPUTS))
        shorter = min(1.0, every / (len(problem.train) + tested))
        whole = problem.restricted(
            max(FEWEST, math.ceil(shorter * len(problem.train))),
            max(FEWEST, math.ceil(shorter * tested)),
            as_generator(seed),
        )
        some = max(2, at_once, problem.affordable(1, share=0.5)) // (1 if tested == 0 else 2)
        least = whole
        if some < FEWEST:
            least = whole.restricted(max(1, some), max(1, some), as_generator(seed))
        # so few that a gradient of the training loss is cheap, and the outputs at the test data
        fewer = whole.restricted(
            max(FEWEST, problem.affordable(3, share=0.04)),
            max(FEWEST, problem.affordable(1, share=0.015)),
            as_generator(seed),
        )
    return least, whole, fewer


def _enlarged(fewer: Problem, whole: Problem, planned: float, seed: int) -> Problem:
    """The problem on more samples, where a finding has so much time that a pass over them is short.

    The samples of a shorter time are among those of a longer one.
    """
    passes = planned / fewer.seconds_per_sample if planned < math.inf else math.inf
    train, tested = len(fewer.train), 0 if fewer.test is None else len(fewer.test)
    more_train = int(min(len(whole.train), passes / GRADIENTS))
    more_tested = 0 if whole.test is None else int(min(len(whole.test), passes / OUTPUTS_EACH))
    if more_train <= train and more_tested <= tested:
        return fewer
    return whole.restricted(max(train, more_train), max(tested, more_tested), as_generator(seed))


def _shared_out(
    chosen: Sequence[Finding], made: Mapping[str, FindingRecord], start: float, seconds: float
) -> Iterator[tuple[Finding, float, float]]:
    """Findings with the time each plans with, and when it is stopped; cheap ones come first.

    In the first round each plans with its share of what those before it have left of the round,
    and one that decides an area with a tenth of the whole. What takes longer than it planned with
    (others may use the machine) has three times that, or a tenth of the whole, before it is
    stopped. Further rounds give the time that is left to the findings that would be better for it,
    those that were stopped first, until none gains by it.
    """

    def left(share: float = 1.0) -> float:
        return max(0.0, share * seconds - (time.perf_counter() - start))

    # what the model does on the data comes before everything else, its errors first
    def turn(found: Finding) -> tuple[int, bool, int]:
        decides = found.name in DECIDERS
        place = DECIDERS.index(found.name) if decides else len(DECIDERS)
        return place, not found.whole, COSTS.index(found.cost)

    first = sorted(chosen, key=turn)
    used: dict[str, float] = {}
    for k, found in enumerate(progress.track(first, "findings")):
        share = WEIGHTS[found.cost] / sum(WEIGHTS[f.cost] for f in first[k:])
        planned = left(FIRST_ROUND) * share
        if found.name in DECIDERS and seconds < math.inf:
            planned = max(planned, seconds / 10)
        used[found.name] = planned
        most = min(left(), max(OVERRUN * planned, seconds / 10))
        yield found, planned, math.inf if found.name in ALWAYS else most
    if seconds == math.inf:
        return
    again = [f for f in first if made[f.name].sampled]
    while again:
        again.sort(key=lambda f: made[f.name].complete)
        gained: list[Finding] = []
        for k, found in enumerate(progress.track(again, "more samples")):
            share = WEIGHTS[found.cost] / sum(WEIGHTS[f.cost] for f in again[k:])
            planned, before = left() * share, made[found.name]
            if planned <= WORTHWHILE * used[found.name]:
                continue
            used[found.name] = planned
            yield found, planned, left()
            after = made[found.name]
            # stopped again, or as good as it gets: more time is better spent on others
            if after is not before and after.sampled and _measured_on(after) > _measured_on(before):
                gained.append(found)
        again = gained


def _measured_on(found: FindingRecord) -> int:
    """How many samples its numbers rest on, all together; -1 for a finding that was stopped."""
    return sum(q.used for q in found.quantities) if found.complete else -1


def _task(problem: Problem) -> str:
    """What is to be said about a sample."""
    many = problem.train.y[0].numel()
    if problem.task == "multiclass":
        nodes = " of nodes" if isinstance(problem.model, OnNodes) else ""
        return f"classification{nodes}, {problem.classes} classes"
    if problem.task == "labeling":
        _, label = position_words(problem.train.y, problem.tokens)
        each = "position" if label == "label" else label
        return f"one of {problem.classes} classes for each {each}"
    if problem.task == "multilabel":
        return f"multi-label, {many} yes-or-no labels"
    if problem.task == "regression" and many > 1:
        return f"regression, {many} numbers"
    if problem.task == "ordinal":
        return "ordered levels" + (f", by {many} thresholds" if many > 1 else "")
    if problem.task == "ranking":
        return f"ranking, {many} items"
    named = {"count": "counts", "own": "known to your loss alone", "unlabeled": "no targets",
             "combined": "several outputs with weights"}  # fmt: skip
    return named.get(problem.task, problem.task)


def _facts(
    problem: Problem, name: str, confidence: float, seed: int, seconds: float
) -> dict[str, str]:
    sizes = f"{problem.train.population:,} train"
    tested = problem.test
    sizes += f", {tested.population:,} test" if tested is not None else ", no test set"
    facts = {
        "model": name,
        "parameters": f"{problem.function.count:,}",
        "task": _task(problem),
        "task seen by": problem.task_reason,
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
    if isinstance(problem.model, OnNodes):
        facts["nodes"] = (
            "a sample is a node of this graph; neighbors depend on each other, so that ranges may "
            "be too narrow, and nothing is said about other graphs"
        )
    facts |= problem.remarks
    notes = [s.note for s in (problem.train, problem.test) if s is not None and s.note]
    if notes:
        facts["sub-sampled"] = "; ".join(notes)
    return facts

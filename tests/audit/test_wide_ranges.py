"""Words follow ranges: what every finding says when its numbers are known badly."""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import torchtheory.audit
from torchtheory.audit.engine.finding import FindingRecord, all_findings, examine
from torchtheory.core.diagnosis import Area, Assessment, State
from torchtheory.core.errors import InvalidInput
from torchtheory.core.quantity import LONGEST_LABEL, Quantity
from torchtheory.core.random import as_generator
from torchtheory.core.usual import Usual, above, at_least, at_most, below, between
from torchtheory.graphs.convolutions import GCN
from torchtheory.graphs.graph_reading import as_graph
from torchtheory.graphs.node_samples import OnNodes
from torchtheory.models.problem import Problem

pytestmark = pytest.mark.usefixtures("no_figures")

SOURCES = sorted(Path(torchtheory.audit.__file__).parent.rglob("*.py"))


# ------------------------------------------------------------------------------- the networks


class _Words(nn.Module):
    """An embedding, an LSTM and attention, to one of two classes."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(12, 8)
        self.memory = nn.LSTM(8, 8, batch_first=True)
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.out = nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        h, _ = self.memory(self.words(x))
        mixed, _ = self.attention(h, h, h)
        out: Tensor = self.out(mixed.mean(1))
        return out


def _trained(model: nn.Module, x: Tensor, y: Tensor, steps: int = 25) -> nn.Module:
    loss = nn.functional.mse_loss if y.is_floating_point() else nn.functional.cross_entropy
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    for _ in range(steps):
        optimizer.zero_grad()
        loss(model(x), y).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    return model.eval()


def _split(model: nn.Module, x: Tensor, y: Tensor) -> Problem:
    return Problem(_trained(model, x[:160], y[:160]), (x[:160], y[:160]), (x[160:], y[160:]))


def _classifier() -> Problem:
    x = torch.randn(260, 6)
    net = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 3))
    return _split(net, x, (x[:, 0] > 0.4).long() + (x[:, 1] > 0).long())


def _regression() -> Problem:
    x = torch.randn(260, 4)
    net = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 1))
    return _split(net, x, x[:, :1].sin() + 0.1 * torch.randn(260, 1))


def _images() -> Problem:
    x = torch.randn(260, 1, 16, 16)
    y = (x[:, 0, :8].mean((1, 2)) > 0).long()
    x[:, 0, :8] += 0.5 * y[:, None, None]
    net = nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(4, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        nn.Linear(8, 2),
    )  # fmt: skip
    return _split(net, x, y)


def _sentences() -> Problem:
    x = torch.randint(12, (260, 9))
    return _split(_Words(), x, (x == 3).any(1).long())


def _nodes() -> Problem:
    edges = torch.rand(40, 40) < 0.1
    ring = torch.eye(40).roll(1, 0).bool()
    whole = (edges | ring | edges.T | ring.T) & ~torch.eye(40, dtype=torch.bool)
    y = (torch.arange(40) >= 20).long()
    x = torch.randn(40, 4, dtype=torch.float64) + y[:, None]
    model = OnNodes(GCN([4, 8, 2], generator=0), as_graph(whole.double().numpy()), x, distance=2)
    nodes = torch.arange(40)
    return Problem(model, (nodes[::2], y[::2]), (nodes[1::2], y[1::2]))


NETWORKS: dict[str, Callable[[], Problem]] = {
    "classifier": _classifier,
    "regression": _regression,
    "images": _images,
    "sentences": _sentences,
    "nodes": _nodes,
}


def _made(name: str, *, part: bool = False) -> Problem:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        problem = NETWORKS[name]()
    return problem.restricted(90, 60, as_generator(1)) if part else problem


def _examined(problem: Problem, names: Sequence[str] = ()) -> list[FindingRecord]:
    """Every finding on a short plan, whatever the machine does beside it."""
    return [
        examine(found, problem, confidence=0.95, seed=0, seconds=0.2, at_most=8.0)
        for name, found in all_findings().items()
        if name not in ("pac-bayes", "robust-accuracy") and (not names or name in names)
    ]


# -------------------------------------------------------------------------- the engine decides


def _decided(said: Assessment) -> bool:
    """Whether the whole range of the number lies on the side that the state claims."""
    assert said.number is not None
    assert isinstance(said.usual, Usual)
    if said.state is State.FINE:
        return said.usual.holds_all_of(said.number)
    return said.usual.holds_none_of(said.number)


def _check(records: Sequence[FindingRecord]) -> None:
    for record in records:
        for said in record.assessments:
            if said.number is None:
                continue
            if said.state is State.OPEN:
                assert said.number.low < said.number.high, (record.name, said)
                assert said.sentence.endswith(": whether it is usual cannot be told."), said
                assert "decide it" in said.action
            elif said.state is not State.UNMEASURED:
                assert _decided(said), (record.name, said.number, said.usual)


def _widen(monkeypatch: pytest.MonkeyPatch, *, down: bool, up: bool) -> None:
    plain = FindingRecord.quantity

    def quantity(self: FindingRecord, *given: Any, **more: Any) -> Quantity:
        made = plain(self, *given, **more)
        low, high = (-math.inf if down else made.low), (math.inf if up else made.high)
        wide = replace(made, low=low, high=high, basis="widened")
        if self.quantities and self.quantities[-1] is made:
            self.quantities[-1] = wide
        return wide

    monkeypatch.setattr(FindingRecord, "quantity", quantity)


@pytest.mark.parametrize("name", NETWORKS)
def test_nothing_is_said_of_numbers_that_may_be_anything(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    problem = _made(name)
    _widen(monkeypatch, down=True, up=True)
    records = _examined(problem)
    _check(records)
    numbers = [a for r in records for a in r.assessments if a.number is not None]
    assert {a.state for a in numbers} == {State.OPEN}
    assert len(numbers) >= 5, [(r.name, r.assessments) for r in records]
    # no finding was stopped short by what the engine refuses
    reasons = [c.reason for r in records for c in r.claims if c.reason]
    assert not [r for r in reasons if "come together" in r or "needs limits" in r]


@pytest.mark.parametrize(("down", "up"), [(True, False), (False, True)])
def test_a_range_with_one_end_decides_on_one_side_only(
    down: bool, up: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    problem = _made("classifier")
    _widen(monkeypatch, down=down, up=up)
    records = _examined(problem)
    _check(records)
    assert any(a.state is State.OPEN for r in records for a in r.assessments)


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("part", [False, True])
def test_states_and_words_follow_the_ranges_there_are(name: str, part: bool) -> None:
    if part and name == "nodes":
        pytest.skip("a graph is seen whole")
    records = _examined(_made(name, part=part))
    _check(records)
    said = 0
    for record in records:
        for sentence in _sentences_of(record):
            said += 1
            if any(q.sampled for q in record.quantities):
                assert not _too_general(sentence), (record.name, sentence)
    assert said >= 10


# ----------------------------------------------------------------------------- words, not too many

#: Said of a part of the data they are not known to be true.
GENERAL = re.compile(
    r"\b(never|always|all|every|none|at most|no (layer|unit|head|sample|output|feature|label))\b",
    re.IGNORECASE,
)

#: What is true of all there is all the same, or says of how many it speaks.
KNOWN = (
    r"always naming (it|the most frequent \w+)",  # a rule, not the network
    r"(moves|move) by at most [^,.]*",  # what an attack may do
    r"for at most \d+% of accuracy",  # a level that was chosen
    r"(promises|certifies) an error of at most [\d.]+%?",  # bounds, which hold for all data
    r"confidence it errs on at most [\d.]+%",
    r"in at most [\d.]+% of all cases",
    r"by at most [\d.e+]+ on (the whole space|a ball)",  # a bound of the layers
    r"every bound (that applies|there was time for)|Every generalization bound",
    r"leaves every output as it is",  # by construction
    r"the worst channel of all",  # channels are all looked at
    r"standard deviation of all of them",
    r"(none|all) (of|is|are)[^.]* (looked at|tried)",
    r"(all|none|any|every|each|no \w+)[^.]*\((from|n =) [\d,]+ of [\d,]+ [^)]*\)",
    r"(all|none|any) (of )?[\d,]+ [^.]*(looked at|tried)",
    r"At the [\w ]+ tried,? no layer",
    r"no (layer|unit|head) is seen",
)


def _sentences_of(record: FindingRecord) -> Iterator[str]:
    yield from record.headlines
    yield from record.advice
    for said in record.assessments:
        yield said.sentence
        yield said.action


def _too_general(sentence: str) -> bool:
    for known in KNOWN:
        sentence = re.sub(known, "", sentence, flags=re.IGNORECASE)
    return GENERAL.search(sentence) is not None


@pytest.mark.parametrize(
    ("sentence", "bad"),
    [
        ("30,508 of the 30,521 rows of the table are never used.", True),
        ("The statistics are off by 0.21 at most.", True),
        ("No layer looks as it was drawn.", True),
        ("Of 90 units none is dead.", True),
        ("It errs on 3%; always naming the most frequent class errs on 80%.", False),
        ("All 4 heads average over the tokens (from 90 of 160 training samples).", False),
        ("With 95% confidence it errs on at most 11.0% of new data.", False),
    ],
)
def test_the_words_that_say_too_much(sentence: str, bad: bool) -> None:
    assert _too_general(sentence) is bad


# --------------------------------------------------------------------------- what the code gives


def _calls() -> Iterator[tuple[str, ast.Call]]:
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Call):
                yield f"{path.name}:{node.lineno}", node


def test_no_assessment_has_words_for_limits() -> None:
    found = 0
    for place, call in _calls():
        given = {k.arg: k.value for k in call.keywords}
        if "usual" not in given and "number" not in given:
            continue
        found += 1
        assert ("number" in given) == ("usual" in given), place
        words = given["usual"]
        text = isinstance(words, ast.JoinedStr) or (
            isinstance(words, ast.Constant) and isinstance(words.value, str)
        )
        as_text = isinstance(words, ast.Call) and getattr(words.func, "id", "") == "str"
        assert not text, place
        assert not as_text, place
    assert found > 100


def test_names_of_numbers_fit_a_narrow_terminal() -> None:
    lengths = {}
    for place, call in _calls():
        if getattr(call.func, "attr", "") != "quantity" or len(call.args) < 2:
            continue
        label = call.args[1]
        parts = label.values if isinstance(label, ast.JoinedStr) else [label]
        # a name or a number stands where the code has braces
        sizes = [
            len(p.value) if isinstance(p, ast.Constant) and isinstance(p.value, str) else 5
            for p in parts
        ]
        lengths[place] = sum(sizes)
    assert len(lengths) > 100
    assert {k: v for k, v in lengths.items() if v > LONGEST_LABEL} == {}


# ------------------------------------------------------------------------------- limits by hand


def _record() -> FindingRecord:
    return FindingRecord(name="one", title="One", area=Area.DATA, cost="forward")


def _number(low: float, high: float, used: int = 0, population: int = 0) -> Quantity:
    middle = (low + high) / 2
    return Quantity("share", "share of units", middle, low, high, "a test", "", used, population)


@pytest.mark.parametrize("usual", ["below 0.05", "", 0.05])
def test_words_alone_are_refused(usual: Any) -> None:
    with pytest.raises(InvalidInput, match="needs limits"):
        _record().look("It is large.", number=_number(0.2, 0.3), usual=usual)


def test_numbers_and_what_is_usual_of_them_come_together() -> None:
    with pytest.raises(InvalidInput, match="come together"):
        _record().fine("It is small.", number=_number(0.0, 0.1))
    with pytest.raises(InvalidInput, match="come together"):
        _record().fine("It is small.", usual=below(1))


def test_limits_there_must_be() -> None:
    with pytest.raises(InvalidInput, match="has no limit"):
        Usual("as in training")
    with pytest.raises(InvalidInput, match="close the limits"):
        Usual("0", low=0, high=0)


@pytest.mark.parametrize(
    ("usual", "low", "high", "fine", "look"),
    [
        (below(0.1), 0.0, 0.22, False, False),
        (below(0.1), 0.0, 0.1, True, False),
        (below(0.1), 0.1, 0.2, False, True),
        (above(0.1), 0.0, 0.1, False, True),
        (at_most(0), 0.0, 0.0, True, False),
        (at_most(0), 0.0, 0.3, False, False),
        (at_most(0), 0.01, 0.3, False, True),
        (at_least(2), 1.0, 1.0, False, True),
        (at_least(2), 1.0, 2.0, False, False),
        (at_least(2), 2.0, 9.0, True, False),
        (between(0.5, 2), 0.4, 0.6, False, False),
        (between(0.5, 2), 2.5, 9.0, False, True),
    ],
)
def test_a_state_is_that_of_the_whole_range(
    usual: Usual, low: float, high: float, fine: bool, look: bool
) -> None:
    for name, sure, state in (("fine", fine, State.FINE), ("look", look, State.LOOK)):
        record = _record()
        getattr(record, name)("A sentence.", number=_number(low, high), usual=usual)
        (said,) = record.assessments
        assert said.state is (state if sure else State.OPEN)

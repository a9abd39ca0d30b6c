"""Models and data of every awkward kind: a reason in a sentence, and nothing is changed."""

from __future__ import annotations

import copy
import json
import random
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

import torchtheory as tt
from torchtheory import cli
from torchtheory.audit.engine import finding as registry
from torchtheory.audit.engine.finding import FindingRecord, all_findings
from torchtheory.core.claim import Verdict
from torchtheory.core.errors import (
    InvalidInput,
    LabelOutOfRange,
    NonFinite,
    UnsupportedModel,
)
from torchtheory.models.problem import Problem

pytestmark = pytest.mark.usefixtures("no_figures")


@pytest.fixture(autouse=True)
def own_findings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Findings that a test registers are gone after it."""
    monkeypatch.setattr(registry, "_FINDINGS", dict(all_findings()))


def plain(value: Any) -> Any:
    """Numbers and containers that can be compared, of whatever a module holds."""
    if isinstance(value, Tensor):
        bits = value.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
        return str(value.dtype), tuple(value.shape), value.data_ptr(), bits.numpy().tobytes()
    if isinstance(value, dict):
        return [(k, plain(v)) for k, v in value.items()]
    if isinstance(value, list | tuple):
        return [plain(v) for v in value]
    return copy.copy(value) if isinstance(value, int | float | str | set) else id(value)


def everything(model: nn.Module) -> Any:
    """Weights, buffers, gradients, modes, hooks and attributes, and the global generators."""
    modules = [
        (name, {k: plain(v) for k, v in vars(m).items() if k != "_modules"})
        for name, m in model.named_modules()
    ]
    parameters = [(k, p.requires_grad, plain(p.grad)) for k, p in model.named_parameters()]
    randomness = (
        torch.get_rng_state().tolist(),
        random.getstate(),
        str(np.random.get_state()),  # noqa: NPY002
    )
    return modules, parameters, randomness


class Head(nn.Module):
    """A small network with something unusual about its forward pass."""

    def __init__(self, outputs: int = 3) -> None:
        super().__init__()
        self.hidden, self.out = nn.Linear(4, 5), nn.Linear(5, outputs)

    def logits(self, x: Tensor) -> Tensor:
        out: Tensor = self.out(torch.relu(self.hidden(x)))
        return out

    def forward(self, x: Tensor) -> Any:
        return self.logits(x)


class Dropping(Head):
    def forward(self, x: Tensor) -> Any:
        return nn.functional.dropout(self.logits(x), 0.5, training=True)


class Noisy(Head):
    def forward(self, x: Tensor) -> Any:
        noise = torch.as_tensor(np.random.rand(), dtype=x.dtype)  # noqa: NPY002
        unknown = float(np.random.default_rng().random())  # which nothing outside can seed
        return self.logits(x) + random.random() * torch.randn(3) + noise + unknown


class Counting(Head):
    def __init__(self) -> None:
        super().__init__()
        self.calls, self.seen, self.shapes = 0, [], {}  # type: ignore[var-annotated]
        self.cache: Tensor | None = None
        self.register_buffer("total", torch.zeros(()))

    def forward(self, x: Tensor) -> Any:
        self.calls += 1
        self.seen.append(len(x))
        self.shapes[len(x)] = x.shape
        self.total += 1
        self.cache = self.logits(x)
        return self.cache


class Picky(Head):
    def forward(self, x: Tensor) -> Any:
        if len(x) > 8:
            raise ValueError("at most eight rows, please")
        return self.logits(x)


class Pair(Head):
    def forward(self, x: Tensor) -> Any:
        return self.logits(x), x.mean()


class Named(Head):
    def forward(self, x: Tensor) -> Any:
        return {"hidden": x, "logits": self.logits(x)}


@dataclass
class Output:
    logits: Tensor
    note: str


class Data(Head):
    def forward(self, x: Tensor) -> Any:
        return Output(self.logits(x), "as asked")


class ByName(Head):
    def forward(self, left: Tensor, right: Tensor) -> Any:
        return self.logits(torch.cat([left, right], 1))


class Tokens(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.out = nn.Embedding(7, 3), nn.Linear(3, 3)

    def forward(self, ids: Tensor) -> Any:
        return self.out(torch.tanh(self.embed(ids)).mean(1))


class Scaled(Head):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(2.0))

    def forward(self, x: Tensor) -> Any:
        return self.scale * self.logits(x)


class Pipeline(nn.Module):
    """A scikit-learn kind of model, which torch cannot differentiate."""

    def forward(self, x: Tensor) -> Any:
        with torch.no_grad():
            numbers = x.detach().numpy()
            return torch.as_tensor(numbers @ np.ones((4, 3)) + numbers[:, :1]).to(x)


class Detached(Head):
    def forward(self, x: Tensor) -> Any:
        with torch.no_grad():
            return self.logits(x)


class Stream(IterableDataset[Any]):
    def __init__(self, x: Tensor, y: Tensor) -> None:
        self.pairs = list(zip(x, y, strict=True))

    def __iter__(self) -> Iterator[Any]:
        return iter(self.pairs)


def case(name: str) -> tuple[nn.Module, Any, dict[str, Any]]:
    torch.manual_seed(0)
    x, y = torch.randn(24, 4), torch.arange(24) % 3
    net: nn.Module = Head()
    train: Any = None
    known: dict[str, Any] = {}
    match name:
        case "one class":
            y = torch.zeros(24, dtype=torch.long)
        case "one sample":
            x, y = x[:1], y[:1]
        case "two samples":
            x, y = x[:2], y[:2]
        case "constant features":
            x = torch.ones(24, 4)
        case "equal targets":
            net, y = Head(1), torch.full((24,), 0.5)
        case "dropping":
            net = Dropping()
        case "noisy":
            net = Noisy()
        case "counting":
            net = Counting()
        case "picky":
            net = Picky()
        case "pair":
            net = Pair()
        case "named":
            net = Named()
        case "dataclass":
            net = Data()
        case "inputs by name":
            net, train = ByName(), ({"left": x[:, :1], "right": x[:, 1:]}, y)
        case "token ids":
            net, x = Tokens(), torch.randint(0, 7, (24, 4))
        case "several targets":
            y = torch.randn(24, 3)
        case "float64":
            net = net.double()
        case "bfloat16":
            net = net.bfloat16()
        case "frozen":
            net.requires_grad_(False)
        case "no parameters":
            net = nn.Tanh()
        case "shared":
            layer = nn.Linear(4, 4)
            net = nn.Sequential(layer, nn.ReLU(), layer, nn.ReLU(), nn.Linear(4, 3))
        case "scalar parameter":
            net = Scaled()
        case "lstm":
            net, x, y = nn.LSTM(4, 3, batch_first=True), torch.randn(9, 2, 4), torch.randn(9, 2, 3)
        case "batch norm":
            net = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 3))
            net.train()
        case "loader":
            train = DataLoader(TensorDataset(x, y), 5, shuffle=True, num_workers=1)
        case "stream":
            train = Stream(x, y)
        case "float labels":
            y = y.float()  # type: ignore[assignment]
        case "signs":
            net, y = Head(1), 2 * (y > 0).long() - 1
        case "many classes":
            net = Head(1500)
        case "pipeline":
            net = Pipeline()
        case "no graph":
            net = Detached()
    if name != "frozen" and next(net.parameters(), None) is not None:
        next(net.parameters()).grad = torch.ones_like(next(net.parameters()))
    net.register_forward_hook(lambda *_: None)
    return net, (x, y) if train is None else train, known


NAMES = [
    "plain", "one class", "one sample", "two samples", "constant features", "equal targets",
    "dropping", "noisy", "counting", "picky", "pair", "named", "dataclass", "inputs by name",
    "token ids", "several targets", "float64", "bfloat16", "frozen", "no parameters", "shared",
    "scalar parameter", "lstm", "batch norm", "loader", "stream", "float labels", "signs",
    "many classes", "pipeline", "no graph",
]  # fmt: skip

#: Words of torch or python that no reason should pass on where a sentence is possible.
RAW = ["grad_fn", "not implemented for", "NoneType", "Expected ", "vmap", "functorch", "aten::",
       "symbolic", "RuntimeError"]  # fmt: skip


def reasons(report: tt.audit.Audit) -> dict[str, str]:
    return {
        f.name: " | ".join(c.reason for c in f.claims if c.verdict is Verdict.NOT_APPLICABLE)
        for f in report.findings
    }


def audited(name: str) -> tt.audit.Audit:
    """All findings but those that train, which have tests of their own."""
    net, train, known = case(name)
    cheap = [k for k, f in all_findings().items() if f.cost != "training"]
    before = everything(net)
    report = tt.audit(net, train, only=cheap, budget=None, **known)
    assert everything(net) == before
    return report


@pytest.mark.parametrize("name", NAMES)
def test_every_finding_says_something_and_nothing_is_changed(name: str) -> None:
    report = audited(name)
    assert report.violated == []
    json.dumps(report.to_json(), allow_nan=False)
    assert report.summary
    for finding, reason in reasons(report).items():
        # what the model itself says may be passed on
        said = "at most eight rows, please" in reason
        assert said or "could not be computed" not in reason, (finding, reason)
        assert not any(word in reason for word in RAW), (finding, reason)
    for f in report.findings:
        assert f.claims or f.tables or f.notes or f.quantities, f.name


@pytest.mark.parametrize(
    ("name", "finding", "sentence"),
    [
        ("plain", "risk", "no test data was given"),
        ("noisy", "units", "draws random numbers in a way that cannot be fixed"),
        ("picky", "risk", "the model raised ValueError on inputs of shape [24, 4]"),
        ("picky", "curvature", "the model raised ValueError: at most eight rows, please"),
        ("picky", "width", "the network is wider than its number of inputs, 4"),
        ("token ids", "linearity", "the inputs are torch.int64, and a derivative needs real"),
        ("several targets", "margins", "the task is a regression, not a classification"),
        ("no parameters", "units", "the model has no parameters"),
        ("pipeline", "curvature", "the model has no parameters"),
        ("no graph", "curvature", "something inside the model cuts the graph"),
        ("no graph", "gradients-by-depth", "something inside the model cuts the graph"),
    ],
)
def test_reasons(name: str, finding: str, sentence: str) -> None:
    net, train, known = case(name)
    report = tt.audit(net, train, only=[finding], budget=None, **known)
    assert sentence in reasons(report)[finding]


@pytest.mark.parametrize("samples", [1, 4, 5, 24])
def test_too_few_samples_prove_no_unit_dead(samples: int) -> None:
    net, (x, y), _ = case("plain")
    assert isinstance(net, Head)
    net.hidden.bias.data -= 100
    report = tt.audit(net, (x[:samples], y[:samples]), only=["units"], budget=None)
    assert len(report.warnings) == (samples >= 5)  # 2^-5 is below 0.05, and 2^-4 is not


def test_weights_that_are_not_numbers_are_named() -> None:
    net, train, _ = case("plain")
    assert isinstance(net, Head)
    net.out.weight.data[1, 2] = float("nan")
    with pytest.raises(NonFinite, match=r"^out\.weight of the model contains NaN or infinity$"):
        tt.audit(net, train)


def test_one_hot_labels_are_class_indices() -> None:
    net, (x, y), _ = case("plain")
    plain = Problem(net, (x, y))
    rows = nn.functional.one_hot(y)
    for given in (rows, rows.float()):
        p = Problem(net, (x, given))
        assert (p.task, p.task_reason) == ("multiclass", "the targets are one-hot rows")
        assert torch.equal(p.train.y, y)
        # a loss of the user's sees the rows
        squares = Problem(net, (x, given), loss=nn.MSELoss())
        assert squares.risk(squares.train) == pytest.approx(
            float(nn.functional.mse_loss(plain.outputs(plain.train), rows.float())), rel=1e-5
        )
    report = tt.audit(net, (x, rows), task="regression", only=["layers"])
    assert report.facts["task"].startswith("regression")


def test_labels_of_the_wrong_kind() -> None:
    net, (x, y), _ = case("plain")
    with pytest.raises(LabelOutOfRange, match="train labels run from -1 to 1"):
        tt.audit(net, (x, y - 1))
    with pytest.raises(LabelOutOfRange, match=r"run from 0 to 7, but the model has 3 outputs"):
        tt.audit(net, (x, torch.arange(24) % 8))


def test_a_sum_is_no_mean() -> None:
    net, train, _ = case("plain")
    with pytest.raises(InvalidInput, match="doubling the batch changed it from"):
        tt.audit(net, train, loss=nn.CrossEntropyLoss(reduction="sum"))


def test_a_model_that_always_raises() -> None:
    net, (x, y), _ = case("plain")
    before = everything(net)
    with pytest.raises(TypeError, match="the model raised RuntimeError on inputs of shape"):
        tt.audit(net, (x[:, :3], y))
    assert everything(net) == before


def test_the_command_line_writes_what_it_has_when_interrupted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    @tt.finding("interrupting", area="capacity", title="Stops", cost="parameters")
    def interrupting(problem: Problem, record: FindingRecord) -> None:
        raise KeyboardInterrupt

    _, (x, y), _ = case("plain")
    np.savez(tmp_path / "data.npz", x_train=x.numpy(), y_train=y.numpy())
    source = "from torch import nn\n\n\ndef make():\n    return nn.Linear(4, 3)\n"
    (tmp_path / "zz_interrupted.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    names = ("layers", "interrupting", "risk")
    places = ["--data", str(tmp_path / "data.npz"), "--out", str(tmp_path / "out")]
    only = [f"--only={name}" for name in names]
    with pytest.raises(SystemExit) as ended:
        cli.main(["audit", "--model", "zz_interrupted:make", *places, *only])
    assert ended.value.code == 130
    assert "interrupted; what was finished before is kept" in capsys.readouterr().err
    written = json.loads((tmp_path / "out" / "audit.json").read_text("utf-8"))
    assert written["interrupted"]
    assert [f["name"] for f in written["findings"]] == ["risk", "layers"]
    assert written["facts"]["interrupted"] == "before interrupting"


class Exits(Head):
    def __init__(self, rows: int) -> None:
        super().__init__()
        self.rows = rows

    def forward(self, x: Tensor) -> Any:
        if len(x) > self.rows:
            raise SystemExit(0)
        return self.logits(x)


def test_a_model_that_exits_is_refused_and_does_not_end_the_program() -> None:
    _, train, _ = case("plain")
    with pytest.raises(UnsupportedModel, match=r"the model raised SystemExit on inputs .*: 0"):
        tt.audit(Exits(0), train, only=["layers"])
    report = tt.audit(Exits(8), train, only=["units"], budget=None)
    assert "the model raised SystemExit" in reasons(report)["units"]


def test_an_interrupt_in_the_model_stops_the_audit() -> None:
    class Interrupted(Head):
        def forward(self, x: Tensor) -> Any:
            if len(x) > 8:
                raise KeyboardInterrupt
            return self.logits(x)

    _, train, _ = case("plain")
    with pytest.raises(KeyboardInterrupt):
        tt.audit(Interrupted(), train, only=["units"], budget=None)


class Inside:
    def __init__(self) -> None:
        self.calls = 0
        self.lock = threading.Lock()


class Uncopyable(Head):
    """Holds a lock, and a count that the audit cannot see."""

    def __init__(self) -> None:
        super().__init__()
        self.inside = Inside()
        self.array = np.zeros(1)

    def forward(self, x: Tensor) -> Any:
        self.array += 1
        return self.logits(x)


def test_a_changed_model_is_said_in_one_sentence() -> None:
    net = Uncopyable()
    _, train, _ = case("plain")
    before = copy.deepcopy(net.state_dict())
    report = tt.audit(net, train, only=["layers"])
    assert report.facts["model changed"].startswith("Running the model changed array of it: no cop")
    assert report.summary[0] == report.facts["model changed"]
    assert all(torch.equal(v, before[k]) for k, v in net.state_dict().items())
    plain_net, train, _ = case("counting")
    assert "model changed" not in tt.audit(plain_net, train, only=["layers"]).facts


class StraightThrough(Head):
    def forward(self, x: Tensor) -> Any:
        out = self.logits(x)
        return out + (out.sign() - out).detach()


class Overwriting(Head):
    def forward(self, x: Tensor) -> Any:
        hidden = torch.sigmoid(self.hidden(x))
        hidden.mul_(2)
        return self.out(hidden)


@pytest.mark.parametrize(
    ("net", "finding", "reason"),
    [
        (StraightThrough(), "gradient-noise", "not the derivative of the outputs"),
        (StraightThrough(), "tangent-kernel", "not the derivative of the outputs"),
        (Overwriting(), "gradient-noise", "writes in place to what a derivative"),
        (Pair(), "pac-bayes", "returns several outputs"),
        (Detached(), "pac-bayes", "no derivative"),
    ],
)
def test_reasons_of_models_without_a_gradient(net: nn.Module, finding: str, reason: str) -> None:
    _, train, _ = case("plain")
    assert reason in reasons(tt.audit(net, train, only=[finding]))[finding]


def test_convexity_is_not_claimed_of_a_computed_or_shared_last_layer() -> None:
    _, (x, y), _ = case("plain")
    computed = Head()
    nn.utils.parametrizations.spectral_norm(computed.out)
    shared = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4))
    shared[2].weight = shared[0].weight
    for net in (computed, shared):
        report = tt.audit(net, (x, y), only=["loss-slice"])
        assert "must have a weight of its own" in reasons(report)["loss-slice"]

"""Audits: every kind of model gets findings or reasons, and is left bit-identical."""

from __future__ import annotations

import copy
import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import torchtheory as tt
from torchtheory.audit.engine import finding as findings_module
from torchtheory.audit.engine.finding import FindingRecord, all_findings
from torchtheory.core.claim import Verdict
from torchtheory.core.errors import FileProblem, InvalidInput, UnknownName
from torchtheory.models.problem import Problem
from torchtheory.nets.unit_groups import permute_group


@pytest.fixture(autouse=True)
def own_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(findings_module, "_FINDINGS", dict(all_findings()))


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(1, 3, 3, padding=1)
        self.norm = nn.BatchNorm2d(3)
        self.second = nn.Conv2d(3, 3, 3, padding=1)
        self.out = nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = F.relu(self.norm(self.first(x)))
        h = h + F.relu(self.second(h))
        out: Tensor = self.out(h.mean((2, 3)))
        return out


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(2, 4, batch_first=True)
        self.out = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.out(self.lstm(x)[0][:, -1])
        return out


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(4, 2, 8, batch_first=True)
        self.out = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.out(self.layer(x).mean(1))
        return out


class Image(nn.Module):
    """Flat input, functional ReLU, view with the batch size: what tutorials write."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 3, 3, padding=1)
        self.pool = nn.MaxPool2d(2)
        self.hidden = nn.Linear(27, 6)
        self.out = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = x.view(x.shape[0], 1, 6, 6)
        x = self.pool(F.relu(self.conv(x)))
        out: Tensor = self.out(F.relu(self.hidden(x.view(x.size(0), -1))))
        return out


class Noisy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(x) + torch.randn(len(x), 3)


class Bare(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x[:, :3]


def mlp(outputs: int = 3) -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, outputs)
    )


def shared() -> nn.Sequential:
    layer, act = nn.Linear(4, 4), nn.ReLU()
    return nn.Sequential(layer, act, layer, act, nn.Linear(4, 3))


def case(name: str) -> tuple[nn.Module, Any, Any]:
    torch.manual_seed(0)
    x, y = torch.randn(60, 4), torch.randint(0, 3, (60,))
    net: nn.Module = mlp()
    match name:
        case "residual":
            net, x = Residual().train(), torch.randn(60, 1, 5, 5)
        case "image":
            net, x = Image(), torch.randn(60, 36)
        case "regression":
            net, y = mlp(1), torch.randn(60)
        case "binary":
            net, y = nn.Sequential(mlp(1), nn.Flatten(0)), y > 0
        case "lstm":
            net, x = Recurrent(), torch.randn(60, 3, 2)
        case "attention":
            net, x = Attention(), torch.randn(60, 3, 4)
        case "double":
            net = net.double()
        case "bare":
            net = Bare()
        case "noisy":
            net = Noisy()
        case "shared":
            net = shared()
        case "embedding":
            net = nn.Sequential(nn.Embedding(5, 2), nn.Flatten(), nn.Linear(8, 3))
            x = torch.randint(0, 5, (60, 4))
        case "frozen":
            net.requires_grad_(False)
        case "spectral":
            net = nn.Sequential(nn.utils.spectral_norm(nn.Linear(4, 5)), nn.ReLU(), nn.Linear(5, 3))
    test: Any = (x[40:], y[40:])
    if name == "no test":
        test = None
    if name == "one test sample":
        test = (x[:1], y[:1])
    return net, (x[:40], y[:40]), test


NAMES = [
    "mlp", "residual", "image", "regression", "binary", "lstm", "attention", "no test",
    "one test sample", "double", "bare", "noisy", "shared", "embedding", "frozen", "spectral",
]  # fmt: skip


def state(model: nn.Module) -> Any:
    numbers = {k: (v.data_ptr(), v.tolist()) for k, v in model.state_dict(keep_vars=True).items()}
    kinds = [(k, type(p), p.requires_grad, p.grad) for k, p in model.named_parameters()]
    modules = [
        (k, m.training, set(vars(m)), list(m._forward_hooks)) for k, m in model.named_modules()
    ]
    return numbers, kinds, modules


@pytest.mark.parametrize("name", NAMES)
def test_any_model(name: str) -> None:
    net, train, test = case(name)
    before, inputs = state(net), train[0].clone()
    generators = torch.get_rng_state(), random.getstate()
    found = tt.audit(net, train, test)
    assert state(net) == before
    assert torch.equal(train[0], inputs)
    assert torch.equal(generators[0], torch.get_rng_state())
    assert generators[1] == random.getstate()
    assert [f.name for f in found.findings] == list(all_findings())
    assert found.violated == []
    for f in found.findings:
        assert f.claims or f.tables or f.quantities
        for c in f.claims:
            assert "could not be computed" not in c.reason, (f.name, c.reason)
            if c.verdict is Verdict.NOT_APPLICABLE:
                assert c.reason
    json.dumps(found.to_json(), allow_nan=False)


def reasons(name: str, finding: str) -> str:
    net, train, test = case(name)
    (found,) = tt.audit(net, train, test, only=[finding]).findings
    return " | ".join(c.reason for c in found.claims if c.verdict is Verdict.NOT_APPLICABLE)


@pytest.mark.parametrize(
    ("name", "finding", "sentence"),
    [
        ("residual", "width", "Residual is not a chain of layers: add does not follow"),
        ("residual", "width", "a skip connection, or a branch"),
        ("regression", "margins", "the task is a regression"),
        ("regression", "certified-radius", "the task is a regression"),
        ("embedding", "certified-radius", "the inputs are torch.int64"),
        ("regression", "risk", "the squared loss is unbounded"),
        ("no test", "risk", "no test data was given"),
        ("one test sample", "risk", "one test sample has no two halves"),
        ("bare", "curvature", "the model has no parameters"),
        ("embedding", "lipschitz", "the inputs are torch.int64"),
        ("shared", "permutation-symmetry", "no dense layer or convolution is read by another"),
        ("mlp", "risk", "the network was fitted to these samples"),
    ],
)
def test_reasons_name_the_hypothesis(name: str, finding: str, sentence: str) -> None:
    assert sentence in reasons(name, finding)


def test_standard_models_get_their_claims() -> None:
    net, train, test = case("mlp")
    names = ["lipschitz", "curvature", "permutation-symmetry", "certified-radius", "margins"]
    found = {f.name: f for f in tt.audit(net, train, test, only=names).findings}
    for name in ("lipschitz", "curvature", "permutation-symmetry"):
        verdicts = {c.verdict for c in found[name].claims}
        assert verdicts == {Verdict.HOLDS}, name
    assert found["certified-radius"].claims[0].verdict is Verdict.HOLDS
    control = found["lipschitz"].claims[0].control
    assert control is not None
    assert control.verdict is Verdict.VIOLATED
    assert found["margins"].claims == []
    assert found["margins"].tables
    assert found["curvature"].claims[0].control is not None
    assert found["permutation-symmetry"].claims[0].control is not None


def test_all_kinds_of_data_give_the_same_audit() -> None:
    net, (x, y), test = case("mlp")
    loader = DataLoader(TensorDataset(x, y), batch_size=7, shuffle=True)
    plain = tt.audit(net, (x, y), test, only=["layers", "curvature"])
    for other in ((x.numpy(), y.numpy()), TensorDataset(x, y), loader):
        again = tt.audit(net, other, test, only=["layers", "curvature"])
        assert again.claims == plain.claims
        assert [f.tables for f in again.findings] == [f.tables for f in plain.findings]


@pytest.mark.draws
def test_same_seed_same_audit() -> None:
    net, train, test = case("mlp")
    first, second = (
        tt.audit(net, train, test, seed=4, only=["lipschitz", "curvature"]) for _ in range(2)
    )
    assert first.claims == second.claims
    assert [f.figures for f in first.findings] == [f.figures for f in second.findings]


def test_a_sorted_test_set_is_caught() -> None:
    x = torch.randn(400, 2)
    net = nn.Linear(2, 2, bias=False)
    net.weight.data = torch.tensor([[1.0, 0.0], [-1.0, 0.0]])
    right = (x[:, 0] < 0).long()
    wrong = torch.cat([right[:200], 1 - right[200:]])  # first half all easy, second all wrong
    found = tt.audit(net, (x, right), (x, wrong), only=["risk"])
    (claim,) = found.violated
    assert claim.measured == 1.0
    assert "not independent and identically distributed" in claim.reason
    shuffled = torch.randperm(400, generator=torch.Generator().manual_seed(0))
    mixed = tt.audit(net, (x, right), (x[shuffled], wrong[shuffled]), only=["risk"])
    assert mixed.violated == []


def test_the_test_of_independence_has_a_control_where_the_data_allow_one() -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(800, 2, generator=generator)
    net = nn.Linear(2, 2, bias=False)
    net.weight.data = torch.tensor([[1.0, 0.0], [-1.0, 0.0]])
    right = (x[:, 0] < 0).long()
    flipped = torch.rand(800, generator=generator) < 0.4
    found = tt.audit(net, (x, right), (x, right ^ flipped), only=["risk"])
    (control,) = [c.control for c in found.findings[0].claims if c.control is not None]
    assert control.verdict is Verdict.VIOLATED
    assert "sorted by whether" in control.reason
    assert found.violated == []
    # without errors, or with four samples, no order could be told from chance
    for test in ((x, right), (x[:4], right[:4])):
        few = tt.audit(net, (x, right), test, only=["risk"])
        assert all(c.control is None for c in few.findings[0].claims)
        assert few.violated == []


def test_the_radius_of_a_linear_classifier_is_its_distance() -> None:
    """Margin over Lipschitz constant is exact there, with several classes and with one logit."""
    x = torch.randn(50, 3, generator=torch.Generator().manual_seed(0))
    for outputs in (1, 4):
        torch.manual_seed(outputs)
        net = nn.Linear(3, outputs)
        scores = net(x).detach()
        y = (scores > 0).long().reshape(-1) if outputs == 1 else scores.argmax(1)
        found = tt.audit(net, (x, y), only=["certified-radius"])
        assert found.violated == []
        (claim,) = found.claims
        assert claim.measured == pytest.approx(1.0, rel=1e-3)


def test_a_vacuous_bound_is_said_to_be_vacuous() -> None:
    net, train, test = case("mlp")
    found = tt.audit(net, train, (test[0][:4], test[1][:4]), only=["risk"])
    assert [c.verdict for c in found.claims if c.promised] == [Verdict.VACUOUS]


def test_layers_of_a_residual_network_have_norms() -> None:
    """Layers that are no chain are listed as well, where the network has one input."""

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.head = nn.Conv2d(1, 1, 3, padding=1), nn.Linear(36, 2)

        def forward(self, x: Tensor) -> Tensor:
            made: Tensor = self.head((x + self.layer(x)).flatten(1))
            return made

    torch.manual_seed(0)
    x = torch.randn(40, 1, 6, 6)
    (found,) = tt.audit(
        Block(), (x, torch.arange(40) % 2), only=["lipschitz"], budget=None
    ).findings
    (table,) = [t for t in found.tables if t.name == "layers"]
    assert [row[0] for row in table.rows] == ["layer", "head"]
    assert all(0 < row[3] <= row[2] for row in table.rows)  # type: ignore[operator]


def test_a_wrong_lipschitz_constant_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    from torchtheory.robustness.lipschitz import pointwise

    monkeypatch.setattr(pointwise, "_finite", lambda facts, name: 1e-6)
    net, train, test = case("mlp")
    found = tt.audit(net, train, test, only=["lipschitz", "certified-radius"])
    assert [c.ids for c in found.violated][:2] == [("L-016",), ("D-08", "L-016")]


def test_a_broken_permutation_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    from torchtheory.audit.findings import nets

    def half(parameters: Any, group: Any, order: Tensor) -> Any:
        return permute_group(parameters, replace(group, outgoing=()), order)

    monkeypatch.setattr(nets, "permute_group", half)
    net, train, test = case("mlp")
    found = tt.audit(net, train, test, only=["permutation-symmetry"])
    assert [c.ids for c in found.violated] == [("N-23",)]


def test_ties_are_no_violation() -> None:
    net, train, _ = case("mlp")
    for p in net.parameters():
        p.data.zero_()
    found = tt.audit(net, train)
    assert found.violated == []
    (radius,) = (f for f in found.findings if f.name == "certified-radius")
    assert "every train sample is misclassified" in radius.claims[0].reason
    (lipschitz,) = (f for f in found.findings if f.name == "lipschitz")
    assert lipschitz.claims[0].control is None


def test_flat_losses_and_normalized_weights_have_a_curvature() -> None:
    net, (x, _), _ = case("mlp")
    net[4].weight.data *= 1e6  # type: ignore[index,operator,union-attr]
    flat = tt.audit(net, (x, net(x).argmax(1)), only=["curvature"])
    assert flat.violated == []
    normed = nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(4, 3)))
    y = torch.randint(0, 3, (len(x),))
    (found,) = tt.audit(normed, (x, y), only=["curvature"]).findings
    assert all("could not be computed" not in c.reason for c in found.claims)
    (largest,) = [q for q in found.quantities if "largest eigenvalue" in q.label]
    parameters = {k: p.detach() for k, p in normed.named_parameters()}
    flat = torch.cat([p.flatten() for p in parameters.values()]).double()

    def loss(at: Tensor) -> Tensor:
        given, start = {}, 0
        for k, p in parameters.items():
            given[k] = at[start : start + p.numel()].reshape(p.shape)
            start += p.numel()
        g, v = (given[f"0.parametrizations.weight.original{i}"] for i in (0, 1))
        outputs = x.double() @ (g * v / v.norm(dim=1, keepdim=True)).T + given["0.bias"]
        return nn.functional.cross_entropy(outputs, y)

    truth = torch.linalg.eigvalsh(torch.func.hessian(loss)(flat))[-1]
    assert largest.low * 0.999 <= float(truth) <= largest.high * 1.001


def test_the_limit_is_kept_and_noted() -> None:
    net, train, test = case("mlp")
    found = tt.audit(net, train, test, limit=15, only=["risk"])
    assert found.facts["samples"] == "40 train, 20 test"
    assert "15 of 40 train samples" in found.facts["sub-sampled"]


@pytest.mark.draws
def test_save_writes_its_files_and_keeps_all_others(tmp_path: Path) -> None:
    mine = {"notes.txt": "mine", "figures/my-plot.png": "mine too", "figures/deep/a": "x"}
    for name, text in mine.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    net, train, test = case("mlp")
    found = tt.audit(net, train, test)
    for _ in range(2):
        page = found.save(tmp_path)
        assert page == tmp_path / "report.html"
        assert {name: (tmp_path / name).read_text() for name in mine} == mine
        written = {p.relative_to(tmp_path).as_posix() for p in tmp_path.rglob("*") if p.is_file()}
        figures = {f["file"] for g in found.to_json()["findings"] for f in g["figures"]}
        assert written == {*mine, "report.html", "report.md", "audit.json", *figures}
        assert figures
    assert page.read_text("utf-8").lower().startswith("<!doctype html")

    def refuse(constant: str) -> None:
        raise AssertionError(constant)

    data = json.loads((tmp_path / "audit.json").read_text("utf-8"), parse_constant=refuse)
    assert data.pop("made_by") == "torchtheory audit"
    assert data == json.loads(json.dumps(found.to_json()))


def test_save_where_it_cannot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    net, train, _ = case("mlp")
    found = tt.audit(net, train, only=["layers"])
    (tmp_path / "file").write_text("")
    for place in (tmp_path / "file", tmp_path / "file" / "below", tmp_path / ("x" * 300)):
        with pytest.raises(FileProblem, match="cannot write to"):
            found.save(place)

    def full(self: Path, *args: Any, **kwargs: Any) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(FileProblem, match="No space left on device"):
        found.save(tmp_path / "new")
    assert list((tmp_path / "new").iterdir()) == []


def test_the_module_is_callable_and_has_its_names() -> None:
    net, train, _ = case("mlp")
    found = tt.audit(net, train, only=["layers"])
    assert isinstance(found, tt.audit.Audit)
    assert list(tt.audit.all_findings()) == list(all_findings())
    assert tt.audit.audit(net, train, only=["layers"]).claims == found.claims
    assert found.title == "Sequential"
    assert "report" not in found._repr_html_()[:0]
    assert "<" in found._repr_html_()


def test_a_finding_of_ones_own() -> None:
    @tt.finding("zz-dead-units", area="capacity", title="Units that never fire", cost="forward")
    def dead_units(problem: Problem, record: FindingRecord) -> None:
        outputs = problem.outputs(problem.train)
        dead = int((outputs <= 0).all(0).sum())
        record.states("", r"\text{no output is always negative}").equal(dead)
        record.headline(f"{dead} outputs never fire.")

    net, train, _ = case("mlp")
    net[4].bias.data[1] = -100  # type: ignore[index,operator,union-attr]
    found = tt.audit(net, train, only=["zz-dead-units"])
    assert found.verdict.startswith("No defect was found, but a promise of theory is not what was")
    assert found.findings[0].headlines == ["1 outputs never fire."]
    assert len(found.violated) == 1
    assert "zz-dead-units" in all_findings()


def test_whatever_a_finding_raises_becomes_a_reason() -> None:
    def hypothesis(problem: Problem) -> str | None:
        raise ZeroDivisionError("in\nthe hypothesis")

    @tt.finding("zz-needy", area="capacity", title="x {y}", cost="forward", needs=[hypothesis])
    def needy(problem: Problem, record: FindingRecord) -> None: ...

    @tt.finding("zz-raises", area="capacity", title="x", cost="forward", covers=["N-08"])
    def raises(problem: Problem, record: FindingRecord) -> None:
        record.states("N-08", "x").at_most(0, 1)
        raise KeyError("here")

    net, train, _ = case("mlp")
    found = tt.audit(net, train, only=["zz-needy", "zz-raises"])
    first, second, third = found.claims
    assert first.reason == "could not be computed: ZeroDivisionError: in the hypothesis"
    assert second.verdict is Verdict.HOLDS
    assert third.reason == "could not be computed: KeyError: 'here'"
    found._repr_html_()


def test_findings_are_checked_when_registered() -> None:
    def nothing(problem: Problem, record: FindingRecord) -> None: ...

    with pytest.raises(InvalidInput, match="cost must be one of"):
        tt.finding("zz-a", area="capacity", title="x", cost="free")  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="two findings are named 'layers'"):
        tt.finding("layers", area="capacity", title="x", cost="forward")(nothing)
    with pytest.raises(UnknownName, match="catalogue entry"):
        tt.finding("zz-a", area="capacity", title="x", cost="forward", covers=["Q-1"])


def test_a_control_that_holds_counts_as_violated() -> None:

    @tt.finding("zz-control", area="capacity", title="x", cost="forward")
    def held(problem: Problem, record: FindingRecord) -> None:
        says = record.states("", "x")
        says.at_most(0, 1)
        says.fails("b", 0.5)

    net, train, _ = case("mlp")
    assert len(tt.audit(net, train, only=["zz-control"]).violated) == 1


@pytest.mark.parametrize(
    ("arguments", "error", "sentence"),
    [
        ({"confidence": 1.0}, InvalidInput, "confidence must lie"),
        ({"confidence": float("nan")}, InvalidInput, "confidence must lie"),
        ({"only": ["risks"]}, UnknownName, "did you mean 'risk'"),
        ({"only": "risks"}, UnknownName, "no finding is named 'risks'"),
        ({"seed": -1, "limit": 5}, InvalidInput, "seed"),
    ],
)
def test_refused(arguments: dict[str, Any], error: type[Exception], sentence: str) -> None:
    net, train, _ = case("mlp")
    with pytest.raises(error, match=sentence):
        tt.audit(net, train, **arguments)


def test_the_example_follows_its_seed_and_moves_no_global_generator() -> None:
    from torchtheory.audit import example

    epochs, example.EPOCHS = example.EPOCHS, 1
    try:
        state_before = torch.get_rng_state(), np.random.get_state()[1].tolist()  # type: ignore[index]  # noqa: NPY002
        (first, train, test, initial), (second, *_), (other, *_) = (
            example.digits_example(s) for s in (0, 0, 1)
        )
        assert torch.equal(state_before[0], torch.get_rng_state())
    finally:
        example.EPOCHS = epochs
    weights = [copy.deepcopy(m.state_dict()["0.weight"]) for m in (first, second, other)]
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])
    assert initial.keys() == first.state_dict().keys()
    assert not torch.equal(initial["0.weight"], weights[0])
    assert len(train) + len(test) == 1797

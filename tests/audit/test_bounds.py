"""The finding on generalization bounds: values, hypotheses, verdicts."""

from __future__ import annotations

import copy
import itertools
import math
from typing import Any

import pytest
import torch
from tests.tracing.architectures import NAMES, architecture, archived
from torch import Tensor, nn

from torchtheory.audit.engine.audit import Audit, audit
from torchtheory.audit.engine.finding import FindingRecord, all_findings, examine
from torchtheory.audit.example import digits_example
from torchtheory.audit.findings import bound_evaluation as evaluation
from torchtheory.audit.findings.bound_evaluation import MARGINS, Setting
from torchtheory.audit.findings.bounds import METHODS
from torchtheory.audit.findings.network_growth import NetworkSize, loss_dimension, measure_size
from torchtheory.core.claim import Verdict
from torchtheory.core.diagnosis import Area
from torchtheory.core.errors import UnsupportedModel
from torchtheory.generalization.complexity.margin_bounds import margin_bound
from torchtheory.generalization.complexity.norm_bounds import frobenius_bound, frobenius_norms
from torchtheory.generalization.complexity.rademacher import (
    estimate_rademacher,
    linear_bounds,
    massart_bound,
)
from torchtheory.generalization.learning.validation_bound import validation_bounds
from torchtheory.generalization.vc.bounds import vc_radius
from torchtheory.generalization.vc.networks import log2_network_growth_bound, network_vc_bound
from torchtheory.generalization.vc.parameter_counting import count_parameters_bounds
from torchtheory.kernels.paths.path_kernel import path_norms
from torchtheory.models.problem import Problem

DELTA = 0.01


def net(*sizes: int, bias: bool = True, bend: type[nn.Module] = nn.ReLU) -> nn.Sequential:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        layers: list[nn.Module] = []
        for a, b in itertools.pairwise(sizes):
            layers += [nn.Linear(a, b, bias=bias), bend()]
    return nn.Sequential(*layers[:-1])


def convolutional(pool: bool) -> nn.Sequential:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(
            nn.Conv2d(1, 2, 3),
            nn.ReLU(),
            nn.LPPool2d(2, 2) if pool else nn.Identity(),
            nn.Flatten(),
            nn.Linear(2 * (9 if pool else 36), 3),
        )


def images(n: int = 40) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    return torch.rand(n, 1, 8, 8, generator=generator), torch.arange(n) % 3


def halfplane(n: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    x = torch.randn(n, 2, generator=torch.Generator().manual_seed(seed))
    return x, (x[:, 0] > 0).float()


def setting(model: nn.Module, data: tuple[Tensor, Tensor], task: str | None = None) -> Setting:
    problem = Problem(model, data, data, task=task)  # type: ignore[arg-type]
    return Setting(problem, DELTA, problem.train)


def bounds(model: nn.Module, train: Any, test: Any = None, **settings: Any) -> Audit:
    return audit(
        model, train, test, only=["generalization-bounds"], **settings,
    )  # fmt: skip


def rows(report: Audit) -> dict[str, tuple[float | None, float | None, str]]:
    (table,) = report.findings[0].tables
    return {str(r[0]): (r[2], r[3], str(r[4])) for r in table.rows}  # type: ignore[misc]


# ------------------------------------------------------------------------------- whole networks


def test_a_network_trained_on_digits() -> None:
    model, train, test, initial = digits_example()
    before = copy.deepcopy(model.state_dict())
    report = bounds(model, (train.x, train.y), (test.x, test.y), initial=initial, budget=None)
    found = rows(report)
    assert set(found) == {m.name for m in METHODS}
    assert all(bound is not None for _, bound, _ in found.values())
    assert not report.violated
    verdicts = [c.verdict for c in report.claims]
    assert verdicts.count(Verdict.VACUOUS) >= 6
    for claim in report.claims:
        assert claim.verdict is not Verdict.VACUOUS or "vacuous because" in claim.reason
    errors = int((model(test.x).argmax(1) != test.y).sum())
    share = (1 - 0.95) / len(METHODS)
    exact = validation_bounds(errors, len(test), 1, share).exact
    assert found["test set, exact"][1] == pytest.approx(exact)
    counted = count_parameters_bounds(8970, len(train), delta=share).bits
    assert found["parameters of finite precision"][1] == pytest.approx(counted, abs=1e-3)
    (headline,) = report.findings[0].headlines
    assert "Of 11 bounds that apply" in headline
    assert "test set, exact" in headline
    assert [f.name for f in report.findings[0].figures] == ["bounds"]
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())


def test_without_test_data_values_are_given_and_not_compared() -> None:
    report = bounds(net(2, 4, 1), halfplane(60), budget=None)
    assert {c.verdict for c in report.claims} == {Verdict.NOT_APPLICABLE}
    assert sum("cannot be compared" in c.reason for c in report.claims) == len(METHODS) - 2
    assert rows(report)["test set, exact"][2].startswith("not applicable: no test data")
    assert rows(report)["growth function"][1] is not None


def test_a_linear_classifier_has_bounds_that_say_something() -> None:
    model = nn.Linear(2, 1)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[5.0, 0.0]]))
        model.bias.zero_()
    report = bounds(model, halfplane(4000), halfplane(500, 1), task="binary", budget=None)
    found = rows(report)
    share = 0.05 / len(METHODS)
    assert found["VC dimension"][0] == 3
    assert found["VC dimension"][1] == pytest.approx(
        vc_radius(3, 4000, share, sharp=True), abs=0.01
    )
    assert found["growth function"][1] <= found["VC dimension"][1] + 1e-9  # type: ignore[operator]
    for name in ("VC dimension", "growth function", "path norm and margin",
                 "Frobenius norms, √L, and margin", "PAC-Bayes, flat Gaussian"):  # fmt: skip
        assert found[name][1] < 1, name  # type: ignore[operator]
    assert not report.violated


def test_layers_without_a_theorem_are_named() -> None:
    found = rows(bounds(convolutional(pool=True), images(20), images(10), budget=None))
    assert "LPPool2d" in found["growth function"][2]
    assert "LPPool2d" in found["path norm and margin"][2]
    assert found["parameters of finite precision"][1] > 1  # type: ignore[operator]
    plain = rows(bounds(convolutional(pool=False), images(20), images(10), budget=None))
    assert all(bound is not None for _, bound, _ in plain.values())
    smooth = rows(bounds(net(2, 4, 1, bend=nn.Tanh), halfplane(50), halfplane(50), budget=None))
    assert "Tanh" in smooth["VC dimension"][2]
    assert smooth["robustness by the Lipschitz constant"][1] is not None


def test_a_regression_has_a_bound_on_large_residuals() -> None:
    x, _ = halfplane(200)
    report = bounds(
        nn.Linear(2, 1), (x[:100], x[:100, :1]), (x[100:], x[100:, :1]), task="regression"
    )
    kinds = [c.verdict for c in report.claims]
    assert kinds.count(Verdict.NOT_APPLICABLE) == len(METHODS)
    assert kinds[-1] is Verdict.HOLDS
    assert report.claims[-1].promised == pytest.approx(1 - 0.05 ** (1 / 50))
    assert "largest of 100 test samples" in report.findings[0].headlines[0]


@pytest.mark.parametrize("seconds", [1e-9, 0.02])
def test_little_time_is_enough_or_said(seconds: float) -> None:
    data = halfplane(100)
    problem = Problem(net(2, 4, 1), data, data, task="binary")
    found = all_findings()["generalization-bounds"]
    record = examine(found, problem, confidence=0.95, seed=0, seconds=seconds)
    assert record.claims
    assert record.complete or "larger budget" in record.claims[-1].reason


# ---------------------------------------------------------------------------- against direct calls


@pytest.mark.parametrize("widths", [(3, 1), (3, 5, 1), (2, 8, 8, 1)])
def test_counting_is_that_of_dense_networks(widths: tuple[int, ...]) -> None:
    x = torch.randn(20, widths[0], generator=torch.Generator().manual_seed(0))
    size = measure_size(Problem(net(*widths), (x, torch.arange(20) % 2), task="binary"))
    merely = NetworkSize(size.breaks, size.parameters, size.degrees, size.comparisons)
    for m in (5, 100, 10_000):
        assert merely.log2_growth(m) == pytest.approx(log2_network_growth_bound(widths, m))
    assert loss_dimension(merely) == network_vc_bound(widths)
    assert (size.halfspaces is not None) == (len(widths) == 2)


def test_counting_of_a_convolution() -> None:
    size = measure_size(Problem(convolutional(pool=False), images()))
    assert size == NetworkSize((2 * 36,), (20, 20 + 3 * 73), (1, 2), 2)
    with pytest.raises(UnsupportedModel, match="LPPool2d"):
        measure_size(Problem(convolutional(pool=True), images()))


class Shortcut(nn.Module):
    """x + W2 relu(W1 x)."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(3, 5), nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        inside: Tensor = self.second(torch.relu(self.first(x)))
        return x + inside


def test_shortcuts_count_by_the_longest_way() -> None:
    data = (torch.randn(20, 3), torch.arange(20) % 2)
    block = Shortcut()
    inside = 3 * 5 + 5 + 5 * 3 + 3
    size = measure_size(Problem(nn.Sequential(block, nn.ReLU(), nn.Linear(3, 1)), data))
    assert size == NetworkSize((5, 3), (20, inside, inside + 4), (1, 2, 3), 1)
    # used twice: the degree grows, the parameters do not
    size = measure_size(Problem(nn.Sequential(block, block, nn.Linear(3, 1)), data))
    assert size == NetworkSize((5, 5), (20, inside, inside + 4), (1, 3, 5), 1)


@pytest.mark.parametrize("name", [n for n in NAMES if architecture(n).piecewise_linear])
def test_counting_of_every_piecewise_linear_architecture(name: str) -> None:
    a = architecture(name)
    made = a.model(a.x)
    y = torch.zeros(len(a.x), *made.shape[2:], dtype=torch.long)
    if not a.rows_are_samples:
        with pytest.raises(UnsupportedModel, match="belong together"):
            measure_size(Problem(a.model, (a.x, y), loss=nn.CrossEntropyLoss()))
        return
    size, archive = (
        measure_size(Problem(m, (a.x, y), loss=nn.CrossEntropyLoss()))
        for m in (a.model, archived(name))
    )
    assert size == archive
    used = sum(p.numel() for p in a.model.parameters())
    if name == "weight-norm":  # the entries of its matrix are as free as its factors
        used -= 8
    assert size.parameters[-1] == used
    # along a line through the space of parameters the output is no polynomial of higher degree
    start, end = (dict(architecture(name, k).model.named_parameters()) for k in (0, 1))
    t = torch.linspace(0, 1e-3, size.degrees[-1] + 2, dtype=torch.float64)
    if name != "weight-norm":
        values = [
            torch.func.functional_call(
                a.model, {k: (p + s * (end[k] - p)).detach() for k, p in start.items()}, a.x
            )
            for s in t
        ]
        highest = torch.stack(values).diff(n=size.degrees[-1] + 1, dim=0).abs().max()
        assert highest <= 1e-12 * values[0].abs().max()


def test_products_add_their_degrees() -> None:
    class Gated(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b, self.c = nn.Linear(3, 4), nn.Linear(3, 4), nn.Linear(4, 1)

        def forward(self, x: Tensor) -> Tensor:
            return self.c(torch.relu(self.a(x)) * self.b(x).square())  # type: ignore[no-any-return]

    data = (torch.randn(20, 3), torch.arange(20) % 2)
    size = measure_size(Problem(Gated(), data))
    assert size == NetworkSize((4,), (16, 37), (1, 4), 1)


def test_matrices_of_a_users_own_are_layers() -> None:
    class Own(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Parameter(torch.randn(3, 4)), nn.Parameter(torch.randn(4, 1))

        def forward(self, x: Tensor) -> Tensor:
            return torch.mm(torch.mm(x, self.a).abs(), self.b)

    size = measure_size(Problem(Own(), (torch.randn(20, 3), torch.arange(20) % 2)))
    assert size == NetworkSize((4,), (12, 16), (1, 2), 1)


def test_cells_of_a_residual_network_and_of_attention() -> None:
    data = (torch.rand(200, 3), torch.arange(200) % 2)
    found = evaluation.lipschitz_cells(setting(nn.Sequential(Shortcut(), nn.Linear(3, 1)), data))
    assert math.isfinite(found.bound)
    tokens = nn.TransformerEncoderLayer(4, 1, 8, dropout=0.0, batch_first=True)
    model = nn.Sequential(nn.Unflatten(1, (3, 1)), nn.Linear(1, 4), tokens, nn.Flatten(),
                          nn.Linear(12, 1)).eval()  # fmt: skip
    assert math.isfinite(evaluation.lipschitz_cells(setting(model, data)).bound)


def absolute_difference(bias: bool) -> nn.Sequential:
    """20 relu(x_1) - 20 relu(-x_1), which is 20 x_1."""
    first, last = nn.Linear(2, 6, bias=bias), nn.Linear(6, 1, bias=bias)
    with torch.no_grad():
        for p in (*first.parameters(), *last.parameters()):
            p.zero_()
        first.weight[0, 0], first.weight[1, 0] = 1.0, -1.0
        last.weight[0, 0], last.weight[0, 1] = 20.0, -20.0
    return nn.Sequential(first, nn.ReLU(), last)


def least_margin_bound(margins: Tensor, complexity: float) -> float:
    share = DELTA / len(MARGINS)
    return min(
        margin_bound(margins, complexity, gamma, share, ramp=True, empirical=True)
        for gamma in MARGINS
    )


def test_margin_bounds_are_those_of_the_theorem() -> None:
    model, data = absolute_difference(bias=False), halfplane(20_000)
    found = setting(model, data)
    norm = math.prod(frobenius_norms(model))
    complexity = frobenius_bound([1.0, 1.0], linear_bounds(data[0].double())[0])
    direct = least_margin_bound(found.margins / norm, complexity)
    value = evaluation.frobenius_peeling(found)
    assert value.measure == pytest.approx(norm, rel=1e-5) == pytest.approx(40.0)
    assert direct < 1
    assert value.bound == pytest.approx(direct, rel=1e-4)
    root = frobenius_bound([1.0, 1.0], linear_bounds(data[0].double())[0], depth_factor="root")
    assert evaluation.frobenius_root(found).bound == pytest.approx(
        least_margin_bound(found.margins / norm, root), rel=1e-4
    )


def test_classes_are_paid_for_squared() -> None:
    x, y = halfplane(500)
    two = nn.Linear(2, 2, bias=False)
    with torch.no_grad():
        two.weight.copy_(torch.tensor([[-1.0, 0.0], [1.0, 0.0]]))
    found = setting(two, (x, y.long()))
    complexity = 4 * frobenius_bound([1.0], linear_bounds(x.double())[0])
    direct = least_margin_bound(found.margins / math.sqrt(2), complexity)
    value = evaluation.frobenius_root(found)
    assert value.bound >= direct - 1e-9


def test_the_path_norm_bound_is_massarts() -> None:
    model, data = absolute_difference(bias=True), halfplane(20_000)
    found = setting(model, data)
    norm = float(path_norms(model, (2,), order=1).max())
    x = torch.cat([data[0].double(), torch.ones(20_000, 1)], 1)
    massart = massart_bound(torch.cat([x.T, -x.T]))
    direct = least_margin_bound(found.margins / norm, 2 * massart)
    value = evaluation.path_norm(found)
    assert value.measure == pytest.approx(40.0)
    assert direct < 1
    assert value.bound == pytest.approx(direct, rel=1e-6)


@pytest.mark.parametrize("kind", ["path", "frobenius"])
def test_complexities_exceed_what_networks_reach(kind: str) -> None:
    """Random networks of norm 1, with biases: their correlation with signs is within the bound."""
    x = torch.randn(30, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    constant = torch.cat([x, torch.ones(30, 1)], 1)
    if kind == "path":
        unit = 2 * massart_bound(torch.cat([constant.T, -constant.T]))
    else:
        unit = frobenius_bound([1.0, 1.0], linear_bounds(constant)[0])
    generator = torch.Generator().manual_seed(2)
    outputs = []
    for _ in range(40):
        model = net(3, 4, 1).double()
        with torch.no_grad():
            for p in model.parameters():
                p.copy_(torch.randn(p.shape, generator=generator, dtype=p.dtype))
        problem = Problem(model, (x, torch.arange(30) % 2), task="binary")
        norm = {"path": evaluation.path_norm, "frobenius": evaluation.frobenius_peeling}[kind](
            Setting(problem, DELTA, problem.train)
        ).measure
        outputs.append(problem.outputs(problem.train)[:, 0] / norm)
    values = torch.stack(outputs)
    assert float(values.abs().max()) <= float(constant.norm(dim=1).max())
    reached = estimate_rademacher(
        lambda signs: (signs @ values.T / 30).amax(1), 30, draws=400, generator=0
    )
    assert reached.low <= unit


def test_inputs_outside_the_box_are_said() -> None:
    x, y = halfplane(50)
    problem = Problem(net(2, 4, 1), (x.abs().clamp(max=1), y), (5 * x, y), task="binary")
    with pytest.raises(ValueError, match="not all test inputs"):
        evaluation.lipschitz_cells(Setting(problem, DELTA, problem.train))


def test_every_bound_is_valid_for_a_fixed_network() -> None:
    """A random network has not seen the data: its true error is within every bound."""
    report = bounds(net(2, 16, 2), (halfplane(300)[0], halfplane(300)[1].long()),
                    (halfplane(2000, 3)[0], halfplane(2000, 3)[1].long()), budget=None)  # fmt: skip
    assert not report.violated


def test_methods_are_in_the_catalogue() -> None:
    record = FindingRecord(name="a", title="", area=Area.GENERALIZATION, cost="forward")
    for method in METHODS:
        record.not_applicable(method.ids, method.statement, "only to look the ids up")
    assert len({m.name for m in METHODS}) == len(METHODS)


def test_one_bound_has_one_value() -> None:
    """The bound of a test set is that of all of it, in the table, the checks and the figure."""
    train = (halfplane(300)[0], halfplane(300)[1].long())
    test = (halfplane(200, 3)[0], halfplane(200, 3)[1].long())
    report = bounds(net(2, 16, 2), train, test, budget=None)
    values = rows(report)
    checked = {c.reason.split(":")[0]: c for c in report.self_checks}
    assert set(checked) == {"test set, exact", "test set, Hoeffding"}
    for name, claim in checked.items():
        bound = values[name][1]
        assert claim.verdict is Verdict.HOLDS
        assert f"the bound {bound:.4g}" in claim.reason
    exact, hoeffding = (checked[f"test set, {kind}"].measured for kind in ("exact", "Hoeffding"))
    assert exact == pytest.approx(0.05 / len(METHODS), rel=1e-4)
    assert hoeffding is not None
    assert hoeffding < 0.05 / len(METHODS)
    (best,) = (q for q in report.findings[0].quantities if q.name == "best-of-all-bounds")
    assert best.value == min(bound for _, bound, _ in values.values() if bound is not None)


def test_what_there_is_no_time_for_is_not_done() -> None:
    data = halfplane(100)
    problem = Problem(net(2, 4, 1), data, data, task="binary")
    found = all_findings()["generalization-bounds"]
    record = examine(found, problem, confidence=0.95, seed=0, seconds=1e-9, at_most=60.0)
    (table,) = record.tables
    assert all(str(row[4]).startswith("not done") for row in table.rows)
    kinds = {c.verdict for c in record.claims if "larger budget" in c.reason}
    assert kinds == {Verdict.NOT_DONE}

"""Weights alone: ordinary defects are found, healthy twins are not accused."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import nn

import torchtheory as tt
from torchtheory.audit.bare_weights import survey as survey_module
from torchtheory.audit.bare_weights.audit import weights
from torchtheory.audit.bare_weights.origins import fresh_law
from torchtheory.audit.engine.audit import Audit
from torchtheory.core.diagnosis import Area, State
from torchtheory.core.errors import (
    EmptyData,
    FileProblem,
    InvalidType,
    UnknownName,
    UnsupportedModel,
)
from torchtheory.data.real import digits
from torchtheory.models.model import global_randomness_kept

SEEDS = range(5)


def fresh(seed: int) -> nn.Sequential:
    with global_randomness_kept():
        torch.manual_seed(seed)
        return nn.Sequential(
            nn.Linear(64, 96), nn.BatchNorm1d(96), nn.ReLU(), nn.Linear(96, 64), nn.ReLU(),
            nn.Linear(64, 10),
        )  # fmt: skip


@pytest.fixture(scope="module")
def trained() -> list[dict[str, torch.Tensor]]:
    """Networks that were trained on digits in an ordinary way, one for each seed."""
    x, y = digits()
    x = x.float()
    found = []
    for seed in SEEDS:
        net = fresh(seed)
        optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
        draw = torch.Generator().manual_seed(seed)
        for _ in range(6):
            for batch in torch.randperm(len(x), generator=draw).split(64):
                optimizer.zero_grad()
                F.cross_entropy(net(x[batch]), y[batch]).backward()
                optimizer.step()
        found.append({k: v.clone() for k, v in net.state_dict().items()})
    return found


def states(report: Audit) -> dict[Area, State]:
    return {a.area: a.state for a in report.diagnosis}


def said(report: Audit) -> str:
    return " ".join([*report.warnings, *report.looks])


def test_a_healthy_network_is_not_accused(trained: list[dict[str, torch.Tensor]]) -> None:
    for state in trained:
        report = weights(state)
        assert report.warnings == []
        assert report.looks == []
        assert states(report) == {
            **dict.fromkeys(Area, State.UNMEASURED),
            **dict.fromkeys((Area.TRAINING, Area.SIGNALS, Area.CAPACITY), State.FINE),
        }
        assert report.violated == []
        assert report.undone == []
        assert report.verdict.startswith("Nothing wrong was found")


def test_an_untrained_network() -> None:
    for seed in SEEDS:
        report = weights(fresh(seed))
        assert states(report)[Area.TRAINING] is State.DEFECT
        assert report.warnings == [
            "The network looks untrained: all 3 layers cannot be told from freshly drawn weights."
        ]


@pytest.mark.parametrize(
    "draw",
    [
        nn.init.xavier_uniform_,
        nn.init.xavier_normal_,
        lambda w: nn.init.kaiming_normal_(w, mode="fan_out"),
        lambda w: nn.init.kaiming_uniform_(w, nonlinearity="relu"),
        lambda w: nn.init.normal_(w, std=0.02),
        nn.init.normal_,
    ],
)
@pytest.mark.parametrize("shape", [(64, 48), (32, 16, 3, 3)])
def test_the_laws_of_initializers(draw: Callable[[Any], Any], shape: tuple[int, ...]) -> None:
    found = 0
    for seed in range(10):
        with global_randomness_kept():
            torch.manual_seed(seed)
            drawn = draw(torch.empty(shape))
        found += fresh_law("layer.weight", drawn) is not None
        assert fresh_law("layer.weight", 2.5 * drawn) is None
    assert found >= 9  # one law refuses a fresh matrix with probability 1e-3


def test_a_wide_layer_that_learned_without_moving_much() -> None:
    x, y = digits()
    for seed in SEEDS:
        with global_randomness_kept():
            torch.manual_seed(seed)
            net = nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 10))
            for layer in (net[0], net[2]):
                nn.init.kaiming_normal_(layer.weight)
                nn.init.zeros_(layer.bias)
        assert "looks untrained: all 2 layers" in weights(net).warnings[0]
        optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
        for batch in torch.arange(len(x)).split(64):
            optimizer.zero_grad()
            F.cross_entropy(net(x[batch].float()), y[batch]).backward()
            optimizer.step()
        report = weights(net)
        assert report.warnings == []
        assert report.looks == []


def test_recurrent_layers_and_half_precision() -> None:
    with global_randomness_kept():
        torch.manual_seed(0)
        net = nn.LSTM(40, 30)
    assert "all 2 layers" in weights(net).warnings[0]
    assert "looks untrained" in weights(fresh(0).to(torch.bfloat16)).warnings[0]


Break = Callable[[dict[str, torch.Tensor]], None]


def nan(state: dict[str, torch.Tensor]) -> None:
    state["3.weight"][2, 5] = math.nan
    state["3.weight"][2, 6] = math.inf


def nothing(state: dict[str, torch.Tensor]) -> None:
    state["3.weight"].zero_()


def silent(state: dict[str, torch.Tensor]) -> None:
    state["3.weight"][:20] = 0


def few_silent(state: dict[str, torch.Tensor]) -> None:
    state["3.weight"][:3] *= 1e-12


def copies(state: dict[str, torch.Tensor]) -> None:
    state["0.weight"][40:] = state["0.weight"][:56] * (1 + 1e-6)


def collapsed(state: dict[str, torch.Tensor]) -> None:
    w = state["3.weight"]
    state["3.weight"] = w[:, :1] @ w[:1]


def narrow(state: dict[str, torch.Tensor]) -> None:
    w = state["3.weight"]
    state["3.weight"] = w[:, :20] @ w[:20]


def reset(state: dict[str, torch.Tensor]) -> None:
    state["1.running_mean"].zero_()
    state["1.running_var"].fill_(1)
    state["1.num_batches_tracked"].zero_()


def negative(state: dict[str, torch.Tensor]) -> None:
    state["1.running_var"][3] = -1


def frozen(state: dict[str, torch.Tensor]) -> None:
    state["3.weight"] = fresh(11)[3].weight.detach()


def pruned(state: dict[str, torch.Tensor]) -> None:
    w = state["0.weight"]
    w[w.abs() < w.abs().quantile(0.8)] = 0


@pytest.mark.parametrize(
    ("damage", "area", "state", "sentence"),
    [
        (nan, Area.SIGNALS, State.DEFECT, "2 numbers in 3.weight are NaN or infinite."),
        (nothing, Area.SIGNALS, State.DEFECT, "3.weight is nothing but zeros"),
        (silent, Area.CAPACITY, State.DEFECT, "20 of 64 units of 3.weight have no incoming"),
        (few_silent, Area.CAPACITY, State.LOOK, "3 of 64 units of 3.weight have no incoming"),
        (copies, Area.CAPACITY, State.DEFECT, "40 of 96 units of 0.weight are copies"),
        (collapsed, Area.CAPACITY, State.DEFECT, "3.weight has collapsed to a single direction."),
        (narrow, Area.CAPACITY, State.LOOK, "3.weight uses at most half of the possible"),
        (reset, Area.TRAINING, State.DEFECT, "normalization 1 are those of the start"),
        (negative, Area.TRAINING, State.DEFECT, "normalization 1 are negative, NaN or infinite"),
        (frozen, Area.TRAINING, State.LOOK, "3.weight cannot be told from freshly drawn weights"),
        (pruned, Area.SIGNALS, State.LOOK, "More than half of the weights of 0.weight are exactly"),
    ],
)
def test_ordinary_defects(
    trained: list[dict[str, torch.Tensor]], damage: Break, area: Area, state: State, sentence: str
) -> None:
    for healthy in trained:
        broken = {k: v.clone() for k, v in healthy.items()}
        damage(broken)
        report = weights(broken)
        assert states(report)[area] is state
        assert sentence in said(report)
        worst = next(a for a in report.diagnosis if a.area is area)
        assert worst.action
        assert worst.usual


def test_a_layer_out_of_line() -> None:
    with global_randomness_kept():
        torch.manual_seed(0)
        deep = nn.Sequential(*[nn.Linear(40, 40) for _ in range(8)])
    state = {k: v.clone() for k, v in deep.state_dict().items()}
    assert states(weights(state))[Area.SIGNALS] is State.FINE
    state["4.weight"] *= 40
    report = weights(state)
    assert states(report)[Area.SIGNALS] is State.LOOK
    assert "those of 4.weight are 40 times larger" in said(report)


def test_numbers_of_a_known_matrix() -> None:
    values = torch.linspace(1.0, 4.0, 60, dtype=torch.float64)
    left, _ = torch.linalg.qr(
        torch.randn(80, 60, generator=torch.Generator().manual_seed(0)).double()
    )
    report = weights({"w.weight": left * values.flip(0)}, budget=None)
    rows = {t.name: t.rows for f in report.findings for t in f.tables}
    name, full, rank, effective, stable, condition, _ = rows["ranks"][0]
    assert (name, full, rank) == ("w.weight", 60, 60)
    assert condition == pytest.approx(4.0)
    assert stable == pytest.approx(float(values.square().sum() / 16))
    shares = values.square() / values.square().sum()
    assert effective == pytest.approx(math.exp(-float((shares * shares.log()).sum())))
    assert rows["norms"][0][3] == pytest.approx(4.0)


def test_large_layers_have_their_norm_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(survey_module, "LARGEST_DENSE", 40)
    W = torch.randn(90, 70, generator=torch.Generator().manual_seed(0))
    report = weights({"w.weight": W})
    (norm,) = [q for f in report.findings for q in f.quantities if "spectral" in q.name]
    true = float(torch.linalg.matrix_norm(W.double(), 2))
    assert norm.low <= true * (1 + 1e-5)
    assert true <= norm.high <= 1.1 * true
    # what was not computed is not spoken about
    assert [t for f in report.findings for t in f.tables if t.name in ("ranks", "tails")] == []
    assert states(report)[Area.CAPACITY] is State.FINE  # of units alone
    assert report.undone == []
    assert any("too large for all singular values" in n for f in report.findings for n in f.notes)


def test_without_time_it_says_so() -> None:
    report = weights(fresh(0), budget=1e-6)
    assert {f.name for f in report.undone} == {"weight-norms", "weight-spectra", "weight-tails"}
    reasons = [c.reason for f in report.findings for c in f.claims]
    assert all("no time was left for" in r for r in reasons)
    assert "not-finite" in [q.name for f in report.findings for q in f.quantities]


def test_without_time_to_look_at_all_nothing_is_claimed_of_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(survey_module, "_LOOKING", 0.0)
    state = fresh(0).state_dict()
    report = weights(state, budget=1e-9)
    assert len(report.undone) == len(report.findings)
    assert report.warnings == []
    assert set(states(report).values()) == {State.UNMEASURED}
    reasons = {c.reason for f in report.findings for c in f.claims}
    assert reasons == {"no time was left for 11 of 11 tensors; give a larger budget"}


def test_buffers_are_no_layers() -> None:
    state = {
        "h.attn.mask": torch.ones(64, 64).tril(),
        "n.weight": torch.ones(7),
        "k": torch.eye(2) > 0,
    }
    report = weights(state)
    assert report.facts["tensors"] == "3, of which 0 layers"
    assert report.warnings == []


def test_files_give_what_the_state_dict_gives(
    trained: list[dict[str, torch.Tensor]], tmp_path: Path
) -> None:
    state = trained[0]
    save_file(state, tmp_path / "a.safetensors")
    torch.save({"epoch": 3, "state_dict": state}, tmp_path / "b.pt")
    parts = {"x-1.safetensors": list(state)[:4], "x-2.safetensors": list(state)[4:]}
    for name, keys in parts.items():
        save_file({k: state[k] for k in keys}, tmp_path / name)
    index = {"weight_map": {k: name for name, keys in parts.items() for k in keys}}
    (tmp_path / "x.safetensors.index.json").write_text(json.dumps(index))

    def numbers(source: Any) -> dict[str, float]:
        return {q.name: q.value for f in weights(source).findings for q in f.quantities}

    expected = numbers(state)
    for name in ("a.safetensors", "b.pt", "x.safetensors.index.json"):
        assert numbers(tmp_path / name) == pytest.approx(expected)
    assert weights(str(tmp_path / "a.safetensors")).title == "a.safetensors"


def test_it_is_shown_saved_and_compared(
    trained: list[dict[str, torch.Tensor]], tmp_path: Path
) -> None:
    one, two = tt.audit.weights(trained[0], title="one"), tt.audit.weights(trained[1], title="two")
    assert isinstance(one, tt.audit.Audit)
    assert (one.save(tmp_path / "o")).exists()
    found = tt.audit.compare(tmp_path / "o", two)
    assert "norm" in {q.name for q in found.quantities}
    again = tt.audit.weights(trained[0], title="one").to_json()
    numbers = [f["quantities"] for f in one.to_json()["findings"]]
    assert [f["quantities"] for f in again["findings"]] == numbers


def test_nothing_is_changed() -> None:
    net = fresh(0)
    before = {k: v.clone() for k, v in net.state_dict().items()}
    random = torch.get_rng_state()
    weights(net)
    assert all(torch.equal(v, before[k]) for k, v in net.state_dict().items())
    assert torch.equal(torch.get_rng_state(), random)


@pytest.mark.parametrize("size", [1.7e308, 1e200, 1e160])
def test_squares_that_overflow_are_a_defect(size: float) -> None:
    state = {
        "0.weight": size * torch.linspace(-1, 1, 64 * 64).double().reshape(64, 64),
        "1.weight": torch.eye(64).double(),
        "1.running_var": torch.full((64,), size, dtype=torch.float64),
    }
    found = weights(state)
    assert any("0.weight" in w and "squares overflow" in w for w in found.warnings)
    found.to_json()
    fine = weights(state | {"0.weight": state["0.weight"] / size, "1.running_var": torch.ones(64)})
    assert not any("overflow" in w for w in fine.warnings)


def test_what_is_no_weights(tmp_path: Path) -> None:
    with pytest.raises(EmptyData, match="holds no tensors"):
        weights({})
    with pytest.raises(InvalidType, match="under 'state_dict'"):
        weights({"state_dict": {}})  # type: ignore[dict-item]
    with pytest.raises(InvalidType, match="or the path of a file"):
        weights(3)  # type: ignore[arg-type]
    with pytest.raises(FileProblem, match="there is no file"):
        weights(tmp_path / "none.safetensors")
    (tmp_path / "bad.safetensors").write_bytes(b"bad")
    with pytest.raises(FileProblem, match="not a readable safetensors file"):
        weights(tmp_path / "bad.safetensors")
    (tmp_path / "bad.safetensors.index.json").write_text(
        '{"weight_map": {"a": "../x.safetensors"}}'
    )
    with pytest.raises(FileProblem, match=r"not a \.safetensors file beside it"):
        weights(tmp_path / "bad.safetensors.index.json")
    with pytest.raises(UnsupportedModel, match="no values yet"):
        weights(nn.LazyLinear(3))
    with pytest.raises(FileProblem, match="100,000 characters long"):
        weights({"x" * 100_000: torch.ones(2, 2)})
    with pytest.raises(UnsupportedModel, match="nested tensor"):
        weights({"a": torch.nested.nested_tensor([torch.ones(2, 3), torch.ones(1, 3)])})
    with pytest.raises(UnsupportedModel, match="meta device"):
        weights(nn.Linear(3, 3, device="meta"))
    with pytest.raises(UnknownName, match="did you mean 'weight-spectra'"):
        weights(fresh(0), only="weight-spectre")


def encoder(seed: int, head: float) -> dict[str, torch.Tensor]:
    """Layers with the traces of training, and a head of normal weights that nobody trained."""
    draw = torch.Generator().manual_seed(seed)
    state = {}
    for k in range(4):
        noise = torch.randn(192, 192, generator=draw) * 0.02
        learned = torch.randn(192, 6, generator=draw) @ torch.randn(6, 192, generator=draw)
        state[f"layer.{k}.weight"] = noise + 0.01 * learned
        state[f"layer.{k}.bias"] = 0.1 * torch.randn(192, generator=draw)
    state["pooler.dense.weight"] = head * torch.randn(192, 192, generator=draw)
    state["pooler.dense.bias"] = torch.zeros(192)
    return state


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("size", [0.02, 0.0347])
def test_a_head_that_was_never_trained_is_found(seed: int, size: float) -> None:
    """Also one of a size that no rule draws: its bias is 0, its entries normal, no singular value
    is beyond noise."""
    (found,) = weights(encoder(seed, size), only="weight-origin").findings[0].assessments
    assert found.state is State.LOOK
    assert found.sentence.startswith("pooler.dense.weight cannot be told")


@pytest.mark.parametrize("seed", SEEDS)
def test_a_head_with_traces_of_training_is_not_accused(seed: int) -> None:
    draw = torch.Generator().manual_seed(100 + seed)
    for trace in ("bias", "directions", "tails"):
        state = encoder(seed, 0.0347)
        head = state["pooler.dense.weight"]
        if trace == "bias":
            state["pooler.dense.bias"] = 1e-3 * torch.randn(192, generator=draw)
        elif trace == "directions":
            head += 0.1 * torch.outer(*torch.randn(2, 192, generator=draw)) / 192**0.5
        else:
            head *= 1 + 0.3 * torch.randn(192, 192, generator=draw)
        (found,) = weights(state, only="weight-origin").findings[0].assessments
        assert found.state is State.FINE, trace

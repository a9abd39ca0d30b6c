"""Stochastic networks, priors, their risk, and certificates."""

from __future__ import annotations

import copy
import io
import json
import math
from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from torchtheory.core.errors import (
    EmptyData,
    InvalidInput,
    InvalidType,
    ShapeMismatch,
    UnsupportedModel,
)
from torchtheory.data.real import digits, split
from torchtheory.generalization.pac_bayes.bernoulli_kl import upper_kl_inverse, upper_kl_slopes
from torchtheory.generalization.pac_bayes.bound_training import (
    BoundEpoch,
    bound_step,
    differentiable_risk,
    minimize_bound,
)
from torchtheory.generalization.pac_bayes.certification import risk_certificate
from torchtheory.generalization.pac_bayes.flat_minima import flatness
from torchtheory.generalization.pac_bayes.gaussian_layers import GaussianLayer
from torchtheory.generalization.pac_bayes.gaussian_prior import GaussianPrior, ScaleGrid
from torchtheory.generalization.pac_bayes.gibbs_risk import gibbs_risk, mistakes
from torchtheory.generalization.pac_bayes.stochastic_network import (
    StochasticNetwork,
    fresh_initialization,
    spread_like,
)
from torchtheory.models.problem import Problem
from torchtheory.models.samples import Samples
from torchtheory.training.loop.trainer import fit


def dense(*widths: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for a, b in pairwise(widths):
        layers += [nn.Linear(a, b), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def convolutional() -> nn.Sequential:
    return nn.Sequential(
        nn.Unflatten(1, (1, 8, 8)),
        nn.Conv2d(1, 4, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(64, 10),
    )


class Tied(nn.Module):
    """One layer used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.head = nn.Linear(4, 1)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(torch.tanh(self.layer(torch.tanh(self.layer(x)))))
        return out


class ReadsWeights(nn.Module):
    """Uses a layer's weight past its forward."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return (self.layer(x) @ self.layer.weight)[:, :1]


class PerToken(nn.Module):
    """A dense layer that sees several vectors per row, as rows."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 1)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.layer(x.reshape(-1, 2)).reshape(len(x), -1).sum(1, keepdim=True)
        return out


def test_the_means_are_the_network() -> None:
    for net, x in ((dense(4, 5, 1), torch.randn(6, 4)), (convolutional(), torch.rand(6, 64))):
        network = StochasticNetwork(net, spread=0.1)
        assert torch.equal(network(x, "none"), net(x))
        tiny = StochasticNetwork(net, spread=1e-9)
        for noise in ("local", "mixed", "weights"):
            assert torch.allclose(tiny(x, noise), net(x), atol=1e-5)


def test_local_noise_has_the_moments_of_drawn_weights() -> None:
    net = dense(3, 4, 2).double()
    network = StochasticNetwork(net, spread=0.3, generator=1)
    x = torch.randn(1, 3, generator=torch.Generator().manual_seed(0)).double()
    rows = network(x.expand(40_000, -1), "local").detach()
    drawn = torch.cat([network(x, "weights").detach() for _ in range(3000)])
    assert torch.allclose(rows.mean(0), drawn.mean(0), atol=0.08)
    assert torch.allclose(torch.cov(rows.T), torch.cov(drawn.T), atol=0.2)


def test_where_rows_are_independent() -> None:
    x = torch.randn(5, 4)
    assert StochasticNetwork(dense(4, 5, 1)).independent_rows(x)
    assert StochasticNetwork(nn.Linear(4, 1)).independent_rows(x)
    for net in (Tied(), ReadsWeights(), PerToken()):
        network = StochasticNetwork(net)
        assert not network.independent_rows(x)
        assert network(x, "local").shape == (5, 1)
    assert not StochasticNetwork(convolutional()).independent_rows(torch.rand(5, 64))
    assert not StochasticNetwork(dense(4, 5, 1)).independent_rows(x[:2])
    normed = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4), nn.Linear(4, 1))
    assert not StochasticNetwork(normed).independent_rows(x)


def test_the_model_is_not_changed() -> None:
    net = convolutional().train()
    before = copy.deepcopy(net.state_dict())
    state = torch.get_rng_state()
    x, y = digits()
    risk_certificate(net, (x[:200], y[:200]), prior="data", prior_epochs=1, epochs=1, passes=1)
    assert net.training
    assert all(torch.equal(v, before[k]) for k, v in net.state_dict().items())
    assert torch.equal(state, torch.get_rng_state())
    assert all(p.grad is None and p.requires_grad for p in net.parameters())


def test_fresh_initialization() -> None:
    net = dense(4, 5, 1)
    a, b = fresh_initialization(net, 0), fresh_initialization(net, 0)
    for (p, q), old in zip(
        zip(a.parameters(), b.parameters(), strict=True), net.parameters(), strict=True
    ):
        assert torch.equal(p, q)
        assert not torch.equal(p, old)

    class Own(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.ones(1))

    with pytest.raises(UnsupportedModel, match="scale belongs to no layer"):
        fresh_initialization(Own(), 0)
    with pytest.raises(UnsupportedModel, match="batch normalization"):
        fresh_initialization(nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)), 0)


def test_scale_grid() -> None:
    grid = ScaleGrid(0.1, 100)
    assert sum(math.exp(-grid.cost(j)) for j in range(1, 3000)) < 1
    near = grid.nearest(0.01)
    assert grid.variance(near[0]) >= 0.01 >= grid.variance(near[1])
    assert grid.nearest(5.0) == [1]
    with pytest.raises(InvalidInput):
        ScaleGrid(0.0)


@pytest.mark.parametrize("fixed", [False, True])
def test_gradients_of_the_bound(fixed: bool) -> None:
    """The closed forms of a step against autograd through the whole bound."""
    net = dense(4, 6, 1).double()
    network = StochasticNetwork(net, spread=0.2, generator=3)
    other = fresh_initialization(net, 1)
    center = {k: p.detach() for k, p in other.named_parameters()}
    prior = GaussianPrior(center, dict.fromkeys(center, 0.09) if fixed else None)
    x = torch.randn(20, 4).double()
    y = (x[:, :1] > 0).double()
    state = network.generator.get_state()
    risk, kl = bound_step(network, prior, x, y, n=100, constant=5.0, noise="local")
    found = [p.grad.clone() for p in network.parameters() if p.grad is not None]
    network.zero_grad()
    network.generator.set_state(state)
    value = differentiable_risk(network, x, y, "local")
    divergence = prior.divergence(network)
    bound = upper_kl_inverse(value, (divergence + 5.0) / 100)
    bound.backward()  # type: ignore[no-untyped-call]
    assert (risk, kl) == pytest.approx((float(value.detach()), float(divergence.detach())))
    for p, own in zip(network.parameters(), found, strict=True):
        assert p.grad is not None
        assert torch.allclose(p.grad, own, atol=1e-12)
    assert prior.settle(network).kl == pytest.approx(kl, abs=4.1)
    assert (prior.settle(network).cost == 0) == fixed


@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.integers(1, 4), min_size=1, max_size=2),
    st.integers(1, 5),
    st.integers(1, 4),
    st.booleans(),
    st.booleans(),
    st.integers(0, 1000),
)
def test_noisy_dense_layer_against_its_definition(
    batch: list[int], inputs: int, outputs: int, bias: bool, held: bool, seed: int
) -> None:
    """Values and gradients of mean, variance and draw, beside autograd on the plain formulas."""
    g = torch.Generator().manual_seed(seed)
    count = 2 if bias else 1
    shapes = [(outputs, inputs), (outputs,)][:count]

    def leaf(*shape: int) -> Tensor:
        return torch.randn(shape, generator=g, dtype=torch.float64).requires_grad_()

    x = leaf(*batch, inputs)
    means, logarithms = [leaf(*s) for s in shapes], [leaf(*s) for s in shapes]
    factors = [torch.randn(*batch, outputs, generator=g).double() for _ in range(3)]
    layer = GaussianLayer(nn.Linear(inputs, outputs, bias=bias), means, logarithms, g)
    state = g.get_state()
    if held:
        layer.variances = [v.detach().exp() for v in logarithms]
    layer(x)
    assert layer.last is not None
    ours = layer.last
    g.set_state(state)
    mean = nn.functional.linear(x, *means)
    variance = nn.functional.linear(x.square(), *[v.exp() for v in logarithms])
    noise = torch.randn(mean.shape, generator=g, dtype=torch.float64)
    plain = (mean, variance, mean + variance.sqrt() * noise)
    leaves = [x, *means, *logarithms]
    for own, other in zip(ours, plain, strict=True):
        torch.testing.assert_close(own, other)
    values = [
        sum((f * t).sum() for f, t in zip(factors, law, strict=True)) for law in (ours, plain)
    ]
    found, wanted = (torch.autograd.grad(v, leaves) for v in values)  # type: ignore[arg-type]
    for own, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(own, other, rtol=1e-9, atol=1e-11)


def test_frozen_variances_and_natural_steps() -> None:
    net = dense(4, 6, 1).double()
    x = torch.randn(30, 4, generator=torch.Generator().manual_seed(0)).double()
    y = (x[:, :1] > 0).double()

    def gradients(*, frozen: bool, natural: bool) -> tuple[StochasticNetwork, float]:
        network = StochasticNetwork(net, spread=0.2, generator=3)
        with torch.no_grad():
            for tensor in network.log_variances.values():
                tensor.add_(torch.linspace(0, 1, tensor.numel()).reshape(tensor.shape))
        prior = GaussianPrior({k: p.detach() / 2 for k, p in net.named_parameters()})
        with network.variances_frozen(frozen):
            risk, kl = bound_step(
                network, prior, x, y, n=100, constant=5.0, noise="local", natural=natural
            )
        assert all(v.requires_grad for v in network.log_variances.values())
        return network, upper_kl_slopes(risk, (kl + 5.0) / 100)[2] / 100

    plain, slope = gradients(frozen=False, natural=False)
    light, _ = gradients(frozen=True, natural=False)
    steps, _ = gradients(frozen=False, natural=True)
    for name, mean in plain.means.items():
        assert mean.grad is not None
        torch.testing.assert_close(light.means[name].grad, mean.grad)
        assert light.log_variances[name].grad is None
        natural = plain.variances()[name] * mean.grad / slope
        torch.testing.assert_close(steps.means[name].grad, natural)
        torch.testing.assert_close(steps.log_variances[name].grad, plain.log_variances[name].grad)


def test_the_same_variances_need_not_be_computed_again() -> None:
    network = StochasticNetwork(dense(4, 6, 1).double(), spread=0.2)
    prior = GaussianPrior({k: v.detach() / 2 for k, v in network.means.items()})
    first = prior.divergence_parts(network, same_variances=True).kl  # there were none before
    assert first == pytest.approx(float(prior.divergence(network).detach()))
    with torch.no_grad():
        for mean in network.means.values():
            mean.mul_(1.5)
    moved = prior.divergence_parts(network, same_variances=True).kl
    assert moved == pytest.approx(float(prior.divergence(network).detach()))
    assert moved > first
    with torch.no_grad():
        for tensor in network.log_variances.values():
            tensor.add_(0.5 * torch.randn(tensor.shape, generator=network.generator))
    assert prior.divergence_parts(network).kl == pytest.approx(
        float(prior.divergence(network).detach())
    )


def test_variances_every_so_many_steps() -> None:
    x, y = digits()
    net = fresh_initialization(dense(64, 30, 1), 1)
    samples = Problem(net, (x, (y >= 5).long())).train
    prior = GaussianPrior({k: p.detach() for k, p in net.named_parameters()})

    def run(**options: Any) -> tuple[StochasticNetwork, list[BoundEpoch]]:
        network = StochasticNetwork(net, spread=spread_like(net, 0.3), generator=0)
        history = minimize_bound(
            network, prior, samples, constant=20.0, noise="local", variance_rate=0.1, **options
        )
        return network, history

    start = StochasticNetwork(net, spread=spread_like(net, 0.3)).variances()["0.weight"]
    once, _ = run(epochs=2, variance_every=1000)
    moved = (once.variances()["0.weight"].log() - start.log()).abs()
    assert 0 < float(moved.max()) < 0.101  # one step of Adam
    natural, history = run(epochs=10, natural=True, learning_rate=0.02, variance_every=2)
    assert history[-1].bound < history[0].bound - 0.05
    assert natural.means["0.weight"].requires_grad
    # two steps, rates that rise over 1.98 of them: the first is 1/1.98 of what it was
    short, _ = run(epochs=2, variance_every=1000, batch_size=len(x), warm_up=0.99)
    ratio = (short.variances()["0.weight"].log() - start.log()).abs().max() / 0.1
    assert float(ratio) == pytest.approx(1 / 1.98, rel=0.01)
    with pytest.raises(InvalidInput, match="variance_every"):
        run(epochs=1, variance_every=0)
    with pytest.raises(InvalidInput, match="warm_up"):
        run(epochs=1, warm_up=1.0)


def test_integrated_risk_is_the_error() -> None:
    net = dense(4, 6, 1).double()
    network = StochasticNetwork(net, spread=0.3, generator=0)
    x = torch.randn(500, 4, generator=torch.Generator().manual_seed(1)).double()
    y = (x[:, :1] > 0).double()
    exact = gibbs_risk(network, Samples(x, y), passes=60)
    for noise in ("local", "mixed"):
        values = [differentiable_risk(network, x, y, noise).item() for _ in range(150)]
        assert sum(values) / 150 == pytest.approx(exact.estimate, abs=0.01)
    assert exact.upper > exact.estimate
    blocks = gibbs_risk(network, Samples(x, y), passes=40, block=30)
    assert blocks.estimate == pytest.approx(exact.estimate, abs=0.02)
    assert (blocks.draws, blocks.block, exact.draws) == (17 * 40, 30, 30_000)
    assert blocks.upper > exact.upper


def test_gibbs_bound_covers() -> None:
    """A network whose mean error is known: w·1 with w ~ N(1, 1) errs with Φ(-1)."""
    net = nn.Linear(1, 1, bias=False)
    with torch.no_grad():
        net.weight.fill_(1.0)
    truth = float(torch.special.ndtr(torch.tensor(-1.0)))
    samples = Samples(torch.ones(60, 1), torch.ones(60, 1))
    missed = 0
    for seed in range(200):
        network = StochasticNetwork(net, spread=1.0, generator=seed)
        missed += gibbs_risk(network, samples, passes=1, delta=0.1).upper < truth
    assert 0 < missed <= 34  # 0.1 of 200, and three standard deviations


def test_mistakes() -> None:
    logits = torch.tensor([[1.0, 2.0, 2.0], [0.0, 3.0, 1.0]])
    assert mistakes(logits, torch.tensor([1, 1])).tolist() == [True, False]
    nan = torch.full((1, 1), math.nan)
    assert mistakes(nan, torch.ones(1)).tolist() == [True]
    assert mistakes(nan.expand(1, 3), torch.tensor([1])).tolist() == [True]
    with pytest.raises(ShapeMismatch):
        mistakes(torch.zeros(2, 3, 4), torch.zeros(2, dtype=torch.long))


def test_flatness_is_invariant_to_rescaling() -> None:
    x, y = digits()
    net = dense(64, 20, 10)
    for layer in (net[0], net[2]):
        assert isinstance(layer, nn.Linear)
        nn.init.zeros_(layer.bias)
    fit(net, (x[:400], y[:400]), epochs=10)
    scaled = copy.deepcopy(net)
    with torch.no_grad():
        for name, p in scaled.named_parameters():
            p.mul_(4.0 if name.startswith("0") else 0.25 if name == "2.weight" else 1.0)
    train = Problem(net, (x[:400], y[:400])).train
    a, b = flatness(net, train), flatness(scaled, train)
    assert a.fraction == b.fraction > 0
    assert a.errors == pytest.approx(b.errors, abs=1e-6)
    assert set(a.spread) == {"0.weight", "0.bias", "2.weight", "2.bias"}
    with pytest.raises(InvalidInput, match="increase"):
        flatness(net, train, fractions=(0.2, 0.1))
    with pytest.raises(InvalidInput):
        flatness(net, train, tolerance=2.0)


def test_minimizing_lowers_the_bound() -> None:
    x, y = digits()
    net = dense(64, 30, 1)
    samples = Problem(net, (x, (y >= 5).long())).train
    network = StochasticNetwork(net, spread=spread_like(net, 0.5))
    prior = GaussianPrior(network.means)
    center = {k: v.detach().clone() for k, v in network.means.items()}
    history = minimize_bound(
        network, prior, samples, constant=20.0, epochs=8, learning_rate=5e-3, variance_rate=0.1
    )
    assert history[-1].bound < history[0].bound
    assert history[-1].bound < 0.5
    assert any(bool((network.means[k] != center[k]).any()) for k in center)  # it is kept
    again = StochasticNetwork(net, spread=spread_like(net, 0.5))
    same = minimize_bound(
        again, prior, samples, constant=20.0, epochs=8, learning_rate=5e-3, variance_rate=0.1
    )
    assert same == history
    with pytest.raises(InvalidInput, match="training noise"):
        minimize_bound(network, prior, samples, constant=1.0, noise="none")


def test_a_narrow_prior_is_not_left_for_a_worse_posterior() -> None:
    """Steps of 0.001 are ten of its standard deviations: the minimization has to undo them."""
    x, y = digits()
    net = dense(64, 20, 10)
    fit(net, (x[:900], y[:900]), epochs=5, seed=0)
    samples = Problem(net, (x[900:], y[900:])).train
    network = StochasticNetwork(net, spread=1e-4)
    prior = GaussianPrior(
        {k: v.detach().clone() for k, v in network.means.items()},
        dict.fromkeys(network.means, 1e-8),
    )
    history = minimize_bound(network, prior, samples, constant=7.0, epochs=2)
    assert history[-1].kl > 100
    assert prior.settle(network).kl == pytest.approx(0, abs=1e-3)


# --------------------------------------------------------------------------------- certificates


def test_certificate_adds_up() -> None:
    x, y = digits()
    net = dense(64, 40, 10)
    train, test = split(x, y, 397 / 1797)  # the last digits are other writers': not one law
    c = risk_certificate(net, train, prior="data", test=test, epochs=1, seed=5)
    assert (c.samples, c.prior_samples, c.valid, c.vacuous) == (700, 700, True, False)
    assert c.confidence == pytest.approx(0.965)
    allowed = (c.kl + c.scale_cost + c.log_constant - math.log(c.delta)) / c.samples
    assert c.bound == pytest.approx(upper_kl_inverse(c.empirical.upper, allowed))
    assert c.scale_cost == 0  # the scale was chosen on the prior's own part
    assert c.test is not None
    assert c.test.estimate < c.bound < 0.3
    assert json.loads(json.dumps(c.to_json()))["bound"] == c.bound
    assert "prior: trained on 700 samples" in c.summary()
    again = risk_certificate(net, train, prior="data", test=test, epochs=1, seed=5)
    assert again.to_json() == c.to_json()


@pytest.mark.parametrize(("net", "prior"), [(dense(64, 16, 10), "init"), (convolutional(), "data")])
def test_a_certificate_keeps_its_prior_and_can_be_copied_and_saved(
    net: nn.Module, prior: Any
) -> None:
    x, y = digits()
    settings: dict[str, Any] = {"epochs": 1, "prior_epochs": 5, "start_epochs": 1, "passes": 5}
    made = risk_certificate(net, (x[:800], y[:800]), prior=prior, **settings)
    assert made.recomputed() == made.claimed
    choice = made.prior_law.settle(made.network)
    assert (choice.kl, choice.cost) == (made.kl, made.scale_cost)
    center = made.prior_law.center
    assert {k: v.shape for k, v in center.items()} == {
        k: v.shape for k, v in net.named_parameters()
    }
    buffer = io.BytesIO()
    torch.save(made, buffer)
    buffer.seek(0)
    for other in (copy.deepcopy(made), torch.load(buffer, weights_only=False)):
        assert other == made
        assert other.recomputed() == made.claimed
        assert all(torch.equal(v, center[k]) for k, v in other.prior_law.center.items())
        # the noise goes on from the same place, and of weights of its own
        assert torch.equal(other.network(x[:5]), copy.deepcopy(made).network(x[:5]))
        with torch.no_grad():
            other.network.means["1.weight" if prior == "data" else "0.weight"].add_(1.0)
        assert other.prior_law.settle(other.network).kl > made.kl
        assert made.prior_law.settle(made.network).kl == made.kl


def test_certificate_from_scratch_and_of_a_convolution() -> None:
    x, y = digits()
    c = risk_certificate(dense(64, 30, 1), (x, (y >= 5).long()), epochs=2, learning_rate=5e-3)
    assert c.scale_cost > 0
    assert (c.samples, c.prior_samples) == (len(x), 0)
    conv = risk_certificate(convolutional(), (x, y), prior="data", epochs=1, passes=4)
    assert conv.empirical.block == 32
    assert conv.bound < 0.4
    assert conv.empirical.upper > conv.empirical.estimate


def test_a_module_as_prior_must_say_what_it_saw() -> None:
    x, y = digits()
    net, prior = dense(64, 10, 10), dense(64, 10, 10)
    with pytest.raises(InvalidInput, match="prior_data"):
        risk_certificate(net, (x, y), prior=prior)
    with pytest.raises(EmptyData, match="0 are left"):
        risk_certificate(net, (x, y), prior=prior, prior_data=range(len(x)))
    with pytest.raises(InvalidInput, match="from 0 to 1796"):
        risk_certificate(net, (x, y), prior=prior, prior_data=[5000])
    with pytest.raises(InvalidType):
        risk_certificate(net, (x, y), prior=prior, prior_data=[0.5])
    with pytest.raises(ShapeMismatch, match="same network"):
        risk_certificate(net, (x, y), prior=dense(64, 11, 10), prior_data=())
    c = risk_certificate(net, (x, y), prior=prior, prior_data=[3, 3, 7], epochs=0, passes=1)
    assert (c.samples, c.prior_samples) == (len(x) - 2, 2)


def test_a_cheating_prior_is_found_out() -> None:
    g = torch.Generator().manual_seed(0)
    x = torch.randn(600, 20, generator=g)
    y = torch.randint(0, 2, (600,), generator=g)
    cheat = dense(20, 200, 1)
    fit(cheat, (x[:300], y[:300]), epochs=120, learning_rate=1e-2)
    settings = {"prior": cheat, "prior_spread": 0.01, "epochs": 0, "passes": 1}
    lie = risk_certificate(
        cheat, (x[:300], y[:300]), prior_data=(), test=(x[300:], y[300:]), **settings
    )
    assert not lie.valid
    assert lie.bound == 1
    assert lie.claimed < 0.3
    assert lie.summary().startswith("INVALID: the prior's network errs on 0.0")
    honest = risk_certificate(
        cheat, (x, y), prior_data=range(300), test=(x[300:], y[300:]), **settings
    )
    assert honest.valid
    assert honest.bound > 0.5


def test_refused_input() -> None:
    x, y = digits()
    net = dense(64, 10, 10)
    for wrong in (
        {"delta": 0.0},
        {"delta_draws": 1.0},
        {"delta": 0.6, "delta_draws": 0.5},
        {"prior_fraction": 1.0},
        {"prior_spread": 0.0},
        {"passes": 0},
        {"prior": "posterior"},
        {"prior_data": [1]},
        {"epochs": -1},
        {"start_epochs": -1},
    ):
        with pytest.raises(InvalidInput):
            risk_certificate(net, (x[:50], y[:50]), **wrong)  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="not a regression"):
        risk_certificate(nn.Linear(64, 1), (x, x[:, 10:11]))
    with pytest.raises(EmptyData):
        risk_certificate(net, (x[:9], y[:9]), prior="data")
    with pytest.raises(UnsupportedModel, match="batch normalization"):
        StochasticNetwork(nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)))
    with pytest.raises(InvalidInput, match="no parameters"):
        StochasticNetwork(nn.ReLU())
    with pytest.raises(InvalidInput, match="positive"):
        StochasticNetwork(net, spread=0.0)
    with pytest.raises(InvalidInput, match="noise must be"):
        StochasticNetwork(net)(x[:2], "loud")  # type: ignore[arg-type]

"""Attacks against what is known exactly, and what they must not do to models and inputs."""

import copy
import itertools
import math
import warnings

import pytest
import torch
from torch import Tensor, nn

from torchtheory.core.errors import InvalidInput, InvalidType, LabelOutOfRange, UnsupportedModel
from torchtheory.core.random import as_generator
from torchtheory.robustness.adversarial_risk import (
    adversarial_risk,
    linear_adversarial_margins,
    linear_adversarial_risk,
    linear_perturbation,
    robust_accuracy,
)
from torchtheory.robustness.attacks.adaptive import APGD
from torchtheory.robustness.attacks.attack import Attack
from torchtheory.robustness.attacks.balls import DUAL_EXPONENTS, as_norm, lengths
from torchtheory.robustness.attacks.ensemble import (
    AutoAttack,
    Ensemble,
    GradientMaskingWarning,
    auto_attack,
    gradient_masking,
)
from torchtheory.robustness.attacks.goals import cross_entropy, dlr, margin
from torchtheory.robustness.attacks.gradient_steps import FGSM, PGD
from torchtheory.robustness.attacks.shortest import FAB, CarliniWagner, DeepFool, ShortestAttack
from torchtheory.robustness.attacks.square import Square
from torchtheory.robustness.finite_differences import FiniteDifferences, finite_difference_gradient

NORMS = ("inf", "2", "1")


def linear(outputs, seed=0, inputs=6):
    net = nn.Linear(inputs, outputs, dtype=torch.float64)
    for p in net.parameters():
        nn.init.normal_(p, generator=as_generator(seed))
    return net


def network(seed=0, classes=5):
    net = nn.Sequential(nn.Linear(6, 24), nn.Tanh(), nn.Linear(24, classes)).double()
    for p in net.parameters():
        nn.init.normal_(p, std=0.7, generator=as_generator(seed))
    with torch.no_grad():  # no class is favored
        net[2].bias -= net(points(200)).mean(0)
    return net


def points(n=40, seed=1, inputs=6):
    return torch.rand(n, inputs, generator=as_generator(seed), dtype=torch.float64)


def labeled(net, n=40, seed=1):
    x = points(n, seed)
    with torch.no_grad():
        return x, net(x).argmax(1)


def everything(norm):
    """One of each kind, small."""
    found = [
        FGSM(0.1, norm=norm, box=(0, 1)),
        PGD(0.1, 10, norm=norm, box=(0, 1)),
        PGD(0.1, 5, norm=norm, box=(0, 1), gradient=FiniteDifferences(1e-3)),
        PGD(0.1, 5, norm=norm, box=(0, 1), restarts=2, schedule="cosine", loss="dlr"),
        APGD(0.1, 20, norm=norm, box=(0, 1)),
        APGD(0.1, 20, norm=norm, box=(0, 1), targets=3),
        DeepFool(norm=norm, box=(0, 1)),
        FAB(norm=norm, box=(0, 1), steps=15, targets=3),
    ]
    if norm != "1":
        found += [Square(0.1, 60, norm=norm, box=(0, 1))]
    if norm == "2":
        found += [CarliniWagner(box=(0, 1), steps=30, searches=2)]
    return [*found, AutoAttack(0.1, norm=norm, box=(0, 1), steps=10, max_queries=20)]


CASES = [(n, i) for n in NORMS for i in range(len(everything(n)))]


@pytest.mark.parametrize(("norm", "which"), CASES)
def test_every_attack_keeps_its_promises(norm, which):
    """In the box and the ball, really fooled, the same again, counted, and the model untouched."""
    attack = everything(norm)[which]
    net = network()
    net.train()
    net[0].weight.grad = torch.ones_like(net[0].weight)
    x, y = labeled(net)
    y[:3] = (y[:3] + 1) % 5  # wrong from the start
    before, given, state = copy.deepcopy(net.state_dict()), x.clone(), torch.get_rng_state()
    result = attack(net, x, y)
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(x, given)
    assert net.training
    assert all(
        torch.equal(a, b) for a, b in zip(before.values(), net.state_dict().values(), strict=True)
    )
    assert bool((net[0].weight.grad == 1).all())
    assert all(p.requires_grad for p in net.parameters())
    found = result.adversarial
    assert found.dtype == x.dtype
    assert float(found.min()) >= 0
    assert float(found.max()) <= 1
    some = result.norms.isfinite()  # what looks for the shortest one may find none
    torch.testing.assert_close(result.norms[some], lengths(found - x, norm)[some])
    assert bool(some.all()) or (
        isinstance(attack, ShortestAttack) and not result.success[~some].any()
    )
    if getattr(attack, "radius", None) is not None:
        assert float(result.norms[result.success].max()) <= 0.1 * (1 + 1e-9)
    with torch.no_grad():
        wrong = net(found).argmax(1) != y
    assert torch.equal(wrong & result.success, result.success)
    assert bool(result.success[:3].all()) or isinstance(attack, FGSM)
    assert result.success_before.tolist() == [True] * 3 + [False] * 37
    assert bool((result.queries >= 1).all())
    black = isinstance(attack, Square) or getattr(attack, "gradient", None) is not None
    assert bool((result.gradients == 0).all()) == black
    again = attack(net, x, y)
    assert torch.equal(again.adversarial, found)


@pytest.mark.parametrize("norm", NORMS)
def test_one_step_solves_the_linearized_problem(norm):
    """M-145: the gain of the linearized loss is the radius times the dual norm of the gradient."""
    net, radius = network(), 1e-3
    x, y = labeled(net)
    result = FGSM(radius, norm=norm)(net, x, y)
    moved = x.clone().requires_grad_(True)
    (g,) = torch.autograd.grad(cross_entropy(net(moved), y).sum(), moved)
    gain = (g * (result.adversarial - x)).sum(1)
    torch.testing.assert_close(gain, radius * g.norm(DUAL_EXPONENTS[norm], dim=1))


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("attack", [FGSM, PGD, APGD])
def test_linear_optimum_is_reached_in_every_norm(norm, attack):
    net, radius = linear(1), 0.2
    w, b = net.weight.detach()[0], net.bias.detach()
    x = points()
    y = torch.where(x @ w + b > 0, 1, -1)
    exact = linear_adversarial_risk(w, x, y, radius, norm, bias=b)
    steps = {FGSM: {}, PGD: {"steps": 100, "step": 0.05}, APGD: {"steps": 200}}[attack]
    result = adversarial_risk(net, (x, y), attack(radius, norm=norm, **steps))
    assert float(result) <= exact + 1e-12
    assert float(result) == pytest.approx(exact, rel=1e-6 if attack is FGSM else 2e-3)
    delta = linear_perturbation(w, y, radius, norm)
    torch.testing.assert_close(
        (x + delta) @ w + b, y * linear_adversarial_margins(w, x, y, radius, norm, bias=b)
    )


@pytest.mark.parametrize("norm", NORMS)
def test_multiclass_linear_margins_decide_robustness_exactly(norm):
    net, radius = linear(4), 0.15
    x, y = labeled(net, 200)
    margins = linear_adversarial_margins(
        net.weight.detach(), x, y, radius, norm, bias=net.bias.detach()
    )
    attack = APGD(radius, 60, norm=norm, targets=3)
    fooled = attack(net, x, y).success
    clear = margins.abs() > 1e-3
    assert torch.equal(fooled[clear], (margins <= 0)[clear])


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("attack", [DeepFool, FAB])
def test_shortest_perturbations_are_exact_for_affine_classifiers(norm, attack):
    net = linear(4)
    x, y = labeled(net)
    with torch.no_grad():
        z = net(x)
    w = net.weight.detach()
    gaps = z.gather(1, y[:, None]) - z
    size = (w[y][:, None] - w[None]).norm(DUAL_EXPONENTS[norm], dim=2)
    exact = (gaps / size).nan_to_num(math.inf).scatter(1, y[:, None], math.inf).amin(1)
    found = attack(norm=norm)(net, x, y)
    assert bool(found.success.all())
    assert bool((found.norms >= exact * (1 - 1e-9)).all())
    assert bool((found.norms <= exact * (1 + 1e-3)).all())


def test_carlini_wagner_reaches_the_exact_distance():
    for classes in (2, 4):
        net = linear(classes)
        x, y = labeled(net)
        exact = DeepFool(norm="2")(net, x, y).norms  # shown above to be exact
        found = CarliniWagner()(net, x, y)
        assert bool(found.success.all())
        assert bool((found.norms >= exact * 0.999).all())
        # with several classes it may stop at another boundary than the nearest
        close = found.norms <= exact * 1.02
        assert float(close.double().mean()) >= (1.0 if classes == 2 else 0.7)


@pytest.mark.parametrize("attack", [DeepFool, FAB, CarliniWagner])
def test_no_perturbation_is_no_distance_of_zero(attack):
    """A classifier with one answer: nothing misleads it, and the norms say so."""
    net = nn.Linear(3, 2)
    with torch.no_grad():
        net.weight.zero_()
        net.bias.copy_(torch.tensor([5.0, 0.0]))
    found = attack(norm="2")(net, torch.rand(4, 3), torch.tensor([0, 0, 1, 1]))
    assert found.success.tolist() == [False, False, True, True]
    assert found.norms.tolist() == [math.inf, math.inf, 0.0, 0.0]
    assert "2 of 4 fooled, longest perturbation 0 in L2" in repr(found)


def test_box_makes_the_distance_longer_and_fab_knows():
    """The plane x1 + x2 = 1.5 from (0.9, 0.1) in the box [0, 1]: x1 may grow by 0.1 only."""
    net = nn.Linear(2, 2, dtype=torch.float64)
    with torch.no_grad():
        net.weight.copy_(torch.tensor([[0.0, 0.0], [1.0, 1.0]]))
        net.bias.copy_(torch.tensor([0.0, -1.5]))
    x, y = torch.tensor([[0.9, 0.1]], dtype=torch.float64), torch.tensor([0])
    found = FAB(norm="2", box=(0, 1))(net, x, y)
    assert float(found.norms) == pytest.approx(math.hypot(0.1, 0.4), rel=1e-3)
    free = FAB(norm="2")(net, x, y)
    assert float(free.norms) == pytest.approx(0.5 / math.sqrt(2), rel=1e-3)


@pytest.mark.parametrize("norm", NORMS)
def test_deepfool_arrives_also_from_the_edge_of_the_box(norm):
    """Where most steps lead out of the box, in single precision."""
    net = network(classes=10).float()
    x = points(60).float().round()
    with torch.no_grad():
        y = net(x).argmax(1)
    found = DeepFool(norm=norm, box=(0, 1))(net, x, y)
    assert bool(found.success.all())
    assert float(found.adversarial.min()) >= 0
    assert float(found.adversarial.max()) <= 1


@pytest.mark.parametrize("norm", ["inf", "2"])
def test_apgd_is_no_weaker_than_pgd(norm):
    net = network(3)
    x, y = labeled(net, 100)
    weak = adversarial_risk(net, (x, y), PGD(0.3, 40, norm=norm))
    strong = adversarial_risk(net, (x, y), APGD(0.3, 40, norm=norm))
    assert float(strong) >= float(weak) - 1e-3
    assert float(weak) >= weak.clean.estimate


def test_loss_grows_with_small_steps():
    net = network(3)
    x, y = labeled(net)
    values = [
        float(
            adversarial_risk(
                net, (x, y), PGD(0.2, k, step=0.01, random_start=False, ascent="gradient")
            )
        )
        for k in (1, 3, 9, 27)
    ]
    assert all(a < b for a, b in itertools.pairwise(values))


def test_clipped_gradient_becomes_the_sign_at_its_smallest_entry():
    """M-144, M-145: clip(eta g, -eps, eps) = eps sign(g) from eta = eps / min|g| on."""
    net = linear(1)
    x = points(1)
    y = torch.tensor([1])
    eps = 0.1
    moved = x.clone().requires_grad_(True)
    (g,) = torch.autograd.grad(torch.nn.functional.softplus(-net(moved)).sum(), moved)
    eta = eps / float(g.abs().min())

    def step(length):
        how = {"random_start": False, "ascent": "gradient", "stop_when_fooled": False}
        return PGD(eps, 1, step=length, **how)(net, x, y).adversarial - x

    torch.testing.assert_close(step(eta), eps * g.sign())
    assert float((step(eta / 2) - eps * g.sign()).abs().max()) == pytest.approx(eps / 2)


def test_targeted_attacks_lead_to_the_class():
    net = linear(3)
    x, y = labeled(net)
    target = (y + 1) % 3
    for attack in (PGD(3.0, 40, targeted=True), APGD(3.0, 40, targeted=True),
                   CarliniWagner(targeted=True)):  # fmt: skip
        found = attack(net, x, target)
        with torch.no_grad():
            said = net(found.adversarial).argmax(1)
        assert torch.equal(said == target, found.success)
        assert bool(found.success.all())


def test_binary_logit_and_regression():
    net = linear(1)
    x = points()
    with torch.no_grad():
        y = (net(x)[:, 0] > 0).long()
    for labels in (y, 2 * y - 1, y.double()[:, None]):
        found = PGD(0.5)(net, x, labels)
        with torch.no_grad():
            assert torch.equal((net(found.adversarial)[:, 0] > 0).long() != y, found.success)
    targets = net(x).detach()
    result = PGD(0.1, norm="2", steps=100, step=0.05)(net, x, targets)
    w = float(net.weight.detach().norm())
    torch.testing.assert_close(result.losses, torch.full_like(result.losses, (0.1 * w) ** 2))
    assert bool(result.success.all())


def test_goals():
    z = torch.randn(30, 5, generator=as_generator(0), dtype=torch.float64, requires_grad=True)
    y = torch.randint(5, (30,), generator=as_generator(1))
    (g,) = torch.autograd.grad(cross_entropy(z, y).sum(), z)
    torch.testing.assert_close(g, z.softmax(1) - torch.eye(5, dtype=z.dtype)[y])
    assert torch.equal(margin(z, y) > 0, z.argmax(1) != y)
    torch.testing.assert_close(dlr(7 * z + 3, y), dlr(z, y))
    by_hand = dlr(torch.tensor([[5.0, 1.0, 3.0, 0.0]]), torch.tensor([2]))  # (5 - 3) / (5 - 1)
    assert float(by_hand) == 0.5


def test_finite_differences_have_their_order():
    def f(x):
        return (x.sin() * x.pow(2)).sum(1)

    x = points(5).requires_grad_(True)
    (exact,) = torch.autograd.grad(f(x).sum(), x)
    for scheme, order in (("central", 2), ("forward", 1)):
        errors = [
            float(
                (finite_difference_gradient(f, x.detach(), width=h, scheme=scheme) - exact)
                .abs()
                .max()
            )
            for h in (1e-1, 1e-2)
        ]
        assert math.log10(errors[0] / errors[1]) == pytest.approx(order, abs=0.15)


def test_random_directions_are_unbiased():
    w = torch.arange(1.0, 5.0, dtype=torch.float64)
    found = finite_difference_gradient(
        lambda x: x @ w, torch.zeros(1, 4, dtype=torch.float64), directions=4000, generator=0
    )
    # each entry has the variance of the other squares, over the number of directions
    error = (found[0] - w).abs() / ((w.square().sum() - w.square()) / 4000).sqrt()
    assert float(error.max()) < 5


def test_queries_are_counted_exactly():
    calls = 0

    class Counting(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = linear(3)

        def forward(self, x):
            nonlocal calls
            calls += len(x)
            return self.inner(x)

    net = Counting()
    x, y = labeled(net.inner, 10)
    for attack in (
        PGD(0.01, 3, gradient=FiniteDifferences(1e-4)),
        PGD(0.01, 3),
        APGD(0.01, 5),
        Square(0.01, 7),
        DeepFool(norm="2"),
        FAB(norm="2", steps=3),
    ):
        calls = 0
        result = attack(net, x, y)
        assert calls == int(result.queries.sum()) + 2, attack  # 2 samples show what it returns
    result = PGD(1e-6, 3, gradient=FiniteDifferences(1e-4))(net, x, y)
    assert result.queries.tolist() == [1 + 3 * (1 + 2 * 6) + 1] * 10


class Saturated(nn.Module):
    """Scores that are so large that the softmax is flat, or rounded inputs: gradients of 0."""

    def __init__(self, inner, levels=None):
        super().__init__()
        self.inner, self.levels = inner, levels

    def forward(self, x):
        if self.levels:
            x = (x * self.levels).floor() / self.levels + 0 * x
        return self.inner(x)


def test_masked_gradients_are_noticed_and_honest_ones_not():
    net = network()
    x, y = labeled(net, 80)
    masked = Saturated(net, 4)
    with torch.no_grad():
        y_masked = masked(x).argmax(1)
    with pytest.warns(GradientMaskingWarning):
        found = gradient_masking(masked, x, y_masked, 0.3, max_queries=300)
    assert found.suspicious
    assert found.zero_gradients == 1
    with pytest.warns(GradientMaskingWarning):
        auto_attack(masked, x, y_masked, 0.3, steps=10, max_queries=300)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        honest = gradient_masking(net, x, y, 0.3, max_queries=300)
        auto_attack(net, x, y, 0.3, steps=20, max_queries=300)
    assert not honest.suspicious
    assert honest.zero_gradients == 0
    assert honest.by_gradient >= honest.by_search


def test_ensembles_take_the_union():
    net = network()
    x, y = labeled(net, 100)
    parts = [FGSM(0.3), Square(0.3, 50)]
    both = Ensemble(parts, generator=0)(net, x, y)
    first = FGSM(0.3)(net, x, y).success
    assert bool((both.success | ~first).all())
    left = both.accuracies
    assert list(left) == ["clean", "FGSM", "Square"]
    assert left["clean"] == 1
    assert left["Square"] == pytest.approx(1 - both.success_rate)
    assert float(robust_accuracy(net, (x, y), Ensemble(parts))) == pytest.approx(left["Square"])


def test_images_in_chunks_and_another_layout():
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 3)
    )
    x = torch.rand(20, 2, 8, 8)
    with torch.no_grad():
        y = net.eval()(x).argmax(1)
    strides = net[0].weight.stride()
    for attack in (PGD(0.05, 8, box=(0, 1), random_start=False), FGSM(0.05, box=(0, 1))):
        whole = attack(net, x, y)
        from dataclasses import replace

        parts = replace(attack, chunk=3)(net, x, y)
        assert float((whole.norms - parts.norms).abs().max()) < 1e-3
        assert float((whole.success != parts.success).double().mean()) <= 0.1
    for norm in ("inf", "2"):
        found = Square(0.1, 50, norm=norm, box=(0, 1))(net, x, y)
        assert float(found.norms.max()) <= 0.1 * (1 + 1e-5)
    assert net[0].weight.stride() == strides


def test_refused_in_a_sentence():
    net = network()
    x, y = labeled(net)
    with pytest.raises(LabelOutOfRange):
        PGD(0.1)(net, x, y + 5)
    with pytest.raises(InvalidInput, match="outside of the box"):
        PGD(0.1, box=(0, 1))(net, x + 1, y)
    with pytest.raises(InvalidInput, match="radius must be a positive number"):
        PGD(0)
    with pytest.raises(InvalidInput, match="norm"):
        PGD(0.1, norm="linf")
    with pytest.raises(InvalidType, match="floating"):
        PGD(0.1)(net, (255 * x).long(), y)
    with pytest.raises(InvalidType, match="float32"):
        PGD(0.1)(net, x.float(), y)
    with pytest.raises(InvalidInput, match="one target in y per sample"):
        PGD(0.1)(net, x, y[:3])
    with pytest.raises(InvalidInput, match="3 classes"):
        PGD(0.1, loss="dlr")(linear(2), x, y % 2)
    with pytest.raises(InvalidInput, match="4 classes"):
        APGD(0.1, targets=2)(linear(3), x, y % 3)
    with pytest.raises(InvalidInput, match="box is the lowest"):
        PGD(0.1, box=(1, 0))
    with pytest.raises(InvalidInput, match="'inf' or '2'"):
        Square(0.1, norm="1")
    with pytest.raises(InvalidInput, match="regression"):
        DeepFool()(linear(1), x, x[:, :1])
    with pytest.raises(InvalidInput, match="untargeted"):
        robust_accuracy(net, (x, y), PGD(0.1, targeted=True))
    with pytest.raises(InvalidType, match=r"PGD\(0.1\)"):
        robust_accuracy(net, (x, y), "pgd")

    class Rounding(nn.Module):
        def forward(self, x):
            return (x[:, :3] * 10).detach().round()

    with pytest.raises(UnsupportedModel, match="use Square"):
        PGD(0.1)(Rounding(), x, y % 3)
    assert Square(0.1, 5)(Rounding(), x, y % 3).gradients.sum() == 0


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("norm", ["inf", "2", "1"])
def test_rounding_neither_leaves_the_ball_nor_hides_an_error(dtype: torch.dtype, norm: str) -> None:
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(6, 16), torch.nn.ReLU(), torch.nn.Linear(16, 5))
    net = net.to(dtype)
    x = torch.rand(40, 6).to(dtype)
    x[0] = 0
    y = net(x).argmax(1)
    radius = {"inf": 0.1, "2": 0.3, "1": 0.6}[norm]
    attacks: list[Attack] = [FGSM(radius, norm=norm), PGD(radius, 10, norm=norm, generator=0)]
    if norm != "1":
        attacks.append(Square(radius, 50, norm=norm, generator=0))
    for attack in attacks:
        found = attack(net, x, y)
        sizes = lengths(found.adversarial.double() - x.double(), as_norm(norm))
        assert float(sizes.max()) <= radius * (1 + 1e-12)
        assert bool((found.success == (net(found.adversarial).argmax(1) != y)).all())
        assert bool(found.success.any())


@pytest.mark.parametrize("norm", ["inf", "2"])
def test_inputs_far_from_zero_are_attacked_within_the_radius(norm: str) -> None:
    net = torch.nn.Linear(2, 2, bias=False)
    net.weight.data.copy_(torch.tensor([[1.0, 0.0], [0.0, 1.0]]))
    x = torch.tensor([[1000.005, 1000.0]])
    found = PGD(0.01, 20, norm=norm, random_start=False)(net, x, torch.tensor([0]))
    assert bool(found.success)
    assert float(lengths(found.adversarial.double() - x.double(), as_norm(norm))) <= 0.01


class NoGradients(nn.Module):
    """Refuses inputs that need gradients, in words of its own."""

    def forward(self, x: Tensor) -> Tensor:
        if x.requires_grad:
            raise RuntimeError("not\nfor you")
        return x


def test_what_the_model_raises_becomes_a_sentence() -> None:
    with pytest.raises(UnsupportedModel, match="that need gradients: not for you"):
        PGD(0.1)(NoGradients(), torch.randn(4, 3), torch.zeros(4, dtype=torch.long))

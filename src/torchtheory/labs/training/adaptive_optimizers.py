"""AdaGrad, Adam and weight decay: torch and the printed recursions, step for step."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.optim import SGD, Adagrad, Adam, AdamW, Optimizer, RMSprop

from torchtheory.labs.engine import Run
from torchtheory.labs.training.optimizer_paths import EXACT, Function, trajectory
from torchtheory.training.optimizers.adam import UncorrectedAdam
from torchtheory.training.regularizers.decay import weight_decay_groups


def adagrad_forms(run: Run, h: Function, start: Tensor) -> None:
    steps, eta, delta = 60, 0.3, 1e-3

    def printed(function: Function, inside: bool = False) -> Tensor:
        slope = torch.func.grad(function)
        theta, gamma = start, torch.zeros_like(start)
        points = [theta]
        for _ in range(steps):
            g = slope(theta)
            gamma = gamma + g.square()
            size = (gamma + delta).sqrt() if inside else gamma.sqrt() + delta
            theta = theta - eta / size * g
            points.append(theta)
        return torch.stack(points)

    def torchs(function: Function, eps: float = delta, at: Tensor = start) -> Tensor:
        return trajectory(lambda p: Adagrad(p, lr=eta, eps=eps), function, at, steps)

    says = run.states(
        "N-50",
        r"\text{Adagrad: } \gamma_i^t=\gamma_i^{t-1}+(\partial_ih)^2,\ \theta_i^{t+1}=\theta_i^t-"
        r"\frac{\eta}{\sqrt{\gamma_i^t}+\delta}\partial_ih: \text{ largest difference}",
    )
    says.equal((torchs(h) - printed(h)).abs().max(), within=EXACT)
    says.fails("δ under the root: √(γ+δ)", (torchs(h) - printed(h, inside=True)).abs().max())
    slope = torch.func.grad(h)(start)
    says = run.states("N-50", r"\theta^1-\theta^0=-\eta\,\mathrm{sign}\,\nabla h(\theta^0)")
    says.equal(torchs(h, eps=1e-300)[1] - start, -eta * slope.sign(), 1e-10, where="δ = 1e-300")
    says.fails("δ = 1", torchs(h, eps=1.0)[1] - start)
    steady = torch.tensor([5.0, -0.01], dtype=torch.float64)
    moved = torchs(lambda x: x @ steady, eps=1e-300, at=torch.zeros(2, dtype=torch.float64))
    root = torch.arange(1, steps + 1).double().sqrt()
    says = run.states(
        "N-50", r"\nabla h \text{ constant: step } t \text{ has length } \eta/\sqrt t \text{ in every coordinate}"
    )
    says.equal(moved.diff(dim=0).abs(), torch.stack([eta / root] * 2, 1), EXACT)
    says.fails(
        "gradient descent",
        trajectory(lambda p: SGD(p, lr=eta), lambda x: x @ steady, torch.zeros(2, dtype=torch.float64), steps)
        .diff(dim=0)
        .abs(),
    )
    weights = torch.logspace(-3, 3, len(start), dtype=torch.float64)

    def separable(theta: Tensor, by: Tensor | float = 1.0) -> Tensor:
        return (by * (theta.square() / 2 + torch.cos(theta))).sum()

    def difference(make: Callable[[list[Tensor]], Optimizer]) -> Tensor:
        a = trajectory(make, separable, start, steps)
        b = trajectory(make, lambda x: separable(x, weights), start, steps)
        return (a - b).abs().max()

    says = run.states(
        "N-50",
        r"\text{Adagrad, } \delta\to0: \sum_ic_ih_i(\theta_i) \text{ and } \sum_ih_i(\theta_i)"
        r" \text{ have one trajectory: largest difference}",
    )
    says.equal(difference(lambda p: Adagrad(p, lr=eta, eps=1e-300)), within=1e-10, where="c from 10⁻³ to 10³")
    says.fails("gradient descent", difference(lambda p: SGD(p, lr=1e-4)))


def adam_forms(run: Run, h: Function, start: Tensor) -> None:
    steps, eta, beta, alpha, delta = 80, 0.05, 0.9, 0.999, 1e-3

    def printed(*, corrected: bool, beta: float = beta, rate: float = eta, shrink: float = 0.0) -> Tensor:
        slope = torch.func.grad(h)
        theta, g, gamma = start, torch.zeros_like(start), torch.zeros_like(start)
        points = [theta]
        for t in range(1, steps + 1):
            now = slope(theta)
            theta = (1 - shrink) * theta
            g = beta * g + (1 - beta) * now
            gamma = alpha * gamma + (1 - alpha) * now.square()
            first = g / (1 - beta**t) if corrected else g
            second = gamma / (1 - alpha**t) if corrected else gamma
            theta = theta - rate / (second.sqrt() + delta) * first
            points.append(theta)
        return torch.stack(points)

    def torchs(make: Callable[[list[Tensor]], Optimizer]) -> Tensor:
        return trajectory(make, h, start, steps)

    adam = torchs(lambda p: Adam(p, lr=eta, betas=(beta, alpha), eps=delta))
    says = run.states(
        "N-51",
        r"\text{Adam: } \hat g=g_t/(1-\beta^t),\ \hat\gamma=\gamma_t/(1-\alpha^t),\ "
        r"\theta_{t+1}=\theta_t-\frac{\eta}{\sqrt{\hat\gamma}+\delta}\hat g: \text{ largest difference}",
    )
    says.equal((adam - printed(corrected=True)).abs().max(), within=EXACT)
    says.fails("the notes' form, without the corrections", (adam - printed(corrected=False)).abs().max())
    ours = torchs(lambda p: UncorrectedAdam(p, lr=eta, betas=(beta, alpha), eps=delta))
    says = run.states(
        "N-51",
        r"\text{UncorrectedAdam: } g_t=\beta g_{t-1}+(1-\beta)\nabla h,\ \gamma_t=\alpha"
        r"\gamma_{t-1}+(1-\alpha)(\nabla h)^{\odot2}: \text{ largest difference}",
    )
    says.equal((ours - printed(corrected=False)).abs().max(), within=EXACT)
    says.fails("with the corrections", (ours - printed(corrected=True)).abs().max())
    rms = torchs(lambda p: RMSprop(p, lr=eta, alpha=alpha, eps=delta))
    says = run.states("N-51", r"\text{RMSprop is the printed Adam with } \beta=0: \text{ largest difference}")
    says.equal((rms - printed(corrected=False, beta=0.0)).abs().max(), within=EXACT)
    says.fails("β = 0.9", (rms - printed(corrected=False)).abs().max())
    shrinking = torchs(lambda p: AdamW(p, lr=eta, betas=(beta, alpha), eps=delta, weight_decay=0.1))
    coupled = torchs(lambda p: Adam(p, lr=eta, betas=(beta, alpha), eps=delta, weight_decay=0.1))
    decoupled = printed(corrected=True, shrink=eta * 0.1)
    says = run.states(
        "N-51, L-066",
        r"\text{AdamW multiplies } \theta \text{ by } 1-\eta\lambda \text{ and takes Adam's step:}"
        r" \text{ largest difference}",
    )
    says.equal((shrinking - decoupled).abs().max(), within=EXACT)
    says.fails("Adam(weight_decay=λ), where the decay enters the averages", (coupled - decoupled).abs().max())
    slope = torch.tensor([5.0, -0.3], dtype=torch.float64)
    zero = torch.zeros(2, dtype=torch.float64)

    def first(make: Callable[[list[Tensor]], Optimizer]) -> Tensor:
        return trajectory(make, lambda x: x @ slope, zero, 1)[1] / -slope.sign()

    def short(p: list[Tensor]) -> Optimizer:
        return Adam(p, lr=1e-3, eps=1e-12)

    def long(p: list[Tensor]) -> Optimizer:
        return UncorrectedAdam(p, lr=1e-3, eps=1e-12)

    says = run.states(
        "N-51",
        r"\text{first step: corrected } \eta, \text{ uncorrected } "
        r"\eta(1-\beta)/\sqrt{1-\alpha}=3.162\,\eta, \text{ in units of } \eta",
    )
    says.equal(
        torch.cat([first(short), first(long)]) / 1e-3, [1.0, 1.0, 0.1 / math.sqrt(1e-3), 0.1 / math.sqrt(1e-3)], 1e-9
    )
    says.fails("gradient descent", first(lambda p: SGD(p, lr=1e-3)) / 1e-3, promised=1.0)
    says = run.refutes(
        "adam-printed-form",
        r"\theta_{t+1}=\theta_t-g_t/(\sqrt{\gamma_t}+\delta) \text{ is Adam: the first step is } \eta=0.001",
    )
    says.equal(
        first(lambda p: UncorrectedAdam(p, lr=1.0, eps=1e-12)),
        1e-3,
        1e-9,
        where="with no base rate and no correction the first step is 3.16, at any scale of h",
    )


def decay_forms(run: Run) -> None:
    """The decaying gradient descent of the lectures on a small network."""
    eta, decay, steps = 0.2, 0.03, 30
    x = run.randn(64, 2)
    y = (x[:, :1] * x[:, 1:] > 0).double()
    sizes = [(8, 2), (8,), (1, 8), (1,)]
    values = [run.randn(*shape) / 2 for shape in sizes]

    def network() -> nn.Sequential:
        net = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 1)).double()
        with torch.no_grad():
            for p, value in zip(net.parameters(), values, strict=True):
                p.copy_(value)
        return net

    def loss(net: nn.Module, penalty: float = 0.0) -> Tensor:
        weights = torch.cat([p.flatten() for p in net.parameters() if p.ndim == 2])
        plain = nn.functional.binary_cross_entropy_with_logits(net(x), y)
        return plain + penalty / 2 * weights.square().sum()

    def result(make: Callable[[nn.Module], Optimizer], penalty: float = 0.0) -> Tensor:
        net = network()
        optimizer = make(net)
        for _ in range(steps):
            optimizer.zero_grad()
            loss(net, penalty).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        return nn.utils.parameters_to_vector(net.parameters()).detach()

    net = network()
    for _ in range(steps):
        net.zero_grad()
        loss(net).backward()  # type: ignore[no-untyped-call]
        with torch.no_grad():
            for p in net.parameters():
                assert p.grad is not None
                p.sub_(eta * p.grad + (decay if p.ndim == 2 else 0.0) * p)
    printed = nn.utils.parameters_to_vector(net.parameters()).detach()

    def apart(other: Tensor) -> Tensor:
        return (other - printed).abs().max()

    says = run.states(
        "L-066",
        r"W\leftarrow W-(\eta\,\partial_WL+\lambda W),\ b\leftarrow b-\eta\,\partial_bL"
        r" \text{ is SGD(weight\_decay=}\lambda/\eta\text{) on the weights: largest difference}",
    )
    says.equal(apart(result(lambda n: SGD(weight_decay_groups(n, decay / eta), lr=eta))), within=EXACT)
    says.fails(
        "SGD(weight_decay=λ), as one might read it", apart(result(lambda n: SGD(weight_decay_groups(n, decay), lr=eta)))
    )
    says = run.states(
        "L-066", r"\text{it is gradient descent on } L+\frac{\lambda}{2\eta}\|W\|^2: \text{ largest difference}"
    )
    says.equal(apart(result(lambda n: SGD(n.parameters(), lr=eta), penalty=decay / eta)), within=EXACT)
    says.fails(
        "the biases decay as well", apart(result(lambda n: SGD(n.parameters(), lr=eta, weight_decay=decay / eta)))
    )

"""The perceptron learns whatever a hyperplane can separate, and how soon."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from torchtheory.data.synthetic import PlantedSample, separable_gaussians, unit_vectors
from torchtheory.labs.engine import COLORS, Run, lab
from torchtheory.nets.biases import homogeneous
from torchtheory.neurons.perceptron import (
    Perceptron,
    margin,
    novikoff_bound,
    perceptron_fit,
    trajectory_bounds,
)
from torchtheory.neurons.separability import max_margin

SWEEPS = 100_000


@lab(
    "perceptron-novikoff",
    room="neurons",
    covers=["N-03", "N-04", "N-06", "N-07", "N-08"],
    title="The perceptron makes at most ⌊R²/γ²⌋ updates, and some samples need them all",
    errata=["novikoff-fewer-than-floor", "novikoff-fewer-than-ceiling"],
    full={"samples": 2000, "dimension": 20, "gap": 0.05, "trials": 50},
    least={"samples": 20, "dimension": 2, "trials": 1, "gap": 0.01},
    most={"gap": 0.5},
)
def perceptron_novikoff(
    run: Run,
    samples: int = 200,
    dimension: int = 10,
    gap: float = 0.1,
    trials: int = 8,
    separable: bool = True,
) -> None:
    r"""A perceptron is trained on Gaussian points that a hyperplane separates by at least `gap`.

    First the unit: its hyperplane in Hesse normal form, and the signed distance whose sign says
    whether a point is classified correctly. Then the algorithm: it ends without errors, its
    weights are whole multiples of the examples, and a bias is the same as a constant feature.
    Then the two lemmas at every step of `trials` runs, and Novikoff's bound with the best margin
    of each sample. Look at how the two lemmas squeeze the trajectory, and at how far from the
    bound typical samples stay while the unit vectors attain it.

    Theorem:
        Let the sample $S$ have points $x_1,\dots,x_n\in\mathbb R^d$ with labels $y_i\in\{-1,1\}$.
        *Bounded*: $\|x_i\|\le R$ for all $i$.
        *Separable*: some unit vector $w$ has $y_i\,w^\top x_i\ge\gamma>0$ for all $i$.
        Then the perceptron, started at $w_0=0$, makes at most $\lfloor R^2/\gamma^2\rfloor$ updates, in whatever
        order the points come, and then classifies all of them correctly. With the unit vectors
        for points it makes exactly as many.

    Symbols:
        $S$: the sample; $n$ points.
        $x$, $y$: a point, in $d$ dimensions, and its label, 1 or -1.
        $w$, $b$: weights and bias of a hyperplane $w^\top x+b=0$, or of a perceptron that fires above it.
        $\delta$: the signed distance of the hyperplane from the origin.
        $f[w,b]$: what the perceptron says, the sign of $w^\top x+b$.
        $\gamma[w,b](x,y)$: the signed distance of a point to the hyperplane, positive on the right side.
        $\gamma$: the margin, the least such distance in the sample.
        $R$: the largest norm of a point.
        $w_t$, $b_t$: weights and bias after $t$ updates; an update adds $y_ix_i$ where $y_iw_t^\top x_i\le0$.
        $m_i$: how often the point $x_i$ has made an update.
        $\tilde x$: a point with a 1 appended, so that $\tilde w$, $\tilde R$ and $\tilde\gamma$ include a bias.
        $c$: any positive number.

    Idea:
        Every update raises $w^\top w_t$ by at least $\gamma$, so $\|w_t\|\ge t\gamma$. It is made only where
        $y_iw_t^\top x_i\le0$, so it raises $\|w_t\|^2$ by at most $R^2$, and $\|w_t\|\le R\sqrt t$. A line stays below
        a square root only up to $t=R^2/\gamma^2$. The first step needs the margin, the second only that
        updates are made on mistakes: it holds for random labels as well.

    Try:
        gap=0.02: margins shrink and the bound grows, several times. So do the updates, far below it.
        dimension=2: in the plane a handful of updates does where the bound allows for hundreds.
        separable=false: without the second hypothesis nothing is promised, and the updates never end.

    Exercise:
        Find two points `x` in the plane, with labels `y`, on which the perceptron without bias makes
        exactly $R^2/\gamma^2=2$ updates.
        check: tt.neurons.perceptron_fit(x, y, max_sweeps=9, bias=False).updates == 2
        answer: x, y = torch.eye(2), torch.ones(2)

    Args:
        samples: of the separable data.
        dimension: of the inputs.
        separable: whether a hyperplane separates the sample; if not, one point has both labels.
    """
    hyperplane(run, dimension)
    signed_distance(run, dimension)
    planted = separable_gaussians(samples, dimension, margin=gap, generator=run.generator)
    if not separable:
        stuck = perceptron_fit(*with_contradiction(planted.x, planted.y), max_sweeps=200)
        run.assumes(
            stuck.converged,
            "one point has both labels, so that no hyperplane separates the sample: "
            f"after 200 sweeps and {stuck.updates:,} updates the rule is not done",
        )
    algorithm(run, planted)
    lemmas(run, samples, dimension, gap, trials)
    rows = mistake_bound(run, samples, dimension, gap, trials)
    tight_family(run)

    run.table(
        "updates",
        ["margin", "R", "updates", "⌊R²/γ²⌋", "updates with bias", "bound with bias"],
        rows,
        caption="Updates made and Novikoff's bound at the largest margin, sample by sample",
    )
    run.figure(
        "trajectory",
        lambda axes: plot_trajectory(axes, planted),
        caption="Along a run the norm stays below R√t while the projection on the best separating "
        "direction stays above tγ; the run must end before the two curves cross.",
        grid=(1, 2),
    )
    run.figure(
        "bound",
        lambda axis: plot_bound(axis, rows),
        caption="Updates against R²/γ²: samples with small margins are far below the bound, the "
        "unit vectors are on it.",
    )


def hyperplane(run: Run, dimension: int) -> None:
    """The boundary, its distance from the origin, and the sign of 0."""
    w, b = run.randn(dimension), 1.0 + run.rand(1)[0]
    unit = Perceptron(w, b)
    _, offset = unit.hesse_form()
    nearest = unit.nearest_to_origin()
    says = run.states("N-03", r"-\frac{b}{\|w\|^2}w \text{ lies on the hyperplane: } w^\top x+b=0")
    says.equal(w @ nearest + b, within=1e-12)
    says.fails("b taken for the threshold, which is -b", w @ -nearest + b)
    # as long in every dimension, so that some are shorter than half the distance
    along = 0.1 * math.sqrt(10 / dimension) * project_out(run.randn(10_000, dimension), w)
    says = run.states("N-03", r"\|x\|\ge|\delta|=|b|/\|w\| \text{ on the hyperplane}")
    says.at_least((nearest + along).norm(dim=1), abs(float(offset)), 1e-12)
    says.fails("halfway to the origin", (nearest / 2 + along).norm(dim=1))
    labels = torch.tensor([-1.0, 1.0], dtype=torch.float64)
    on_plane = unit_with_zero_score(w)
    says = run.states("N-03", r"\operatorname{sgn}(0)=0 \text{ is a mistake for either label: labels it agrees with}")
    says.equal((torch.sign(w @ on_plane) == labels).sum())
    says.fails("a two-valued sign, +1 at 0", (torch.where(w @ on_plane >= 0, 1.0, -1.0) == labels).sum())


def unit_with_zero_score(w: Tensor) -> Tensor:
    """A point at which `w·x` is 0 without rounding."""
    x = torch.zeros_like(w)
    x[0], x[1] = w[1], -w[0]
    return x


def project_out(x: Tensor, w: Tensor) -> Tensor:
    return x - torch.outer(x @ w, w) / (w @ w)


def signed_distance(run: Run, dimension: int, samples: int = 1000) -> None:
    """Sign, scale invariance, and meaning of the margin."""
    x, y = run.randn(samples, dimension), run.signs(samples)
    w, b = run.randn(dimension), run.randn(1)[0]
    correct = Perceptron(w, b)(x) == y
    zero_one = (y + 1) / 2
    raw = zero_one * (x @ w + b) / w.norm()
    says = run.states("N-04", r"f[w,b](x)=y \iff \gamma[w,b](x,y)>0:\ \text{exceptions}")
    says.equal(((margin(w, b, x, y).distances > 0) != correct).sum())
    says.fails("labels 0 and 1 in place of ±1", ((raw > 0) != ((x @ w + b > 0) == (zero_one == 1))).sum())
    scaled = [margin(c * w, c * b, x, y).distances for c in (1e-3, 0.7, 2.0, 1e4)]
    says = run.states("N-04", r"\gamma[cw,cb]=\gamma[w,b] \text{ for } c>0")
    says.equal(torch.cat(scaled), margin(w, b, x, y).distances.repeat(4), 1e-12)
    says.fails("c = -1", margin(-w, -b, x, y).distances.repeat(4))
    foot = x - torch.outer((x @ w + b) / (w @ w), w)
    elsewhere = foot + project_out(run.randn(samples, dimension), w)
    says = run.states("N-04", r"|\gamma[w,b](x,y)| \text{ is the distance from } x \text{ to the hyperplane}")
    says.equal((x - foot).norm(dim=1), margin(w, b, x, y).distances.abs(), 1e-12)
    says.fails("to another point of the hyperplane", (x - elsewhere).norm(dim=1))


def algorithm(run: Run, planted: PlantedSample) -> None:
    """Zero errors, integer combinations, and the bias as a constant feature."""
    x, y = planted.x, planted.y
    fit = perceptron_fit(x, y, max_sweeps=SWEEPS)
    contradiction = with_contradiction(x, y)
    stuck = perceptron_fit(*contradiction, max_sweeps=200)
    says = run.states("N-06", r"S \text{ separable: no training errors at the end}")
    says.equal(errors(fit.weight, fit.bias, x, y))
    says.fails("one point given twice, with both labels", errors(stuck.weight, stuck.bias, *contradiction))
    counts = torch.bincount(fit.mistakes, minlength=len(x)).double()
    shifted, shifted_steps = literal_perceptron(homogeneous(x), y, start=run.randn(x.shape[1] + 1))
    shifted_counts = torch.bincount(torch.tensor(shifted_steps), minlength=len(x)).double()
    says = run.states("N-06", r"w=\sum_i m_iy_ix_i,\ m_i \text{ the mistakes made on } x_i: \text{ largest difference}")
    says.equal((fit.weight - (counts * y) @ x).abs().max(), within=1e-9)
    says.fails("started from weights other than 0", (shifted[:-1] - (shifted_counts * y) @ x).abs().max())
    path = fit.trajectory(x, y, bias=True)
    longer = homogeneous(x)
    longer[:, -1] = 5.0
    says = run.states(
        "N-06",
        r"(w_t,b_t) \text{ on } x \text{ is } \tilde w_t \text{ on } (x,1) \text{ at every } t:"
        r" \text{ largest difference}",
    )
    says.equal(apart(path, literal_path(homogeneous(x), y)), within=1e-9)
    says.fails("the constant feature is 5", apart(path, literal_path(longer, y)))


def with_contradiction(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """The first point once more, with the other label."""
    return torch.cat([x, x[:1]]), torch.cat([y, -y[:1]])


def errors(w: Tensor, b: Tensor, x: Tensor, y: Tensor) -> Tensor:
    return (torch.sign(x @ w + b) != y).sum()


def apart(a: Tensor, b: Tensor) -> float:
    """Largest difference of two trajectories; steps that only one of them has count in full."""
    common = min(len(a), len(b))
    return float((a[:common] - b[:common]).abs().max()) + abs(len(a) - len(b))


def literal_path(x: Tensor, y: Tensor) -> Tensor:
    """Weights after each update of `literal_perceptron`."""
    _, steps = literal_perceptron(x, y)
    z = y.unsqueeze(1) * x
    return torch.cat([torch.zeros_like(z[:1]), z[steps].cumsum(0)])


def literal_perceptron(x: Tensor, y: Tensor, start: Tensor | None = None) -> tuple[Tensor, list[int]]:
    """Algorithm 1 without bias, line by line as printed."""
    w = torch.zeros_like(x[0]) if start is None else start
    steps = []
    mistake = True
    while mistake:
        mistake = False
        for i in range(len(x)):
            if torch.sign(w @ x[i]) != y[i]:
                w = w + y[i] * x[i]
                steps.append(i)
                mistake = True
    return w, steps


def lemmas(run: Run, samples: int, dimension: int, gap: float, trials: int) -> None:
    """Both lemmas at every update of several runs; the second on data nobody can separate."""
    found = []
    short_aligned, hebbian = [], []
    for _ in run.track(range(trials), "lemmas"):
        x, y, *_ = separable_gaussians(samples, dimension, margin=gap, generator=run.generator)
        steps = perceptron_fit(x, y, bias=False, max_sweeps=SWEEPS).trajectory(x, y)
        best = max_margin(x, y, bias=False).weight
        found.append(trajectory_bounds(steps, best, x, y))
        short_aligned.append(steps @ (best / 10))
        # every example teaches, mistaken or not
        always = torch.cat([torch.zeros_like(x[:1]), (y.unsqueeze(1) * x).cumsum(0)])
        hebbian.append(trajectory_bounds(always, best, x, y))
    says = run.states("N-07", r"\|w\|=1:\ w^\top w_t\ge t\gamma \text{ at every } t")
    says.at_least(torch.cat([f.alignment for f in found]), torch.cat([f.alignment_bound for f in found]), 1e-10)
    says.fails("‖w‖ = 1/10", torch.cat(short_aligned))
    says = run.states("N-07", r"\|w_t\|\le R\sqrt t \text{ at every } t")
    says.at_most(torch.cat([f.norm for f in found]), torch.cat([f.norm_bound for f in found]), 1e-10)
    says.fails(
        "updates on every example, mistaken or not",
        torch.cat([f.norm for f in hebbian]),
        promised=torch.cat([f.norm_bound for f in hebbian]),
    )
    run.states("N-07", r"w^\top w_{t+1}\ge w^\top w_t+\gamma").at_least(
        torch.cat([f.alignment_steps for f in found]),
        torch.cat([torch.full_like(f.alignment_steps, f.margin) for f in found]),
        1e-10,
    )
    says = run.states("N-07", r"\|w_{t+1}\|^2\le\|w_t\|^2+R^2")
    says.at_most(
        torch.cat([f.norm_steps for f in found]),
        torch.cat([torch.full_like(f.norm_steps, f.radius**2) for f in found]),
        1e-10,
    )
    says.fails(
        "updates on every example, mistaken or not",
        torch.cat([f.norm_steps for f in hebbian]),
        promised=torch.cat([torch.full_like(f.norm_steps, f.radius**2) for f in hebbian]),
    )
    x, y = run.randn(samples, dimension), run.signs(samples)
    steps = perceptron_fit(x, y, bias=False, max_sweeps=50).trajectory(x, y)
    time = torch.arange(len(steps)).double()
    run.states("N-07", r"\|w_t\|\le R\sqrt t \text{ on random labels as well}").at_most(
        steps.norm(dim=1),
        x.norm(dim=1).max() * time.sqrt(),
        1e-10,
        where=f"{samples} random labels in {dimension} dimensions; only mistakes are needed",
    )


def mistake_bound(
    run: Run, samples: int, dimension: int, gap: float, trials: int
) -> list[tuple[float, float, int, int, int, int]]:
    """Novikoff's theorem on samples of several margins, without and with a bias."""
    rows = []
    for k in run.track(range(trials), "bounds"):
        spread = 10 ** (k / trials - 0.5)
        x, y, *_ = separable_gaussians(samples, dimension, margin=gap * spread, generator=run.generator)
        plain, biased = novikoff_bound(x, y, bias=False), novikoff_bound(x, y)
        made = [perceptron_fit(x, y, bias=b, max_sweeps=SWEEPS).updates for b in (False, True)]
        rows.append((plain.margin, plain.radius, made[0], plain.updates, made[1], biased.updates))
    stuck = perceptron_fit(*with_contradiction(x, y), bias=False, max_sweeps=rows[-1][3] + 2)
    worst = unit_vectors(dimension)
    # a regular simplex around 0: with the constant feature its corners are orthogonal
    corners = math.sqrt(dimension) * (torch.eye(dimension).double() - 1 / dimension)
    simplex = (corners, torch.ones(dimension).double())
    says = run.states("N-08", r"\text{updates}\le\lfloor R^2/\gamma^2\rfloor")
    says.at_most(
        [*(row[2] for row in rows), perceptron_fit(*worst, bias=False, max_sweeps=SWEEPS).updates],
        [*(row[3] for row in rows), novikoff_bound(*worst, bias=False).updates],
        where=f"{trials} random samples, and the unit vectors",
    )
    says.fails("not separable: one point given twice, with both labels", stuck.updates, promised=rows[-1][3])
    run.states("N-08", r"\text{with bias: updates}\le\lfloor\tilde R^2/\tilde\gamma^2\rfloor,\ \tilde x=(x,1)").at_most(
        [*(row[4] for row in rows), perceptron_fit(*simplex, max_sweeps=SWEEPS).updates],
        [*(row[5] for row in rows), novikoff_bound(*simplex).updates],
        where=f"{trials} random samples, and the corners of a regular simplex",
    )

    def cosines(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """The cosine after every update, and its bound."""
        best = max_margin(x, y, bias=False)
        steps = perceptron_fit(x, y, bias=False, max_sweeps=SWEEPS).trajectory(x, y)[1:]
        root = torch.arange(1, len(steps) + 1).double().sqrt()
        return (steps @ best.weight) / steps.norm(dim=1), root * best.margin / x.norm(dim=1).max()

    x, y, *_ = separable_gaussians(samples, dimension, margin=gap, generator=run.generator)
    found = cosines(x, y)
    extremal = cosines(*worst)
    says = run.states("N-08", r"\cos\angle(w,w_t)\ge\sqrt t\,\gamma/R")
    says.at_least(
        torch.cat([found[0], extremal[0]]),
        torch.cat([found[1], extremal[1]]),
        1e-10,
        where="a random sample, and the unit vectors",
    )
    says.fails("w does not separate the sample: its negative", -found[0], promised=found[1])
    return rows


def tight_family(run: Run) -> None:
    """The unit vectors attain the bound; with it both printed versions fall."""
    sizes = [1, 2, 3, 5, 10, 50]
    made, bounds = [], []
    for d in sizes:
        x, y = unit_vectors(d)
        made.append(perceptron_fit(x, y, bias=False, max_sweeps=9).updates)
        bounds.append(novikoff_bound(x, y, bias=False).updates)
    biased = [perceptron_fit(*unit_vectors(d), max_sweeps=9).updates for d in sizes]
    says = run.states("N-08", r"(e_1,+1),\dots,(e_d,+1):\ \text{updates}=\lfloor R^2/\gamma^2\rfloor=d")
    says.equal(made + bounds, sizes + sizes)
    says.fails("with a bias, which the proof excludes", biased, promised=sizes)
    run.refutes("novikoff-fewer-than-floor", r"\text{updates}<\lfloor R^2/\gamma^2\rfloor").below(
        made, bounds, where="the unit vectors of 1, 2, 3, 5, 10 and 50 dimensions attain the bound"
    )
    run.refutes("novikoff-fewer-than-ceiling", r"\text{updates}<\lceil R^2/\gamma^2\rceil").below(
        made, sizes, where="R²/γ² = d is a whole number there, and so its own ceiling"
    )
    x = torch.tensor([[1.0], [1.2]], dtype=torch.float64)
    y = torch.ones(2, dtype=torch.float64)
    run.states("N-08", r"\text{equality also where } R^2/\gamma^2=1.44 \text{ is not whole}").equal(
        perceptron_fit(x, y, bias=False, max_sweeps=9).updates, novikoff_bound(x, y, bias=False).updates
    )


def plot_trajectory(axes: Any, planted: PlantedSample) -> None:
    x, y = planted.x, planted.y
    best = max_margin(x, y, bias=False)
    steps = perceptron_fit(x, y, bias=False, max_sweeps=SWEEPS).trajectory(x, y)
    sides = trajectory_bounds(steps, best.weight, x, y)
    last = novikoff_bound(x, y, bias=False).updates
    t = torch.arange(len(steps))
    left, right = axes[0]
    left.plot(t, sides.norm_bound, "--", color=COLORS[1], label=r"$R\sqrt{t}$")
    left.plot(t, sides.norm, color=COLORS[1], label=r"$\|w_t\|$")
    left.plot(t, sides.alignment, color=COLORS[0], label=r"$w^\top w_t$")
    left.plot(t, sides.alignment_bound, "--", color=COLORS[0], label=r"$t\gamma$")
    left.set(xlabel="updates t", title=f"this run: {len(steps) - 1} updates")
    left.legend()
    far = torch.linspace(0, 1.15 * last, 400)
    right.plot(far, sides.radius * far.sqrt(), "--", color=COLORS[1], label=r"$R\sqrt{t}$")
    right.plot(far, far * sides.margin, "--", color=COLORS[0], label=r"$t\gamma$")
    right.plot(t, sides.norm, color=COLORS[1])
    right.plot(t, sides.alignment, color=COLORS[0])
    right.annotate(
        "this run ends here",
        (float(t[-1]), float(sides.norm[-1])),
        xytext=(0.3, 0.12),
        textcoords="axes fraction",
        arrowprops={"arrowstyle": "->", "color": "0.3"},
        va="center",
    )
    right.axvline(last, color="0.4", linewidth=0.8)
    right.annotate(
        rf"$R^2/\gamma^2 \approx {last}$",
        (last, 0),
        xytext=(-6, 8),
        textcoords="offset points",
        ha="right",
    )
    right.set(xlabel="updates t", title="the room the lemmas leave")
    right.legend()


def plot_bound(axis: Any, rows: list[tuple[float, float, int, int, int, int]]) -> None:
    ratio = [(radius / gamma) ** 2 for gamma, radius, *_ in rows]
    axis.loglog(ratio, [row[2] for row in rows], "o", label="Gaussian samples")
    sizes = [2, 5, 10, 50, 200]
    axis.loglog(sizes, sizes, "s", color=COLORS[1], label="unit vectors")
    line = [1, max(ratio) * 1.5]
    axis.loglog(line, line, color="0.4", linewidth=1, label="Novikoff's bound")
    axis.set(xlabel=r"$R^2/\gamma^2$", ylabel="updates")
    axis.minorticks_off()
    axis.legend(loc="upper left")

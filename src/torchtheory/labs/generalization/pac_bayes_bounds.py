"""PAC-Bayes bounds on finite hypothesis sets, where every expectation is a sum."""

from __future__ import annotations

import math
from typing import Any

import torch
from scipy import optimize, stats
from torch import Tensor

from torchtheory.generalization.pac_bayes.bernoulli_kl import (
    binary_kl,
    lower_kl_inverse,
    upper_kl_inverse,
)
from torchtheory.generalization.pac_bayes.bounds import (
    KL,
    SQUARE,
    TWICE_SQUARE,
    catoni_bound,
    deviation_bound,
    log_moment,
    maurer_bound,
    mcallester_bound,
    seeger_bound,
)
from torchtheory.generalization.pac_bayes.divergences import (
    discrete_kl,
    dominates,
    donsker_varadhan,
    tilted,
)
from torchtheory.generalization.pac_bayes.gibbs_risk import gibbs_risk, mistakes
from torchtheory.generalization.pac_bayes.stochastic_network import StochasticNetwork
from torchtheory.labs.engine import COLORS, Interval, Run, clopper_pearson, lab
from torchtheory.models.samples import Samples
from torchtheory.nets.feedforward import dense


@lab(
    "pac-bayes-bounds",
    room="generalization",
    covers=["M-57", "M-58", "M-59", "M-60", "M-61", "M-62"],
    title="From a change of measure to a bound on the risk, with exact constants",
    errata=["divergence-called-a-metric"],
    full={"laws": 2000, "trials": 200_000},
    least={"laws": 10, "trials": 20_000},
)
def pac_bayes_bounds(run: Run, laws: int = 200, trials: int = 20_000) -> None:
    r"""A prior is fixed, a posterior is chosen from the data, and the risk of drawing from it is
    bounded by its empirical risk and its divergence from the prior.

    Every step of the proof is checked where it can be computed: the divergence, the change of
    measure and when it is sharp, the binomial law of the errors, the exact constant J, Markov's
    inequality. Then the bounds themselves are compared: the one the lectures print, the one their
    proof gives, Maurer's, the inverted kl, and Catoni's, whose best temperature is the inverted kl
    again. Look at how much the same information is worth in each form when errors are few.

    Theorem:
        Let $P$ be a law on functions $f$, and let $S$ be a sample of $N$ examples.
        *Independent*: the examples are drawn independently, from one law.
        *Prior*: $P$ is chosen before the sample is seen.
        Then with probability at least $1-\varepsilon$ over the sample, for all laws $Q$ at once,
        $N\,\mathrm{kl}(\mathbb E_QR_S\,\|\,\mathbb E_QR)\le\mathrm{KL}(Q\|P)+\ln(J(N)/\varepsilon)$,
        where $\sqrt N\le J(N)\le2\sqrt N$ for $N\ge8$.

    Symbols:
        $P$, $Q$: laws on functions, before and after the sample was seen; any laws in what is said of KL.
        $f$: a function that is drawn from one of them; $x$ and $y$ are an example and its label.
        $S$: the sample, with $N$ examples.
        $R$, $R_S$: risk of a function, and its share of errors in the sample.
        $\mathrm{kl}(q\|m)$: divergence of coins that show heads with probabilities $q$ and $m$.
        $\mathrm{kl}^{-1}_{\pm}(q\mid c)$: the largest and the least $m$ whose divergence from $q$ is at most $c$.
        $\varphi$: any function of $f$.
        $\Delta$: how far apart two risks are: kl, or a square.
        $J_\Delta(N)$: the largest mean of $e^{N\Delta}$ over samples, of one function with risk $m$.
        $X$: that exponential averaged over $P$, the variable that Markov's inequality is used on.
        $\varepsilon$, $\delta$: probability with which a bound may fail.
        $\hat r$: the share of errors a bound starts from.
        $\hat R$: share of errors in $M$ draws of $Q$ whose mean is $r$.
        $C$: the free constant of Catoni's bound.

    Idea:
        For one fixed function the sample risk is binomial, so $e^{N\mathrm{kl}}$ has the mean $J(N)$ at most, and so
        has its average over $P$. By Markov's inequality that average exceeds $J(N)/\varepsilon$ with
        probability $\varepsilon$ at most. The change of measure
        $\mathbb E_Q\varphi\le\mathrm{KL}(Q\|P)+\ln\mathbb E_Pe^\varphi$ carries this from $P$ to every $Q$ at
        once, for the price of the divergence. Jensen's inequality moves the mean inside of kl.

    Try:
        laws=2000: the change of measure is met by ten times as many laws; none comes below it.
        trials=100000: five times as many samples; the intervals of mean and variance halve.

    Exercise:
        Let `p` be uniform on two points and `phi` be (0, log 3). Find the law `q` for which the change of
        measure is an equality.
        check: abs(float(q @ phi - (q * (q / p).log()).sum() - (p @ phi.exp()).log())) < 1e-6
        answer: p, phi = torch.tensor([0.5, 0.5]), torch.tensor([1.0, 3.0]).log()
            q = torch.tensor([0.25, 0.75])

    Args:
        laws: random pairs of laws whose divergence is taken.
        trials: samples in which the bounds may fail.
    """
    divergence(run, laws)
    inverses(run)
    change_of_measure(run, laws)
    constants(run)
    binomial_law(run, trials)
    gibbs(run, trials)
    compare(run)
    temperatures(run)
    run.figure(
        "bounds",
        plot,
        caption="Left, the bounds at N = 55 000 and KL = 5000 against the empirical risk, and the "
        "truth that a risk is at most 1 (gray). Right, the constant J for three deviations: 2√N is "
        "what the text-book form puts in place of the lowest-order one.",
        grid=(1, 2),
    )


def random_laws(run: Run, count: int, points: int) -> Tensor:
    weights = -torch.log(1 - run.rand(count, points))
    return weights / weights.sum(1, keepdim=True)


def divergence(run: Run, laws: int) -> None:
    """KL: values, sign, zero, domination; and that it is no metric."""
    says = run.states("M-58", r"\mathrm{kl}(0.1\|0.5)=0.3681,\ \mathrm{kl}(0.5\|0.1)=0.5108")
    rare, fair = torch.tensor([0.1, 0.9], dtype=torch.float64), torch.tensor([0.5, 0.5], dtype=torch.float64)
    says.equal(
        [binary_kl(0.1, 0.5), binary_kl(0.5, 0.1), float(discrete_kl(rare, fair)), float(discrete_kl(fair, rare))],
        [0.3681, 0.5108] * 2,
        5e-5,
        where="as coins, and as laws on two points",
    )
    says.fails("the two arguments exchanged", [binary_kl(0.5, 0.1), binary_kl(0.1, 0.5)], promised=[0.3681, 0.5108])
    q, p = random_laws(run, laws, 6), random_laws(run, laws, 6)
    says = run.states("M-58", r"\mathrm{KL}(Q\|P)>0\text{ for }Q\ne P")
    says.above(discrete_kl(q, p), 0.0)
    says.fails("Q = P", discrete_kl(q, q))
    says = run.states("M-58", r"\mathrm{KL}(Q\|Q)=0")
    says.equal(discrete_kl(q, q), within=1e-14)
    says.fails("two different laws", discrete_kl(q, p))
    outside = torch.tensor([0.5, 0.5, 0.0], dtype=torch.float64)
    inside = torch.tensor([1.0, 0.0, 0.0], dtype=torch.float64)
    says = run.states("M-57, M-58", r"\mathrm{KL}(Q\|P)<\infty\iff Q\ll P\text{ on a finite set: here both are}")
    says.equal(float(torch.isfinite(discrete_kl(inside, outside))), float(dominates(outside, inside)))
    says.fails(
        "Q has mass where P has none: the divergence is infinite",
        float(torch.isfinite(discrete_kl(outside, inside))),
        promised=1.0,
    )
    a, b, c = 0.1, 0.3, 0.6
    run.refutes("divergence-called-a-metric", r"\mathrm{KL}(P\|R)\le\mathrm{KL}(P\|Q)+\mathrm{KL}(Q\|R)").at_most(
        binary_kl(a, c), binary_kl(a, b) + binary_kl(b, c), where="coins with probabilities 0.1, 0.3, 0.6"
    )


def inverses(run: Run) -> None:
    """The kl inverted: exact where it can be seen, and tighter than Pinsker."""
    q = torch.tensor([0.0, 1e-6, 0.01, 0.1, 0.5, 0.9, 0.999]).double().repeat_interleave(6)
    c = torch.tensor([1e-6, 1e-4, 0.01, 0.1, 1.0, 10.0]).double().repeat(7)
    up, low = upper_kl_inverse(q, c), lower_kl_inverse(q, c)
    back = binary_kl(q, up)
    inner = up < 1 - 1e-9
    pinsker = (q + (c / 2).sqrt()).clamp(max=1 - 1e-12)
    says = run.states("M-58, M-62", r"\mathrm{kl}(q\,\|\,\mathrm{kl}^{-1}_{+}(q\mid c))=c")
    says.equal(back[inner], c[inner], 1e-9)
    says.fails("Pinsker's q + √(c/2) instead", binary_kl(q, pinsker)[inner])
    says = run.states(
        "M-58, M-62", r"q-\sqrt{c/2}\le\mathrm{kl}^{-1}_-(q\mid c)\le q\le\mathrm{kl}^{-1}_+(q\mid c)\le q+\sqrt{c/2}"
    )
    says.at_least(
        torch.stack([low - q + (c / 2).sqrt(), q - low, up - q, q + (c / 2).sqrt() - up]).flatten(), 0.0, 1e-12
    )
    even = (q == 0.5) & (c <= 0.1)  # where Pinsker's inequality is sharp
    says.fails("the information of two samples where one is paid for", (pinsker - upper_kl_inverse(q, 2 * c))[even])


def change_of_measure(run: Run, laws: int) -> None:
    """Donsker-Varadhan, and when it is an equality."""
    q, p = random_laws(run, laws, 8), random_laws(run, laws, 8)
    values = 3 * run.randn(laws, 8)
    left, right = donsker_varadhan(q, p, values)
    best = tilted(p, values)
    at_best, promised = donsker_varadhan(best, p, values)
    says = run.states("M-59", r"\mathbb E_Q\varphi\le\mathrm{KL}(Q\|P)+\ln\mathbb E_Pe^{\varphi}")
    says.at_most(left, right, 1e-12, where=f"{laws} random laws on 8 points")
    says.fails("Q changed for free, without the divergence", at_best, promised=promised - discrete_kl(best, p))
    says = run.states("M-59", r"\text{equality for }Q\propto Pe^{\varphi}")
    says.equal(at_best, promised, 1e-12)
    says.fails("any other Q", left, promised=right)


def constants(run: Run) -> None:
    """J for three deviations."""
    golden = {
        (KL, 5): 3.5104,
        (KL, 8): 4.2450,
        (KL, 20): 6.2936,
        (KL, 50): 9.5431,
        (TWICE_SQUARE, 20): 2.9948,
        (SQUARE, 20): 1.3985,
        (SQUARE, 50): 1.4075,
    }
    exact = [math.exp(log_moment(kind, n)) for kind, n in golden]
    says = run.states("M-60", r"J_\Delta(N)\text{ for }\Delta=\mathrm{kl},\ 2(\cdot)^2,\ (\cdot)^2")
    says.equal(exact, list(golden.values()), 5e-5, where="reference values computed independently")
    says.fails("2√N for all of them", [2 * math.sqrt(n) for _, n in golden])
    sizes = [8, 20, 50, 200, 1000, 55_000]
    moments = [math.exp(log_moment(KL, n)) for n in sizes]
    says = run.states("M-60", r"\sqrt N\le J_{\mathrm{kl}}(N)\le2\sqrt N,\ N\ge8")
    says.at_most(moments + [-m for m in moments], [2 * math.sqrt(n) for n in sizes] + [-math.sqrt(n) for n in sizes])
    says.fails(
        "twice the kl in the exponent",
        [brute_moment(n, 0.3, 2.0) for n in sizes[:3]],
        promised=[2 * math.sqrt(n) for n in sizes[:3]],
    )
    middles = [0.05, 0.3, 0.5, 0.81]
    says = run.states("M-60", r"\sum_k\mathrm{Bin}(k;N,m)e^{N\mathrm{kl}(k/N\|m)}\text{ is the same for every }m")
    says.equal([brute_moment(50, m) for m in middles], math.exp(log_moment(KL, 50)), 1e-9)
    says.fails("half the kl", [brute_moment(50, m, 0.5) for m in middles])


def brute_moment(n: int, m: float, factor: float = 1.0) -> float:
    """The sum over k, with scipy's binomial law."""
    k = torch.arange(n + 1).double()
    law = torch.as_tensor(stats.binom.pmf(k.numpy(), n, m))
    return float((law * (factor * n * binary_kl(k / n, m)).exp()).sum())


def binomial_law(run: Run, trials: int) -> None:
    """Errors on independent samples are binomial; Markov's step of the proof."""
    n, risk = 30, 0.2
    counts = (run.rand(trials, n) < risk).sum(1)
    twins = 2 * (run.rand(trials, n // 2) < risk).sum(1)
    middle = round(n * risk)
    says = run.states("M-61", r"N R_S(f)\sim\mathrm{Bin}(N,R(f))\text{: the probability of its most likely value}")
    says.mean(
        (counts == middle).double(),
        float(stats.binom.pmf(middle, n, risk)),
        against=(float(stats.poisson.pmf(middle, n * risk)),),
        confidence=0.999,
        where=f"{trials} samples of {n} with R = {risk}; not Poisson's law",
    )
    says.fails("every sample drawn twice: not independent", (twins == middle).double())
    says = run.states("M-61", r"\mathbb E(N R_S-NR)^2=NR(1-R)")
    spread = n * risk * (1 - risk)
    says.mean(
        (counts - n * risk).double().square(),
        spread,
        against=(n * risk, 2 * spread),
        confidence=0.999,
        where="the variance; not that of Poisson's law, nor of pairs",
    )
    says.fails("every sample drawn twice: not independent", (twins - n * risk).double().square())
    # two samples: the largest value of X, where both are wrong, is not far above its mean
    most = math.exp(2 * binary_kl(1.0, risk))
    epsilon = math.exp(log_moment(KL, 2)) / most

    def hits(errors: Tensor) -> Interval:
        share = errors.double().mean(1)
        moment = (2 * binary_kl(share, torch.full_like(share, risk))).exp()
        return clopper_pearson(int((moment >= (1 - 1e-9) * most).sum()), trials, 0.999)

    pairs = run.rand(trials, 2) < risk
    says = run.states("M-61", r"\Pr(X\ge\mathbb EX/\varepsilon)\le\varepsilon,\ X=\mathbb E_Pe^{N\Delta(R,R_S)}")
    says.at_most(hits(pairs), epsilon, where=f"N = 2, R = {risk}: J/ε is the largest value that X has")
    says.fails("one sample counted twice: the mean is not J", hits(pairs[:, :1].expand(-1, 2)))


def gibbs(run: Run, trials: int) -> None:
    """A classifier drawn anew for every prediction has the mean risk, and spreads as little as it can."""
    n, repeats = 40, max(400, trials // 50)
    # one weight w ~ N(1/2, 1) and inputs of one sign: a draw errs everywhere or nowhere
    risk = float(torch.special.ndtr(torch.tensor(-0.5).double()))
    samples = Samples((0.5 + run.rand(n, 1)), torch.ones(n, 1, dtype=torch.float64))
    network = StochasticNetwork(dense(torch.tensor([[0.5]]).double()), spread=1.0, generator=run.generator)

    def estimates(block: int) -> tuple[Tensor, int]:
        found = [gibbs_risk(network, samples, passes=1, block=block) for _ in range(repeats)]
        return torch.tensor([r.estimate for r in found]).double(), found[0].draws

    anew, draws = estimates(1)
    kept = mistakes(samples.x @ network.draw()["weight"].detach().T, samples.y)
    says = run.states("M-57", r"\mathbb E\,1[f(x)\ne y]=\mathbb E_QR_S(f)\text{ when }f\sim Q\text{ is drawn anew}")
    says.mean(
        anew,
        risk,
        against=(0.0, 0.5),  # of the mean weights, which never err; of the prior N(0, 1)
        confidence=0.999,
        where=f"{repeats} passes over {n} samples; $E_Q$ $R_S$ is a normal probability",
    )
    says.fails("one draw of Q for all of them", kept.double())

    def deviation(count: int) -> float:
        """The mean distance of the share of errors among so many independent draws from its mean."""
        errors = torch.arange(count + 1).double()
        law = torch.as_tensor(stats.binom.pmf(errors.numpy(), count, risk))
        return float(law @ (errors / count - risk).abs())

    together, _ = estimates(n)
    says = run.states(
        "M-57",
        r"M\text{ draws: }\mathbb E\bigl|\hat R-\mathbb E_QR_S\bigr|=\mathbb E\bigl|\tfrac1M\mathrm{Bin}(M,r)-r\bigr|",
    )
    for block in (1, 8):
        found, draws = (anew, draws) if block == 1 else estimates(block)
        says.mean(
            (found - risk).abs(),
            deviation(draws),
            against=(deviation(1), deviation(draws // 2), deviation(2 * draws)),
            confidence=0.999,
            where=f"blocks of {block} samples: {draws} draws",
        )
        says.fails("one draw of Q for all samples", (together - risk).abs())


def compare(run: Run) -> None:
    """The forms of the bound at the same information."""
    cases = [(e, kl, n, 0.035) for e in (0.0, 0.03, 0.2, 0.5) for kl in (0.0, 5.0, 500.0) for n in (50, 1000, 55_000)]
    printed = torch.tensor([mcallester_bound(*c) for c in cases], dtype=torch.float64)
    square = torch.tensor([_square(*c) for c in cases], dtype=torch.float64)
    maurer = torch.tensor([maurer_bound(*c) for c in cases], dtype=torch.float64)
    seeger = torch.tensor([seeger_bound(*c) for c in cases], dtype=torch.float64)
    exact = torch.tensor([deviation_bound(KL, *c) for c in cases], dtype=torch.float64)
    says = run.states(
        "M-62",
        r"\text{exact }J\le\text{Seeger}\le\text{Maurer}\le\text{printed},\quad"
        r"\Delta=(\cdot)^2\text{ with exact }J\le\text{printed}",
    )
    says.at_most(torch.cat([exact, seeger, maurer, square]), torch.cat([seeger, maurer, printed, printed]), 1e-12)
    says.fails("the square's bound against Maurer's", square, promised=maurer)
    inner = [i for i, b in enumerate(exact) if b < 0.99]
    spent = [n * binary_kl(e, float(exact[i])) for i in inner for e, _, n, _ in [cases[i]]]
    more = [n * binary_kl(e, float(seeger[i])) for i in inner for e, _, n, _ in [cases[i]]]
    says = run.states(
        ["M-60", "M-62"],
        r"N\,\mathrm{kl}(\hat r\,\|\,\text{bound})=\mathrm{KL}+\ln\tfrac{J(N)}\varepsilon \text{ with exact } J",
    )
    says.equal(
        spent,
        [kl + log_moment(KL, n) - math.log(delta) for i in inner for _, kl, n, delta in [cases[i]]],
        1e-6,
        where=f"the {len(inner)} cases with a bound below 0.99",
    )
    says.fails("2√N for J", more)
    says = run.states("M-62", r"\text{the printed excess is twice Maurer's: }\frac2N\text{ for }\frac1{2N}")
    says.equal(
        torch.tensor([p - c[0] for p, c in zip(printed, cases, strict=True)]),
        torch.tensor([2 * (m - c[0]) for m, c in zip(maurer, cases, strict=True)]),
        1e-6,
    )
    says.fails(
        "the square's excess, which the proof gives",
        torch.tensor([s - c[0] for s, c in zip(square, cases, strict=True)]),
    )
    n = 100_000
    crossing = optimize.brentq(lambda kl: _square(0.0, kl, n, 0.999) - maurer_bound(0.0, kl, n, 0.999), 0.0, 50.0)
    says = run.states("M-62", r"(\cdot)^2\text{ beats Maurer while }\mathrm{KL}+\ln\tfrac1\varepsilon<\tfrac12\ln N")
    says.equal(crossing - math.log(0.999), 0.5 * math.log(n), 0.01)
    says.fails("at another N", 0.5 * math.log(1000))
    run.table(
        "bounds",
        ["empirical risk", "KL", "N", "printed", "square", "Maurer", "Seeger", "exact J"],
        [
            (c[0], c[1], c[2], *(float(v[i]) for v in (printed, square, maurer, seeger, exact)))
            for i, c in enumerate(cases)
            if c[1] == 500.0 and c[2] == 55_000
        ],
        caption="The same information in five forms, at confidence 0.965.",
    )


def _square(empirical: float, kl: float, n: int, delta: float) -> float:
    """Theorem 69 with the square, not cut off at 1."""
    return empirical + math.sqrt((kl + log_moment(SQUARE, n) - math.log(delta)) / n)


def temperatures(run: Run) -> None:
    """Catoni's bound at its best temperature is the inverted kl without ln J."""
    cases = [(0.01, 5.0, 200), (0.1, 50.0, 1000), (0.3, 2.0, 100), (0.028, 5144.0, 55_000)]
    best, fixed, promised = [], [], []
    for e, kl, n in cases:
        found = optimize.minimize_scalar(
            lambda c, e=e, kl=kl, n=n: catoni_bound(e, kl, n, 0.05, temperature=math.exp(c)),
            bounds=(-6.0, 4.0),
            method="bounded",
            options={"xatol": 1e-10},
        )
        best.append(float(found.fun))
        fixed.append(catoni_bound(e, kl, n, 0.05, temperature=0.3))
        promised.append(upper_kl_inverse(e, (kl - math.log(0.05)) / n))
    says = run.states(
        "M-62",
        r"\inf_{C>0}\text{Catoni}(C)=\mathrm{kl}^{-1}\bigl(\hat r\mid\tfrac1N(\mathrm{KL}+\ln\tfrac1\delta)\bigr)",
    )
    says.equal(best, promised, 1e-8)
    says.fails("C = 0.3 for all", fixed)


def plot(axes: Any) -> None:
    risks = [i / 200 for i in range(1, 161)]
    n, kl, delta = 55_000, 5000.0, 0.035
    kinds = {
        "as printed": mcallester_bound,
        "(·)², exact J": _square,
        "Maurer": maurer_bound,
        "inverted kl": seeger_bound,
    }
    left, right = axes[0]
    for color, (name, bound) in zip(COLORS, kinds.items(), strict=False):
        left.plot(risks, [bound(r, kl, n, delta) for r in risks], color=color, label=name)
    left.plot(risks, risks, color="0.5", ls=":", label="the empirical risk")
    left.axhline(1, color="0.7", lw=0.8)
    left.set(xlabel="empirical risk", ylabel="bound on the risk", ylim=(0, 1.25))
    left.legend(loc="lower right")
    sizes = [8, 12, 20, 35, 60, 100, 200, 400, 800]
    for color, kind in zip(COLORS, (KL, TWICE_SQUARE, SQUARE), strict=False):
        values = [math.exp(log_moment(kind, s)) for s in sizes]
        right.loglog(sizes, values, "o-", ms=3, color=color, label=f"J, {kind.name}")
    right.loglog(sizes, [2 * math.sqrt(s) for s in sizes], color="0.5", ls=":", label="2√N")
    ticks = [1, 2, 5, 10, 20, 50]
    right.set_yticks(ticks, [str(t) for t in ticks])
    right.minorticks_off()
    right.set(xlabel="N", ylabel="J(N)")
    right.legend()

"""Learning without labels is prediction: one part of the data from another."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from torchtheory.data.real import digits
from torchtheory.generalization.learning.bayes import bayes_regression, regression_excess
from torchtheory.generalization.learning.finite_distributions import FiniteDistribution
from torchtheory.generalization.learning.tasks import (
    induced_distribution,
    self_supervised_task,
    split_fibers,
)
from torchtheory.labs.engine import COLORS, Run, hoeffding_radius, lab, mean_interval, quantile_interval
from torchtheory.training.losses.density_losses import l2_density_loss, surprisal
from torchtheory.training.losses.surrogates import quadratic_loss

Pair = tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]]


@lab(
    "tasks-as-prediction",
    room="generalization",
    covers=["A-05"],
    title="Learning without labels is prediction, and its target a conditional mean",
    full={"length": 8, "draws": 1_000_000},
    least={"length": 3, "draws": 1_000},
    most={"length": 10},
)
def tasks_as_prediction(run: Run, length: int = 6, draws: int = 50_000) -> None:
    """Words of bits with a known law become prediction tasks: features T1(z), labels T2(z).

    Where T1 is injective the label is a function of the features and nothing need be lost:
    undoing a scramble, or the parity of a word. Where T1 forgets, as when a bit is masked, noise
    is added or the next symbol is still to come, "T2 after the inverse of T1" is no function: the
    target is the conditional mean, and the Bayes risk is positive exactly when a fiber of T1
    carries two labels. Density estimation fits in as well: the least losses of predicting every
    next symbol add up to the entropy, the least surprisal of the whole word. Last, real images:
    the lower half of a digit predicted from the upper. Look at what the prediction gets right and
    where it is gray: a mean of several possible digits.

    Args:
        length: of the words of bits, 3 to 10.
        draws: by which the risk of each task is estimated.
    """
    words, mass = markov_words(run, length)
    pairs = transformations(length)
    laws = {name: induced(words, mass, length, pair) for name, pair in pairs.items()}
    targets(run, laws)
    sampled(run, words, mass, length, pairs, laws, draws)
    densities(run, words, mass)
    pictures = half_digits(run)
    rows = [(name, len(law.points), len(split_fibers(law)), bayes_regression(law).risk) for name, law in laws.items()]
    run.table(
        "tasks",
        ["task", "values of the features", "fibers with two labels", "Bayes risk"],
        rows,
        caption=f"Prediction tasks made of words of {length} bits, quadratic loss",
    )
    run.figure(
        "halves",
        lambda axes: plot_halves(axes, pictures),
        caption="Held-out digits: the features (upper half), the prediction of the lower half by "
        "a linear map, and the truth.",
        grid=(3, 10),
        size=(9.0, 3.0),
    )
    run.figure(
        "bayes-risk",
        lambda axis: plot_risks(axis, rows),
        caption="What cannot be predicted: the Bayes risk of each task. It is zero exactly where "
        "the features determine the label.",
        size=(6.4, 3.0),
    )


def markov_words(run: Run, length: int) -> tuple[Tensor, Tensor]:
    """All words of bits, and their probabilities under a chain that likes to repeat itself."""
    words = ((torch.arange(1 << length)[:, None] >> torch.arange(length)) & 1).double()
    stay = 0.6 + 0.3 * run.rand(length - 1)
    repeats = (words.diff(dim=1) == 0).double()
    step = repeats * stay + (1 - repeats) * (1 - stay)
    first = 0.6 - 0.2 * words[:, 0]
    return words, first * step.prod(1)


def code(z: Tensor) -> Tensor:
    """A word as a number."""
    return z @ (2.0 ** torch.arange(z.shape[1])).to(z)


def transformations(length: int) -> dict[str, Pair]:
    """T1 and T2 by the name of the task; z is the word, followed by a word of noise."""
    middle = length // 2
    others = [i for i in range(length) if i != middle]

    def scramble(z: Tensor) -> Tensor:
        """Running parities: different words have different ones."""
        return z[:, :length].cumsum(1) % 2

    return {
        "unscramble": (scramble, lambda z: code(z[:, :length]) / 2**length),
        "parity": (lambda z: z[:, :length], lambda z: z[:, :length].sum(1) % 2),
        "parity from running parities": (scramble, lambda z: z[:, :length].sum(1) % 2),
        "a bit from all before and itself": (
            lambda z: z[:, : middle + 1],
            lambda z: z[:, middle],
        ),
        "masked bit": (lambda z: z[:, others], lambda z: z[:, middle]),
        "next bit": (lambda z: z[:, :middle], lambda z: z[:, middle]),
        "denoise a bit": (
            lambda z: (z[:, :length] + z[:, length:]) % 2,
            lambda z: z[:, middle],
        ),
    }


def with_noise(words: Tensor, mass: Tensor, length: int) -> tuple[Tensor, Tensor]:
    """Words followed by noise: no bit flipped, or one of them, with probability 1/2."""
    flips = torch.cat([torch.zeros(1, length), torch.eye(length)]).double()
    chance = torch.full((length + 1,), 0.5 / length, dtype=torch.float64)
    chance[0] = 0.5
    both = torch.cat([words.repeat_interleave(length + 1, dim=0), flips.repeat(len(words), 1)], dim=1)
    return both, mass.repeat_interleave(length + 1) * chance.repeat(len(words))


def induced(words: Tensor, mass: Tensor, length: int, pair: Pair) -> FiniteDistribution:
    return induced_distribution(*with_noise(words, mass, length), *pair)


def targets(run: Run, laws: dict[str, FiniteDistribution]) -> None:
    """Zero Bayes risk for injective T1; in general the conditional mean is the target."""
    injective = ["unscramble", "parity", "parity from running parities"]
    says = run.states("A-05", r"T_1 \text{ injective on the words}:\ R^*=0")
    says.equal([bayes_regression(laws[name]).risk for name in injective], within=1e-15)
    says.fails("a masked bit: two words have the same features", bayes_regression(laws["masked bit"]).risk)
    predictable = [float(bayes_regression(law).risk < 1e-15) for law in laws.values()]
    constant = [float(len(split_fibers(law)) == 0) for law in laws.values()]
    says = run.states("A-05", r"R^*=0\iff T_2 \text{ is constant on the fibers of } T_1")
    says.equal(predictable, constant, where="seven tasks")
    whole = laws["a bit from all before and itself"]
    says.fails(
        "a criterion that is not necessary: T1 injective",
        float(bayes_regression(whole).risk < 1e-15),
        promised=float("a bit from all before and itself" in injective),
    )
    promised, measured, split, picked = [], [], [], []
    for law in laws.values():
        values = run.randn(20, len(law.points))
        measured.append(law.risk(values, quadratic_loss))
        promised.append(bayes_regression(law).risk + regression_excess(law, values))
        # "the" inverse image: the label of some word with these features
        some = torch.zeros(len(law.points)).double().scatter(0, law.where, law.labels)
        around = law.risk(some, quadratic_loss)
        if bayes_regression(law).risk > 1e-15:  # else there is one label to pick
            split.append(measured[-1])
            picked.append(around + (values - some).square() @ law.marginal)
    says = run.states("A-05", r"R(f)=R^*+\mathbb E\,\bigl(f(T_1(Z))-\mathbb E[T_2(Z)\mid T_1(Z)]\bigr)^2")
    says.equal(torch.cat(measured), torch.cat(promised), 1e-12)
    says.fails("T2 of one preimage in the place of the conditional mean", torch.cat(split), promised=torch.cat(picked))


def sampled(
    run: Run,
    words: Tensor,
    mass: Tensor,
    length: int,
    pairs: dict[str, Pair],
    laws: dict[str, FiniteDistribution],
    draws: int,
) -> None:
    """The same tasks from unlabeled draws, judged as prediction tasks."""
    both, chance = with_noise(words, mass, length)
    numbers = FiniteDistribution.of(torch.arange(len(both)).double(), chance * 0, chance)

    def source(n: int, generator: torch.Generator) -> Tensor:
        return both[numbers.draw(n, generator=generator)]

    measured, promised, wrong = [], [], []
    delta = 1e-4
    for name, (features, labels) in pairs.items():
        task = self_supervised_task(source, features, labels, quadratic_loss)
        law = laws[name]
        best = bayes_regression(law)
        keys = code(law.points.reshape(len(law.points), -1))
        order = keys.argsort()
        table = best.values[order]

        def optimum(x: Tensor, keys: Tensor = keys[order], table: Tensor = table) -> Tensor:
            return table[torch.searchsorted(keys, code(x))]

        found = task.risk_interval(optimum, draws, run.generator, delta=delta)
        measured.append(abs(found.estimate - best.risk))
        promised.append(hoeffding_radius(draws, delta))
        half = task.risk_interval(lambda x: x.new_full((len(x),), 0.5), draws, run.generator)
        wrong.append(abs(half.estimate - best.risk))
    # a loss of 0 or 1, for which Hoeffding's radius is nearest: a parity that is guessed
    task = self_supervised_task(source, *pairs["parity"], quadratic_loss)
    truth = float(laws["parity"].risk(torch.zeros(len(laws["parity"].points)).double(), quadratic_loss))
    guessed = [
        abs(task.risk_interval(lambda x: x.new_zeros(len(x)), 500, run.generator, delta=0.1).estimate - truth)
        for _ in range(200)
    ]
    says = run.states("A-05", r"|\hat R_S(f)-R(f)|\le\sqrt{\log(2/\delta)/(2n)}\text{ with probability } 1-\delta")
    says.at_most(
        [*measured, quantile_interval(guessed, 0.9, 0.999).low],
        [*promised, hoeffding_radius(500, 0.1)],
        where=f"f(x) = E[T2 | T1 = x] on {draws} unlabeled words for each of seven tasks, δ = {delta}; and f = 0 for "
        "the parity, lower end of the interval for the quantile of 200 gaps, δ = 0.1",
    )
    says.fails("the constant 1/2 judged as if it were the conditional mean", wrong, promised=promised)


def densities(run: Run, words: Tensor, mass: Tensor) -> None:
    """Next-symbol losses add up to the surprisal of the word; both density losses find p."""
    length = words.shape[1]
    entropy = mass @ surprisal(mass)
    next_symbol, blind = 0.0, 0.0
    for t in range(length):
        law = induced_distribution(words, mass, _past(t), _bit(t))
        chance = law.conditional_mean[law.where]
        said = torch.where(law.labels == 1, chance, 1 - chance)
        next_symbol += float(law.mass @ surprisal(said))
        rate = mass @ words[:, t]
        blind += float(mass @ surprisal(torch.where(words[:, t] == 1, rate, 1 - rate)))
    says = run.states("A-05", r"\sum_t\min_f\mathbb E\,[-\log f(Z_t\mid Z_{<t})]=\min_f\mathbb E\,[-\log f(Z)]=H(Z)")
    says.equal(next_symbol, entropy, 1e-12)
    says.fails("every symbol predicted without its past", blind)
    other = -torch.log(1 - run.rand(40, len(mass)))
    other = other / other.sum(1, keepdim=True)
    gap = l2_density_loss(other, other.square().sum(1, keepdim=True)) @ mass
    least = l2_density_loss(mass, mass.square().sum()) @ mass
    scaled = (surprisal(other) @ mass) - entropy
    says = run.states(
        "A-05",
        r"\text{density estimation: } \mathbb E\,\mathcal L(f,Z)\ge\mathbb E\,\mathcal L(p,Z) "
        r"\text{ for } \mathcal L=-2f(z)+\|f\|^2 \text{ and } -\log f(z)",
    )
    says.at_least(torch.cat([gap - least, scaled]), 0.0, where="40 random densities on the words")
    says.fails("f need not have mass 1: surprisal of 2p", surprisal(2 * mass) @ mass - entropy)


def _past(t: int) -> Callable[[Tensor], Tensor]:
    return lambda z: code(z[:, :t])


def _bit(t: int) -> Callable[[Tensor], Tensor]:
    return lambda z: z[:, t]


def half_digits(run: Run) -> tuple[Tensor, Tensor]:
    """The lower half of an image from its upper half, by ridge regression."""
    pixels, _ = digits(torch.float64)
    order = torch.randperm(len(pixels), generator=run.generator)
    train, test = pixels[order[:1200]], pixels[order[1200:]]
    ones = torch.ones(len(pixels), 1).double()
    upper = [torch.cat([z[:, :32], ones[: len(z)]], 1) for z in (train, test)]
    gram = upper[0].T @ upper[0] + torch.eye(33).double()

    def held_out(lower: Tensor) -> Tensor:
        """Squared errors of the map fitted to these labels, less those of the mean image."""
        fitted = upper[1] @ torch.linalg.solve(gram, upper[0].T @ lower)
        constant = (test[:, 32:] - train[:, 32:].mean(0)).square().mean(1)
        error: Tensor = (test[:, 32:] - fitted).square().mean(1)
        return error - constant

    shuffled = train[torch.randperm(len(train), generator=run.generator), 32:]
    gain, lost = (mean_interval(held_out(y), 0.999) for y in (train[:, 32:], shuffled))
    says = run.states("A-05", r"\text{lower half of a digit from its upper: held-out risk} < \text{that of the mean}")
    says.below(gain.high, 0.0, where="upper end of a 99.9 % interval for the mean difference on 597 images")
    says.fails("labels T2 from other images than the features", lost.high)
    weights = torch.linalg.solve(gram, upper[0].T @ train[:, 32:])
    return test[:10], (upper[1] @ weights)[:10]


def plot_halves(axes: Any, pictures: tuple[Tensor, Tensor]) -> None:
    images, lower = pictures
    names = ("features", "prediction", "truth")
    for column in range(10):
        top = images[column, :32].reshape(4, 8)
        rows = (
            torch.cat([top, torch.full((4, 8), torch.nan).double()]),
            torch.cat([top, lower[column].reshape(4, 8)]),
            images[column].reshape(8, 8),
        )
        for row, picture in enumerate(rows):
            axis = axes[row, column]
            axis.imshow(picture, cmap="gray_r", vmin=0, vmax=1)
            axis.set(xticks=[], yticks=[])
            axis.grid(False)
            for side in axis.spines.values():
                side.set(visible=True, color="0.7")
            if column == 0:
                axis.set_ylabel(names[row])


def plot_risks(axis: Any, rows: list[tuple[str, int, int, float]]) -> None:
    names = [row[0] for row in rows][::-1]
    risks = [row[3] for row in rows][::-1]
    axis.barh(names, risks, color=COLORS[0])
    for at, risk in enumerate(risks):
        axis.annotate(
            f"{abs(risk):.3f}",
            (risk, at),
            xytext=(4, 0),
            textcoords="offset points",
            va="center",
            fontsize=8,
        )
    axis.set(xlabel="Bayes risk", xlim=(0, 1.15 * max(risks)))
    axis.grid(False, axis="y")

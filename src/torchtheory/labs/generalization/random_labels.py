"""Networks fit labels that mean nothing, so what ignores labels cannot explain generalization."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Literal

import torch
from torch import Tensor, nn

from torchtheory.core.random import rademacher
from torchtheory.data.image_sets import load_image_set
from torchtheory.data.real import digits
from torchtheory.generalization.complexity.norm_bounds import frobenius_bound, frobenius_norms
from torchtheory.generalization.complexity.rademacher import (
    empirical_uniform_deviation,
    linear_bounds,
)
from torchtheory.generalization.memorization.experiment import (
    MakeNetwork,
    Memorization,
    fit_and_test,
    memorization_test,
    seeded_network,
)
from torchtheory.generalization.memorization.fitting_capacity import (
    rademacher_from_fits,
    trained_class,
    vc_dimension_from_fits,
)
from torchtheory.generalization.paths.gap_decomposition import decompose_gap
from torchtheory.generalization.vc.bounds import growth_radius
from torchtheory.generalization.vc.growth import growth_halfspaces
from torchtheory.generalization.vc.networks import log2_network_growth_bound
from torchtheory.labs.engine import COLORS, Run, clopper_pearson, lab, mean_interval
from torchtheory.neurons.separability import separate
from torchtheory.training.loop.seeds import derived_generator
from torchtheory.training.many.networks import fit_many

Pair = tuple[Tensor, Tensor]
SHARES = (0.0, 0.25, 0.5, 0.75, 1.0)
IDS = ["M-49", "A-48", "B-07"]
DELTA = 0.01


@lab(
    "random-labels",
    room="generalization",
    covers=["M-49", "A-48", "B-07"],
    title="Networks fit random labels, and bounds that do not look at labels are vacuous",
    full={
        "images": "mnist",
        "samples": 1000,
        "tests": 5000,
        "width": 256,
        "epochs": 100,
        "draws": 20,
    },
    # the networks must be able to fit random labels, and be given the time
    least={"samples": 50, "tests": 150, "width": 64, "seeds": 8, "epochs": 60, "draws": 10},
)
def random_labels(
    run: Run,
    images: Literal["digits", "mnist", "fashion-mnist"] = "digits",
    samples: int = 100,
    tests: int = 600,
    width: int = 128,
    seeds: int = 12,
    epochs: int = 100,
    draws: int = 16,
) -> None:
    """One architecture, one way of training, data with ever less to learn.

    A dense network is trained on images whose labels are true, partly or wholly random, and on
    images that are shuffled or noise. It fits all of them without an error; random labels take it
    a few times longer, and then its test error is that of guessing. Random signs that are fitted
    give lower bounds of Rademacher complexity and VC dimension, so every bound built on the class
    alone is vacuous: for true labels too it is at least the gap on random ones. The exact
    decomposition of the gap of the squared loss tells them apart. Look at the curves of the loss,
    and at the test error by the share of random labels.

    Args:
        images: `digits`, or `mnist` from files.
        samples: that are trained on.
        tests: samples that the error is measured on.
        width: hidden units.
        seeds: trainings of each kind.
        epochs: of a training.
        draws: of random labels by which the complexity is estimated.
    """
    train, test = draw(run, images, samples, tests)
    inputs, batch = train[0].shape[1], min(60, samples // 2)

    def make_network() -> nn.Module:
        return nn.Sequential(nn.Linear(inputs, width), nn.ReLU(), nn.Linear(width, 10))

    settings: dict[str, Any] = {
        "epochs": epochs,
        "batch_size": batch,
        "learning_rate": 0.025 if images == "digits" else 0.002,
    }
    found = memorization_test(make_network, train, test, shares=SHARES, seeds=range(seeds), **settings)
    # four hidden units: too few for the random labels
    narrow = memorization_test(
        lambda: nn.Sequential(nn.Linear(inputs, 4), nn.ReLU(), nn.Linear(4, 10)),
        train, test, shares=[1.0], images=[], seeds=range(seeds), **settings,
    )  # fmt: skip
    # whether a test error is that of guessing takes more networks
    more = memorization_test(
        make_network, train, test, shares=[1.0], images=[], seeds=range(seeds, 3 * seeds), **settings
    )
    fits(run, found, narrow)
    times(run, found, narrow)
    chance(run, found, more)
    # with one output Adam still jumps at the end of training at a rate that suits ten
    slower = settings | {"learning_rate": min(0.01, settings["learning_rate"])}
    capacity(run, train, test, width, draws, slower)
    blind_bounds(run, train, test, width, seeds, epochs)
    columns, rows = found.table()
    run.table(
        "memorization",
        columns,
        rows,
        caption=f"{samples} images, width {width}, means over {seeds} seeds. Test labels are true. "
        "An infinite number of epochs: some network did not fit.",
    )
    run.figure(
        "random-labels",
        lambda axes: plot(axes, found),
        caption="Left, training loss on each kind of data (mean over the seeds). Middle, epochs "
        "until no training image is misclassified. Right, test error, with 95% Student intervals; "
        "the dotted line is guessing.",
        grid=(1, 3),
        size=(13.5, 3.6),
    )


def draw(run: Run, images: str, samples: int, tests: int) -> tuple[Pair, Pair]:
    """A training and a test set, flat, in [0, 1], from the set of this name."""
    if images == "digits":
        x, y = digits()
        run.assumes(samples + tests <= len(x), f"there are {len(x)} digits, not {samples + tests}")
        order = torch.randperm(len(x), generator=run.generator)
        first, second = order[:samples], order[samples : samples + tests]
        return (x[first], y[first]), (x[second], y[second])
    (x, y), (x_test, y_test) = load_image_set(images)
    enough = samples <= len(x) and tests <= len(x_test)
    run.assumes(enough, f"{images} has {len(x)} training and {len(x_test)} test images")
    first = torch.randperm(len(x), generator=run.generator)[:samples]
    second = torch.randperm(len(x_test), generator=run.generator)[:tests]
    flat = [(a[i].flatten(1).float() / 255) for a, i in ((x, first), (x_test, second))]
    return (flat[0], y[first]), (flat[1], y_test[second])


# ---------------------------------------------------------------------------- the ten classes


def fits(run: Run, found: Memorization, narrow: Memorization) -> None:
    """Training error 0 on every kind of data."""
    says = run.states(IDS, r"\hat R_S(f)=0\text{ on true, on random labels, and on noise for images}")
    says.at_most(
        found.column("train_error"),
        0.0,
        where="every share of random labels, every corruption of the images, every seed",
    )
    says.fails("few parameters: four hidden units, random labels", narrow.column("train_error"))


def times(run: Run, found: Memorization, narrow: Memorization) -> None:
    """Random labels take longer, and not much longer."""
    base = found.select(share=0.0).column("epochs_to_fit")
    ratio = found.select(share=1.0).column("epochs_to_fit") / base
    shuffled = found.select("shuffled pixels").column("epochs_to_fit") / base
    says = run.states(IDS, r"\text{epochs on random labels} > \text{epochs on true labels}")
    says.above(_low(ratio), 1.0, where="lower end of the 99.9% interval of the ratio over the seeds")
    says.fails(
        "labels that still mean something: pixels in one fixed order, which a dense network does not notice",
        _low(shuffled),
    )
    says = run.states(["A-48", "M-49"], r"\text{epochs on random labels} \le 10\cdot\text{epochs on true labels}")
    says.at_most(ratio, 10.0, where="a small factor; ten was set beforehand")
    says.fails("four hidden units, which never fit them", narrow.column("epochs_to_fit") / base)


def chance(run: Run, found: Memorization, more: Memorization) -> None:
    """Test errors: guessing at share 1, small at share 0, and in between."""
    says = run.states(IDS, r"\mathbb E\,R(f)=1-\tfrac1{10}\text{ on random labels}")
    guessing = torch.cat([found.select(share=1.0).column("test_error"), more.column("test_error")])
    half = float(found.select(share=0.5).column("test_error").mean())
    says.mean(
        guessing,
        0.9,
        against=(0.5, 0.8, half),  # of two classes; of five; with half of the labels true
        where=f"exact in the mean: the classes are exchangeable; {len(guessing)} networks",
    )
    says.fails("labels that mean something", found.select(share=0.0).column("test_error"))
    errors = [found.select(share=p).column("test_error") for p in SHARES[::2]]
    noise = found.select("Gaussian images").column("test_error")
    says = run.states(["B-07", "A-48"], r"\text{the test error grows from true to half random to random labels}")
    says.above(
        [_low(after - before) for before, after in pairwise(errors)],
        0.0,
        where="lower ends of 99.9% intervals of the differences over the seeds; the training error is 0 at every share",
    )
    says.fails("nothing left to lose: from random labels to noise for images", _low(noise - errors[-1]))


# --------------------------------------------------------------- capacity, from random signs


#: Two pixels that vary, for classifiers which cannot fit much.
PLANE = [20, 43]


def _separated(x: Tensor, signs: Tensor) -> int:
    """How many of the labelings half-spaces realize on these points, by linear programming."""
    return sum(separate(x.double(), row).separable for row in signs)


def capacity(
    run: Run,
    train: Pair,
    test: Pair,
    width: int,
    draws: int,
    settings: dict[str, Any],
) -> None:
    """Complexity and VC dimension from fitted signs, and what they do to uniform bounds."""
    x, m = train[0], len(train[0])
    signs = rademacher(draws, m, generator=run.generator, dtype=torch.float64)
    reached = trained_class(_two_classes(x.shape[1], width), x, **settings)(signs)
    lower = rademacher_from_fits(reached, m, DELTA)
    dichotomies = growth_halfspaces(m, 2)
    plane = math.sqrt(2 * math.log(dichotomies) / m)
    says = run.states(
        ["M-49", "A-48"], r"\tfrac1s\sum_j\sup_f\tfrac1m\sum_i\sigma^{(j)}_i\operatorname{sgn}f(x_i)\ge0.95"
    )
    says.at_least(
        reached.mean(),
        0.95,
        where=f"{draws} draws of {m} signs; with confidence {1 - DELTA} the complexity is at least {lower:.3f}",
    )
    says.fails("half-planes: at most this, by Massart's lemma", plane)
    uniform = empirical_uniform_deviation(max(lower, 0) / 2, m, DELTA)
    says = run.states(
        ["M-49", "A-48"],
        r"2\hat R_S(\ell\circ\mathcal F)+3\sqrt{\ln(2/\delta)/(2m)}\ge1:\text{ the Rademacher bound is vacuous}",
    )
    says.at_least(uniform, 1.0, where="errors of signs have half the complexity of the signs; from its lower bound")
    constant = math.sqrt(2 * math.log(2) / m)
    says.fails("the two constant functions, by Massart's lemma", empirical_uniform_deviation(constant / 2, m, DELTA))
    fitted = int((reached == 1).sum())
    dimension = vc_dimension_from_fits(fitted, draws, m)
    says = run.states("A-48", r"\mathrm{VCdim}\ge m/2\text{, from the labelings that were fitted}")
    says.at_least(
        dimension, m / 2, where=f"{fitted} of {draws} fitted, confidence 0.99; not m, which would need all labelings"
    )
    says.fails(
        "half-planes in two of the inputs' coordinates",
        vc_dimension_from_fits(_separated(x[:, PLANE], signs), draws, m),
    )
    true = seeded_network(_two_classes(x.shape[1], width), run.seed)
    made = fit_and_test([true], _halves(train), _halves(test), **settings)
    errors = round(float(made.test_error[0]) * len(test[0]))
    seen = clopper_pearson(errors, len(test[0]), 1 - 2 * DELTA).high
    radius = _growth_bound((x.shape[1], width, 1), m)
    says = run.states(
        ["A-48", "B-07"],
        r"\text{a bound that does not look at labels is at least the gap }\tfrac12-\hat R_S(f)\text{ on random ones}",
    )
    says.at_least(
        [uniform, radius],
        float(reached.max()) / 2,
        where="Rademacher and VC bound; the risk for labels that are fair coins is 1/2 exactly, "
        "and the training error is that of the best fit of random signs",
    )
    says.fails("a bound that sees labels: held-out data, true labels", seen)
    run.note(
        f"0-4 against 5-9: training error {float(made.train_error[0]):.3f}, test error "
        f"{float(made.test_error[0]):.3f}; VC bound {radius:.1f}, Rademacher bound at least "
        f"{uniform:.2f}."
    )


def _two_classes(inputs: int, width: int) -> MakeNetwork:
    return lambda: nn.Sequential(nn.Linear(inputs, width), nn.ReLU(), nn.Linear(width, 1))


def _halves(data: Pair) -> Pair:
    return data[0], (data[1] >= 5).long()


# ----------------------------------------------------------- what tells true from random labels


def blind_bounds(run: Run, train: Pair, test: Pair, width: int, seeds: int, epochs: int) -> None:
    """Bounds of the class against the decomposition of the gap, on true and random labels."""
    most, width = min(400, len(train[0])), min(width, 32)
    x, x_test = train[0][:most].double(), test[0][:150].double()
    y, y_test = (2.0 * (d[1] >= 5).double() - 1 for d in (train, test))
    y, y_test = y[:most], y_test[:150]
    generators = [derived_generator(run.seed, "coins", k) for k in range(seeds)]
    coins = [
        (rademacher(most, generator=g, dtype=torch.float64),
         rademacher(150, generator=g, dtype=torch.float64))
        for g in generators
    ]  # fmt: skip
    nets = [
        seeded_network(
            lambda: nn.Sequential(
                nn.Linear(x.shape[1], width, bias=False, dtype=torch.float64),
                nn.ReLU(),
                nn.Linear(width, 1, bias=False, dtype=torch.float64),
            ),
            run.seed + k,
        )
        for k in range(2 * seeds)
    ]
    # true labels, again true labels from other weights, random labels from the first weights
    labels = torch.stack([*[y] * (2 * seeds), *[c[0] for c in coins]])
    many = fit_many(
        [*nets, *nets[:seeds]],
        (x, y),
        labels=labels,
        epochs=epochs,
        batch_size=min(50, most // 3),
        learning_rate=0.003,
        task="regression",
    )
    trained = list(many.networks())
    linear = linear_bounds(x)[0]
    norm_based = [frobenius_bound(frobenius_norms(net), linear) for net in trained]
    class_bound = [_growth_bound(_widths(net), most) for net in trained]
    parts = [decompose_gap(net, (x, y), (x_test, y_test)) for net in trained[: 2 * seeds]] + [
        decompose_gap(net, (x, a), (x_test, b)) for net, (a, b) in zip(trained[2 * seeds :], coins, strict=True)
    ]
    gaps = torch.tensor([p.label_term + float((p.linear + p.quadratic).sum()) for p in parts])
    first, second, random = gaps[:seeds], gaps[seeds : 2 * seeds], gaps[2 * seeds :]
    says = run.states(
        "B-07",
        r"\text{the decomposition }c_y+\sum_k(2v_k^\top\bar w_k+\bar w_k^\top G\bar w_k)"
        r"\text{ is larger for random labels}",
    )
    says.above(
        _low(random - first),
        0.0,
        where="lower end of the 99.9% interval of the difference over the seeds; squared loss, 0-4 against 5-9",
    )
    says.fails("true labels both times, other initial weights", _low(second - first))
    run.table(
        "what-tells-them-apart",
        ["labels", "gap of the squared loss", "path norm", "Frobenius bound", "VC bound"],
        [
            (
                name,
                gaps[part].mean(),
                sum(float(p.path_norms.norm()) for p in parts[part]) / seeds,
                sum(norm_based[part]) / seeds,
                sum(class_bound[part]) / seeds,
            )
            for name, part in (("true", slice(0, seeds)), ("random", slice(2 * seeds, None)))
        ],
        caption=f"Means over {seeds} seeds. The last column sees the class alone; the one before "
        "is no bound, for the norms were not fixed beforehand.",
    )


def _growth_bound(widths: tuple[int, ...], samples: int) -> float:
    """The radius of Vapnik and Chervonenkis, from the growth function of the architecture."""
    growth = log2_network_growth_bound(widths, 2 * samples)
    return growth_radius(math.log(2) * growth, samples, DELTA)


def _widths(net: nn.Module) -> tuple[int, ...]:
    layers = [m for m in net.modules() if isinstance(m, nn.Linear)]
    return (layers[0].in_features, *(m.out_features for m in layers))


def _low(values: Tensor) -> float:
    """Lower end of Student's 99.9% interval; minus infinity where a value is not finite.

    Where there is no difference it is above 0 once in 2000 times: a control must fail at any seed.
    """
    if not bool(torch.isfinite(values).all()):
        return -math.inf
    return mean_interval(values, 0.999).low


# ------------------------------------------------------------------------------------ the figure


def plot(axes: Any, found: Memorization) -> None:
    left, middle, right = axes[0]
    kinds: list[tuple[str, str, float]] = [
        ("true labels", "labels", 0.0),
        ("random labels", "labels", 1.0),
        ("shuffled pixels", "shuffled pixels", 0.0),
        ("random pixels", "random pixels", 0.0),
        ("Gaussian images", "Gaussian images", 0.0),
    ]
    for (name, data, share), color in zip(kinds, COLORS, strict=False):
        loss = found.select(data, share).train_loss.mean(0)
        style = "--" if data in ("shuffled pixels", "Gaussian images") else "-"
        left.semilogy(range(1, len(loss) + 1), loss, style, color=color, label=name)
    left.set(xlabel="epoch", ylabel="training loss", title="everything is fitted")
    left.minorticks_off()
    left.legend()
    columns = [found.select(share=p) for p in SHARES]
    for axis, name in ((middle, "epochs_to_fit"), (right, "test_error")):
        values = [c.column(name) for c in columns]
        _with_intervals(axis, SHARES, values, COLORS[0])
        axis.set(xlabel="share of random labels", xticks=SHARES)
    middle.set(ylabel="epochs", title="time to fit")
    middle.set_ylim(bottom=0)
    right.axhline(0.9, color="0.4", linestyle=":")
    right.set(ylabel="test error", title="and then the test error", ylim=(0, 1))


def _with_intervals(axis: Any, x: Sequence[float], values: list[Tensor], color: str) -> None:
    """Means with Student's 95% intervals, and every seed as a dot."""
    for level, seen in zip(x, values, strict=True):
        axis.plot([level] * len(seen), seen, ".", color="0.7", zorder=1)
    means = [float(v.mean()) for v in values]
    radii = [mean_interval(v, 0.95).high - float(v.mean()) if bool(torch.isfinite(v).all()) else 0.0 for v in values]
    axis.errorbar(x, means, yerr=radii, fmt="o-", capsize=4, color=color, zorder=2)

"""Hopfield networks: an energy that descends, and digits that come back."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from torchtheory.data.real import digits
from torchtheory.labs.engine import COLORS, Interval, Run, clopper_pearson, lab
from torchtheory.neurons.dense_memory import (
    DenseMemory,
    Power,
)
from torchtheory.neurons.hopfield import (
    Hopfield,
    all_states,
    crosstalk,
    flip_bits,
    hebbian,
    overlap,
    sign,
)


@lab(
    "hopfield-dynamics",
    room="neurons",
    covers=["N-13", "N-14", "N-15"],
    title="A Hopfield network walks downhill and stops",
    errata=["hebbian-diagonal"],
    full={"small": 12, "n": 200, "starts": 200},
    least={"small": 2, "n": 12, "patterns": 2},
)
def hopfield_dynamics(run: Run, small: int = 9, n: int = 80, starts: int = 40, patterns: int = 10) -> None:
    r"""One neuron at a time, symmetric weights without a negative diagonal: the energy falls.

    On a small network every one of its states is tried; on a larger one the energy is recorded
    after every update. All weights are whole numbers, so that energies and ties are exact. Each
    hypothesis is then broken in turn: symmetry, the sign of the diagonal, one neuron at a time.
    Last, patterns are stored by Hebb's rule and the field is split into pattern and cross-talk.

    Theorem:
        Let $n$ neurons have states $x_i\in\{-1,1\}$, weights $W$ and the energy
        $H(x)=-\tfrac12x^\top Wx-b^\top x$.
        *Symmetric*: $w_{ij}=w_{ji}$.
        *No negative diagonal*: $w_{ii}\ge0$.
        *One at a time*: a step updates a single neuron, to the sign of its field.
        Then no step raises the energy, and after finitely many steps no neuron changes any more.

    Symbols:
        $x$: a state of all neurons, with entries 1 and -1; $n$ of them.
        $x^{(i)}$: the state after neuron $i$ was updated, and $x_i'$ that neuron's new value.
        $x^k$: the state after $k$ steps.
        $W$, $w_{ij}$: the weights; $b$ are the biases.
        $h_i(x)$: the field of neuron $i$, the weighted sum of its inputs, which it takes the sign of.
        $H(x)$: the energy of a state.
        $x_t$, $x_r$: stored patterns; Hebb's rule sets $W=\tfrac1n\sum_tx_tx_t^\top$.
        $C_{t,i}$: cross-talk, what the other patterns add to the field of neuron $i$ in pattern $t$;
            $C^0$ without the diagonal.

    Idea:
        Write the energy as a function of one neuron: with symmetric weights it is linear in it, and its
        slope is minus the field. Setting the neuron to the sign of its field therefore lowers the
        energy, or leaves neuron and energy as they are. There are only $2^n$ states, so the walk ends
        where no neuron wants to change. All neurons at once may step over the valley, forever.

    Try:
        n=160: the histogram of cross-talk keeps its width, which follows the ratio of patterns to neurons.
        small=4: sixteen states, few enough to follow the rule by hand.
        starts=200: every start ends in a fixed point, however many are tried.

    Exercise:
        Find symmetric weights `w` of two neurons and a state `x` that two updates of both neurons at
        once bring back to where it was, and one does not.
        check: not torch.equal((w @ x).sign(), x) and torch.equal((w @ (w @ x).sign()).sign(), x)
        answer: w, x = torch.tensor([[0.0, 1.0], [1.0, 0.0]]), torch.tensor([1.0, -1.0])

    Args:
        small: neurons where all states are listed.
        n: neurons otherwise.
        starts: random states that descend.
        patterns: that are stored.
    """
    states = all_states(small)
    upper = torch.randint(-4, 5, (small, small), generator=run.generator).double().triu(1)
    weights, bias = upper + upper.T, torch.randint(-2, 3, (small,), generator=run.generator)
    skewed = upper + torch.randint(-4, 5, (small, small), generator=run.generator).tril(-1)
    net, lopsided = Hopfield(weights, bias), Hopfield(skewed, bias, strict=False)
    change, field_says = _flips(net, states)
    skewed_change, skewed_says = _flips(lopsided, states)
    says = run.states("N-13", r"H(x^{(i)}) - H(x) = -(x_i' - x_i)\,h_i(x) \text{ for every } x \text{ and } i")
    says.equal(change, field_says)
    says.fails("weights that are not symmetric", skewed_change, promised=skewed_says)

    heavy = Hopfield(weights + 3 * torch.eye(small), bias)
    says = run.states("N-13", r"\text{states and neurons where the rule by energy and the rule by field disagree}")
    says.equal(_disagreements(net, states), where=f"all {len(states)} states of {small} neurons")
    says.fails("a positive diagonal, w_ii = 3", _disagreements(heavy, states))

    start = run.signs(starts, n)
    wide = torch.randint(-9, 10, (n, n), generator=run.generator).double()
    symmetric = (wide.triu(1) + wide.triu(1).T) + torch.diag(wide.diagonal().abs())
    descent = Hopfield(symmetric).recall(start, trace=True, generator=run.generator)
    asymmetric = Hopfield(wide.clone().fill_diagonal_(0), strict=False).recall(
        start, trace=True, max_sweeps=descent.sweeps, generator=run.generator
    )
    negative = Hopfield(symmetric - 60 * torch.eye(n), strict=False).recall(
        start, trace=True, max_sweeps=descent.sweeps, generator=run.generator
    )
    says = run.states("N-13", r"\max_k H(x^{k+1}) - H(x^k) \le 0 \text{ one neuron at a time}")
    says.at_most(
        descent.energies.diff(dim=0).max(), 0, where=f"{starts} random starts, {len(descent.energies) - 1} updates each"
    )
    says.fails("weights that are not symmetric", asymmetric.energies.diff(dim=0).max())
    says = run.states("N-13", r"w_{ii} \ge 0 \implies \max_k H(x^{k+1}) - H(x^k) \le 0")
    says.at_most(
        descent.energies.diff(dim=0).max(),
        0,
        where="the diagonal of these weights is positive in places; a flip then gains 2 w_ii more",
    )
    says.fails("a negative diagonal, 60 below", negative.energies.diff(dim=0).max())
    pair = Hopfield(torch.tensor([[0.0, 1.0], [1.0, 0.0]])).recall(torch.tensor([1.0, -1.0]), mode="synchronous")
    small_walk = net.recall(states, generator=run.generator)
    says = run.states("N-13", r"\text{the asynchronous dynamics stops: share of starts that end in a fixed point}")
    says.equal(
        torch.cat([small_walk.fixed_point, descent.fixed_point]).double(),
        1.0,
        where="every state of the small network, and the random starts of the large one",
    )
    says.fails("both neurons at once, w_12 = 1, x = (+1, -1): a two-cycle", pair.fixed_point.double())
    together = net.recall(states, mode="synchronous", max_sweeps=200)
    rotation = torch.tensor([[0.0, 1.0], [-1.0, 0.0]])
    circling = Hopfield(rotation, strict=False).recall(all_states(2), mode="synchronous")
    says = run.states("N-13", r"W = W^\top:\ \text{all neurons at once end in a fixed point or a two-cycle}")
    says.equal(
        (together.fixed_point | together.two_cycle).double(),
        1.0,
        where=f"{int(together.two_cycle.sum())} of {len(states)} states end in a two-cycle",
    )
    says.fails("w_12 = 1, w_21 = -1: a cycle of four", (circling.fixed_point | circling.two_cycle).double())

    one = run.signs(1, n)
    kept = Hopfield(hebbian(one, normalize=False))
    says = run.states("N-14", r"\text{one stored pattern: } x \text{ and } -x \text{ are fixed points}")
    says.equal(kept.is_fixed_point(torch.cat([one, -one])).double(), 1.0)
    says.fails(
        "a state that was not stored: x with one sign changed",
        kept.is_fixed_point(flip_bits(one, 1, generator=run.generator)).double(),
    )
    hadamard = _hadamard(4)[:7]
    stored = run.signs(7, 16)
    both = torch.stack([hadamard, stored])
    images = torch.stack([x @ hebbian(x, zero_diagonal=False) for x in both])
    says = run.states("N-14", r"x_r^\top x_t = 0\ (r \ne t) \implies W x_t = x_t \text{, diagonal kept}")
    says.equal(images[0], hadamard, where="7 of the 16 rows of a Hadamard matrix")
    says.fails("7 random patterns", images[1], promised=stored)
    memory = run.signs(patterns, n)
    run.refutes("hebbian-diagonal", r"w_{ii} = 0 \text{ for } W = \tfrac1n\sum_t x_t x_t^\top").equal(
        hebbian(memory, zero_diagonal=False).diagonal(), where=f"s/n with s = {patterns}, n = {n}"
    )

    report, loose = crosstalk(memory), crosstalk(memory, zero_diagonal=False)
    shift = (patterns - 1) * memory
    says = run.states(
        "N-15",
        r"n\,h_i(x_t) = n\,x_{t,i} + n\,C_{t,i}\text{, and } (n-1)\,x_{t,i} + n\,C^0_{t,i} \text{ with zero diagonal}",
    )
    says.equal(
        torch.stack(
            [memory @ hebbian(memory, zero_diagonal=False, normalize=False), memory @ hebbian(memory, normalize=False)]
        ),
        torch.stack([n * memory + loose.scaled, (n - 1) * memory + report.scaled]),
        where="in whole numbers; the weights are formed on one side and not on the other",
    )
    says.fails(
        "the cross-talk of the other diagonal",
        torch.stack(
            [memory @ hebbian(memory, zero_diagonal=False, normalize=False), memory @ hebbian(memory, normalize=False)]
        ),
        promised=torch.stack([n * memory + loose.scaled - shift, (n - 1) * memory + report.scaled + shift]),
    )
    crowd = run.signs(3 * n // 4, n)
    crowded = crosstalk(crowd, zero_diagonal=False)
    size = crowded.scaled.abs()
    says = run.states("N-15", r"|C_{t,i}| < 1 \implies x_{t,i} \text{ is stable: number of counterexamples}")
    says.equal(int((crowded.unstable & (size < n)).sum()), where=f"{len(crowd)} patterns on {n} neurons")
    says.fails("1 < |C| < 2", int((crowded.unstable & (size > n) & (size < 2 * n)).sum()))
    against = -crowd * crowded.scaled
    exact = (against < n) | ((against == n) & (crowd > 0))
    says = run.states(
        "N-15",
        r"x_{t,i} \text{ is stable iff } -x_{t,i}C_{t,i} < 1\ (\text{or} = 1 \text{ and } "
        r"x_{t,i} = +1)\text{: number of exceptions}",
    )
    says.equal(int((exact == crowded.unstable).sum()))
    says.fails("|C| < 1 taken for the condition", int(((size < n) == crowded.unstable).sum()))
    harmless = int((~crowded.unstable & (size >= n)).sum())
    run.note(
        f"{harmless} of {crowd.numel()} bits have |C| >= 1 and are stable all the same: cross-talk "
        "of the right sign does no harm, so |C| < 1 is sufficient and not necessary."
    )
    run.table(
        "crosstalk",
        ["diagonal", "mean of -xC", "variance of C", "s/n", "unstable bits", "stable patterns"],
        [
            [
                name,
                float((-crowd * r.scaled).double().mean() / n),
                float(r.values.var()),
                len(crowd) / n,
                int(r.unstable.sum()),
                int(r.stable_patterns.sum()),
            ]
            for name, r in (("zero", crosstalk(crowd)), ("kept", crowded))
        ],
        caption=f"{len(crowd)} random patterns on {n} neurons: the kept diagonal supports every bit by (s-1)/n.",
    )

    def energies(axes: Any) -> None:
        for panel, walk, title in zip(
            axes[0],
            (descent, asymmetric, negative),
            (r"symmetric, $w_{ii}\geq0$", "not symmetric", "diagonal below zero"),
            strict=True,
        ):
            steps = torch.arange(len(walk.energies)) / n
            panel.plot(steps, walk.energies[:, :12], lw=0.9)
            panel.set(title=title, xlabel="sweeps")
        axes[0, 0].set_ylabel("energy H(x)")

    run.figure(
        "energy",
        energies,
        grid=(1, 3),
        size=(10.5, 3.2),
        caption="Energy after every single update, twelve starts. It falls and stops on the left; "
        "either hypothesis broken, it also rises and need not end.",
    )

    def histogram(axes: Any) -> None:
        for color, name, r, need in (
            (COLORS[0], "zero diagonal", crosstalk(crowd), (n - 1) / n),
            (COLORS[1], "diagonal kept", crowded, 1.0),
        ):
            # the values lie two apart; a bin holds four of them, or the histogram grows teeth
            value = (-crowd * r.scaled).long().flatten()
            low, high = int(value.min()), int(value.max())
            edges = [(k - 1) / n for k in range(low, high + 9, 8)]
            axes.hist(value / n, bins=edges, density=True, histtype="step", color=color, label=name)
            axes.axvline(need, color=color, lw=0.8, ls=":")
        z = torch.linspace(-4, 4, 300)
        load = len(crowd) / n
        density = torch.exp(-z * z / (2 * load)) / math.sqrt(2 * math.pi * load)
        axes.plot(z, density, color=COLORS[6], lw=1, label="N(0, s/n)")
        axes.set(xlabel="cross-talk against the bit, −x C", ylabel="density", ylim=(0, 0.72))
        axes.text(1.05, 0.66, "flipped →", fontsize=8)
        axes.legend(loc="upper left")

    run.figure(
        "crosstalk",
        histogram,
        caption=f"Cross-talk of {len(crowd)} random patterns on {n} neurons. Bits to the right of "
        "1 flip. N(0, s/n) describes the zero diagonal; the kept one is shifted by (s-1)/n.",
    )


@lab(
    "hopfield-recall",
    room="neurons",
    covers=["N-18"],
    title="Recalling noisy digits: three by Hebb's rule, ten only by a dense memory",
    full={"draws": 1000},
    least={"draws": 80, "threshold": 0.003},
    most={"threshold": 0.6},
)
def hopfield_recall(run: Run, draws: int = 150, flips: int = 6, threshold: float = 0.3) -> None:
    """Images of digits are stored, a tenth of their pixels flipped, and the dynamics started.

    The images are 8 x 8, gray, and first made ±1 at a threshold. Three of them chosen to be almost
    uncorrelated come back. Ten, one of each digit, do not: digits resemble one another, Hebb's
    rule adds up what they share, and the network ends in mixtures that were never stored. The same
    ten come back from a memory with a steeper energy.

    Args:
        draws: noisy copies of each digit.
        flips: pixels that are turned over.
        threshold: of gray above which a pixel is on.
    """
    gray, labels = digits(torch.float64)
    images = torch.where(gray > threshold, 1.0, -1.0).double()
    n = images.shape[1]
    few, chosen = _least_correlated(images, labels)
    ten = torch.stack([images[labels == k][0] for k in range(10)])
    noisy_few = flip_bits(few.expand(draws, -1, -1), flips, generator=run.generator)
    noisy_ten = flip_bits(ten.expand(draws, -1, -1), flips, generator=run.generator)
    hebb_few, hebb_ten = (Hopfield(hebbian(x, normalize=False)) for x in (few, ten))
    dense = DenseMemory(ten, Power(10))
    cubic = DenseMemory(ten, Power(3))
    back_few = hebb_few.recall(noisy_few, generator=run.generator).state
    back_ten = hebb_ten.recall(noisy_ten, generator=run.generator).state
    back_dense = dense.recall(noisy_ten, generator=run.generator).state
    back_cubic = cubic.recall(noisy_ten, generator=run.generator).state

    exact = {
        name: _exact_recall(state, target)
        for name, state, target in (
            ("three", back_few, few),
            ("ten", back_ten, ten),
            ("cubic", back_cubic, ten),
            ("dense", back_dense, ten),
        )
    }
    unit = f"{draws} independent noisy copies of each image, {flips} of {n} pixels flipped; 99 %"
    says = run.states(
        "N-18", r"\text{three almost uncorrelated images: share of exact recalls (lower end of the interval)}"
    )
    says.at_least(exact["three"].low, 0.95, where=unit)
    says.fails("all ten digits, correlated", exact["ten"].low)
    says = run.states("N-18", r"\text{three almost uncorrelated images: mean overlap after recall } \to 1")
    says.equal(float(overlap(back_few, few).mean()), 1.0, 0.01, where=unit + f"; it starts at {1 - 2 * flips / n:.4f}")
    says.fails("all ten digits, correlated", float(overlap(back_ten, ten).mean()))
    says = run.states("N-18", r"\text{ten digits by Hebb's rule: share of exact recalls (upper end of the interval)}")
    says.at_most(
        exact["ten"].high, 0.01, where=unit + f"; {int(hebb_ten.is_fixed_point(ten).sum())} of the ten are fixed points"
    )
    says.fails("three almost uncorrelated images", exact["three"].high)
    says = run.states(
        "N-18, N-19",
        r"\text{the same ten in a dense memory, } F(z) = z^{10}\text{: share of exact recalls "
        r"(lower end of the interval)}",
    )
    says.at_least(exact["dense"].low, 0.95, where=unit)
    says.fails("the same memory with F(z) = $z^3$", exact["cubic"].low)
    shuffled = run.signs(10, n)
    likeness = {name: _mean_square_overlap(x) for name, x in (("ten", ten), ("random", shuffled))}
    says = run.states(
        "N-18", r"\text{mean squared overlap of the ten digits, against } 1/n \text{ of independent signs}"
    )
    says.above(
        likeness["ten"],
        10 / n,
        where="ten times what independence would give; Hebb's rule assumes patterns without correlation",
    )
    says.fails("ten random patterns of that size", likeness["random"])
    # a state is spurious when it is neither a stored image nor the negative of one
    agreement = (back_ten @ ten.T / n).abs().amax(-1)
    spurious = float((agreement < 1).double().mean())
    ends = len(torch.unique(back_ten.reshape(-1, n), dim=0))
    run.note(
        f"Ten digits by Hebb's rule: {spurious:.0%} of the walks end in a state that was never "
        f"stored; different end states: {ends}."
    )
    run.table(
        "recall",
        ["memory", "images", "overlap before", "overlap after", "exact recalls", "low", "high"],
        [
            [
                name,
                len(target),
                1 - 2 * flips / n,
                float(overlap(state, target).mean()),
                i.estimate,
                i.low,
                i.high,
            ]
            for name, state, target, i in (
                ("Hebb", back_few, few, exact["three"]),
                ("Hebb", back_ten, ten, exact["ten"]),
                ("dense, $z^3$", back_cubic, ten, exact["cubic"]),
                ("dense, $z^{10}$", back_dense, ten, exact["dense"]),
            )
        ],
        caption="Exact recalls with 99 % Clopper-Pearson intervals.",
    )

    def three(axes: Any) -> None:
        rows = (("stored", few), ("noisy", noisy_few[0]), ("Hebb", back_few[0]))
        _pictures(axes, rows)

    run.figure(
        "three-digits",
        three,
        size=(3.6, 3.3),
        caption=f"Digits {', '.join(map(str, chosen))}: stored, a tenth of the pixels flipped, "
        "recalled by Hebb's rule.",
    )

    def all_ten(axes: Any) -> None:
        rows = (
            ("stored", ten),
            ("noisy", noisy_ten[0]),
            ("Hebb", back_ten[0]),
            ("dense, z³", back_cubic[0]),
            ("dense, z¹⁰", back_dense[0]),
        )
        _pictures(axes, rows)

    run.figure(
        "ten-digits",
        all_ten,
        size=(9.0, 4.3),
        caption="All ten digits. Hebb's rule ends in blends of the digits; the dense memory of "
        "degree ten returns every one.",
    )
    shares = range(0, n // 2 + 1, 4)
    curves: dict[str, list[float]] = {"Hebb, three": [], "Hebb, ten": [], "dense z¹⁰, ten": []}
    for k in run.track(shares, "noise"):
        for name, memory, target in (
            ("Hebb, three", hebb_few, few),
            ("Hebb, ten", hebb_ten, ten),
            ("dense z¹⁰, ten", dense, ten),
        ):
            start = flip_bits(target.expand(30, -1, -1), k, generator=run.generator)
            end = memory.recall(start, generator=run.generator).state
            curves[name].append(float(overlap(end, target).mean()))

    share = [k / n for k in shares]
    run.curves(
        "noise",
        share,
        curves,
        {"no recall": [1 - 2 * v for v in share]},
        axes=("share of pixels flipped", "mean overlap after recall"),
        caption="Recall against noise. Hebb's rule with ten digits does not even keep the clean images.",
    )


def _flips(net: Hopfield, states: Tensor) -> tuple[Tensor, Tensor]:
    """Energy change of every single flip from every state, measured and by the field formula."""
    n = states.shape[1]
    flipped = states[:, None, :] * (1 - 2 * torch.eye(n, dtype=states.dtype))
    change = net.energy(flipped) - net.energy(states)[:, None]
    return change, 2 * states * net.field(states)


def _disagreements(net: Hopfield, states: Tensor) -> int:
    """State-neuron pairs in which comparing energies and the sign of the field differ."""
    n = states.shape[1]
    index = torch.arange(n)
    up = states[:, None, :].repeat(1, n, 1)
    down = up.clone()
    up[:, index, index], down[:, index, index] = 1.0, -1.0
    by_energy = torch.where(net.energy(up) <= net.energy(down), 1.0, -1.0)
    return int((by_energy != sign(net.field(states))).sum())


def _hadamard(k: int) -> Tensor:
    """Sylvester's Hadamard matrix of size 2^k: rows of ±1, pairwise orthogonal."""
    matrix = torch.ones(1, 1, dtype=torch.float64)
    for _ in range(k):
        matrix = torch.cat([torch.cat([matrix, matrix], 1), torch.cat([matrix, -matrix], 1)])
    return matrix


def _least_correlated(images: Tensor, labels: Tensor) -> tuple[Tensor, list[int]]:
    """Three images of different digits whose largest overlap in absolute value is least."""
    pool = torch.cat([(labels == k).nonzero()[:12, 0] for k in range(10)])
    gram = (images[pool] @ images[pool].T).abs()
    gram[labels[pool][:, None] == labels[pool]] = math.inf
    worst = torch.maximum(torch.maximum(gram[:, :, None], gram[:, None, :]), gram[None])
    best = int(worst.argmin())
    size = len(pool)
    chosen = pool[torch.tensor([best // size**2, best // size % size, best % size])]
    return images[chosen], labels[chosen].tolist()


def _exact_recall(state: Tensor, target: Tensor) -> Interval:
    hits = (state == target).all(-1)
    return clopper_pearson(int(hits.sum()), hits.numel(), 0.99)


def _mean_square_overlap(patterns: Tensor) -> float:
    s, n = patterns.shape
    squares = (patterns @ patterns.T / n).square()
    return float((squares.sum() - s) / (s * (s - 1)))


def _pictures(axes: Any, rows: tuple[tuple[str, Tensor], ...]) -> None:
    """Rows of 8 x 8 images with a margin, as one picture: a panel each would take seconds."""
    columns = len(rows[0][1])
    page = torch.full((10 * len(rows), 10 * columns), torch.nan)
    for r, (_, images) in enumerate(rows):
        for c, image in enumerate(images):
            page[10 * r + 1 : 10 * r + 9, 10 * c + 1 : 10 * c + 9] = image.reshape(8, 8)
    axes.imshow(page, cmap="gray_r", vmin=-1.2, vmax=1)
    axes.set_yticks([10 * r + 4.5 for r in range(len(rows))], [name for name, _ in rows])
    axes.set_xticks([])
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    axes.grid(False)

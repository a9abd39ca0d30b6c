"""Decoding: what greedy, beam and exhaustive search find and cost, and what sampling may draw."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from torchtheory.labs.engine import Run, lab
from torchtheory.sequences.attention.transformers import LanguageModel
from torchtheory.sequences.language.decoding import generate, sequence_log_probability
from torchtheory.sequences.language.filters import filtered, keep_top_k, keep_top_p
from torchtheory.sequences.language.listed import ListedModel
from torchtheory.sequences.language.sources import MarkovText

INITIAL = {"A": 0.40, "B": 0.35, "C": 0.25}
EXPANSIONS = {"A": {"A1": 0.50, "A2": 0.20}, "B": {"B1": 0.80}}


@lab(
    "decoding",
    room="sequences",
    covers=["M-107", "M-108", "M-109", "M-110", "N-89"],
    title="Greedy search falls into traps that a beam avoids, and an exhaustive search never",
    errata=["beam-search-loses-what-has-ended"],
    full={"draws": 200_000, "length": 8},
    least={"length": 3, "draws": 6_000},
)
def decoding(run: Run, draws: int = 20_000, length: int = 6) -> None:
    """The example of the lectures, random transformers, and a trap that is as deep as can be.

    Greedy search scores NK continuations, a beam at most NBK, exhaustive search about $K^N$, which is
    the price of certainty: a beam is sure to find the best sequence only from B = $K^{N-1}$ on, and a
    model is built that defeats every smaller one. Sampling keeps the k likeliest tokens, or as many
    as it takes for a probability p.

    Args:
        draws: tokens drawn for each frequency.
        length: of the longest sequences whose search is counted.
    """
    example(run)
    whole_sequences(run)
    widths(run)
    costs(run, length)
    sampling(run, draws)


def example(run: Run) -> None:
    model = ListedModel(INITIAL, EXPANSIONS)
    found = {
        "greedy": model.search("greedy", steps=2),
        "beam": model.search("beam", steps=2, beams=2),
        "exhaustive": model.search("exhaustive", steps=2, beams=3),
    }
    rarer = ListedModel({"A": 0.30, "B": 0.35, "C": 0.35}, EXPANSIONS)
    says = run.states("M-108", r"\text{greedy: }(A,A_1)\text{ with }0.4\cdot0.5=0.2")
    says.equal(named(found["greedy"], "A", "A1"), 0.2, 1e-12)
    says.fails("A is not the likeliest first token", named(rarer.search("greedy", steps=2), "A", "A1"))
    says = run.states("M-109", r"B=2\text{ finds }(B,B_1)\text{ with }0.35\cdot0.8=0.28")
    says.equal(named(found["beam"], "B", "B1"), 0.28, 1e-12)
    says.fails("B = 1", named(model.search("beam", steps=2, beams=1), "B", "B1"))
    run.states("M-109", r"B=2\text{ keeps }(A,A_1)\text{ with }0.20\text{ as its second}").equal(
        found["beam"][1].probability * (found["beam"][1].names == ("A", "A1")), 0.2, 1e-12
    )
    says = run.states(["M-107", "M-109"], r"\text{the beam's best is the best of all}")
    best = found["exhaustive"][0].probability
    says.equal(found["beam"][0].probability, best, 1e-12, where="the lectures' example, B = 2")
    says.fails("greedy search", found["greedy"][0].probability)
    truth = [h.probability for h in found["exhaustive"]]
    run.states("M-109", r"B=3\text{ keeps }C\text{, which has ended: }0.28,\ 0.25,\ 0.20").equal(
        [h.probability for h in model.search("beam", steps=2, beams=3)], truth, 1e-12
    )
    wrong = run.refutes("beam-search-loses-what-has-ended", r"\text{Listing 10.4 keeps the }B\text{ best hypotheses}")
    wrong.equal([p for _, p in printed_beam(INITIAL, EXPANSIONS, 3, 2)], truth, 1e-12, where="B = 3, two steps")
    wrong.at_least(len(printed_beam(INITIAL, EXPANSIONS, 2, 3)), 1, where="hypotheses after a third step, B = 2")
    run.figure(
        "search-tree",
        lambda ax: plot_tree(ax, model),
        caption="The lectures' example: greedy search takes the likeliest first step and ends at 0.20; a beam of two "
        "keeps B as well and finds 0.28, the best of all. C ends at once with 0.25; a beam of three keeps it.",
        size=(7.0, 3.6),
    )


def named(found: list[Any], *names: str) -> float:
    """The probability of a sequence among those found, 0 if it is not."""
    return next((h.probability for h in found if h.names == names), 0.0)


def printed_beam(
    initial: Mapping[str, float], expansions: Mapping[str, Mapping[str, float]], width: int, steps: int
) -> list[tuple[tuple[str, ...], float]]:
    """What Listing 10.4 does: only hypotheses whose last token has expansions go on."""
    first: list[tuple[tuple[str, ...], float]] = [((t,), p) for t, p in initial.items()]
    beam = sorted(first, key=lambda h: -h[1])[:width]
    for _ in range(1, steps):
        grown = [((*y, t), p * q) for y, p in beam for t, q in expansions.get(y[-1], {}).items()]
        beam = sorted(grown, key=lambda h: -h[1])[:width]
    return beam


def whole_sequences(run: Run) -> None:
    vocabulary, steps = 4, 4
    model = sharp(LanguageModel(vocabulary, 8, 2, 2, generator=run.generator, tied=False))
    prompt = torch.randint(vocabulary, (1, 3), generator=run.generator)
    every = torch.cartesian_prod(*[torch.arange(vocabulary)] * steps)
    whole = torch.cat([prompt.expand(len(every), -1), every], 1)
    with torch.no_grad():
        logs = sequence_log_probability(model, whole, prompt=3)
        seen = model(whole)[:, 3:].log_softmax(-1).gather(-1, every.unsqueeze(-1)).sum((1, 2))
    says = run.states("M-107", r"\sum_{y_{1:N}}\prod_np(y_n\mid y_{1:n-1})=1")
    says.equal(float(logs.logsumexp(0).exp()), 1.0, 1e-12, where=f"all {vocabulary**steps} sequences")
    says.fails("factors that see the token they predict", float(seen.logsumexp(0).exp()))
    found = generate(model, prompt, method="exhaustive", max_new_tokens=steps, beams=5)
    run.states("M-107", r"\text{exhaustive search finds the largest }\prod_np(y_n\mid y_{1:n-1})").equal(
        found.log_probabilities[0], logs.sort(descending=True).values[:5], 1e-10, where="the five best of 256"
    )
    prompts = torch.randint(vocabulary, (64, 3), generator=run.generator)
    for cache in (True, False):
        written = generate(model, prompts, method="beam", beams=3, max_new_tokens=8, cache=cache)
        with torch.no_grad():
            passed = sequence_log_probability(model, written.tokens, prompt=3)
            other = sequence_log_probability(model, torch.cat([prompts.flip(0), written.tokens[:, 3:]], 1), prompt=3)
        says = run.states("N-89", r"\text{step by step}=\text{one pass: }\sum_n\log p(y_n\mid y_{1:n-1})")
        says.equal(
            float((written.log_probabilities[:, 0] - passed).abs().max()),
            within=1e-10,
            where="beam search " + ("with kept keys and values" if cache else "that reads everything again"),
        )
        says.fails("the pass starts from another prompt", float((written.log_probabilities[:, 0] - other).abs().max()))


def sharp(model: LanguageModel) -> LanguageModel:
    """Larger logits, so that distributions are far from flat."""
    assert model.head is not None
    with torch.no_grad():
        model.head.weight.mul_(6)
    return model


class Trap:
    """All prefixes of N - 1 tokens are nearly alike, the likeliest sequence has the least likely.

    After that prefix one token is certain; after the others all are equally likely.
    """

    def __init__(self, vocabulary: int, steps: int) -> None:
        self.vocabulary, self.steps = vocabulary, steps

    def __call__(self, tokens: Tensor) -> Tensor:
        written = tokens.shape[1] - 1
        logits = torch.zeros(len(tokens), self.vocabulary, dtype=torch.float64)
        on_the_way = (tokens[:, 1:] == 0).all(1)
        if written < self.steps - 1:
            logits[on_the_way, 0] = -1e-3
        else:
            logits[on_the_way, 1:] = -40.0
        return logits


def widths(run: Run) -> None:
    vocabulary, steps = 3, 5
    trap, prompt = Trap(vocabulary, steps), torch.zeros(1, 1, dtype=torch.int64)
    best = generate(trap, prompt, method="exhaustive", max_new_tokens=steps).scores[0, 0]
    sure = vocabulary ** (steps - 1)

    def reached(beams: int) -> float:
        return float(generate(trap, prompt, method="beam", beams=beams, max_new_tokens=steps).scores[0, 0])

    says = run.states("M-109", r"B\ge K^{N-1}\ \Rightarrow\ \text{beam search finds the best of all}")
    says.equal(reached(sure), float(best), 1e-10, where="K = 3, N = 5, the best hidden behind the worst prefix")
    says.fails("B = $K^{N-1}$ - 1", reached(sure - 1))
    sizes = [1, 2, 5, 10, 20, 40, 60, 80, 81, 100, 150, 243]
    chain = MarkovText.random(vocabulary, 4, generator=run.generator).transitions.log()

    def model(tokens: Tensor) -> Tensor:
        return chain[tuple(tokens[:, -4:].unbind(1))]

    prompts = torch.randint(vocabulary, (100, 4), generator=run.generator)
    greedy = generate(model, prompts, max_new_tokens=8).tokens

    def apart(beams: int) -> int:
        beam = generate(model, prompts, method="beam", beams=beams, max_new_tokens=8)
        return int((beam.tokens != greedy).any(1).sum())

    says = run.states(["M-108", "M-109"], r"B=1\text{ is greedy search}")
    says.equal(apart(1), 0, where="sequences that differ, of 100 in a random chain of order 4")
    says.fails("B = 8", apart(8))
    top = generate(model, prompts, method="exhaustive", max_new_tokens=steps).scores[:, 0]

    def share(beams: int) -> float:
        found = generate(model, prompts, method="beam", beams=beams, max_new_tokens=steps).scores[:, 0]
        return float((found >= top - 1e-10).double().mean())

    run.curves(
        "beam-widths",
        sizes,
        {
            "random chain, 100 prompts": [share(b) for b in sizes],
            "the trap": [float(abs(reached(b) - best) < 1e-10) for b in sizes],
        },
        axes=("width of the beam", "share that finds the best"),
        log="x",
        at={"K^(N-1)": float(sure)},
        caption="How often a beam finds the best of all 243 sequences: a few hypotheses do for most prompts of a "
        "random chain, and from $K^{N-1}$ on nothing can be missed; the trap needs all of them.",
    )


def costs(run: Run, length: int) -> None:
    vocabulary, beams = 4, 3
    asked = 0

    def counting(tokens: Tensor) -> Tensor:
        nonlocal asked
        asked += len(tokens) * vocabulary
        return torch.sin((1 + tokens.double()).cumsum(1)[:, -1:] * torch.arange(1, vocabulary + 1))

    def count(method: Any, steps: int, width: int | None = None) -> int:
        nonlocal asked
        asked = 0
        made = generate(counting, torch.tensor([1]), method=method, max_new_tokens=steps, beams=width)
        return asked if asked == made.evaluations else -1

    lengths = list(range(2, length + 1))
    greedy = [count("greedy", n) for n in lengths]
    beam = [count("beam", n, beams) for n in lengths]
    every = [count("exhaustive", n) for n in lengths]
    says = run.states("M-108", r"\text{greedy search scores }NK\text{ continuations}")
    says.equal(greedy, [n * vocabulary for n in lengths], where="counted by the model that is asked")
    says.fails("nothing is pruned", every)
    says = run.states("M-109", r"\text{a beam scores at most }NBK\text{ continuations}")
    says.at_most(beam, [n * beams * vocabulary for n in lengths], where=f"K = {vocabulary}, B = {beams}")
    says.fails("nothing is pruned", every[1:], promised=[n * beams * vocabulary for n in lengths[1:]])
    says = run.states("M-107", r"\text{exhaustive search scores }K+\dots+K^N=\frac{K}{K-1}(K^N-1)")
    wanted = [vocabulary * (vocabulary**n - 1) // (vocabulary - 1) for n in lengths]
    says.equal(every, wanted)
    says.fails("pruned to three hypotheses", beam)
    run.curves(
        "evaluations",
        lengths,
        {"greedy": greedy, f"beam of {beams}": beam, "exhaustive": every},
        {
            "greedy": [n * vocabulary for n in lengths],
            f"beam of {beams}": [n * beams * vocabulary for n in lengths],
            "exhaustive": [vocabulary**n for n in lengths],
        },
        axes=("tokens written, N", "continuations scored"),
        log="y",
        caption=f"Continuations that were scored with K = {vocabulary} tokens: NK for greedy search, at most NBK for a "
        "beam (dashed), and for exhaustive search just above $K^N$ (dashed).",
    )


def sampling(run: Run, draws: int) -> None:
    row = torch.tensor([0.4, 0.35, 0.25], dtype=torch.float64).log()

    def model(tokens: Tensor) -> Tensor:
        return row.expand(len(tokens), -1)

    says = run.states("M-110", r"(0.4,0.35,0.25):\ p=0.5\text{ keeps }2,\ p=0.8\text{ keeps }3")
    says.equal([kept(row, top_p=0.5), kept(row, top_p=0.8)], [2, 3])
    other = torch.tensor([0.6, 0.25, 0.15], dtype=torch.float64).log()
    says.fails("the sharper (0.6, 0.25, 0.15)", [kept(other, top_p=0.5), kept(other, top_p=0.8)])
    start = torch.zeros(draws, 1, dtype=torch.int64)

    def drawn(**options: Any) -> Tensor:
        made = generate(model, start, method="sample", max_new_tokens=1, generator=run.generator, **options)
        return made.tokens[:, 1]

    says = run.states("M-110", r"\text{top-}2\text{: }A\text{ is drawn with }0.4/(0.4+0.35)")
    share = 0.4 / 0.75
    says.mean((drawn(top_k=2) == 0).double(), share, against=(0.4, 0.5), confidence=0.999)
    says.fails("all three are kept", (drawn() == 0).double())
    says = run.states("M-110", r"\text{top-}p,\ p=0.5\text{: }A\text{ is drawn with }0.4/(0.4+0.35)")
    says.mean((drawn(top_p=0.5) == 0).double(), share, against=(0.4, 0.5), confidence=0.999)
    says.fails("p = 1", (drawn(top_p=1.0) == 0).double())
    says = run.states("M-110", r"\text{temperature }1/2\text{: }A\text{ is drawn with }0.4^2/\textstyle\sum_ip_i^2")
    squares = (2 * row).softmax(0)
    says.mean((drawn(temperature=0.5) == 0).double(), float(squares[0]), against=(0.4, 0.5), confidence=0.999)
    says.fails("temperature 1", (drawn() == 0).double())
    seed = int(torch.randint(2**31, (1,), generator=run.generator))
    options: dict[str, Any] = {"method": "sample", "max_new_tokens": 1, "generator": seed}
    plain = generate(model, start, **options).tokens
    says = run.states("M-110", r"k=K,\ p=1\text{ is plain sampling},\ k=1\text{ greedy search}")
    same = generate(model, start, top_k=3, top_p=1.0, **options).tokens
    first = generate(model, start, top_k=1, **options).tokens
    says.equal([int((same != plain).sum()), int(first[:, 1].sum())], where="tokens that differ")
    less = generate(model, start, top_k=2, **options).tokens
    says.fails("k = 2", [int((less != plain).sum()), int(less[:, 1].sum())])
    logits = run.randn(200, 9) * torch.linspace(0.2, 5, 200).double()[:, None]
    p = 0.9
    smallest = [smallest_set(q.softmax(0), p) for q in logits]
    says = run.states("M-110", r"\text{top-}p\text{ keeps the smallest set with probability}\ge p")
    sizes = keep_top_p(logits, p).isfinite().sum(1)
    says.equal(sizes, smallest, where="200 distributions of 9 tokens, all 512 sets of each tried")
    says.fails("the 7 likeliest in every case", keep_top_k(logits, 7).isfinite().sum(1))
    entropy = -(logits.softmax(1) * logits.log_softmax(1)).sum(1)
    run.figure(
        "support",
        lambda axes: plot_support(axes, logits, entropy),
        caption="Flat distributions (right) and sharp ones (left): top-k keeps k tokens whatever they hold, top-p as "
        "many as it takes to hold p.",
        grid=(1, 2),
        size=(8.0, 3.2),
    )


def kept(logits: Tensor, **options: Any) -> int:
    return int(filtered(logits, **options).isfinite().sum())


def smallest_set(chances: Tensor, p: float) -> int:
    """By trying all sets."""
    values = chances.tolist()
    for size in range(1, len(values) + 1):
        if any(math.fsum(c) >= p for c in itertools.combinations(values, size)):
            return size
    return len(values)


def plot_tree(ax: Any, model: ListedModel) -> None:
    leaves = {"A1": 3.0, "A2": 2.0, "A<other>": 1.2, "B1": 0.2, "B<other>": -0.6, "C<end>": -1.6}
    inner = {"A": 2.1, "B": -0.2, "C": -1.6}
    greedy = {"A", "A1"}
    beam = {"A", "B", "A1", "B1"}

    def color(name: str) -> str:
        if name in greedy:
            return "tab:orange"
        return "tab:blue" if name in beam else "0.65"

    def node(x: float, y: float, name: str, label: str, best: bool = False) -> None:
        face = "#fff3c4" if best else "white"
        ax.text(
            x, y, label, ha="center", va="center", fontsize=9,
            bbox={"boxstyle": "round", "fc": face, "ec": color(name), "lw": 1.6},
        )  # fmt: skip

    table = model.log_chances.exp()
    number = {n: i for i, n in enumerate(model.names)}
    for name, y in inner.items():
        chance = float(table[0, number[name]])
        ax.plot([0, 1], [0.3, y], color=color(name), lw=1 + 4 * chance, zorder=0)
        ends = [leaf for leaf in leaves if leaf.startswith(name)]
        for leaf in ends:
            last = leaf if leaf in number else leaf[1:]
            step = float(table[number[name], number[last]])
            ax.plot([1, 2], [y, leaves[leaf]], color=color(leaf), lw=1 + 4 * step, zorder=0)
            shown = leaf if leaf in number else {"<end>": "ended", "<other>": "other"}[last]
            node(2, leaves[leaf], leaf, f"{shown}: {chance:g} × {step:g} = {chance * step:.2g}", leaf == "B1")
        node(1, y, name, f"{name} {chance:g}")
    node(0, 0.3, "", "start")
    for label, shade in (("greedy (and beam)", "tab:orange"), ("beam of 2", "tab:blue"), ("pruned", "0.65")):
        ax.plot([], [], color=shade, lw=3, label=label)
    ax.legend(loc="upper left", fontsize=8)
    ax.set(xlim=(-0.25, 2.55), ylim=(-2.1, 3.5))
    ax.axis("off")


def plot_support(axes: Any, logits: Tensor, entropy: Tensor) -> None:
    order = entropy.argsort()
    chances = logits.softmax(1)
    choices: dict[str, dict[str, Any]] = {"top-k, k = 4": {"top_k": 4}, "top-p, p = 0.9": {"top_p": 0.9}}
    for label, options in choices.items():
        held = filtered(logits, **options).isfinite()
        axes[0, 0].plot(entropy[order], held.sum(1)[order], ".", label=label)
        axes[0, 1].plot(entropy[order], (chances * held).sum(1)[order], ".", label=label)
    axes[0, 0].set(xlabel="entropy of the distribution", ylabel="tokens kept, of 9")
    axes[0, 1].set(xlabel="entropy of the distribution", ylabel="probability kept")
    axes[0, 1].axhline(0.9, color="0.5", ls="--", lw=1)
    axes[0, 0].legend(fontsize=8)

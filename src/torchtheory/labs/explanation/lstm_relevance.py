"""Rules for products in an LSTM, on a task in which the relevance of every word is known."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from functools import partial
from typing import Literal

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import OneCycleLR

from torchtheory.core.intervals import mean_interval
from torchtheory.explanation.composites import Composite, DoubtfulRules
from torchtheory.explanation.explanation import Explanation
from torchtheory.explanation.lrp import lrp
from torchtheory.explanation.methods.gradients import gradient_times_input
from torchtheory.explanation.pages.marked_numbers import (
    MarkedNumbers,
    SequenceReader,
    Task,
    marked_numbers,
    relevance_correlations,
)
from torchtheory.explanation.rules import Epsilon, Product
from torchtheory.labs.engine import Run, lab
from torchtheory.sequences.recurrent.conversion import from_torch
from torchtheory.training.loop.trainer import fit

EPSILON = 1e-3
Rule = Literal["all", "prop", "half"]
RULES: tuple[Rule, ...] = ("all", "prop", "half")
LEARNING_RATE = 0.02


#: A relative squared error with which outputs and targets have a correlation of 0.9.
LEARNED = 1 - 0.9**2


@lab(
    "lstm-relevance-task",
    room="explanation",
    covers=["C-35", "C-37"],
    title="An LSTM that adds two marked numbers: giving gates no relevance finds them, sharing with gates does not",
    full={"sequences": 16384, "epochs": 40, "length": 12, "explained": 4000},
    least={"sequences": 400, "length": 3, "explained": 50},
)
def lstm_relevance_task(
    run: Run, sequences: int = 4096, epochs: int = 10, length: int = 8, explained: int = 300
) -> None:
    """An LSTM learns the sum, or the difference, of the two numbers of a sequence that are marked.

    What each word contributes is known: a marked number itself, up to its sign, all others nothing.
    The relevance of words is correlated with it. LRP-all, which gives all of a product of gate and
    signal to the signal, comes close; LRP-prop and LRP-half, which give gates a share, do not, since
    what gates receive goes on to words that only told the gates to open. Gradient times input does
    well here, as an LSTM that has learned to remember has no vanishing gradients.

    Args:
        sequences: to train on.
        epochs: of the training; three times as many for the difference.
        length: words in a sequence.
        explained: other sequences, that are explained.
    """
    one_cell(run, length)
    rows = []
    known: dict[Task, dict[Rule, Tensor]] = {}
    profile: dict[str, list[float]] = {}
    tasks: tuple[Task, ...] = ("sum", "difference")
    for task in tasks:
        net = trained(run, task, sequences, epochs * (1 if task == "sum" else 3), length)
        tested = marked_numbers(explained, length, task, generator=run.generator, dtype=torch.float64)
        with torch.no_grad():
            error = float((net(tested.x) - tested.y).square().mean() / tested.y.var())
        run.assumes(
            error < LEARNED,
            f"the LSTM has not learned the {task}: its relative squared error is {error:.2f}, and contributions are "
            "those to what it should compute",
        )
        found = {rule: explain(net, tested.x, rule) for rule in RULES}
        known[task] = correlations(found, tested)
        plain = gradient_times_input(net, tested.x)
        if task == "sum":
            shown = {f"LRP-{rule}": found[rule] for rule in RULES}
            profile = {name: by_place(e, tested) for name, e in (shown | {"gradient × input": plain}).items()}
        measured = {f"LRP-{rule}": values for rule, values in known[task].items()}
        measured["gradient × input"] = relevance_correlations(words(plain), tested.contribution)
        for name, values in measured.items():
            interval = mean_interval(values)
            rows.append([task, error, name, interval.estimate, interval.low, interval.high])
    other = trained(run, "sum", sequences, epochs, length, other=True)
    tested = marked_numbers(explained, length, "sum", generator=run.generator, dtype=torch.float64)
    better(run, known, correlations({rule: explain(other, tested.x, rule) for rule in RULES}, tested))
    run.table(
        "rules",
        ["task", "relative squared error of the network", "method", "correlation", "low", "high"],
        rows,
        caption="Correlation of the relevance of words with what they contribute, with 99% intervals over 20 groups "
        "of sequences.",
    )
    run.curves(
        "places",
        torch.arange(1, length + 1),
        profile,
        {"a network and a method without error": 1.0},
        axes=("place in the sequence", "correlation"),
        ylim=(-0.5, 1.1),
        beside=True,
        caption="The sum: the correlation of the relevance of marked numbers with what they contribute, by their place "
        "in the sequence. What gates receive from LRP-prop and LRP-half is lost on the way back in time.",
    )


def one_cell(run: Run, length: int) -> None:
    """The cell of Eqs. (5.14) to (5.19), in the project and in torch."""
    theirs = nn.LSTM(3, 5, batch_first=True).double()
    for p in theirs.parameters():
        nn.init.normal_(p, std=0.7, generator=run.generator)
    x = run.randn(4, length, 3)
    with torch.no_grad():
        ours = from_torch(theirs)(x)
        says = run.states(
            "C-35", r"z,i,f,c,o,y\text{ of Eqs. (5.14)-(5.19)}=\text{the LSTM of torch, weights carried over}"
        )
        says.equal(ours, theirs(x)[0], 1e-12)
        mixed = nn.LSTM(3, 5, batch_first=True).double()
        for mine, given in zip(mixed.parameters(), theirs.parameters(), strict=True):
            mine.copy_(torch.cat([given.chunk(4)[k] for k in (2, 0, 1, 3)]))
        says.fails("gates taken in the order of the equations: z, i, f, o", from_torch(mixed)(x))
        says = run.states("C-35", r"\ldots=\text{the equations, step by step, from }y_0=c_0=0")
        says.equal(ours, by_equations(theirs, x), 1e-12)
        before = run.randn(4, 2, 3)
        says.fails("two words were read before", from_torch(theirs)(torch.cat([before, x], 1))[:, 2:])


def by_equations(lstm: nn.LSTM, x: Tensor) -> Tensor:
    """Outputs y of the cell as the chapter writes it; torch stacks i, f, z, o."""
    W, U, b, more = lstm.parameters()
    (W_i, W_f, W_z, W_o), (U_i, U_f, U_z, U_o) = W.chunk(4), U.chunk(4)
    b_i, b_f, b_z, b_o = (b + more).chunk(4)
    y = c = x.new_zeros(len(x), lstm.hidden_size)
    outputs = []
    for x_t in x.unbind(1):
        z = torch.tanh(x_t @ W_z.T + y @ U_z.T + b_z)
        i = torch.sigmoid(x_t @ W_i.T + y @ U_i.T + b_i)
        f = torch.sigmoid(x_t @ W_f.T + y @ U_f.T + b_f)
        c = i * z + f * c
        o = torch.sigmoid(x_t @ W_o.T + y @ U_o.T + b_o)
        y = o * torch.tanh(c)
        outputs.append(y)
    return torch.stack(outputs, 1)


def trained(run: Run, task: Task, sequences: int, epochs: int, length: int, *, other: bool = False) -> SequenceReader:
    """A network for the task, or for the sum of the numbers that are not marked."""
    data = marked_numbers(sequences, length, task, generator=run.generator)
    target = data.x[..., 0].sum(1, keepdim=True) if other else data.y
    net = SequenceReader(2, 16)
    for p in net.parameters():
        nn.init.uniform_(p, -0.25, 0.25, generator=run.generator)
    batch = 128
    steps = epochs * -(-sequences // batch)
    fit(
        net,
        (data.x, target),
        epochs=epochs,
        batch_size=batch,
        learning_rate=LEARNING_RATE,
        schedule=partial(OneCycleLR, max_lr=LEARNING_RATE, total_steps=steps),
        schedule_each="step",
        seed=run.seed,
    )
    return net.double()


def explain(net: nn.Module, x: Tensor, rule: Rule) -> Explanation:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DoubtfulRules)  # LRP-prop is doubtful: that is shown
        return lrp(net, x, rules=Composite(otherwise=Epsilon(EPSILON), product=Product(rule)))


def words(found: Explanation) -> Tensor:
    """Relevance `[n, T]` of words."""
    assert isinstance(found.relevance, Tensor)
    return found.relevance.sum(2)


def correlations(found: Mapping[Rule, Explanation], tested: MarkedNumbers) -> dict[Rule, Tensor]:
    return {rule: relevance_correlations(words(e), tested.contribution) for rule, e in found.items()}


def better(run: Run, known: dict[Task, dict[Rule, Tensor]], elsewhere: dict[Rule, Tensor]) -> None:
    """LRP-all against the two others, on both tasks; `elsewhere` in a network that does neither."""

    def lead(of: dict[Rule, Tensor]) -> list[float]:
        others: tuple[Rule, ...] = ("prop", "half")
        return [mean_interval(of["all"] - of[rule], 0.999).low for rule in others]

    says = run.states("C-37", r"\rho(R,\text{contributions})\text{: LRP-all is ahead of LRP-prop and of LRP-half}")
    says.above(
        [low for of in known.values() for low in lead(of)],
        0.0,
        where="both tasks; lower ends of 99.9% intervals over 20 groups of sequences",
    )
    says.fails("the LSTM has learned another task: to add the numbers that are not marked", lead(elsewhere))
    says = run.states("C-37", r"n_a+n_b,\ \text{LRP-all: }\rho(R,\text{contributions})>0.9")
    says.above(mean_interval(known["sum"]["all"], 0.999).low, 0.9, where="the lower end of a 99.9% interval")
    says.fails("the LSTM that adds the numbers that are not marked", mean_interval(elsewhere["all"], 0.999).low)


def by_place(found: Explanation, tested: MarkedNumbers) -> list[float]:
    """The correlation of relevance with contributions, of the numbers marked at each place."""
    marked = tested.contribution != 0
    pairs = zip(words(found).unbind(1), tested.contribution.unbind(1), marked.unbind(1), strict=True)
    return [float(torch.corrcoef(torch.stack([r[m], c[m]]))[0, 1]) for r, c, m in pairs]

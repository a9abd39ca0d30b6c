"""A step that falls like 1/t keeps stochastic descent stable over many passes; a constant one does not."""

from __future__ import annotations

import torch
from torch import Tensor

from torchtheory.generalization.stability import distance_bound, replace_example
from torchtheory.labs.engine import Run, lab
from torchtheory.optimization.descent.iterates import last_iterate
from torchtheory.optimization.descent.minibatch import draw_batches, minibatch_direction


@lab(
    "step-decay-stability",
    room="generalization",
    covers=["S-25"],
    title="Ten passes over the data: the stability gap vanishes with η = c/t, and stays with a constant step",
    full={"sizes": (10, 20, 40, 80, 160), "trials": 2000},
    least={"trials": 200},
    items={"sizes": 3},
)
def step_decay_stability(run: Run, sizes: tuple[int, ...] = (10, 20, 40, 80), trials: int = 900) -> None:
    """Linear losses, for which Hardt, Recht and Singer's bound is attained, over ten passes.

    Two runs see the same examples but for one. With steps c/t the sum of the steps is a logarithm, so
    the distance of the runs falls like log n / n; with a constant step ten passes move them by the
    same amount however large the sample is. Look at the two slopes.

    Args:
        sizes: numbers of samples.
        trials: random choices of the examples for each size.
    """
    passes, c = 10, 0.5

    def steps(n: int, kind: str) -> list[float]:
        return [c / (t + 1) if kind == "falling" else c / 10 for t in range(passes * n)]

    def linear(theta: Tensor, z: Tensor) -> Tensor:
        return (theta * z).sum(-1)

    def distances(n: int, kind: str) -> Tensor:
        """Of coupled runs whose examples differ in one: its sign is turned round."""
        unit = run.randn(n, 3)
        unit = unit / unit.norm(dim=1, keepdim=True)
        examples = torch.cat([unit, -unit[:1]])
        chosen = draw_batches(n, 1, passes * n, trials=(trials,), sampling="replacement", generator=run.generator)
        start = torch.zeros(trials, 3, dtype=torch.float64)
        ends = [
            last_iterate(minibatch_direction(linear, [examples], order), start, steps(n, kind))
            for order in (chosen, replace_example(chosen, 0, n))
        ]
        apart: Tensor = (ends[0] - ends[1]).norm(dim=1)
        return apart

    found = {kind: torch.stack([distances(n, kind) for n in sizes]) for kind in ("falling", "constant")}
    bounds = {kind: [float(distance_bound(1.0, 0.0, steps(n, kind), n)[-1]) for n in sizes] for kind in found}
    for kind in found:
        says = run.states(
            "S-25", rf"\text{{{kind} step: }}\mathbb E\|\theta_T-\theta'_T\|=\tfrac{{2L}}n\sum_{{t\le10n}}\eta_t"
            r"\text{ for linear losses}"
        )  # fmt: skip
        says.mean(
            (found[kind] / torch.tensor(bounds[kind])[:, None]).flatten(),
            1.0,
            against=(0.5, 2.0),
            confidence=0.9999,
            where=f"all sizes, {trials} coupled runs each",
        )
        short = [float(distance_bound(1.0, 0.0, steps(n, kind)[:n], n)[-1]) for n in sizes]
        if kind == "constant":
            says.fails("a sum over one pass only", (found[kind] / torch.tensor(short)[:, None]).flatten())
        else:
            says.fails(
                "the constant step in the runs, the falling one in the sum",
                (found["constant"] / torch.tensor(bounds[kind])[:, None]).flatten(),
            )
    # single distances may be 0: the means of blocks have logarithms
    blocks = {kind: values.reshape(len(sizes), 10, -1).mean(2).flatten() for kind, values in found.items()}
    fewer = torch.tensor(sizes).repeat_interleave(10)
    ratio = bounds["falling"][-1] / bounds["falling"][0]
    promised = float(torch.log(torch.tensor(ratio)) / torch.log(torch.tensor(sizes[-1] / sizes[0])))
    says = run.states("S-25", r"T=10n:\ \eta_t=c/t \text{ gives a gap that vanishes like } \log n/n")
    says.slope(fewer, blocks["falling"], promised, 0.1, against=(0.0, -0.4), confidence=0.9999)
    says.fails("a constant step, whose gap stays", fewer, blocks["constant"])
    run.curves(
        "distance",
        list(sizes),
        {k: v.mean(1) for k, v in found.items()},
        bounds,
        axes=("samples n", "distance after 10 n steps"),
        log="xy",
        caption="Mean distance of two coupled runs whose data differ in one example; dashed, the bound.",
    )

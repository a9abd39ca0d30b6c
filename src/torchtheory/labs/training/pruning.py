"""Pruning: masks, smaller networks, lottery tickets, and sub-networks that were never trained."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import prune as torch_prune

from torchtheory.data.real import digits, split
from torchtheory.labs.engine import COLORS, Interval, Run, lab, mean_interval
from torchtheory.nets.feedforward import mlp
from torchtheory.training.loop.trainer import fit
from torchtheory.training.many.networks import fit_many, mlp_family
from torchtheory.training.pruning.lottery import KINDS, Recipe, Tickets, lottery_tickets
from torchtheory.training.pruning.magnitude import magnitude_masks
from torchtheory.training.pruning.masks import Masks, masked, random_masks
from torchtheory.training.pruning.units import largest_units, remove_units, unit_masks, unit_scores
from torchtheory.training.pruning.untrained import find_untrained_subnetworks

#: Confidence of each statistical comparison.
SURE = 0.99


@lab(
    "pruning",
    room="training",
    covers=["A-140"],
    title="Pruning, lottery tickets and networks that need no training",
    full={
        "width": 100,
        "epochs": 10,
        "seeds": 8,
        "sparsities": (0.3, 0.5, 0.7, 0.8, 0.9, 0.95, 0.97, 0.985),
        "rewind": 1,
    },
    least={"width": 6, "seeds": 5, "sparsities": 0.0},
    most={"sparsities": 0.99},
)
def pruning(
    run: Run,
    width: int = 48,
    epochs: int = 5,
    seeds: int = 5,
    sparsities: tuple[float, ...] = (0.5, 0.8, 0.9, 0.95),
    rewind: int = 0,
) -> None:
    """What the smallest weights are worth, and what the initial weights of a sub-network are.

    Masks are those of torch; a network without some of its units computes what the masked one
    does; pruned networks trained as one batch end where torch takes each alone. Then tickets are
    drawn on handwritten digits, round after round, each beside its mask with other initial
    weights, and its initial weights with a random mask. The hypothesis is empirical: the curve and
    the table report it, and only what is certain at the stated confidence is claimed, that masks
    of small weights beat random ones where few weights are left. Last, sub-networks are found that
    classify with weights no one trained.

    Args:
        width: of the hidden layers.
        epochs: of a training.
        seeds: trainings of each kind.
        sparsities: shares of the weights that are taken out.
        rewind: epoch to whose weights a ticket is set back.
    """
    exact(run)
    units(run)
    batched(run)
    tickets(run, width, epochs, seeds, sparsities, rewind)
    untrained(run, seeds)


def by_torch(model: nn.Module, share: float, per_layer: bool) -> Tensor:
    """Which weights torch's own pruning keeps, all masks one after the other."""
    net = copy.deepcopy(model)
    layers = [m for m in net.modules() if isinstance(m, nn.Linear)]
    if per_layer:
        for m in layers:
            torch_prune.l1_unstructured(m, "weight", share)  # type: ignore[no-untyped-call]
    else:
        torch_prune.global_unstructured([(m, "weight") for m in layers], torch_prune.L1Unstructured, amount=share)
    return torch.cat([m.weight_mask.flatten().double() for m in layers])  # type: ignore[operator]


def flat(masks: Masks) -> Tensor:
    return torch.cat([m.flatten().double() for m in masks.values()])


def exact(run: Run) -> None:
    net = mlp([9, 14, 14, 4], "relu", generator=run.generator)
    shares = (0.1, 0.37, 0.8, 0.95)
    cases = [(s, per_layer) for s in shares for per_layer in (False, True)]
    theirs = [by_torch(net, s, p) for s, p in cases]
    ours = [magnitude_masks(net, s, per_layer=p) for s, p in cases]
    says = run.states("A-140", r"\text{the } k \text{ smallest weights go, of all layers or of each: torch's masks}")

    def different(masks: list[dict[str, Tensor]]) -> list[float]:
        return [float((flat(m) != peer).sum()) for m, peer in zip(masks, theirs, strict=True)]

    says.equal(different(ours), where="weights masked otherwise; shares 0.1 to 0.95, globally and per layer")
    says.fails("as many weights at random", different([random_masks(m, run.generator) for m in ours]))
    masks = magnitude_masks(net, 0.7)
    weights = torch.cat([dict(net.named_parameters())[k].detach().flatten() for k in masks])
    least = float((weights * (1 - flat(masks))).norm())
    gone = round(0.7 * len(weights))
    says = run.states(
        "A-140",
        r"\|\theta-m\odot\theta\|^2=\sum_{i\le k}|\theta|_{(i)}^2"
        r"\text{, the least of all masks with } k \text{ zeros}",
    )
    says.equal(least, float(weights.abs().sort().values[:gone].norm()), 1e-12)
    layered = flat(magnitude_masks(net, 0.7, per_layer=True))
    says.fails("each layer loses the same share", float((weights * (1 - layered)).norm()))


def units(run: Run) -> None:
    """Sigmoids, for which a unit without incoming weights still speaks."""
    net = mlp([9, 16, 12, 4], nn.Sigmoid(), generator=run.generator)
    x = run.randn(30, 9)
    kept = largest_units(unit_scores(net, x), 0.5)
    masks = unit_masks(net, kept)
    leaving = {f"{layer.outgoing}.weight" for layer in kept}
    smaller = remove_units(net, kept)
    entering = {k: m for k, m in masks.items() if k not in leaving}
    with torch.no_grad():
        says = run.states("A-140", r"\text{a network without units} = \text{the network whose units have weights } 0")
        says.equal(smaller(x), masked(net, masks)(x), 1e-12, where="half of the units of two sigmoid layers")
        says.fails("only their incoming weights are 0", masked(net, entering)(x), promised=smaller(x))
    sizes = [sum(p.numel() for p in m.parameters()) for m in (smaller, masked(net, masks))]
    run.states("A-140", r"\text{and it has fewer parameters: } \textstyle\sum_\ell n_\ell(n_{\ell-1}+1)").equal(
        float(sizes[0]), float(8 * 10 + 6 * 9 + 4 * 7), where=f"of {sizes[1]}"
    )


def batched(run: Run) -> None:
    networks = [mlp([6, w, 3], "relu", generator=run.generator) for w in (8, 12, 12)]
    x = run.randn(96, 6)
    data = (x, x[:, :3].argmax(1))
    masks = [magnitude_masks(net, share) for net, share in zip(networks, (0.3, 0.6, 0.9), strict=True)]
    many = fit_many(networks, data, masks=masks, epochs=3, learning_rate=0.02, seed=[1, 2, 3])
    free = fit_many(
        [masked(n, m) for n, m in zip(networks, masks, strict=True)], data, epochs=3, learning_rate=0.02, seed=[1, 2, 3]
    )
    alone = []
    for k, (net, mask) in enumerate(zip(networks, masks, strict=True)):
        one = copy.deepcopy(net)
        for name, m in mask.items():
            torch_prune.custom_from_mask(one.get_submodule(name.removesuffix(".weight")), "weight", m)  # type: ignore[no-untyped-call]
        fit(one, data, epochs=3, learning_rate=0.02, seed=k + 1)
        alone.append(one)
    with torch.no_grad():
        says = run.states("A-140", r"\text{pruned networks trained as one batch} = \text{each trained alone by torch}")
        says.equal(many.outputs(x), torch.stack([net(x) for net in alone]), 1e-8, where="widths 8, 12, 12, Adam")
        says.fails("pruned at the start only", free.outputs(x))


def tickets(run: Run, width: int, epochs: int, seeds: int, sparsities: tuple[float, ...], rewind: int) -> None:
    train, test = split(*digits(), 0.3, run.generator)
    first = int(torch.randint(2**31, (1,), generator=run.generator))
    model = nn.Sequential(nn.Linear(64, width), nn.ReLU(), nn.Linear(width, 10))
    numbers, recipe = range(first, first + seeds), Recipe(epochs=epochs, learning_rate=5e-3)
    found = lottery_tickets(model, train, test, sparsities=sparsities, seeds=numbers, rewind=rewind, recipe=recipe)
    # where the fewest weights are left the difference is largest, and so is the spread
    last = len(found.sparsities) - 1
    says = run.states("A-140", r"\text{error of random masks minus error of tickets, the same initial weights}")
    says.above(
        found.advantage("random mask", last, SURE).low,
        0,
        where=f"lower end of a {SURE:.0%} interval over {seeds} seeds, {float(found.sparsities[last]):.1%} pruned",
    )
    # the same initial weights and batches; random masks here would err as much as random masks, and
    # an interval of SURE around a difference of 0 lies above it now and then
    whole = recipe.run(found.starts, train, numbers, epochs=epochs - rewind).networks()
    masks = [largest_gone(net, float(found.sparsities[last])) for net in whole]
    second = recipe.run(found.starts, train, numbers, masks, epochs=epochs - rewind, validation=test)
    assert second.validation_error is not None
    again = second.validation_error[:, -1]
    says.fails(
        "as many of the largest weights go",
        mean_interval(found.measures["random mask"][last] - again, SURE).low,
    )
    report_tickets(run, found, seeds)


def largest_gone(model: nn.Module, share: float) -> Masks:
    """Masks that keep the smallest weights: all but those that `magnitude_masks` would keep."""
    return {name: ~mask for name, mask in magnitude_masks(model, 1 - share).items()}


def report_tickets(run: Run, found: Tickets, seeds: int) -> None:
    shares = found.sparsities.tolist()
    run.table(
        "tickets",
        ["pruned", *KINDS, "ticket better than other weights by", "surely?"],
        [
            (
                f"{share:.1%}",
                *(found.mean(kind, s).estimate for kind in KINDS),
                found.advantage(KINDS[1], s, SURE).estimate,
                "yes" if found.advantage(KINDS[1], s, SURE).low > 0 else "not shown",
            )
            for s, share in enumerate(shares)
        ],
        caption=f"Test errors on digits, means of {seeds} seeds; the whole networks err at "
        f"{float(found.dense.mean()):.1%}. Surely: the interval of the difference over seeds, at "
        f"{SURE:.0%}, lies above 0.",
    )
    matched = [
        share
        for s, share in enumerate(shares)
        if mean_interval(found.measures["ticket"][s] - found.dense, SURE).low <= 0
    ]
    if matched:
        run.note(f"Up to {max(matched):.0%} pruned, tickets are not shown to err more than the whole networks.")
    run.figure(
        "tickets",
        lambda axes: plot_tickets(axes, found),
        caption="Test error against the share of weights that went, with 95% intervals over seeds.",
        size=(6.2, 3.6),
    )


def untrained(run: Run, seeds: int) -> None:
    train, test = split(*digits(), 0.3, run.generator)
    first = int(torch.randint(2**31, (1,), generator=run.generator))
    numbers = range(first, first + seeds)
    wide = mlp_family(64, [150], 10, seeds=numbers)
    found = find_untrained_subnetworks(wide, train, keep=0.5, epochs=5, batch_size=128, seeds=numbers)

    at_random = [masked(n, random_masks(f.masks, run.generator)) for n, f in zip(wide, found, strict=True)]
    with torch.no_grad():
        chosen, others = (
            torch.stack([net(test[0]).argmax(1) for net in networks])
            for networks in ([f.network for f in found], at_random)
        )

    def fewer_errors(labels: Tensor) -> Interval:
        return mean_interval(((others != labels).double() - (chosen != labels).double()).mean(1), SURE)

    says = run.states(
        "A-140", r"\text{error of a random sub-network minus error of the one that was found, no weight trained}"
    )
    says.above(fewer_errors(test[1]).low, 0, where=f"lower end of a {SURE:.0%} interval, {seeds} networks")
    says.fails(
        "the test digits have other labels than those of training: each the next", fewer_errors((test[1] + 1) % 10).low
    )
    moved = [
        float((f.network.get_parameter(k) - n.get_parameter(k))[m].detach().abs().max())
        for n, f in zip(wide, found, strict=True)
        for k, m in f.masks.items()
    ]
    run.states("A-140", r"\text{the weights that are left are those of the untrained network}").equal(moved)
    run.note(
        f"Half of the weights of untrained networks 64-150-10, well chosen, err on "
        f"{float((chosen != test[1]).double().mean()):.1%} of the test digits; chosen at random on "
        f"{float((others != test[1]).double().mean()):.0%}."
    )


def plot_tickets(ax: Any, found: Tickets) -> None:
    place = (1 - found.sparsities).tolist()
    for i, kind in enumerate(KINDS):
        means = [found.mean(kind, s) for s in range(len(place))]
        ax.errorbar(
            place,
            [m.estimate for m in means],
            yerr=[[max(0.0, m.estimate - m.low) for m in means], [m.high - m.estimate for m in means]],
            fmt="o-",
            color=COLORS[i],
            label=kind,
            capsize=2,
            markersize=4,
        )
    ax.axhline(float(found.dense.mean()), color="black", linestyle="--", linewidth=1, label="the whole network")
    ax.set(xscale="log", xlabel="share of weights left", ylabel="test error", ylim=(0, None))
    ax.invert_xaxis()
    ax.set_xticks(place, [f"{p:.2g}" for p in place], minor=False)
    ax.minorticks_off()
    ax.legend()

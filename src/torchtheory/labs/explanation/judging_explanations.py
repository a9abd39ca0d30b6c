"""How to tell a good explanation from a bad one: what must hold where the truth is known."""

from __future__ import annotations

import itertools
from functools import partial

import torch
from torch import Tensor, nn

from torchtheory.data.real import digits, split
from torchtheory.explanation.by_feature import Method
from torchtheory.explanation.composites import Composite, first_layer
from torchtheory.explanation.explanation import Explanation
from torchtheory.explanation.judging.evaluation import evaluate_explanations
from torchtheory.explanation.judging.localization import localization
from torchtheory.explanation.judging.pixel_flipping import pixel_flipping
from torchtheory.explanation.judging.property_scores import explanation_scores
from torchtheory.explanation.judging.sanity import LIMIT, randomization_check
from torchtheory.explanation.judging.stability import explanation_stability
from torchtheory.explanation.lrp import lrp
from torchtheory.explanation.methods.gradients import gradient_times_input, integrated_gradients, sensitivity
from torchtheory.explanation.methods.occlusion import occlusion
from torchtheory.explanation.rules import Epsilon, Gamma
from torchtheory.explanation.score import Inputs, Target
from torchtheory.labs.engine import Run, lab
from torchtheory.nets.feedforward import dense, mlp
from torchtheory.training.loop.trainer import fit


@lab(
    "judging-explanations",
    room="explanation",
    covers=["C-05", "C-19"],
    title="Where the truth is known: sums, signs, the best order to remove features, and methods that fail",
    full={"samples": 200, "draws": 20000, "epochs": 40, "judged": 200},
    # of two features there are two orders, and the better one is found by chance in a few samples
    least={"features": 4, "samples": 10, "draws": 20, "judged": 5},
)
def judging_explanations(
    run: Run, features: int = 6, samples: int = 30, draws: int = 4000, epochs: int = 8, judged: int = 40
) -> None:
    """A linear model has a true explanation, $w_ix_i$, so what judges explanations can be judged by it.

    Its contributions add up, have the sign of their removal, and no other order of the features takes
    the score down faster; a bent network breaks each of these. Relevance that knows nothing lies in a
    mask as often as chance has it. On digits, gradient times input, integrated gradients, occlusion and
    relevance propagation all beat a random order, and a method that looks at the image alone does not
    notice that the weights were drawn anew.

    Args:
        features: of the linear model; all their orders are tried.
        samples: inputs of the linear model.
        draws: random orders, and random maps of relevance.
        epochs: of the training on digits.
        judged: test digits that are explained.
    """
    d, x = features, run.randn(samples, features)
    w = run.signs(1, d) * (0.5 + run.rand(1, d))
    plain = nn.Sequential(dense(w))
    biased = nn.Sequential(dense(w, torch.ones(1, dtype=torch.float64)))
    bent = mlp([d, 24, 24, 24, 1], "relu", generator=run.generator)
    true = gradient_times_input(plain, x)

    # -- properties of an explanation
    says = run.states("C-05", r"f=\sum_iw_ix_i:\ |\textstyle\sum_iR_i-f|/|f|=0\text{ for }R_i=w_ix_i")
    says.equal(explanation_scores(plain, x, true).gaps, 0.0, 1e-10)
    says.fails("the model has a bias", explanation_scores(biased, x, gradient_times_input(biased, x)).gaps)
    says = run.states("C-05", r"\mathrm{sign}R_i=\mathrm{sign}\bigl(f(x)-f(x\text{ without }i)\bigr)\text{ for all }i")
    says.equal(share_of_signs(plain, x), 1.0)
    says.fails("the model bends", share_of_signs(bent, x))
    says = run.states(
        "C-05", r"R_i=\partial_if:\ \mathbb E\|R-\mathbb ER\|^2/\mathbb E\|R\|^2=0,\ \text{no interaction}"
    )
    says.equal(explanation_scores(plain, x, sensitivity(plain, x)).interaction, 0.0, 1e-12)
    says.fails("the model bends", explanation_scores(bent, x, sensitivity(bent, x)).interaction)
    says = run.states("C-05", r"R_i=w_ix_i:\ \mathbb E\|R-\mathbb ER\|^2/\mathbb E\|R\|^2=1\text{ for }\mathbb Ex=0")
    both = torch.cat([x, -x])  # whose mean is 0
    says.equal(explanation_scores(plain, both, gradient_times_input(plain, both)).interaction, 1.0, 1e-10)
    shifted = both + 1
    says.fails("Ex = 1", explanation_scores(plain, shifted, gradient_times_input(plain, shifted)).interaction)

    # -- pixel flipping: all orders of the features
    says = run.states("C-19", r"\text{any order}:\ \mathrm{AOPC}\le\mathrm{AOPC}(w_ix_i)")
    few = x[:16]
    says.at_most(best_of_all(plain, few), pixel_flipping(plain, few, gradient_times_input(plain, few)).areas, 1e-10)
    says.fails(
        "the model bends",
        best_of_all(bent, few),
        promised=pixel_flipping(bent, few, gradient_times_input(bent, few)).areas,
    )
    says = run.states("C-19", r"\mathrm{AOPC}_{\text{most first}}+\mathrm{AOPC}_{\text{least first}}=\tfrac{d+1}df(x)")
    says.equal(both_ends(plain, x), plain(x)[:, 0].detach() * (d + 1) / d, 1e-10)
    says.fails("the model bends", both_ends(bent, x), promised=bent(x)[:, 0].detach() * (d + 1) / d)
    positive = 1 + run.rand(draws, d)
    rising = nn.Sequential(dense(w.abs()))
    says = run.states("C-19", r"\text{random order}:\ \mathbb E\,\mathrm{AOPC}/f(x)=\tfrac{d+1}{2d}")
    says.mean(area_shares(run, rising, positive, "random"), (d + 1) / (2 * d), against=(0.5, 1.0), confidence=0.9999)
    says.fails("the most relevant go first", area_shares(run, rising, positive, "most"))

    # -- localization
    image = torch.zeros(8, 8, dtype=torch.bool)
    image[2:5, 3:6] = True
    pictures = run.rand(samples, 1, 8, 8) + 0.1
    inside = nn.Sequential(nn.Flatten(), dense((0.5 + run.rand(1, 64)) * image.reshape(1, -1)))
    outside = nn.Sequential(nn.Flatten(), dense(0.5 + run.rand(1, 64)))
    says = run.states("C-19", r"w=0\text{ outside of }G:\ \text{share}=\text{mass}=\text{rank}=\text{pointing}=1")
    says.equal(places(inside, pictures, image), 1.0, 1e-12)
    says.fails("w is not 0 outside of G", places(outside, pictures, image))
    says = run.states("C-19", r"R\text{ independent of }G:\ \mathbb E\,\text{share}=|G|/d")
    blind = localization(run.rand(draws, 1, 8, 8), image)
    says.mean(blind.shares, blind.area, against=(0.1, 0.2), confidence=0.9999)
    says.fails("R depends on G", localization(run.rand(draws, 1, 8, 8) * (1 + image), image).shares)

    # -- stability
    flat = nn.Sequential(dense(w.sign()))
    says = run.states("C-19", r"f=\sum_i\pm x_i:\ \|R(x+\delta)-R(x)\|/\|\delta\|=1")
    says.equal(explanation_stability(flat, x, gradient_times_input).lipschitz, 1.0, 1e-6)
    says.fails("the model bends", explanation_stability(bent, x, gradient_times_input).lipschitz)

    on_digits(run, epochs, judged)


def on_digits(run: Run, epochs: int, judged: int) -> None:
    """Methods side by side on a trained network, and on one with weights drawn anew."""
    train, (x, _) = split(*digits(torch.float64), 0.4, run.generator)
    net = nn.Sequential(
        nn.Unflatten(1, (1, 8, 8)), nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
        nn.Linear(128, 32), nn.ReLU(), nn.Linear(32, 10),
    ).double()  # fmt: skip
    fit(net, train, epochs=epochs, learning_rate=0.005, seed=run.seed)
    x = x[:judged]
    methods: dict[str, Method] = {
        "gradient × input": gradient_times_input,
        "integrated gradients": partial(integrated_gradients, steps=16),
        "occlusion": occlusion,
        "LRP, gamma": partial(lrp, rules=Composite(((first_layer, Epsilon(1e-6)),), Gamma(0.25))),
        "edges of the image": edges,
    }
    found = evaluate_explanations(net, x, methods, generator=run.generator)
    run.table("methods", found.table.columns, found.table.rows, f"Test digits: {judged}. {found.table.caption}")
    models = [name for name in methods if name != "edges of the image"]
    says = run.states("C-19", r"\mathrm{AOPC}_{\text{most first}}-\mathrm{AOPC}_{\text{random}}>0")
    says.above([found[name].scores.faithfulness.low for name in models], 0.0, where="lower end of the 95% interval")
    outputs = net(x).detach()
    least = [methods[name](net, x, outputs.argmin(1)).relevance for name in models]
    says.fails(
        "explained is the score of the least likely class",
        [explanation_scores(net, x, r, outputs.argmax(1)).faithfulness.low for r in least],
    )
    says = run.states("C-19", r"\text{rank correlation with weights drawn anew}<\sqrt{1/2}")
    says.below(
        [found[name].randomization.last.high for name in models],
        LIMIT,
        where="upper end of the 95% interval",
        loose="the limit is where half of the variance of ranks is kept, and networks that share no weight "
        "have no reason to come near it",
    )
    blind = randomization_check(net, x, edges, generator=run.generator)
    says.fails("the method looks at the image alone", [blind.last.high] * len(models))
    run.curves(
        "pixel-flipping",
        found.random.shares,
        {name: found[name].most.curve for name in methods} | {"random order": found.random.curve},
        axes=("share of the pixels removed", "score of the class"),
        caption="The mean score of the predicted digit while pixels are removed, the most relevant first.",
    )
    layers = ["trained", *found[models[0]].randomization.layers]
    run.curves(
        "randomization",
        list(range(len(layers))),
        {name: [1.0, *(s.estimate for s in found[name].randomization.similarity)] for name in methods},
        {"half of the variance of ranks": LIMIT},
        axes=("layers drawn anew, from the output on", "rank correlation with the first explanation"),
        caption="Similarity of explanations while weights are drawn anew, layer by layer from the output.",
    )


def edges(model: nn.Module, x: Inputs, target: Target = None) -> Explanation:
    """Where an image changes, whatever the model."""
    assert isinstance(x, Tensor)
    images = x.reshape(-1, 8, 8)
    across = images.diff(dim=2, prepend=images[:, :, :1]).abs() + images.diff(dim=1, prepend=images[:, :1]).abs()
    return Explanation(across.reshape(x.shape), x.sum(1), "edges")


def share_of_signs(model: nn.Module, x: Tensor) -> float:
    sign = explanation_scores(model, x, gradient_times_input(model, x)).sign
    assert sign is not None
    return sign.estimate


def best_of_all(model: nn.Module, x: Tensor) -> Tensor:
    """The largest area over all orders of the features, sample by sample."""
    orders = torch.tensor(list(itertools.permutations(range(x.shape[1]))), dtype=torch.float64)
    many = x.repeat_interleave(len(orders), 0)
    areas = pixel_flipping(model, many, orders.repeat(len(x), 1), steps=x.shape[1]).areas
    return areas.reshape(len(x), -1).amax(1)


def both_ends(model: nn.Module, x: Tensor) -> Tensor:
    made = gradient_times_input(model, x)
    return pixel_flipping(model, x, made).areas + pixel_flipping(model, x, made, order="least").areas


def area_shares(run: Run, model: nn.Module, x: Tensor, order: str) -> Tensor:
    made = gradient_times_input(model, x)
    found = pixel_flipping(model, x, made, order=order, draws=1, generator=run.generator)  # type: ignore[arg-type]
    return found.areas / found.scores[:, 0]


def places(model: nn.Module, x: Tensor, mask: Tensor) -> list[float]:
    found = localization(gradient_times_input(model, x), mask)
    return [i.estimate for i in (found.share, found.mass, found.rank, found.pointing) if i is not None]

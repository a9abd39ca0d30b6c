r"""Does a network fit labels that mean nothing? The experiment, for any network and data set.

The same architecture is trained in the same way on the true labels, on labels of which a share
$p$ is random, and on images with nothing left to see. What comes back for each: training and
test error, the epochs it took, margins and norms. Networks that can be stacked are trained as one
batch by `fit_many`, others one after the other by
`fit`. Sources: Mathematical Aspects of Deep Learning, sections
1.1.3 and 2.3; Foundations of Deep Learning, section 8.4 (all after Zhang et al. 2017).
"""

from __future__ import annotations

import copy
import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from torchtheory.core.checks import described, first_entry
from torchtheory.core.errors import (
    EmptyData,
    InvalidInput,
    InvalidType,
    NonFinite,
    ShapeMismatch,
    UnsupportedModel,
)
from torchtheory.core.progress import display, track
from torchtheory.generalization.memorization.label_corruption import (
    IMAGE_CORRUPTIONS,
    corrupted_images,
    corrupted_labels,
)
from torchtheory.kernels.paths.path_kernel import path_norms
from torchtheory.models.model import global_randomness_kept
from torchtheory.models.problem import Loss, Problem
from torchtheory.models.samples import Data, Samples, collect
from torchtheory.training.loop.seeds import derived_generator
from torchtheory.training.loop.trainer import fit
from torchtheory.training.many.networks import Each, fit_many
from torchtheory.training.many.stacked import layout

MakeNetwork = Callable[[], nn.Module]
"""A function that builds the network anew; it is called with torch's generator seeded."""


@dataclass(frozen=True, slots=True)
class FittedNetworks:
    """K networks after training, and how they got there.

    Attributes:
        networks: copies of the given ones with their weights at the end.
        train_loss, running_error: `[K, epochs]`; mean loss and share of errors met while passing
            through the data, before each step.
        train_error, test_error: `[K]`, of the networks at the end; the test error is NaN
            without test data.
        margins: `[K, n]`, on the training data with the labels trained on; see
            `Problem.margins`.
    """

    networks: tuple[nn.Module, ...]
    train_loss: Tensor
    running_error: Tensor
    train_error: Tensor
    test_error: Tensor
    margins: Tensor

    @property
    def epochs_to_fit(self) -> Tensor:
        """The first epoch `[K]` without an error in passing; infinite if there was none."""
        clean = self.running_error == 0
        first = clean.to(torch.int8).argmax(1).double() + 1
        return torch.where(clean.any(1), first, math.inf)


def fit_and_test(
    networks: Sequence[nn.Module],
    train: Data,
    test: Data | None = None,
    *,
    labels: Tensor | None = None,
    epochs: int = 100,
    batch_size: int = 64,
    learning_rate: Each | None = None,
    weight_decay: Each = 0.0,
    loss: Loss | None = None,
    seed: int = 0,
) -> FittedNetworks:
    """Train classifiers with Adam to the end, without early stopping, and look at what they became.

    Args:
        networks: modules, which are only read. Those with dropout or batch normalization are
            trained one by one.
        train, test: `(x, y)`, a `Dataset` or a `DataLoader`; held in memory.
        labels: `[K, n]`, what each network is trained on instead of the labels in `train`.
        epochs, batch_size, loss: as for `fit_many`.
        learning_rate, weight_decay: one number for all, or one for each network.
        seed: of the order of the batches, which is the same for all.

    >>> x = torch.randn(20, 5, generator=torch.Generator().manual_seed(0))
    >>> net = nn.Sequential(nn.Linear(5, 40), nn.ReLU(), nn.Linear(40, 2))
    >>> coin = torch.arange(20) % 2
    >>> found = fit_and_test([net], (x, coin), epochs=200, learning_rate=0.01)
    >>> found.train_error.item(), bool(found.margins.min() > 0)
    (0.0, True)
    """
    networks = list(networks)
    if not networks:
        raise EmptyData("there is no network to train")
    for k, net in enumerate(networks):
        if not isinstance(net, nn.Module):
            raise InvalidType(f"network {k} is a {type(net).__name__}, not a torch.nn.Module")
    count = len(networks)
    samples = collect(train, "train", limit=sys.maxsize)
    held_out = None if test is None else collect(test, "test", limit=sys.maxsize)
    first = Problem(networks[0], samples, held_out, loss=loss, limit=sys.maxsize, plain_mean=False)
    if not first.is_classification:
        raise InvalidInput("errors are counted in classification, and this is a regression")
    if labels is None:
        labels = samples.y.expand(count, *samples.y.shape)
    if not isinstance(labels, Tensor) or labels.shape[:2] != (count, len(samples)):
        raise ShapeMismatch(f"labels must be a tensor [{count} networks, {len(samples)} samples]")
    rates = None if learning_rate is None else _one_each(learning_rate, count, "learning_rate")
    decays = _one_each(weight_decay, count, "weight_decay")
    together = [k for k in range(count) if _can_be_stacked(networks[k])]
    trained: dict[int, nn.Module] = {}
    seen: dict[int, Tensor] = {}
    unseen: dict[int, Tensor] = {}
    losses = torch.zeros(count, epochs if isinstance(epochs, int) else 1, dtype=torch.float64)
    running = losses.clone()
    common: dict[str, Any] = {
        "epochs": epochs,
        "batch_size": batch_size,
        "loss": loss,
        "task": first.task,
        "seed": seed,
    }
    with display():
        if together:
            many = fit_many(
                [networks[k] for k in together],
                (samples.x, samples.y),
                labels=labels[together],
                learning_rate=None if rates is None else [rates[k] for k in together],
                weight_decay=[decays[k] for k in together],
                **common,
            )
            losses[together], running[together] = many.train_loss, many.train_error
            trained.update(zip(together, many.networks(), strict=True))
            seen.update(zip(together, many.outputs(first.train.x), strict=True))
            if first.test is not None:
                unseen.update(zip(together, many.outputs(first.test.x), strict=True))
        alone = [k for k in range(count) if k not in trained]
        for k in track(alone, "networks trained alone"):
            own = copy.deepcopy(networks[k])
            history = fit(
                own,
                (samples.x, labels[k]),
                learning_rate=None if rates is None else rates[k],
                weight_decay=decays[k],
                **common,
            )
            losses[k] = torch.tensor(history.train_losses, dtype=torch.float64)
            running[k] = torch.tensor(history.train_errors, dtype=torch.float64)
            trained[k] = own
            made = Problem(own, samples, held_out, task=first.task, limit=sys.maxsize, chunk=4096)
            seen[k] = made.outputs(made.train)
            if made.test is not None:
                unseen[k] = made.outputs(made.test)
    margins, missed = [], []
    for k in range(count):
        own_labels = first.prepare(Samples(samples.x, labels[k]), "train").y
        margins.append(_margins(seen[k], own_labels).double().cpu())
        missed.append(
            math.nan if first.test is None else _share(_margins(unseen[k], first.test.y).cpu() <= 0)
        )
    all_margins = torch.stack(margins)
    return FittedNetworks(
        tuple(trained[k] for k in range(count)),
        losses,
        running,
        (all_margins <= 0).double().mean(1),
        torch.tensor(missed, dtype=torch.float64),
        all_margins,
    )


@dataclass(frozen=True, slots=True)
class MemorizedNetwork:
    r"""One trained network of the experiment.

    Attributes:
        data: `labels`, or what was done to the images.
        share: probability with which a label was drawn anew.
        weight_decay, seed: of the training, and of initial weights and corruption.
        train_error, test_error: after the last epoch; the test labels are the true ones.
        epochs_to_fit: the first epoch without an error in passing, or infinity.
        least_margin, median_margin: on the training data.
        frobenius_product: $\prod_\ell\|W^{(\ell)}\|_F$ over the parameters with two axes or
            more.
        path_norm: $(\sum_k\|\bar w_k\|_2^2)^{1/2}$ over the outputs; NaN for networks
            without path features.
        distance: $\|\theta-\theta_0\|_2$ from the initial parameters.
    """

    data: str
    share: float
    weight_decay: float
    seed: int
    train_error: float
    test_error: float
    epochs_to_fit: float
    least_margin: float
    median_margin: float
    frobenius_product: float
    path_norm: float
    distance: float

    @property
    def gap(self) -> float:
        """Test minus training error."""
        return self.test_error - self.train_error


@dataclass(frozen=True, slots=True)
class Memorization:
    """The experiment's outcome.

    Attributes:
        rows: one for each trained network.
        train_loss: `[rows, epochs]`.
        networks: in the order of the rows.
    """

    rows: tuple[MemorizedNetwork, ...]
    train_loss: Tensor
    networks: tuple[nn.Module, ...]

    def select(
        self,
        data: str = "labels",
        share: float | None = None,
        weight_decay: float | None = None,
    ) -> Memorization:
        """The networks with this data, share and weight decay, in the order of the seeds."""
        kept = [
            i
            for i, row in enumerate(self.rows)
            if row.data == data
            and share in (None, row.share)
            and weight_decay in (None, row.weight_decay)
        ]
        if not kept:
            raise InvalidInput(f"no network was trained with {data!r}, share {share}")
        rows, nets = [self.rows[i] for i in kept], [self.networks[i] for i in kept]
        return Memorization(tuple(rows), self.train_loss[kept], tuple(nets))

    def column(self, name: str) -> Tensor:
        """An attribute of all rows, `[rows]`."""
        return torch.tensor([float(getattr(row, name)) for row in self.rows], dtype=torch.float64)

    def table(self) -> tuple[list[str], list[tuple[str | float, ...]]]:
        """Column names and rows, means over the seeds."""
        numbers = (
            "train_error",
            "test_error",
            "gap",
            "epochs_to_fit",
            "least_margin",
            "frobenius_product",
            "path_norm",
        )
        keys = dict.fromkeys((r.data, r.share, r.weight_decay) for r in self.rows)
        rows: list[tuple[str | float, ...]] = []
        for key in keys:
            part = self.select(*key)
            rows.append((*key, *(float(part.column(n).mean()) for n in numbers)))
        names = ["data", "share", "weight decay", *(n.replace("_", " ") for n in numbers)]
        return names, rows


def memorization_test(
    make_network: MakeNetwork,
    train: Data,
    test: Data,
    *,
    shares: Sequence[float] = (0.0, 0.25, 0.5, 0.75, 1.0),
    images: Sequence[str] = tuple(IMAGE_CORRUPTIONS),
    weight_decays: Sequence[float] = (0.0,),
    seeds: Sequence[int] = (0, 1, 2),
    epochs: int = 100,
    batch_size: int = 64,
    learning_rate: float | None = None,
) -> Memorization:
    """Train one architecture on true labels, on random ones, and on images without content.

    With one seed all trainings begin at the same weights, and the labels that are corrupted at
    one share are so at all larger ones.

    Args:
        make_network: builds the network, one logit per class; called once per seed.
        train, test: classification data. The test labels stay as they are.
        shares: probabilities with which a training label is drawn anew from all classes, see
            `corrupted_labels`.
        images: which of `IMAGE_CORRUPTIONS` to try, with the true labels.
        weight_decays: as for `fit_many`, each with everything.
        seeds: of the initial weights and of the corruption.
        epochs, batch_size, learning_rate: as for `fit_many`.

    Trains `(shares + images) * weight_decays * seeds` networks, with Adam.

    >>> x = torch.randn(90, 8, generator=torch.Generator().manual_seed(0))
    >>> y = (x[:, 0] > 0).long()
    >>> def make_network():
    ...     return nn.Sequential(nn.Linear(8, 100), nn.ReLU(), nn.Linear(100, 2))
    >>> found = memorization_test(make_network, (x[:40], y[:40]), (x[40:], y[40:]),
    ...                           shares=[0, 1], images=[], learning_rate=0.01)
    >>> found.select(share=1).column("train_error").tolist()
    [0.0, 0.0, 0.0]
    >>> true, coin = (found.select(share=s).column("test_error").mean() for s in (0, 1))
    >>> bool(true < 0.25 < 0.4 < coin)
    True
    """
    seeds, decays = list(seeds), list(weight_decays)
    if not seeds or not decays or not (len(shares) or len(images)):
        raise EmptyData("there must be a seed, a weight decay, and a share or an image corruption")
    samples = collect(train, "train", limit=sys.maxsize)
    held_out = collect(test, "test", limit=sys.maxsize)
    initial = [seeded_network(make_network, s) for s in seeds]
    problem = Problem(initial[0], samples, held_out, limit=sys.maxsize)
    if problem.task != "multiclass" or problem.classes is None:
        raise InvalidInput(
            f"the experiment is for networks with one logit per class, and this is a "
            f"{problem.task} problem"
        )
    x, y, classes = problem.train.x, problem.train.y, problem.classes
    assert problem.test is not None
    tests = problem.test
    rows: list[MemorizedNetwork] = []
    losses, networks = [], []
    plan: list[tuple[str, list[float]]] = [("labels", [float(s) for s in shares])]
    plan += [(kind, [0.0]) for kind in images]
    with display():
        for data, levels in track([p for p in plan if p[1]], "kinds of data"):
            pair = (x, tests.x)
            if data != "labels":
                pair = corrupted_images(data, *pair, generator=derived_generator(seeds[0], data))
            cases = [(p, d, k) for p in levels for d in decays for k in range(len(seeds))]
            found = fit_and_test(
                [initial[k] for _, _, k in cases],
                (pair[0], y),
                (pair[1], tests.y),
                labels=torch.stack([_labels(y, classes, p, seeds[k]) for p, _, k in cases]),
                epochs=epochs,
                batch_size=batch_size,
                learning_rate=learning_rate,
                weight_decay=[d for _, d, _ in cases],
            )
            losses.append(found.train_loss)
            networks += list(found.networks)
            for i, (p, d, k) in enumerate(cases):
                margins = found.margins[i]
                rows.append(
                    MemorizedNetwork(
                        data,
                        p,
                        d,
                        seeds[k],
                        float(found.train_error[i]),
                        float(found.test_error[i]),
                        float(found.epochs_to_fit[i]),
                        float(margins.min()),
                        float(margins.median()),
                        *_norms(found.networks[i], initial[k], x.shape[1:]),
                    )
                )
    return Memorization(tuple(rows), torch.cat(losses), tuple(networks))


def seeded_network(make_network: MakeNetwork, seed: int) -> nn.Module:
    """What `make_network()` builds when torch's generator starts from a seed.

    >>> a, b = (seeded_network(lambda: nn.Linear(2, 1), 3) for _ in range(2))
    >>> bool((a.weight == b.weight).all())
    True
    """
    if not callable(make_network) or isinstance(make_network, nn.Module):
        raise InvalidType(
            "make_network must be a function without arguments that builds a network (given: "
            f"{described(make_network)})"
        )
    with global_randomness_kept():
        torch.default_generator.manual_seed(seed)
        made = make_network()
    if not isinstance(made, nn.Module):
        raise InvalidType(f"make_network returned a {type(made).__name__}, not a torch.nn.Module")
    return made


def _labels(y: Tensor, classes: int, share: float, seed: int) -> Tensor:
    return corrupted_labels(
        y, classes, share, generator=derived_generator(seed, "corrupted labels")
    )


def _norms(net: nn.Module, initial: nn.Module, shape: Sequence[int]) -> tuple[float, float, float]:
    """Product of Frobenius norms, path norm, distance from the initial weights."""
    weights = [p.detach().double() for p in net.parameters()]
    before = [p.detach().double() for p in initial.parameters()]
    product = math.prod(float(w.norm()) for w in weights if w.ndim > 1)
    distance = math.sqrt(
        sum(float((a - b).square().sum()) for a, b in zip(weights, before, strict=True))
    )
    try:
        path = float(path_norms(net, shape).norm())
    except UnsupportedModel:
        path = math.nan
    return product, path, distance


def _can_be_stacked(net: nn.Module) -> bool:
    try:
        layout(net)
    except UnsupportedModel:
        return False
    return True


def _margins(outputs: Tensor, y: Tensor) -> Tensor:
    """Of outputs `[n, classes]` or one logit per sample, as `Problem.margins` has them."""
    if not bool(torch.isfinite(outputs).all()):
        raise NonFinite(
            "the outputs of a trained network contain NaN or infinity: it diverged ("
            f"{first_entry(outputs, 'the value', ~torch.isfinite(outputs))})"
        )
    if outputs.numel() == len(y):
        return (2 * y - 1).reshape(len(y)) * outputs.reshape(len(y))
    own = outputs.gather(1, y[:, None]).squeeze(1)
    return own - outputs.scatter(1, y[:, None], -math.inf).amax(1)


def _share(wrong: Tensor) -> float:
    return float(wrong.double().mean())


def _one_each(values: Each, count: int, name: str) -> list[float]:
    found = torch.as_tensor(values, dtype=torch.float64)
    if found.ndim == 0:
        found = found.expand(count)
    if found.shape != (count,):
        raise ShapeMismatch(f"{name} must be one number or {count} of them, one per network")
    return [float(v) for v in found]

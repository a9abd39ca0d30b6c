r"""Hundreds of small trainings as one batched computation.

A step of a small network is mostly overhead: a hundred microseconds of Python and dispatch around
a few microseconds of arithmetic. Stacked, K networks pay it once. Seeds, widths, learning rates,
weight decays, labels and label noise may differ from network to network; each one ends (to
rounding) where `fit` would have taken it alone.
"""

from __future__ import annotations

import itertools
import math
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from torchtheory.core.checks import closed_fraction, whole_number, whole_numbers
from torchtheory.core.errors import (
    EmptyData,
    InvalidInput,
    InvalidType,
    ShapeMismatch,
    UnknownName,
)
from torchtheory.core.progress import display, track
from torchtheory.core.threads import SideBySide
from torchtheory.models.model import evaluating, global_randomness_kept
from torchtheory.models.problem import Loss, Problem, Task
from torchtheory.models.samples import Data, Samples
from torchtheory.training.loop.batches import BatchSource, InMemory, OpenData
from torchtheory.training.loop.history import Epoch, History
from torchtheory.training.loop.seeds import derived_generator, epoch_order
from torchtheory.training.many.stacked import Layout, Stack, StackedModules, layout, stack
from torchtheory.training.many.stacked_gradients import gradients_of
from torchtheory.training.many.stacked_losses import LossTotals, StackedLosses
from torchtheory.training.many.stacked_steps import STEPS, Step, stacked_steps
from torchtheory.training.optimizers.named import OPTIMIZERS
from torchtheory.training.pruning.masks import Masks, checked_masks

Each = float | Sequence[float] | Tensor
"""One number for all networks, or one for each."""

# What a step of a group costs besides its arithmetic, in parameters times samples: padding costs
# arithmetic, and a further group costs this.
OVERHEAD = 5_000_000

# How often that a thread of its own must have to do in a step.
_WORTH = 2

# Samples that all networks are evaluated on at once: their values should stay in caches.
_CHUNK = 128

# Batches that are read at once at most, and numbers of their inputs.
_TOGETHER, _READ = 16, 2**20


@dataclass(frozen=True, slots=True)
class Group:
    """Networks that were trained as one stack: which ones, and the stack."""

    members: tuple[int, ...]
    stack: Stack


@dataclass(frozen=True, slots=True)
class ManyResult:
    """Trained networks and their histories.

    Attributes:
        groups: the stacks of parameters; every network is in exactly one.
        train_loss, train_error: `[K, epochs]`, as in `History`; the error is NaN in
            regression.
        validation_loss, validation_error: `[K, epochs]`, or None without validation data.
        validated: the epochs after which these were looked at, `[epochs]`; they are NaN after the
            others.
        learning_rates: `[K]`.
        labels: what each network was trained on, `[K, n, ...]`, or `[n, ...]` if all shared it.
        seconds: for all together.
    """

    groups: tuple[Group, ...]
    train_loss: Tensor
    train_error: Tensor
    validation_loss: Tensor | None
    validation_error: Tensor | None
    validated: Tensor
    learning_rates: Tensor
    labels: Tensor
    seconds: float

    def __len__(self) -> int:
        return len(self.train_loss)

    @property
    def diverged(self) -> Tensor:
        """Which networks `[K]` ended with a loss or weights that are not finite."""
        bad = ~torch.isfinite(self.train_loss[:, -1])
        for group in self.groups:
            for p in group.stack.trained:
                finite = torch.isfinite(p.detach()).flatten(1).all(1)
                bad[list(group.members)] |= ~finite.cpu()
        return bad

    def network(self, k: int) -> nn.Module:
        """An ordinary module with the k-th network's weights, without padding."""
        if not -len(self) <= k < len(self):
            raise InvalidInput(f"there are {len(self)} networks, and no network {k}")
        k %= len(self)
        group = next(g for g in self.groups if k in g.members)
        return group.stack.network(group.members.index(k))

    def networks(self) -> Iterator[nn.Module]:
        """All of them, in the order they were given."""
        return (self.network(k) for k in range(len(self)))

    @torch.no_grad()
    def outputs(self, x: Tensor) -> Tensor:
        """Outputs `[K, n, outputs]` of all networks for inputs `x[n, ...]`."""
        parts: list[Tensor | None] = [None] * len(self)
        for group in self.groups:
            like = group.stack.trained[0]
            x = x.to(like) if x.is_floating_point() else x.to(like.device)
            chunks = [group.stack.on_shared(c).mT for c in torch.split(x, _CHUNK)]
            for k, outputs in zip(group.members, torch.cat(chunks, 1), strict=True):
                parts[k] = outputs
        return torch.stack([p for p in parts if p is not None])

    def history(self, k: int) -> History:
        """The k-th network's history, as `fit` would have returned it."""
        if not 0 <= k < len(self):
            raise InvalidInput(f"there are {len(self)} networks, and no network {k}")
        rows = []
        for e in range(self.train_loss.shape[1]):
            error = float(self.train_error[k, e])
            rows.append(
                Epoch(
                    e + 1,
                    float(self.train_loss[k, e]),
                    None if math.isnan(error) else error,
                    _entry(self.validation_loss, k, e) if self.validated[e] else None,
                    _entry(self.validation_error, k, e) if self.validated[e] else None,
                    float(self.learning_rates[k]),
                    self.seconds / self.train_loss.numel(),
                )
            )
        return History(rows, "all epochs done", len(rows))


def fit_many(
    networks: Sequence[nn.Module],
    train: Data,
    *,
    validation: Data | float | None = None,
    validate_every: int = 1,
    epochs: int = 10,
    batch_size: int = 64,
    optimizer: str = "adam",
    learning_rate: Each | None = None,
    weight_decay: Each = 0.0,
    labels: Tensor | None = None,
    label_noise: Each = 0.0,
    masks: Sequence[Masks | None] | None = None,
    loss: Loss | None = None,
    task: Task | None = None,
    seed: int | Sequence[int] = 0,
    memory: int = 2**30,
) -> ManyResult:
    r"""Train many networks at once; the given ones stay as they are.

    Args:
        networks: modules with the same inputs and outputs. Chains of linear layers and
            elementwise activations may differ in width and depth; other networks are stacked
            with those of the same architecture. Dropout and batch normalization are refused.
        train, validation, epochs, batch_size, task: as for `fit`; the data are held in memory. A
            share of the data that is held out is the same for all networks, by the first seed.
        validate_every: epochs from one look at the validation data to the next; after the last
            epoch there always is one.
        optimizer: `sgd`, `momentum`, `nesterov`, `adam` or `adamw`.
        learning_rate, weight_decay: one for all, or one for each network.
        labels: targets of their own for each network, `[K, n, ...]`, instead of those in
            `train`.
        label_noise: share of the labels replaced by another class at random; one for all, or one
            for each network. The noise follows from the network's seed.
        masks: for each network which weights stay (see `torchtheory.training.pruning`), or None;
            the others are 0 from the beginning and stay so. Units of a chain that no weight reads
            any more cost nothing, unless weights decay.
        loss: as for `fit`, mapped over the networks.
        seed: one for all, or one for each network. Networks with the same seed get the same
            batches in the same order, those `fit` would give them; when all seeds are equal a
            batch is read once for all, and the first layers become one matrix product.
        memory: bytes to stay within. Networks that do not fit together are trained group after
            group; so are networks of too different widths.

    Returns:
        `ManyResult`. A network that diverges does not disturb the others; see
        `.diverged`.

    Time of a step: one batched product per layer; where that is much, threads train parts of a
    group side by side (not with a `loss` of your own). Memory: for each network about
    $(6P + 4Bw)$ numbers with $P$ parameters, $w$ units and batches of
    $B$.

    >>> nets = mlp_family(2, widths=[3, 8], outputs=2, seeds=[0, 1])
    >>> x = torch.randn(40, 2, generator=torch.Generator().manual_seed(0))
    >>> result = fit_many(nets, (x, (x[:, 0] > 0).long()), epochs=30, learning_rate=0.05)
    >>> len(result), result.network(2)[0].out_features
    (4, 8)
    >>> bool((result.train_error[:, -1] < 0.2).all())
    True
    """
    started = time.perf_counter()
    networks = list(networks)
    if not networks:
        raise EmptyData("there is no network to train")
    for k, model in enumerate(networks):
        if not isinstance(model, nn.Module):
            raise InvalidType(f"network {k} is a {type(model).__name__}, not a torch.nn.Module")
        if not any(p.requires_grad for p in model.parameters()):
            raise InvalidInput(f"network {k} has no parameter to train")
    whole_number(epochs, "epochs", least=1)
    whole_number(validate_every, "validate_every", least=1)
    if optimizer not in STEPS:
        raise UnknownName("optimizer of stacked networks", str(optimizer), STEPS)
    count = len(networks)
    rates = _each(
        OPTIMIZERS[optimizer][2] if learning_rate is None else learning_rate, count, "learning_rate"
    )
    decays = _each(weight_decay, count, "weight_decay")
    noise = _each(label_noise, count, "label_noise")
    seeds = [seed] * count if isinstance(seed, int) else list(seed)
    if len(seeds) != count:
        raise ShapeMismatch(f"there are {count} networks but {len(seeds)} seeds")
    pruned = _masks(networks, masks)

    data = OpenData(
        networks[0],
        train,
        validation,
        loss=loss,
        task=task,
        batch_size=batch_size,
        seed=seeds[0],
        memory=sys.maxsize,
    )
    problem = data.problem
    if problem.task not in ("regression", "binary", "multiclass"):
        raise InvalidInput(
            "fit_many trains for regression and classification, one target per sample; train with "
            "fit where there are others, or none"
        )
    x = problem.train.x
    lean = pruned is not None and not bool(decays.any())  # decay moves what no unit reads as well
    stays = pruned if pruned is not None and lean else [None] * count
    layouts = [layout(m, masks) for m, masks in zip(networks, stays, strict=True)]
    _refuse_other_shapes(networks, layouts, problem)
    targets = _targets(problem, labels, noise, seeds)
    held_out = None if data.validation is None else _samples(data.validation)
    groups = _group(layouts, batch_size, memory, problem)

    shape = (count, epochs)
    train_loss, train_error = torch.full(shape, math.nan), torch.full(shape, math.nan)
    train_loss, train_error = train_loss.double(), train_error.double()
    validated = torch.arange(1, epochs + 1) % validate_every == 0
    validated[-1] = True
    validation_loss, validation_error = train_loss.clone(), train_error.clone()

    def prepared(members: list[int]) -> tuple[_Stacked, Step]:
        rows = torch.tensor(members)
        one = _Stacked(
            stack(
                [networks[k] for k in members],
                pruned and [pruned[k] for k in members],
                lean=lean,
            ),
            problem,
            x,
            targets if targets.ndim == problem.train.y.ndim else targets[rows.to(x.device)],
            [seeds[k] for k in members],
            usual_loss=loss is None,
        )
        return one, stacked_steps(optimizer, one.stack.trained, rates[rows], decays[rows])

    def trained(
        members: list[int], one: _Stacked, step: Step, stop: threading.Event, *, shown: bool
    ) -> Group:
        rows = torch.tensor(members)
        each = range(1, epochs + 1)
        for epoch in track(each, f"{len(members)} networks") if shown else each:
            if stop.is_set():
                break
            losses, errors = one.run_epoch(epoch, batch_size, step)
            train_loss[rows, epoch - 1] = losses
            train_error[rows, epoch - 1] = errors
            if held_out is not None and validated[epoch - 1]:
                losses, errors = one.evaluate(held_out)
                validation_loss[rows, epoch - 1] = losses
                validation_error[rows, epoch - 1] = errors
        for p in one.stack.trained:
            p.requires_grad_(False)
        return Group(tuple(members), one.stack)

    done: list[Group] = []
    side_by_side = SideBySide()
    with torch.enable_grad(), global_randomness_kept(), display():
        for members in track(groups, "groups of networks"):
            largest = max(layouts[k].parameters for k in members)
            # a loss of the user's may not be made for threads
            parts = 1 if loss is not None else _parts(len(members), largest * batch_size, x.device)
            cut = [members[i::parts] for i in range(parts)]
            # stacked one after the other: while a model is traced, nothing else may call a module
            shares = [partial(trained, part, *prepared(part), shown=part is cut[0]) for part in cut]
            done += side_by_side(shares) if parts > 1 else [shares[0](threading.Event())]
    classified = problem.is_classification
    return ManyResult(
        tuple(done),
        train_loss,
        train_error,
        None if held_out is None else validation_loss,
        None if held_out is None or not classified else validation_error,
        validated,
        rates,
        targets,
        time.perf_counter() - started,
    )


class _Stacked:
    """A stack of networks with its data."""

    def __init__(
        self,
        stack: Stack,
        problem: Problem,
        x: Tensor,
        y: Tensor,
        seeds: Sequence[int],
        *,
        usual_loss: bool,
    ) -> None:
        self.stack, self.problem, self.x, self.y = stack, problem, x, y
        self.seeds = seeds
        self.losses = StackedLosses(problem, usual=usual_loss)
        self.gradients = gradients_of(stack, self.losses)
        self.own_labels = y.ndim > problem.train.y.ndim
        self.one_order = len(set(seeds)) == 1

    def run_epoch(self, epoch: int, batch_size: int, step: Step) -> tuple[Tensor, Tensor]:
        """One pass over the data, of which several batches are read at once.

        Returns:
            Mean losses and errors `[K]`.
        """
        each = max(1, self.x[0].numel() * len(self.seeds) * batch_size)
        together = batch_size * max(1, min(_TOGETHER, _READ // each))
        total = LossTotals(self.losses, own=self.own_labels or not self.one_order)
        for index in self._orders(epoch, together):
            inputs, targets = self._batch(index)
            shared = index.ndim == 1
            batches = [
                (
                    inputs.narrow(0 if shared else 1, start, size),
                    targets.narrow(total.dim, start, size),
                )
                for start in range(0, index.shape[-1], batch_size)
                for size in (min(batch_size, index.shape[-1] - start),)
            ]
            for x, y in batches:
                outputs, gradients = self.gradients(x, y, shared=shared)
                step(gradients)
                total.add(outputs, y)
        return total.means()

    @torch.no_grad()
    def evaluate(self, samples: Samples) -> tuple[Tensor, Tensor]:
        """Mean losses and errors `[K]` of all networks on the same samples."""
        total = LossTotals(self.losses, own=False)
        one = self.stack
        # a chain does the same in both modes
        with evaluating(one.base) if isinstance(one, StackedModules) else nullcontext():
            for x, y in samples.chunks(_CHUNK):
                total.add(self.gradients.outputs(x), y)
        return total.means()

    def _orders(self, epoch: int, batch_size: int) -> tuple[Tensor, ...]:
        """Row numbers of each batch: `[B]` where all share it, else `[K, B]`."""
        if self.one_order:
            order = epoch_order(len(self.x), self.seeds[0], epoch)
        else:
            known = {s: epoch_order(len(self.x), s, epoch) for s in set(self.seeds)}
            order = torch.stack([known[s] for s in self.seeds])
        return torch.split(order.to(self.x.device), batch_size, -1)

    def _batch(self, index: Tensor) -> tuple[Tensor, Tensor]:
        """Inputs and targets `[K, B, ...]`; `[B, ...]` where all networks share them."""
        x, y = self.x, self.y
        if index.ndim == 1:
            return x.index_select(0, index), y.index_select(int(self.own_labels), index)
        # one index_select over all rows: several times faster than x[index] on the CPU
        flat = index.reshape(-1)
        inputs = x.index_select(0, flat).view(*index.shape, *x.shape[1:])
        if self.own_labels:
            flat = (index + len(x) * torch.arange(len(index), device=x.device)[:, None]).view(-1)
            y = y.flatten(0, 1)
        return inputs, y.index_select(0, flat).view(*index.shape, *y.shape[1:])


def mlp_family(
    inputs: int,
    widths: Sequence[int],
    outputs: int,
    *,
    depth: int = 1,
    seeds: Sequence[int] = (0,),
    activation: type[nn.Module] = nn.ReLU,
    dtype: torch.dtype | None = None,
) -> list[nn.Module]:
    """One multilayer perceptron for every width and seed, all seeds of the first width first.

    Each has `depth` hidden layers of the width and torch's usual initial weights, drawn with
    the seed.

    >>> [net[0].out_features for net in mlp_family(4, widths=[1, 5], outputs=3, seeds=[0, 1])]
    [1, 1, 5, 5]
    """
    for name, value in (("inputs", inputs), ("outputs", outputs), ("depth", depth)):
        whole_number(value, name, least=1)
    made: list[nn.Module] = []
    for width in whole_numbers(widths, "widths", fewest=0):
        for seed in seeds:
            sizes = [inputs, *[width] * depth]
            with global_randomness_kept():
                torch.default_generator.manual_seed(seed)
                layers: list[nn.Module] = []
                for before, after in itertools.pairwise(sizes):
                    layers += [nn.Linear(before, after, dtype=dtype), activation()]
                layers.append(nn.Linear(sizes[-1], outputs, dtype=dtype))
            made.append(nn.Sequential(*layers))
    return made


def noisy_labels(y: Tensor, classes: int, share: float, *, seed: int = 0) -> Tensor:
    """Labels `[n]` or `[n, 1]` with `round(share * n)` of them, at random, moved to another class.

    >>> y = torch.zeros(10, dtype=torch.long)
    >>> int((noisy_labels(y, 3, 0.4) != 0).sum())
    4
    """
    closed_fraction(share, "the share of noisy labels")
    if classes < 2:
        raise InvalidInput(f"label noise needs at least two classes, not {classes!r}")
    generator = derived_generator(seed, "label noise")
    chosen = torch.randperm(len(y), generator=generator)[: round(share * len(y))]
    shift = torch.randint(1, classes, (len(chosen),), generator=generator)
    noisy = y.clone()
    chosen, shift = chosen.to(y.device), shift.to(y.device).view(-1, *[1] * (y.ndim - 1))
    noisy[chosen] = ((y[chosen].long() + shift) % classes).to(y.dtype)
    return noisy


# ---------------------------------------------------------------------------------- preparation


def _targets(
    problem: Problem, labels: Tensor | None, noise: Tensor, seeds: Sequence[int]
) -> Tensor:
    """Targets shared by all `[n, ...]`, or of each network `[K, n, ...]`."""
    y = problem.train.y
    if labels is not None:
        if not isinstance(labels, Tensor) or labels.shape[:2] != (len(seeds), len(y)):
            raise ShapeMismatch(
                f"labels must be a tensor [{len(seeds)} networks, {len(y)} samples, ...]"
            )
        x = problem.train.x
        y = torch.stack(
            [problem.prepare(Samples(x, own), f"network {k}'s").y for k, own in enumerate(labels)]
        )
    if not bool(noise.any()):
        return y
    if problem.classes is None:
        raise InvalidInput("label noise is for classification, and this is a regression")
    if len({*zip(noise.tolist(), seeds, strict=True)}) == 1 and labels is None:
        return noisy_labels(y, problem.classes, float(noise[0]), seed=seeds[0])
    own = y if labels is not None else y.expand(len(seeds), *y.shape)
    return torch.stack(
        [
            noisy_labels(row, problem.classes, float(share), seed=s)
            for row, share, s in zip(own, noise, seeds, strict=True)
        ]
    )


def _masks(
    networks: Sequence[nn.Module], masks: Sequence[Masks | None] | None
) -> list[Masks | None] | None:
    if masks is None:
        return None
    if len(masks) != len(networks):
        raise ShapeMismatch(f"there are {len(networks)} networks but {len(masks)} masks")
    return [
        None if mask is None else checked_masks(model, mask)
        for model, mask in zip(networks, masks, strict=True)
    ]


def _refuse_other_shapes(
    networks: Sequence[nn.Module], layouts: Sequence[Layout], problem: Problem
) -> None:
    """Refuse networks that do not fit the data, or give other outputs than the first."""
    wanted = problem.outputs(problem.train.first(1))
    if wanted.ndim != 2:
        raise ShapeMismatch(f"a stacked network returns [n, outputs], not {list(wanted.shape)}")
    like = problem.function.reference()
    met = set()
    for k, (model, found) in enumerate(zip(networks, layouts, strict=True)):
        for p in model.parameters():
            if p.dtype != like.dtype or p.device != like.device:
                raise InvalidInput(
                    f"network {k} is in {p.dtype} on {p.device} and the first in {like.dtype} on "
                    f"{like.device}: they must agree"
                )
        ends = None if found.sizes is None else (found.sizes[0][1], found.sizes[-1][0])
        if (found.kind, ends) in met:
            continue
        met.add((found.kind, ends))
        other = Problem(model, problem.train.first(1), task=problem.task)
        outputs = other.outputs(other.train)
        if outputs.shape != wanted.shape:
            raise ShapeMismatch(
                f"network {k} returns {list(outputs.shape)} and the first {list(wanted.shape)}"
            )


def _group(
    layouts: Sequence[Layout], batch_size: int, memory: int, problem: Problem
) -> list[list[int]]:
    """Networks to be stacked together: of one kind, not too different, within the memory."""
    item = problem.function.reference().element_size()
    inputs = problem.train.x[0].numel()
    kinds: dict[tuple[str, ...], list[int]] = {}
    for k, found in enumerate(layouts):
        kinds.setdefault(found.kind, []).append(k)
    groups: list[list[int]] = []
    for members in kinds.values():
        members.sort(key=lambda k: (-layouts[k].parameters, k))
        for group in _least_padding(members, [layouts[k].parameters * batch_size for k in members]):
            largest = layouts[group[0]]
            samples = max(batch_size, _CHUNK)
            each = item * (6 * largest.parameters + 4 * samples * (largest.units + inputs))
            most = max(1, memory // each)
            groups += [group[i : i + most] for i in range(0, len(group), most)]
    return groups


def _parts(networks: int, cost: int, device: torch.device) -> int:
    """Into how many stacks to cut one, for threads to train side by side.

    Threads that share every operation of small networks mostly wait for each other.
    """
    worth = networks * cost // (_WORTH * OVERHEAD)
    return max(1, min(torch.get_num_threads(), networks, worth)) if device.type == "cpu" else 1


def _least_padding(members: list[int], costs: list[int]) -> list[list[int]]:
    """Cut a list, largest first, where padding to a group's largest would cost more than a cut.

    Minimizes the sum over groups of `OVERHEAD + size * largest` by dynamic programming over the
    places where the cost changes.
    """
    places = [i for i in range(len(costs)) if i == 0 or costs[i] != costs[i - 1]] + [len(costs)]
    best: dict[int, tuple[float, int]] = {len(costs): (0.0, len(costs))}
    for i in reversed(places[:-1]):
        best[i] = min((OVERHEAD + (j - i) * costs[i] + best[j][0], j) for j in places if j > i)
    groups, i = [], 0
    while i < len(costs):
        groups.append(members[i : best[i][1]])
        i = best[i][1]
    return groups


def _each(values: Each, count: int, name: str) -> Tensor:
    found = torch.as_tensor(values, dtype=torch.float64).detach().cpu()
    if found.ndim == 0:
        found = found.expand(count)
    if found.shape != (count,):
        raise ShapeMismatch(
            f"{name} must be one number or {count} of them, one per network, not "
            f"{list(found.shape)}"
        )
    if not bool(torch.isfinite(found).all()) or bool((found < 0).any()):
        raise InvalidInput(f"{name} must be numbers >= 0")
    return found.clone()


def _samples(source: BatchSource) -> Samples:
    if not isinstance(source, InMemory):
        raise InvalidInput("fit_many holds its data in memory: a stream cannot be read")
    return source.data


def _entry(table: Tensor | None, k: int, e: int) -> float | None:
    return None if table is None else float(table[k, e])

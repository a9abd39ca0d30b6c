"""How the targets of a problem are read, decided once from its training data and outputs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from torch import Tensor

from torchtheory.core.errors import InvalidInput
from torchtheory.models.heads import Head, WeightedLoss, apart, side_by_side
from torchtheory.models.losses import USUAL_LOSS, Loss
from torchtheory.models.samples import Samples
from torchtheory.models.targets import (
    IGNORED,
    Task,
    class_dimension,
    infer_task,
    next_tokens,
    position_words,
    targets_for,
)


@dataclass(frozen=True)
class Preparation:
    """What kind of problem it is, and how targets are put into the form its loss wants.

    Attributes:
        task: of the problem.
        probe: outputs of the first samples; the classes of a labeling come last.
        heads: several outputs with weights, where these are audited together.
        reproduces: whether the inputs are the targets, because there are no others.
        shifted: whether labels repeat the tokens of the inputs, and are shifted by one.
        moved: where the model itself has the classes of a labeling, if not last.
        tokens: whether the inputs are tokens, one for each position of a labeling.
    """

    task: Task
    probe: Tensor
    heads: Sequence[Head] = ()
    reproduces: bool = False
    shifted: bool = False
    moved: int | None = None
    tokens: bool = False

    @property
    def classes(self) -> int | None:
        """How many classes a label may have; None where there are none."""
        if self.task == "binary":
            return 2
        return self.probe.shape[-1] if self.task in ("multiclass", "labeling") else None

    @property
    def usual_loss(self) -> Loss:
        return WeightedLoss(self.heads) if self.heads else USUAL_LOSS[self.task]

    def own_loss(self, loss: Loss) -> Loss:
        """A user's loss, of outputs in the model's own order of dimensions."""
        moved = self.moved
        if self.heads:
            raise InvalidInput("give loss= or weights of several outputs, not both")
        return loss if moved is None else lambda f, y: loss(f.movedim(-1, moved), y)

    def prepared(self, given: Samples, placed: Samples, name: str) -> Samples:
        """Samples with targets as the loss wants them.

        Args:
            given: as they were collected.
            placed: the same on the model's device.
            name: what to call them in messages.
        """
        y = placed.y
        if self.heads:
            parts = apart(y, given.parts)
            columns = [
                targets_for(h.task, parts[str(h.key)], self.probe.new_empty(1, *h.outputs), name)
                for h in self.heads
            ]
            names = tuple((str(h.key), h.targets) for h in self.heads)
            return replace(placed, y=side_by_side([c.double() for c in columns]), parts=names)
        if self.reproduces and not placed.labeled:
            y = placed.x.reshape(len(placed), *self.probe.shape[1:])
        if self.task == "labeling" and labels_repeat_inputs(given) != self.shifted:
            raise InvalidInput(
                f"the labels of one of train and {name} are its input_ids and those of the other "
                "are not; shift both by one, or neither"
            )
        if self.shifted:
            y = next_tokens(y)
        return replace(placed, y=targets_for(self.task, y, self.probe, name))

    def remarks(self) -> dict[str, str]:
        """What was decided, in sentences by what they are about."""
        if self.heads:
            sums = (f"{h.weight:g} times that of {h.key!r} ({h.task})" for h in self.heads)
            return {"loss": "the weighted sum of " + ", ".join(sums)}
        if self.reproduces:
            return {
                "targets": "none were given, and the outputs have the shape of the inputs: the "
                "inputs are to be reproduced, as by an autoencoder"
            }
        if self.task == "unlabeled":
            return {
                "targets": "none were given; for what depends on a loss pass train=(x, y), or "
                "loss= of the outputs"
            }
        if self.task != "labeling":
            return {}
        positions = " × ".join(str(s) for s in self.probe.shape[1:-1])
        one, label = position_words(self.probe[..., 0], self.tokens)
        sentence = (
            f"one at each of {positions} positions, of {self.classes} classes; the loss of a "
            f"{one} is the mean over its labeled positions; {one}s are taken as independent "
            f"samples; the {label}s within one are not"
        )
        if self.shifted:
            sentence += (
                "; the labels were the input_ids themselves, as for causal language models, and "
                "were shifted by one, so that the next token is to be predicted"
            )
        return {"labels": sentence}


def preparation_of(
    given: Samples, placed: Samples, probe: Tensor, task: Task | None, heads: Sequence[Head]
) -> Preparation:
    """What the training data and the model's outputs say about the targets.

    Args:
        given: the training data as it was collected.
        placed: the same on the model's device.
        probe: the outputs of its first samples, as the model gives them.
        task: what the user says it is.
        heads: several outputs with weights, where these are audited together.
    """
    if heads:
        return Preparation("combined", probe, heads)
    if not placed.labeled and _are_to_be_reproduced(given, placed, probe, task):
        return Preparation("regression", probe, reproduces=True)
    decided = task or infer_task(probe, placed.y)
    if decided != "labeling":
        return Preparation(decided, probe)
    shifted, tokens = labels_repeat_inputs(given), _are_tokens(given)
    dimension = class_dimension(probe, placed.y)
    if dimension is None or dimension == probe.ndim - 1:
        return Preparation(decided, probe, shifted=shifted, tokens=tokens)
    last = probe.movedim(dimension, -1)
    return Preparation(decided, last, shifted=shifted, moved=dimension, tokens=tokens)


def _are_tokens(samples: Samples) -> bool:
    """Whether there is a whole number among the inputs for every label, `[n, length]`."""
    inputs = [samples.x] if samples.rows is None else samples.rows.tensors()
    return samples.y.ndim == 2 and any(
        not t.is_floating_point() and t.shape == samples.y.shape for t in inputs
    )


def _are_to_be_reproduced(
    given: Samples, placed: Samples, probe: Tensor, task: Task | None
) -> bool:
    """Whether a model without targets is to reproduce its inputs."""
    x = placed.x
    if task not in (None, "regression") or given.rows is not None:
        return False
    if not x.is_floating_point() and probe.shape[1:-1] == x.shape[1:]:
        raise InvalidInput(
            "no targets were given: pass train=(x[:, :-1], x[:, 1:]) for a model of the next "
            "token, train=(x, x) for one that repeats its input, or task='unlabeled'"
        )
    flat = probe.shape[1:] == (math.prod(x.shape[1:]),)
    return x.is_floating_point() and (flat or probe.shape[1:] == x.shape[1:])


def labels_repeat_inputs(samples: Samples) -> bool:
    """Whether the labels are the tokens themselves, as the transformers library wants them.

    Its causal language models shift them by one when they compute their loss.
    """
    if samples.rows is None or not isinstance(samples.rows.parts, dict):
        return False
    tokens = samples.rows.parts.get("input_ids")
    if tokens is None or tokens.shape != samples.y.shape or tokens.ndim != 2:
        return False
    return bool(((samples.y == tokens) | (samples.y == IGNORED)).all())

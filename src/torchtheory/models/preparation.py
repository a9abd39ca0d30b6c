"""How the targets of a problem are read, decided once from its training data and outputs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from torchtheory.core.errors import InvalidInput
from torchtheory.models.arrangement import Arrangement
from torchtheory.models.heads import Head, WeightedLoss, apart, side_by_side
from torchtheory.models.known_losses import Kind, kind_of_loss, name_of_loss
from torchtheory.models.losses import USUAL_LOSS, USUAL_LOSS_WORDS, Loss, labeling_loss
from torchtheory.models.samples import Samples
from torchtheory.models.target_facts import remark_on_targets
from torchtheory.models.targets import (
    IGNORED,
    Task,
    class_dimension,
    is_one_hot,
    is_zero_one,
    next_tokens,
    position_words,
    targets_for,
)
from torchtheory.models.task import Form, Reading, at_positions, read_task


@dataclass(frozen=True)
class Preparation:
    """What kind of problem it is, and how targets are put into the form its loss wants.

    Attributes:
        task: of the problem.
        probe: outputs of the first samples; the classes of a labeling come last.
        because: what says so.
        form: how targets are written; see `torchtheory.models.task`.
        kind: what is known of the user's loss, if one was given.
        heads: several outputs with weights, where these are audited together.
        reproduces: whether the inputs are the targets, because there are no others.
        shifted: whether labels repeat the tokens of the inputs, and are shifted by one.
        arranged: how outputs at positions become logits of classes, if they are none already.
        tokens: whether the inputs are tokens, one for each position of a labeling.
        ignored: the label that the user's loss ignores.
        given: shape of a sample's targets as they were given.
    """

    task: Task
    probe: Tensor
    because: str = ""
    form: Form = "plain"
    kind: Kind | None = None
    heads: Sequence[Head] = ()
    reproduces: bool = False
    shifted: bool = False
    arranged: Arrangement | None = None
    tokens: bool = False
    ignored: int = IGNORED
    given: tuple[int, ...] = ()

    @property
    def classes(self) -> int | None:
        """How many classes a label may have; None where there are none."""
        if self.task == "binary":
            return 2
        return self.probe.shape[-1] if self.task in ("multiclass", "labeling") else None

    @property
    def usual_loss(self) -> Loss:
        if self.task == "ordinal" and self.probe[0].numel() > 1:
            return USUAL_LOSS["multilabel"]
        return WeightedLoss(self.heads) if self.heads else USUAL_LOSS[self.task]

    def own_loss(self, loss: Loss, *, plain_mean: bool) -> Loss:
        """A user's loss, of outputs and targets as the model and the user give them.

        `plain_mean`: whether it is to be a mean of the samples' own losses.
        """
        if self.heads:
            raise InvalidInput("give loss= or weights of several outputs, not both")
        if plain_mean and self._is_mean_of_positions(loss):
            return labeling_loss
        as_given = self.arranged is None and self.form == "plain" and self.ignored == IGNORED
        return loss if as_given else _AsGiven(loss, self)

    def _is_mean_of_positions(self, loss: Loss) -> bool:
        """Whether it is torch's cross-entropy, a mean over the labeled positions of a batch.

        A sample's own mean is used in its place: the two are one where equally many are labeled.
        """
        plain = getattr(loss, "weight", None) is None and not getattr(loss, "label_smoothing", 0)
        return self.task == "labeling" and self.kind == "cross-entropy" and plain

    def targets_as_given(self, y: Tensor) -> Tensor:
        """Targets in the form the user gave them, `[n, ...]`."""
        if self.task in ("multiclass", "labeling") and self.form == "one-hot":
            classes = self.probe.shape[-1]
            rows = torch.nn.functional.one_hot(y.clamp_min(0), classes).to(self.probe.dtype)
            return rows.movedim(-1, 1)
        if self.form == "one logit":
            return y.to(self.probe.dtype).reshape(len(y), *self.given)
        if self.form == "thresholds" and math.prod(self.given) == 1:
            return y.flatten(1).sum(1).long().reshape(len(y), *self.given)
        if self.ignored != IGNORED:
            return torch.where(y == IGNORED, self.ignored, y)
        return y

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
        if self.task == "labeling" and placed.labeled:
            y = self._labels(y)
        return replace(placed, y=targets_for(self.task, y, self.probe, name))

    def _labels(self, y: Tensor) -> Tensor:
        """Labels of positions as class indices with -100 where there is none."""
        if self.form == "one-hot" and y.ndim == self.probe.ndim and is_one_hot(y):
            return y.argmax(1)
        if self.form == "one logit" and self.arranged is not None:
            return self.arranged.labels(y) if y.numel() == self._places(y) else y
        return y if self.ignored == IGNORED else torch.where(y == self.ignored, IGNORED, y)

    def _places(self, y: Tensor) -> int:
        return len(y) * math.prod(self.probe.shape[1:-1])

    def remarks(self, loss: Loss | None, y: Tensor) -> dict[str, str]:
        """What was decided, in sentences by what they are about.

        Args:
            loss: the user's, if one was given.
            y: targets of the training data, as the loss wants them.
        """
        if self.heads:
            sums = (f"{h.weight:g} times that of {h.key!r} ({h.task})" for h in self.heads)
            return {"loss": "the weighted sum of " + ", ".join(sums)}
        said = {"loss": self._loss_words(loss)}
        if self.reproduces:
            return said | {
                "targets": "none were given, and the outputs have the shape of the inputs: the "
                "inputs are to be reproduced, as by an autoencoder"
            }
        if self.task == "unlabeled":
            return said | {
                "targets": "none were given; for what depends on a loss pass train=(x, y), or "
                "loss= of the outputs"
            }
        if self.task == "labeling":
            return said | {"labels": self._position_words()}
        about = remark_on_targets(self.task, y)
        return said | ({"targets": about} if about else {})

    def _loss_words(self, loss: Loss | None) -> str:
        if loss is None:
            usual = USUAL_LOSS_WORDS[self.task]
            if self.task == "ordinal" and self.probe[0].numel() > 1:
                usual = "logistic, for every threshold; outputs are logits"
            return usual if self.task == "unlabeled" else f"{usual} (the usual one)"
        words = f"yours, {name_of_loss(loss)}"
        if self._is_mean_of_positions(loss):
            words += ", per sample: every sample counts the same, however many labels it has"
        return words

    def _position_words(self) -> str:
        positions = " × ".join(str(s) for s in self.probe.shape[1:-1])
        one, label = position_words(self.probe[..., 0], self.tokens)
        sentence = (
            f"one at each of {positions} positions, of {self.classes} classes; the loss of a "
            f"{one} is the mean over its labeled positions; {one}s are taken as independent "
            f"samples; the {label}s within one are not"
        )
        if self.ignored != IGNORED:
            sentence += f"; {self.ignored} stands where there is no label"
        if self.shifted:
            sentence += (
                "; the labels were the input_ids themselves, as for causal language models, and "
                "were shifted by one, so that the next token is to be predicted"
            )
        return sentence


class _AsGiven:
    """A loss of outputs as the model gives them and of targets as the user does."""

    def __init__(self, loss: Loss, plan: Preparation) -> None:
        self.loss, self.plan = loss, plan

    def __call__(self, outputs: Tensor, y: Tensor) -> Tensor:
        arranged = self.plan.arranged
        own = outputs if arranged is None else arranged.undone(outputs)
        return self.loss(own, self.plan.targets_as_given(y))


def preparation_of(
    given: Samples,
    placed: Samples,
    probe: Tensor,
    task: Task | None,
    heads: Sequence[Head],
    loss: Loss | None = None,
) -> Preparation:
    """What the training data, the model's outputs and the loss say about the targets.

    Args:
        given: the training data as it was collected.
        placed: the same on the model's device.
        probe: the outputs of its first samples, as the model gives them.
        task: what the user says it is.
        heads: several outputs with weights, where these are audited together.
        loss: the user's, if one was given.
    """
    if heads:
        return Preparation("combined", probe, "several outputs have weights", heads=heads)
    if not placed.labeled and _are_to_be_reproduced(given, placed, probe, task):
        because = "outputs have the shape of the inputs, and there are no targets"
        return Preparation("regression", probe, because, reproduces=True)
    ignored = _ignored(loss, placed.y, probe)
    y = placed.y if ignored == IGNORED else torch.where(placed.y == ignored, IGNORED, placed.y)
    read = read_task(probe, y, loss)
    if task is not None and task != read.task:
        read = _as_asked(task, probe, y, loss)
    elif task is not None:
        read = replace(read, because="you said so")
    plan = Preparation(read.task, probe, read.because, read.form, read.kind, given=y.shape[1:])
    if read.task != "labeling":
        return plan
    shifted, tokens = labels_repeat_inputs(given), _are_tokens(given)
    arranged = _arrangement(plan, y)
    if arranged is not None:
        plan = replace(plan, probe=arranged(probe), arranged=arranged)
    return replace(plan, shifted=shifted, tokens=tokens, ignored=ignored)


def _as_asked(task: Task, probe: Tensor, y: Tensor, loss: Loss | None) -> Reading:
    """The task that the user names, in the form that the targets have."""
    form: Form = "plain"
    if y[0].numel() == 0:
        return Reading(task, "you said so")
    if task == "multiclass" and y[0].numel() > 1 and is_one_hot(y):
        form = "one-hot"
    elif task == "ordinal" and probe[0].numel() > 1:
        form = "thresholds"
    elif task == "labeling" and y[0].numel() == probe[0].numel() and is_zero_one(y):
        form = "one logit" if at_positions(probe, y) or not is_one_hot(y) else "one-hot"
    kind = None if loss is None else kind_of_loss(loss, probe, y)
    return Reading(task, "you said so", form, kind)


def _ignored(loss: Loss | None, y: Tensor, probe: Tensor) -> int:
    """The label that the user's loss ignores; -100 unless it says otherwise."""
    label = getattr(loss, "ignore_index", None)
    if not isinstance(label, int) or y.is_floating_point() or probe.ndim < 3:
        return IGNORED
    return label


def _arrangement(plan: Preparation, y: Tensor) -> Arrangement | None:
    """How outputs at positions become logits of classes, which come last."""
    probe = plan.probe
    if plan.form == "one logit":
        within = bool(((probe >= 0) & (probe <= 1)).all())
        bernoulli = plan.kind == "bernoulli" and within
        return Arrangement(probe.shape[1:], single="probability" if bernoulli else "logit")
    dimension = 1 if plan.form == "one-hot" else class_dimension(probe, y)
    if dimension is None or dimension == probe.ndim - 1:
        return None
    return Arrangement(probe.shape[1:], dimension)


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

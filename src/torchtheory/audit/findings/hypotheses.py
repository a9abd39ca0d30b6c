"""What findings require of a problem: each returns why it fails, or None."""

from __future__ import annotations

import torch

from torchtheory.core.errors import TorchTheoryError
from torchtheory.models.graph_rows import GraphRows
from torchtheory.models.model import as_leaves, global_randomness_kept
from torchtheory.models.problem import Problem
from torchtheory.models.task import TASK_WORDS
from torchtheory.tracing.chain import as_chain

#: Why a finding about the errors of one task is not made for another.
OTHER_TASK = "the errors of this task are of another kind, and stand elsewhere"

#: Most targets of a sample that are looked at one by one.
MOST_TARGETS = 64


def classification(problem: Problem) -> str | None:
    if problem.task in ("regression", "count", "ordinal"):
        return f"the task is {TASK_WORDS[problem.task]}, not a classification"
    return None if problem.is_classification else one_label_per_sample(problem)


def class_or_labels(problem: Problem) -> str | None:
    """A class, or yes-or-no labels: what logits are for."""
    return None if problem.task == "multilabel" else classification(problem)


def class_or_number(problem: Problem) -> str | None:
    """One class, or real numbers: what error rates and squared errors are about."""
    if problem.task in ("count", "ordinal"):
        return f"the task is {TASK_WORDS[problem.task]}, whose errors stand elsewhere"
    return one_label_per_sample(problem)


def one_label_per_sample(problem: Problem) -> str | None:
    """A class or a value for a sample as a whole, not for its positions."""
    if problem.task == "multilabel":
        return "a sample has several yes-or-no labels, and this is about one label per sample"
    if problem.task == "ordinal" and problem.train.y[0].numel() > 1:
        return "a sample has a logit for each threshold between levels, and this is about one label"
    if problem.task in ("ranking", "own"):
        return f"this is {TASK_WORDS[problem.task]}, and no label of a sample can be compared"
    if problem.task == "labeling":
        return (
            "every position of a sample has its own label, positions of one sample are not "
            "independent, and this is about one label per sample"
        )
    if problem.task == "combined":
        return "several outputs have losses of their own, and this is about one output"
    return has_targets(problem)


def several_labels(problem: Problem) -> str | None:
    if problem.task == "multilabel":
        return None
    return OTHER_TASK


def counts(problem: Problem) -> str | None:
    return None if problem.task == "count" else OTHER_TASK


def ordered_levels(problem: Problem) -> str | None:
    return None if problem.task == "ordinal" else OTHER_TASK


def ranks_items(problem: Problem) -> str | None:
    return None if problem.task == "ranking" else OTHER_TASK


def several_targets(problem: Problem) -> str | None:
    """A few numbers per sample, each with a meaning of its own."""
    count = problem.train.y[0].numel()
    if problem.task not in ("regression", "count") or count == 1:
        return OTHER_TASK
    if count > MOST_TARGETS:
        return f"a sample has {count} targets, and this is about at most {MOST_TARGETS}"
    return None


def only_a_loss(problem: Problem) -> str | None:
    if problem.task in ("own", "unlabeled", "combined"):
        return None
    return OTHER_TASK


def has_targets(problem: Problem) -> str | None:
    if problem.task == "own":
        return "only your loss knows the targets, and this compares outputs with them"
    if problem.task != "unlabeled":
        return None
    return "no targets were given, and this compares outputs with them: pass train=(x, y)"


def has_loss(problem: Problem) -> str | None:
    if problem.has_loss:
        return None
    if problem.couples_samples:
        return "your loss is not the mean of the samples' own losses, and this needs one of each"
    return (
        "no targets were given, so there is no loss: pass train=(x, y), or loss= of the outputs "
        "alone"
    )


def labeled_positions(problem: Problem) -> str | None:
    if problem.task == "labeling":
        return None
    return "the model has one output per sample, and this is about one at every token or pixel"


def random_numbers(problem: Problem) -> str | None:
    if problem.draws_random_numbers:
        return None
    return "the model draws no random numbers in evaluation mode"


def test_data(problem: Problem) -> str | None:
    return None if problem.test is not None else "no test data was given"


def deterministic(problem: Problem) -> str | None:
    if problem.deterministic:
        return None
    if problem.draws_random_numbers:
        return (
            "the model draws random numbers in a way that cannot be fixed: its output for a sample "
            "changes from call to call, or with the other samples of its batch"
        )
    return "the model's output is random: the same input gave two different outputs"


def has_parameters(problem: Problem) -> str | None:
    return None if problem.function.count else "the model has no parameters"


def differentiable(problem: Problem) -> str | None:
    """By a forward pass of one sample, and by difference quotients of a few."""
    leaves = as_leaves(problem.parameters)
    try:
        with torch.enable_grad(), global_randomness_kept():
            has_graph = problem.function(leaves, problem.train.x[:1]).requires_grad
    except TorchTheoryError:
        raise
    except RuntimeError:  # .numpy() of a tensor with a gradient
        has_graph = False
    if not has_graph:
        return (
            "the outputs have no derivative in the parameters: something inside the model cuts the "
            "graph, such as torch.no_grad(), .detach() or a way through numpy"
        )
    if not problem.gradient_is_derivative:
        return (
            "the gradient that torch computes is not the derivative of the outputs: the model "
            "replaces it, as a straight-through estimator does, or max_norm and "
            "scale_grad_by_freq of an embedding"
        )
    return None


def initial_weights(problem: Problem) -> str | None:
    if problem.initial is not None:
        return None
    return "the weights training began with were not given (initial=, or --initial-weights)"


def one_input(problem: Problem) -> str | None:
    if not problem.several_inputs:
        return None
    return "the model takes several inputs, and this is about models of one tensor"


def samples_of_one_size(problem: Problem) -> str | None:
    if not isinstance(problem.function.rows, GraphRows):
        return None
    return "the samples are graphs, and this puts samples of one size on top of each other"


def one_output(problem: Problem) -> str | None:
    if problem.function.output is None:
        return None
    return (
        "the model returns several outputs, and this trains it: wrap it so that it returns one "
        "tensor"
    )


def floating_inputs(problem: Problem) -> str | None:
    if problem.several_inputs:
        return "the model takes several inputs, and this is about one tensor of real numbers"
    if problem.train.x.is_floating_point():
        return None
    return f"the inputs are {problem.train.x.dtype}, and a derivative needs real numbers"


def chain(problem: Problem) -> str | None:
    if problem.draws_random_numbers:
        return "the model draws random numbers, and this is about a chain of layers without noise"
    try:
        as_chain(problem.function, problem.train.x)
    except TorchTheoryError as error:
        return str(error)
    return None

"""What findings require of a problem: each returns why it fails, or None."""

from __future__ import annotations

from torchtheory.core.errors import TorchTheoryError
from torchtheory.core.problem import Problem
from torchtheory.nets.chain import as_chain


def classification(problem: Problem) -> str | None:
    return None if problem.is_classification else "the task is a regression, not a classification"


def test_data(problem: Problem) -> str | None:
    return None if problem.test is not None else "no test data was given"


def deterministic(problem: Problem) -> str | None:
    if problem.deterministic:
        return None
    return "the model's output is random: the same input gave two different outputs"


def has_parameters(problem: Problem) -> str | None:
    return None if problem.function.count else "the model has no parameters"


def initial_weights(problem: Problem) -> str | None:
    if problem.initial is not None:
        return None
    return "the weights training began with were not given (initial=, or --initial-weights)"


def floating_inputs(problem: Problem) -> str | None:
    if problem.train.x.is_floating_point():
        return None
    return f"the inputs are {problem.train.x.dtype}, and a derivative needs real numbers"


def chain(problem: Problem) -> str | None:
    try:
        as_chain(problem.model)
    except TorchTheoryError as error:
        return str(error)
    return None

"""The errors a user can meet, each one sentence: what was given, what is needed, what to do.

Every class derives from `TorchTheoryError` and from the built-in error a caller would expect,
so `except ValueError` works as well. The command line prints the sentence and exits with 2.
`OutOfTime` is not an error but a deadline, and passes every handler of errors; nor is `PassEnded`.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class TorchTheoryError(Exception):
    """Base class of everything torchtheory raises on purpose."""


class InvalidInput(TorchTheoryError, ValueError):
    """A value is outside what a function is defined for."""


class InvalidType(TorchTheoryError, TypeError):
    """An object is of a kind the function cannot use."""


class ShapeMismatch(InvalidInput):
    """Two arrays do not fit together, or an array has the wrong number of dimensions."""


class EmptyData(InvalidInput):
    """There is no sample to work on."""


class NonFinite(InvalidInput):
    """NaN or infinity where a number is needed."""


class LabelOutOfRange(InvalidInput):
    """A class label is not among the classes."""


class UnsupportedModel(TorchTheoryError, TypeError):
    """The network has a layer or a behavior the method does not cover."""


class ModelRaised(UnsupportedModel, RuntimeError):
    """The model's own code raised something.

    A `RuntimeError` as well, which most of what torch raises inside of a model is.
    """

    @property
    def raised(self) -> BaseException:
        """What the model raised."""
        return self.__cause__ or self.__context__ or self


class FileProblem(TorchTheoryError, ValueError):
    """A file is missing, unreadable or refused for safety."""


class MissingPackage(TorchTheoryError, ImportError):
    """An optional package is not installed."""


class NotConverged(TorchTheoryError, RuntimeError):
    """An iteration ended before it reached its tolerance."""


class OutOfTime(BaseException):
    """The time that was given for something is used up.

    No `Exception`, as `KeyboardInterrupt` is none: code that turns an error into a statement about
    the model (`except RuntimeError: ... "cannot be differentiated"`) must not see it, or running
    out of time would be reported as something else.
    """


class PassEnded(Exception):
    """Who watches a pass through a model has seen enough; whoever began the pass catches it.

    No error either: handlers of what a model raises let it pass.
    """


class UnknownName(InvalidInput):
    """A name that nothing is registered under.

    >>> str(UnknownName("lab", "perceptrn", ["perceptron", "hopfield"]))
    "no lab is named 'perceptrn'; did you mean 'perceptron'?"
    """

    def __init__(self, kind: str, name: str, known: Iterable[str]) -> None:
        known = sorted(known)
        close = difflib.get_close_matches(name, known, n=3, cutoff=0.5)
        if close:
            hint = "did you mean " + " or ".join(repr(c) for c in close) + "?"
        elif len(known) <= 12:
            hint = "known: " + ", ".join(known) if known else "there are none"
        else:
            hint = f"there are {len(known)}, none close to it"
        super().__init__(f"no {kind} is named {name!r}; {hint}")
        self._parts = (kind, name, known)

    def __reduce__(self) -> tuple[type[UnknownName], tuple[str, str, list[str]]]:
        # an exception is unpickled from its message alone, and this one takes three arguments
        return type(self), self._parts

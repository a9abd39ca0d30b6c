"""Code of a user that runs here: a model, a factory, a data set. What it raises is a sentence."""

from __future__ import annotations

from types import TracebackType

from torchtheory.core.errors import InvalidInput, OutOfTime, PassEnded, TorchTheoryError

#: What comes out of a user's code and is not its fault: it passes.
_PASSES = (TorchTheoryError, PassEnded, KeyboardInterrupt, OutOfTime)

#: Characters of a foreign error that are shown.
_LONGEST = 300


class ForeignCode:
    """Turns what code raises inside into one sentence, also what would end the program.

    `sys.exit()` ends the user's code and not its caller. An interrupt from the keyboard and a
    deadline stay what they are.

    Args:
        what: the code in words, to stand before "raised".
        error: the class of the sentence.

    >>> with ForeignCode("nets:make()"):
    ...     exit(3)
    Traceback (most recent call last):
        ...
    torchtheory.core.errors.InvalidInput: nets:make() raised SystemExit: 3
    """

    def __init__(self, what: str, error: type[TorchTheoryError] = InvalidInput) -> None:
        self.what, self.error = what, error

    def __enter__(self) -> None:
        pass

    def __exit__(
        self,
        kind: type[BaseException] | None,
        raised: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if raised is None or isinstance(raised, _PASSES):
            return
        # contextlib takes an error whose cause is a StopIteration for one of Python's own
        cause = None if isinstance(raised, StopIteration) else raised
        raise self.error(f"{self.what} raised {said(raised)}") from cause


def said(error: BaseException) -> str:
    """The kind of an error and what it says, on one line.

    >>> said(ValueError("two\\nlines")), said(SystemExit())
    ('ValueError: two lines', 'SystemExit')
    """
    kind = type(error).__name__
    try:
        sentence = " ".join(str(error).split())[:_LONGEST]
    except Exception:  # an error of the user's may not even have words
        return kind
    return f"{kind}: {sentence}" if sentence else kind

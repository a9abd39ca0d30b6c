"""Lists of names and words in files: one per line, or JSON as tokenizers write it."""

from __future__ import annotations

from pathlib import Path

from torchtheory.core.errors import FileProblem
from torchtheory.core.files import existing_file, read_json, reason
from torchtheory.core.foreign_text import one_line

#: Largest file of names that is read.
LARGEST = 2**26


def read_names(path: str | Path) -> tuple[str, ...]:
    """The names in a text file, one per line, or of a JSON list; empty lines at the end are none.

    >>> import tempfile
    >>> file = Path(tempfile.mkdtemp()) / "names.txt"
    >>> _ = file.write_text("age\\nincome\\n")
    >>> read_names(file)
    ('age', 'income')
    """
    file = existing_file(path)
    if file.suffix.lower() == ".json":
        listed = read_json(file)
        if not isinstance(listed, list) or not all(isinstance(n, str) for n in listed):
            raise FileProblem(f"{file} must be a list of names")
        return tuple(one_line(n) for n in listed)
    try:
        with file.open("rb") as stream:
            content = stream.read(LARGEST + 1)
    except OSError as error:
        raise FileProblem(f"cannot read {file}: {reason(error)}") from None
    if len(content) > LARGEST:
        raise FileProblem(f"{file} has more than {LARGEST >> 20} MiB, too much for names")
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise FileProblem(f"{file} is not a text file") from None
    names = tuple(one_line(line) for line in text.rstrip().split("\n"))
    if names == ("",):
        raise FileProblem(f"{file} has no names in it")
    return names


def read_vocabulary(path: str | Path) -> dict[int, str]:
    """Words by their numbers: line by line from 0, or JSON `{word: number}` or `[word, ...]`.

    >>> import tempfile
    >>> file = Path(tempfile.mkdtemp()) / "vocab.json"
    >>> _ = file.write_text('{"good": 3, "bad": 1}')
    >>> read_vocabulary(file)
    {3: 'good', 1: 'bad'}
    """
    file = existing_file(path)
    if file.suffix.lower() == ".json" and isinstance(found := read_json(file), dict):
        if not all(isinstance(k, int) and not isinstance(k, bool) for k in found.values()):
            raise FileProblem(f"{file} must say the number of each word, as in {{'good': 3}}")
        if not found:
            raise FileProblem(f"{file} has no words in it")
        return {number: one_line(word) for word, number in found.items()}
    return dict(enumerate(read_names(file)))

"""Tables in CSV files: numbers as they are, words one-hot, nothing guessed in silence."""

from __future__ import annotations

import csv
import gzip
import io
import re
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import repeat
from operator import itemgetter
from pathlib import Path
from typing import NoReturn, TextIO

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from torchtheory.core.checks import number_between
from torchtheory.core.errors import FileProblem, InvalidInput, UnknownName
from torchtheory.core.files import existing_file, read_whole
from torchtheory.core.naming import several
from torchtheory.core.random import as_generator
from torchtheory.models.samples import Samples

#: Endings of files that are read as tables.
TABLES = (".csv", ".csv.gz", ".tsv", ".tsv.gz")
Numbers = NDArray[np.float64]
_TO_FILL = "is missing; fill it or leave the row out"
_MOST_CLASSES = 1000
# Digits as every program writes them. Python's `float` also takes 1_0, and digits of all scripts.
_NUMBER = re.compile(r"\s*[+-]?(?:(?:\d+\.?\d*|\.\d+)(?:e[+-]?\d+)?|inf|infinity)\s*", re.A | re.I)
_MISSING = {"", "na", "n/a", "nan", "null", "?"}
_TARGETS = ("target", "label", "class", "y")
_PARTS = {"train": False, "training": False, "test": True, "testing": True}


@dataclass(frozen=True)
class LoadedTable:
    """A table as samples.

    Attributes:
        train: inputs `[n, features]` of float64, targets `[n]` (`[n, k]` for k targets).
        test: the rows kept apart, None if there are none.
        features: the name of each input column; `color=red` for an indicator.
        classes: the names of the classes in the order of their numbers, where targets are words.
    """

    train: Samples
    test: Samples | None
    features: list[str]
    classes: list[str]


def load_table(
    path: str | Path,
    target: str | None = None,
    *,
    test: str | Path | None = None,
    split: str = "split",
    test_fraction: float = 0.2,
    most_levels: int = 50,
    seed: int = 0,
) -> LoadedTable:
    """A `.csv` or `.tsv` file, plain or gzipped, as inputs and targets.

    The first line names the columns, unless it has a number in it: then they are called 1, 2, ....
    A column of numbers is one input; a column of words is one indicator for each word, in sorted
    order. A target of words is a class, numbered in sorted order. Words are those of the train and
    test rows together. A missing value is an error: what to put there is not ours to say.

    Args:
        path: the file.
        target: the column to predict, or several separated by commas; `target`, `label`,
            `class` or `y` unless given.
        test: a second file with the same columns, the test set.
        split: name of a column that says `train` or `test` for each row, if there is one.
        test_fraction: share of the rows kept apart, at random with `seed`, where neither a second
            file nor a column decides; 0 for no test set.
        most_levels: most different words in a column of inputs.

    Cost: `O(rows * columns)` time; all cells are held as text once.

    >>> import tempfile, pathlib
    >>> file = pathlib.Path(tempfile.mkdtemp()) / "iris.csv"
    >>> _ = file.write_text("length,color,kind\\n1.5,red,b\\n2.5,blue,a\\n")
    >>> table = load_table(file, "kind", test_fraction=0)
    >>> table.train.x.tolist(), table.train.y.tolist(), table.features
    ([[1.5, 0.0, 1.0], [2.5, 1.0, 0.0]], [1, 0], ['length', 'color=blue', 'color=red'])
    """
    number_between(test_fraction, "test_fraction", 0, 1, closed="left")
    wanted = [name.strip() for name in target.split(",")] if target else []
    cells = _read(existing_file(path), wanted)
    known = {name.lower() for name in _TARGETS}
    names = wanted or [c for c in cells.columns if c.lower() in known]
    if not wanted and len(names) != 1:
        raise InvalidInput(
            f"say which column of {path} is the target; the columns are {several(cells.columns, 8)}"
        )
    for name in names:
        if name not in cells.columns:
            raise UnknownName(f"column of {path}", name, cells.columns)
    second = None if test is None else _read(existing_file(test), wanted)
    if second is not None:
        if second.columns != cells.columns:
            raise InvalidInput(f"{test} does not have the columns of {path} in the same order")
        cells = _Cells(cells.columns, cells.rows + second.rows, cells.places + second.places)
    in_test, how = _test_rows(cells, second, split, test_fraction, seed)
    inputs = [c for c in cells.columns if c not in names and c != split]
    if not inputs:
        raise InvalidInput(f"{path} has no column besides the target")
    blocks, features, notes = [], [], [how]
    for name in inputs:
        block, own = _encode(cells, name, most_levels)
        blocks.append(block)
        features += own
        if len(own) > 1 or own != [name]:
            notes.append(f"{name} became {len(own)} indicators")
    y, classes = _targets(cells, names)
    if classes:
        notes.append("classes: " + several([f"{k} = {name}" for k, name in enumerate(classes)], 12))
    x = torch.as_tensor(np.concatenate(blocks, axis=1))
    note = "; ".join(n for n in notes if n)
    chosen = torch.as_tensor(in_test)
    if bool(chosen.all()):
        raise InvalidInput(f"{path} has no row to train on")
    return LoadedTable(
        Samples(x[~chosen], y[~chosen], note),
        Samples(x[chosen], y[chosen], note) if bool(chosen.any()) else None,
        features,
        classes,
    )


@dataclass(frozen=True)
class _Cells:
    """Text by row, with the file and line each row came from."""

    columns: list[str]
    rows: list[list[str]]
    places: list[tuple[Path, int]]

    def numbers(self, name: str) -> Numbers | None:
        """A column of numbers, or None if it has words; what is missing or infinite is refused."""
        cells = self._raw(name)
        if not all(map(_NUMBER.fullmatch, cells)):
            self.words(name)  # a missing value is refused before the rest is called words
            for row, cell in enumerate(cells):
                if not _is_number(cell) and _is_odd_number(cell):
                    self.refuse(row, name, "is a number to some programs only; write it in digits")
            return None
        values = np.array(list(map(float, cells)))
        if not np.isfinite(values).all():
            row = int(np.flatnonzero(~np.isfinite(values))[0])
            self.refuse(row, name, _TO_FILL if np.isnan(values[row]) else "is not finite")
        return values

    def words(self, name: str) -> list[str]:
        """A column of text; what is missing is refused."""
        cells = [cell.strip() for cell in self._raw(name)]
        if not _MISSING.isdisjoint({cell.lower() for cell in set(cells)}):
            bad = next(i for i, cell in enumerate(cells) if cell.lower() in _MISSING)
            self.refuse(bad, name, _TO_FILL)
        return cells

    def _raw(self, name: str) -> list[str]:
        return list(map(itemgetter(self.columns.index(name)), self.rows))

    def refuse(self, row: int, name: str, what: str) -> NoReturn:
        """One sentence on a cell, with its line in the file."""
        file, line = self.places[row]
        value = self.rows[row][self.columns.index(name)].strip()
        raise InvalidInput(
            f"line {line} of {file}: {name} {f'({value[:40]!r}) ' * bool(value)}{what}"
        )


def is_table(path: str | Path) -> bool:
    """Whether a path has the ending of a table."""
    return str(path).lower().endswith(TABLES)


def _read(file: Path, wanted: Sequence[str]) -> _Cells:
    if not is_table(file):
        raise FileProblem(f"{file} must be a .csv or .tsv file, plain or gzipped")
    try:
        with _open(file) as text:
            first = text.readline()
            text.seek(0)
            tabs = ".tsv" in file.suffixes[-2:] or None
            delimiter = "\t" if tabs else max(",;\t|", key=first.count)
            reader = csv.reader(text, delimiter=delimiter, strict=True)
            rows, lines = [], []
            for row in reader:
                if row:
                    rows.append(row)
                    lines.append(reader.line_num)
    except (OSError, EOFError, UnicodeDecodeError, zlib.error) as error:
        raise FileProblem(f"{file} is not readable as text: {error}") from None
    except csv.Error as error:
        raise FileProblem(f"line {reader.line_num} of {file} is not CSV: {error}") from None
    if not rows:
        raise FileProblem(f"{file} is empty")
    columns = [cell.strip() for cell in rows[0]]
    if set(wanted) & set(columns) or not any(_is_number(cell) for cell in columns):
        rows, lines = rows[1:], lines[1:]
        _check_names(columns, file)
    else:
        columns = [str(k + 1) for k in range(len(columns))]
    if not rows:
        raise FileProblem(f"{file} has no row below its header")
    if set(map(len, rows)) != {len(columns)}:
        bad = next(k for k, row in enumerate(rows) if len(row) != len(columns))
        raise FileProblem(
            f"line {lines[bad]} of {file} has {len(rows[bad])} cells, and there are {len(columns)} "
            "columns"
        )
    return _Cells(columns, rows, list(zip(repeat(file), lines)))


def _open(file: Path) -> TextIO:
    """The text of a table, unpacked as far as memory allows."""
    with gzip.open(file) if file.suffix == ".gz" else file.open("rb") as stream:
        # a cell of two or three characters is an object of some fifty bytes
        content = read_whole(stream, str(file), copies=16)
    return io.TextIOWrapper(io.BytesIO(content), encoding="utf-8-sig", newline="")


def _check_names(columns: list[str], file: Path) -> None:
    for k, name in enumerate(columns):
        if not name:
            raise FileProblem(
                f"column {k + 1} of {file} has no name; if it numbers the rows, save without it "
                "(pandas: index=False)"
            )
        if name in columns[:k]:
            raise FileProblem(f"{file} has two columns named {name!r}")


def _is_number(cell: str) -> bool:
    return _NUMBER.fullmatch(cell) is not None


def _is_odd_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


def _levels(cells: _Cells, name: str, column: list[str], most: int) -> list[str]:
    levels = sorted(set(column))
    if len(levels) > most:
        odd = [i for i, cell in enumerate(column) if not _is_number(cell)]
        if len(odd) < len(column) / 2:  # a column of numbers with something else in it
            cells.refuse(odd[0], name, "is not a number, unlike most of its column")
        raise InvalidInput(
            f"column {name} has {len(levels)} different words, more than {most}: leave it out, or "
            "encode it as numbers"
        )
    return levels


def _encode(cells: _Cells, name: str, most: int) -> tuple[Numbers, list[str]]:
    """A column as inputs `[n, k]`, with their names."""
    values = cells.numbers(name)
    if values is not None:
        return values[:, None], [name]
    column = cells.words(name)
    levels = _levels(cells, name, column, most)
    index = {level: k for k, level in enumerate(levels)}
    indicators = np.eye(len(levels))[[index[cell] for cell in column]]
    return indicators, [f"{name}={level}" for level in levels]


def _targets(cells: _Cells, names: list[str]) -> tuple[Tensor, list[str]]:
    """Targets, and the names of the classes if they are words."""
    parts = []
    for name in names:
        values = cells.numbers(name)
        if values is None:
            column = cells.words(name)
            if len(names) > 1:
                bad = next(i for i, cell in enumerate(column) if not _is_number(cell))
                cells.refuse(bad, name, "is not a number, and several targets must be numbers")
            levels = _levels(cells, name, column, _MOST_CLASSES)
            index = {level: k for k, level in enumerate(levels)}
            return torch.as_tensor([index[cell] for cell in column]), levels
        parts.append(values)
    if len(parts) > 1:
        return torch.as_tensor(np.stack(parts, axis=1)), []
    whole = all(re.fullmatch(r"[+-]?[0-9]{1,15}", cell) for cell in set(cells.words(names[0])))
    y = torch.as_tensor(parts[0])
    return y.long() if whole else y, []


def _test_rows(
    cells: _Cells, second: _Cells | None, split: str, fraction: float, seed: int
) -> tuple[NDArray[np.bool_], str]:
    """Which rows are kept for the test, and the sentence that says how they were chosen."""
    count = len(cells.rows)
    chosen = np.zeros(count, dtype=bool)
    if second is not None:
        chosen[count - len(second.rows) :] = True
        return chosen, ""
    if split in cells.columns:
        for k, cell in enumerate(cells.words(split)):
            if cell.lower() not in _PARTS:
                cells.refuse(k, split, "must be train or test")
            chosen[k] = _PARTS[cell.lower()]
        return chosen, f"train and test as the column {split} says"
    kept = round(count * fraction)
    if kept == 0:
        return chosen, ""
    order = torch.randperm(count, generator=as_generator(seed))
    chosen[order[count - kept :].numpy()] = True
    return chosen, (
        f"{kept} of {count} rows were kept for the test, drawn at random with seed {seed}; audit "
        "with the rows the model was really trained on"
    )

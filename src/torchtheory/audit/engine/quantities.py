"""The numbers of an audit as one table."""

from __future__ import annotations

import html
import importlib
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, overload

from torchtheory.core.errors import MissingPackage, UnknownName
from torchtheory.core.foreign_text import printable
from torchtheory.core.quantity import Quantity
from torchtheory.report.results import quantity_words

#: Letters of a label that the table shows.
_LABEL = 60


@dataclass(frozen=True, slots=True)
class QuantityRow:
    """A number of an audit: which finding made it, and what is known of it.

    The fields are those of `torchtheory.core.quantity.Quantity`.
    """

    finding: str
    name: str
    label: str
    value: float
    low: float
    high: float
    basis: str
    unit: str
    used: int
    population: int

    @classmethod
    def of(cls, finding: str, quantity: Quantity) -> QuantityRow:
        return cls(finding, **asdict(quantity))

    def __repr__(self) -> str:
        return f"{self.finding}: {self.label} {quantity_words(self._quantity())}"

    def _quantity(self) -> Quantity:
        return Quantity(**{k: v for k, v in asdict(self).items() if k != "finding"})


class QuantityTable(Sequence[QuantityRow]):
    """Rows of numbers; prints as a table, and knows its rows by their names.

    >>> made = Quantity("gap", "gap of the errors", 0.25, 0.2, 0.3, "a test")
    >>> table = QuantityTable([QuantityRow.of("risk", made)])
    >>> table
    finding  number             value
    risk     gap of the errors  0.25 (0.2 to 0.3)
    >>> table["gap"].high
    0.3
    """

    def __init__(self, rows: Sequence[QuantityRow]) -> None:
        self.rows = tuple(rows)

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[QuantityRow]:
        return iter(self.rows)

    @overload
    def __getitem__(self, key: int | str) -> QuantityRow: ...
    @overload
    def __getitem__(self, key: slice) -> QuantityTable: ...
    def __getitem__(self, key: int | str | slice) -> QuantityRow | QuantityTable:
        """A row by its position or name (of two alike, the first), or some of the rows."""
        if isinstance(key, slice):
            return QuantityTable(self.rows[key])
        if isinstance(key, int):
            return self.rows[key]
        for row in self.rows:
            if row.name == key:
                return row
        raise UnknownName("quantity", key, {row.name for row in self.rows})

    def _cells(self) -> list[tuple[str, str, str]]:
        said = [
            (
                r.finding,
                textwrap.shorten(r.label, _LABEL, placeholder=" …"),
                quantity_words(r._quantity()),
            )
            for r in self.rows
        ]
        return [("finding", "number", "value"), *said]

    def __repr__(self) -> str:
        if not self.rows:
            return "no numbers"
        cells = self._cells()
        widths = [max(len(c[k]) for c in cells) for k in (0, 1)]
        lines = (f"{a:{widths[0]}}  {b:{widths[1]}}  {c}".rstrip() for a, b, c in cells)
        return printable("\n".join(lines))

    def _repr_html_(self) -> str:
        head, *rows = (
            "".join(f"<td>{html.escape(printable(cell))}</td>" for cell in row)
            for row in self._cells()
        )
        head = head.replace("td>", "th>")
        body = "".join(f"<tr>{row}</tr>" for row in rows)
        return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"

    def to_pandas(self) -> Any:
        """The rows as a `pandas.DataFrame`.

        Raises:
            MissingPackage: if pandas is not installed.
        """
        try:
            pandas = importlib.import_module("pandas")
        except ImportError:
            raise MissingPackage(
                "a data frame needs pandas, which is not installed: pip install pandas"
            ) from None
        return pandas.DataFrame([asdict(row) for row in self.rows])

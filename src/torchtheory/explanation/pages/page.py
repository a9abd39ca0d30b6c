"""Explanations on a page, in a notebook and in a terminal."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from markupsafe import Markup

from torchtheory.core.console import Console, Grid, Text, box
from torchtheory.core.figure import Figure
from torchtheory.core.record import Table
from torchtheory.explanation.methods.named import METHODS
from torchtheory.explanation.pages import pictures
from torchtheory.explanation.pages.one_explanation import (
    SUMS,
    passes,
    relevances_of,
    sums_of,
    without_empty_columns,
)
from torchtheory.report.html import fragment, page
from torchtheory.report.numbers import duration, number_words
from torchtheory.report.wording import counted

if TYPE_CHECKING:
    from torchtheory.explanation.explain import Explanations
    from torchtheory.explanation.explanation import Explanation

#: Features and words that a terminal names for every sample.
_NAMED = 4


@dataclass(frozen=True, slots=True)
class SamplePart:
    """One sample on the page.

    Attributes:
        number: in its data set.
        heading: what was explained.
        wrong: whether another class is the true one.
        sums: what the relevance of each method adds up to.
        pictures: of its inputs that are no words.
        sentences: method and colored words.
        ledgers: where relevance went, for methods that propagate it.
    """

    number: int
    heading: str
    wrong: bool
    sums: Table
    pictures: list[Figure]
    sentences: list[tuple[str, Markup]]
    ledgers: list[Figure]


def explanations_page(found: Explanations, figures: Mapping[str, Figure]) -> str:
    """A complete page, without JavaScript or network; `figures` are those of `found.figures()`."""
    return page("explanation.html", found.title, plain_words=True, **_context(found, figures))


def explanations_fragment(found: Explanations) -> str:
    """The same as a piece of HTML for a notebook."""
    return fragment("explanation.html", plain_words=True, **_context(found, found.figures()))


def print_explanations(found: Explanations, console: Console) -> None:
    """Print what was explained, how the methods agree, and what they cost."""
    console.print(Text(found.title, style="bold"))
    console.print(Text(lead(found)))
    for name, reason in found.refused.items():
        console.print(Text(f"{name} could not: {reason}", style="yellow"))
    for remark in found.remarks:
        console.print(Text(remark, style="yellow"))
    console.print()
    for k in range(len(found)):
        said = sample_heading(found, k)
        if named := most_relevant(found, k):
            said += f"; most relevant to {next(iter(found.explanations))}: {named}"
        console.print(Text(said))
    for table in (cost_table(found), agreement_table(found)):
        if table is None:
            continue
        console.print()
        grid = Grid(box=box.SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0))
        for column in table.columns:
            grid.add_column(Text(column), overflow="fold")
        for row in table.rows:
            grid.add_row(*(Text(str(cell)) for cell in row))
        console.print(grid)


def lead(found: Explanations) -> str:
    """What was done, in a sentence."""
    methods = list(found.explanations)
    listed = methods[0] if len(methods) == 1 else f"{', '.join(methods[:-1])} and {methods[-1]}"
    return f"{counted(len(found), 'score')} explained by {listed}."


def kind_of_input(found: Explanations, part: int) -> Literal["words", "image", "table"]:
    """What an input is: whole numbers are words, two or three dimensions an image."""
    x = found.x[part]
    if not x.is_floating_point():
        return "words"
    return "image" if x.ndim in (3, 4) else "table"


def words_of(found: Explanations, part: int) -> list[list[str]]:
    """The words of all samples; those that the vocabulary lacks are told by their number."""
    known = found.legend.vocabulary
    rows = found.x[part].reshape(len(found), -1).tolist()
    return [[known.get(int(w), str(int(w))) for w in row] for row in rows]


def table_columns(found: Explanations, part: int) -> int:
    """How many features the tables before an input have."""
    tables = [k for k in range(part) if kind_of_input(found, k) == "table"]
    return sum(found.x[k][0].numel() for k in tables)


def names_of(found: Explanations, part: int) -> list[str]:
    """The names of the features of a table, none where there are none."""
    start = table_columns(found, part)
    return list(found.legend.features[start : start + found.x[part][0].numel()])


def sample_picture(found: Explanations, sample: int, part: int) -> Figure:
    """One sample by all methods."""
    listed, kind = _labeled(found), kind_of_input(found, part)
    if kind == "words":
        return pictures.colored_words(
            listed, words_of(found, part), samples=[sample], titles=[_class_words(found, sample)],
            part=part,
        )  # fmt: skip
    if kind == "image":
        return pictures.heatmaps(
            listed, found.x[part], samples=[sample], titles=[""], blur=found.blur, part=part
        )
    return pictures.bars(
        listed, names_of(found, part) or None, sample=sample, values=found.x[part][sample],
        part=part,
    )  # fmt: skip


def _labeled(found: Explanations) -> list[Explanation]:
    """The explanations under the names that a user gave them, if that is where they come from."""
    return [
        e if name in METHODS else replace(e, method=name) for name, e in found.explanations.items()
    ]


def sample_heading(found: Explanations, sample: int) -> str:
    """Which sample, what was explained of it, and what it is."""
    said = f"Sample {found.sample_numbers[sample]}: {_class_words(found, sample)}"
    labels = found.legend.labels
    if labels is None:
        return said
    label = labels[sample]
    shown = (
        number_words(float(label)) if label.is_floating_point() else _class_name(found, int(label))
    )
    return f"{said}; true {'value' if label.is_floating_point() else 'class'} {shown}"


def most_relevant(found: Explanations, sample: int) -> str:
    """The features or words with the largest relevance, by their names; nothing for images."""
    e = found.first
    for part, relevance in enumerate(relevances_of(e)):
        kind = kind_of_input(found, part)
        if kind == "image":
            continue
        values = relevance[sample].reshape(-1)
        names = (words_of(found, part)[sample] if kind == "words" else names_of(found, part)) or [
            f"feature {j}" for j in range(len(values))
        ]
        order = values.abs().argsort(descending=True, stable=True)[:_NAMED].tolist()
        return ", ".join(f"{names[j]} {number_words(float(values[j]))}" for j in order)
    return ""


def cost_table(found: Explanations) -> Table:
    """What each method promises, keeps and costs."""
    rows = []
    for name, e in found.explanations.items():
        gap = e.gap
        largest = "promises no sum" if gap is None else number_words(float(gap.abs().max()))
        rows.append((name, largest, passes(e), duration(e.seconds)))
    return Table(
        "cost",
        ("method", "missing in a sum, at most", "passes per sample", "time for all"),
        tuple(rows),
        "Missing is what the relevance of all inputs lacks of the score that it should add up to; "
        "with LRP it is what the ledger books to biases and to epsilon.",
    )


def agreement_table(found: Explanations) -> Table | None:
    """How far methods agree, or None for one method."""
    pairs = found.agreement()
    if not pairs:
        return None
    known = len(found) > 1
    rows = tuple(
        (a, b, f"{i.estimate:.2f}", *([f"{max(i.low, -1):.2f} to {min(i.high, 1):.2f}"] * known))
        for (a, b), i in pairs.items()
    )
    columns = ("method", "other method", "agreement", *["range"] * known)
    return Table(
        "agreement", columns, rows,
        "Rank correlation of the relevance of features, the mean over samples"
        + (" with its 95 % range" * known)
        + ": 1 for the same order, 0 for orders that have nothing to do with each other.",
    )  # fmt: skip


def _context(found: Explanations, figures: Mapping[str, Figure]) -> dict[str, Any]:
    tables = [cost_table(found), agreement_table(found)]
    return {
        "found": found,
        "lead": lead(found),
        "samples": [_sample_part(found, k, figures) for k in range(len(found))],
        "tables": [t for t in tables if t is not None],
    }


def _sample_part(found: Explanations, k: int, figures: Mapping[str, Figure]) -> SamplePart:
    number = found.sample_numbers[k]
    drawn, sentences = [], []
    for part in range(len(found.x)):
        if kind_of_input(found, part) == "words":
            words = words_of(found, part)
            sentences += [
                (e.method, pictures.words_html(e, words, sample=k, part=part))
                for e in _labeled(found)
            ]
        else:
            drawn.append(figures[found.picture_name(k, part)])
    rows = tuple((name, *sums_of(e, k)) for name, e in found.explanations.items())
    labels, classes = found.legend.labels, found.first.classes
    return SamplePart(
        number,
        sample_heading(found, k),
        labels is not None
        and classes is not None
        and not labels.is_floating_point()
        and int(labels[k]) != int(classes[k]),
        without_empty_columns(Table(f"sums-{number}", ("method", *SUMS), rows)),
        drawn,
        sentences,
        [
            figures[found.ledger_name(k, name)]
            for name, e in found.explanations.items()
            if e.ledger is not None
        ],
    )


def _class_words(found: Explanations, k: int) -> str:
    e = found.first
    score = f"score {number_words(float(e.score[k]))}"
    return score if e.classes is None else f"class {_class_name(found, int(e.classes[k]))}, {score}"


def _class_name(found: Explanations, number: int) -> str:
    names = found.legend.classes
    return names[number] if 0 <= number < len(names) else str(number)

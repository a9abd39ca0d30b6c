"""Explanations on a page, in a notebook and in a terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

import torch
from markupsafe import Markup

from torchtheory.core.console import Console, Grid, Text, box
from torchtheory.core.figure import Figure
from torchtheory.core.record import Table
from torchtheory.explanation.ledger_flow import ledger_flow
from torchtheory.explanation.methods.named import METHODS
from torchtheory.explanation.pages import pictures
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


def explanation_fragment(e: Explanation) -> str:
    """One explanation as a piece of HTML for a notebook: a picture, its sums, its ledger."""
    drawn = [pictures.picture(e, part=part) for part in range(_parts(e))]
    if e.ledger is not None:
        drawn.append(ledger_flow(e.ledger))
    columns = ("sample", *_SUMS)
    rows = tuple((k, *_sums(e, k)) for k in range(len(e)))
    cost = f"{passes(e)} per explanation, {duration(e.seconds)} for all."
    return fragment(
        "one_explanation.html", plain_words=True, title=e.method, figures=drawn,
        sums=_without_empty(Table("sums", columns, rows, cost)),
    )  # fmt: skip


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
    for part, relevance in enumerate(_relevances(e)):
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


_SUMS = ("to explain", "adds up to", "gap", "to biases", "to epsilon", "leaked")


def _sums(e: Explanation, k: int) -> tuple[float | None, ...]:
    gap, ledger = e.gap, e.ledger
    promised = None if e.reference is None else float(e.score[k] - e.reference[k])
    return (
        promised,
        float(e.total[k]),
        None if gap is None else float(gap[k]),
        None if ledger is None else float(ledger.to_biases[k]),
        None if ledger is None else float(ledger.to_epsilon[k]),
        None if ledger is None or not bool(ledger.leaked.any()) else float(ledger.leaked[k]),
    )


def cost_table(found: Explanations) -> Table:
    """What each method promises, keeps and costs."""
    rows = []
    for name, e in found.explanations.items():
        gap = e.gap
        largest = "promises no sum" if gap is None else number_words(float(gap.abs().max()))
        rows.append((name, largest, passes(e), duration(e.seconds)))
    return Table(
        "cost",
        ("method", "largest gap", "passes per sample", "time for all"),
        tuple(rows),
        "The gap is what the relevance of a method lacks of the sum that it promises; that of LRP "
        "is what its ledger books to biases and to epsilon.",
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


def passes(e: Explanation) -> str:
    """How often a sample went through the network.

    >>> from torchtheory.explanation.explanation import Explanation
    >>> passes(Explanation(torch.ones(1, 2), torch.ones(1), "LRP", forwards=1, backwards=1))
    '1 forward, 1 backward'
    """
    return f"{number_words(e.forwards)} forward, {number_words(e.backwards)} backward"


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
    rows = tuple((name, *_sums(e, k)) for name, e in found.explanations.items())
    labels, classes = found.legend.labels, found.first.classes
    return SamplePart(
        number,
        sample_heading(found, k),
        labels is not None
        and classes is not None
        and not labels.is_floating_point()
        and int(labels[k]) != int(classes[k]),
        _without_empty(Table(f"sums-{number}", ("method", *_SUMS), rows)),
        drawn,
        sentences,
        [
            figures[found.ledger_name(k, name)]
            for name, e in found.explanations.items()
            if e.ledger is not None
        ],
    )


def _without_empty(table: Table) -> Table:
    """Without the columns in which no method has a number."""
    kept = [j for j in range(len(table.columns)) if any(r[j] is not None for r in table.rows)]
    return Table(
        table.name,
        tuple(table.columns[j] for j in kept),
        tuple(tuple(r[j] for j in kept) for r in table.rows),
        table.caption,
    )


def _class_words(found: Explanations, k: int) -> str:
    e = found.first
    score = f"score {number_words(float(e.score[k]))}"
    return score if e.classes is None else f"class {_class_name(found, int(e.classes[k]))}, {score}"


def _class_name(found: Explanations, number: int) -> str:
    names = found.legend.classes
    return names[number] if 0 <= number < len(names) else str(number)


def _relevances(e: Explanation) -> Sequence[torch.Tensor]:
    return (e.relevance,) if isinstance(e.relevance, torch.Tensor) else e.relevance


def _parts(e: Explanation) -> int:
    return len(_relevances(e))

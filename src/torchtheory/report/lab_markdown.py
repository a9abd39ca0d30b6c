"""A lab as Markdown: for wikis, lecture notes and notebooks, with its formulas between dollars."""

from __future__ import annotations

from collections.abc import Iterator

from torchtheory.report.lab_parts import cited_results, suggestions, takes
from torchtheory.report.markdown import prose_text
from torchtheory.report.results import LabText, ParameterText
from torchtheory.report.wording import CONTROL, shown


def lab_markdown(lab: LabText) -> str:
    """What a lab states, what it takes and what to try; its results are made by running it."""
    return "\n\n".join(_blocks(lab)) + "\n"


def _blocks(lab: LabText) -> Iterator[str]:
    said = lab.teaching
    yield f"# {prose_text(lab.title)}"
    yield f"`{lab.name}`, a lab of the room {lab.room}"
    for paragraph in lab.description.split("\n\n"):
        yield prose_text(paragraph)
    for theorem in said.theorems:
        yield "## Theorem"
        if theorem.given:
            yield prose_text(theorem.given)
        if theorem.hypotheses:
            yield "\n".join(f"- *{h.name}*: {prose_text(h.text)}" for h in theorem.hypotheses)
        yield prose_text(theorem.conclusion)
    if said.symbols:
        yield "## Symbols"
        yield "\n".join(f"- {prose_text(d.symbols)}: {prose_text(d.meaning)}" for d in said.symbols)
    if said.idea:
        yield "## Idea of the proof"
        yield prose_text(said.idea)
    yield "## How it is checked"
    yield f"Each statement is met by a measurement. {CONTROL}"
    if cited := cited_results(lab.covers):
        yield "\n".join(f"- {c.id} {prose_text(c.name)} ({prose_text(c.citation)})" for c in cited)
    if lab.parameters:
        yield "## Parameters"
        yield "\n".join(map(_parameter, lab.parameters.values()))
    if to_try := suggestions(lab):
        yield "## What to try"
        yield "\n".join(f"- `{s.command}`: {prose_text(s.purpose)}" for s in to_try)
    for exercise in said.exercises:
        yield "## Exercise"
        yield prose_text(exercise.task)
        if exercise.check:
            yield f"Solved when `{exercise.check}` is true."
        if exercise.answer:
            fence = f"```python\n{exercise.answer}\n```"
            yield f"<details>\n<summary>An answer</summary>\n\n{fence}\n\n</details>"


def _parameter(one: ParameterText) -> str:
    values = f"{shown(one.quick)}, in full {shown(one.full)}"
    return f"- `{one.name}` = {values} ({takes(one)}): {prose_text(one.meaning)}"

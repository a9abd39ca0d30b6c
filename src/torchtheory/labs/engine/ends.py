"""Every lab at the ends of its ranges: there it passes as well, or its theorem does not apply.

A range promises that the lab takes its ends. `python -m torchtheory.labs.engine.ends --room nets`
runs each lab of a room with one parameter after the other at the least and the most it takes, with
each of its choices, with each change that its docstring suggests, and with everything at its least.
An end that only costs time, more than a few times the quick preset, is left out.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Annotated, Any

import typer

from torchtheory.core.errors import FileProblem, TorchTheoryError
from torchtheory.core.figure import figures_not_saved
from torchtheory.labs.engine.parameters import Parameter
from torchtheory.labs.engine.registry import Lab, find_lab, listed_labs
from torchtheory.labs.engine.run import run_lab
from torchtheory.report.lab_parts import typed

#: A count that is more than so many times the quick preset's is tried by whoever has the time.
LARGEST_TRIED = 4


def ends(parameter: Parameter) -> list[Any]:
    """The values at the ends of a parameter's range, other than that of the quick preset.

    >>> ends(Parameter("samples", int, 200, 2000, least=20, most=500))
    [20, 500]
    >>> ends(Parameter("widths", tuple[int, ...], (16, 32, 64, 128), (), least=8, items=3))
    [(16, 32, 64), (8, 32, 64, 128)]
    """
    quick = parameter.quick
    found = list(parameter.choices)
    if isinstance(quick, tuple | list) and quick:
        found.append(tuple(quick[: parameter.items]))
        if parameter.least is not None:
            found.append(tuple(parameter.least if v == min(quick) else v for v in quick))
    elif isinstance(quick, int | float) and not found:  # a switch has choices and no ends
        found += [end for end in (parameter.least, parameter.most) if end is not None]
        costly = LARGEST_TRIED * max(quick, 1)
        found = [v for v in found if isinstance(quick, float) or v <= costly]
    now = tuple(quick) if isinstance(quick, list) else quick
    return [v for v in dict.fromkeys(found) if v != now]


def least_of_all(lab: Lab) -> dict[str, Any]:
    """Every parameter at its least: the cheapest run there is, and the hardest."""
    found = {p.name: ends(p)[:1] for p in lab.parameters.values()}
    return {name: values[0] for name, values in found.items() if values}


def cases(lab: Lab) -> Iterator[dict[str, Any]]:
    """Settings at the ends: of one parameter at a time, those that the lab suggests, all at once."""
    for parameter in lab.parameters.values():
        yield from ({parameter.name: value} for value in ends(parameter))
    for change in lab.teaching.changes:
        if change.values:
            yield dict(change.values)
    if least := least_of_all(lab):
        yield least


def end_faults(lab: Lab, settings: dict[str, Any], seed: int = 0) -> list[str]:
    """Why a lab should not take these settings: it raises, or it fails."""
    try:
        with figures_not_saved():
            return run_lab(lab, settings=settings, seed=seed).problems
    except FileProblem:  # a data set that is not on this machine
        return []
    except TorchTheoryError as error:
        return [f"refused inside of the range: {error}"]
    except Exception as error:  # whatever it is, a user would meet it
        return [f"raises {type(error).__name__}: {error}"]


def main(
    names: Annotated[list[str] | None, typer.Argument(help="Labs; all of them unless named.")] = None,
    room: Annotated[str | None, typer.Option(help="Only labs of this room.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of the runs.")] = 0,
) -> None:
    """Run labs at the ends of their ranges; exit with 1 if one raises or fails there."""
    chosen = [n for n, one in listed_labs().items() if (not names or n in names) and room in (None, one.room)]
    failing = tried = 0
    for name in chosen:
        lab = find_lab(name)
        for settings in cases(lab):
            tried += 1
            if faults := end_faults(lab, settings, seed):
                failing += 1
                options = " ".join(f"--set {k}={typed(v)}" for k, v in settings.items())
                print(f"{name} {options}: {'; '.join(faults)[:300]}", flush=True)
    print(f"{tried} runs of {len(chosen)} labs, {failing} of them raise or fail", file=sys.stderr)
    raise typer.Exit(1 if failing else 0)


if __name__ == "__main__":
    typer.run(main)

"""`torchtheory lab`: the experiments, listed, described and run."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from torchtheory.cli.options import DEFAULT_RUNS, REPLACED, Json, Seed, check_room
from torchtheory.cli.output import (
    complain,
    console,
    list_console,
    print_json,
    print_place,
)
from torchtheory.core import catalogue
from torchtheory.core.errors import InvalidInput
from torchtheory.core.outputs import Place, refuse_places
from torchtheory.report.files import INDEX

if TYPE_CHECKING:
    from torchtheory.labs.engine.registry import Lab
    from torchtheory.labs.engine.run import Run

app = typer.Typer(no_args_is_help=True, help="Theorems, constructions and figures as labs.")


class PresetChoice(StrEnum):
    quick = "quick"
    full = "full"


Modules = Annotated[
    list[str] | None,
    typer.Option(
        "--module",
        help="Your own labs: a Python file or module that registers them with tt.lab (may be "
        "repeated).",
    ),
]


@app.command("list")
def lab_list(
    room: Annotated[str | None, typer.Option(help="Only labs of this room.")] = None,
    covers: Annotated[str | None, typer.Option(help="Only labs that cover this id.")] = None,
    modules: Modules = None,
    as_json: Json = False,
) -> None:
    """List the labs.

    Examples:

      torchtheory lab list --room nets

      torchtheory lab list --covers N-08

      torchtheory lab list --module mylabs.py
    """
    from rich.table import Table
    from rich.text import Text

    from torchtheory.labs.engine.registry import listed_labs
    from torchtheory.report.plain_math import plain_prose

    check_room(room)
    _take_up(modules)
    wanted = catalogue.entry(covers).id if covers is not None else None
    chosen = [
        found
        for found in listed_labs().values()
        if (room is None or found.room == room) and (wanted is None or wanted in found.covers)
    ]
    if as_json:
        rows = [
            {"name": f.name, "room": f.room, "title": f.title, "covers": list(f.covers)}
            for f in chosen
        ]
        print_json({"labs": rows})
        return
    if not chosen:
        console().print("no lab matches (torchtheory lab list shows all of them)", highlight=False)
        return
    table = Table(box=None, header_style="bold", pad_edge=False)
    for column in ("lab", "room", "title", "covers"):
        table.add_column(column, no_wrap=column in ("lab", "room"))
    for f in chosen:
        table.add_row(*map(Text, (f.name, f.room, plain_prose(f.title), ", ".join(f.covers))))
    list_console().print(table)


@app.command("show")
def lab_show(
    name: Annotated[str, typer.Argument(help="The lab.")],
    modules: Modules = None,
    as_markdown: Annotated[
        bool, typer.Option("--markdown", help="Print Markdown, with LaTeX between dollar signs.")
    ] = False,
    as_json: Json = False,
) -> None:
    """What a lab states, does and takes.

    Examples:

      torchtheory lab show hopfield-capacity

      torchtheory lab show perceptron-novikoff --markdown
    """
    from torchtheory.labs.engine.registry import find_lab
    from torchtheory.report.lab_markdown import lab_markdown
    from torchtheory.report.lab_parts import suggestions
    from torchtheory.report.lab_terminal import print_lab

    _take_up(modules)
    lab = find_lab(name)
    if as_json:
        parameters = [
            {
                "name": p.name,
                "type": p.kind,
                "quick": p.quick,
                "full": p.full,
                "least": p.least,
                "most": p.most,
                "items": p.items,
                "choices": list(p.choices),
                "meaning": p.meaning,
            }
            for p in lab.parameters.values()
        ]
        print_json(
            {
                "name": lab.name,
                "room": lab.room,
                "title": lab.title,
                "covers": list(lab.covers),
                "errata": list(lab.errata),
                "description": lab.description,
                "teaching": lab.teaching.to_json(),
                "parameters": parameters,
                "try": [s.command for s in suggestions(lab)],
            }
        )
    elif as_markdown:
        typer.echo(lab_markdown(lab), nl=False)
    else:
        print_lab(lab, console())


@app.command("run")
def lab_run(
    names: Annotated[list[str] | None, typer.Argument(help="The labs to run.")] = None,
    every: Annotated[bool, typer.Option("--all", help="Run every lab.")] = False,
    preset: Annotated[
        PresetChoice, typer.Option(help="quick: seconds; full: the source's sizes, minutes.")
    ] = PresetChoice.quick,
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="Set a parameter: --set margin=0.05")
    ] = None,
    modules: Modules = None,
    seed: Seed = 0,
    seeds: Annotated[
        int | None,
        typer.Option(min=1, help="Run at this many seeds and count how often each claim fails."),
    ] = None,
    out: Annotated[
        Path, typer.Option(help=f"Directory the runs are kept in. {REPLACED}")
    ] = DEFAULT_RUNS,
    jobs: Annotated[int, typer.Option(min=1, help="Labs run side by side.")] = 1,
    force: Annotated[bool, typer.Option(help="Run again what is finished already.")] = False,
    verbose: Annotated[
        bool, typer.Option(help="Show controls and reasons; with --seeds, all claims.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Run labs; each gives claims with verdicts, tables, figures and an HTML page.

    A finished lab is not run again unless --force: a killed --all goes on where it was.

    Examples:

      torchtheory lab run perceptron-novikoff --set samples=500

      torchtheory lab run --all --preset quick --jobs 2 --json

      torchtheory lab run perceptron-novikoff --seeds 20

      torchtheory lab run my-lab --module mylabs.py
    """
    from torchtheory.labs.engine.many import Failure, run_many
    from torchtheory.labs.engine.run import Run
    from torchtheory.labs.engine.seeds import counted_seeds, print_seeds, run_seeds
    from torchtheory.labs.engine.store import RunStore

    _take_up(modules)
    chosen = _chosen(names or [], every)
    store = RunStore(out)
    refuse_places([Place(out, INDEX)])
    if seeds is not None:
        report = run_seeds(
            chosen,
            store,
            seeds,
            first=seed,
            preset=preset.value,
            settings=_settings(settings or []),
            jobs=jobs,
            force=force,
        )
        refused = any(f.bad_input for f in report.failures)
        if report.rates or not refused:
            if as_json:
                print_json(report.to_json())
            else:
                print_seeds(report, console(), verbose=verbose)
        for (name, sentence), at in report.failures_by_sentence.items():
            complain(f"lab {name} at {counted_seeds(at)}: {sentence}")
        if refused:
            raise typer.Exit(2)
        raise typer.Exit(0 if report.passed else 1)
    outcomes = list(
        run_many(
            chosen,
            store,
            preset=preset.value,
            seed=seed,
            settings=_settings(settings or []),
            jobs=jobs,
            force=force,
        )
    )
    order = {lab.name: k for k, lab in enumerate(chosen)}
    outcomes.sort(key=lambda o: order[o.lab.name])
    runs = [o for o in outcomes if isinstance(o, Run)]
    failures = [o for o in outcomes if isinstance(o, Failure)]
    if runs:
        store.write_index()
    refused = any(f.bad_input for f in failures)
    if as_json and (runs or not refused):
        print_json({"runs": [r.to_json() for r in runs]})
    elif runs:
        _print(runs, several=len(chosen) > 1, verbose=verbose)
        print_place(out / "index.html")
    for failure in failures:
        complain(f"lab {failure.lab.name}: {failure.sentence}")
    if refused:
        raise typer.Exit(2)
    raise typer.Exit(0 if not failures and all(r.passed for r in runs) else 1)


def _take_up(modules: Sequence[str] | None) -> None:
    from torchtheory.labs.engine.registry import take_up

    for module in modules or ():
        take_up(module)


def _chosen(names: Sequence[str], every: bool) -> list[Lab]:
    from torchtheory.labs.engine.registry import find_lab, listed_labs

    if names and every:
        raise InvalidInput(f"name labs ({', '.join(names)}) or say --all, not both")
    if not names and not every:
        raise InvalidInput("name the labs to run, or say --all (torchtheory lab list shows them)")
    wanted = listed_labs() if every else dict.fromkeys(names)
    return [find_lab(name) for name in wanted]


def _print(runs: Sequence[Run], *, several: bool, verbose: bool) -> None:
    from torchtheory.report.terminal import print_run, print_runs

    if verbose or not several:
        for run in runs:
            print_run(run, console(), verbose=verbose)
    if several:
        print_runs(runs, console())


def _settings(pairs: Sequence[str]) -> dict[str, str]:
    found = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not (name and equals):
            raise InvalidInput(f"--set takes name=value, not {pair!r}")
        found[name.strip().replace("-", "_")] = value
    return found

"""The command line: parses, calls, prints. Results go to stdout, progress and errors to stderr.

Exit codes: 0 done, 1 some claim is violated (or a lab failed), 2 bad input, 130 interrupted.
"""

from __future__ import annotations

import io
import json
import os
import platform
import sys
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from torchtheory import __version__
from torchtheory.core.errors import InvalidInput, TorchTheoryError

app = typer.Typer(
    name="torchtheory",
    help="The executable mathematics of deep learning, on PyTorch.",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
lab_app = typer.Typer(no_args_is_help=True, help="Theorems, constructions and figures as labs.")
app.add_typer(lab_app, name="lab")

DEFAULT_RUNS = Path("torchtheory-runs")
DEFAULT_AUDIT = Path("torchtheory-audit")
DEFAULT_COMPARISON = Path("torchtheory-comparison")
INTERRUPTED = 130


class PresetChoice(StrEnum):
    quick = "quick"
    full = "full"


class TaskChoice(StrEnum):
    regression = "regression"
    binary = "binary"
    multiclass = "multiclass"


Json = Annotated[bool, typer.Option("--json", help="Print JSON on stdout.")]
Seed = Annotated[int, typer.Option(min=0, help="Everything random follows from it.")]


def _version(wanted: bool) -> None:
    if wanted:
        print(f"torchtheory {__version__}")
        raise typer.Exit


@app.callback()
def top(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    pass


@app.command()
def audit(
    model: Annotated[
        str | None,
        typer.Option(help="Your model: package.module:factory, or a .pt2 file of torch.export."),
    ] = None,
    weights: Annotated[
        Path | None, typer.Option(help="Its weights: .safetensors, or a .pt/.pth state dict.")
    ] = None,
    initial_weights: Annotated[
        Path | None, typer.Option(help="The weights training began with, in the same formats.")
    ] = None,
    prior_weights: Annotated[
        Path | None,
        typer.Option(help="Weights of a prior that has not seen the training data; it is tested."),
    ] = None,
    data: Annotated[
        str | None,
        typer.Option(
            help="An .npz file, a directory of .npy or IDX files, a .csv or .tsv file, or "
            "package.module:loader."
        ),
    ] = None,
    target: Annotated[
        str | None, typer.Option(help="Column of a table to predict; several with commas.")
    ] = None,
    test_data: Annotated[Path | None, typer.Option(help="A second table, for testing.")] = None,
    task: Annotated[TaskChoice | None, typer.Option(help="Inferred unless given.")] = None,
    output: Annotated[
        str | None,
        typer.Option(help="Key or position of the output meant, if the model returns several."),
    ] = None,
    learning_rate: Annotated[
        float | None, typer.Option(help="Of your training: is it below the stability limit?")
    ] = None,
    budget: Annotated[str, typer.Option(help="Time it may take: 90s, 5min, 1h.")] = "60s",
    memory: Annotated[str, typer.Option(help="Memory evaluations may take: 4GiB.")] = "4GiB",
    confidence: Annotated[float, typer.Option(help="Of every statistical statement.")] = 0.95,
    only: Annotated[
        list[str] | None, typer.Option(help="Make only this finding (may be repeated).")
    ] = None,
    limit: Annotated[int, typer.Option(min=1, help="Most samples used of either set.")] = 20_000,
    seed: Seed = 0,
    out: Annotated[Path, typer.Option(help="Directory for the report.")] = DEFAULT_AUDIT,
    fail_on_warning: Annotated[
        bool, typer.Option("--fail-on-warning", help="Exit with 1 if something is wrong.")
    ] = False,
    as_json: Json = False,
) -> None:
    """What theory says about your network.

    Without --model, a small network is trained on scikit-learn's digits and audited. The report is
    written as report.html, report.md and audit.json. Ctrl-C ends it with what it has.

    Examples:

      torchtheory audit

      torchtheory audit --model mypackage.nets:make --weights best.safetensors --data data.npz

      torchtheory audit --model net.pt2 --data table.csv --target price --budget 5min

      torchtheory audit --only curvature --only risk --json
    """
    import torch

    from torchtheory.audit.engine.audit import audit as run_audit
    from torchtheory.audit.example import digits_example
    from torchtheory.core.random import as_generator
    from torchtheory.data.sources import load_data
    from torchtheory.models.loading import load_model, load_weights, weights_for

    train: Any
    test: Any
    initial: Any
    prior = None
    if model is None:
        given = (weights, initial_weights, prior_weights, data, target, test_data, output)
        if any(g is not None for g in given):
            raise InvalidInput(
                "--weights, --initial-weights, --prior-weights, --data, --target, --test-data and "
                "--output go with --model"
            )
        network, train, test, initial = digits_example(seed)
        title = "MLP 64-64-64-10 on scikit-learn's digits"
    else:
        if data is None:
            raise InvalidInput("--model needs --data, the data to audit it on")
        train, test = load_data(data, target=target, test=test_data, seed=seed)
        torch.manual_seed(as_generator(seed).initial_seed())  # first weights of the factory
        network = load_model(model)
        if weights is not None:
            load_weights(network, weights)
        initial = None if initial_weights is None else weights_for(network, initial_weights)
        prior = None if prior_weights is None else weights_for(network, prior_weights)
        title = model
    result = run_audit(
        network,
        train,
        test,
        task=task.value if task else None,
        initial=initial,
        confidence=confidence,
        seed=seed,
        only=only or None,
        budget=budget,
        memory=memory,
        learning_rate=learning_rate,
        prior=prior,
        output=int(output) if output is not None and output.isdigit() else output,
        limit=limit,
        title=title,
    )
    page = result.save(out)
    if as_json:
        _print_json(result.to_json())
    else:
        from torchtheory.report.terminal import print_audit

        print_audit(result, _console())
        _console().print(f"report: {page}", highlight=False, markup=False, soft_wrap=True)
    if result.interrupted:
        raise typer.Exit(INTERRUPTED)
    raise typer.Exit(1 if result.violated or (fail_on_warning and result.warnings) else 0)


@app.command()
def compare(
    first: Annotated[Path, typer.Argument(help="An audit: its audit.json, or its directory.")],
    second: Annotated[Path, typer.Argument(help="The audit to compare with it.")],
    out: Annotated[Path, typer.Option(help="Directory for the report.")] = DEFAULT_COMPARISON,
    verbose: Annotated[
        bool, typer.Option(help="Show equal numbers and how it was decided.")
    ] = False,
    fail_on_worse: Annotated[
        bool, typer.Option("--fail-on-worse", help="Exit with 1 on a new warning or violation.")
    ] = False,
    as_json: Json = False,
) -> None:
    """What changed between two audits, beyond the error bars.

    Examples:

      torchtheory compare before/ after/

      torchtheory compare a/audit.json b/audit.json --fail-on-worse --json
    """
    from torchtheory.audit.comparison.compare import compare as compare_audits
    from torchtheory.audit.comparison.page import print_comparison

    found = compare_audits(first, second)
    page = found.save(out)
    if as_json:
        _print_json(found.to_json())
    else:
        print_comparison(found, _console(), verbose=verbose)
        _console().print(f"report: {page}", highlight=False, markup=False, soft_wrap=True)
    raise typer.Exit(1 if fail_on_worse and found.worsened else 0)


@lab_app.command("list")
def lab_list(
    room: Annotated[str | None, typer.Option(help="Only labs of this room.")] = None,
    covers: Annotated[str | None, typer.Option(help="Only labs that cover this id.")] = None,
    as_json: Json = False,
) -> None:
    """List the labs.

    Examples:

      torchtheory lab list --room nets

      torchtheory lab list --covers N-08
    """
    from rich.table import Table
    from rich.text import Text

    from torchtheory.core import catalogue
    from torchtheory.labs.engine.registry import labs

    if room is not None:
        _check_room(room)
    wanted = catalogue.entry(covers).id if covers is not None else None
    chosen = [
        found
        for found in labs().values()
        if (room is None or found.room == room) and (wanted is None or wanted in found.covers)
    ]
    if as_json:
        rows = [
            {"name": f.name, "room": f.room, "title": f.title, "covers": list(f.covers)}
            for f in chosen
        ]
        _print_json({"labs": rows})
        return
    table = Table(box=None, header_style="bold")
    for column in ("lab", "room", "title", "covers"):
        table.add_column(column, no_wrap=column in ("lab", "room"))
    for f in chosen:
        table.add_row(*map(Text, (f.name, f.room, f.title, ", ".join(f.covers))))
    _console().print(table)


@lab_app.command("show")
def lab_show(name: Annotated[str, typer.Argument(help="The lab.")], as_json: Json = False) -> None:
    """What a lab claims, does and takes.

    Example:

      torchtheory lab show hopfield-capacity
    """
    from rich.table import Table
    from rich.text import Text

    from torchtheory.core import catalogue
    from torchtheory.labs.engine.registry import find_lab, type_name

    lab = find_lab(name)
    if as_json:
        parameters = [
            {"name": p.name, "type": type_name(p.type), "quick": p.quick, "full": p.full}
            for p in lab.parameters.values()
        ]
        _print_json(
            {
                "name": lab.name,
                "room": lab.room,
                "title": lab.title,
                "covers": list(lab.covers),
                "errata": list(lab.errata),
                "description": lab.description,
                "parameters": parameters,
            }
        )
        return
    console = _console()
    console.print(f"{lab.name} ({lab.room})", style="bold", markup=False, highlight=False)
    console.print(lab.title, markup=False, highlight=False)
    console.print()
    console.print(lab.description, markup=False, highlight=False)
    console.print()
    for i in lab.covers:
        entry = catalogue.entry(i)
        console.print(f"  {i}  {entry.name}: {entry.citation}", markup=False, highlight=False)
    if lab.parameters:
        table = Table("parameter", "is", "quick", "full", box=None, header_style="bold")
        for p in lab.parameters.values():
            row = (p.name, type_name(p.type), _shown(p.quick), _shown(p.full))
            table.add_row(*map(Text, row))
        console.print()
        console.print(table)


@lab_app.command("run")
def lab_run(
    names: Annotated[list[str] | None, typer.Argument(help="The labs to run.")] = None,
    every: Annotated[bool, typer.Option("--all", help="Run every lab.")] = False,
    preset: Annotated[
        PresetChoice, typer.Option(help="quick: seconds; full: the source's sizes, minutes.")
    ] = PresetChoice.quick,
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="Set a parameter: --set margin=0.05")
    ] = None,
    seed: Seed = 0,
    out: Annotated[Path, typer.Option(help="Directory the runs are kept in.")] = DEFAULT_RUNS,
    jobs: Annotated[int, typer.Option(min=1, help="Labs run side by side.")] = 1,
    force: Annotated[bool, typer.Option(help="Run again what is finished already.")] = False,
    verbose: Annotated[bool, typer.Option(help="Show controls and reasons.")] = False,
    as_json: Json = False,
) -> None:
    """Run labs; each gives claims with verdicts, tables, figures and an HTML page.

    A finished lab is not run again unless --force: a killed --all goes on where it was.

    Examples:

      torchtheory lab run perceptron-novikoff --set samples=500

      torchtheory lab run --all --preset quick --jobs 2 --json
    """
    from torchtheory.labs.engine.many import Failure, run_many
    from torchtheory.labs.engine.registry import find_lab, labs
    from torchtheory.labs.engine.run import Run
    from torchtheory.labs.engine.store import RunStore
    from torchtheory.report.terminal import print_run, print_runs

    if bool(names) == every:
        raise InvalidInput("name the labs to run, or say --all (torchtheory lab list shows them)")
    chosen = list(labs().values()) if every else [find_lab(n) for n in dict.fromkeys(names or [])]
    store = RunStore(out)
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
    if as_json:
        _print_json({"runs": [r.to_json() for r in runs]})
    elif runs:
        console = _console()
        if len(chosen) == 1 or verbose:
            for run in runs:
                print_run(run, console, verbose=verbose)
        if len(chosen) > 1:
            print_runs(runs, console)
        page = out / "index.html"
        console.print(f"report: {page}", highlight=False, markup=False, soft_wrap=True)
    for failure in failures:
        _complain(f"lab {failure.lab.name}: {failure.sentence}")
    if any(f.bad_input for f in failures):
        raise typer.Exit(2)
    raise typer.Exit(0 if not failures and all(r.passed for r in runs) else 1)


@app.command()
def index(
    query: Annotated[str, typer.Argument(help="Words in name, source or id.")] = "",
    source: Annotated[str | None, typer.Option(help="Only this source.")] = None,
    room: Annotated[str | None, typer.Option(help="Only this room.")] = None,
    missing: Annotated[
        bool, typer.Option("--missing", help="Only what no lab covers yet.")
    ] = False,
    as_json: Json = False,
) -> None:
    """The catalogue of results, and which labs exercise them.

    Examples:

      torchtheory index ntk

      torchtheory index --source notes --missing
    """
    from torchtheory.labs.engine.coverage import coverage
    from torchtheory.labs.engine.lists import print_coverage

    if room is not None:
        _check_room(room)
    found = coverage(query, source=source, room=room, missing_only=missing)
    if as_json:
        _print_json(found.to_json())
    else:
        everything = not (query or source or room or missing)
        print_coverage(found, _console(), summary_only=everything)


@app.command()
def errata(
    query: Annotated[str, typer.Argument(help="Words in the text, the id or the source.")] = "",
    out: Annotated[
        Path, typer.Option(help="Directory of finished runs; missing ones are added to it.")
    ] = DEFAULT_RUNS,
    as_json: Json = False,
) -> None:
    """Errors of the sources: what is printed, what is right, and a counterexample's numbers.

    The numbers come from the labs' quick runs; those that are not finished yet are run first.

    Examples:

      torchtheory errata

      torchtheory errata Novikoff --json
    """
    from torchtheory.labs.engine.coverage import find_errata
    from torchtheory.labs.engine.lists import print_errata
    from torchtheory.labs.engine.store import RunStore

    found = find_errata(query, RunStore(out))
    if as_json:
        _print_json({"errata": [e.to_json() for e in found]})
    else:
        print_errata(found, _console())
    without = [e for e in found if not e.claims]
    for erratum in without:
        _complain(f"erratum {erratum.text.key} has no numbers: lab {erratum.lab} did not finish")
    if without:
        raise typer.Exit(1)


@app.command()
def size(
    function_class: Annotated[
        str | None, typer.Option("--class", help="The functions to approximate; --list shows all.")
    ] = None,
    smoothness: Annotated[
        float | None, typer.Option(help="Derivatives the functions have, where the class asks.")
    ] = None,
    dim: Annotated[int | None, typer.Option(help="Dimension of the inputs.")] = None,
    error: Annotated[float | None, typer.Option(help="Error to reach, below 1.")] = None,
    p: Annotated[
        float | None, typer.Option(help="Of the Lp norm; inf for the largest error.")
    ] = None,
    order: Annotated[float, typer.Option(help="Derivatives the error counts, 0 to 1.")] = 0.0,
    lipschitz: Annotated[float, typer.Option(help="Constant of the class lipschitz.")] = 1.0,
    barron_constant: Annotated[float, typer.Option(help="Fourier moment, class barron.")] = 1.0,
    radius: Annotated[float, typer.Option(help="Of the ball of the class barron.")] = 1.0,
    ambient: Annotated[int, typer.Option(help="Dimension around a manifold.")] = 100,
    charts: Annotated[int, typer.Option(help="Charts of a manifold.")] = 1,
    weights_exponent: Annotated[
        float | None, typer.Option(help="Where depth is traded for weights: d/2n up to d/n.")
    ] = None,
    constant: Annotated[
        float, typer.Option(help="Before the sizes whose own constant is unknown.")
    ] = 1.0,
    shallow: Annotated[bool, typer.Option("--shallow", help="One hidden layer only.")] = False,
    continuous: Annotated[
        bool, typer.Option("--continuous", help="Only weights continuous in the function.")
    ] = False,
    list_classes: Annotated[bool, typer.Option("--list", help="Show the classes.")] = False,
    as_json: Json = False,
) -> None:
    """How large a network must be, and may be, to approximate a class of functions.

    Examples:

      torchtheory size --list

      torchtheory size --class sobolev --smoothness 2 --dim 5 --error 1e-2

      torchtheory size --class barron --barron-constant 10 --dim 100 --error 0.05 --json
    """
    from torchtheory.approximation.rates.budget import size_needed
    from torchtheory.approximation.rates.theorems import FUNCTION_CLASSES
    from torchtheory.cli.size_table import print_classes, print_sizes

    if list_classes:
        if as_json:
            _print_json({"classes": FUNCTION_CLASSES})
        else:
            print_classes(_console())
        return
    if function_class is None or dim is None or error is None:
        raise InvalidInput(
            "size needs --class, --dim and --error (torchtheory size --list shows the classes)"
        )
    found = size_needed(
        function_class,
        smoothness=smoothness,
        dimension=dim,
        error=error,
        p=p,
        order=order,
        lipschitz=lipschitz,
        barron_constant=barron_constant,
        radius=radius,
        ambient=ambient,
        charts=charts,
        weights_exponent=weights_exponent,
        constant=constant,
        shallow=shallow,
        continuous=continuous,
    )
    if as_json:
        _print_json(found.to_json())
    else:
        print_sizes(found, _console())


@app.command()
def doctor(as_json: Json = False) -> None:
    """Versions, threads, device and data sets of this installation.

    Example:

      torchtheory doctor
    """
    from importlib.metadata import PackageNotFoundError, version

    import torch

    from torchtheory.data.image_sets import data_directory, locate_image_set
    from torchtheory.labs.engine.registry import labs

    def version_of(package: str) -> str:
        try:
            return version(package)
        except PackageNotFoundError:
            return "not installed"

    packages = ("torch", "numpy", "scipy", "scikit-learn", "networkx", "matplotlib", "safetensors")
    places = {name: locate_image_set(name) for name in ("mnist", "fashion-mnist")}
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"
    report: dict[str, dict[str, Any]] = {
        "versions": {
            "torchtheory": __version__,
            "python": platform.python_version(),
            **{p: version_of(p) for p in packages},
        },
        "machine": {
            "system": f"{platform.system()} {platform.machine()}",
            "cores": os.cpu_count(),
            "torch threads": torch.get_num_threads(),
            "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "not set"),
            "device": device,
            "default dtype": str(torch.get_default_dtype()).removeprefix("torch."),
        },
        "data": {
            "directory": str(data_directory()),
            "digits": "ships with scikit-learn",
            **{n: str(p) if p else "not found" for n, p in places.items()},
        },
        "labs": {"registered": len(labs())},
    }
    if as_json:
        _print_json(report)
        return
    console = _console()
    for heading, facts in report.items():
        console.print(heading, style="bold")
        for name, value in facts.items():
            console.print(f"  {name:16} {value}", markup=False, highlight=False, soft_wrap=True)


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point: a foreseeable mistake becomes one line on stderr and exit code 2."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a terminal that cannot show ≤ shows ? instead
            stream.reconfigure(errors="replace")
    try:
        code = _run(list(arguments) if arguments is not None else None)
        sys.stdout.flush()
    except BrokenPipeError:  # the reader has seen enough, as in "torchtheory index | head"
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 1
    sys.exit(code)


def _run(arguments: list[str] | None) -> int:
    try:
        code = app(args=arguments, prog_name="torchtheory", standalone_mode=False)
    except TorchTheoryError as error:
        _complain(str(error))
        return 2
    except (KeyboardInterrupt, typer.Abort):
        code = INTERRUPTED
    except Exception as error:  # the parser's own errors have no common public class
        if not hasattr(error, "format_message"):
            raise
        message = error.format_message()
        if message:  # empty when only the help was asked for, and shown
            _complain(message)
        return 2
    if code == INTERRUPTED:
        _complain("interrupted; what was finished before is kept")
    return code if isinstance(code, int) else 0


def _complain(sentence: str) -> None:
    print(f"torchtheory: {' '.join(sentence.split())}", file=sys.stderr)


def _settings(pairs: Sequence[str]) -> dict[str, str]:
    found = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not (name and equals):
            raise InvalidInput(f"--set takes name=value, not {pair!r}")
        found[name.strip().replace("-", "_")] = value
    return found


def _check_room(room: str) -> None:
    from torchtheory.core.catalogue import ROOMS
    from torchtheory.core.errors import UnknownName

    if room not in ROOMS:
        raise UnknownName("room", room, ROOMS)


def _shown(value: object) -> str:
    if isinstance(value, tuple | list):
        return ",".join(str(v) for v in value)
    return str(value)


def _print_json(data: object) -> None:
    unicode = (sys.stdout.encoding or "").lower().replace("-", "") == "utf8"
    print(json.dumps(data, indent=1, allow_nan=False, ensure_ascii=not unicode))


def _console() -> Any:
    from rich.console import Console

    return Console()


if __name__ == "__main__":
    main()

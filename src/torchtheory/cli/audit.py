"""`torchtheory audit`: what theory says about a network."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from torchtheory.cli.options import (
    REPLACED,
    Data,
    Json,
    Model,
    Output,
    Seed,
    position_or_key,
    refuse_without_model,
)
from torchtheory.cli.output import (
    INTERRUPTED,
    complain,
    console,
    print_json,
    print_place,
)
from torchtheory.core.errors import InvalidInput
from torchtheory.core.outputs import Place, file_place, refuse_places, write_outputs
from torchtheory.report.files import CHECKPOINT, SERIES, audit_files

if TYPE_CHECKING:
    from torchtheory.audit.checkpoints import Request
    from torchtheory.audit.comparison.recorded import RecordedAudit
    from torchtheory.audit.engine.audit import Audit

DEFAULT_AUDIT = Path("torchtheory-audit")

#: Where a log of results says that they are, of the example that is trained here.
EXAMPLE = "torchtheory/audit/example.py"


class TaskChoice(StrEnum):
    regression = "regression"
    counts = "count"
    ordinal = "ordinal"
    ranking = "ranking"
    binary = "binary"
    multiclass = "multiclass"
    multilabel = "multilabel"
    labeling = "labeling"
    own = "own"
    unlabeled = "unlabeled"


class FailChoice(StrEnum):
    never = "never"
    violated = "violated"
    defect = "defect"
    look = "look"


def audit(
    more_weights: Annotated[
        list[Path] | None,
        typer.Argument(metavar="[WEIGHTS]...", help="More files of weights, audited beside it."),
    ] = None,
    model: Model = None,
    weights: Annotated[
        list[Path] | None,
        typer.Option(
            help="Its weights: .safetensors, or a .pt/.pth state dict. Without --model they are "
            "audited alone; several are audited side by side."
        ),
    ] = None,
    initial_weights: Annotated[
        Path | None, typer.Option(help="The weights training began with, in the same formats.")
    ] = None,
    prior_weights: Annotated[
        Path | None,
        typer.Option(help="Weights of a prior that has not seen the training data; it is tested."),
    ] = None,
    data: Data = None,
    target: Annotated[
        str | None, typer.Option(help="Column of a table to predict; several with commas.")
    ] = None,
    test_data: Annotated[Path | None, typer.Option(help="A second table, for testing.")] = None,
    task: Annotated[
        TaskChoice | None,
        typer.Option(
            help="What the outputs are for; inferred from outputs, targets and loss unless given, "
            "and stated at the top."
        ),
    ] = None,
    loss: Annotated[
        str | None,
        typer.Option(
            help="squared, absolute, logistic (of logits), bernoulli (of probabilities), "
            "cross-entropy, log-likelihood, poisson, or package.module:loss; the task's usual one "
            "unless given."
        ),
    ] = None,
    output: Output = None,
    learning_rate: Annotated[
        float | None, typer.Option(help="Of your training: is it below the stability limit?")
    ] = None,
    budget: Annotated[
        str | None,
        typer.Option(
            help="Time it may take: 90s, 5min, 1h. 60s unless given, 30s for weights alone."
        ),
    ] = None,
    memory: Annotated[str, typer.Option(help="Memory evaluations may take: 4GiB.")] = "4GiB",
    confidence: Annotated[float, typer.Option(help="Of every statistical statement.")] = 0.95,
    only: Annotated[
        list[str] | None, typer.Option(help="Make only this finding (may be repeated).")
    ] = None,
    limit: Annotated[int, typer.Option(min=1, help="Most samples used of either set.")] = 20_000,
    seed: Seed = 0,
    jobs: Annotated[int, typer.Option(min=1, help="Checkpoints audited side by side.")] = 1,
    again: Annotated[
        bool, typer.Option("--again", help="Of several checkpoints, also those that are finished.")
    ] = False,
    out: Annotated[
        Path, typer.Option(help=f"Directory for the report. {REPLACED}")
    ] = DEFAULT_AUDIT,
    fail_on: Annotated[
        FailChoice,
        typer.Option(
            help="Exit with 1 on a refuted promise of theory (violated), also on a defect, also on "
            "what is only worth a look."
        ),
    ] = FailChoice.violated,
    sarif: Annotated[
        Path | None,
        typer.Option(
            help="Also write SARIF 2.1.0 to this file, for code hosts; its directory is made. Only "
            "an earlier such log of torchtheory is replaced."
        ),
    ] = None,
    junit: Annotated[
        Path | None,
        typer.Option(
            help="Also write JUnit XML to this file, a test for each area. Only an earlier such "
            "log of torchtheory is replaced."
        ),
    ] = None,
    details: Annotated[
        bool, typer.Option("--details", help="Print everything, not only the first screen.")
    ] = False,
    as_json: Json = False,
) -> None:
    """What theory says about your network.

    Without --model and --weights, a small network is trained on scikit-learn's digits and audited.
    The report is written as report.html, report.md and audit.json; of several checkpoints each has
    its own, below an index.html over all. Ctrl-C ends it with what it has.

    Examples:

      torchtheory audit

      torchtheory audit --weights model.safetensors

      torchtheory audit --model mypackage.nets:make --weights best.safetensors --data data.npz

      torchtheory audit --weights epoch1.pt epoch2.pt epoch3.pt --jobs 2

      torchtheory audit --model net.pt2 --data table.csv --target price --budget 5min

      torchtheory audit --weights model.safetensors --fail-on defect --sarif audit.sarif

      torchtheory audit --only curvature --only risk --json
    """
    files = [*(weights or ()), *(more_weights or ())]
    if model is None:
        with_model: dict[str, object] = {
            "--initial-weights": initial_weights,
            "--prior-weights": prior_weights,
            "--data": data,
            "--target": target,
            "--test-data": test_data,
            "--output": output,
            "--loss": loss,
        }
        if files:  # the example has a task and a step, weights alone have none
            with_model |= {"--task": task, "--learning-rate": learning_rate}
        refuse_without_model(with_model)
    elif data is None:
        raise InvalidInput("--model needs --data, the data to audit it on")
    refuse_places(
        [*_reports(out, files, bare=model is None), *_logs(sarif, junit)],
        [*files, model, data, test_data, initial_weights, prior_weights],
    )
    if not files and model is None:
        return _finish(
            _example(seed, task, confidence, only, budget, memory, learning_rate, limit),
            EXAMPLE, out, fail_on, sarif, junit, details, as_json,
        )  # fmt: skip
    from torchtheory.audit.checkpoints import Request, run_request

    request = Request(
        weights=files[0] if files else None,
        model=model,
        data=data,
        target=target,
        test_data=test_data,
        initial_weights=initial_weights,
        prior_weights=prior_weights,
        task=task.value if task else None,
        loss=loss,
        output=position_or_key(output),
        learning_rate=learning_rate,
        budget=budget,
        memory=memory,
        confidence=confidence,
        only=tuple(only or ()),
        limit=limit,
        seed=seed,
    )
    if len(files) > 1:
        return _several(request, files, out, jobs, again, fail_on, sarif, junit, as_json)
    about = _artifact(request)
    return _finish(run_request(request), about, out, fail_on, sarif, junit, details, as_json)


def _logs(sarif: Path | None, junit: Path | None) -> list[Place]:
    """Where logs for other programs go."""
    asked = ((sarif, "SARIF log", "--sarif"), (junit, "JUnit log", "--junit"))
    return [file_place(file, form, option) for file, form, option in asked if file is not None]


def _reports(out: Path, files: Sequence[Path], *, bare: bool) -> list[Place]:
    """Where reports go, with every picture that they may have."""
    from torchtheory.audit.bare_weights.findings import FINDINGS
    from torchtheory.audit.checkpoints import directory_names
    from torchtheory.audit.engine.finding import all_findings

    pictures = audit_files([f.name for f in FINDINGS] if bare and files else list(all_findings()))
    if len(files) < 2:
        return [Place(out, pictures)]
    each = pictures | CHECKPOINT
    inside = {f"{d}/{name}": form for d in directory_names(files) for name, form in each.items()}
    return [Place(out, SERIES | inside)]


def _example(
    seed: int,
    task: TaskChoice | None,
    confidence: float,
    only: list[str] | None,
    budget: str | None,
    memory: str,
    learning_rate: float | None,
    limit: int,
) -> Audit:
    from torchtheory.audit.engine.audit import audit as run_audit
    from torchtheory.audit.example import digits_example

    network, train, test, initial = digits_example(seed)
    return run_audit(
        network,
        train,
        test,
        task=task.value if task else None,
        initial=initial,
        confidence=confidence,
        seed=seed,
        only=only or None,
        budget=budget or "60s",
        memory=memory,
        learning_rate=learning_rate,
        limit=limit,
        title="MLP 64-64-64-10 on scikit-learn's digits",
    )


def _finish(
    result: Audit,
    about: str,
    out: Path,
    fail_on: FailChoice,
    sarif: Path | None,
    junit: Path | None,
    details: bool,
    as_json: bool,
) -> None:
    """Write, print and end."""
    from torchtheory.audit.comparison.recorded import read_audit
    from torchtheory.audit.routine import fails

    page = result.save(out)
    _write_logs([(read_audit(result), about)], fail_on, sarif, junit)
    if as_json:
        print_json(result.to_json())
    else:
        from torchtheory.report.terminal import print_audit

        print_audit(result, console(), details)
        print_place(page)
    if result.interrupted:
        raise typer.Exit(INTERRUPTED)
    raise typer.Exit(1 if fails(result, fail_on.value) else 0)


def _several(
    request: Request,
    files: Sequence[Path],
    out: Path,
    jobs: int,
    again: bool,
    fail_on: FailChoice,
    sarif: Path | None,
    junit: Path | None,
    as_json: bool,
) -> None:
    """Audit checkpoints side by side, then write, print and end; those that fail cost no other."""
    from dataclasses import replace

    from torchtheory.audit.checkpoints import directory_names, run_checkpoints
    from torchtheory.audit.comparison.recorded import read_audit
    from torchtheory.audit.comparison.series import print_series, series
    from torchtheory.audit.routine import fails
    from torchtheory.core.files import existing_file

    for file in files:
        existing_file(file)
    names = directory_names(files)
    done: dict[int, RecordedAudit] = {}
    interrupted = False
    try:
        for outcome in run_checkpoints(request, files, out, jobs=jobs, again=again):
            if outcome.error is None:
                done[outcome.place] = read_audit(outcome.get())
            else:
                complain(f"{files[outcome.place]}: {outcome.complaint}")
    except KeyboardInterrupt:
        interrupted = True
    places = sorted(done)
    if places:
        audits = [done[k] for k in places]
        links = [f"{names[k]}/report.html" for k in places]
        made = series([out / names[k] for k in places], names=[names[k] for k in places],
                      links=links)  # fmt: skip
        page = made.save(out)
        about = [_artifact(replace(request, weights=files[k])) for k in places]
        _write_logs(list(zip(audits, about, strict=True)), fail_on, sarif, junit)
        if as_json:
            print_json(made.to_json())
        else:
            print_series(made, console())
            print_place(page)
    if interrupted:
        raise typer.Exit(INTERRUPTED)
    if len(done) < len(files):
        raise typer.Exit(2)
    raise typer.Exit(1 if any(fails(a, fail_on.value) for a in done.values()) else 0)


def _write_logs(
    audits: Sequence[tuple[RecordedAudit, str]],
    fail_on: FailChoice,
    sarif: Path | None,
    junit: Path | None,
) -> None:
    from torchtheory.audit.routine import junit as junit_of
    from torchtheory.audit.routine import sarif as sarif_of

    if sarif is not None:
        write_outputs(sarif.parent, {sarif.name: sarif_of(audits)})
    if junit is not None:
        text = junit_of([a for a, _ in audits], on=fail_on.value)
        write_outputs(junit.parent, {junit.name: text})


def _artifact(request: Request) -> str:
    """The file that an audit is about: the weights, or the code of the model."""
    if request.weights is not None:
        return str(request.weights)
    name = request.model or ""
    module, colon, _ = name.partition(":")
    return f"{module.replace('.', '/')}.py" if colon else name

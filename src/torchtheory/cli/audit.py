"""`torchtheory audit`: what theory says about a network."""

from __future__ import annotations

import re
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from torchtheory.cli.options import Json, Seed
from torchtheory.cli.output import INTERRUPTED, check_directory, console, print_json, print_place
from torchtheory.core.errors import InvalidInput

DEFAULT_AUDIT = Path("torchtheory-audit")


class TaskChoice(StrEnum):
    regression = "regression"
    binary = "binary"
    multiclass = "multiclass"


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

    check_directory(out)
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
        output=_position_or_key(output),
        limit=limit,
        title=title,
    )
    page = result.save(out)
    if as_json:
        print_json(result.to_json())
    else:
        from torchtheory.report.terminal import print_audit

        print_audit(result, console())
        print_place(page)
    if result.interrupted:
        raise typer.Exit(INTERRUPTED)
    raise typer.Exit(1 if result.violated or (fail_on_warning and result.warnings) else 0)


def _position_or_key(output: str | None) -> int | str | None:
    """A short row of digits is a position, anything else the key of a dictionary."""
    if output is not None and re.fullmatch("[0-9]{1,9}", output):
        return int(output)
    return output

"""`torchtheory size`: how large a network must be, and may be."""

from __future__ import annotations

from typing import Annotated

import typer

from torchtheory.cli.options import Json
from torchtheory.cli.output import console, print_json
from torchtheory.core.errors import InvalidInput


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
            print_json({"classes": FUNCTION_CLASSES})
        else:
            print_classes(console())
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
        print_json(found.to_json())
    else:
        print_sizes(found, console())

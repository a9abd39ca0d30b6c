"""`torchtheory network`: what a network does, operation by operation."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from torchtheory.cli.options import REPLACED, Data, Json, Model, Seed, refuse_without_model
from torchtheory.cli.output import print_json
from torchtheory.cli.problems import example, inputs_of, problem
from torchtheory.core.errors import InvalidInput
from torchtheory.core.outputs import file_place, refuse_places, write_outputs

if TYPE_CHECKING:
    from torch import Tensor, nn

#: Ends of the names of pictures, and what they are.
_PICTURES = {".png": "picture", ".svg": "drawing"}

#: Rows that are enough to see what a network does; all of them where rows are nodes of a graph.
_ROWS = 64


def network(
    model: Model = None,
    weights: Annotated[
        Path | None, typer.Option(help="Its weights: .safetensors, or a .pt/.pth state dict.")
    ] = None,
    data: Data = None,
    shape: Annotated[
        str | None, typer.Option(help="Sizes of one input instead of data: 3,32,32.")
    ] = None,
    integers: Annotated[
        bool, typer.Option("--integers", help="With --shape: the inputs are numbers of words.")
    ] = False,
    figure: Annotated[
        Path | None, typer.Option(help=f"Draw it: a .png or .svg file. {REPLACED}")
    ] = None,
    operations: Annotated[
        bool, typer.Option("--operations", help="Every operation with its arguments.")
    ] = False,
    seed: Seed = 0,
    as_json: Json = False,
) -> None:
    """What your network does: layers, operations, sizes, parameters, multiplications, memory.

    Without --model, a small network is trained on scikit-learn's digits and shown.

    Examples:

      torchtheory network

      torchtheory network --model mypackage.nets:make --shape 3,32,32 --figure net.svg

      torchtheory network --model net.pt2 --data data.npz --operations
    """
    if figure is not None:
        form = _PICTURES.get(figure.suffix.lower())
        if form is None:
            raise InvalidInput(f"a picture is a .png or .svg file, not {figure.name!r}")
        refuse_places([file_place(figure, form, "--figure")], [model, weights, data])
    if model is None:
        refuse_without_model({"--weights": weights, "--data": data, "--shape": shape})
    elif (data is None) == (shape is None):
        raise InvalidInput("--model needs inputs to run on: --data, or --shape such as 3,32,32")
    from torchtheory.tracing.recorder import record

    if model is None or data is not None:
        asked = example(seed) if model is None else problem(model, weights, str(data), None, seed)
        net, x = asked.network, inputs_of(asked.network, asked.samples.first(_ROWS))
    else:
        net, x = _with_inputs(model, weights, str(shape), integers, seed)
    found = record(net, x)
    if figure is not None:
        drawn = found.figure()
        content = drawn.png if figure.suffix.lower() == ".png" else drawn.svg
        if content is None:
            raise InvalidInput("the network is too large for an .svg file: draw it as a .png")
        write_outputs(figure.parent, {figure.name: content})
    if as_json:
        print_json({"title": found.title, **found.table().to_json()})
    else:
        print(repr(found) if operations else found)


def _with_inputs(
    model: str, weights: Path | None, shape: str, integers: bool, seed: int
) -> tuple[nn.Module, Tensor]:
    """The network and inputs of a shape, drawn at random."""
    import torch

    from torchtheory.core.random import as_generator
    from torchtheory.models.loading import load_network
    from torchtheory.models.model import PureFunction

    if not re.fullmatch(r"\s*\d{1,9}(\s*,\s*\d{1,9})*\s*", shape):
        raise InvalidInput(f"--shape has the sizes of one input, such as 3,32,32, not {shape!r}")
    sizes = [int(s) for s in shape.split(",")]
    net = load_network(model, weights, seed)
    generator = as_generator(seed)
    if integers:
        return net, torch.randint(0, 2, (4, *sizes), generator=generator)
    like = PureFunction(net).reference()
    return net, torch.randn(4, *sizes, generator=generator).to(like)

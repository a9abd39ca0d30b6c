"""`torchtheory explain`: which inputs made a network say what it says."""

from __future__ import annotations

from collections.abc import Sequence
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
from torchtheory.cli.output import console, print_json, print_place
from torchtheory.cli.problems import example, inputs_of, problem
from torchtheory.core.errors import InvalidInput
from torchtheory.core.outputs import Place, refuse_places
from torchtheory.report.files import EXPLANATION

if TYPE_CHECKING:
    from torch import Tensor

    from torchtheory.models.samples import Samples

DEFAULT_EXPLANATION = Path("torchtheory-explanation")
DEFAULT_METHODS = ("lrp", "integrated-gradients")


def explain(
    more_index: Annotated[
        list[int] | None,
        typer.Argument(metavar="[INDEX]...", help="More numbers of samples, after --index."),
    ] = None,
    model: Model = None,
    weights: Annotated[
        Path | None, typer.Option(help="Its weights: .safetensors, or a .pt/.pth state dict.")
    ] = None,
    data: Data = None,
    method: Annotated[
        list[str] | None,
        typer.Option(
            help="lrp, gradient-times-input, integrated-gradients, smooth-gradient, occlusion, "
            "shapley, lime, sensitivity or taylor (may be repeated). lrp and integrated-gradients "
            "unless given."
        ),
    ] = None,
    target: Annotated[
        int | None,
        typer.Option(min=0, help="The class to explain; the predicted one unless given."),
    ] = None,
    samples: Annotated[
        int | None, typer.Option(min=1, help="So many samples, drawn at random. 8 unless given.")
    ] = None,
    index: Annotated[
        list[int] | None,
        typer.Option(help="The numbers of the samples to explain, from 0: --index 3 17."),
    ] = None,
    rules: Annotated[
        str | None,
        typer.Option(
            help="Of lrp: a preset such as image_cnn, or a rule such as epsilon=0.01, gamma=0.25, "
            "alpha-beta=2,1, flat. Chosen by the network unless given, and the page says so."
        ),
    ] = None,
    patch: Annotated[
        int | None,
        typer.Option(min=1, help="Side of the squares that occlusion, shapley and lime remove."),
    ] = None,
    permutations: Annotated[
        int | None,
        typer.Option(min=4, help="Orders of the features that shapley samples; all unless given."),
    ] = None,
    column: Annotated[
        str | None, typer.Option(help="Column of a table that is predicted, so is no input.")
    ] = None,
    names: Annotated[Path | None, typer.Option(help="Names of the features, one per line.")] = None,
    words: Annotated[
        Path | None,
        typer.Option(help="The vocabulary: one word per line, or vocab.json of a tokenizer."),
    ] = None,
    output: Output = None,
    blur: Annotated[
        float, typer.Option(min=0, max=100, help="Smooths heatmaps over so many pixels.")
    ] = 0.0,
    seed: Seed = 0,
    out: Annotated[
        Path, typer.Option(help=f"Directory for the report. {REPLACED}")
    ] = DEFAULT_EXPLANATION,
    as_json: Json = False,
) -> None:
    """Which inputs made your network say what it says.

    Without --model, a small network is trained on scikit-learn's digits and explained. Samples are
    those of the test data, where there are any. The report is written as explanation.html with its
    pictures, explanation.json, and explanation.npz with the relevance of every input.

    Examples:

      torchtheory explain

      torchtheory explain --model mypackage.nets:make --weights best.safetensors --data data.npz

      torchtheory explain --model net.pt2 --data data.npz --method lrp --index 3 17

      torchtheory explain --method lrp --rules gamma=0.25 --method shapley --patch 2 --target 3

      torchtheory explain --model nets:make --data table.csv --column price --method shapley
    """
    refuse_places([Place(out, EXPLANATION)], [model, weights, data, names, words])
    numbers = [*(index or ()), *(more_index or ())]
    if more_index and not index:
        raise InvalidInput(f"what is {more_index[0]}? Numbers of samples follow --index")
    if numbers and samples is not None:
        raise InvalidInput("--index names the samples, so --samples can be left out")
    if model is None:
        refuse_without_model(
            {"--weights": weights, "--data": data, "--column": column, "--output": output,
             "--names": names, "--words": words}
        )  # fmt: skip
    elif data is None:
        raise InvalidInput("--model needs --data, whose samples are explained")
    methods = tuple(dict.fromkeys(method or DEFAULT_METHODS))
    from torchtheory.data.word_lists import read_names, read_vocabulary
    from torchtheory.explanation.explain import Legend
    from torchtheory.explanation.explain import explain as run_explain
    from torchtheory.explanation.methods.named import parse_rules
    from torchtheory.explanation.pages.page import print_explanations
    from torchtheory.explanation.suited import suited_rules

    asked = example(seed) if model is None else problem(model, weights, str(data), column, seed)
    chosen = _chosen(asked.samples, numbers, samples, seed)
    picked = asked.samples.at(chosen)
    legend = Legend(
        title=asked.title,
        numbers=tuple(chosen.tolist()),
        labels=_labels(picked),
        features=asked.features if names is None else read_names(names),
        classes=asked.classes,
        vocabulary={} if words is None else read_vocabulary(words),
    )
    chosen_rules = None if rules is None else parse_rules(rules)
    if rules is None and "lrp" in methods:
        # the box of the pixels is that of all samples, not of the few that are explained
        chosen_rules = suited_rules(asked.network, inputs_of(asked.network, asked.samples))
    found = run_explain(
        asked.network,
        inputs_of(asked.network, picked),
        methods,
        target,
        rules=chosen_rules,
        patch=patch,
        permutations=permutations,
        output=position_or_key(output),
        generator=seed,
        legend=legend,
        blur=blur,
    )
    page = found.save(out)
    if as_json:
        print_json(found.to_json())
    else:
        print_explanations(found, console())
        print_place(page)


def _chosen(given: Samples, numbers: Sequence[int], count: int | None, seed: int) -> Tensor:
    """The numbers of the samples that are explained."""
    import torch

    from torchtheory.core.random import as_generator

    if not numbers:
        order = torch.randperm(len(given), generator=as_generator(seed))
        return order[: 8 if count is None else count].sort().values
    for k in numbers:
        if not 0 <= k < len(given):
            raise InvalidInput(f"there is no sample {k}: they are numbered 0 to {len(given) - 1}")
    return torch.tensor(list(dict.fromkeys(numbers)))


def _labels(samples: Samples) -> Tensor | None:
    """One class or value per sample, if there is one."""
    y = samples.y
    if not samples.labeled or y[0].numel() != 1:
        return None
    return y.reshape(len(y))

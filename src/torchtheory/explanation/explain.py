"""Several methods on the same samples: what they say, whether they agree, what they cost."""

from __future__ import annotations

import io
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from torchtheory.core import progress
from torchtheory.core.checks import described
from torchtheory.core.claim import json_number
from torchtheory.core.errors import (
    EmptyData,
    InvalidInput,
    InvalidType,
    ShapeMismatch,
    TorchTheoryError,
)
from torchtheory.core.figure import Figure
from torchtheory.core.intervals import Interval
from torchtheory.core.marks import marked_archive, record_text
from torchtheory.core.outputs import write_outputs
from torchtheory.core.random import RandomSource, as_generator
from torchtheory.explanation.by_feature import Method, agreement, explained_by, named_methods
from torchtheory.explanation.composites import Composite, DoubtfulRules
from torchtheory.explanation.explanation import Explanation
from torchtheory.explanation.ledger_flow import ledger_flow
from torchtheory.explanation.methods.named import method_named, methods_with
from torchtheory.explanation.pages import page
from torchtheory.explanation.score import Inputs, Target
from torchtheory.explanation.suited import suited_rules


@dataclass(frozen=True, slots=True)
class Legend:
    """What to call things where explanations are shown.

    Attributes:
        title: of the whole, such as the name of the model.
        numbers: of the samples in their data set; from 0 unless given.
        labels: `[n]`, the true classes or values, if they are known.
        features: names of the features of a table; of several, one after the other.
        classes: names of the classes.
        vocabulary: words by their numbers.
    """

    title: str = "Explanations"
    numbers: tuple[int, ...] = ()
    labels: Tensor | None = None
    features: tuple[str, ...] = ()
    classes: tuple[str, ...] = ()
    vocabulary: Mapping[int, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, repr=False)
class Explanations:
    """Explanations of the same scores by several methods.

    Attributes:
        explanations: by the names of their methods.
        x: the inputs that were explained, one tensor or more.
        refused: why a method could not explain them, by its name.
        remarks: what is doubtful about the choice of rules.
        legend: what to call things.
        blur: of heatmaps, in pixels.
    """

    explanations: dict[str, Explanation]
    x: tuple[Tensor, ...]
    refused: dict[str, str] = field(default_factory=dict)
    remarks: tuple[str, ...] = ()
    legend: Legend = field(default_factory=Legend)
    blur: float = 0.0

    def __len__(self) -> int:
        return len(self.first)

    def __repr__(self) -> str:
        found = ", ".join(self.explanations)
        return f"Explanations({found} of {len(self)} scores)"

    def _repr_html_(self) -> str:
        return page.explanations_fragment(self)

    @property
    def title(self) -> str:
        """What to call the whole."""
        return self.legend.title

    @property
    def first(self) -> Explanation:
        """The explanation by the first method."""
        return next(iter(self.explanations.values()))

    def agreement(self, confidence: float = 0.95) -> dict[tuple[str, str], Interval]:
        """How far every two methods agree: the rank correlation of the relevance of features.

        1 where they put all features in the same order, 0 where their orders have nothing to do
        with each other. The mean over samples, with its interval; channels of a pixel are added.
        """
        names = list(self.explanations)
        maps = {k: e.relevance for k, e in self.explanations.items()}
        return {
            (a, b): agreement(maps[a], maps[b], confidence)
            for i, a in enumerate(names)
            for b in names[i + 1 :]
        }

    def figures(self) -> dict[str, Figure]:
        """All pictures, by the name of a file: of every sample, and its ledger where there is one.

        Pictures of words are drawn here; the page writes them as text.
        """
        found: dict[str, Figure] = {}
        for k in progress.track(range(len(self)), "drawing"):
            for part in range(len(self.x)):
                found[self.picture_name(k, part)] = page.sample_picture(self, k, part)
            for method, e in self.explanations.items():
                if e.ledger is not None:
                    found[self.ledger_name(k, method)] = ledger_flow(e.ledger, k)
        return found

    def picture_name(self, sample: int, part: int = 0) -> str:
        """What the picture of a sample is called."""
        several = f"-input-{part}" if len(self.x) > 1 else ""
        return f"sample-{self.sample_numbers[sample]}{several}"

    def ledger_name(self, sample: int, method: str) -> str:
        """What the picture of a ledger is called."""
        place = list(self.explanations).index(method)
        return f"sample-{self.sample_numbers[sample]}-ledger" + (f"-{place + 1}" if place else "")

    @property
    def sample_numbers(self) -> tuple[int, ...]:
        """The numbers of the samples in their data set, or from 0."""
        return self.legend.numbers or tuple(range(len(self)))

    def to_json(self) -> dict[str, Any]:
        """Everything but the relevance of single inputs, which `save` writes beside it."""
        return {
            "title": self.title,
            "samples": list(self.sample_numbers),
            "labels": None if self.legend.labels is None else self.legend.labels.tolist(),
            "methods": {k: _method_json(e) for k, e in self.explanations.items()},
            "refused": dict(self.refused),
            "remarks": list(self.remarks),
            "agreement": [
                {"methods": list(pair), "mean": i.estimate, "low": json_number(i.low),
                 "high": json_number(i.high), "confidence": i.confidence}
                for pair, i in self.agreement().items()
            ],
        }  # fmt: skip

    def arrays(self) -> dict[str, np.ndarray[Any, Any]]:
        """Scores and relevances by name, as the file `explanation.npz` has them."""
        found: dict[str, np.ndarray[Any, Any]] = {"samples": np.array(self.sample_numbers)}
        for name, e in self.explanations.items():
            found[f"{name}/score"] = _array(e.score)
            if e.classes is not None:
                found[f"{name}/classes"] = _array(e.classes)
            for kind, given in (("relevance", e.relevance), ("error", e.error)):
                if isinstance(given, Tensor):
                    found[f"{name}/{kind}"] = _array(given)
                elif given is not None:
                    for part, tensor in enumerate(given):
                        found[f"{name}/{kind}-{part}"] = _array(tensor)
        return found

    def save(self, directory: str | Path) -> Path:
        """Write `explanation.html`, `.json` and `.npz`, and the pictures; returns the page.

        The directory is made if needed; other files in it are left alone.
        """
        packed = io.BytesIO()
        np.savez_compressed(packed, allow_pickle=False, **self.arrays())
        figures = self.figures()
        files: dict[str, str | bytes] = {
            "explanation.json": record_text("explanation", self.to_json()),
            "explanation.npz": marked_archive("explanation", packed.getvalue()),
            "explanation.html": page.explanations_page(self, figures),
        }
        files |= {f"figures/{name}.png": figure.png for name, figure in figures.items()}
        return write_outputs(directory, files) / "explanation.html"


def explain(
    model: nn.Module,
    x: Inputs,
    methods: str | Sequence[str] | Mapping[str, Method] = ("lrp", "integrated-gradients"),
    target: Target = None,
    *,
    rules: Any = None,
    patch: int | None = None,
    permutations: int | None = None,
    output: int | str | None = None,
    generator: RandomSource = 0,
    legend: Legend | None = None,
    blur: float = 0.0,
) -> Explanations:
    """Explain the same samples by several methods.

    Args:
        model, x, target, output: see `torchtheory.explanation.score.open_score`.
        methods: a name or several, see `methods.METHODS`, or callables
            `(model, x, target) -> Explanation` by their names.
        rules: of `lrp`; unless given, those of `suited_rules(model, x)`.
        patch: side of the squares that methods remove from images; single pixels unless given.
        permutations: orders of the features that `shapley` samples; all sets unless given.
        generator: of the methods that draw at random.
        legend: what to call samples, features, classes and words where they are shown.
        blur: standard deviation in pixels of a Gaussian that smooths heatmaps.

    A method that cannot explain this model is told in `refused`, as long as another one can.

    >>> found = explain(nn.Linear(3, 2), torch.ones(4, 3), ["sensitivity", "gradient-times-input"])
    >>> found, list(found.agreement())
    (Explanations(sensitivity, gradient-times-input of 4 scores),
     [('sensitivity', 'gradient-times-input')])
    """
    choices: dict[str, Any] = {"rules": rules, "patch": patch, "permutations": permutations}
    seed = as_generator(generator).initial_seed()
    names: list[str] = []
    if isinstance(methods, Mapping):
        calls = named_methods(methods)
    elif isinstance(methods, str | list | tuple):
        names = [methods] if isinstance(methods, str) else [str(name) for name in methods]
        if rules is None and "lrp" in names:
            choices["rules"] = suited_rules(model, x)
        calls = {k: method_named(k, **choices, output=output, generator=seed) for k in names}
    else:
        raise InvalidType(f"methods are names, or callables by name, not {described(methods)}")
    if not calls:
        raise EmptyData("there is no method to explain with")
    for option, value in choices.items():
        able = methods_with(option)
        if value is not None and not set(able) & set(names):
            raise InvalidInput(f"{option} is an option of {', '.join(able)}; ask for such a method")
    found: dict[str, Explanation] = {}
    refused: dict[str, str] = {}
    remarks: dict[str, None] = {}
    if isinstance(choices["rules"], Composite) and choices["rules"].because:
        remarks[choices["rules"].because] = None
    for name, call in progress.track(list(calls.items()), "explaining"):
        try:
            with _doubts(remarks):
                found[name] = explained_by(call, model, x, target, name)
            ledger = found[name].ledger
            remarks |= dict.fromkeys(ledger.remarks() if ledger is not None else [])
        except TorchTheoryError as error:
            if len(calls) == 1:
                raise
            refused[name] = str(error)
            last = error
    if not found:
        raise last
    inputs = (x,) if isinstance(x, Tensor) else tuple(x)
    shown = Explanations(found, inputs, refused, tuple(remarks), legend or Legend(), blur)
    _check_shown(shown)
    return shown


@contextmanager
def _doubts(remarks: dict[str, None]) -> Iterator[None]:
    """Doubts about rules become remarks, which the page shows; other warnings stay warnings."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", DoubtfulRules)
        yield
    for one in caught:
        if issubclass(one.category, DoubtfulRules):
            remarks[str(one.message)] = None
        else:
            warnings.warn_explicit(one.message, one.category, one.filename, one.lineno)


def _check_shown(made: Explanations) -> None:
    legend = made.legend
    for what, given in (("numbers", legend.numbers or None), ("labels", legend.labels)):
        if given is not None and len(given) != len(made):
            raise ShapeMismatch(f"there are {len(given)} {what} for {len(made)} samples")
    if len(set(legend.numbers)) < len(legend.numbers):
        raise InvalidInput("a sample is asked for twice")
    kinds = [page.kind_of_input(made, part) for part in range(len(made.x))]
    if made.blur and "image" not in kinds:
        raise InvalidInput("blur smooths heatmaps of images; there are none")
    if legend.vocabulary and "words" not in kinds:
        raise InvalidInput("a vocabulary is for whole numbers that are embedded; there are none")
    if not legend.features:
        return
    if "table" not in kinds:
        raise InvalidInput("names of features are for tables, and these inputs are none")
    d = page.table_columns(made, len(made.x))
    if len(legend.features) != d:
        raise ShapeMismatch(f"there are {len(legend.features)} names for {d} features")


def _method_json(e: Explanation) -> dict[str, Any]:
    gap = e.gap
    return {
        "method": e.method,
        "scores": _numbers(e.score),
        "classes": None if e.classes is None else e.classes.tolist(),
        "totals": _numbers(e.total),
        "gaps": None if gap is None else _numbers(gap),
        "forwards": e.forwards,
        "backwards": e.backwards,
        "seconds": e.seconds,
        "folded": None if e.ledger is None else dict(e.ledger.folded),
        "not_folded": None if e.ledger is None else dict(e.ledger.not_folded),
        "ledger": None
        if e.ledger is None
        else [
            {
                "layer": entry.layer,
                "operation": entry.operation,
                "rule": entry.rule,
                "received": _numbers(entry.received),
                "passed": _numbers(entry.passed),
                "to_biases": _numbers(entry.to_biases),
                "to_epsilon": _numbers(entry.to_epsilon),
                "leaked": None if entry.leaked is None else _numbers(entry.leaked),
            }
            for entry in e.ledger
        ],
    }


def _array(values: Tensor) -> np.ndarray[Any, Any]:
    values = values.cpu()
    if values.dtype == torch.bfloat16:  # which numpy does not have
        values = values.float()
    found: np.ndarray[Any, Any] = values.numpy()
    return found


def _numbers(values: Tensor) -> list[Any]:
    return [json_number(v) for v in values.double().tolist()]

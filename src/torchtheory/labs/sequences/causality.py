"""Which outputs see the future: masks that are right, off by one, missing, and other leaks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from torchtheory.labs.engine import Run, lab
from torchtheory.sequences.attention.causality import Causality, measure_causality
from torchtheory.sequences.attention.dot_product import causal_mask
from torchtheory.sequences.attention.heads import MultiHeadAttention
from torchtheory.sequences.recurrent.cells import LSTMCell
from torchtheory.sequences.recurrent.networks import Bidirectional

LETTERS = 9

#: How many positions too many the mask of a layer lets through; None for no mask.
Ahead = Sequence[int | None]


@lab(
    "causality",
    room="sequences",
    covers=["M-113", "M-115"],
    title="With a causal mask no output sees a later token, and a leak is found and named",
    full={"length": 48, "width": 32, "layers": 4},
    least={"width": 2, "layers": 2, "length": 5},
)
def causality(run: Run, length: int = 10, width: int = 8, layers: int = 3) -> None:
    """Tokens are replaced and derivatives taken, to see what outputs depend on.

    With causal masks nothing changes before the replaced token, and derivatives of outputs in later
    inputs are 0. A mask that lets one position too many through lets an output see one position
    ahead per layer; centered convolutions see half of their kernels; both directions of a recurrent
    network see everything. The layer that lets the future in is named. The pictures show how far
    each output depends on each input.

    Args:
        length: of the sequences.
        width: of the tokens inside the networks.
        layers: of the networks.
    """
    run.assumes(length >= layers + 3, f"{length} tokens are too few to see how far {layers} layers leak")
    if width % 2:
        width += 1  # two heads
    tokens = torch.randint(LETTERS, (4, length), generator=run.generator)
    replaced(run, tokens, width, layers)
    derivatives(run, length, width, layers)
    reaches(run, tokens, width, layers)
    named(run, tokens, width, layers)
    pictures(run, length, width)


class Decoder(nn.Module):
    """Layers of masked attention and a feed-forward map, of tokens or of vectors."""

    def __init__(self, run: Run, width: int, ahead: Ahead, length: int, tokens: bool = True) -> None:
        super().__init__()
        self.ahead = ahead
        self.entering = nn.Parameter(run.randn(LETTERS if tokens else 3, width))
        self.places = nn.Parameter(run.randn(length, width))
        self.layers = nn.ModuleList(MultiHeadAttention(width, 2, generator=run.generator) for _ in ahead)
        self.leaving = nn.Parameter(run.randn(width, LETTERS) / width**0.5)

    def forward(self, x: Tensor) -> Tensor:
        h = (x @ self.entering if x.is_floating_point() else self.entering[x]) + self.places
        n = h.shape[1]
        for layer, ahead in zip(self.layers, self.ahead, strict=True):
            mask = None
            if ahead is not None:
                # the causal mask, shifted: row t as if it were row t + ahead
                mask = causal_mask(n + ahead)[ahead:, :n]
            h = h + torch.tanh(layer(h, mask=mask))
        return h @ self.leaving


def twins(run: Run, width: int, length: int, ahead: Sequence[Ahead], tokens: bool = True) -> list[Decoder]:
    """Decoders with the same weights and other masks."""
    first = Decoder(run, width, ahead[0], length, tokens)
    made = [first]
    for other in ahead[1:]:
        twin = Decoder(run, width, other, length, tokens)
        twin.load_state_dict(first.state_dict())
        made.append(twin)
    return made


def replaced(run: Run, tokens: Tensor, width: int, layers: int) -> None:
    right, wrong = twins(run, width, tokens.shape[1], ([0] * layers, [1] * layers))
    says = run.states("M-115", r"x_{\le t}=x'_{\le t}\Rightarrow y_t(x)=y_t(x')")
    found = measure_causality(right, tokens, vocabulary=LETTERS, generator=run.generator)
    says.equal(
        [float(found.later.max()), found.largest],
        within=1e-7,
        where="every position, tokens behind it replaced all together and one by one",
    )
    broken = measure_causality(wrong, tokens, vocabulary=LETTERS, generator=run.generator)
    says.fails("masks that are off by one", [float(broken.later.max()), broken.largest])


def derivatives(run: Run, length: int, width: int, layers: int) -> None:
    x = run.randn(4, length, 3)
    right, wrong = twins(run, width, length, ([0] * layers, [None] * layers), tokens=False)

    def later(net: Decoder) -> float:
        found = measure_causality(net, x, generator=run.generator).gradient
        assert found is not None
        return float(found.triu(1).max())

    says = run.states("M-113", r"M_{ij}=-\infty\ (j>i)\Rightarrow\partial y_i/\partial x_j=0\text{ for }j>i")
    says.equal(later(right), within=1e-12, where="the largest of all pairs, of the largest derivative")
    says.fails("no mask", later(wrong))


def reaches(run: Run, tokens: Tensor, width: int, layers: int) -> None:
    length = tokens.shape[1]
    cases = [(n, k) for n in range(2, layers + 1) for k in (1, 2) if n * k < length]
    nets = {(n, k): twins(run, width, length, ([k] * n, [k] + [0] * (n - 1))) for n, k in cases}

    def seen(which: int) -> list[int]:
        return [measure_causality(nets[c][which], tokens, generator=run.generator).reach for c in cases]

    says = run.states("M-115", r"\text{L layers with masks that are off by k: outputs see }Lk\text{ positions ahead}")
    says.equal(seen(0), [n * k for n, k in cases], where=f"{len(cases)} cases of L and k")
    says.fails("masks right in all layers but the first", seen(1))
    x = run.randn(3, length, 2)
    dilations = [d for d in (1, 2) if 3 * d < length]

    def ahead(centered: bool) -> list[int]:
        return [
            measure_causality(Dilated(run, dilations[: k + 1], centered), x, generator=run.generator).reach
            for k in range(len(dilations))
        ]

    says = run.states("M-115", r"\text{centered kernels of 3 with dilations }d_\ell:\ \sum_\ell d_\ell\text{ ahead}")
    says.equal(ahead(True), [sum(dilations[: k + 1]) for k in range(len(dilations))])
    says.fails("padded to the left", ahead(False))


class Dilated(nn.Module):
    """Convolutions of kernel size 3 with tanh, padded on both sides or to the left."""

    def __init__(self, run: Run, dilations: Sequence[int], centered: bool) -> None:
        super().__init__()
        self.dilations, self.centered = dilations, centered
        self.kernels = nn.ParameterList(run.randn(2, 2, 3) for _ in dilations)

    def forward(self, x: Tensor) -> Tensor:
        h = x.mT
        for d, kernel in zip(self.dilations, self.kernels, strict=True):
            pad = (d, d) if self.centered else (2 * d, 0)
            h = torch.tanh(F.conv1d(F.pad(h, pad), kernel, dilation=d))
        return h.mT


def named(run: Run, tokens: Tensor, width: int, layers: int) -> None:
    plans: list[Ahead] = [[0] * layers]
    plans += [[1 if i == bad else 0 for i in range(layers)] for bad in range(layers)]
    right, *wrong = twins(run, width, tokens.shape[1], plans)

    def place(net: Decoder) -> int:
        leak = measure_causality(net, tokens, generator=run.generator).leak
        return -1 if leak is None else int(leak.module.removeprefix("layers."))

    says = run.states(
        "M-115", r"\text{one layer's mask is off: it is the one whose output changes though its input does not}"
    )
    says.equal([place(net) for net in wrong], list(range(layers)), where="the layer whose mask is off by one is named")
    says.fails("masks that are right", [place(right) for _ in wrong])


def pictures(run: Run, length: int, width: int) -> None:
    x = run.randn(4, length, 3)
    masks = twins(run, width, length, ([0, 0], [1, 1], [0, None]), tokens=False)
    cells = [LSTMCell(3, width, generator=run.generator) for _ in range(2)]
    nets: dict[str, nn.Module] = {
        "causal masks": masks[0],
        "masks off by one, two layers": masks[1],
        "second layer without mask": masks[2],
        "both directions": Bidirectional(cells[0], cells[1]),
    }
    found: dict[str, Causality] = {
        name: measure_causality(net, x, generator=run.generator) for name, net in nets.items()
    }

    def plot(axes: Any) -> None:
        for ax, (name, one) in zip(axes.flat, found.items(), strict=True):
            one.plot(ax)
            ax.set_title(name)

    run.figure(
        "influence",
        plot,
        grid=(2, 2),
        size=(8.4, 6.6),
        caption="Derivatives of each output in each input; right of the white line lies the future.",
    )

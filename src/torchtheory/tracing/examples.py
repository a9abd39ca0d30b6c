r"""An input that a network runs on, found without being told.

What a layer takes is known: `nn.Linear(6, 8)` rows of 6 numbers, a convolution images of so many
channels. Inputs of the shapes that the first layers take are tried until the forward pass runs.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from torchtheory.core.checks import module_with_values
from torchtheory.core.errors import OutOfTime, UnsupportedModel
from torchtheory.models.exported import ExportedNetwork
from torchtheory.models.model import evaluating, global_randomness_kept
from torchtheory.models.untouched import contents_kept, private_copy

#: Sides of images and lengths of sequences, usual ones first.
_SIDES = (32, 28, 8, 16, 64, *range(1, 41), 48, 56, 84, 96, 100, 112, 128, 192, 224, 227, 256, 299)
_LENGTHS = (4, 16, *range(1, 13), 20, 24, 32, 49, 50, 64, 100, 128, 196, 197, 256, 512)
#: Inputs that are tried, and layers whose inputs they may be.
_TRIALS, _LAYERS = 200, 8

_SPATIAL = {
    nn.Conv1d: 1, nn.Conv2d: 2, nn.Conv3d: 3,
    nn.ConvTranspose1d: 1, nn.ConvTranspose2d: 2, nn.ConvTranspose3d: 3,
}  # fmt: skip

Shape = tuple[int, ...]


def example_input(model: nn.Module) -> Tensor:
    """Two or a few inputs, drawn from a fixed seed, on which the model runs.

    Raises:
        UnsupportedModel: if it takes several inputs, or none is found.

    >>> net = nn.Sequential(nn.Flatten(), nn.Linear(6, 3))
    >>> example_input(net).shape
    torch.Size([2, 6])
    """
    module_with_values(model)
    title = type(model).__name__
    count = _inputs_of(model)
    if count > 1:
        raise UnsupportedModel(f"{title} has {count} inputs, and this is about one")
    like = next((p for p in model.parameters() if p.is_floating_point()), torch.empty(0))
    own = private_copy(model)
    tried: set[tuple[Shape, bool]] = set()
    with (
        contents_kept(own, values=own is model),
        evaluating(own),
        torch.no_grad(),
        global_randomness_kept(),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore")
        for shape, integers in _shapes(model):
            if (shape, integers) in tried:
                continue
            if len(tried) == _TRIALS:
                break
            tried.add((shape, integers))
            x = _drawn(shape, integers, like)
            if _runs(own, x):
                return x
    raise UnsupportedModel(
        f"no input was found on which {title} runs: give a few of its inputs as x="
    )


def _inputs_of(model: nn.Module) -> int:
    """How many arguments its forward pass cannot do without."""
    if isinstance(model, ExportedNetwork):
        return len(model.examples or [None])
    try:
        given = inspect.signature(model.forward).parameters.values()
    except (TypeError, ValueError):
        return 1
    return sum(p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
               for p in given)  # fmt: skip


def _drawn(shape: Shape, integers: bool, like: Tensor) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    if integers:
        return torch.randint(2, shape, generator=generator).to(like.device)
    return torch.randn(shape, generator=generator, dtype=torch.float64).to(like)


def _runs(model: nn.Module, x: Tensor) -> bool:
    try:
        model(x.clone())
    except (KeyboardInterrupt, OutOfTime):
        raise
    except Exception:  # whatever a model does with an input of another shape
        return False
    return True


def _shapes(model: nn.Module) -> Iterator[tuple[Shape, bool]]:
    """Shapes of inputs, and whether they are integers, likely ones first."""
    if isinstance(model, ExportedNetwork):
        for sizes, dtype in model.examples or []:
            yield (2, *sizes[1:]), not dtype.is_floating_point
            yield tuple(sizes), not dtype.is_floating_point
    layers = [m for m in model.modules() if not isinstance(m, ExportedNetwork)]
    known = [list(_of_layer(m)) for m in layers]
    known = [own for own in known if own][:_LAYERS]
    # what each of the first layers takes in the likeliest form, then in all others
    for own in known:
        yield from own[:5]
    for own in known:
        yield from own
    widths = dict.fromkeys(s for p in model.parameters() for s in p.shape[:2])
    rows = dict.fromkeys(len(b) for b in model.buffers() if b.ndim == 2 and len(b) == len(b.T))
    features = [own[0][0][-1] for own in known if own[0][0]] + list(widths)
    for size in features[:_LAYERS]:
        yield (2, size), False
        yield (2, 4, size), False
    for nodes in rows:  # of a graph
        for size in features[:_LAYERS]:
            yield (nodes, size), False
    yield from (((2, 4), False), ((2, 3, 8, 8), False), ((2, 4), True))


def _of_layer(layer: nn.Module) -> Iterator[tuple[Shape, bool]]:
    """Shapes of what a layer takes."""
    if isinstance(layer, nn.Embedding | nn.EmbeddingBag):
        yield from (((2, length), True) for length in _LENGTHS)
        yield (2,), True
    elif isinstance(layer, nn.Linear):
        yield (2, layer.in_features), False
        yield from (((2, length, layer.in_features), False) for length in _LENGTHS)
    elif isinstance(layer, nn.RNNBase):
        for length in _LENGTHS:
            sizes = (2, length) if layer.batch_first else (length, 2)
            yield (*sizes, layer.input_size), False
    elif isinstance(layer, nn.MultiheadAttention):
        yield from (((2, length, layer.embed_dim), False) for length in _LENGTHS)
    elif isinstance(layer, nn.LayerNorm | nn.RMSNorm):
        yield (2, *layer.normalized_shape), False
        yield from (((2, length, *layer.normalized_shape), False) for length in _LENGTHS)
    elif isinstance(layer, nn.modules.batchnorm._BatchNorm):
        yield (2, layer.num_features), False
        for dimensions in (2, 1, 3):
            yield (2, layer.num_features, *(8,) * dimensions), False
    elif isinstance(layer, nn.GroupNorm):
        yield (2, layer.num_channels, 8, 8), False
        yield (2, layer.num_channels), False
    else:
        for kind, dimensions in _SPATIAL.items():
            if isinstance(layer, kind):
                channels = int(layer.in_channels)  # type: ignore[arg-type]
                sides = _SIDES if dimensions < 3 else (8, 4, 16, *range(1, 13))
                for side in sides:
                    yield (2, channels, *(side,) * dimensions), False
                yield (2, channels * 784), False
                yield (2, channels * 1024), False

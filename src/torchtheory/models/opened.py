"""A user's network, opened to be asked many times while the model given stays as it was.

The copy is in evaluation mode and its weights need no gradients, so that a pass keeps only what the
gradient of the input needs. Images are laid out with their channels last, in which convolutions on
a processor are up to twice as fast.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import torch
from torch import Tensor, nn

from torchtheory.core.checks import module_with_values
from torchtheory.core.errors import ModelRaised
from torchtheory.core.foreign_code import ForeignCode
from torchtheory.core.random import seed_torch
from torchtheory.models.model import (
    evaluating,
    evaluation_mode,
    global_randomness_kept,
    raised_on,
)
from torchtheory.models.untouched import private_copy, refuse_compiled


@contextmanager
def opened(model: nn.Module, x: Tensor, seed: int, *, private: bool = True) -> Iterator[nn.Module]:
    """A network that may be run at will, while the model given stays as it was.

    Args:
        model: the user's.
        x: inputs, whose shape and type decide about the layout.
        seed: of what the model draws when it runs, if it does.
        private: whether to work on a copy; without it the model itself runs in evaluation mode,
            which whoever trains it may want.
    """
    refuse_compiled(module_with_values(model))
    own = private_copy(model) if private else model
    with ExitStack() as stack:
        if own is model and private:  # no copy could be made: everything is put back instead
            stack.enter_context(evaluation_mode(model))
        else:
            stack.enter_context(global_randomness_kept())
            stack.enter_context(evaluating(own))
        frozen = [p for p in own.parameters() if p.requires_grad]
        for p in frozen:
            p.requires_grad_(False)
        stack.callback(lambda: [p.requires_grad_(True) for p in frozen])
        seed_torch(seed)  # inside the forks above
        images = x.ndim == 4 and x.dtype == torch.float32
        if images and own is not model and any(isinstance(m, nn.Conv2d) for m in own.modules()):
            own = own.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        yield own


def answer(network: nn.Module, *x: Tensor) -> object:
    """What the network returns; what it raises becomes a sentence."""
    try:
        with ForeignCode("the model", ModelRaised):
            return network(*x)
    except ModelRaised as error:
        needing = " that need gradients" * any(t.requires_grad for t in x)
        shapes = " and ".join(str(list(t.shape)) for t in x)
        raise raised_on(f"{shapes}{needing}", error) from error.raised

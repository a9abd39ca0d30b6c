r"""Rules of relevance propagation that suit a network, read off its operations.

One rule for all layers is rarely what a person expects: with epsilon alone, the heatmap of a deep
convolutional network is its gradient times its input, which looks like noise. Source: Mathematical
Aspects of Deep Learning, "Choosing LRP Rules in Practice".
"""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor, nn

from torchtheory.core.checks import as_module
from torchtheory.core.errors import TorchTheoryError
from torchtheory.explanation.composites import Composite, preset
from torchtheory.explanation.score import Inputs
from torchtheory.report.wording import counted
from torchtheory.tracing.network import Network, Operation
from torchtheory.tracing.recorder import record

_RECURRENT = frozenset("lstm gru rnn_tanh rnn_relu lstm_cell gru_cell".split())
_ATTENDING = frozenset("scaled_dot_product_attention multi_head_attention_forward softmax".split())
_CONVOLVING = frozenset("conv2d conv3d".split())


def suited_rules(model: nn.Module, x: Inputs) -> Composite:
    r"""The choice of rules that suits a network, with the reason in its `because`.

    | the network | rules |
    |---|---|
    | has recurrent layers | the preset `lstm`: epsilon 0.001, gates get nothing |
    | attends | the preset `transformer`: epsilon, attention weights get nothing |
    | convolves images | the preset `image_cnn`: gamma in convolutions, epsilon in dense layers and the two topmost layers, and at the pixels the box rule |
    | anything else | epsilon |

    The box goes, in every channel, from the smallest to the largest value in `x`: give all images
    there are, so that the relevance of one does not change with those beside it. Where the first
    convolution does not see the pixels themselves (they are normalized inside the network), it has
    the rule of squared weights, which asks for no box.

    Args:
        model: the network.
        x: inputs `[n, ...]`, or several tensors.

    Time: that of recording the network on a few samples, and one look at all of `x`.

    >>> import torch
    >>> net = nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8, 2))
    >>> rules = suited_rules(net, torch.rand(3, 1, 4, 4))
    >>> [rule.name for _, rule in rules.choices]
    ['box', 'epsilon 1e-06', 'gamma 0.25']
    """  # noqa: E501
    as_module(model)
    given = (x,) if isinstance(x, Tensor) else tuple(x)
    try:
        network = record(model, x if isinstance(x, Tensor) else tuple(t[:4] for t in given))
    except TorchTheoryError:  # whatever explains it says what is wrong with it
        return Composite()
    names = {op.name for op in network if op.follows}
    if names & _RECURRENT:
        return replace(
            preset("lstm"),
            because="LRP takes epsilon 0.001 in all layers, and gates get nothing, since the "
            "network is recurrent",
        )
    if names & _ATTENDING and _attends(network):
        return replace(
            preset("transformer"),
            because="LRP takes epsilon in all layers, and attention weights get nothing, since the "
            "network attends",
        )
    convolutions = [op for op in network if op.follows and op.name in _CONVOLVING]
    if not convolutions:
        return Composite()
    box = _box(network, convolutions, given)
    rules = preset("image_cnn") if box is None else preset("image_cnn", low=box[0], high=box[1])
    first = (
        "squared weights in the first layer, which does not see the inputs themselves"
        if box is None
        else "at the pixels the box from the smallest to the largest value of each channel"
    )
    return replace(
        rules,
        because="LRP takes gamma 0.25 in convolutions, epsilon in dense layers and the two topmost "
        f"layers, and {first}, since the network has "
        f"{counted(len(convolutions), 'convolution')} of images",
    )


def _attends(network: Network) -> bool:
    """Whether a softmax is one of attention: it is followed by a product with a signal."""
    found = {v for op in network if op.name in _ATTENDING for v in op.outputs}
    if any(op.name in _ATTENDING - {"softmax"} for op in network):
        return True
    for op in network:
        if not found & set(op.inputs):
            continue
        if op.kind in ("product", "affine") and sum(v.follows for v in op.inputs) > 1:
            return True
        if op.kind in ("moves", "random"):  # a dropout or a reshape on the way
            found |= set(op.outputs)
    return False


def _box(
    network: Network, convolutions: list[Operation], given: tuple[Tensor, ...]
) -> tuple[Tensor, Tensor] | None:
    """Bounds of each channel of the images that convolutions see, if they see them as given."""
    for place, value in enumerate(network.inputs):
        seen = [op for op in network if value in op.inputs]
        if seen and all(op in convolutions for op in seen):
            pixels = given[place].detach().transpose(0, 1).flatten(1)
            shape = (-1, *(1 for _ in given[place].shape[2:]))
            return pixels.amin(1).reshape(shape), pixels.amax(1).reshape(shape)
    return None

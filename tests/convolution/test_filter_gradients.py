"""Gradients of convolutions against autograd, matrices and differences; learned filters."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from torchtheory.convolution.edge_filters import edge_filter
from torchtheory.convolution.filter_gradients import (
    convolution_backward,
    learn_filter,
    patches,
)
from torchtheory.convolution.layer_matrices import convolution_layer, layer_matrix
from torchtheory.core.errors import TorchTheoryError

CONVOLVE: tuple[Any, ...] = (F.conv1d, F.conv2d, F.conv3d)


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("dims", [1, 2, 3])
@pytest.mark.parametrize("flip", [False, True])
def test_backward_equals_autograd(dims: int, flip: bool) -> None:
    """Also where the last windows do not reach the end of the image."""
    sizes = (9, 8, 7)[:dims]
    spatial = tuple(range(2, dims + 2))
    for stride, padding, dilation, groups in itertools.product((1, 2, 3), (0, 2), (1, 2), (1, 2)):
        x = random(2, 4, *sizes).requires_grad_()
        w = random(6, 4 // groups, *[3] * dims, seed=1).requires_grad_()
        b = random(6, seed=2).requires_grad_()
        used = w.flip(spatial) if flip else w
        y = CONVOLVE[dims - 1](x, used, b, stride, padding, dilation, groups)
        upstream = random(*y.shape, seed=3)
        auto = torch.autograd.grad(y, [x, w, b], upstream)
        found = convolution_backward(
            x, w, upstream, stride=stride, padding=padding, dilation=dilation, groups=groups,
            flip=flip,
        )  # fmt: skip
        for mine, exact in zip(found, auto, strict=True):
            torch.testing.assert_close(mine, exact, rtol=0, atol=1e-11)


def test_backward_is_the_transposed_matrix_and_the_derivative() -> None:
    x, w = random(1, 2, 6, 5), random(3, 2, 2, 3, seed=1)
    layer = convolution_layer(w, stride=2, padding=1)
    y = layer(x).detach()
    upstream = random(*y.shape, seed=2)
    found = convolution_backward(x, w, upstream, stride=2, padding=1)
    matrix = layer_matrix(layer, (2, 6, 5)).detach().to_dense()
    torch.testing.assert_close(found.x.flatten(), matrix.T @ upstream.flatten())
    assert float((y * upstream).sum()) == pytest.approx(float((x * found.x).sum()))
    step = 1e-6
    for place in [(0, 0, 0, 0), (2, 1, 1, 2), (1, 0, 1, 1)]:
        values = []
        for sign in (1, -1):
            moved = w.clone()
            moved[place] += sign * step
            values.append(float((F.conv2d(x, moved, None, 2, 1) * upstream).sum()))
        difference = (values[0] - values[1]) / (2 * step)
        assert float(found.weight[place]) == pytest.approx(difference, rel=1e-6, abs=1e-6)


def test_patches_are_what_filters_see() -> None:
    x, w = random(2, 3, 6, 5), random(4, 3, 2, 3, seed=1)
    seen = patches(x, (2, 3), padding=1)
    made = torch.einsum("nhwk,ok->nohw", seen, w.flatten(1))
    torch.testing.assert_close(made, F.conv2d(x, w, padding=1))


@pytest.mark.parametrize("name", ["sobel_vertical", "laplacian", "scharr_horizontal"])
@pytest.mark.parametrize("flip", [False, True])
def test_an_edge_filter_is_found_again(name: str, flip: bool) -> None:
    kernel = edge_filter(name)[None, None]
    x = random(8, 1, 12, 12)
    y = F.conv2d(x, kernel.flip(2, 3) if flip else kernel, padding=1)
    found = learn_filter(x, y, (3, 3), padding=1, steps=300, flip=flip)
    torch.testing.assert_close(found.weight, kernel, rtol=0, atol=1e-8)
    assert bool((found.losses[1:] <= found.losses[:-1] * (1 + 1e-9) + 1e-25).all())


def test_losses_are_half_the_mean_squares_over_places_summed_over_filters() -> None:
    x, kernels = random(4, 2, 7, 6), random(3, 2, 3, 2)
    y = F.conv2d(x, kernels)
    found = learn_filter(x, y, (3, 2), steps=2)
    places = y[:, 0].numel()
    assert float(found.losses[0]) == pytest.approx(float(y.square().sum()) / (2 * places))
    once = learn_filter(x, y, (3, 2), steps=1).weight
    after = (F.conv2d(x, once) - y).square().sum() / (2 * places)
    assert float(found.losses[1]) == pytest.approx(float(after))
    patches = F.unfold(x, (3, 2)).mT.flatten(0, 1)
    rate = 1 / float(torch.linalg.eigvalsh(patches.T @ patches / places)[-1])
    slope = patches.T @ (patches @ kernels.flatten(1).T) / places
    torch.testing.assert_close(once.flatten(1).T, rate * slope)


def test_what_images_do_not_show_is_not_learned() -> None:
    """Constant images tell the sum of a filter, and no more: descent from 0 spreads it evenly."""
    x = random(8, 1, 1, 1).expand(8, 1, 9, 9)
    blur = torch.tensor([[[[0.0, 1, 0], [1, 4, 1], [0, 1, 0]]]], dtype=torch.float64)
    found = learn_filter(x, F.conv2d(x, blur), (3, 3), steps=200)
    torch.testing.assert_close(found.weight, torch.full_like(blur, 8 / 9), rtol=0, atol=1e-8)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (
            lambda: convolution_backward(random(1, 2, 5, 5), random(3, 2, 3), random(1)),
            "3 to 5 dimensions each",
        ),
        (
            lambda: convolution_backward(
                random(1, 2, 5, 5), random(3, 2, 3, 3), random(1, 3, 5, 5)
            ),
            r"the gradient of the output must be \[1, 3, 3, 3\]",
        ),
        (lambda: learn_filter(random(1, 1, 5), random(1, 1, 5), (3,)), r"y must be \[n, 1, 3\]"),
        (
            lambda: convolution_backward(random(1, 1, 5), 3, random(1, 1, 3)),  # type: ignore[arg-type]
            "weight must be a torch tensor, not 3",
        ),
        (lambda: learn_filter(random(1, 1, 5), random(2, 1, 3), (3,)), "with as many samples"),
        (
            lambda: learn_filter(0 * random(1, 1, 5), random(1, 1, 3), (3,)),
            "the images are 0 everywhere",
        ),
        (
            lambda: learn_filter(random(1, 1, 9), random(1, 1, 7), (3,), rate=1e9),
            "diverges at the rate",
        ),
        (lambda: learn_filter(random(1, 1, 9), random(1, 1, 7), (3,), rate=-1.0), "rate must be"),
    ],
)
def test_refusals(call: Any, words: str) -> None:
    with pytest.raises(TorchTheoryError, match=words):
        call()

"""Sizes, parameters, tables, filters made by hand, networks of convolutions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.ndimage
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from torchtheory.convolution.edge_filters import (
    FILTERS,
    apply_filters,
    edge_filter,
    gaussian_filter,
)
from torchtheory.convolution.image_classifier import (
    convolutional_network,
    feature_maps,
    tiled,
)
from torchtheory.convolution.layer_matrices import layer_matrix
from torchtheory.convolution.layer_sizes import (
    distinct_entries,
    layer_table,
    output_size,
    transposed_output_size,
    weight_sharing,
)
from torchtheory.core.errors import TorchTheoryError
from torchtheory.nets.image_networks import PreActivationBlock


@settings(max_examples=60, deadline=None)
@given(
    n=st.integers(1, 12), k=st.integers(1, 4), s=st.integers(1, 3), p=st.integers(0, 3),
    d=st.integers(1, 2),
)  # fmt: skip
def test_sizes_are_torchs(n: int, k: int, s: int, p: int, d: int) -> None:
    reach = d * (k - 1) + 1
    if reach <= n + 2 * p:
        layer = nn.Conv1d(1, 1, k, s, p, d)
        assert output_size(n, k, s, p, d) == layer(torch.zeros(1, 1, n)).shape[2]
    if (n - 1) * s + reach > 2 * p:
        back = nn.ConvTranspose1d(1, 1, k, s, p, dilation=d)
        made = transposed_output_size(n, k, s, p, d)
        assert made == back(torch.zeros(1, 1, n)).shape[2]
        if made + 2 * p >= reach:
            assert output_size(made, k, s, p, d) == n


def test_sharing() -> None:
    """D(D-K+1) entries, K free ones, each D-K+1 times."""
    for size, taps in ((10, 3), (7, 7), (20, 1)):
        layer = nn.Conv1d(1, 1, taps, bias=False)
        found = weight_sharing(layer, (1, size))
        assert found.entries == size * (size - taps + 1)
        assert found.weights == found.parameters == taps
        assert found.nonzero == taps * (size - taps + 1)
        assert distinct_entries(layer, (1, size)) == taps
    layer2 = nn.Conv2d(3, 8, 3, padding=1, groups=1)
    found = weight_sharing(layer2, (3, 6, 7))
    assert found.parameters == 8 * (3 * 9 + 1)
    assert found.dense == 3 * 42 * 8 * 42 + 8 * 42
    assert found.factor == found.dense / found.parameters
    assert found.nonzero == layer_matrix(layer2, (3, 6, 7)).values().numel()
    assert weight_sharing(layer2, (3, 60, 70)).parameters == found.parameters
    grouped = nn.ConvTranspose2d(4, 6, 3, groups=2, stride=2)
    found = weight_sharing(grouped, (4, 3, 3))
    assert found.nonzero == layer_matrix(grouped, (4, 3, 3)).values().numel()


def test_a_table_of_a_network() -> None:
    net = convolutional_network((3, 20, 24), [4, 8], [16], 5, generator=0)
    rows = layer_table(net, (3, 20, 24))
    assert [r.kind for r in rows] == [
        "Conv2d", "ReLU", "MaxPool2d", "Conv2d", "ReLU", "MaxPool2d", "Flatten", "Linear", "ReLU",
        "Linear",
    ]  # fmt: skip
    assert rows[0].shape == (4, 18, 22)
    assert rows[5].shape == (8, 3, 4)
    assert rows[5].field == (10, 10)
    assert rows[5].jump == (4, 4)
    assert rows[7].field is None
    assert sum(r.parameters for r in rows) == sum(p.numel() for p in net.parameters())
    block = layer_table(PreActivationBlock(2, 3, 2), (2, 8, 8))
    assert [r.field for r in block] == [(1, 1), (1, 1), (3, 3), (3, 3), (7, 7)]
    assert sum(r.parameters for r in block) == sum(
        p.numel() for p in PreActivationBlock(2, 3, 2).parameters()
    )
    with pytest.raises(TorchTheoryError, match="does not take"):
        layer_table(net, (1, 20, 24))


def test_networks() -> None:
    before = torch.random.get_rng_state()
    net = convolutional_network((1, 16), [4], outputs=1, probability=True, generator=3)
    assert bool((torch.random.get_rng_state() == before).all())
    again = convolutional_network((1, 16), [4], outputs=1, probability=True, generator=3)
    pairs = zip(net.parameters(), again.parameters(), strict=True)
    assert all(bool((a == b).all()) for a, b in pairs)
    out = net(torch.randn(50, 1, 16) * 3)
    assert out.shape == (50, 1)
    assert bool(((out > 0) & (out < 1)).all())
    flat = convolutional_network((2, 6, 6, 6), [3], pool=1, padding=1, generator=0)
    assert flat(torch.zeros(1, 2, 6, 6, 6)).shape == (1, 1)
    average = convolutional_network((1, 8, 8), [2], pooling="average", generator=0)
    assert isinstance(average[2], nn.AvgPool2d)


def test_feature_maps() -> None:
    net = convolutional_network((1, 12, 12), [4, 8], generator=0).eval()
    image = torch.randn(1, 12, 12)
    maps = feature_maps(net, image)
    torch.testing.assert_close(maps["0"], net[0](image[None])[0].detach())
    assert [tuple(m.shape) for m in maps.values()] == [
        (4, 10, 10), (4, 10, 10), (4, 5, 5), (8, 3, 3), (8, 3, 3), (8, 1, 1),
    ]  # fmt: skip
    picture = tiled(maps["3"], columns=4)
    assert picture.shape == (7, 15)
    assert float(picture.nan_to_num().abs().max()) == 1.0
    assert bool(picture[3].isnan().all())


def test_edges() -> None:
    """A step answers across its direction only; a constant image not at all."""
    constant = torch.full((6, 7), 3.0).double()
    step = (torch.arange(8) >= 4).double().expand(6, 8)
    for name in FILTERS:
        total = float(edge_filter(name).sum())
        assert total == (1.0 if name == "sharpen" else 0.0)
        np.testing.assert_allclose(apply_filters(constant, [name], padding=1)[0], total * 3.0)
        if name.endswith("_vertical"):
            across = edge_filter(name)[:, 2].sum()
            made = apply_filters(step, [name])[0]
            assert set(made[:, 2:4].flatten().tolist()) == {float(across)}
            assert int(made.count_nonzero()) == 2 * len(made)
            assert int(apply_filters(step.T, [name]).count_nonzero()) == 0
            other = name.replace("vertical", "horizontal")
            torch.testing.assert_close(apply_filters(step.T, [other])[0], made.T)


def test_filters_against_scipy() -> None:
    image = torch.randn(9, 11, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    found = apply_filters(image, ["sobel_horizontal", "sobel_vertical"], padding=1).numpy()
    for axis in (0, 1):
        np.testing.assert_allclose(
            found[axis], scipy.ndimage.sobel(image.numpy(), axis, mode="nearest"), atol=1e-12
        )
    blur = gaussian_filter(1.5)
    assert float(blur.sum()) == pytest.approx(1.0)
    torch.testing.assert_close(blur, blur.flip(0).T)
    spread = apply_filters(image, [blur], padding=5)[0].numpy()
    exact = scipy.ndimage.gaussian_filter(image.numpy(), 1.5, mode="nearest", radius=5)
    np.testing.assert_allclose(spread, exact, atol=1e-12)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: output_size(3, 5), "does not fit 3 places"),
        (lambda: output_size(0, 1), "size must be"),
        (lambda: transposed_output_size(1, 1, padding=1), "leave nothing"),
        (lambda: edge_filter("sobel"), "no filter is named 'sobel'"),
        (lambda: gaussian_filter(1.0, 4), "must be odd"),
        (lambda: gaussian_filter(-1.0), "positive"),
        (lambda: apply_filters(torch.ones(1, 5, 5), ["laplacian"]), "height, width"),
        (lambda: apply_filters(torch.ones(2, 5), ["laplacian"]), "do not fit"),
        (lambda: apply_filters(torch.ones(5, 5), []), "at least one filter"),
        (lambda: apply_filters(torch.ones(5, 5), ["laplacian", "roberts_rising"]), "of one shape"),
        (lambda: convolutional_network((1, 4, 4), [3, 3]), "does not fit"),
        (lambda: convolutional_network((1, 4, 4), []), "at least 1"),
        (lambda: convolutional_network((1, 8, 8), [3], pooling="sum"), "no pooling is named"),
        (lambda: feature_maps(nn.Sequential(nn.Flatten()), torch.ones(1, 3, 3)), "no layer gives"),
        (lambda: feature_maps(nn.Conv2d(1, 1, 3), torch.ones(2, 1, 5, 5)), "the model raised"),
        (lambda: layer_table(nn.Conv2d(1, 1, 3), 5), "must be a list of whole numbers"),  # type: ignore[arg-type]
        (lambda: tiled(torch.ones(3, 3)), "height, width"),
    ],
)
def test_refusals(call: Any, words: str) -> None:
    with pytest.raises(TorchTheoryError, match=words):
        call()

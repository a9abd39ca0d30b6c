"""U-nets are the identity with framelet filters, and the Wiener filter is the best linear map."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from torchtheory.convolution.framelets import cosine_basis
from torchtheory.convolution.u_net import SKIPS, Skips, UNet, framelet_u_net
from torchtheory.convolution.wiener import wiener_convolution, wiener_filter
from torchtheory.core.errors import EmptyData, InvalidInput, ShapeMismatch, UnknownName


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("levels", [1, 2, 3])
@pytest.mark.parametrize("filters", [cosine_basis(3), drawn(3, 3), drawn(1, 2), drawn(5, 5)[:, :5]])
def test_framelet_filters_and_skips_give_back_the_signal(levels: int, filters: Tensor) -> None:
    if levels == 3 and filters.shape[1] > 3:
        levels = 2  # the channels grow like a power of the filters
    x = drawn(4, 1, 16, seed=1)
    net = framelet_u_net(filters, levels)
    with torch.no_grad():
        assert torch.allclose(net(x), x, atol=1e-9)
        assert not torch.allclose(framelet_u_net(filters, levels, skips="none")(x), x, atol=0.1)


def test_images_are_given_back() -> None:
    x = drawn(2, 1, 4, 8)
    with torch.no_grad():
        assert torch.allclose(framelet_u_net(drawn(3, 3, seed=2), 1, dims=2)(x), x, atol=1e-9)


def test_without_skips_a_constant_signal_is_still_given_back() -> None:
    """Pooling loses nothing of it: what skips carry is zero."""
    x = torch.full((1, 1, 8), 1.7, dtype=torch.float64)
    with torch.no_grad():
        out = framelet_u_net(cosine_basis(3), 2, skips="none")(x)
    assert torch.allclose(out, x, atol=1e-12)


@pytest.mark.parametrize("skips", SKIPS)
@pytest.mark.parametrize("dims", [1, 2])
def test_shapes_seeds_and_gradients(skips: Skips, dims: int) -> None:
    before = torch.random.get_rng_state()
    net, same, other = (
        UNet([4, 6], inputs=2, outputs=3, dims=dims, skips=skips, generator=s) for s in (0, 0, 1)
    )
    assert torch.equal(before, torch.random.get_rng_state())
    x = torch.randn(2, 2, *[8] * dims)
    assert net(x).shape == (2, 3, *[8] * dims)
    assert torch.equal(net(x), same(x))
    assert not torch.equal(net(x), other(x))
    net(x).square().sum().backward()
    assert all(float(p.grad.abs().max()) > 0 for n, p in net.named_parameters() if "weight" in n)


def test_initial_weights_are_those_of_he_and_a_tenth_of_them_in_the_last_layer() -> None:
    net = UNet([64, 64], inputs=16, outputs=64)
    for name, p in net.named_parameters():
        if p.ndim == 1:
            assert not bool(p.any())
            continue
        he = (2 / (p.shape[1] * 3)) ** 0.5
        # thousands of normal numbers: their deviation is known to a few hundredths
        expected = 0.1 * he if name == "up.0.weight" else he
        assert float(p.detach().std()) == pytest.approx(expected, rel=0.1)


def test_unpooling_is_the_pseudo_inverse() -> None:
    net = UNet([2], dims=2, dtype=torch.float64)
    x, y = drawn(1, 1, 4, 4), drawn(1, 1, 2, 2)
    assert torch.allclose(net.pool(net.unpool(y)), y)
    # a projection that is symmetric, so orthogonal
    assert torch.allclose(
        (x - net.unpool(net.pool(x))).mul(net.unpool(y)).sum(), torch.zeros(1).double(), atol=1e-12
    )


def test_periodic_signals_that_move_by_a_block_move_the_output() -> None:
    net = UNet([3, 4], dtype=torch.float64)
    x = drawn(2, 1, 16)
    with torch.no_grad():
        assert torch.allclose(net(x.roll(4, -1)), net(x).roll(4, -1), atol=1e-12)
        assert not torch.allclose(net(x.roll(1, -1)), net(x).roll(1, -1), atol=1e-6)


def test_sizes_that_do_not_fit_are_refused() -> None:
    net = UNet([3, 4])
    for x in (torch.zeros(1, 1, 10), torch.zeros(1, 2, 8), torch.zeros(1, 8), torch.zeros(1, 1, 0)):
        with pytest.raises(ShapeMismatch, match="4 divides"):
            net(x)
    with pytest.raises(ShapeMismatch, match="4 divides"):
        net([1.0])
    wide = UNet([3, 4], kernel=7)
    assert wide(torch.zeros(1, 1, 12)).shape == (1, 1, 12)
    with pytest.raises(ShapeMismatch, match="lengths of 12"):
        wide(torch.zeros(1, 1, 8))
    assert UNet([3, 4], kernel=7, periodic=False)(torch.zeros(1, 1, 8)).shape == (1, 1, 8)
    with pytest.raises(InvalidInput, match="GiB"):
        framelet_u_net(cosine_basis(5), 6, dims=2)
    for wrong in ({"kernel": 4}, {"dims": 3}, {"channels": []}):
        with pytest.raises(InvalidInput):
            UNet(**{"channels": [2], **wrong})  # type: ignore[arg-type]
    with pytest.raises(UnknownName):
        UNet([2], skips="sum")  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="odd"):
        framelet_u_net(cosine_basis(4), 1)
    with pytest.raises(InvalidInput, match="span"):
        framelet_u_net(cosine_basis(3)[:, :2], 1)
    with pytest.raises(UnknownName):
        framelet_u_net(cosine_basis(3), 1, skips="concatenate")


# ---------------------------------------------------------------------------------------- Wiener


def test_the_best_affine_map_is_least_squares() -> None:
    """Its gain is where the derivative of the mean squared error over all linear maps vanishes."""
    x = drawn(4000, 5) @ drawn(5, 5, seed=1) + 2.0
    noise = 0.7
    found = wiener_filter(x, noise)
    centered = x - x.mean(0)
    covariance = centered.T @ centered / len(x)
    eye = torch.eye(5, dtype=torch.float64)
    gain = found.gain.clone().requires_grad_()
    # of the error in closed form: the noise is independent of the signal
    risk = torch.trace((eye - gain) @ covariance @ (eye - gain).T + noise**2 * gain @ gain.T) / 5
    (slope,) = torch.autograd.grad(risk, gain)
    assert float(slope.abs().max()) < 1e-10
    assert float(risk.detach()) == pytest.approx(found.error, rel=1e-10)
    noisy = x + noise * drawn(4000, 5, seed=2)
    errors = (found(noisy) - x).square().mean(1)
    spread = float(errors.std()) / len(errors) ** 0.5
    assert abs(float(errors.mean()) - found.error) < 5 * spread


def test_the_best_convolution_is_the_best_affine_map_of_stationary_signals() -> None:
    base = drawn(30, 8) * torch.tensor([3.0, 2.0, 1.0, 0.5, 0.2, 0.2, 0.1, 0.1]).double()
    x = torch.cat([base.roll(s, 1) for s in range(8)])  # all shifts: stationary exactly
    noisy = x + 0.5 * drawn(*x.shape, seed=3)
    one, other = wiener_convolution(x, 0.5), wiener_filter(x, 0.5)
    # means differ: of all entries, and of each place, which are equal here
    assert torch.allclose(one(noisy), other(noisy), atol=1e-10)
    assert one.error == pytest.approx(other.error, rel=1e-9)
    images = drawn(50, 1, 4, 6)
    assert wiener_convolution(images, 1.0)(images).shape == images.shape


def test_bad_examples_are_refused() -> None:
    with pytest.raises(EmptyData):
        wiener_filter(drawn(1, 4), 1.0)
    with pytest.raises(InvalidInput):
        wiener_filter(drawn(5, 4), 0.0)
    with pytest.raises(ShapeMismatch):
        wiener_filter(drawn(5, 4), 1.0)(drawn(2, 3))
    with pytest.raises(ShapeMismatch):
        wiener_convolution(drawn(5, 4), 1.0)(drawn(2, 3))


def test_a_u_net_is_an_ordinary_module() -> None:
    """Copied, moved to another precision, its state loaded."""
    net = UNet([2, 3])
    twin = UNet([2, 3], generator=5)
    twin.load_state_dict(net.state_dict())
    x = torch.randn(1, 1, 8)
    assert torch.equal(net(x), twin(x))
    assert net.double()(x.double()).dtype == torch.float64
    assert isinstance(net.down, nn.ModuleList)


def test_wieners_estimate_solves_the_normal_equations() -> None:
    clean, noisy = 2 + drawn(40, 3), drawn(5, 3)
    mean = clean.mean(0)
    covariance = torch.cov(clean.T, correction=0)
    weights = torch.linalg.solve(covariance + 0.49 * torch.eye(3).double(), covariance)
    wanted = mean + (noisy - mean) @ weights
    torch.testing.assert_close(wiener_filter(clean, 0.7)(noisy), wanted)

"""U-nets: the identity by construction, and denoisers by training."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from torchtheory.convolution.framelets import cosine_basis, random_basis
from torchtheory.convolution.u_net import SKIPS, Skips, UNet, framelet_u_net
from torchtheory.convolution.wiener import wiener_convolution, wiener_filter
from torchtheory.data.real import digits
from torchtheory.labs.engine import COLORS, Run, lab, mean_interval
from torchtheory.training.loop.trainer import fit

#: Confidence of each comparison on test signals.
SURE = 0.999


@lab(
    "u-net",
    room="convolution",
    covers=["A-137", "A-135"],
    title="U-nets: skip connections carry what pooling loses",
    full={"signals": 1500, "epochs": 20, "image_epochs": 40},
    least={"signals": 400, "epochs": 6},
)
def u_net(run: Run, signals: int = 600, epochs: int = 10, image_epochs: int = 0) -> None:
    """Framelet filters make a U-net the identity, ReLUs included, if and only if it has skips.

    Then U-nets are trained to remove noise: from signals that jump between two values, where they
    beat the best linear filter by far and lose without their skip connections; and from normal
    signals with the same spectrum, where no estimator can beat it. With `image_epochs` also from
    handwritten digits: look at the pictures, and at the table, where the best affine map, which
    knows where a digit stands, is a match for U-nets, and the best convolution is not.

    Args:
        signals: that are denoised.
        epochs: of training.
    """
    identity(run)
    rows = one_dimensional(run, signals, epochs)
    if image_epochs:
        rows += images(run, image_epochs)
    run.table(
        "denoising",
        ["signals", "denoiser", "mean squared error", "of the noisy signal"],
        rows,
        caption="Errors per entry on test signals.",
    )


def identity(run: Run) -> None:
    x, pictures = run.randn(6, 1, 24), run.randn(3, 1, 8, 12)
    frames = {
        "cosines": cosine_basis(5),
        "a random basis": random_basis(3, run.generator),
        "a frame": run.randn(3, 4),
    }

    def outputs(skips: Skips) -> Tensor:
        nets = [framelet_u_net(v, levels=2, skips=skips) for v in frames.values()]
        flat = framelet_u_net(frames["cosines"][:, :5], levels=1, dims=2, skips=skips)
        with torch.no_grad():
            return torch.cat([net(x).flatten() for net in nets] + [flat(pictures).flatten()])

    wanted = torch.cat([x.flatten()] * len(frames) + [pictures.flatten()])
    says = run.states(
        "A-137, A-135", r"\text{framelet filters, average pooling, skips: the U-net with ReLUs is } x\mapsto x"
    )
    says.equal(outputs("detail"), wanted, 1e-9, where=f"{', '.join(frames)}; signals and images, two levels and one")
    says.fails("no skip connections", outputs("none"))
    kinds = [UNet([3, 5], dims=d, skips=s, dtype=torch.float64, generator=0) for s in SKIPS for d in (1, 2)]
    shapes = [net(x if net.dims == 1 else pictures).shape == (x if net.dims == 1 else pictures).shape for net in kinds]
    run.states("A-137", r"\text{the output has the shape of the input}").equal([float(s) for s in shapes], 1.0)


class Denoised(NamedTuple):
    """Squared errors of test signals `[n]` by denoiser, and the estimates of the first of them."""

    errors: dict[str, Tensor]
    shown: dict[str, Tensor]


def telegraph(run: Run, count: int, length: int) -> Tensor:
    """Periodic signals that keep one of two values for about five places."""
    jumps = run.rand(count, length) < 6 / length
    place = jumps.cumsum(1)
    place = torch.where(place == place[:, -1:], 0, place)  # the last piece goes on at the start
    return run.signs(count, length).gather(1, place)[:, None]


def normal_with_spectrum_of(run: Run, x: Tensor) -> Tensor:
    power = torch.fft.fft(x).abs().square().mean(0) / x.shape[-1]
    white = run.randn(*x.shape)
    made: Tensor = torch.fft.ifft(torch.fft.fft(white) * power.sqrt()).real
    return made


def denoise(
    run: Run,
    clean: Tensor,
    noise: float,
    train: int,
    epochs: int,
    skips: tuple[Skips, ...],
    learning_rate: float,
    **shape: Any,
) -> Denoised:
    """Train U-nets on the first signals, with new noise in every epoch; test on the others."""
    x = clean.float()
    noisy = x + noise * run.randn(*x.shape).float()
    given, truth = noisy[train:], x[train:]
    found = {
        "the best convolution": wiener_convolution(x[:train], noise)(given),
        "the best affine map": wiener_filter(x[:train], noise)(given),
    }

    def with_noise(batch: Tensor, generator: torch.Generator) -> Tensor:
        return batch + noise * torch.randn(batch.shape, generator=generator)

    seed = int(torch.randint(2**31, (1,), generator=run.generator))
    for kind in skips:
        net = UNet(skips=kind, generator=seed, **shape)
        fit(
            net,
            (x[:train], x[:train]),
            task="regression",
            epochs=epochs,
            learning_rate=learning_rate,
            batch_size=60,
            augment=with_noise,
            seed=seed,
        )
        with torch.no_grad():
            found[f"U-net, skips: {kind}"] = net(given)
    errors = {name: (out - truth).square().flatten(1).mean(1).double() for name, out in found.items()}
    errors["the noisy signal"] = (given - truth).square().flatten(1).mean(1).double()
    shown = {"clean": truth, "noisy": given, **found}
    return Denoised(errors, {name: out[:8] for name, out in shown.items()})


def one_dimensional(run: Run, signals: int, epochs: int) -> list[tuple[str, str, float, float]]:
    noise, tested = 0.5, 400
    jumping = telegraph(run, signals + tested, 32)
    normal = normal_with_spectrum_of(run, jumping)
    shape: dict[str, Any] = {"channels": [12, 16], "kernel": 5}
    found = denoise(run, jumping, noise, signals, epochs, ("concatenate", "none"), 0.01, **shape)
    same = denoise(run, normal, noise, signals, epochs, ("concatenate",), 0.01, **shape)
    linear, network = "the best convolution", "U-net, skips: concatenate"

    def gain(of: Denoised, over: str) -> float:
        """The lower end of the interval of what the network gains over another denoiser."""
        return mean_interval(of.errors[over] - of.errors[network], SURE).low

    says = run.states("A-137", r"\text{error of the best convolution minus error of the U-net}")
    says.above(gain(found, linear), 0, where=f"lower end of a {SURE:.1%} interval, {tested} test signals with jumps")
    says.fails("normal signals with the same spectrum", gain(same, linear))
    says = run.states("A-137", r"\text{error of the U-net without skips minus error of the U-net}")
    says.above(
        gain(found, "U-net, skips: none"), 0, where=f"lower end of a {SURE:.1%} interval, trained from the same seed"
    )
    says = run.states(
        "A-137", r"\text{normal signals: no denoiser errs less than } \tfrac1d\sum_f\tfrac{S\sigma^2}{S+\sigma^2}"
    )
    least = wiener_convolution(normal, noise).error
    says.at_least(mean_interval(same.errors[network], SURE), least, where="the U-net trained on them")
    says.fails(
        "signals with jumps, of the same spectrum",
        mean_interval(found.errors[network], SURE),
        promised=wiener_convolution(jumping, noise).error,
    )
    run.figure(
        "signals",
        lambda axes: plot_signals(axes, found.shown, [linear, "U-net, skips: none", network]),
        caption="Two test signals, their noisy versions, and what three denoisers make of them.",
        grid=(2, 3),
        size=(10, 4),
    )
    return [*rows_of("jumps", found), *rows_of("normal", same)]


def rows_of(kind: str, found: Denoised) -> list[tuple[str, str, float, float]]:
    noisy = float(found.errors["the noisy signal"].mean())
    return [(kind, name, float(e.mean()), noisy) for name, e in found.errors.items() if name != "the noisy signal"]


def images(run: Run, epochs: int) -> list[tuple[str, str, float, float]]:
    pixels = digits(torch.float64)[0].view(-1, 1, 8, 8)
    pixels = pixels[torch.randperm(len(pixels), generator=run.generator)]
    found = denoise(run, pixels, 0.5, 1300, epochs, SKIPS, 3e-3, channels=[16, 32], dims=2, periodic=False)
    gain = found.errors["the best convolution"] - found.errors["U-net, skips: concatenate"]
    # how much the skips bring on so small images theory does not say: the table does
    run.states("A-137", r"\text{digits: error of the best convolution minus error of the U-net}").above(
        mean_interval(gain, SURE).low,
        0,
        where=f"lower end of a {SURE:.1%} interval, {len(pixels) - 1300} test digits",
    )
    run.figure(
        "digits",
        lambda axes: plot_images(axes, found.shown),
        caption="Test digits, their noisy versions, and what the denoisers make of them.",
        grid=(len(found.shown), 8),
        size=(8, 1.05 * len(found.shown)),
    )
    return rows_of("digits", found)


def plot_signals(axes: Any, shown: dict[str, Tensor], names: list[str]) -> None:
    for row in range(2):
        for ax, name in zip(axes[row], names, strict=True):
            ax.plot(shown["noisy"][row, 0], ".", color=COLORS[7 % len(COLORS)], markersize=4, alpha=0.6)
            ax.plot(shown["clean"][row, 0], color="black", linewidth=1, drawstyle="steps-mid")
            ax.plot(shown[name][row, 0], color=COLORS[1], linewidth=1.8)
            ax.set(ylim=(-2.4, 2.4))
            if row == 0:
                ax.set_title(name)
            else:
                ax.set_xlabel("place")


def plot_images(axes: Any, shown: dict[str, Tensor]) -> None:
    for row, (name, pictures) in zip(axes, shown.items(), strict=True):
        for ax, picture in zip(row, pictures, strict=True):
            ax.imshow(picture[0], cmap="Greys", vmin=0, vmax=1)
            ax.set(xticks=[], yticks=[])
            ax.grid(visible=False)
            for side in ax.spines.values():
                side.set_visible(False)
        row[0].set_ylabel(
            name.replace("U-net, ", "U-net,\n").replace("best ", "best\n"),
            rotation=0,
            ha="right",
            va="center",
            fontsize=7,
        )

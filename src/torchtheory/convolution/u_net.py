r"""U-nets: down by pooling, up again, and skip connections between equal resolutions.

On each level $c_\ell=\varrho(\operatorname{conv}x_\ell)$ and $x_{\ell+1}=Pc_\ell$ with $P$ the
average over blocks of $2^{\rm dims}$; on the way back
$y_\ell=\varrho(\operatorname{conv}z_\ell)$ with $z_\ell$ made of $P^+y_{\ell+1}$ (every block gets
its value again) and of what the skip connection brings:

- `concatenate`: $z_\ell=(P^+y_{\ell+1},c_\ell)$, the usual U-net;
- `detail`: $z_\ell=P^+y_{\ell+1}+(I-P^+P)c_\ell$, what pooling loses and nothing else;
- `none`: $z_\ell=P^+y_{\ell+1}$, an autoencoder.

With framelet filters (`framelet_u_net`) and the skip connections of `detail` the network is the
identity, ReLUs included; without them it gives back a blurred signal. Source: Mathematical
Aspects of Deep Learning, section 1.6.3 and Figure 1.19, which leaves the details open.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from torchtheory.convolution.framelets import dual_frame
from torchtheory.core.checks import as_matrix, described, one_of, whole_number, whole_numbers
from torchtheory.core.errors import InvalidInput, ShapeMismatch
from torchtheory.core.memory import refuse_too_large
from torchtheory.core.random import RandomSource, as_generator
from torchtheory.models.model import global_randomness_kept

Skips = Literal["concatenate", "detail", "none"]
SKIPS: tuple[Skips, ...] = ("concatenate", "detail", "none")

#: The initial weights of the last layer, in those of He.
LAST = 0.1


class UNet(nn.Module):
    """A U-net for signals `[n, channels, length]` or images `[n, channels, h, w]`.

    Args:
        channels: of each level, the finest first; one level halves the resolution once.
        inputs, outputs: channels of what comes in and goes out, at the same resolution.
        dims: 1 for signals, 2 for images.
        kernel: size of every convolution, odd.
        periodic: whether signals are continued periodically, or by zeros, which tell a network
            where the edges are.
        skips: see the module.
        generator: generator or seed of the initial weights: He's, the last layer's a tenth of
            them. A network that begins near 0 learns several times faster.

    >>> net = UNet([4, 8], dims=2)
    >>> net(torch.zeros(3, 1, 8, 12)).shape
    torch.Size([3, 1, 8, 12])
    """

    def __init__(
        self,
        channels: Sequence[int],
        *,
        inputs: int = 1,
        outputs: int = 1,
        dims: int = 1,
        kernel: int = 3,
        periodic: bool = True,
        skips: Skips = "concatenate",
        generator: RandomSource = None,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        super().__init__()
        widths = whole_numbers(channels, "channels")
        self.dims = whole_number(dims, "dims", least=1, most=2)
        if whole_number(kernel, "kernel", least=1) % 2 == 0:
            raise InvalidInput(f"kernel must be odd, so that it has a middle, not {kernel}")
        self.skips = one_of(skips, "skips", SKIPS)
        self.periodic = bool(periodic)
        before = [whole_number(inputs, "inputs", least=1), *widths[:-1]]
        after = [whole_number(outputs, "outputs", least=1), *widths[:-1]]
        joined = 2 if skips == "concatenate" else 1
        kind = nn.Conv1d if dims == 1 else nn.Conv2d
        padding: Literal["circular", "zeros"] = "circular" if periodic else "zeros"

        def layer(m: int, n: int) -> nn.Module:
            return kind(m, n, kernel, padding="same", padding_mode=padding, dtype=dtype)

        with global_randomness_kept():  # the layers' own draws, which are replaced
            self.down = nn.ModuleList(layer(m, n) for m, n in zip(before, widths, strict=True))
            self.bottom = layer(widths[-1], widths[-1])
            self.up = nn.ModuleList(
                layer(joined * n, m) for m, n in zip(after, widths, strict=True)
            )
        source = as_generator(generator)
        for p in self.parameters():
            if p.ndim > 1:
                nn.init.kaiming_normal_(p, nonlinearity="relu", generator=source)
            else:
                nn.init.zeros_(p)
        with torch.no_grad():
            self.up[0].weight.mul_(LAST)  # type: ignore[operator]

    def forward(self, x: Tensor) -> Tensor:
        self._refuse_other_sizes(x)
        kept = []
        for conv in self.down:
            c = torch.relu(conv(x))
            x = self.pool(c)
            kept.append((c, x))
        y = torch.relu(self.bottom(x))
        for level, conv in reversed(list(enumerate(self.up))):
            y = conv(self._joined(self.unpool(y), *kept[level]))
            if level:
                y = torch.relu(y)
        return y

    def pool(self, x: Tensor) -> Tensor:
        """Averages over blocks of 2, or 2 x 2."""
        return F.avg_pool1d(x, 2) if self.dims == 1 else F.avg_pool2d(x, 2)

    def unpool(self, x: Tensor) -> Tensor:
        """Every value 2, or 2 x 2, times; the pseudo-inverse of `pool`."""
        for axis in range(-self.dims, 0):
            x = x.repeat_interleave(2, axis)
        return x

    def _joined(self, up: Tensor, c: Tensor, pooled: Tensor) -> Tensor:
        if self.skips == "concatenate":
            return torch.cat([up, c], 1)
        return up if self.skips == "none" else up + c - self.unpool(pooled)

    def _refuse_other_sizes(self, x: Tensor) -> None:
        blocks = 2 ** len(self.down)
        wanted = self.down[0].in_channels
        fits = isinstance(x, Tensor) and x.ndim == self.dims + 2 and x.shape[1] == wanted
        if not fits or any(s == 0 or s % blocks for s in x.shape[2:]):
            raise ShapeMismatch(
                f"inputs must be [n, {wanted}{', length' * self.dims}] with lengths that "
                f"{blocks} divides, not {described(x)}"
            )
        margin = self.down[0].kernel_size[0] // 2  # type: ignore[index]
        if self.periodic and any(s // blocks < margin for s in x.shape[2:]):
            raise ShapeMismatch(
                f"on the coarsest level a periodic signal needs {margin} places at least, lengths "
                f"of {blocks * margin}, or it would be wound round more than once: {described(x)}"
            )


def framelet_u_net(filters: Tensor, levels: int, *, dims: int = 1, skips: Skips = "detail") -> UNet:
    r"""A U-net with framelet filters: with the skip connections of `detail` it is the identity.

    Every level filters each channel with all $\pm v_j$, so that
    $\varrho(c)-\varrho(-c)=c$ survives the ReLU, and the decoder sums
    $\frac1n\tilde v_j*$ of it; pooled features are averages of positive numbers, which the ReLUs of
    the way back leave alone. In two dimensions the filters are $v_j\otimes v_k$.

    Args:
        filters: $V$, `[n, q]` with columns that span $\mathbb R^n$, n odd.
        levels: how often the resolution is halved; the channels grow like $(2q^{\rm dims})^\ell$.
        dims: 1 or 2.
        skips: `detail`, or `none` to see what is lost without.

    >>> net = framelet_u_net(torch.eye(3, dtype=torch.float64), levels=2)
    >>> x = torch.randn(5, 1, 16, dtype=torch.float64)
    >>> bool(torch.allclose(net(x), x))
    True
    """
    filters = as_matrix(filters, "filters")
    whole_number(levels, "levels", least=1)
    whole_number(dims, "dims", least=1, most=2)
    one_of(skips, "skips", SKIPS[1:])
    n, q = filters.shape
    dual = dual_frame(filters, "filters")
    analysis, synthesis = filters.T, dual.T.flip(1) / n
    if dims == 2:
        analysis, synthesis = _products(analysis), _products(synthesis)
    paired = [torch.cat([part, -part]) for part in (analysis, synthesis)]
    widths = [(2 * q**dims) ** (level + 1) for level in range(levels)]
    count = widths[-1] ** 2 + 2 * sum(a * b for a, b in zip([1, *widths[:-1]], widths, strict=True))
    refuse_too_large(count * n**dims * filters.element_size(), "the weights of this U-net")
    net = UNet(widths, dims=dims, kernel=n, skips=skips, dtype=filters.dtype)
    with torch.no_grad():
        for p in net.parameters():
            p.zero_()
        for level, before in enumerate([1, *widths[:-1]]):
            for channel in range(before):
                own = slice(channel * len(paired[0]), (channel + 1) * len(paired[0]))
                net.down[level].weight[own, channel] = paired[0]  # type: ignore[operator]
                net.up[level].weight[channel, own] = paired[1]  # type: ignore[operator]
        for channel in range(widths[-1]):
            place = (channel, channel, *[n // 2] * dims)
            net.bottom.weight[place] = 1.0  # type: ignore[operator]
    return net.to(filters.device)


def _products(rows: Tensor) -> Tensor:
    """All products of two of the rows, `[q * q, n, n]`."""
    q, n = rows.shape
    return torch.einsum("ai,bj->abij", rows, rows).reshape(q * q, n, n)

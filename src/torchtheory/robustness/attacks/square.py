r"""Square: random search with queries alone (Andriushchenko et al. 2020).

Every query changes the perturbation in one window of the image and is kept if the margin falls. In
$L^\infty$ the window is set to $\pm\varepsilon$, one sign per channel. In $L^2$ the energy of two
windows goes into one bump in the first. Windows shrink as the search goes on. Inputs without two
last dimensions have no windows: random coordinates are changed in $L^\infty$, and intervals of them
in $L^2$.
"""

from __future__ import annotations

import math
from dataclasses import KW_ONLY, dataclass

import torch
from torch import Tensor

from torchtheory.core.checks import number_between, positive_number, whole_number
from torchtheory.core.errors import InvalidInput
from torchtheory.core.progress import track
from torchtheory.core.random import rademacher
from torchtheory.robustness.attacks.attack import Attack, Best, Region, signed, slack
from torchtheory.robustness.attacks.balls import as_norm, lengths
from torchtheory.robustness.attacks.victim import Victim

#: Shares of a search, of 10,000 queries, after which the windows have half the area.
_HALVINGS = (10, 50, 200, 500, 1000, 2000, 4000, 6000, 8000)


@dataclass(frozen=True)
class Square(Attack):
    r"""Random search that never takes a gradient, so that no gradient can mislead it.

    Costs `max_queries` queries at most; a sample that is fooled leaves.

    Attributes:
        radius: $\varepsilon$.
        max_queries: per sample, beyond the one for the input itself.
        share: of the pixels that the first windows cover.
        stop_when_fooled: whether a sample leaves as soon as the model errs on it.

    >>> net = torch.nn.Linear(2, 2, bias=False)
    >>> _ = net.weight.data.copy_(torch.tensor([[1.0, 0.0], [0.0, 1.0]]))
    >>> found = Square(0.31, 100)(net, torch.tensor([[1.0, 0.4]]), torch.tensor([0]))
    >>> bool(found.success), int(found.gradients)
    (True, 0)
    """

    radius: float
    max_queries: int = 5000
    _: KW_ONLY
    share: float = 0.8
    stop_when_fooled: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        positive_number(self.radius, "radius")
        whole_number(self.max_queries, "max_queries", least=1)
        number_between(self.share, "share", 0, 1, closed="right")
        if self.norm == "1":
            raise InvalidInput("Square searches in norm 'inf' or '2', not '1': use PGD or FAB")

    @property
    def _limit(self) -> float:
        return slack(self.radius)

    def _start(self, victim: Victim, clean: Tensor, fooled: Tensor) -> Best:
        return Best(victim.x.clone(), fooled, clean.clone(), self.stop_when_fooled)

    @torch.no_grad()
    def search(self, victim: Victim, best: Best, generator: torch.Generator) -> None:
        goal = signed(self.goal(victim.task), self.targeted)
        rows = torch.arange(len(victim.x), device=victim.x.device)
        if self.stop_when_fooled:
            rows = rows[~best.fooled]
        if not len(rows):
            return
        shape, count = victim.x.shape[1:], len(rows)
        x, y = _as_images(victim.x[rows]), victim.y[rows]
        propose = self._boxes if as_norm(self.norm) == "inf" else self._bumps
        region = Region(x, self.radius, as_norm(self.norm), self.box)
        trial = self._first(region, generator)
        points = trial.clone()
        values, asked = torch.full_like(best.values[rows], -math.inf), 0
        for k in track(range(self.max_queries), "square"):
            if k:
                trial = propose(region, points, k, len(shape), generator)
            scores = victim.run(trial.reshape(count, *shape))
            asked += 1
            found = goal(scores, y)
            better = found > values
            if not bool(better.any()):
                continue
            places = better.nonzero().flatten()
            values[places] = found[places]
            points[places] = trial[places]
            if not self.stop_when_fooled:
                continue
            fooled = victim.fooled(scores, rows)
            if bool(fooled.any()):
                victim.count(rows, queries=asked)
                best.offer(trial.reshape(count, *shape), fooled, found, rows)
                left = (~fooled).nonzero().flatten()
                rows, points, values = rows[left], points[left], values[left]
                region, y = region.at(left), y[left]
                asked, count = 0, len(rows)
                if not count:
                    return
        victim.count(rows, queries=asked)
        last = points.reshape(count, *shape)
        best.offer(last, victim.fooled(victim.scores(last, rows), rows), values, rows)

    def _first(self, region: Region, generator: torch.Generator) -> Tensor:
        """Stripes in L inf, and in L2 a grid of bumps with random signs."""
        x = region.x
        n, c, h, w = x.shape
        if self.norm == "inf":
            signs = rademacher(n, c, 1, w, generator=generator, dtype=x.dtype, device=x.device)
            return torch.where(signs > 0, region.upper, region.lower)
        size = max(w // 5, 1)
        tall = min(size, h)
        across = torch.zeros_like(x)
        bump = _bump(tall, size, x, generator)
        for top in range(0, h - tall + 1, tall):
            for left in range(0, w - size + 1, size):
                signs = rademacher(n, c, 1, 1, generator=generator, dtype=x.dtype, device=x.device)
                across[:, :, top : top + tall, left : left + size] = bump * signs
        return region.moved(across * (self.radius / lengths(across, "2")).reshape(-1, 1, 1, 1))

    def _area(self, k: int) -> float:
        """Share of the pixels that a window covers at query k."""
        done = k / self.max_queries * 10_000
        return self.share * 0.5 ** sum(done > place for place in _HALVINGS)

    def _boxes(
        self,
        region: Region,
        points: Tensor,
        k: int,
        dimensions: int,
        generator: torch.Generator,
    ) -> Tensor:
        x = region.x
        n, c, h, w = x.shape
        trial = points.clone()
        if dimensions == 1:
            count = max(1, round(self._area(k) * w))
            order = torch.randperm(w, generator=generator, device=generator.device)
            places = order[:count].to(x.device)
            up = _flips(n, 1, 1, count, generator).to(x.device)
            low, high = region.lower[..., places], region.upper[..., places]
            trial[..., places] = torch.where(up, high, low)
        else:
            size = min(max(1, round((self._area(k) * h * w) ** 0.5)), h, w)
            here = _window(size, size, h, w, generator)
            up = _flips(n, c, 1, 1, generator).to(x.device)
            trial[here] = torch.where(up, region.upper[here], region.lower[here])
        return trial

    def _bumps(
        self,
        region: Region,
        points: Tensor,
        k: int,
        dimensions: int,
        generator: torch.Generator,
    ) -> Tensor:
        x = region.x
        n, c, h, w = x.shape
        side = max(3, round((self._area(k) * h * w) ** 0.5))
        tall = min(side, h)
        wide = min(max(1, side if dimensions > 1 else side * side), w)

        first = _window(tall, wide, h, w, generator)
        second = _window(tall, wide, h, w, generator)
        delta = points - x
        unused = (self.radius**2 - lengths(delta, "2").square()).clamp_min(0.0)
        both = torch.zeros_like(x)
        both[first] = 1.0
        both[second] = 1.0
        energy = (delta * both).square().sum((2, 3), keepdim=True)
        signs = rademacher(n, c, 1, 1, generator=generator, dtype=x.dtype, device=x.device)
        window = signs * _bump(tall, wide, x, generator) + _unit(delta[first])
        delta[second] = 0.0
        delta[first] = _unit(window) * (energy + unused.reshape(-1, 1, 1, 1) / c).sqrt()
        # a bump may be lost at the ends of the box; what is left is as long as it may be
        size = lengths(delta, "2").clamp_min(1e-12)
        factor = (self.radius / size).clamp_max(1.0).reshape(-1, 1, 1, 1)
        return region.moved(delta * factor)


def _as_images(x: Tensor) -> Tensor:
    """Any inputs as `[n, channels, height, width]`; rows have height 1."""
    if x.ndim == 2:
        return x[:, None, None]
    height, width = x.shape[-2:]
    return x.reshape(len(x), -1, height, width)


def _window(
    tall: int, wide: int, h: int, w: int, generator: torch.Generator
) -> tuple[slice, slice, slice, slice]:
    """A random window of images, the same for all of them."""
    a, b = torch.rand(2, generator=generator, device=generator.device).tolist()
    top, left = int(a * (h - tall + 1)), int(b * (w - wide + 1))
    return slice(None), slice(None), slice(top, top + tall), slice(left, left + wide)


def _flips(a: int, b: int, c: int, d: int, generator: torch.Generator) -> Tensor:
    """Fair coins."""
    return torch.rand(a, b, c, d, generator=generator, device=generator.device) < 0.5


def _unit(window: Tensor) -> Tensor:
    size = window.square().sum((2, 3), keepdim=True).sqrt()
    return torch.where(size > 0, window / size.clamp_min(1e-30), 0.0)


def _bump(tall: int, wide: int, like: Tensor, generator: torch.Generator) -> Tensor:
    """Two heaps of opposite sign, `[tall, wide]`, of norm 1; higher in their middles."""

    def heap(a: int, b: int) -> Tensor:
        depth = torch.minimum(_depth(a, like)[:, None], _depth(b, like)[None])
        if a == 1:
            depth = _depth(b, like)[None]
        n = float(depth.max())
        steps = torch.arange(int(n) + 1, dtype=like.dtype, device=like.device)
        heights = (1 / (n + 1 - steps).square()).cumsum(0)
        return heights[depth.long()]

    turned = bool(torch.randint(2, (1,), generator=generator, device=generator.device))
    if tall == 1 or (wide > 1 and not turned):
        half = wide // 2
        parts = [heap(tall, half)] if half else []
        found = torch.cat([*parts, -heap(tall, wide - half)], 1)
    else:
        half = tall // 2
        found = torch.cat([heap(half, wide), -heap(tall - half, wide)], 0)
    unit: Tensor = found / found.norm()
    return unit


def _depth(size: int, like: Tensor) -> Tensor:
    """Distance of each place from the nearer end."""
    place = torch.arange(size, dtype=like.dtype, device=like.device)
    return torch.minimum(place, size - 1 - place)

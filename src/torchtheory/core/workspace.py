"""Memory that is worked in again and again."""

from __future__ import annotations

import math
from collections.abc import Hashable

import torch
from torch import Tensor


class Workspace:
    """Memory that one piece after the other is worked out in, so that caches hold it.

    A new tensor of some megabytes is a new part of the machine's memory every time, which takes as
    long as several passes over it. Of one thread: two must not share a workspace.

    Args:
        like: a tensor of the precision and on the device that it is for.

    >>> space = Workspace(torch.zeros(()))
    >>> space.room("layer", "output", (2, 3)).shape
    torch.Size([2, 3])
    """

    def __init__(self, like: Tensor) -> None:
        self._like = like.new_empty(0)  # its kind, and not its numbers
        self._held: dict[tuple[Hashable, str], Tensor] = {}
        self._views: dict[tuple[Hashable, str], dict[tuple[int, ...], Tensor]] = {}

    def room(self, owner: Hashable, use: str, shape: tuple[int, ...]) -> Tensor:
        """A tensor for one use; what the last piece left is still in it, and zeros at first."""
        views = self._views.setdefault((owner, use), {})
        if shape not in views:
            size = math.prod(shape)
            held = self._held.get((owner, use))
            if held is None or len(held) < size:
                views.clear()  # of what was too small
                self._held.pop((owner, use), None)
                with torch.inference_mode(False):  # to be written to also when that is over
                    held = self._held[owner, use] = self._like.new_zeros(size)
            views[shape] = held[:size].view(shape)
        return views[shape]

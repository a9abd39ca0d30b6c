r"""The average of a network over a group, which is equivariant: the Reynolds operator.

$$\bar f(x)=\frac1{|G|}\sum_{g\in G}g^{-1}f(gx).$$

It is the orthogonal projection onto the equivariant functions in $L^2(\mu)$ for every $\mu$ that
the group leaves as it is, so $\|f-\bar f\|$ is the distance to them and no equivariant network
fits $f$ better than $\bar f$ does.
"""

from __future__ import annotations

from torch import Tensor, nn

from torchtheory.core.checks import as_module, whole_number
from torchtheory.core.errors import InvalidInput, ShapeMismatch, UnsupportedModel
from torchtheory.equivariance.actions import Actions, Group, as_group
from torchtheory.equivariance.layouts import act, act_back, input_layout
from torchtheory.equivariance.outputs import output_layout, refuse_unknown_output


class GroupAverage(nn.Module):
    """A module whose output is the mean over a group; see `group_average`.

    Attributes:
        model: the module that is averaged.
        group: the group.
        on_output: what its elements do to outputs.
        most: the largest group that is summed over.
    """

    def __init__(
        self,
        model: nn.Module,
        group: Group | Actions,
        on_output: str,
        stride: int | None,
        most: int,
    ) -> None:
        super().__init__()
        self.model = model
        self.group = group
        self.on_output = on_output
        self.stride = stride
        self.most = most

    def forward(self, x: Tensor) -> Tensor:
        if isinstance(self.group, Actions):
            return self._average_of_actions(x, self.group)
        before = input_layout(self.group, x.shape)
        count = self.group.order(before[0].grid)
        if count > self.most:
            raise InvalidInput(
                f"the {self.group.name} of a grid of {before[0].grid} are {count:.3g}, and an "
                f"average is over {self.most:,} at most: take a subgroup, or raise most="
            )
        total: Tensor | None = None
        after = None
        for element in self.group.elements(before[0].grid):
            moved = act(self.group, element, x, before)
            assert moved is not None  # the input's own grid
            y = self.model(moved)
            if not isinstance(y, Tensor):
                raise UnsupportedModel(
                    f"the model returns {type(y).__name__}; wrap it so that it returns one tensor"
                )
            if after is None:
                after, _ = output_layout(self.group, x.shape, y.shape, self.on_output, self.stride)
            back = act_back(self.group, element, y, after)
            if back is None:
                raise ShapeMismatch(
                    f"{self.group.label(element)} has no inverse on the outputs, whose grid is "
                    "coarser: take the subgroup that their stride divides"
                )
            total = back if total is None else total + back
        assert total is not None
        return total / count

    def _average_of_actions(self, x: Tensor, pair: Actions) -> Tensor:
        total: Tensor = self.model(x)
        for element in pair.elements:
            y = self.model(pair.on_input(element, x.clone()))  # which it may write to
            if pair.on_output is not None:
                assert pair.inverse is not None  # group_average asks for it
                y = pair.on_output(pair.inverse(element), y)
            total = total + y
        return total / (1 + len(pair.elements))

    def extra_repr(self) -> str:
        return f"over {self.group!r}"


def group_average(
    model: nn.Module,
    group: str | Group | Actions,
    *,
    on_output: str = "auto",
    stride: int | None = None,
    most: int = 10_000,
) -> GroupAverage:
    r"""A module that is exactly equivariant: $\frac1{|G|}\sum_g g^{-1}f(gx)$.

    It holds the module that is given, not a copy, so that it can be trained.

    Args:
        model: a module of one tensor.
        group: a finite group. Of `Actions` all elements but the identity, with their inverses.
        on_output, stride: as in `measure_equivariance`.
        most: the largest group that is summed over.

    Time: one forward pass for each element. Memory: that of one pass.

    >>> import torch
    >>> first = nn.Sequential(nn.Flatten(), nn.Linear(4, 1, bias=False))
    >>> _ = first[1].weight.data.copy_(torch.tensor([[4.0, 0.0, 0.0, 0.0]]))
    >>> group_average(first, "rotations")(torch.tensor([[[[1.0, 2.0], [3.0, 4.0]]]]))
    tensor([[10.]], grad_fn=<DivBackward0>)
    """
    as_module(model)
    group = as_group(group)
    if isinstance(group, Group) and not group.invertible:
        raise InvalidInput(
            f"{group.name} are no group, what leaves the image is lost: take circular shifts"
        )
    if isinstance(group, Group) and getattr(group, "most", None) is not None:
        raise InvalidInput(f"{group.name} are no group: two of them make a larger one")
    if isinstance(group, Actions) and group.on_output is not None and group.inverse is None:
        raise InvalidInput(
            "an average needs the inverse of every element: give Actions(..., inverse=)"
        )
    most = whole_number(most, "most", least=1)
    return GroupAverage(model, group, refuse_unknown_output(on_output), stride, most)

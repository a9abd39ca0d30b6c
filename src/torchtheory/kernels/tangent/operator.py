r"""The Jacobian of a model and its tangent kernel as operators: products, and nothing formed."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from torchtheory.core.errors import ModelRaised, ShapeMismatch, UnsupportedModel
from torchtheory.core.memory import bytes_of
from torchtheory.kernels.tangent.derivatives import Differentiable, Functional
from torchtheory.kernels.tangent.tiles import blocks
from torchtheory.linalg.operators import Action, LinearOperator
from torchtheory.models.model import Parameters, flatten, global_randomness_kept
from torchtheory.tracing.recorder import record_function
from torchtheory.tracing.written_out import has_steps


def jacobian_operator(
    model: nn.Module | Functional,
    x: Tensor,
    *,
    parameters: Parameters | None = None,
    only: Sequence[str] | None = None,
    memory: str | int = "2GiB",
) -> LinearOperator:
    r"""The Jacobian $J \in \mathbb{R}^{NC \times P}$ of a model's outputs on `x [N, ...]`.

    Rows are the outputs, sample by sample; columns the entries of the parameters, one after the
    other. A product costs a few forward passes over the samples, in the memory of a chunk of them.

    Args:
        model: as for `empirical_ntk`.
        x: inputs `[N, ...]`.
        parameters: the point; the model's own parameters unless given.
        only: names of parameters or modules to differentiate by; the trainable ones unless given.
        memory: about how much to use besides the model and the inputs.

    >>> J = jacobian_operator(nn.Linear(2, 1), torch.tensor([[1.0, 2.0], [3.0, 0.0]]))
    >>> J.to_dense()
    tensor([[1., 2., 1.],
            [3., 0., 1.]])
    """
    with global_randomness_kept():
        made = Differentiable(model, x, parameters=parameters, only=only)
        made.random_gradient(x[:1])
        recurrent = _is_recurrent(made, x[:1])
    free = {k: made.point[k] for k in made.names}
    # values, their derivatives and as much again for what is freed late
    chunk = max(1, bytes_of(memory) // (4 * max(1, made.saved_bytes)))
    parts = blocks(len(x), chunk)

    def on(part: slice) -> Callable[[Parameters], Tensor]:
        few = x[part]
        # recurrent layers in steps, which can be differentiated twice
        with global_randomness_kept():
            given = (made.function, made.point, few)
            network = record_function(*given, known=_whole) if recurrent else None

        def outputs(values: Parameters) -> Tensor:
            if network is not None:
                out: Tensor = network.replay(few, parameters=values)
                return out.reshape(-1)
            with global_randomness_kept():
                return made.function({**made.point, **values}, few).reshape(-1)

        return outputs

    def pull_back(part: slice) -> Action:
        """The transpose of the Jacobian on some samples."""
        pull = torch.func.vjp(on(part), free)[1]
        return lambda u: flatten(pull(u)[0])

    def push_forward(part: slice) -> Action:
        """The Jacobian on some samples, as the transpose of its transpose.

        Forward differentiation would do with fewer operations, but not every one has it, and for
        the padding row of an embedding it disagrees with the gradient.
        """
        zero = x.new_zeros((part.stop - part.start) * made.classes, dtype=made.dtype)
        push = torch.func.vjp(pull_back(part), zero)[1]
        return lambda v: push(v)[0]

    # one chunk: its graphs are recorded once and serve every product
    forward = push_forward(parts[0]) if len(parts) == 1 else None
    backward = pull_back(parts[0]) if len(parts) == 1 else None

    def product(v: Tensor) -> Tensor:
        if forward is not None:
            return forward(v)
        return torch.cat([push_forward(part)(v) for part in parts])

    def transposed(u: Tensor) -> Tensor:
        if backward is not None:
            return backward(u)
        rows = u.view(len(x), made.classes)
        total = torch.zeros_like(flatten(free))
        for part in parts:
            total += pull_back(part)(rows[part].reshape(-1))
        return total

    return LinearOperator(
        (len(x) * made.classes, sum(p.numel() for p in free.values())),
        product,
        transposed,
        dtype=made.dtype,
        device=x.device,
    )


def _whole(name: str) -> bool:
    """Whether an operation stays as it is."""
    return not has_steps(name)


def _is_recurrent(model: Differentiable, x: Tensor) -> bool:
    """Whether the model has recurrent layers, and is made of operations that can be recorded."""
    try:
        network = record_function(model.function, model.point, x)
    except (UnsupportedModel, ModelRaised):
        return False
    return not network.decisions and any(has_steps(op.name) for op in network)


def ntk_operator(
    model: nn.Module | Functional,
    x1: Tensor,
    x2: Tensor | None = None,
    *,
    parameters: Parameters | None = None,
    only: Sequence[str] | None = None,
    memory: str | int = "2GiB",
) -> LinearOperator:
    r"""The tangent kernel $\Theta = J(x_1) J(x_2)^\top$ by its products, never formed.

    For conjugate gradients, eigenvalues and traces where $(NC)^2$ numbers are too many. Its
    rows and columns are outputs, sample by sample: `empirical_ntk(...)` of shape
    `[N1, N2, C, C]` is this operator with axes 1 and 2 exchanged and the pairs joined.

    Args:
        model: as for `empirical_ntk`.
        x1: inputs `[N1, ...]`.
        x2: inputs `[N2, ...]`; `x1` unless given.
        parameters: the point; the model's own parameters unless given.
        only: names of parameters or modules to differentiate by; the trainable ones unless given.
        memory: about how much to use besides the model and the inputs.

    >>> ntk_operator(nn.Linear(2, 1), torch.tensor([[1.0, 2.0], [3.0, 0.0]])).to_dense()
    tensor([[ 6.,  4.],
            [ 4., 10.]])
    """
    left = jacobian_operator(model, x1, parameters=parameters, only=only, memory=memory)
    if x2 is None:
        right = left.T
        return LinearOperator(
            (left.shape[0], left.shape[0]),
            lambda v: left @ (right @ v),
            symmetric=True,
            dtype=left.dtype,
            device=left.device,
        )
    right = jacobian_operator(model, x2, parameters=parameters, only=only, memory=memory)
    if right.dtype != left.dtype or right.device != left.device:
        raise ShapeMismatch(
            f"x1 gives {left.dtype} on {left.device}, x2 {right.dtype} on {right.device}"
        )
    return left @ right.T

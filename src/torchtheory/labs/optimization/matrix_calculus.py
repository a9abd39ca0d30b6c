"""The table of derivatives by matrices, every row against automatic differentiation."""

from __future__ import annotations

from functools import partial

from torch import Tensor

from torchtheory.labs.engine import Run, lab
from torchtheory.primer.differences import directional_difference
from torchtheory.primer.matrix_calculus import (
    Letters,
    MatrixDerivative,
    derivative_error,
    draw_letters,
    matrix_derivatives,
    verify_derivative,
)


@lab(
    "matrix-calculus",
    room="optimization",
    covers=["L-146"],
    title="Fourteen derivatives by vectors and matrices, each checked on random shapes",
    errata=["trace-gradient-shape"],
    full={"trials": 200},
)
def matrix_calculus(run: Run, trials: int = 8) -> None:
    """Each row of the table gives a number as a function of a matrix, and its gradient. Both are
    evaluated at random matrices of random shapes; the gradient is compared with automatic
    differentiation, and with a difference quotient along a random direction. Look at the table.

    Args:
        trials: random shapes for each derivative.
    """
    table = matrix_derivatives()
    errors = {name: verify_derivative(name, trials=trials, generator=run.generator) for name in table}
    symmetric_only = table["symmetric-form"]
    crooked = {"A": run.randn(4, 4), "x": run.randn(4)}
    says = run.states("L-146", r"\text{the closed form is the gradient, in every row and every shape}")
    says.equal(list(errors.values()), within=1e-10, where="largest difference from automatic differentiation")
    says.fails("the row 2Ax for symmetric A, used with one that is not", derivative_error(symmetric_only, crooked))
    quotients, slopes, transposed = [], [], []
    for row in table.values():
        letters = draw_letters(row, {"k": 3, "m": 3, "n": 3}, run.generator)
        way = run.randn(*letters[row.by].shape)

        at = partial(value_at, row, letters)
        quotients.append(float(directional_difference(at, letters[row.by], way)))
        slopes.append(float((row.slope(letters) * way).sum()))
        transposed.append(float((row.slope(letters).T * way).sum()) if way.ndim == 2 else 0.0)
    says = run.states("L-146", r"\langle\nabla f(X),D\rangle=\lim_{t\to0}(f(X+tD)-f(X-tD))/2t")
    says.equal(quotients, slopes, 1e-6)
    says.fails("the gradient laid out transposed", quotients, promised=transposed)
    X, A = run.randn(2, 3), run.randn(3, 2)
    run.refutes(
        "trace-gradient-shape",
        r"X\in\mathbb R^{m\times n},\ A\in\mathbb R^{n\times m}: \nabla_X\operatorname{tr}"
        r"(AX^\top)=A \text{ has the shape of } X",
    ).equal(
        list(A.shape), list(X.shape), where="m = 2, n = 3: the product AXᵀ of two 3 x 2 matrices is not defined either"
    )
    run.table(
        "derivatives",
        ["row", "function", "by", "gradient", "largest error"],
        [(r.name, f"${r.expression}$", f"${r.by}$", f"${r.gradient}$", errors[r.name]) for r in table.values()],
        caption="Gradients of numbers by vectors and matrices",
    )


def value_at(row: MatrixDerivative, letters: Letters, z: Tensor) -> Tensor:
    """The row's function with the letter it is differentiated by set to `z`."""
    return row.value({**letters, row.by: z})

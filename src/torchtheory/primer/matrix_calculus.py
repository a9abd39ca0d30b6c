r"""A table of derivatives by matrices, each row a function and its gradient in closed form.

The gradient of a number by a matrix has the shape of the matrix. Every row is a fact that can be
checked on matrices of any size: `verify_derivative` compares it with automatic
differentiation. Source: Foundations of Deep Learning, (6.1)-(6.7), (6.11), (6.21)-(6.23).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from torchtheory.core.checks import as_matrix, as_vector, whole_number
from torchtheory.core.errors import InvalidInput, ShapeMismatch, UnknownName
from torchtheory.core.random import RandomSource, as_generator, gaussian

#: Matrices by letter.
Letters = Mapping[str, Tensor]


@dataclass(frozen=True, slots=True)
class MatrixDerivative:
    r"""One row of the table.

    Attributes:
        name: what to call it.
        expression: the function, LaTeX.
        by: the letter it is differentiated by.
        gradient: the gradient, LaTeX.
        shapes: letters to their sizes, as letters: `{"A": "kn"}` is $k\times n$; a vector
            has one size.
        symmetric: letters that must be symmetric.
        value: the function.
        slope: the gradient.
    """

    name: str
    expression: str
    by: str
    gradient: str
    shapes: Mapping[str, str]
    value: Callable[[Letters], Tensor]
    slope: Callable[[Letters], Tensor]
    symmetric: tuple[str, ...] = ()


def _outer(a: Tensor, b: Tensor) -> Tensor:
    return a[:, None] * b


def _derivatives() -> list[MatrixDerivative]:
    row = MatrixDerivative
    return [
        row("squared-norm", r"\|X\|_F^2", "X", r"2X", {"X": "mn"},
            lambda m: m["X"].square().sum(), lambda m: 2 * m["X"]),
        row("trace", r"\operatorname{tr}(AX)", "X", r"A^\top", {"A": "nm", "X": "mn"},
            lambda m: (m["A"] @ m["X"]).trace(), lambda m: m["A"].T),
        row("trace-transposed", r"\operatorname{tr}(AX^\top)", "X", r"A", {"A": "mn", "X": "mn"},
            lambda m: (m["A"] @ m["X"].T).trace(), lambda m: m["A"]),
        row("symmetric-form", r"x^\top Ax,\ A=A^\top", "x", r"2Ax", {"A": "nn", "x": "n"},
            lambda m: m["x"] @ m["A"] @ m["x"], lambda m: 2 * m["A"] @ m["x"], ("A",)),
        row("quadratic-form", r"x^\top Ax", "x", r"(A+A^\top)x", {"A": "nn", "x": "n"},
            lambda m: m["x"] @ m["A"] @ m["x"], lambda m: (m["A"] + m["A"].T) @ m["x"]),
        row("quadratic-form-by-matrix", r"x^\top Ax", "A", r"xx^\top", {"A": "nn", "x": "n"},
            lambda m: m["x"] @ m["A"] @ m["x"], lambda m: _outer(m["x"], m["x"])),
        row("image-norm", r"x^\top A^\top Ax", "x", r"2A^\top Ax", {"A": "mn", "x": "n"},
            lambda m: (m["A"] @ m["x"]).square().sum(),
            lambda m: 2 * m["A"].T @ m["A"] @ m["x"]),
        row("image-norm-by-matrix", r"x^\top A^\top Ax", "A", r"2Axx^\top", {"A": "mn", "x": "n"},
            lambda m: (m["A"] @ m["x"]).square().sum(),
            lambda m: 2 * _outer(m["A"] @ m["x"], m["x"])),
        row("least-squares", r"(y-Ax)^\top(y-Ax)", "A", r"-2(y-Ax)x^\top",
            {"A": "mn", "x": "n", "y": "m"},
            lambda m: (m["y"] - m["A"] @ m["x"]).square().sum(),
            lambda m: -2 * _outer(m["y"] - m["A"] @ m["x"], m["x"])),
        row("bilinear-form", r"a^\top Xb", "X", r"ab^\top", {"X": "mn", "a": "m", "b": "n"},
            lambda m: m["a"] @ m["X"] @ m["b"], lambda m: _outer(m["a"], m["b"])),
        row("weighted-form", r"a^\top X^\top DXb", "X", r"D^\top Xab^\top+DXba^\top",
            {"X": "mn", "D": "mm", "a": "n", "b": "n"},
            lambda m: m["a"] @ m["X"].T @ m["D"] @ m["X"] @ m["b"],
            lambda m: _outer(m["D"].T @ m["X"] @ m["a"], m["b"])
            + _outer(m["D"] @ m["X"] @ m["b"], m["a"])),
        row("trace-of-three", r"\operatorname{tr}(ABC)", "B", r"A^\top C^\top",
            {"A": "km", "B": "mn", "C": "nk"},
            lambda m: (m["A"] @ m["B"] @ m["C"]).trace(), lambda m: m["A"].T @ m["C"].T),
        row("trace-of-three-transposed", r"\operatorname{tr}(CB^\top A^\top)", "B", r"A^\top C",
            {"A": "km", "B": "mn", "C": "kn"},
            lambda m: (m["C"] @ m["B"].T @ m["A"].T).trace(), lambda m: m["A"].T @ m["C"]),
        row("quadratic-trace", r"\operatorname{tr}(ABCB^\top A^\top)", "B",
            r"A^\top ABC^\top+A^\top ABC", {"A": "km", "B": "mn", "C": "nn"},
            lambda m: (m["A"] @ m["B"] @ m["C"] @ m["B"].T @ m["A"].T).trace(),
            lambda m: m["A"].T @ m["A"] @ m["B"] @ (m["C"] + m["C"].T)),
    ]  # fmt: skip


def matrix_derivatives() -> dict[str, MatrixDerivative]:
    """The table, by name.

    >>> row = matrix_derivatives()["quadratic-form"]
    >>> row.expression, row.by, row.gradient
    ('x^\\\\top Ax', 'x', '(A+A^\\\\top)x')
    """
    return {row.name: row for row in _derivatives()}


def draw_letters(
    row: MatrixDerivative, sizes: Mapping[str, int], generator: RandomSource = None
) -> dict[str, Tensor]:
    """Gaussian matrices of the shapes a row asks for, in double precision.

    >>> row = matrix_derivatives()["trace"]
    >>> {k: list(v.shape) for k, v in draw_letters(row, {"m": 2, "n": 3}).items()}
    {'A': [3, 2], 'X': [2, 3]}
    """
    source = as_generator(generator)
    for size in sorted({s for shape in row.shapes.values() for s in shape}):
        if size not in sizes:
            raise InvalidInput(f"the row {row.name} needs a number for the size {size}")
        whole_number(sizes[size], f"the size {size}", least=1)
    made = {}
    for letter, shape in row.shapes.items():
        value = gaussian(*(sizes[s] for s in shape), generator=source, dtype=torch.float64)
        made[letter] = (value + value.T) / 2 if letter in row.symmetric else value
    return made


def derivative_error(row: MatrixDerivative, letters: Letters) -> float:
    """Largest entry of the closed form minus automatic differentiation, at given matrices.

    >>> row = matrix_derivatives()["squared-norm"]
    >>> derivative_error(row, {"X": torch.ones(2, 3)})
    0.0
    """
    _check_letters(row, letters)
    leaf = letters[row.by].detach().clone().requires_grad_()
    with torch.enable_grad():
        value = row.value({**letters, row.by: leaf})
    (exact,) = torch.autograd.grad(value, leaf)
    with torch.no_grad():
        return float((row.slope(letters) - exact).abs().max())


def _check_letters(row: MatrixDerivative, letters: Letters) -> None:
    sizes: dict[str, int] = {}
    for letter, shape in row.shapes.items():
        if letter not in letters:
            raise InvalidInput(f"the row {row.name} needs a matrix for the letter {letter}")
        given = (as_matrix if len(shape) == 2 else as_vector)(
            letters[letter], f"the letter {letter}"
        )
        for name, size in zip(shape, given.shape, strict=True):
            if sizes.setdefault(name, size) != size:
                raise ShapeMismatch(
                    f"in the row {row.name} the size {name} is {sizes[name]} and, for the letter "
                    f"{letter}, {size}"
                )


def verify_derivative(name: str, *, trials: int = 20, generator: RandomSource = None) -> float:
    """The largest error of a row over matrices of random shapes from 1 to 6.

    >>> verify_derivative("least-squares") < 1e-12
    True
    """
    table = matrix_derivatives()
    if name not in table:
        raise UnknownName("matrix derivative", name, table)
    whole_number(trials, "trials", least=1)
    source = as_generator(generator)
    worst = 0.0
    for _ in range(trials):
        drawn = torch.randint(1, 7, (3,), generator=source, device=source.device).tolist()
        letters = draw_letters(table[name], dict(zip("kmn", drawn, strict=True)), source)
        worst = max(worst, derivative_error(table[name], letters))
    return worst

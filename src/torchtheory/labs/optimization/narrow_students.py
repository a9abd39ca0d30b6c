"""Minima that are not global, of students as narrow as their teacher; one more unit opens a way out."""

from __future__ import annotations

import math
from typing import Any

import torch
from scipy.optimize import minimize
from torch import Tensor

from torchtheory.labs.engine import Run, lab
from torchtheory.optimization.landscape.teacher_student import expected_square_loss

#: Near three kinds of minima: the diagonal and the rest of a block, the last column, the last row, their corner.
NEAR = ((1.0, -0.03, 0.23, 0.16, -0.66), (-0.71, 0.28, 0.0, 0.0, 1.07), (-0.75, 0.25, 0.25, 0.25, -0.75))


@lab(
    "narrow-students",
    room="optimization",
    covers=["A-52", "A-117", "A-118"],
    title="Minima that are not global, for students as narrow as their teacher; none of them survives one more unit",
    full={"teachers": 12},
    least={"teachers": 8},
)
def narrow_students(run: Run, teachers: int = 8) -> None:
    """A sum of ReLU units learns a sum of orthonormal ReLU units on Gaussian inputs; the loss is exact.

    Descent inside a family of symmetric students comes to points where the gradient of the whole network
    vanishes, its Hessian is positive, and the loss is not 0. Splitting a unit in two changes nothing in
    the function and makes each of them a saddle. Then units $z^k$: they span a space of a known dimension,
    and from that width on the outer weights alone, in which the loss is convex, lead down to 0 from every
    start. Look at the least eigenvalues before and after the split.

    Args:
        teachers: hidden units of the teacher, and of the student.
    """
    stuck(run, teachers)
    spans(run)


def symmetric(numbers: Tensor, k: int) -> Tensor:
    """A student `[k, k]` that treats all teachers but the last alike."""
    last = torch.zeros(k, dtype=torch.float64)
    last[-1] = 1.0
    others = 1 - last
    diagonal, rest, column, row, corner = numbers.unbind()
    block: Tensor = rest * torch.outer(others, others) + (diagonal - rest) * torch.diag(others)
    edges: Tensor = column * torch.outer(others, last) + row * torch.outer(last, others)
    return block + edges + corner * torch.outer(last, last)


def descend(start: Tensor, teacher: Tensor) -> Tensor:
    """To the end of descent inside the family (BFGS), then Newton's steps in all weights."""
    k = len(teacher)

    def value_and_slope(flat: Any) -> tuple[float, Any]:
        point = torch.from_numpy(flat).requires_grad_()
        loss = expected_square_loss(symmetric(point, k), teacher)
        (slope,) = torch.autograd.grad(loss, point)
        return float(loss.detach()), slope.numpy().copy()

    end = minimize(value_and_slope, start.numpy(), jac=True, method="BFGS", options={"gtol": 1e-8}).x
    student = symmetric(torch.from_numpy(end), k)
    for _ in range(2):
        student = student - torch.linalg.solve(
            hessian_at(student, teacher), slope_at(student, teacher).flatten()
        ).reshape(k, k)
    return student


def slope_at(student: Tensor, teacher: Tensor) -> Tensor:
    found: Tensor = torch.func.grad(lambda w: expected_square_loss(w, teacher))(student)
    return found


def hessian_at(student: Tensor, teacher: Tensor) -> Tensor:
    bent: Tensor = torch.func.hessian(lambda w: expected_square_loss(w, teacher))(student)
    return bent.reshape(student.numel(), -1)


def stuck(run: Run, k: int) -> None:
    teacher = torch.eye(k).double()
    ends = [descend(torch.tensor(near).double() + 0.02 * run.randn(5), teacher) for near in NEAR]
    begin = run.randn(k, k) / math.sqrt(k)

    def least_curvature(student: Tensor) -> float:
        return float(torch.linalg.eigvalsh(hessian_at(student, teacher))[0])

    def split(student: Tensor) -> Tensor:
        """The same function with the last unit in two halves, moved apart by what rounding needs."""
        halves = torch.cat([student[-1:] / 2 + 1e-7 * run.randn(1, k), student[-1:] / 2])
        return torch.cat([student[:-1], halves])

    says = run.states("A-52", r"\nabla L=0 \text{ at three students that are not the teacher}")
    says.equal([float(slope_at(w, teacher).norm()) for w in ends], 0.0, 1e-9)
    says.fails("a random student", float(slope_at(begin, teacher).norm()))
    before, after = [least_curvature(w) for w in ends], [least_curvature(split(w)) for w in ends]
    says = run.states("A-52", r"\text{they are minima: least eigenvalue of the Hessian} \ge0")
    says.at_least(before, 0.0, where=f"{k * k} weights")
    says.fails("one unit more: the last one split in two, the same function", after)
    says = run.states("A-52", r"\text{and not global: } L \text{ over its least value there, } >0")
    heights = torch.stack([expected_square_loss(w, teacher) for w in ends])
    says.above(heights, 1e-3, loose="how high such minima lie is not known in closed form")
    says.fails("the teacher itself", float(expected_square_loss(teacher, teacher)))
    inputs = run.randn(200_000, k)
    gap = (inputs @ ends[0].T).relu().sum(1) - inputs.relu().sum(1)
    height = float(heights[0])
    says = run.states("A-52", r"\tfrac12\mathbb E(\Phi_w-\Phi_v)^2 \text{ in closed form}")
    says.mean(
        gap.square() / 2, height, against=(0.0, height / 2, 2 * height), confidence=0.9999, where="200,000 inputs"
    )
    says.fails(
        "inputs with mean 1/2", (((inputs + 0.5) @ ends[0].T).relu().sum(1) - (inputs + 0.5).relu().sum(1)).square() / 2
    )
    run.table(
        "minima",
        ("loss", "least eigenvalue", "after a unit is split"),
        list(zip(heights.tolist(), before, after, strict=True)),
    )
    path = torch.linspace(0, 1, 41).double()
    run.curves(
        "segments",
        path,
        {
            f"minimum {i + 1}": torch.stack([expected_square_loss(w + t * (teacher - w), teacher) for t in path])
            for i, w in enumerate(ends)
        },
        axes=("on the way from the minimum to the teacher", "loss"),
        caption="The loss on straight lines from three minima to the global one: it rises before it falls.",
    )


def spans(run: Run) -> None:
    cases = [(2, 2), (3, 2), (4, 2), (3, 3), (2, 5)]

    def rank(d: int, power: int, activation: str = "power") -> int:
        units, points = run.randn(60, d), run.randn(80, d)
        values = points @ units.T
        return int(torch.linalg.matrix_rank(values**power if activation == "power" else torch.tanh(values), rtol=1e-9))

    dimensions = [math.comb(d + p - 1, p) for d, p in cases]
    says = run.states("A-118", r"\dim\operatorname{span}\{\langle w,\cdot\rangle^k\}=\tbinom{d+k-1}k")
    says.equal([rank(d, p) for d, p in cases], dimensions, where="(d, k) = " + ", ".join(map(str, cases)))
    says.fails("tanh units, which span no finite space", [rank(d, p, "tanh") for d, p in cases])

    def left(width: int, d: int, power: int) -> float:
        """Least mean squared loss over the outer weights, for random inner ones and a random polynomial."""
        x, goal = run.randn(200, d), run.randn(40, d)
        y = ((x @ goal.T) ** power) @ run.randn(40)
        phi = (x @ run.randn(width, d).T) ** power
        outer = torch.linalg.lstsq(phi, y[:, None], driver="gelsd").solution[:, 0]
        return float((phi @ outer - y).square().mean() / y.square().mean())

    says = run.states(
        "A-117, A-118",
        r"\text{width} \ge\tbinom{d+k-1}k: \text{ the outer weights alone reach the loss 0 from every start}",
    )
    says.equal([left(n, d, p) for (d, p), n in zip(cases, dimensions, strict=True)], 0.0, 1e-10)
    says.fails("one unit fewer", [left(n - 1, d, p) for (d, p), n in zip(cases, dimensions, strict=True)])

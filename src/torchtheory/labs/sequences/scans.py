"""Prefix scans: any bracketing gives the loop's values, in fewer steps and not in fewer operations."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from torchtheory.labs.engine import Run, lab
from torchtheory.labs.nets.comparing import gap
from torchtheory.sequences.recurrent.linear_scans import METHODS as LINEAR
from torchtheory.sequences.recurrent.linear_scans import join_affine, linear_scan
from torchtheory.sequences.recurrent.scans import METHODS, Counted, ScanMethod, associative_scan


@lab(
    "prefix-scan",
    room="sequences",
    covers=["N-75"],
    title="A linear recurrence in logarithmically many steps",
    full={"powers": list(range(1, 15)), "steps": 4096},
    least={"steps": 10, "powers": 1},  # a sequence of one step needs none
)
def prefix_scan(run: Run, powers: list[int] = [1, 2, 3, 4, 5, 6, 7, 8], steps: int = 300) -> None:  # noqa: B006
    """The recurrence z = a z + b by doubling and over a tree, against the loop.

    An associative operation may be bracketed in any way: values agree with the loop's, for real and
    complex factors, forwards and backwards, and so do gradients. An operation that is not
    associative, such as the mean of two, gives something else. Doubling takes log n steps and n log
    n operations; the tree 2 log n steps and less than 2n operations. The loop needs the fewest
    operations of all: what is saved is time on many processors.

    Args:
        powers: lengths of sequences, as powers of two.
        steps: of the sequences whose values are compared.
    """
    run.assumes(
        max(powers) >= 3,
        f"with {2 ** max(powers)} steps doubling takes no more operations than a tree: there is no gain",
    )
    values(run, steps)
    gradients(run, steps)
    counts(run, powers)


def values(run: Run, steps: int) -> None:
    a = torch.polar(run.rand(steps, 3, 4), 6 * run.rand(steps, 3, 4))
    b = torch.complex(run.randn(steps, 3, 4), run.randn(steps, 3, 4))
    start = b[0]
    wanted, back = loop(a, b, start), loop(a.flip(0), b.flip(0), start).flip(0)
    real = loop(a.real, b.real, start.real)
    says = run.states("N-75", r"z_t=a_t\odot z_{t-1}+b_t\text{, whatever the brackets}")
    says.equal(
        [gap(linear_scan(a, b, initial=start, dim=0, method=m), wanted) for m in LINEAR]
        + [gap(linear_scan(a, b, initial=start, dim=0, reverse=True, method=m), back) for m in LINEAR]
        + [gap(linear_scan(a.real, b.real, initial=start.real, dim=0, method=m), real) for m in LINEAR],
        within=1e-12,
        where=f"four methods, {steps} steps, complex and real, both directions, against the loop",
    )
    bent = loop(a.real, b.real, start.real, bend=True)
    says.fails(
        "a loop that is not linear: tanh of each state",
        [gap(linear_scan(a.real, b.real, initial=start.real, dim=0, method=m), bent) for m in LINEAR],
    )
    u, v, w = ((run.randn(50), run.randn(50)) for _ in range(3))
    says = run.states("N-75", r"(x\bullet y)\bullet w=x\bullet(y\bullet w),\ (a,b)\bullet(a',b')=(a'a,a'b+b')")
    left, right = join_affine(join_affine(u, v), w), join_affine(u, join_affine(v, w))
    says.equal([gap(p, q) for p, q in zip(left, right, strict=True)], within=1e-12, where="50 random triples")
    mean_left, mean_right = mean(mean(u[0], v[0]), w[0]), mean(u[0], mean(v[0], w[0]))
    says.fails("the mean of two, which is not associative", [gap(mean_left, mean_right)])
    x = run.randn(steps)
    says = run.states("N-75", r"e_1\bullet\dots\bullet e_t\text{ by doubling and by a tree, for associative }\bullet")
    parallel: list[ScanMethod] = ["hillis_steele", "blelloch"]
    says.equal([gap(associative_scan(torch.maximum, x, 0, method=m), x.cummax(0).values) for m in parallel])
    in_turn = associative_scan(mean, x, 0, method="sequential")
    says.fails(
        "the mean of two, against the loop", [gap(associative_scan(mean, x, 0, method=m), in_turn) for m in parallel]
    )


def gradients(run: Run, steps: int) -> None:
    a, b = run.rand(steps, 5).requires_grad_(), run.randn(steps, 5)
    weights = run.randn(steps, 5)
    (wanted,) = torch.autograd.grad((weights * loop(a, b, torch.zeros(5).double())).sum(), a)
    (found,) = torch.autograd.grad((weights * linear_scan(a, b)).sum(), a)
    says = run.states("N-75", r"\partial L/\partial b_t=\partial L/\partial z_t+a_{t+1}\,\partial L/\partial b_{t+1}")
    says.equal(gap(found, wanted), within=1e-12, where="the scan's own gradient against the loop's")
    half = steps // 2
    first = linear_scan(a[:half], b[:half])
    second = linear_scan(a[half:], b[half:], initial=first[-1].detach())
    (cut,) = torch.autograd.grad((weights * torch.cat([first, second])).sum(), a)
    says.fails("nothing is carried back over the middle", gap(cut, wanted))


def counts(run: Run, powers: list[int]) -> None:
    lengths = [2**k for k in powers]
    found = {m: [counted(m, n) for n in lengths] for m in METHODS}
    odd = [counted("hillis_steele", n) for n in (3, 5, 100)]
    says = run.states("N-75", r"\text{doubling: }\lceil\log_2n\rceil\text{ steps}")
    says.equal(
        [c.depth for c in [*found["hillis_steele"], *odd]],
        [*powers, 2, 3, 7],
        where=f"n = {lengths[0]} to {lengths[-1]}, and 3, 5, 100",
    )
    says.fails("brackets from the left", [counted("sequential", n).depth for n in [*lengths, 3, 5, 100]])
    says = run.states("N-75", r"\text{a tree: }2\log_2n-1\text{ steps and }2n-2-\log_2n\text{ operations}")
    trees = found["blelloch"]
    says.equal(
        [v for c in trees for v in (c.depth, c.work)],
        [v for k, n in zip(powers, lengths, strict=True) for v in (2 * k - 1, 2 * n - 2 - k)],
    )
    doubled = [v for c in found["hillis_steele"] for v in (c.depth, c.work)]
    says.fails("doubling", doubled)
    says = run.states("N-75", r"\text{operations}\ge n-1\text{, met by the loop}")
    says.at_least([c.work for m in METHODS for c in found[m]], [n - 1 for _ in METHODS for n in lengths])
    run.curves(
        "counts",
        lengths,
        {
            "steps, loop": [c.depth for c in found["sequential"]],
            "steps, doubling": [c.depth for c in found["hillis_steele"]],
            "steps, tree": [c.depth for c in trees],
            "operations, doubling": [c.work for c in found["hillis_steele"]],
            "operations, tree": [c.work for c in trees],
        },
        {r"$\log_2n$": [math.log2(n) for n in lengths], r"$n\log_2n$": [n * math.log2(n) for n in lengths]},
        axes=("length n", "count"),
        log="xy",
        beside=True,
        caption="Steps one after the other, and operations in all; the loop has as many of both.",
    )


def counted(method: ScanMethod, length: int) -> Counted:
    op = Counted(torch.add)
    associative_scan(op, torch.ones(length), 0, method=method)
    return op


def mean(x: Tensor, y: Tensor) -> Tensor:
    return (x + y) / 2


def loop(a: Tensor, b: Tensor, start: Tensor, *, bend: bool = False) -> Tensor:
    """The recurrence as it is written, or with tanh around it."""
    z, found = start, []
    for factor, added in zip(a, b, strict=True):
        z = factor * z + added
        z = z.tanh() if bend else z
        found.append(z)
    return torch.stack(found)

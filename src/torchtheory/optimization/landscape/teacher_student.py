r"""A sum of ReLU units that learns another one on Gaussian inputs, by its exact loss.

For $x\sim\mathcal N(0,I)$ the mean of the product of two ReLU units is known,

$$
\mathbb E\,[w\cdot x]_+[v\cdot x]_+
=\frac{\|w\|\|v\|}{2\pi}\bigl(\sin\varphi+(\pi-\varphi)\cos\varphi\bigr),
\qquad\varphi=\angle(w,v),
$$

so the squared loss of a student has no sampling error. Such landscapes have minima that are not
global when the student is as narrow as the teacher (Safran and Shamir, 2018). Source: Mathematical
Aspects of Deep Learning, section 1.1.3, after Example 1.22.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from torchtheory.core.errors import ShapeMismatch


def mean_unit_products(first: Tensor, second: Tensor) -> Tensor:
    r"""$\mathbb E\,[w_i\cdot x]_+[v_j\cdot x]_+$ for all pairs, `[..., m, k]`.

    Args:
        first: `[..., m, d]`, rows $w_i$.
        second: `[..., k, d]`, rows $v_j$.

    It can be differentiated twice, also where $w_i$ and $v_j$ are parallel.

    >>> one = torch.eye(2).double()
    >>> mean_unit_products(one, one)[0].tolist()                      # 1/2 and 1/(2π)
    [0.5, 0.15915494309189535]
    """
    inner = first @ second.transpose(-1, -2)
    sizes = first.norm(dim=-1)[..., :, None] * second.norm(dim=-1)[..., None, :]
    # the sine from the area: 1 - cos² would lose half of the digits near parallel units
    area = (sizes.square() - inner.square()).clamp_min(torch.finfo(inner.dtype).tiny).sqrt()
    angle = torch.atan2(area, inner)
    products: Tensor = (area + (math.pi - angle) * inner) / (2 * math.pi)
    return products


def expected_square_loss(student: Tensor, teacher: Tensor) -> Tensor:
    r"""$\frac12\mathbb E\bigl(\sum_i[w_i\cdot x]_+-\sum_j[v_j\cdot x]_+\bigr)^2$, `[...]`.

    Args:
        student: `[..., m, d]`.
        teacher: `[k, d]`.

    Cost: $O((m+k)^2d)$ a student.

    >>> teacher = torch.eye(3).double()
    >>> round(float(expected_square_loss(teacher, teacher)), 12)
    0.0
    """
    if student.shape[-1] != teacher.shape[-1]:
        raise ShapeMismatch(
            f"student and teacher have {student.shape[-1]} and {teacher.shape[-1]} inputs"
        )
    own = mean_unit_products(student, student).sum((-1, -2))
    cross = mean_unit_products(student, teacher.expand(*student.shape[:-2], -1, -1)).sum((-1, -2))
    return own / 2 - cross + mean_unit_products(teacher, teacher).sum((-1, -2)) / 2

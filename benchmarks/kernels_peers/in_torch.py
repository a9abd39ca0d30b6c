"""torchtheory and its peers in PyTorch: one contender a process, run by `benchmarks/kernels.py`."""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from measure import arguments, report
from torch import Tensor, nn
from torch.func import functional_call, jacrev, vmap

Work = Callable[[], Tensor]


def network(data: Any) -> nn.Sequential:
    """The network with the weights of the problem file."""
    layers: list[nn.Module] = []
    count = sum(name.startswith("weight") for name in data.files)
    for i in range(count):
        weight, bias = (torch.from_numpy(data[f"{what}{i}"]) for what in ("weight", "bias"))
        out, into = weight.shape[:2]
        layer: nn.Conv2d | nn.Linear
        if weight.ndim == 4:
            layer = nn.Conv2d(into, out, 3, padding=1)
        else:
            if data["x"].ndim == 4:
                layers += [nn.AdaptiveAvgPool2d(1)] if data["pool"] else []
                layers.append(nn.Flatten())
            layer = nn.Linear(into, out)
        layer.weight.data, layer.bias.data = weight, bias
        layers += [layer, nn.ReLU()] if i < count - 1 else [layer]
    return nn.Sequential(*layers)


#: linear layers as users write them themselves
PRODUCTS: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    "addmm": lambda x, w, b: torch.addmm(b, x, w.t()),
    "from-the-left": lambda x, w, b: (w @ x.T).T + b,
    "einsum": lambda x, w, b: torch.einsum("bi,oi->bo", x, w) + b,
    "tensordot": lambda x, w, b: torch.tensordot(x, w, dims=([1], [1])) + b,
}


class OwnLinear(nn.Module):
    """A linear layer by one of the products."""

    def __init__(self, layer: nn.Linear, product: str) -> None:
        super().__init__()
        self.weight, self.bias, self.product = layer.weight, layer.bias, product

    def forward(self, x: Tensor) -> Tensor:
        return PRODUCTS[self.product](x, self.weight, self.bias)


def own_layers(data: Any, product: str) -> Work:
    """The kernel of the network whose linear layers are written out."""
    from torchtheory.kernels.tangent.kernel import empirical_ntk

    x = torch.from_numpy(data["x"])
    layers = [OwnLinear(m, product) if isinstance(m, nn.Linear) else m for m in network(data)]
    net = nn.Sequential(*layers)
    return lambda: empirical_ntk(net, x, outputs="trace")


def torchtheory(kind: str, data: Any, given: argparse.Namespace) -> tuple[Work, Work | None]:
    x = torch.from_numpy(data["x"])
    if kind == "infinite":
        from torchtheory.kernels.infinite.dense import ntk

        return lambda: ntk(x, depth=3), lambda: infinite_width_yardstick(x)
    from torchtheory.kernels.tangent.kernel import empirical_ntk

    net = network(data)
    if kind == "cnn":
        return lambda: empirical_ntk(net, x, outputs="full"), None
    if given.file:
        return lambda: empirical_ntk(net, x, outputs="trace", file=given.file), None
    return lambda: empirical_ntk(net, x, outputs="trace"), gram_products(data)


def gram_products(data: Any) -> Work:
    """The products that a kernel summed over the C outputs cannot do without.

    For a linear layer with inputs A [N, in] and derivatives G [N, C·out] of the outputs it is
    the entry-wise product of A Aᵀ and G Gᵀ: here these two for every layer, on random matrices.
    """
    generator = torch.Generator().manual_seed(0)
    n, count = len(data["x"]), sum(name.startswith("weight") for name in data.files)
    shapes = [data[f"weight{i}"].shape for i in range(count)]
    outputs = shapes[-1][0]
    columns = [size for out, into in shapes for size in (into, outputs * out)]
    factors = [torch.randn(n, size, generator=generator) for size in columns]
    room = torch.empty(n, n)

    def work() -> Tensor:
        for factor in factors:
            torch.mm(factor, factor.T, out=room)
        return room

    return work


def infinite_width_yardstick(x: Tensor) -> Tensor:
    r"""One N x N x d product and the entry-wise passes of a depth-3 ReLU tangent kernel.

    \Sigma^0 is scaled to cosines once, since He's variance keeps the diagonal. Each of the two
    hidden layers then needs an arc cosine, a square root, and the sums and products of
    \Sigma' = 1 - \arccos(c)/\pi, c \leftarrow \sqrt{1-c^2}/\pi + c \Sigma',
    \Theta \leftarrow c + \Theta \Sigma', all in place on whole matrices.
    """
    norms = x.norm(dim=1)
    unit = x / norms[:, None]
    cosine = (unit @ unit.T).clamp_(-1, 1)
    theta, derivative, root = cosine.clone(), torch.empty_like(cosine), torch.empty_like(cosine)
    for _ in range(2):
        torch.acos(cosine, out=derivative).mul_(-1 / math.pi).add_(1)
        torch.mul(cosine, cosine, out=root).neg_().add_(1).sqrt_()
        cosine.mul_(derivative).add_(root, alpha=1 / math.pi).clamp_(-1, 1)
        theta.mul_(derivative).add_(cosine)
    scale = norms * (2 / x.shape[1]) ** 0.5
    return theta.mul_(scale[:, None]).mul_(scale[None])


def naive(kind: str, data: Any) -> Work:
    """The whole Jacobian, contracted: the neural tangent kernel of PyTorch's tutorial.

    The Jacobian is made once, not twice as for two different sets of inputs. That of the
    convolutional network is made for four samples at a time, which is faster than all at once.
    """
    net, x = network(data), torch.from_numpy(data["x"])
    parameters = {name: p.detach() for name, p in net.named_parameters()}
    pattern = "Naf,Maf->NM" if kind == "mlp" else "Naf,Mbf->NMab"

    def one(theta: dict[str, Tensor], v: Tensor) -> Tensor:
        return functional_call(net, theta, (v[None],))[0]

    def kernel(inputs: Tensor) -> Tensor:
        rows = vmap(jacrev(one), (None, 0), chunk_size=4 if kind == "cnn" else None)
        jacobian = [j.flatten(2) for j in rows(parameters, inputs).values()]
        total = torch.zeros(())
        for j in jacobian:
            total = total + torch.einsum(pattern, j, j)
        return total

    kernel(x[:2])  # loads what torch loads late
    return lambda: kernel(x)


def nngeometry(data: Any, each_output: bool) -> Work:
    """nngeometry's `GramMatrix`, which has every pair of outputs: [C, N, C, N].

    Asked for one output after the other it makes only the C diagonal blocks that the trace
    needs: not how its documentation does it, but the best one can do with it.
    """
    from nngeometry import GramMatrix

    net, x = network(data), torch.from_numpy(data["x"])
    outputs = len(data[f"bias{len(net) // 2}"])

    def whole() -> Tensor:
        gram = GramMatrix(net, (x.clone(),)).to_torch()
        return torch.einsum("cncm->nm", gram)

    def one_by_one() -> Tensor:
        total = torch.zeros(len(x), len(x))
        for c in range(outputs):
            gram = GramMatrix(net, (x.clone(),), function=lambda v, c=c: net(v)[:, c : c + 1])
            total += gram.to_torch()[0, :, 0]
        return total

    return one_by_one if each_output else whole


CONTENDERS = ["torchtheory", "naive", "nngeometry", "nngeometry-each-output", *PRODUCTS]


def main() -> None:
    given = arguments(CONTENDERS)
    torch.set_num_threads(given.threads)
    data = np.load(given.problem)
    kind = str(data["kind"])
    version, yardstick = f"torch {torch.__version__}", None
    try:
        if given.contender == "torchtheory":
            work, yardstick = torchtheory(kind, data, given)
        elif given.contender == "naive":
            work = naive(kind, data)
        elif given.contender in PRODUCTS:
            work = own_layers(data, given.contender)
        else:
            work = nngeometry(data, given.contender.endswith("each-output"))
    except ImportError as error:
        print(f'{{"missing": "{error.name} is not installed"}}')
        sys.exit()
    report(given, work, yardstick=yardstick, version=version)


if __name__ == "__main__":
    main()

"""Shortcuts: what they do to Jacobians, the networks built from them, dense blocks."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from torchtheory.labs.engine import COLORS, Run, lab
from torchtheory.labs.nets.comparing import gap
from torchtheory.nets.feedforward import dense, mlp
from torchtheory.nets.residual.dense_blocks import DenseBlock, dense_block_parameters, plain_block_parameters
from torchtheory.nets.residual.image_resnets import (
    IMAGENET_ERRORS,
    STAGES,
    BasicBlock,
    Bottleneck,
    ImageNetError,
    ResNet,
    resnet,
)
from torchtheory.nets.residual.jacobians import JacobianProfile, block_jacobian, jacobian_profile
from torchtheory.nets.residual.layers import Residual, residual_network

#: What is known of the five networks for 1000 classes.
PARAMETERS = {18: 11_689_512, 34: 21_797_672, 50: 25_557_032, 101: 44_549_160, 152: 60_192_808}


@lab(
    "residual-jacobians",
    room="nets",
    covers=["M-84", "M-85", "A-132"],
    title="A shortcut keeps the singular values of every block near 1, and depth multiplies what is left",
    full={"depth": 60, "width": 48, "samples": 6},
    least={"depth": 2, "width": 2},
)
def residual_jacobians(run: Run, depth: int = 20, width: int = 12, samples: int = 3) -> None:
    """Singular values of the blocks of a network with shortcuts and of the same without.

    With a shortcut they lie in [1 - ‖$J_f$‖, 1 + ‖$J_f$‖] around any body f, here two tanh layers; the
    ends are attained by bodies that work along the shortcut or against it. Through the whole stack
    the range opens like $(1 ± ε)^L$: near the identity only while εL is small. A projection V in
    place of the identity keeps σ_min(V) - ‖$J_f$‖ instead. Look at how the plain stack collapses.

    Args:
        depth: blocks.
        width: of a block.
        samples: inputs at which Jacobians are taken.
    """
    x = run.randn(samples, width)
    size = 0.1
    bodies = [mlp([width, width, width], "tanh", output="tanh", generator=run.generator) for _ in range(depth)]
    for body in bodies:
        shrink(body, size**0.5)
    along, against = (nn.Sequential(*[dense(s * size * torch.eye(width).double())] * 2) for s in (1, -1))
    stack = nn.Sequential(*(Residual(body) for body in bodies))
    profile = jacobian_profile(stack, x)
    steps = states_of(stack, x)
    norms = [largest(block_jacobian(body, u)) for body, u in zip(bodies, steps, strict=False)]
    tight = [jacobian_profile(nn.Sequential(Residual(part[0])), x).blocks[0] for part in (along, against)]
    says = run.states("M-84", r"J_g=I+J_f:\ \|J_g-I\|=\|J_f\|")
    says.equal([b.departure for b in profile.blocks], norms, 1e-12, where="f: two tanh layers, at the states met")
    plain = nn.Sequential(*bodies)
    names = [str(i) for i in range(depth)]
    without = jacobian_profile(plain, x, blocks=names)
    says.fails("no shortcut", [b.departure for b in without.blocks], promised=norms)
    says = run.states("M-84", r"\sigma_{\min}(J_g)\ge1-\|J_f\|")
    says.at_least(
        [b.smallest for b in profile.blocks] + [tight[1].smallest],
        [1 - n for n in norms] + [1 - size],
        1e-12,
        where="two tanh layers, and f(x) = -x/10",
    )
    plain_norms = [b.largest for b in without.blocks]
    says.fails("no shortcut", [b.smallest for b in without.blocks], promised=[1 - n for n in plain_norms])
    says = run.states("M-84", r"\sigma_{\max}(J_g)\le1+\|J_f\|")
    says.at_most(
        [b.largest for b in profile.blocks] + [tight[0].largest],
        [1 + n for n in norms] + [1 + size],
        1e-12,
        where="two tanh layers, and f(x) = x/10",
    )
    through_depth(run, profile, depth, size, width)
    projections(run, width, samples)
    blocks_of_one_layer(run, depth, width, x)
    run.figure(
        "singular-values",
        lambda axes: plot_profiles(axes, {"residual": profile, "plain": without}, norms),
        caption=f"{depth} blocks of two tanh layers with ‖W‖ = √0.1. Left: singular values of each block, with and "
        "without a shortcut; the bounds dashed. Right: those of the blocks so far, all together.",
        grid=(1, 2),
        size=(9.5, 3.3),
    )


def through_depth(run: Run, profile: JacobianProfile, depth: int, size: float, width: int) -> None:
    """(1 ± ε)^L, attained; near 1 only for small εL."""
    assert profile.largest is not None
    assert profile.smallest is not None
    powers = torch.arange(1, depth + 1, dtype=torch.float64)
    x = run.randn(1, width)
    aligned = [jacobian_profile(chain_of(depth, s * size, width), x) for s in (1, -1)]
    says = run.states("M-84", r"\|J_f\|\le\varepsilon:\ \sigma_{\max}(J_{g_L}\cdots J_{g_1})\le(1+\varepsilon)^L")
    says.at_most(
        torch.cat([profile.largest, ends(aligned[0])[0]]),
        torch.cat([(1 + size) ** powers] * 2),
        1e-12,
        where=f"ε = {size}; two tanh layers, and f(x) = εx, where it is attained: εL must be small",
    )
    worse = jacobian_profile(chain_of(depth, 2 * size, width), x)
    says.fails("‖$J_f$‖ = 2ε", ends(worse)[0], promised=(1 + size) ** powers)
    says = run.states("M-84", r"\sigma_{\min}(J_{g_L}\cdots J_{g_1})\ge(1-\varepsilon)^L")
    says.at_least(
        torch.cat([profile.smallest, ends(aligned[1])[1]]),
        torch.cat([(1 - size) ** powers] * 2),
        1e-12,
        where="two tanh layers, and f(x) = -εx",
    )
    opposed = jacobian_profile(chain_of(depth, -2 * size, width), x)
    says.fails("‖$J_f$‖ = 2ε", ends(opposed)[1], promised=(1 - size) ** powers)


def projections(run: Run, width: int, samples: int) -> None:
    """M-85: V + J_f, tall and flat; the case that attains the bound works along one singular pair."""
    low, high, promised_low, promised_high, alone = [], [], [], [], []
    exact = []
    for outputs in (width // 2, width, width + 5):
        v = run.randn(outputs, width) / width**0.5
        values = torch.linalg.svdvals(v)
        body = mlp([width, outputs], "tanh", output="tanh", generator=run.generator)
        shrink(body, 0.5 * float(values[-1]))
        x = run.randn(samples, width)
        block = jacobian_profile(nn.Sequential(Residual(body, v)), x).blocks[0]
        norm = largest(block_jacobian(body, x))
        u, s, w = torch.linalg.svd(v, full_matrices=False)
        low += [block.smallest, jacobian_profile(nn.Sequential(one_pair(v, u, s, w, -1)), x).blocks[0].smallest]
        high += [block.largest, jacobian_profile(nn.Sequential(one_pair(v, u, s, w, 0)), x).blocks[0].largest]
        promised_low += [float(values[-1]) - norm, float(values[-1]) * 0.5]
        promised_high += [float(values[0]) + norm, float(values[0]) * 1.5]
        alone.append(jacobian_profile(nn.Sequential(body), x).blocks[0].smallest)
        zero = mlp([width, outputs], "tanh", output="tanh", generator=run.generator)
        shrink(zero, 0.0)
        exact.append((gap(Residual(zero, v)(x), x @ v.T), gap(zero(x), x @ v.T)))
    says = run.states("M-85", r"f=0:\ g(x)=Vx")
    says.equal([e[0] for e in exact], within=1e-13, where="V of three shapes")
    says.fails("no shortcut", [e[1] for e in exact])
    says = run.states("M-85", r"J_g=V+J_f:\ \sigma_{\min}(J_g)\ge\sigma_{\min}(V)-\|J_f\|")
    says.at_least(low, promised_low, 1e-12, where="a tanh layer, and f along the smallest singular pair of V")
    says.fails("no shortcut", alone, promised=promised_low[::2])
    says = run.states("M-85", r"\sigma_{\max}(J_g)\le\sigma_{\max}(V)+\|J_f\|")
    says.at_most(high, promised_high, 1e-12, where="a tanh layer, and f along the largest singular pair of V")


def blocks_of_one_layer(run: Run, depth: int, width: int, x: Tensor) -> None:
    """A-132: ϱ(Wx + b) + x, several layers skipped, layers dropped at random."""
    bound = 0.4
    net = residual_network(width, depth, "tanh", generator=run.generator)
    shrink(net, bound)
    opposed = residual_network(width, 1, "tanh", generator=run.generator)
    with torch.no_grad():
        for name, p in opposed.named_parameters():
            p.copy_(-bound * torch.eye(width).double() if name.endswith("weight") else torch.zeros(width))
    at_zero = jacobian_profile(opposed, torch.zeros(1, width).double()).blocks[0].smallest
    plain = mlp([width] * (depth + 1), "tanh", output="tanh", generator=run.generator)
    shrink(plain, bound)
    groups = nn.Sequential(*(plain[i : i + 2] for i in range(0, len(plain), 2)))
    says = run.states("A-132", r"\sigma_{\min}\ge1-\mathrm{Lip}(\varrho)\,\|W^{(\ell)}\|")
    says.at_least(
        [b.smallest for b in jacobian_profile(net, x).blocks] + [at_zero],
        1 - bound,
        1e-12,
        where="tanh, random W, and W = -0.4 I at 0",
    )
    names = [str(i) for i in range(depth)]
    says.fails("no shortcut", [b.smallest for b in jacobian_profile(groups, x, blocks=names).blocks])
    still = [zeroed(residual_network(width, 3, "tanh", skip=k, generator=run.generator)) for k in (1, 2, 3)]
    moving = [zeroed(residual_network(width, 3, "logistic", skip=k, generator=run.generator)) for k in (2, 3)]
    says = run.states("A-132", r"\theta=0,\ \varrho(0)=0:\ \bar\Phi^{(\ell)}=\bar\Phi^{(\ell-1)}")
    says.equal([gap(n(x), x) for n in still], where="shortcuts over one, two and three layers")
    says.fails("ϱ(0) = 1/2", [gap(n(x), x) for n in moving])
    keep = 0.7
    dropped = residual_network(width, 1, "tanh", keep=keep, generator=run.generator)
    change = dropped.eval()(x) - x
    dropped.train()
    change = change.detach()
    with torch.no_grad():
        shares = [float(((dropped(x) - x) * change).sum() / change.square().sum()) for _ in range(600)]
    says = run.states("A-132", r"\text{layers dropped at random: }\mathbb E[\text{training}]=\text{evaluation}")
    says.mean(shares, 1.0, against=(keep, 1 / keep), where="kept with probability 0.7, 600 draws: share of the change")
    block = dropped[0]
    assert isinstance(block, Residual)
    kept = float(((Residual(block.body)(x).detach() - x) * change).sum() / change.square().sum())
    says.fails("never dropped in training", [kept, kept])


@lab(
    "resnet-family",
    room="nets",
    covers=["M-86", "M-89", "M-90"],
    title="The residual networks of 18 to 152 layers: blocks, parameters, depths and the published errors",
    full={"size": 224, "deepest": 152},
    least={"deepest": 25},
)
def resnet_family(run: Run, size: int = 64, deepest: int = 50) -> None:
    """The five networks have the parameters that are known of them, to the last one.

    A block whose last normalization has scale 0 passes on what it is given, as long as that is not
    negative, and both ways through a block end in one shape. The errors on ImageNet are printed
    data, not measured here: they fall with the depth of the residual networks. The picture is the
    34-layer network of the lectures.

    Args:
        size: side of the image that goes through the networks.
        deepest: layers of the deepest network that is run.
    """
    with torch.device("meta"):
        made = {d: resnet(d) for d in STAGES}
        bare = {d: resnet(d, shortcuts=False) for d in STAGES}
    says = run.states("M-86", r"\text{parameters of the networks of }18,34,50,101,152\text{ layers}")
    says.equal([count(net) for net in made.values()], list(PARAMETERS.values()))
    says.fails("no shortcuts, hence no projections", [count(net) for net in bare.values()])
    says = run.states("M-86", r"\text{layers with weights on the longest way}=18,34,50,101,152")
    says.equal([main_layers(net) for net in made.values()], list(STAGES))
    says.fails(
        "projections counted as well",
        [sum(isinstance(m, nn.Conv2d | nn.Linear) for m in net.modules()) for net in made.values()],
    )
    outputs = {d: resnet(d, classes=10, width=8).eval()(torch.ones(1, 3, size, size)) for d in STAGES if d <= deepest}
    run.states("M-86", r"\text{ten outputs for an image}").equal([o.numel() for o in outputs.values()], 10)
    stages_of_the_family(run, made)
    deep_gradients(run)

    x = torch.relu(run.randn(4, 16, 6, 6)).float()
    kinds: list[BasicBlock | Bottleneck] = [BasicBlock(16, 16), Bottleneck(16, 4)]
    silenced = [silence(block) for block in kinds]
    says = run.states("M-89", r"\text{last normalization with scale }0:\ \text{block}=\mathrm{Id}")
    says.equal([gap(b(x), x) for b in silenced], where="two and three convolutions, inputs after a ReLU")
    says.fails("inputs of both signs", [gap(b(x - 0.5), x - 0.5) for b in silenced])
    bare_blocks = [silence(BasicBlock(16, 16, shortcut=False)), silence(Bottleneck(16, 4, shortcut=False))]
    run.states("M-89", r"\text{and }0\text{ without the shortcut}").equal([gap(b(x), 0 * x) for b in bare_blocks])
    changing: list[BasicBlock | Bottleneck] = [BasicBlock(16, 32, 2), Bottleneck(16, 8, 2), BasicBlock(16, 24)]
    shapes = [(b.change(x).shape, b.downsample(x).shape) for b in changing if b.downsample is not None]
    says = run.states("M-89", r"1\times1\text{ convolution: both ways end in one shape}")
    says.equal([int(a == b) for a, b in shapes], [1, 1, 1], where="channels and stride change")
    says.fails("the identity as shortcut", [int(b.change(x).shape == x.shape) for b in changing])

    by_depth = [row for row in IMAGENET_ERRORS if row.depth is not None]
    others = [row for row in IMAGENET_ERRORS if row.depth is None and row.top1 is not None]
    says = run.states(
        "M-90", r"\text{top-5 error falls with the depth of a residual network: largest change from one to the next}"
    )
    says.below(
        float(np.diff([row.top5 for row in by_depth]).max()), 0.0, where="34 (B), 34 (C), 50, 101, 152 layers; printed"
    )
    says.fails("networks without shortcuts, in the table's order", float(np.diff([row.top5 for row in others]).max()))
    says = run.states("M-90", r"\text{and so does the top-1 error}")
    says.below(float(np.diff([row.top1 or 0.0 for row in by_depth]).max()), 0.0, where="printed")
    says.fails(
        "networks without shortcuts, in the table's order", float(np.diff([row.top1 or 0.0 for row in others]).max())
    )
    run.table(
        "imagenet",
        ["method", "top-1 error (%)", "top-5 error (%)"],
        [(r.method, r.top1, r.top5) for r in IMAGENET_ERRORS],
        caption="Single models, validation images of ImageNet, as the lectures print them from He et al. (2016).",
    )
    run.table(
        "family",
        ["layers", "blocks", "parameters", "without projections"],
        [(d, "-".join(map(str, STAGES[d])), count(made[d]), count(bare[d])) for d in STAGES],
        caption="Blocks of the four stages; from 50 layers on they are bottlenecks.",
    )
    run.figure(
        "resnet-34",
        lambda axes: plot_network(axes, made[34], by_depth),
        caption="Left: the 34-layer network, a box for every convolution (height: channels), an arc for every "
        "shortcut, dashed where it is a projection. Right: the printed errors.",
        grid=(1, 2),
        size=(11.5, 3.2),
    )


def stages_of_the_family(run: Run, made: dict[int, ResNet]) -> None:
    """Channels and sides behind every stage, and two of the networks written out operation by operation."""
    with torch.device("meta"):
        small = {d: resnet(d, stem="small images") for d in STAGES}
    says = run.states(
        "M-86", r"224^2\text{ pixels: maps of }56^2,28^2,14^2,7^2\text{ with }64e,128e,256e,512e\text{ channels}"
    )
    says.equal(
        torch.tensor([stage_shapes(net) for net in made.values()]),
        torch.tensor([[(64 * 2**i * (1 if d < 50 else 4), 56 // 2**i) for i in range(4)] for d in STAGES]),
        where="e = 1 with two convolutions per block, 4 with bottlenecks",
    )
    says.fails(
        "the stem for small images, which keeps their size",
        [side for net in small.values() for _, side in stage_shapes(net)],
        promised=[56 // 2**i for _ in STAGES for i in range(4)],
    )
    x = run.randn(2, 3, 32, 32)
    nets = [resnet(d, width=4, classes=5, generator=run.generator).double().eval() for d in (34, 50)]
    says = run.states("M-86", r"h\leftarrow\varrho(Vh+f(h))\text{ block after block: the network is its operations}")
    says.equal(
        torch.stack([net(x).detach() for net in nets]),
        torch.stack([written_out(net, x) for net in nets]),
        1e-10,
        where="34 and 50 layers, width 4: kernels, strides, normalizations and shortcuts applied by hand",
    )
    bare = [resnet(d, width=4, classes=5, shortcuts=False).double().eval() for d in (34, 50)]
    for plain, net in zip(bare, nets, strict=True):
        plain.load_state_dict({k: v for k, v in net.state_dict().items() if "downsample" not in k})
    says.fails("without the shortcuts", torch.stack([net(x).detach() for net in bare]))


def deep_gradients(run: Run) -> None:
    """What makes more than a hundred layers trainable: gradients that do not explode at the start."""
    depths = (101, 152)
    x, y = run.randn(16, 3, 16, 16).float(), torch.arange(16) % 4

    def ratio(depth: int, shortcuts: bool) -> float:
        net = resnet(depth, classes=4, width=4, stem="small images", shortcuts=shortcuts, generator=run.generator)
        ends = [net.blocks()[i].conv1.weight for i in (0, -1)]
        first, last = torch.autograd.grad(nn.functional.cross_entropy(net(x), y), ends)
        return float(first.norm() / last.norm())

    says = run.states(
        "M-86", r"\text{over 100 layers: }\|\nabla_{\text{first block}}\|\le L^2\,\|\nabla_{\text{last block}}\|"
    )
    says.at_most(
        [ratio(d, True) for d in depths],
        [float(d**2) for d in depths],
        loose="no theorem gives the power: what matters is that it is one, and no exponential",
        where="101 and 152 layers as they are drawn, width 4",
    )
    says.fails("without the shortcuts", [ratio(d, False) for d in depths])


@lab(
    "dense-blocks",
    room="nets",
    covers=["M-91"],
    title="A dense block reads everything before it, with about 1/(2L) of a plain block's parameters",
    full={"layers": 24, "growth": 12, "size": 16},
    least={"layers": 2, "growth": 1, "size": 2},
)
def dense_blocks(run: Run, layers: int = 6, growth: int = 4, size: int = 6) -> None:
    """Channels, connections and parameters of a dense block, counted on the module itself.

    A plain block that is to end with as many feature maps has to compute all of them again in
    every layer. The last layer of a dense block reads the input directly: with the layers between
    set to zero its gradient is still that of one layer, and the plain chain's is 0.

    Args:
        layers: of the block, 2 at least.
        growth: channels that each layer adds.
        size: side of the images.
    """
    start = 2 * growth
    block = DenseBlock(start, layers, growth, generator=run.generator).double()
    x = run.randn(3, start, size, size)
    maps = block(x)
    widths = [len(layer.get_parameter("0.weight")) for layer in block.layers] + [maps.shape[1]]
    says = run.states("M-91", r"k_0+\ell k\text{ channels after }\ell\text{ layers}")
    says.equal(widths, [start + i * growth for i in range(layers + 1)])
    flat = plain_chain(start, layers, growth)
    says.fails(
        "plain layers",
        [len(layer.get_parameter("0.weight")) for layer in flat] + [len(flat[-1].get_parameter("2.weight"))],
    )
    says = run.states("M-91", r"L(L+1)/2\text{ connections}")
    says.equal(read_by_layers(block, x), layers * (layers + 1) // 2, where="slots of the input that a layer answers to")
    says.fails("plain layers", layers)
    again = [layer(maps[:, : start + i * growth]) for i, layer in enumerate(block.layers)]
    says = run.states("M-91", r"x_\ell=H_\ell([x_0,\dots,x_{\ell-1}])")
    says.equal(gap(torch.cat([x, *again], 1), maps), within=1e-12)
    says.fails("the maps in another order", gap(block.layers[-1](maps[:, :-growth].flip(1)), maps[:, -growth:]))
    cases = [(start, layers, growth), (16, 10, 12), (3, 1, 5)]
    says = run.states("M-91", r"\text{parameters}=\sum_{i<L}(k_0+ik)(9k+2)")
    says.equal([dense_block_parameters(*c) for c in cases], [count(DenseBlock(*c)) for c in cases])
    says.fails("plain blocks", [plain_block_parameters(*c) for c in cases])
    # so deep that the ends no longer count
    depths = [64, 128, 256, 512, 1024]
    shares = [dense_block_parameters(growth, d, growth) / plain_block_parameters(growth, d, growth) for d in depths]
    narrow = [dense_block_parameters(growth, d, growth) / (d * (9 * growth + 2) * growth) for d in depths]
    says = run.states(
        "M-91", r"\text{parameters of a dense block over those of a plain one with as many maps}\sim1/(2L)"
    )
    says.slope(depths, shares, -1.0, 0.03, against=(-2.0, 0.0))
    says.fails("plain layers that keep k maps only", depths, narrow)
    run.states("M-91", r"2L\cdot\text{the ratio}\to1+2/(9k)").equal(
        2 * depths[-1] * shares[-1], 1 + 2 / (9 * growth), 2 / depths[-1], where="2/(9k) comes from the normalizations"
    )
    direct(run, block, x, layers, growth)
    run.curves(
        "parameters",
        range(1, 41),
        {
            "dense block": [dense_block_parameters(16, n, 12) for n in range(1, 41)],
            "plain block": [plain_block_parameters(16, n, 12) for n in range(1, 41)],
        },
        axes=("layers", "parameters"),
        log="y",
        caption="3 × 3 convolutions that end with as many feature maps: 16 channels come in, growth rate 12.",
    )


def direct(run: Run, block: DenseBlock, x: Tensor, layers: int, growth: int) -> None:
    """The gradient that reaches the input past layers that are set to zero."""
    start = block.channels
    flat = plain_chain(start, layers, growth)
    sizes = []
    with torch.no_grad():
        for chain in (list(block.layers), list(flat)):
            for layer in chain[:-1]:
                layer.get_parameter("2.weight").zero_()
    block.eval()
    flat.eval()
    for network in (block, flat):
        entered = x.clone().requires_grad_()
        out = network(entered)[:, -growth:]
        (gradient,) = torch.autograd.grad(out.sum(), entered)
        sizes.append(float(gradient.norm()))
    last = block.layers[-1]
    entered = x.clone().requires_grad_()
    padded = torch.cat([entered, torch.zeros(len(x), (layers - 1) * growth, *x.shape[2:]).double()], 1)
    (alone,) = torch.autograd.grad(last(padded).sum(), entered)
    says = run.states("M-91", r"\text{layers between set to }0:\ \nabla_{x_0}\text{ is that of the last layer alone}")
    says.equal(sizes[0], float(alone.norm()), 1e-10)
    says.fails("plain layers", sizes[1])


# ------------------------------------------------------------------------------------- pieces


def shrink(net: nn.Module, norm: float) -> None:
    """Scale every dense layer to this operator norm."""
    with torch.no_grad():
        for module in net.modules():
            if isinstance(module, nn.Linear):
                module.weight.mul_(norm / torch.linalg.matrix_norm(module.weight, 2))
                if norm == 0:
                    module.bias.zero_()


def zeroed(net: nn.Module) -> nn.Module:
    for p in net.parameters():
        nn.init.zeros_(p)
    return net


def states_of(stack: nn.Sequential, x: Tensor) -> list[Tensor]:
    """What every block is given."""
    found = [x]
    for block in stack:
        found.append(block(found[-1]).detach())
    return found


def chain_of(depth: int, factor: float, width: int) -> nn.Sequential:
    """Blocks x + factor · x."""
    eye = torch.eye(width, dtype=torch.float64)
    return nn.Sequential(*(Residual(dense(factor * eye)) for _ in range(depth)))


def one_pair(v: Tensor, u: Tensor, s: Tensor, w: Tensor, which: int) -> Residual:
    """V with half of one singular value added along its pair, or taken away from the last."""
    sign = 0.5 if which == 0 else -0.5
    return Residual(dense(sign * s[which] * u[:, which, None] @ w[which, None]), v)


def largest(jacobians: Tensor) -> float:
    return float(torch.linalg.matrix_norm(jacobians, 2).max())


def ends(profile: JacobianProfile) -> tuple[Tensor, Tensor]:
    assert profile.largest is not None
    assert profile.smallest is not None
    return profile.largest, profile.smallest


def count(net: nn.Module) -> int:
    return sum(p.numel() for p in net.parameters())


def main_layers(net: ResNet) -> int:
    """Convolutions and dense layers that are not on a shortcut."""
    return sum(isinstance(m, nn.Conv2d | nn.Linear) and "downsample" not in name for name, m in net.named_modules())


def stage_shapes(net: ResNet) -> list[tuple[int, int]]:
    """Channels and side of the maps behind every stage, for an image of 224 x 224."""
    found = []
    x = net.maxpool(net.conv1(torch.empty(1, 3, 224, 224, device="meta")))
    for stage in range(net.stages):
        x = net.get_submodule(f"layer{stage + 1}")(x)
        found.append((x.shape[1], x.shape[2]))
    return found


def written_out(net: ResNet, x: Tensor) -> Tensor:
    """What the network computes, by torch's functions from its weights alone."""
    state: dict[str, Tensor] = net.state_dict()

    def convolved(z: Tensor, name: str, norm: str, stride: int, padding: int) -> Tensor:
        z = nn.functional.conv2d(z, state[f"{name}.weight"], None, stride, padding)
        values = (state[f"{norm}.{k}"][:, None, None] for k in ("running_mean", "running_var", "weight", "bias"))
        mean, variance, scale, shift = values
        return scale * (z - mean) / (variance + 1e-5).sqrt() + shift

    z = nn.functional.max_pool2d(torch.relu(convolved(x, "conv1", "bn1", 2, 3)), 3, 2, 1)
    names = [k.removesuffix(".conv1.weight") for k in state if k.startswith("layer") and k.endswith(".conv1.weight")]
    for b in names:
        stride = 2 if b.endswith(".0") and not b.startswith("layer1") else 1
        if f"{b}.conv3.weight" in state:  # a bottleneck: the stride is that of its 3 x 3 convolution
            inner = torch.relu(convolved(z, f"{b}.conv1", f"{b}.bn1", 1, 0))
            inner = torch.relu(convolved(inner, f"{b}.conv2", f"{b}.bn2", stride, 1))
            inner = convolved(inner, f"{b}.conv3", f"{b}.bn3", 1, 0)
        else:
            inner = torch.relu(convolved(z, f"{b}.conv1", f"{b}.bn1", stride, 1))
            inner = convolved(inner, f"{b}.conv2", f"{b}.bn2", 1, 1)
        if f"{b}.downsample.0.weight" in state:
            z = convolved(z, f"{b}.downsample.0", f"{b}.downsample.1", stride, 0)
        z = torch.relu(z + inner)
    return z.mean((2, 3)) @ state["fc.weight"].T + state["fc.bias"]


def silence(block: BasicBlock | Bottleneck) -> nn.Module:
    nn.init.zeros_(block.last_norm.weight)
    return block.eval()


def plain_chain(start: int, layers: int, growth: int) -> nn.Sequential:
    """Normalization, ReLU, convolution, each keeping the maps with which the dense block ends."""
    end = start + layers * growth
    widths = [start, *[end] * layers]
    return nn.Sequential(
        *(
            nn.Sequential(nn.BatchNorm2d(a), nn.ReLU(), nn.Conv2d(a, b, 3, padding=1, bias=False))
            for a, b in itertools.pairwise(widths)
        )
    ).double()


def read_by_layers(block: DenseBlock, x: Tensor) -> int:
    """How many (source, layer) pairs there are: a source counts if the layer answers to it."""
    block.eval()
    maps = block(x).detach()
    found = 0
    for i, layer in enumerate(block.layers):
        entered = maps[:, : block.channels + i * block.growth]
        usual = layer(entered)
        starts = [0, *(block.channels + j * block.growth for j in range(i + 1))]
        for low, high in itertools.pairwise(starts):
            moved = entered.clone()
            moved[:, low:high] += 1.0
            found += bool((layer(moved) != usual).any())
    block.train()
    return found


def plot_profiles(axes: Any, profiles: dict[str, JacobianProfile], norms: list[float]) -> None:
    left, right = axes[0]
    for color, (name, profile) in zip(COLORS, profiles.items(), strict=False):
        places = range(1, len(profile) + 1)
        low, high = ([float(b.smallest or 0) for b in profile.blocks], [b.largest for b in profile.blocks])
        left.vlines(places, low, high, color=color, lw=3, label=name)
        lowest, highest = (t.numpy() for t in reversed(ends(profile)))
        right.fill_between(places, np.maximum(lowest, 1e-30), highest, color=color, alpha=0.3)
        right.semilogy(places, highest, color=color, label=name)
    left.plot(range(1, len(norms) + 1), [1 - n for n in norms], "k--", lw=0.8, label=r"$1\pm\|J_f\|$")
    left.plot(range(1, len(norms) + 1), [1 + n for n in norms], "k--", lw=0.8)
    left.set(xlabel="block", ylabel="singular values", title="one by one")
    right.set(xlabel="blocks so far", title="all together", ylim=(1e-25, 100))
    for panel in (left, right):
        panel.xaxis.get_major_locator().set_params(integer=True)
    left.legend(loc="center right")
    right.legend(loc="lower left")


def plot_network(axes: Any, net: ResNet, rows: list[ImageNetError]) -> None:
    left, right = axes[0]
    place = 0
    heights: list[int] = []

    def box(module: nn.Conv2d, color: str) -> None:
        nonlocal place
        left.bar(place, module.out_channels, width=0.7, color=color)
        heights.append(module.out_channels)
        place += 1

    box(net.conv1, "0.5")
    for stage in range(4):
        for block in net.get_submodule(f"layer{stage + 1}").children():
            assert isinstance(block, BasicBlock)
            start = place - 0.5
            box(block.conv1, COLORS[stage])
            box(block.conv2, COLORS[stage])
            middle, reach = (start + place - 0.5) / 2, (place - 0.5 - start) / 2
            turn = np.linspace(0, np.pi, 40)
            style = "--" if block.downsample is not None else "-"
            base = block.conv2.out_channels
            left.plot(middle + reach * np.cos(turn), base + 60 * np.sin(turn), "k" + style, lw=0.9)
    left.set(xlabel="convolution", ylabel="channels", title="34 layers", ylim=(0, 640))
    labels = [r.method.removeprefix("ResNet-") for r in rows]
    right.plot(labels, [r.top1 for r in rows], "o-", color=COLORS[0], label="top-1")
    right.plot(labels, [r.top5 for r in rows], "s-", color=COLORS[1], label="top-5")
    right.set(xlabel="residual network", ylabel="error in %", ylim=(0, None), title="ImageNet, printed")
    right.legend()

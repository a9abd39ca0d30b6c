"""Blocks of a transformer by their formulas: encoder, decoder, and where the normalization stands."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from torchtheory.equivariance.measure import measure_equivariance
from torchtheory.labs.engine import Run, lab
from torchtheory.labs.nets.comparing import gap
from torchtheory.sequences.attention.blocks import DecoderBlock, EncoderBlock, Norm
from torchtheory.sequences.attention.dot_product import attention, causal_mask
from torchtheory.sequences.attention.maps import token_jacobian
from torchtheory.sequences.attention.positions import SinusoidalPositions
from torchtheory.sequences.attention.transformers import Transformer, TransformerEncoder

EXACT = 1e-12


@lab(
    "transformer-blocks",
    room="sequences",
    covers=["M-102", "M-103", "M-104", "N-88"],
    errata=["decoder-block-that-sees-ahead"],
    title="Encoder blocks see everything, decoder blocks the past and the encoder",
    full={"tokens": 12, "width": 16},
    least={"tokens": 3, "width": 4},
)
def transformer_blocks(run: Run, tokens: int = 5, width: int = 8) -> None:
    """The blocks as they are defined, against torch's layers and by their derivatives.

    The block of the formula is the identity when both of its parts have the factor 0. With normalization after
    each sum every token leaves with mean 0 and variance 1. A decoder's derivatives with respect to later tokens
    are 0, and those with respect to all of the encoder's tokens are not; a block without mask and
    cross-attention is an encoder's, whatever a listing calls it. The picture shows who depends on whom.

    Args:
        tokens: length of the sequences.
        width: of the tokens, even.
    """
    formula(run, tokens, width)
    normalized(run, tokens, width)
    encoder(run, tokens, width)
    decoder(run, tokens, width)
    probabilities(run)


def formula(run: Run, n: int, d: int) -> None:
    def block(norm: Norm | None, alpha1: float, alpha2: float) -> EncoderBlock:
        made = EncoderBlock(d, 2 * d, 1, norm, alpha1, alpha2, bias=False, generator=run.seed)
        with torch.no_grad():  # the formula has no matrix after the heads
            made.attention.output.weight.copy_(torch.eye(d))
        return made

    x = run.randn(2, n, d)
    first = block(None, 0.7, -0.4)
    layers = first.attention
    s = attention(layers.query(x), layers.key(x), layers.value(x))[0]
    z = 0.7 * s + x
    expected = -0.4 * first.network[2](torch.relu(first.network[0](z))) + z
    says = run.states("M-102", r"Z=\alpha_1AXW^V+X,\ X_{\text{next}}=\alpha_2\,\sigma(ZW^{F_1})W^{F_2}+Z")
    says.equal(gap(first(x), expected), within=EXACT)
    says.fails(
        "with layer normalization, which the words have and the formula has not",
        gap(block("post", 0.7, -0.4)(x), expected),
    )
    says = run.states("M-102", r"\alpha_1=\alpha_2=0:\ X_{\text{next}}=X")
    says.equal(gap(block(None, 0, 0)(x), x))
    says.fails("a factor of 0.1 before the network", gap(block(None, 0, 0.1)(x), x))
    many = run.randn(4, n, d)

    def defect(model: nn.Module) -> float:
        return measure_equivariance(model, "permutations", many, generator=run.seed).largest

    says = run.states("M-102", r"f(PX)=P\,f(X)")
    says.equal(defect(first), within=1e-10)
    says.fails("positions added first", defect(nn.Sequential(SinusoidalPositions(d), first)))


def normalized(run: Run, n: int, d: int) -> None:
    x = run.randn(3, n, d)

    def moments(norm: Norm) -> list[float]:
        out = EncoderBlock(d, 4 * d, 1, norm, generator=run.seed)(x).detach()
        return [float(out.mean(-1).abs().max()), float((out.var(-1, correction=0) - 1).abs().max())]

    says = run.states("M-103", r"\mathrm{LN}(x+\dots):\ \text{each token has mean }0\text{ and variance }1")
    says.equal(moments("post"), within=1e-3, where="up to the 1e-5 that is added to variances")
    says.fails("normalization before the parts", moments("pre"))
    listed = EncoderBlock(d, 4 * d, 1, generator=run.generator)
    inner = listed.norm1(x + listed.attention(x))
    expected = listed.norm2(inner + listed.network(inner))
    says = run.states(
        "M-103", r"x\leftarrow\mathrm{LN}(x+\mathrm{SA}(x)),\ x\leftarrow\mathrm{LN}(x+W_2\mathrm{ReLU}(W_1x))"
    )
    says.equal(gap(listed(x), expected), within=EXACT)
    listed.norm = "pre"
    says.fails("the same weights, normalization before the parts", gap(listed(x), expected))
    printed = run.refutes(
        "decoder-block-that-sees-ahead", r"\partial y_i/\partial x_j=0\text{ for }j>i\text{, Listing 10.3}"
    )
    block = EncoderBlock(d, 4 * d, 1, generator=run.generator)
    printed.equal(float(token_jacobian(block, x[:1]).triu(1).max()), within=1e-6, where="the largest of them")


def encoder(run: Run, n: int, d: int) -> None:
    hidden = 3 * d

    def parameters(*blocks: nn.Module) -> list[int]:
        return [sum(p.numel() for p in b.parameters()) for b in blocks]

    says = run.states("N-88", r"4d^2+2d\,d_{ff}\text{ weights, }9d+d_{ff}\text{ biases and norms per block}")
    promised = [4 * d * d + 2 * d * hidden, 4 * d * d + 2 * d * hidden + 9 * d + hidden]
    bare = EncoderBlock(d, hidden, 2, None, bias=False)
    says.equal(parameters(bare, EncoderBlock(d, hidden, 2)), promised)
    says.fails(
        "with cross-attention as well",
        parameters(DecoderBlock(d, hidden, 2, None, bias=False), DecoderBlock(d, hidden, 2)),
    )
    layer = nn.TransformerEncoderLayer(d, 2, hidden, batch_first=True, dtype=torch.float64)
    theirs = nn.TransformerEncoder(layer, 3, enable_nested_tensor=False).eval()
    x = run.randn(2, n, d)
    ours = TransformerEncoder.from_torch(theirs)
    expected = theirs(x)
    says = run.states("N-88", r"\text{torch's encoder of the same weights has the same outputs}")
    says.equal(gap(ours(x), expected), within=1e-10)
    for block in ours.blocks:
        assert isinstance(block, EncoderBlock)
        block.norm = "pre"
    says.fails("normalization before the parts", gap(ours(x), expected))
    many = run.randn(4, n, d)

    def defect(positions: nn.Module | None) -> float:
        model = TransformerEncoder(d, hidden, 2, 2, positions=positions, generator=run.seed)
        return measure_equivariance(model, "permutations", many, generator=run.seed).largest

    says = run.states("N-88", r"T(PX)=P\,T(X)\text{ without positions}")
    says.equal(defect(None), within=1e-10)
    says.fails("with positions", defect(SinusoidalPositions(d)))


class OfMemory(nn.Module):
    """A decoder block as a function of the encoder's output, or of its own input, the other one fixed."""

    def __init__(self, block: DecoderBlock, other: Tensor, *, memory: bool, mask: Tensor | None = None) -> None:
        super().__init__()
        self.block, self.other, self.memory, self.mask = block, other, memory, mask

    def forward(self, x: Tensor) -> Tensor:
        other = self.other.expand(len(x), -1, -1)
        own, read = (other, x) if self.memory else (x, other)
        made: Tensor = self.block(own, read, memory_mask=self.mask)
        return made


def decoder(run: Run, n: int, d: int) -> None:
    x, memory = run.randn(1, n, d), run.randn(1, n + 2, d)
    block = DecoderBlock(d, 2 * d, 2, generator=run.generator)
    plain = EncoderBlock(d, 2 * d, 2, generator=run.generator)
    own = token_jacobian(OfMemory(block, memory, memory=False), x)[0]
    read = token_jacobian(OfMemory(block, x, memory=True), memory)[0]
    seen = token_jacobian(plain, x)[0]
    theirs = nn.TransformerDecoderLayer(d, 2, 2 * d, batch_first=True, dtype=torch.float64).eval()
    same = DecoderBlock.from_torch(theirs)
    says = run.states("M-104", r"\text{masked self-attention, cross-attention, network: torch's decoder layer, masked}")
    says.equal(gap(same(x, memory), theirs(x, memory, tgt_mask=causal_mask(n))), within=1e-10)
    says.fails("torch's layer without a mask", gap(same(x, memory), theirs(x, memory)))
    says = run.states("M-104", r"\partial y_i/\partial x_j=0\text{ for }j>i")
    says.equal(float(own.triu(1).max()))
    says.fails("an encoder block, which has no mask", float(seen.triu(1).max()))
    says = run.states(
        "M-104", r"\#\{(i,j):\partial y_i/\partial m_j\ne0\}=T_aT_b\text{: all of the encoder's tokens count}"
    )
    says.equal(int((read > 0).sum()), n * (n + 2))
    first = OfMemory(block, x, memory=True, mask=(torch.arange(n + 2) < 1).expand(n, -1))
    says.fails("a mask that shows the first one only", int((token_jacobian(first, memory) > 0).sum()))
    shown = [("encoder block", seen), ("decoder block, own tokens", own), ("decoder block, encoder's tokens", read)]

    def plot(axes: Any) -> None:
        for ax, (title, table) in zip(axes[0], shown, strict=True):
            image = ax.imshow((table / table.max()).clamp(min=1e-4).log10().numpy(), vmin=-4, vmax=0, cmap="magma")
            ax.set(title=title, xlabel="input token")
            ax.grid(False)
            ax.figure.colorbar(image, ax=ax, shrink=0.8)
        axes[0, 0].set_ylabel("output token")

    run.figure(
        "dependence",
        plot,
        grid=(1, 3),
        size=(12, 3.4),
        caption="Size of the derivative of each output token by each input token, relative to the largest, as a power "
        "of 10; black is 0.",
    )


def probabilities(run: Run) -> None:
    model = Transformer(4, 3, 8, 16, 2, depth=1, generator=run.generator)
    with torch.no_grad():
        model.head.weight.mul_(4)
    x = torch.randint(4, (1, 5), generator=run.generator)
    every = torch.cartesian_prod(*[torch.arange(3)] * 4)
    many = x.expand(len(every), -1)

    def total(previous: Tensor) -> float:
        logs = model(many, previous).log_softmax(-1).gather(-1, every.unsqueeze(-1)).sum((1, 2))
        return float(logs.detach().logsumexp(0).exp())

    says = run.states("M-104", r"\sum_y\prod_ip(y_i\mid x,y_{1:i-1})=1")
    says.equal(total(model.after_start(every)), 1.0, EXACT, where="all 81 sequences of 4 symbols")
    says.fails("a decoder that reads the symbol it is to predict", total(every))

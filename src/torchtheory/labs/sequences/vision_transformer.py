"""Images as sequences of patches: the vision transformer, trained on handwritten digits."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from torchtheory.data.real import digits, split
from torchtheory.equivariance.measure import measure_equivariance
from torchtheory.labs.engine import Run, lab
from torchtheory.labs.nets.comparing import gap
from torchtheory.sequences.attention.maps import attention_maps
from torchtheory.sequences.attention.vision import PatchEmbedding, VisionTransformer, image_patches
from torchtheory.training.loop.trainer import fit

PATCH = 2


@lab(
    "vision-transformer",
    room="sequences",
    covers=["M-114", "N-95"],
    title="An image is a sequence of patches",
    full={"epochs": 40, "width": 48, "depth": 4},
    least={"epochs": 5, "depth": 1, "width": 16},
)
def vision_transformer(run: Run, epochs: int = 20, width: int = 32, depth: int = 1) -> None:
    """Patches, their embedding as a convolution, what positions are for, and digits that are learned.

    An image of 224 by 224 pixels has 196 patches of 16 by 16, and a class token. Cutting and mapping patches is a
    convolution of kernel and stride 16. Without positions the logits do not notice when patches are shuffled; with
    them they do. A small one learns scikit-learn's digits of 8 by 8 pixels (not the images of the source), and is
    lost where every test image has its patches shuffled. The picture shows what the class token looks at.

    Args:
        epochs: of training.
        width: of the tokens.
        depth: number of blocks.
    """
    run.assumes(width % 2 == 0, f"two heads cannot share a width of {width} equally")
    cutting(run)
    shuffling(run)
    trained(run, epochs, width, depth)


def cutting(run: Run) -> None:
    cases = [(224, 224, 16), (32, 48, 8), (8, 8, 2)]
    promised = [(h // p) * (w // p) + 1 for h, w, p in cases]
    found = [PatchEmbedding(p, 3, 4)(run.rand(1, 3, h, w)).shape[1] for h, w, p in cases]
    says = run.states(["M-114", "N-95"], r"(H/P)(W/P)+1\text{ tokens};\ 224\times224,\ P=16:\ 196+1")
    says.equal([found[0], VisionTransformer(224, 16, 4, 1, 1, 2).tokens, *found[1:]], [197, *promised])
    overlapping = [F.unfold(run.rand(1, 3, h, w), p, stride=p // 2).shape[2] + 1 for h, w, p in cases]
    says.fails("patches that overlap by half", [overlapping[0], *overlapping])
    embedding, images = PatchEmbedding(4, 3, 6, generator=run.generator), run.randn(2, 3, 8, 12)
    tokens = embedding(images)[:, 1:]
    says = run.states(["M-114", "N-95"], r"\text{patches, flattened and mapped = a convolution of kernel and stride }P")
    convolution = embedding.as_convolution()
    says.equal(gap(convolution(images).flatten(2).mT, tokens), within=1e-12)
    with torch.no_grad():
        convolution.weight.copy_(convolution.weight.mT.clone())
    says.fails("rows and columns of a patch exchanged", gap(convolution(images).flatten(2).mT, tokens))


class OfPatches(nn.Module):
    """A vision transformer as a function of the patches `[n, patches, pixels]` of an image."""

    def __init__(self, model: VisionTransformer) -> None:
        super().__init__()
        self.model = model

    def forward(self, patches: Tensor) -> Tensor:
        height, width = self.model.image_size
        made: Tensor = self.model(F.fold(patches.mT, (height, width), PATCH, stride=PATCH))
        return made


def shuffling(run: Run) -> None:
    patches = image_patches(run.randn(4, 1, 6, 8), PATCH)

    def defect(positions: bool) -> float:
        model = VisionTransformer((6, 8), PATCH, 8, 2, 2, 3, positions=positions, generator=run.seed)
        enlarged(model)
        found = measure_equivariance(
            OfPatches(model), "permutations", patches, on_output="invariant", generator=run.seed
        )
        return found.largest

    says = run.states(
        "N-95", r"f(\text{image with its patches in any order})=f(\text{image})\text{, without positions}"
    )
    says.equal(defect(False), within=1e-10)
    says.fails("with positions", defect(True))


def enlarged(model: VisionTransformer) -> None:
    """Positions of the size of tokens, so that little training is enough."""
    if isinstance(model.encoder.positions, nn.Embedding):
        with torch.no_grad():
            model.encoder.positions.weight.mul_(30)


def trained(run: Run, epochs: int, width: int, depth: int) -> None:
    x, y = digits()
    (x, y), (test, labels) = split(x.view(-1, 1, 8, 8), y, 0.25, run.generator)
    model = VisionTransformer(8, PATCH, width, 2, depth, 10, generator=run.generator, dtype=torch.float32)
    enlarged(model)
    fit(model, (x, y), epochs=epochs, batch_size=32, learning_rate=2e-3, seed=run.seed)
    order = torch.rand(len(test), 16, generator=run.generator).argsort(1)
    cut = image_patches(test, PATCH)
    shuffled = cut.gather(1, order.unsqueeze(-1).expand_as(cut))
    with torch.no_grad():
        right = model(test).argmax(1) == labels
        lost = OfPatches(model)(shuffled).argmax(1) == labels
    says = run.states(["M-114", "N-95"], r"\text{share of digits of the test set that are recognized}")
    says.at_least(
        float(right.double().mean()),
        0.7,
        loose="how many depends on the training; no theorem says it",
        where=f"scikit-learn's digits, {epochs} epochs",
    )
    says.fails("patches of each test image shuffled", float(lost.double().mean()))
    picture(run, model, test[:5])


def picture(run: Run, model: VisionTransformer, images: Tensor) -> None:
    maps = list(attention_maps(model, images).values())[-1]
    side = images.shape[-1] // PATCH
    looked = maps[:, :, 0, 1:].mean(1).view(-1, side, side)

    def plot(axes: Any) -> None:
        for j in range(len(images)):
            axes[0, j].imshow(images[j, 0].numpy(), cmap="gray_r")
            axes[1, j].imshow(looked[j].numpy(), cmap="viridis", vmin=0)
            for ax in axes[:, j]:
                ax.set(xticks=[], yticks=[])
                ax.grid(False)
        axes[0, 0].set_ylabel("image")
        axes[1, 0].set_ylabel("class token")

    run.figure(
        "looked-at",
        plot,
        grid=(2, len(images)),
        size=(2 * len(images), 4.2),
        caption="Digits, and the weights with which the class token looks at their patches in the last block.",
    )

"""The vision transformer against a convolution and against the one of `transformers`."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from transformers import ViTConfig, ViTForImageClassification

from torchtheory.core.errors import InvalidInput, InvalidType, ShapeMismatch
from torchtheory.nets.feedforward import dense
from torchtheory.nets.fresh_weights import drawn_anew
from torchtheory.sequences.attention.vision import PatchEmbedding, VisionTransformer, image_patches


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_patches_by_slicing() -> None:
    images = draw(2, 3, 6, 4)
    found = image_patches(images, 2)
    assert found.shape == (2, 6, 12)
    for i in range(3):
        for j in range(2):
            piece = images[:, :, 2 * i : 2 * i + 2, 2 * j : 2 * j + 2].flatten(1)
            assert torch.equal(found[:, 2 * i + j], piece)


def test_embedding_is_a_strided_convolution() -> None:
    embedding, images = PatchEmbedding(4, 3, 5, generator=1), draw(2, 3, 8, 12)
    tokens = embedding(images)
    convolution = embedding.as_convolution()
    assert (convolution.kernel_size, convolution.stride) == ((4, 4), (4, 4))
    assert torch.allclose(convolution(images).flatten(2).mT, tokens[:, 1:])
    assert torch.equal(tokens[:, 0], embedding.first.expand(2, 5))


def test_196_patches_and_a_class_token() -> None:
    model = VisionTransformer(224, 16, width=4, heads=1, depth=1, classes=2, channels=3)
    assert model.tokens == 197
    assert model.embedding(draw(1, 3, 224, 224)).shape == (1, 197, 4)


@pytest.mark.parametrize("positions", [True, False])
def test_shuffled_patches_matter_with_positions_only(positions: bool) -> None:
    model = VisionTransformer(
        (4, 6), 2, width=8, heads=2, depth=2, classes=3, positions=positions, generator=1
    )
    images = draw(2, 1, 4, 6)
    order = torch.tensor([3, 0, 5, 1, 2, 4])
    shuffled = nn.functional.fold(image_patches(images, 2)[:, order].mT, (4, 6), 2, stride=2)
    same = torch.allclose(model(shuffled), model(images), atol=1e-12)
    assert same == (not positions)


def test_logits_of_the_peer() -> None:
    torch.manual_seed(2)
    config = ViTConfig(
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=24,
        image_size=12,
        patch_size=4,
        num_channels=3,
        num_labels=5,
        layer_norm_eps=1e-5,
    )
    peer = ViTForImageClassification(config).double().eval()
    with torch.no_grad():
        for parameter in peer.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    ours = VisionTransformer(12, 4, 16, 4, 2, 5, channels=3, hidden=24)
    given = {name.removeprefix("vit."): p for name, p in peer.state_dict().items()}

    def linear(name: str) -> nn.Linear:
        return dense(given[f"{name}.weight"].flatten(1), given[f"{name}.bias"])

    def norm(ours: nn.Module, name: str) -> None:
        ours.load_state_dict({k: given[f"{name}.{k}"] for k in ("weight", "bias")})

    with torch.no_grad():
        ours.embedding.first.copy_(given["embeddings.cls_token"].flatten())
        ours.encoder.positions.weight.copy_(given["embeddings.position_embeddings"][0])
    ours.embedding.linear = linear("embeddings.patch_embeddings.projection")
    ours.head = linear("classifier")
    norm(ours.encoder.norm, "layernorm")
    for i, block in enumerate(ours.encoder.blocks):
        attention, here = block.attention, f"layers.{i}"
        attention.query = linear(f"{here}.attention.q_proj")
        attention.key = linear(f"{here}.attention.k_proj")
        attention.value = linear(f"{here}.attention.v_proj")
        attention.output = linear(f"{here}.attention.o_proj")
        block.network[0] = linear(f"{here}.mlp.fc1")
        block.network[2] = linear(f"{here}.mlp.fc2")
        norm(block.norm1, f"{here}.layernorm_before")
        norm(block.norm2, f"{here}.layernorm_after")
    images = draw(3, 3, 12, 12)
    assert torch.allclose(ours(images), peer(images).logits, atol=1e-9)


def test_weights_can_be_drawn_anew() -> None:
    model = VisionTransformer(4, 2, width=8, heads=2, depth=1, classes=3)
    new = drawn_anew(model, 1)
    assert not torch.equal(new.embedding.first, model.embedding.first)


def test_refusals() -> None:
    with pytest.raises(InvalidInput, match="patches of 3 pixels do not divide a side of 8"):
        VisionTransformer(8, 3, width=8, heads=2, depth=1, classes=3)
    with pytest.raises(InvalidInput, match="patches of 4 pixels do not divide a side of 6"):
        image_patches(draw(1, 1, 8, 6), 4)
    with pytest.raises(InvalidType, match="channels, height, width"):
        image_patches(draw(8, 8), 4)
    with pytest.raises(InvalidType, match="not a uint8 tensor"):
        image_patches(torch.zeros(1, 1, 8, 8, dtype=torch.uint8), 4)
    model = VisionTransformer(8, 4, width=8, heads=2, depth=1, classes=3)
    with pytest.raises(ShapeMismatch, match=r"\[images, 1, 8, 8\]"):
        model(draw(2, 3, 8, 8))
    with pytest.raises(InvalidInput, match="heads do not divide"):
        VisionTransformer(8, 4, width=8, heads=3, depth=1, classes=3)


def test_hidden_layers_have_four_times_the_width() -> None:
    model = VisionTransformer(8, 4, width=6, heads=2, depth=1, classes=3)
    assert model.encoder.blocks[0].network[0].weight.shape == (24, 6)

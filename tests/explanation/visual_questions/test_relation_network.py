from dataclasses import replace

import pytest
import torch
from torch import nn

from torchtheory.core.errors import InvalidInput, InvalidType, ShapeMismatch
from torchtheory.explanation.visual_questions.relation_network import (
    RelationConfig,
    RelationNetwork,
)

SMALL = RelationConfig(
    image_size=16,
    kernels=4,
    convolutions=2,
    vocabulary=9,
    embedding=5,
    hidden=6,
    relation=(7, 8),
    readout=(5,),
    answers=3,
)


@pytest.fixture
def net():
    torch.manual_seed(0)
    return RelationNetwork(SMALL).double().eval()


@pytest.fixture
def inputs():
    source = torch.Generator().manual_seed(1)
    images = torch.rand(3, 3, 16, 16, generator=source, dtype=torch.float64)
    return images, torch.tensor([[1, 2, 3, 4], [5, 6, 0, 0], [9, 0, 0, 0]])


def test_the_sizes_of_the_chapter():
    config = RelationConfig()
    assert (config.grid, config.objects) == (7, 49)
    assert RelationConfig(coordinates=False).pair_size == 24 + 24 + 128 == 176
    assert config.pair_size == 180


def test_the_sum_over_pairs_by_two_loops(net, inputs):
    images, tokens = inputs
    objects, question = net.objects(images), net.question(tokens)
    total = torch.zeros(3, 8, dtype=torch.float64)
    for i in range(9):
        for j in range(9):
            total += net.relation(torch.cat([objects[:, i], objects[:, j], question], 1))
    torch.testing.assert_close(net(images, tokens), net.output(net.readout(total)))


def test_the_order_of_objects_does_not_matter(net, inputs):
    objects, question = net.objects(inputs[0]), net.question(inputs[1])
    order = torch.randperm(9, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(
        net.related(objects[:, order], question), net.related(objects, question)
    )


def test_objects_are_the_pixels_of_the_last_map_with_their_places(net, inputs):
    features = net.convolutions(inputs[0])
    objects = net.objects(inputs[0])
    for row in range(3):
        for column in range(3):
            own = objects[:, 3 * row + column]
            torch.testing.assert_close(own[:, :4], features[:, :, row, column])
            middle = torch.tensor([row + 0.5, column + 0.5]).double() / 3
            torch.testing.assert_close(own[:, 4:], middle.expand(3, 2))


def test_a_question_ends_with_its_last_word(net, inputs):
    tokens = inputs[1]
    states = net.question(tokens)
    for k, count in enumerate([4, 2, 1]):
        alone = net.lstm(net.embedding(tokens[k : k + 1, :count]))[1][0][0]
        torch.testing.assert_close(states[k : k + 1], alone)


def test_no_word_has_the_vector_zero_and_stays_there(net, inputs):
    net.train()
    net(*inputs).sum().backward()
    assert net.embedding.weight[0].eq(0).all()
    assert net.embedding.weight.grad[0].eq(0).all()


def test_layers_are_convolution_relu_and_normalization(net):
    kinds = [type(m) for m in net.convolutions]
    assert kinds == [nn.Conv2d, nn.ReLU, nn.BatchNorm2d] * 2
    assert all(
        (m.kernel_size, m.stride, m.padding) == ((3, 3), (2, 2), (0, 0))
        for m in net.convolutions
        if isinstance(m, nn.Conv2d)
    )


def test_what_does_not_fit_is_refused(net, inputs):
    images, tokens = inputs
    with pytest.raises(InvalidInput, match="nothing is left of 16 pixels"):
        RelationConfig(image_size=16)
    with pytest.raises(InvalidInput, match="relation needs"):
        RelationConfig(relation=())
    with pytest.raises(InvalidInput, match="a width of readout"):
        RelationConfig(readout=(0,))
    with pytest.raises(InvalidType, match="RelationConfig"):
        RelationNetwork({"image_size": 16})
    with pytest.raises(ShapeMismatch, match="images are"):
        net(images[:, :1], tokens)
    with pytest.raises(ShapeMismatch, match="tokens are"):
        net(images, tokens.double())
    with pytest.raises(InvalidInput, match="no words"):
        net(images, torch.zeros_like(tokens))


@pytest.mark.parametrize("coordinates", [True, False])
def test_normalizations_can_be_folded_into_what_follows(inputs, coordinates):
    torch.manual_seed(3)
    config = replace(SMALL, coordinates=coordinates)
    net = RelationNetwork(config).double()
    source = torch.Generator().manual_seed(4)
    for module in net.modules():
        if isinstance(module, nn.BatchNorm2d):
            for t in (module.weight, module.bias, module.running_mean):
                nn.init.normal_(t, generator=source)
            nn.init.uniform_(module.running_var, 0.5, 2.0, generator=source)
    net.eval()
    state = {name: t.clone() for name, t in net.state_dict().items()}
    folded = net.without_normalizations()
    assert not any(isinstance(m, nn.BatchNorm2d) for m in folded.modules())
    torch.testing.assert_close(folded(*inputs), net(*inputs))
    assert all(torch.equal(t, state[name]) for name, t in net.state_dict().items())

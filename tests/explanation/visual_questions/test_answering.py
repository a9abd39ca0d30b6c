from dataclasses import replace

import pytest
import torch

from torchtheory.core.errors import InvalidInput
from torchtheory.data.mini_clevr import VOCABULARY, mini_clevr
from torchtheory.explanation.visual_questions.answering import (
    accuracy_without_images,
    answer_accuracy,
    answer_scores,
    train_answers,
)
from torchtheory.explanation.visual_questions.relation_network import (
    RelationConfig,
    RelationNetwork,
)

CONFIG = RelationConfig(
    image_size=16,
    kernels=6,
    convolutions=2,
    vocabulary=len(VOCABULARY),
    embedding=6,
    hidden=8,
    relation=(12,),
    readout=(12,),
)


@pytest.fixture(scope="module")
def data():
    return mini_clevr(
        160, 0, image_size=16, objects=(1, 2), colors=2, attributes=["color"], types=["exist"]
    )


def made(seed=0):
    torch.manual_seed(seed)
    return RelationNetwork(CONFIG)


def test_training_learns_and_repeats_itself(data):
    first, second = made(), made()
    before = torch.get_rng_state()
    history = train_answers(first, data, epochs=8, batch_size=16, seed=3)
    assert torch.equal(before, torch.get_rng_state())
    assert history.train_losses[-1] < 0.7 * history.train_losses[0]
    train_answers(second, data, epochs=8, batch_size=16, seed=3)
    for one, other in zip(first.parameters(), second.parameters(), strict=True):
        assert torch.equal(one, other)


def test_validation_is_of_the_other_questions(data):
    train, held = data.split(100)
    net = made()
    history = train_answers(net, train, validation=held, epochs=1, batch_size=32)
    scores = answer_scores(net, held)
    loss = torch.nn.functional.cross_entropy(scores, held.answers)
    assert history.validation_losses[-1] == pytest.approx(float(loss), rel=1e-5)
    right = int((scores.argmax(1) == held.answers).sum())
    found = answer_accuracy(net, held)
    assert (found.estimate, found.trials) == (right / len(held), len(held))


def test_scores_are_those_of_evaluation_and_leave_the_model_as_it_was(data):
    net = made().train()
    state = {k: v.clone() for k, v in net.state_dict().items()}
    scores = answer_scores(net, data)
    assert net.training
    assert all(torch.equal(v, state[k]) for k, v in net.state_dict().items())
    with torch.no_grad():
        torch.testing.assert_close(scores, net.eval()(*data.inputs()))


def test_words_alone_by_hand(data):
    few = data.at(range(6))
    known = replace(
        few,
        words=(("a",), ("a",), ("a",), ("b",), ("b",), ("c",)),
        answers=torch.tensor([0, 0, 1, 1, 1, 1]),
        types=("exist",) * 6,
    )
    asked = replace(
        few,
        words=(("a",), ("a",), ("b",), ("d",), ("d",), ("d",)),
        answers=torch.tensor([0, 0, 1, 1, 0, 1]),
        types=("exist",) * 5 + ("count",),
    )
    # a is answered by 0 and b by 1; d is not known, and exist is answered by 1; count by nothing
    assert accuracy_without_images(known, asked).estimate == pytest.approx(4 / 6)


def test_questions_without_answers_are_refused(data):
    unknown = replace(data, answers=torch.full((len(data),), -1))
    for call in (
        lambda: train_answers(made(), unknown),
        lambda: train_answers(made(), data, validation=unknown),
        lambda: answer_accuracy(made(), unknown),
        lambda: accuracy_without_images(data, unknown),
    ):
        with pytest.raises(InvalidInput, match="no answers"):
            call()

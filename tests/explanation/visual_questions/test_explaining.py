import math
from dataclasses import replace

import pytest
import torch

from torchtheory.core.errors import EmptyData, InvalidInput, InvalidType, ShapeMismatch
from torchtheory.data.mini_clevr import VOCABULARY, mini_clevr
from torchtheory.data.visual_questions import ANSWERS
from torchtheory.explanation.explanation import Explanation
from torchtheory.explanation.methods.gradients import gradient_times_input
from torchtheory.explanation.visual_questions.explaining import (
    AnswerExplanation,
    blurred,
    explain_answer,
    explain_answers,
)
from torchtheory.explanation.visual_questions.pictures import example_pictures
from torchtheory.explanation.visual_questions.relation_network import (
    RelationConfig,
    RelationNetwork,
)
from torchtheory.explanation.visual_questions.statistics import (
    agreeing_objects,
    confident_examples,
    explain_questions,
    object_relevance,
    position_slopes,
    share_of,
    top_words,
    word_statistics,
)


@pytest.fixture(scope="module")
def data():
    return mini_clevr(12, 0, image_size=24, types=["query_color", "count"], questions_per_image=2)


@pytest.fixture(scope="module")
def net():
    torch.manual_seed(2)
    made = RelationNetwork(
        RelationConfig(
            image_size=24,
            kernels=6,
            convolutions=2,
            vocabulary=len(VOCABULARY),
            embedding=6,
            hidden=8,
            relation=(10, 10),
            readout=(10,),
        )
    )
    return made.double().eval()


def fake(data, images=None, words=None, answers=None, probabilities=None):
    """An explanation with given numbers."""
    n = len(data)
    images = torch.zeros(n, 3, *data.images.shape[2:]) if images is None else images
    words = torch.zeros(data.tokens.shape) if words is None else words
    answers = torch.zeros(n, dtype=torch.long) if answers is None else answers
    probabilities = torch.ones(n) if probabilities is None else probabilities
    whole = Explanation((images, words), torch.ones(n), "by hand", answers)
    return AnswerExplanation(whole, data.tokens, probabilities)


def test_relevance_and_ledger_add_up_to_the_score(net, data):
    images, tokens = data.inputs()
    found = explain_answers(net, images.double(), tokens)
    with torch.no_grad():
        scores = net(images.double(), tokens)
    assert torch.equal(found.answers, scores.argmax(1))
    torch.testing.assert_close(found.explanation.score, scores.amax(1))
    torch.testing.assert_close(found.probabilities, scores.softmax(1).amax(1))
    ledger = found.explanation.ledger
    kept = ledger.to_biases + ledger.to_epsilon + ledger.leaked
    total = found.maps.sum((1, 2)) + found.words.sum(1) + kept
    torch.testing.assert_close(total, scores.amax(1))
    assert found.words[tokens == 0].eq(0).all()
    assert found.maps.ge(0).all(), "alpha 1, beta 0 hands on nothing negative"


def test_occlusion_of_words_by_hand(net, data):
    images, tokens = (t[:4] for t in data.inputs())
    images = images.double()
    found = explain_answers(net, images, tokens, "occlusion")
    with torch.no_grad():
        whole = net(images, tokens).softmax(1)
        for k in range(4):
            count = int((tokens[k] != 0).sum())
            vectors = net.embedding(tokens[k : k + 1, :count]).repeat(count, 1, 1)
            vectors[torch.arange(count), torch.arange(count)] = 0
            states = net.lstm(vectors)[1][0][0]
            objects = net.objects(images[k : k + 1]).expand(count, -1, -1)
            answer = whole[k].argmax()
            without = net.related(objects, states).softmax(1)[:, answer]
            torch.testing.assert_close(found.words[k, :count], whole[k, answer] - without)
            assert found.words[k, count:].abs().max() < 1e-12 if count < tokens.shape[1] else True
    with pytest.raises(InvalidInput, match="too expensive"):
        _ = found.maps


def test_one_question_in_words(net, data):
    images, _ = data.inputs()
    one = explain_answer(net, images[3], " ".join(data.words[3]).capitalize() + "?", "lrp")
    many = explain_answers(net, images, data.tokens, "lrp")
    count = len(data.words[3])
    torch.testing.assert_close(one.words[0], many.words[3, :count])
    torch.testing.assert_close(one.overlays, many.at([3]).overlays)
    assert explain_answer(net, images[3], data.words[3]).answers == many.answers[3]


def test_a_given_answer_and_a_given_method(net, data):
    images, tokens = data.inputs()
    wanted = torch.full((len(data),), 5)
    found = explain_answers(net, images.double(), tokens, gradient_times_input, wanted)
    with torch.no_grad():
        scores = net(images.double(), tokens)
    torch.testing.assert_close(found.explanation.score, scores[:, 5])
    torch.testing.assert_close(found.probabilities, scores.softmax(1)[:, 5])


def test_display_takes_sums_then_absolute_values_then_the_blur(data):
    source = torch.Generator().manual_seed(0)
    images = torch.randn(len(data), 3, 24, 24, generator=source)
    words = torch.randn(data.tokens.shape, generator=source)
    found = fake(data, images, words)
    torch.testing.assert_close(found.maps, images.sum(1))
    torch.testing.assert_close(found.word_strengths, words.abs())
    torch.testing.assert_close(found.overlays, blurred(images.sum(1).abs()))


def test_the_blur_is_a_gaussian_that_keeps_the_sum():
    source = torch.Generator().manual_seed(0)
    maps = torch.rand(2, 40, 60, generator=source, dtype=torch.float64)
    torch.testing.assert_close(blurred(maps, 0.05).sum((1, 2)), maps.sum((1, 2)))
    dot = torch.zeros(128, 128, dtype=torch.float64)
    dot[64, 64] = 1
    place = torch.arange(128) - 64
    bell = torch.exp(-(place**2).double() / (2 * 2.56**2))
    bell /= bell.sum()
    torch.testing.assert_close(blurred(dot), bell[:, None] * bell, atol=1e-12, rtol=0)


def test_bad_requests_are_refused(net, data):
    images, tokens = data.inputs()
    with pytest.raises(InvalidInput, match="method"):
        explain_answers(net, images, tokens, "magic")
    with pytest.raises(InvalidType, match="a method is"):
        explain_answers(net, images, tokens, 3)
    with pytest.raises(ShapeMismatch, match="12 images and 3 questions"):
        explain_answers(net, images, tokens[:3])
    with pytest.raises(ShapeMismatch, match="one image"):
        explain_answer(net, images, "what color is it")
    with pytest.raises(InvalidInput, match="no word 'dog'"):
        explain_answer(net, images[0], "what color is the dog")


# ---------------------------------------------------------------------------------- statistics


def test_top_words_by_hand():
    strengths = torch.tensor([[1.0, 3.0, 2.0, 9.0], [2.0, 2.0, 2.0, 1.0]])
    tokens = torch.tensor([[4, 4, 4, 0], [1, 2, 3, 4]])
    assert top_words(strengths, tokens, 2).tolist() == [
        [False, True, True, False],
        [True, True, False, False],
    ]
    assert top_words(strengths, tokens, 9).tolist() == (tokens != 0).tolist()


def test_words_are_counted_once_per_question(data):
    few = data.at(range(3))
    few = replace(
        few,
        words=(("the", "color", "the"), ("what", "number", "it"), ("the", "size", "it")),
        tokens=torch.tensor([[1, 2, 1], [3, 4, 5], [1, 6, 5]]),
        types=("query_color", "count", "query_color"),
    )
    found = fake(few, words=torch.tensor([[3.0, 1.0, -2.0], [0.0, 1.0, -5.0], [-1.0, 2.0, 0.5]]))
    told = word_statistics({"m": found}, few, top=2)
    assert told.questions == {"query_color": 2, "count": 1}
    assert told.counts["m"]["query_color"] == {"the": 2, "size": 1}
    assert told.counts["m"]["count"] == {"number": 1, "it": 1}
    assert told.telling["m"].tolist() == [False, True, False]
    assert told.rows(1) == [["query_color", "m", "the 100%"], ["count", "m", "it 100%"]]


def test_slopes_over_places_by_hand():
    tokens = torch.tensor([[1, 1, 1, 0], [1, 1, 1, 1], [1, 1, 0, 0]])
    strengths = torch.tensor([[0.0, 1, 2, 7], [1.0, 1, 1, 1], [3.0, 1, 0, 0]])
    # shares times words: (0, 1, 2) over places 0, 1/2, 1; all 1; (3/2, 1/2) over 0 and 1
    torch.testing.assert_close(
        position_slopes(strengths, tokens), torch.tensor([2.0, 0.0, -1.0]).double()
    )
    with pytest.raises(InvalidInput, match="one word"):
        position_slopes(torch.ones(1, 2), torch.tensor([[1, 0]]))


def test_objects_and_their_colors_by_hand(data):
    masks = data.masks[data.image_of]
    images = torch.zeros(len(data), 3, 24, 24)
    images[:, 0] = -(2.0 * masks[:, 1] + 1.0 * masks[:, 0])
    colors = [data.scenes[i][1].color for i in data.image_of]
    answers = torch.tensor([ANSWERS.index(c) for c in colors])
    found = fake(data, images, answers=answers)
    relevance = object_relevance(found, data)
    torch.testing.assert_close(relevance[:, :2], torch.tensor([1.0, 2.0]).expand(12, 2))
    assert relevance[~masks.any((2, 3))].isnan().all()
    hits, chances = agreeing_objects(found, data, "color", ANSWERS)
    assert hits.all()
    scene = data.scenes[data.image_of[0]]
    assert chances[0] == pytest.approx([o.color for o in scene].count(colors[0]) / len(scene))
    other = fake(data, images, answers=torch.zeros(12, dtype=torch.long))
    assert not agreeing_objects(other, data, "color", ANSWERS)[0].any()


def test_the_surest_answers_one_for_each_image(data):
    probabilities = torch.linspace(0.1, 0.9, 12)
    answers = data.answers.clone()
    answers[::2] = (answers[::2] + 1) % 28
    found = fake(data, answers=answers, probabilities=probabilities)
    kinds = ("query_color", "count")
    wrong = confident_examples(found, data, kinds, correct=False, count=2).tolist()
    assert wrong == [10, 8]
    right = confident_examples(found, data, ["query_color"], count=9)
    assert all(data.types[k] == "query_color" for k in right)
    assert all(answers[k] == data.answers[k] for k in right)
    certain = fake(data, answers=data.answers, probabilities=probabilities)
    chosen = confident_examples(certain, data, kinds, count=99).tolist()
    assert chosen == [11, 9, 7, 5, 3, 1]
    assert len({int(data.image_of[k]) for k in chosen}) == len(chosen)


def test_shares_have_intervals():
    found = share_of(torch.tensor([True] * 10), 0.95)
    assert (found.estimate, found.high) == (1.0, 1.0)
    assert found.low == pytest.approx(math.exp(math.log(0.025) / 10))


def test_explanations_of_other_questions_are_refused(data):
    found = fake(data)
    part = data.at(range(5))
    with pytest.raises(ShapeMismatch, match="12 questions are not of these 5"):
        word_statistics({"m": found}, part)
    with pytest.raises(EmptyData, match="no explanations"):
        word_statistics({}, data)
    blind = replace(data, masks=None, scenes=None)
    with pytest.raises(InvalidInput, match="which pixels"):
        object_relevance(found, blind)
    with pytest.raises(InvalidInput, match="which objects"):
        agreeing_objects(found, blind, "color", ANSWERS)
    with pytest.raises(InvalidInput, match="attribute"):
        agreeing_objects(found, data, "taste", ANSWERS)


@pytest.mark.draws
def test_examples_are_drawn(net, data):
    found = explain_questions(net, data, ("lrp", "gradient_times_input", "occlusion"))
    figure = example_pictures(found, data, [0, 1])
    assert figure.png.startswith(b"\x89PNG")
    assert figure.svg is not None
    for text in ("gradient × input", "LRP", "is right", data.words[0][-1]):
        assert text in figure.svg
    assert "occlusion" not in figure.svg, "it has no heatmap"
    with pytest.raises(EmptyData, match="no question"):
        example_pictures(found, data, [])

from dataclasses import replace

import pytest
import torch

from torchtheory.core.errors import InvalidInput
from torchtheory.data.mini_clevr import VOCABULARY, mini_clevr
from torchtheory.data.visual_questions import ANSWERS, ATTRIBUTES, COLORS, as_tokens


def test_there_are_28_answers_as_in_the_original():
    assert len(ANSWERS) == len(set(ANSWERS)) == 28
    assert (len(COLORS), *(len(v) for k, v in ATTRIBUTES.items() if k != "color")) == (8, 2, 2, 3)


def test_parts_share_no_image():
    data = mini_clevr(100, 0, questions_per_image=7)
    one, other = data.split(60)
    assert len(one) + len(other) == 100
    assert 50 < len(one) <= 60
    assert not set(one.image_of.tolist()) & set(other.image_of.tolist())
    assert other.words == data.words[len(one) :]
    assert torch.equal(other.inputs()[0], data.images[data.image_of[len(one) :]])
    with pytest.raises(InvalidInput, match="about one image"):
        data.split(1)


def test_pixels_that_a_question_is_about():
    data = mini_clevr(50, 0, types=["query_color"], relations=False)
    asked = data.objects_asked_about()
    for k in range(50):
        (target,) = data.about[k]
        assert torch.equal(asked[k], data.masks[data.image_of[k], target])
    unknown = replace(data, masks=None)
    with pytest.raises(InvalidInput, match="do not tell"):
        unknown.objects_asked_about()


def test_words_without_numbers_are_refused():
    with pytest.raises(InvalidInput, match="no word 'dog'"):
        as_tokens([("is", "there", "a", "dog")], VOCABULARY)
    with pytest.raises(InvalidInput, match="question 1 has no words"):
        as_tokens([("is",), ()], VOCABULARY)

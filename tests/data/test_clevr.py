import json
from itertools import pairwise

import pytest
import torch
from PIL import Image

from torchtheory.core.errors import FileProblem, InvalidInput
from torchtheory.data.clevr import CLEVR_IMAGES, CLEVR_QUESTIONS, clevr, count_clevr
from torchtheory.data.visual_questions import ANSWERS, as_words


def test_there_are_as_many_images_and_questions_as_published():
    assert sum(CLEVR_IMAGES) == 100_000
    assert sum(CLEVR_QUESTIONS) == 999_968


def folder_of(tmp_path, split="val", **changes):
    """A folder of two images and three questions, laid out as CLEVR is."""
    (tmp_path / "questions").mkdir(exist_ok=True)
    (tmp_path / "images" / split).mkdir(parents=True, exist_ok=True)
    for k, color in enumerate([(255, 0, 0), (0, 0, 51)]):
        picture = Image.new("RGB", (480, 320), color)
        picture.save(tmp_path / "images" / split / f"CLEVR_{split}_{k:06d}.png")
    records = [
        {
            "question": "What is the color of the large thing; is it Red?",
            "image_filename": f"CLEVR_{split}_000001.png",
            "answer": "red",
            "program": [{"function": "scene"}, {"function": "query_color"}],
        },
        {
            "question": "How many cubes?",
            "image_filename": f"CLEVR_{split}_000000.png",
            "answer": "10",
            "program": [{"type": "count"}],
        },
        {"question": "Any?", "image_filename": f"CLEVR_{split}_000001.png"},
    ]
    records[0].update(changes)
    file = tmp_path / "questions" / f"CLEVR_{split}_questions.json"
    file.write_text(json.dumps({"info": {}, "questions": records}))
    return tmp_path


def test_clevr_is_read_from_its_folder(tmp_path):
    data = clevr(folder_of(tmp_path), "val", image_size=8)
    assert data.images.shape == (2, 3, 8, 8)
    assert data.image_of.tolist() == [1, 0, 1]
    torch.testing.assert_close(data.images[:, :, 3, 4], torch.tensor([[1.0, 0, 0], [0, 0, 0.2]]))
    assert data.words[0] == as_words("what is the color of the large thing is it red")
    assert [data.vocabulary[t - 1] for t in data.tokens[1, :3]] == ["how", "many", "cubes"]
    assert data.tokens[1, 3:].eq(0).all()
    assert [ANSWERS[a] if a >= 0 else None for a in data.answers] == ["red", "10", None]
    assert data.types == ("query_color", "count", "")
    assert data.masks is None
    assert all(a < b for a, b in pairwise(data.vocabulary))
    assert count_clevr(tmp_path, "val") == (2, 3)
    first = clevr(tmp_path, "val", image_size=8, limit=1, vocabulary=data.vocabulary)
    assert (len(first), len(first.images)) == (1, 1)
    assert torch.equal(first.tokens[0], data.tokens[0])


def test_what_is_wrong_with_the_folder_is_said(tmp_path):
    with pytest.raises(FileProblem, match=r"CLEVR_val_questions\.json"):
        clevr(tmp_path)
    with pytest.raises(InvalidInput, match="split"):
        clevr(tmp_path, "validation")
    with pytest.raises(FileProblem, match="none of the 28 answers"):
        clevr(folder_of(tmp_path, answer="pink"))
    with pytest.raises(FileProblem, match="names an image outside"):
        clevr(folder_of(tmp_path, image_filename="../../secret.png"))
    with pytest.raises(FileProblem, match="no text 'question'"):
        clevr(folder_of(tmp_path, question=3))
    with pytest.raises(FileProblem, match=r"question 0 .* has no words"):
        clevr(folder_of(tmp_path, question="?!"))
    with pytest.raises(FileProblem, match="program"):
        clevr(folder_of(tmp_path, program=["count"]))
    with pytest.raises(FileProblem, match=r"CLEVR_val_000007\.png"):
        clevr(folder_of(tmp_path, image_filename="CLEVR_val_000007.png"))
    folder_of(tmp_path)
    (tmp_path / "images" / "val" / "CLEVR_val_000000.png").write_bytes(b"no picture")
    with pytest.raises(FileProblem, match="not a PNG"):
        clevr(tmp_path)
    (tmp_path / "questions" / "CLEVR_val_questions.json").write_text('{"questions": []}')
    with pytest.raises(FileProblem, match="no list of questions"):
        clevr(tmp_path)

"""CLEVR v1.0 from its files: questions about rendered scenes, with their images.

Source: Mathematical Aspects of Deep Learning, section 5.5.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from torchtheory.core.checks import described, one_of, whole_number
from torchtheory.core.errors import FileProblem
from torchtheory.core.files import existing_file, existing_folder, parse_json, reason
from torchtheory.core.memory import refuse_too_large
from torchtheory.data.visual_questions import ANSWERS, VisualQuestions, as_tokens, as_words


class Splits(NamedTuple):
    """A number for each part of a data set."""

    train: int
    val: int
    test: int


#: Images and questions of CLEVR v1.0.
CLEVR_IMAGES = Splits(70_000, 15_000, 15_000)
CLEVR_QUESTIONS = Splits(699_989, 149_991, 149_988)


def clevr(
    path: str | Path,
    split: str = "val",
    *,
    limit: int | None = None,
    image_size: int = 128,
    vocabulary: Sequence[str] | None = None,
) -> VisualQuestions:
    """Questions of CLEVR v1.0 from its folder, with their images.

    The folder has `questions/CLEVR_val_questions.json` and `images/val/CLEVR_val_000000.png` and so
    on, as it is unpacked. Images are scaled to a square and to [0, 1], questions are lower case
    without punctuation. The type of a question is the last function of its program. Questions of
    the test set come without answers (-1) and types.

    Args:
        path: the folder `CLEVR_v1.0`.
        split: `train`, `val` or `test`.
        limit: read so many questions, the first ones, with the images they need; all unless given.
            All images of a split take about 0.2 MB each as they are kept.
        image_size: pixels on each side.
        vocabulary: words by number; those of the questions read unless given. Give the one of the
            training questions to read others.
    """
    folder = existing_folder(path)
    one_of(split, "split", Splits._fields)
    whole_number(image_size, "image_size", least=1)
    questions = _clevr_questions(folder, split)
    if limit is not None:
        questions = questions[: whole_number(limit, "limit", least=1)]
    words = tuple(as_words(q["question"]) for q in questions)
    if vocabulary is None:
        vocabulary = sorted({w for question in words for w in question})
    names = sorted({q["image_filename"] for q in questions})
    refuse_too_large(4 * 3 * image_size**2 * len(names), f"the {len(names):,} images of {split}")
    number = {name: k for k, name in enumerate(names)}
    images = torch.empty(len(names), 3, image_size, image_size)
    for name, k in number.items():
        images[k] = _picture(folder / "images" / split / name, image_size)
    return VisualQuestions(
        images,
        torch.tensor([number[q["image_filename"]] for q in questions]),
        words,
        as_tokens(words, vocabulary),
        torch.tensor([_answer_number(q) for q in questions]),
        tuple(_program_type(q) for q in questions),
        tuple(vocabulary),
    )


def count_clevr(path: str | Path, split: str) -> tuple[int, int]:
    """How many images and questions of a split are in a folder of CLEVR.

    `CLEVR_IMAGES` and `CLEVR_QUESTIONS` say how many there are in all.
    """
    folder = existing_folder(path)
    one_of(split, "split", Splits._fields)
    images = existing_folder(folder / "images" / split)
    return sum(1 for _ in images.glob(f"CLEVR_{split}_*.png")), len(_clevr_questions(folder, split))


def _clevr_questions(folder: Path, split: str) -> list[dict[str, Any]]:
    """The records of a split, checked."""
    file = folder / "questions" / f"CLEVR_{split}_questions.json"
    if not file.is_file():
        raise FileProblem(
            f"{folder} has no file questions/{file.name}: give the folder CLEVR_v1.0, with the "
            "folders questions and images"
        )
    file = existing_file(file)
    try:
        # Python's objects are larger
        refuse_too_large(12 * file.stat().st_size, str(file), FileProblem)
        content = file.read_bytes()
    except OSError as error:
        raise FileProblem(f"cannot read {file}: {reason(error)}") from None
    found = parse_json(content, str(file))
    records = found.get("questions") if isinstance(found, dict) else None
    if not isinstance(records, list) or not records:
        raise FileProblem(f"{file} has no list of questions")
    for k, record in enumerate(records):
        fields = record if isinstance(record, dict) else {}
        for name in ("question", "image_filename"):
            if not isinstance(fields.get(name), str):
                raise FileProblem(f"question {k} of {file} has no text {name!r}")
        if Path(fields["image_filename"]).name != fields["image_filename"]:
            raise FileProblem(
                f"question {k} of {file} names an image outside of images/{split}: "
                f"{fields['image_filename']!r}"
            )
        if not as_words(fields["question"]):
            raise FileProblem(f"question {k} of {file} has no words")
    return records


def _answer_number(record: dict[str, Any]) -> int:
    answer = record.get("answer")
    if answer is None:
        return -1
    if answer not in ANSWERS:
        raise FileProblem(f"{answer!r} is none of the {len(ANSWERS)} answers of CLEVR")
    return ANSWERS.index(answer)


def _program_type(record: dict[str, Any]) -> str:
    program = record.get("program")
    last = program[-1] if isinstance(program, list) and program else {}
    if not isinstance(last, dict):
        raise FileProblem(f"the program of a question ends with {described(last)}")
    # the field has both names in published versions
    return str(last.get("function") or last.get("type") or "")


def _picture(file: Path, size: int) -> Tensor:
    """An image file as `[3, size, size]` in [0, 1]."""
    from PIL import Image, UnidentifiedImageError  # comes with matplotlib

    found = existing_file(file)
    try:
        with Image.open(found, formats=["PNG"]) as picture:
            scaled = picture.convert("RGB").resize((size, size), Image.Resampling.BILINEAR)
            raw = bytearray(scaled.tobytes())
    except (OSError, UnidentifiedImageError, ValueError, Image.DecompressionBombError) as error:
        raise FileProblem(f"{found} is not a PNG that can be read: {error}") from None
    return torch.frombuffer(raw, dtype=torch.uint8).reshape(size, size, 3).permute(2, 0, 1) / 255

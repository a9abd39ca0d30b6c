import re

import pytest
import torch

from torchtheory.core.errors import InvalidInput
from torchtheory.data.mini_clevr import mini_clevr
from torchtheory.data.visual_questions import ANSWERS, ATTRIBUTES, COLORS, QUESTION_TYPES

SIDES = {
    "left of": lambda a, b: a.x < b.x,
    "right of": lambda a, b: a.x > b.x,
    "above": lambda a, b: a.y < b.y,
    "below": lambda a, b: a.y > b.y,
}


def spoken_of(phrase, scene):
    """The objects that a phrase names, read without the generator's own functions."""
    side = re.search(" (left of|right of|above|below) the ", phrase)
    there = scene
    if side:
        phrase, _, other = phrase.partition(side[0])
        (anchor,) = spoken_of(other, scene)
        there = [o for o in scene if SIDES[side[1]](o, anchor)]
    words = [w.removesuffix("s") if w.endswith("s") else w for w in phrase.split()]
    values = {v: name for name, choices in ATTRIBUTES.items() for v in choices}
    said = {values[w]: w for w in words if w in values}
    assert all(w in values or w in {"object", "thing"} for w in words)
    return [o for o in there if all(getattr(o, name) == v for name, v in said.items())]


def read(question, scene):
    """The answer, from the words and the objects alone."""
    for form, name, phrase in (
        (r"what (\w+) is the (.*)", 1, 2),
        (r"what is the (\w+) of the (.*)", 1, 2),
        (r"the (.*) is what (\w+)", 2, 1),
        (r"there is a (.*) what (\w+) is it", 2, 1),
    ):
        found = re.fullmatch(form, question)
        if found:
            (one,) = spoken_of(found[phrase], scene)
            return getattr(one, found[name])
    for form in ("how many (.*) are there", "what number of (.*) are there"):
        if found := re.fullmatch(form, question):
            return str(len(spoken_of(found[1], scene)))
    for form in ("is there a (.*)", "are there any (.*)"):
        if found := re.fullmatch(form, question):
            return "yes" if spoken_of(found[1], scene) else "no"
    for form, name, one, other in (
        (r"is the (.*) the same (\w+) as the (.*)", 2, 1, 3),
        (r"do the (.*) and the (.*) have the same (\w+)", 3, 1, 2),
    ):
        if found := re.fullmatch(form, question):
            (a,), (b,) = spoken_of(found[one], scene), spoken_of(found[other], scene)
            return "yes" if getattr(a, found[name]) == getattr(b, found[name]) else "no"
    for form, holds in (
        ("are there fewer (.*) than (.*)", lambda a, b: a < b),
        ("are there more (.*) than (.*)", lambda a, b: a > b),
        ("are there the same number of (.*) as (.*)", lambda a, b: a == b),
    ):
        if found := re.fullmatch(form, question):
            counts = [len(spoken_of(p, scene)) for p in found.groups()]
            return "yes" if holds(*counts) else "no"
    raise AssertionError(question)


def test_every_answer_is_what_the_words_and_the_objects_say():
    data = mini_clevr(1500, 3)
    assert set(data.types) == set(QUESTION_TYPES)
    for words, image, answer in zip(data.words, data.image_of, data.answers, strict=True):
        assert read(" ".join(words), data.scenes[image]) == ANSWERS[answer]


def test_words_alone_tell_little():
    data = mini_clevr(1300, 0)
    for kind in ("query_size", "query_material", "exist", "less_than", "greater_than"):
        counts = torch.bincount(data.answers[data.of_types(kind)])
        assert counts.max() <= 0.52 * counts.sum()


def test_masks_are_where_the_objects_are_drawn():
    data = mini_clevr(60, 5, questions_per_image=2, image_size=64)
    plane = data.images[:, :, 0, 0][:, :, None, None]
    drawn = (data.images - plane).abs().amax(1) > 1e-6
    covered = data.masks.any(1)
    assert (covered & ~drawn).sum() <= 0.01 * covered.sum()  # gray may meet the plane's gray
    # what is drawn and not covered are half covered pixels of edges
    grown = torch.nn.functional.max_pool2d(covered.float()[:, None], 3, 1, 1)[:, 0] > 0
    assert not (drawn & ~grown).any()
    assert (data.masks.sum(1) <= 1).all(), "objects do not overlap"
    for scene, masks in zip(data.scenes, data.masks, strict=True):
        assert [bool(m.any()) for m in masks] == [k < len(scene) for k in range(len(masks))]
        for o, m in zip(scene, masks, strict=False):
            rows, columns = m.nonzero().unbind(1)
            assert abs(float(columns.double().mean() + 0.5) / 64 - o.x) < 1 / 64
            assert abs(float(rows.double().mean() + 0.5) / 64 - o.y) < 1 / 64


def test_attributes_can_be_seen():
    data = mini_clevr(400, 2, questions_per_image=1, image_size=64)
    seen = {"area": {}, "bright": {}, "filled": {}}
    for image, scene, masks in zip(data.images, data.scenes, data.masks, strict=True):
        for o, m in zip(scene, masks, strict=False):
            seen["area"].setdefault((o.shape, o.size), []).append(int(m.sum()))
            seen["bright"].setdefault(o.material, []).append(float(image[:, m].min(0)[0].max()))
            rows, columns = m.nonzero().unbind(1)
            tall, wide = int(rows.max() - rows.min()) + 1, int(columns.max() - columns.min()) + 1
            flat = "round" if m.sum() < 0.9 * tall * wide else "cube"
            seen["filled"].setdefault(o.shape, []).append("cylinder" if tall > 1.3 * wide else flat)
    for shape in ATTRIBUTES["shape"]:
        assert min(seen["area"][shape, "large"]) > max(seen["area"][shape, "small"])
    # rubber is nowhere brighter than the plane behind it
    assert min(seen["bright"]["metal"]) > 0.8 > max(seen["bright"]["rubber"])
    for shape, looks in (("cube", "cube"), ("sphere", "round"), ("cylinder", "cylinder")):
        assert set(seen["filled"][shape]) == {looks}


def test_the_same_seed_gives_the_same_questions_and_no_global_numbers():
    torch.manual_seed(1)
    before = torch.get_rng_state()
    one, other = mini_clevr(30, 4), mini_clevr(30, torch.Generator().manual_seed(4))
    assert torch.equal(before, torch.get_rng_state())
    assert one.words == other.words
    assert torch.equal(one.images, other.images)
    assert mini_clevr(30, 5).words != one.words


def test_attributes_that_do_not_vary_are_not_spoken_of():
    data = mini_clevr(400, 0, attributes=["size", "color"], colors=3)
    assert not {w for q in data.words for w in q} & {
        *ATTRIBUTES["shape"], *ATTRIBUTES["material"], *COLORS[3:], "cubes", "spheres", "cylinders",
        "shape", "material",
    }  # fmt: skip
    assert {(o.shape, o.material) for s in data.scenes for o in s} == {("cube", "metal")}
    assert "query_shape" not in data.types
    assert "query_color" in data.types


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"types": []}, "types is a list"),
        ({"types": "count"}, "types is a list"),
        ({"types": ["query_shape"], "attributes": ["color"]}, "query_shape"),
        ({"objects": (4, 2)}, "least, most"),
        ({"objects": (1, 1), "types": ["equal_color"]}, "equal to no other"),
        ({"attributes": ["color"], "types": ["query_color"], "relations": False}, "tell objects"),
        ({"attributes": ["color"], "objects": (10, 10)}, "do not fit"),
        ({"colors": 9}, "colors"),
        ({"image_size": 4}, "image_size"),
    ],
)
def test_what_cannot_be_asked_is_refused(options, says):
    with pytest.raises(InvalidInput, match=says):
        mini_clevr(10, 0, **options)

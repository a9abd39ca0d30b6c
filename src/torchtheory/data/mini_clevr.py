"""Questions about flat objects on a gray plane, made to order in the manner of CLEVR.

`mini_clevr` knows what the rendered set does not tell: which pixels belong to which object, and
which objects a question is about. Source: Mathematical Aspects of Deep Learning, section 5.5.
"""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from torchtheory.core.checks import described, one_of, whole_number
from torchtheory.core.errors import InvalidInput
from torchtheory.core.random import RandomSource, as_generator
from torchtheory.data.visual_questions import (
    ANSWERS,
    ATTRIBUTES,
    COLORS,
    QUESTION_TYPES,
    SHAPES,
    Scene,
    SceneObject,
    VisualQuestions,
    as_tokens,
)

RELATIONS = ("left of", "right of", "above", "below")

_FUNCTION_WORDS = (
    "a above and any are as below color cubes cylinders do fewer have how is it left many material "
    "more number object objects of right same shape size spheres than the there thing things what"
)
#: Words of `mini_clevr`; the number of a word is its place here, from 1.
VOCABULARY = tuple(sorted({*_FUNCTION_WORDS.split(), *ANSWERS[13:]}))

#: Red, green and blue of each color `[8, 3]`.
PALETTE = torch.tensor(
    [
        (0.34, 0.34, 0.34),
        (0.80, 0.12, 0.12),
        (0.12, 0.25, 0.90),
        (0.10, 0.55, 0.10),
        (0.50, 0.29, 0.10),
        (0.55, 0.10, 0.75),
        (0.10, 0.85, 0.85),
        (1.00, 0.93, 0.15),
    ]
)
_PLANE = 0.72

#: Questions drawn for one that is kept.
DRAWN = 3

#: Scenes after which it is given up.
TRIED = 200


def mini_clevr(
    n: int,
    generator: RandomSource = None,
    *,
    image_size: int = 48,
    objects: tuple[int, int] = (3, 5),
    colors: int = 8,
    attributes: Sequence[str] = tuple(ATTRIBUTES),
    types: Sequence[str] | None = None,
    relations: bool = True,
    questions_per_image: int = 10,
) -> VisualQuestions:
    """Questions about flat objects on a gray plane, with masks.

    Spheres are discs, cubes squares, cylinders upright ovals cut off at both sides; metal has a
    bright spot and rubber a dark rim. Objects do not overlap. A question that asks for an attribute
    of an object is about exactly one, which is named by some of its other attributes, or by where
    it lies from another one. Of three questions drawn, the one with the rarest answer among
    those of its type so far is kept, so that words alone tell little about the answer.

    Args:
        n: questions.
        generator: randomness, or a seed.
        image_size: pixels on each side.
        objects: least and most objects of an image.
        colors: how many of the eight, the first ones.
        attributes: those that vary, of `size`, `color`, `material` and `shape`; nothing is said
            about the others, of which all objects have the first value.
        types: of questions, asked in turn; all that can be asked unless given.
        relations: whether questions say where an object lies from another.
        questions_per_image: so many about each image.

    Raises:
        InvalidInput: also for what cannot be asked: an attribute that does not vary, an object that
            nothing tells from others, more objects than fit into an image.

    Time is about 0.2 ms per question and as much per image of 48 by 48 pixels.

    >>> data = mini_clevr(40, 1, types=["query_color"])
    >>> len(data), tuple(data.images.shape), " ".join(data.words[0])
    (40, (4, 3, 48, 48), ...)
    """
    whole_number(n, "n", least=1)
    whole_number(image_size, "image_size", least=16)
    whole_number(colors, "colors", least=1, most=len(COLORS))
    whole_number(questions_per_image, "questions_per_image", least=1)
    least, most = (whole_number(o, "objects", least=1, most=10) for o in objects)
    if least > most:
        raise InvalidInput(f"objects are given as (least, most), not {objects}")
    names = tuple(a for a in ATTRIBUTES if a in _chosen(attributes, "attributes", ATTRIBUTES))
    fixed = {f"{verb}_{a}" for verb in ("query", "equal") for a in ATTRIBUTES if a not in names}
    possible = tuple(kind for kind in QUESTION_TYPES if kind not in fixed)
    types = possible if types is None else _chosen(types, "types", possible)
    if most == 1 and all(kind.startswith("equal_") for kind in types):
        raise InvalidInput("one object is equal to no other: ask for more objects, or other types")
    values = {a: choices if a in names else choices[:1] for a, choices in ATTRIBUTES.items()}
    values["color"] = values["color"][:colors]
    # drawn one by one in Python: `random` is far faster at that than tensors of one entry
    source = random.Random(int(torch.randint(2**62, (1,), generator=as_generator(generator))))
    scenes: list[Scene] = []
    asked: list[_Question] = []
    image_of: list[int] = []
    seen = {kind: Counter[str]() for kind in types}
    order = itertools.cycle(types)
    in_vain = 0
    while len(asked) < n:
        scene = _scene(source, source.randint(least, most), values)
        asking = _Asking(source, scene, names, relations)
        made = _questions(asking, order, seen, questions_per_image)
        in_vain = 0 if made else in_vain + 1
        if in_vain == TRIED:
            raise InvalidInput(
                f"no question of the types {', '.join(types)} could be asked about {TRIED} scenes: "
                "let more attributes vary, or allow relations, to tell objects apart"
            )
        if not made:
            continue
        image_of += [len(scenes)] * len(made)
        scenes.append(scene)
        asked += made
    asked, image_of = asked[:n], image_of[:n]
    scenes = scenes[: image_of[-1] + 1]
    images, masks = _drawn(scenes, image_size, most)
    words = tuple(q.words for q in asked)
    return VisualQuestions(
        images,
        torch.tensor(image_of),
        words,
        as_tokens(words, VOCABULARY),
        torch.tensor([ANSWERS.index(q.answer) for q in asked]),
        tuple(q.type for q in asked),
        VOCABULARY,
        tuple(scenes),
        masks,
        tuple(q.about for q in asked),
    )


def _chosen(given: Sequence[str], name: str, known: Iterable[str]) -> tuple[str, ...]:
    """Some of the names known, without repetition."""
    if isinstance(given, str) or not given:
        raise InvalidInput(f"{name} is a list of names, not {described(given)}")
    return tuple(dict.fromkeys(one_of(one, f"an entry of {name}", tuple(known)) for one in given))


class _Question(NamedTuple):
    type: str
    words: tuple[str, ...]
    answer: str
    about: tuple[int, ...]


#: Half the width of objects, as a share of the image.
_RADIUS = {"large": 0.135, "small": 0.085}


def _scene(source: random.Random, count: int, values: dict[str, tuple[str, ...]]) -> Scene:
    """Objects that do not touch."""
    for _ in range(TRIED):
        placed: list[SceneObject] = []
        for _ in range(60 * count):
            drawn = {name: source.choice(choices) for name, choices in values.items()}
            r = _RADIUS[drawn["size"]]
            one = SceneObject(
                **drawn,
                x=source.uniform(1.1 * r, 1 - 1.1 * r),
                y=source.uniform(1.1 * r, 1 - 1.1 * r),
            )
            if all(_apart(one, other) for other in placed):
                placed.append(one)
            if len(placed) == count:
                return tuple(placed)
    raise InvalidInput(f"{count} objects of these sizes do not fit into an image: ask for fewer")


def _apart(one: SceneObject, other: SceneObject) -> bool:
    least = 1.1 * (_RADIUS[one.size] + _RADIUS[other.size])
    return max(abs(one.x - other.x), abs(one.y - other.y)) >= least


def _drawn(scenes: Sequence[Scene], size: int, most: int) -> tuple[Tensor, Tensor]:
    """Images `[m, 3, H, W]` and the pixels of their objects `[m, most, H, W]`."""
    images = torch.full((len(scenes), 3, size, size), _PLANE)
    masks = torch.zeros(len(scenes), most, size, size, dtype=torch.bool)
    place = (torch.arange(size) + 0.5) / size
    for k in range(most):
        rows = [m for m, scene in enumerate(scenes) if len(scene) > k]
        chosen = [scenes[m][k] for m in rows]
        if not chosen:
            continue

        def column(values: list[float]) -> Tensor:
            return torch.tensor(values)[:, None, None]

        radius = column([_RADIUS[o.size] for o in chosen])
        across = (place[None, None, :] - column([o.x for o in chosen])) / radius
        down = (place[None, :, None] - column([o.y for o in chosen])) / radius
        # 1 on the edge of each shape, less inside
        disc = (across.square() + down.square()).sqrt()
        square = torch.maximum(across.abs(), down.abs()) / 0.86
        upright = torch.maximum(
            (across.square() + (0.9 * down).square()).sqrt(), across.abs() / 0.55
        )
        shape = torch.tensor([SHAPES.index(o.shape) for o in chosen])[:, None, None]
        height = torch.where(shape == 0, square, torch.where(shape == 1, disc, upright))
        soft = radius * size  # pixels from the center to the edge
        covered = ((1 - height) * soft + 0.5).clamp(0, 1)
        metal = column([float(o.material == "metal") for o in chosen])
        spot = (1.3 - ((across + 0.1).square() + (down + 0.25).square()).sqrt() / 0.3).clamp(0, 1)
        rim = ((height - 0.55) / 0.3).clamp(0, 1)
        color = PALETTE[[COLORS.index(o.color) for o in chosen]][:, :, None, None]
        shiny = (metal * spot)[:, None]
        matte = ((1 - metal) * rim)[:, None]
        paint = (color + shiny * (1 - color)) * (1 - 0.55 * matte)
        layer = covered[:, None]
        images[rows] = images[rows] * (1 - layer) + paint * layer
        masks[rows, k] = covered > 0.5
    return images, masks


#: Some values of attributes, in the order they are said; those left out may be anything.
Description = dict[str, str]


class _Named(NamedTuple):
    """A way to speak of objects: which they are, in words for one and for several."""

    found: tuple[int, ...]
    one: str
    several: str
    helpers: tuple[int, ...]


def _fits(o: SceneObject, described: Description) -> bool:
    return all(getattr(o, name) == value for name, value in described.items())


def _phrase(described: Description, noun: str) -> tuple[str, str]:
    """`large red cube` and `large red cubes`."""
    before = [described[a] for a in ("size", "color", "material") if a in described]
    noun = described.get("shape", noun)
    return " ".join([*before, noun]), " ".join([*before, noun + "s"])


def _lies(one: SceneObject, relation: str, other: SceneObject) -> bool:
    return {
        "left of": one.x < other.x,
        "right of": one.x > other.x,
        "above": one.y < other.y,
        "below": one.y > other.y,
    }[relation]


class _Asking(NamedTuple):
    """How questions about a scene are asked."""

    source: random.Random
    scene: Scene
    names: tuple[str, ...]
    relations: bool

    def shuffled(self, without: str = "") -> list[str]:
        """Attributes in a random order."""
        names = [name for name in self.names if name != without]
        self.source.shuffle(names)
        return names

    def fewest(self, k: int, among: Sequence[int], names: list[str]) -> Description | None:
        """The first attributes that tell object k from the others; None if all do not."""
        described: Description = {}
        for name in (None, *names):
            if name is not None:
                described[name] = getattr(self.scene[k], name)
            if [j for j in among if _fits(self.scene[j], described)] == [k]:
                return described
        return None

    def one_object(self, without: str, relations: bool) -> _Named | None:
        """One object, named by attributes other than one, or by where it lies from another."""
        source, scene = self.source, self.scene
        everything = range(len(scene))
        k = source.randrange(len(scene))
        noun = source.choice(("object", "thing"))
        named = self.fewest(k, everything, self.shuffled(without))
        if relations and len(scene) > 1 and (named is None or source.random() < 0.5):
            other = source.choice([j for j in everything if j != k])
            helper = self.fewest(other, everything, self.shuffled())
            relation = source.choice([r for r in RELATIONS if _lies(scene[k], r, scene[other])])
            there = [j for j in everything if _lies(scene[j], relation, scene[other])]
            loose = self.fewest(k, there, self.shuffled(without))
            if helper and loose is not None:
                one, several = _phrase(loose, noun)
                where = f" {relation} the {_phrase(helper, 'object')[0]}"
                return _Named((k,), one + where, several + where, (other,))
        return None if named is None else _Named((k,), *_phrase(named, noun), ())

    def some_objects(self, relations: bool) -> _Named:
        """Objects of one or two given attributes, which may be none."""
        source, scene = self.source, self.scene
        names = self.shuffled()[: source.choice((1, 2))]
        # each of an object that is there, so that two of them may or may not go together
        described: Description = {a: getattr(source.choice(scene), a) for a in names}
        found = tuple(k for k, o in enumerate(scene) if _fits(o, described))
        one, several = _phrase(described, source.choice(("object", "thing")))
        helpers: tuple[int, ...] = ()
        if relations and source.random() < 0.5:
            other = source.randrange(len(scene))
            helper = self.fewest(other, range(len(scene)), self.shuffled())
            if helper:
                relation = source.choice(RELATIONS)
                where = f" {relation} the {_phrase(helper, 'object')[0]}"
                found = tuple(k for k in found if _lies(scene[k], relation, scene[other]))
                one, several, helpers = one + where, several + where, (other,)
        return _Named(found, one, several, helpers)

    def query(self, kind: str) -> _Asked | None:
        name = kind.removeprefix("query_")
        named = self.one_object(name, self.relations)
        if named is None:
            return None
        form = self.source.choice(_QUERIES)
        question = form.format(a=name, o=named.one)
        return question, getattr(self.scene[named.found[0]], name), named.found + named.helpers

    def number(self, kind: str) -> _Asked:
        named = self.some_objects(self.relations)
        about = tuple(sorted({*named.found, *named.helpers}))
        if kind == "count":
            form = self.source.choice(("how many {o} are there", "what number of {o} are there"))
            return form.format(o=named.several), str(len(named.found)), about
        answer = "yes" if named.found else "no"
        if self.source.random() < 0.5:
            return f"is there a {named.one}", answer, about
        return f"are there any {named.several}", answer, about

    def equal(self, kind: str) -> _Asked | None:
        name = kind.removeprefix("equal_")
        one, other = (self.one_object(name, False) for _ in range(2))
        if one is None or other is None or one.found == other.found:
            return None
        k, j = one.found[0], other.found[0]
        same = getattr(self.scene[k], name) == getattr(self.scene[j], name)
        form = self.source.choice(
            ("is the {p} the same {a} as the {q}", "do the {p} and the {q} have the same {a}")
        )
        return form.format(p=one.one, q=other.one, a=name), "yes" if same else "no", (k, j)

    def compare(self, kind: str) -> _Asked | None:
        form, holds = _COMPARED[kind]
        one, other = (self.some_objects(False) for _ in range(2))
        if one.several == other.several:
            return None
        answer = "yes" if holds(len(one.found), len(other.found)) else "no"
        question = form.format(p=one.several, q=other.several)
        return question, answer, tuple(sorted({*one.found, *other.found}))

    def ask(self, kind: str) -> _Asked | None:
        """A question of a type, its answer and the objects it is about, if one can be asked."""
        if kind.startswith("query_"):
            return self.query(kind)
        if kind in _COMPARED:
            return self.compare(kind)
        return self.equal(kind) if kind.startswith("equal_") else self.number(kind)


_Asked = tuple[str, str, tuple[int, ...]]

_QUERIES = (
    "what {a} is the {o}",
    "what is the {a} of the {o}",
    "the {o} is what {a}",
    "there is a {o} what {a} is it",
)

_COMPARED: dict[str, tuple[str, Callable[[int, int], bool]]] = {
    "less_than": ("are there fewer {p} than {q}", lambda a, b: a < b),
    "greater_than": ("are there more {p} than {q}", lambda a, b: a > b),
    "equal_integer": ("are there the same number of {p} as {q}", lambda a, b: a == b),
}


def _questions(
    asking: _Asking, order: itertools.cycle[str], seen: dict[str, Counter[str]], count: int
) -> list[_Question]:
    """Questions about one scene; types in which nothing can be asked about it are left out."""
    made: list[_Question] = []
    for kind, _ in zip(order, range(count), strict=False):
        drawn = [asking.ask(kind) for _ in range(DRAWN)]
        possible = [d for d in drawn if d is not None]
        if possible:
            question, answer, about = min(possible, key=lambda d: seen[kind][d[1]])
            seen[kind][answer] += 1
            made.append(_Question(kind, tuple(question.split()), answer, about))
    return made

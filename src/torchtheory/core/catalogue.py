"""The catalogue: every result of the sources, with its id, its place and the room it lives in.

A claim, a lab or a finding names what it is about by an id such as `"N-08"`. This module says
what the id stands for, so that a report can cite the source and a reader can look the result up.
The data are the TOML files of the package `torchtheory.catalogue`; they are read once, on first
use, and validated as they are read: a bad file is an error, never a missing line in a table.

>>> novikoff = entry("N-08")
>>> novikoff.name
"Novikoff's bound on the perceptron's updates"
>>> novikoff.citation
'Deep Learning (notes), §1.2, Theorem 1.3'
>>> [found.id for found in search("ntk recursion")]
['M-19']
"""

from __future__ import annotations

import re
import tomllib
import unicodedata
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from importlib import resources
from importlib.resources.abc import Traversable
from types import MappingProxyType
from typing import Any, Final

from torchtheory.core.errors import FileProblem, UnknownName

__all__ = [
    "KINDS",
    "ROOMS",
    "Entry",
    "Erratum",
    "Source",
    "entries",
    "entry",
    "errata",
    "read_entries",
    "read_errata",
    "search",
    "sources",
]

KINDS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "model": "a network, a layer, an activation or another parametrized function",
        "algorithm": "a procedure that ends with a result",
        "estimator": "a number computed from data or a network: a statistic, a loss, a bound",
        "theorem": "a statement that a check can confirm or refute",
        "construction": "an object written down explicitly, often by a proof",
        "experiment": "a figure or a table to be reproduced",
        "dataset": "data, or a generator of data",
        "exercise": "a problem the source sets, with its answer",
        "background": "context only: nothing to compute",
    }
)
"""What an entry can be, and what each kind means. An entry of several kinds has its main one."""

ROOMS: Final[tuple[str, ...]] = (
    "primer",
    "nets",
    "neurons",
    "convolution",
    "equivariance",
    "graphs",
    "sequences",
    "training",
    "expressivity",
    "robustness",
    "explanation",
    "optimization",
    "kernels",
    "generalization",
    "approximation",
    "stochastic",
    "sparsity",
    "scattering",
    "inverse",
    "control",
    "tensors",
    "pde",
)
"""The rooms of the library, in their order: each may use those before it."""

_ABBREVIATIONS: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {
        "bn": ("batch normalization",),
        "bptt": ("backpropagation through time",),
        "cnn": ("convolutional network", "convolutional neural network"),
        "dbn": ("deep belief network",),
        "dip": ("deep image prior",),
        "erm": ("empirical risk minimization",),
        "fft": ("fast fourier transform",),
        "fgsm": ("fast gradient sign",),
        "gan": ("generative adversarial network",),
        "gat": ("graph attention network",),
        "gcn": ("graph convolutional network",),
        "gd": ("gradient descent",),
        "gnn": ("graph network", "graph neural network"),
        "gp": ("gaussian process",),
        "gru": ("gated recurrent unit",),
        "hjb": ("hamilton jacobi bellman",),
        "ista": ("iterative shrinkage",),
        "kkt": ("karush kuhn tucker",),
        "kl": ("kullback leibler",),
        "lrp": ("layer wise relevance propagation",),
        "lstm": ("long short term memory",),
        "map": ("maximum a posteriori",),
        "mc": ("monte carlo",),
        "mlp": ("multilayer perceptron",),
        "mps": ("matrix product state",),
        "msa": ("method of successive approximations",),
        "nngp": ("neural network gaussian process",),
        "ntk": ("neural tangent kernel",),
        "ode": ("ordinary differential equation",),
        "ols": ("ordinary least squares",),
        "pde": ("partial differential equation",),
        "pgd": ("projected gradient",),
        "pinn": ("physics informed neural network",),
        "pl": ("polyak łojasiewicz",),
        "pmp": ("maximum principle",),
        "rbf": ("radial basis function",),
        "rbm": ("restricted boltzmann machine",),
        "resnet": ("residual network", "residual neural network"),
        "rkhs": ("reproducing kernel hilbert space",),
        "rnn": ("recurrent network", "recurrent neural network"),
        "sbn": ("sigmoid belief network",),
        "sde": ("stochastic differential equation",),
        "sgd": ("stochastic gradient descent",),
        "svd": ("singular value decomposition",),
        "svm": ("support vector machine",),
        "vae": ("variational autoencoder",),
        "vc": ("vapnik chervonenkis",),
        "vit": ("vision transformer",),
        "vmc": ("variational monte carlo",),
    }
)
"""Abbreviations and what they stand for. `search` reads each both ways, in names only."""


@dataclass(frozen=True, slots=True)
class Source:
    """A text the catalogue covers. What the source does not say (an author, say) is empty."""

    key: str
    title: str
    short: str
    authors: str
    edition: str
    chapters: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Entry:
    """One result of a source: what it is called here, and where the source has it.

    `where` is what a reader of the source would look up (a section, a theorem, a slide's title),
    `source` the key of the source and `source_title` its short title.
    """

    id: str
    name: str
    where: str
    kind: str
    room: str
    background: bool
    source: str
    source_title: str

    @property
    def citation(self) -> str:
        """The source and the place in it, as one line."""
        return f"{self.source_title}, {self.where}"


@dataclass(frozen=True, slots=True)
class Erratum:
    """A false statement of a source: what it prints, and what is true and why.

    Both texts are plain, with LaTeX between dollar signs.
    """

    key: str
    id: str
    printed: str
    correct: str


def entries() -> Mapping[str, Entry]:
    """All entries by id, ordered by source and then as the source has them (read-only)."""
    return _catalogue()[1]


def sources() -> Mapping[str, Source]:
    """The sources by key (read-only)."""
    return _catalogue()[0]


def entry(id: str) -> Entry:
    """The entry with this id, or `UnknownName`.

    >>> entry("n-08")
    Traceback (most recent call last):
        ...
    torchtheory.core.errors.UnknownName: no catalogue entry is named 'n-08'; did you mean 'N-08'?
    """
    known = entries()
    if id not in known:
        # Upper case first: ids are upper case, and suggestions compare letter by letter.
        suggestions = [id.upper()] if id.upper() in known else known
        raise UnknownName("catalogue entry", id, suggestions)
    return known[id]


@cache
def errata() -> Mapping[str, Erratum]:
    """All errata by key, ordered by file and then as the file has them (read-only)."""
    return read_errata(_directory() / "errata", entries())


def search(query: str) -> list[Entry]:
    """The entries that contain every word of the query, best matches first.

    A word is looked for in the id, the name and the citation, whatever its case, its accents and
    its spelling in -ise or -ize. Numbers must be met whole, words of up to three letters must
    begin a word of the entry, longer ones may be inside one. Common abbreviations find the entries
    that spell them out, and the other way round. An id match comes first, then names, then
    citations; ties keep the order of the catalogue. A query without words finds nothing.

    >>> [found.id for found in search("N-8")]
    ['N-08']
    >>> [found.id for found in search("vae")]
    ['E-08']
    """
    tokens = query.split()
    ranked = []
    for candidate, texts in _search_index():
        ranks = [_rank(token, candidate, texts) for token in tokens]
        found = [rank for rank in ranks if rank is not None]
        if found and len(found) == len(ranks):
            ranked.append((sum(found), candidate))
    ranked.sort(key=lambda pair: pair[0])
    return [candidate for _, candidate in ranked]


# ------------------------------------------------------------------------------------ search

_Texts = tuple[frozenset[str], frozenset[str], frozenset[str]]
_NO_ACCENT: Final = str.maketrans({"ł": "l", "ø": "o", "ı": "i"})
_ID: Final = re.compile(r"([A-Za-z])-0*(\d+)")


def _words(text: str) -> list[str]:
    """Words in one spelling: no case, no accents, -ize as -ise, numbers such as 1.3 whole."""
    plain = unicodedata.normalize("NFKD", text.casefold().translate(_NO_ACCENT))
    plain = "".join(c for c in plain if not unicodedata.combining(c)).replace("iz", "is")
    return re.findall(r"\w+(?:\.\w+)*", plain)


@cache
def _search_index() -> tuple[tuple[Entry, _Texts], ...]:
    """Per entry the words of its name, the words abbreviations add to it, and its citation's."""
    table = [(short, _words(long)) for short, longs in _ABBREVIATIONS.items() for long in longs]
    index = []
    for item in entries().values():
        name = _words(item.name)
        added: set[str] = set()
        for short, long in table:
            if short in name:
                added.update(long)
            if _contains(name, long):
                added.add(short)
        index.append((item, (frozenset(name), frozenset(added), frozenset(_words(item.citation)))))
    return tuple(index)


def _contains(name: list[str], phrase: list[str]) -> bool:
    """Whether the phrase occurs in the name; its last word may go on (a plural)."""
    *head, last = phrase
    return any(
        name[i : i + len(head)] == head and name[i + len(head)].startswith(last)
        for i in range(len(name) - len(head))
    )


def _rank(token: str, candidate: Entry, texts: _Texts) -> int | None:
    """How well the entry matches one word of a query (0 is best), or None if it does not."""
    if (same := _ID.fullmatch(token)) and (own := _ID.fullmatch(candidate.id)):
        if (same[1].upper(), same[2]) == own.groups():
            return 0
        return None
    words = _words(token)
    if not words:
        return None
    name, added, citation = texts
    if all(word in name for word in words):
        return 1
    for rank, pool in enumerate((name, name | added, name | added | citation), start=2):
        if all(any(_occurs(word, text) for text in pool) for word in words):
            return rank
    return None


def _occurs(word: str, text: str) -> bool:
    if word[0].isdigit():
        return word == text
    return text.startswith(word) if len(word) <= 3 else word in text


# ----------------------------------------------------------------------------------- reading


def _directory() -> Traversable:
    return resources.files("torchtheory.catalogue")


@cache
def _catalogue() -> tuple[Mapping[str, Source], Mapping[str, Entry]]:
    return read_entries(_directory())


def read_entries(directory: Traversable) -> tuple[Mapping[str, Source], Mapping[str, Entry]]:
    """Sources and entries of all TOML files of a directory, in the order of the files' names.

    A source may be spread over several files, one per chapter: they repeat its title and add
    their chapters. Raises `FileProblem` for whatever is missing, empty, unknown or double.
    """
    found_sources: dict[str, Source] = {}
    found: dict[str, Entry] = {}
    for file, content in _tables(directory):
        source = _read_source(file, content.get("source"))
        if earlier := found_sources.get(source.key):
            if replace(earlier, chapters=()) != replace(source, chapters=()):
                raise FileProblem(f"{file}: source {source.key!r} differs from an earlier file's")
            source = replace(source, chapters=earlier.chapters + source.chapters)
        found_sources[source.key] = source
        for number, row in enumerate(_rows(file, content, "entry"), start=1):
            item = _read_entry(f"{file}, entry {number}", row, source)
            if item.id in found:
                raise FileProblem(f"{file}, entry {number}: the id {item.id} is used twice")
            found[item.id] = item
    return MappingProxyType(found_sources), MappingProxyType(found)


def read_errata(directory: Traversable, known_ids: Collection[str]) -> Mapping[str, Erratum]:
    """The errata of all TOML files of a directory, in the order of the files' names.

    Raises `FileProblem` for an unknown id, a key used twice or not in kebab-case, and for
    whatever is missing or empty.
    """
    found: dict[str, Erratum] = {}
    for file, content in _tables(directory):
        for number, row in enumerate(_rows(file, content, "erratum"), start=1):
            place = f"{file}, erratum {number}"
            text = _strings(place, row, ("key", "id", "printed", "correct"))
            # A text may be wrapped in the file: line ends are layout, not content.
            item = Erratum(**{field: " ".join(value.split()) for field, value in text.items()})
            if not re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", item.key):
                raise FileProblem(f"{place}: the key {item.key!r} is not in kebab-case")
            if item.key in found:
                raise FileProblem(f"{place}: the key {item.key!r} is used twice")
            if item.id not in known_ids:
                raise FileProblem(f"{place}: {UnknownName('catalogue entry', item.id, known_ids)}")
            found[item.key] = item
    return MappingProxyType(found)


def _tables(directory: Traversable) -> Iterator[tuple[str, dict[str, Any]]]:
    files = [file for file in directory.iterdir() if file.name.endswith(".toml")]
    for file in sorted(files, key=lambda file: file.name):
        try:
            yield file.name, tomllib.loads(file.read_text(encoding="utf-8"))
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as problem:
            raise FileProblem(f"{file.name} is not valid TOML: {problem}") from problem


def _rows(file: str, content: Mapping[str, Any], table: str) -> list[dict[str, Any]]:
    """The tables `[[table]]` of a file, which must be all it has besides `[source]`."""
    if unknown := sorted(content.keys() - {table, "source"}):
        raise FileProblem(f"{file}: unknown table {unknown[0]!r}; expected [[{table}]]")
    rows = content.get(table, [])
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise FileProblem(f"{file}: {table!r} must be an array of tables, written [[{table}]]")
    return rows


def _strings(
    place: str,
    row: Mapping[str, Any],
    fields: tuple[str, ...],
    *,
    beside: Collection[str] = (),
    may_be_empty: Collection[str] = (),
) -> dict[str, str]:
    """The string fields of a table, all present and not blank, with no field besides them."""
    if unknown := sorted(row.keys() - set(fields) - set(beside)):
        raise FileProblem(f"{place}: unknown field {unknown[0]!r}")
    for field in fields:
        value = row.get(field)
        if not isinstance(value, str) or not (value.strip() or field in may_be_empty):
            raise FileProblem(f"{place}: {field!r} must be a non-empty string")
    return {field: row[field] for field in fields}


def _read_source(file: str, row: object) -> Source:
    if not isinstance(row, dict):
        raise FileProblem(f"{file}: the table [source] is missing")
    text = _strings(
        f"{file}, source",
        row,
        ("key", "title", "short", "authors", "edition"),
        beside=("chapters",),
        may_be_empty=("authors", "edition"),
    )
    chapters = row.get("chapters", [])
    if not isinstance(chapters, list) or not all(isinstance(title, str) for title in chapters):
        raise FileProblem(f"{file}, source: 'chapters' must be a list of strings")
    return Source(**text, chapters=tuple(chapters))


def _read_entry(place: str, row: Mapping[str, Any], source: Source) -> Entry:
    text = _strings(place, row, ("id", "name", "where", "kind", "room"), beside=("background",))
    background = row.get("background")
    if not isinstance(background, bool):
        raise FileProblem(f"{place}: 'background' must be true or false")
    if not re.fullmatch(r"[A-Z]-\d{2,3}", text["id"]):
        raise FileProblem(f"{place}: the id {text['id']!r} is not a letter, '-' and 2 or 3 digits")
    for field, known in (("kind", tuple(KINDS)), ("room", ROOMS)):
        if text[field] not in known:
            raise FileProblem(f"{place}: {UnknownName(field, text[field], known)}")
    if background != (text["kind"] == "background"):
        raise FileProblem(f"{place}: 'background' is true exactly for the kind 'background'")
    return Entry(**text, background=background, source=source.key, source_title=source.short)

"""The catalogue is complete, well-formed and searchable, and bad files are refused."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest

from torchtheory.core import catalogue
from torchtheory.core.errors import FileProblem, UnknownName

NUMBER_OF_IDS = {
    "N": 140,
    "S": 51,
    "L": 167,
    "M": 171,
    "A": 170,
    "B": 51,
    "C": 107,
    "D": 122,
    "E": 84,
    "X": 95,
}

ALL = list(catalogue.entries().values())


# ----------------------------------------------------------------------------- completeness


def test_every_id_is_there_once():
    assert len(catalogue.entries()) == 1158 == sum(NUMBER_OF_IDS.values())
    assert Counter(item.id[0] for item in ALL) == NUMBER_OF_IDS


@pytest.mark.parametrize(("prefix", "count"), NUMBER_OF_IDS.items())
def test_numbers_are_contiguous_and_in_order(prefix, count):
    numbers = [int(item.id[2:]) for item in ALL if item.id[0] == prefix]
    assert numbers == list(range(1, count + 1))


def test_entries_of_a_source_stand_together():
    order = [item.source for item in ALL]
    blocks = [key for i, key in enumerate(order) if i == 0 or order[i - 1] != key]
    assert blocks == sorted(set(order)) == list(catalogue.sources())


def test_the_mappings_are_read_only():
    with pytest.raises(TypeError):
        catalogue.entries()["N-08"] = None
    with pytest.raises(TypeError):
        catalogue.errata()["new"] = None


def test_background_is_what_holds_nothing_to_compute():
    background = [item.id for item in ALL if item.background]
    assert sorted(background) == [
        *["E-84", "N-01", "N-12", "N-139", "N-140"],
        *["S-01", "S-07", "S-41"],
    ]
    assert not catalogue.entry("N-19").background


# ------------------------------------------------------------------------------- well-formed


def test_names_are_short_plain_text():
    for item in ALL:
        assert 3 <= len(item.name) <= 100, item
        assert item.name == item.name.strip(), item
        assert not re.search(r"[\\$*`\"{}<>|]|\n|  ", item.name), item
        assert not item.name.endswith((".", ",", ";", ":")), item
        assert not re.search(r"\b(Theorem|Lemma|Figure|Table|Eq\.) \(?\d", item.name), item


def test_names_are_unique_within_a_chapter():
    # Two sources, or two chapters of the book, may treat the same thing under the same name.
    names = Counter((item.id[0], item.name) for item in ALL)
    assert [key for key, times in names.items() if times > 1] == []


def test_places_are_what_a_reader_can_look_up():
    for item in ALL:
        assert item.where.strip(), item
        assert "\\" not in item.where, item
        assert not re.search(r"\bL\d|\blines?\b|\.txt|\.md", item.where), item
        # Sections, theorems, equations: no number is long enough to be a line of a text file.
        assert not re.search(r"\d{3}", item.where), item
        assert re.match(r"§|Chapter|slides? “|Preface|References|List of|Both editions", item.where)


def test_section_numbers_belong_to_the_chapters_of_the_prefix():
    chapters = {
        "N": range(1, 9),
        "L": range(1, 7),
        "M": range(7, 14),
        "A": (1,),
        "B": (2, 4),
        "C": (5, 6, 7),
        "D": (8,),
        "E": (9, 10, 11),
        "X": (3,),
    }
    for item in ALL:
        for number in re.findall(r"§+(\d+)", item.where):
            assert int(number) in chapters[item.id[0]], item


def test_kinds_and_rooms_are_of_the_vocabulary_and_all_used():
    assert {item.kind for item in ALL} == set(catalogue.KINDS)
    assert {item.room for item in ALL} == set(catalogue.ROOMS)


def test_sources():
    sources = catalogue.sources()
    assert list(sources) == ["lectures", "monograph", "notes", "slides"]
    assert sources["lectures"].authors == "Aurelien Lucchi"
    numbers = [int(title.split()[0]) for title in sources["monograph"].chapters]
    assert numbers == list(range(1, 12))
    for item in ALL:
        assert item.source_title == sources[item.source].short


# ----------------------------------------------------------------------------------- lookup


def test_entry_and_citation():
    novikoff = catalogue.entry("N-08")
    assert novikoff.kind == "theorem"
    assert novikoff.room == "neurons"
    assert novikoff.citation == "Deep Learning (notes), §1.2, Theorem 1.3"
    assert catalogue.entry("M-29").citation == "Foundations of Deep Learning, §8.1, Eq. (8.1)"


def test_unknown_id_says_so_in_one_sentence():
    with pytest.raises(UnknownName, match=r"^no catalogue entry is named 'N-8'; did you mean 'N-"):
        catalogue.entry("N-8")
    with pytest.raises(ValueError, match=r"^no catalogue entry is named 'nothing like an id'"):
        catalogue.entry("nothing like an id")


# ----------------------------------------------------------------------------------- search


def ids(query):
    return [item.id for item in catalogue.search(query)]


def test_search_by_id_finds_exactly_it():
    assert ids("N-08") == ids("n-8") == ids("  N-008 ") == ["N-08"]
    assert ids("L-1") == ["L-001"]
    assert ids("N-08 novikoff") == ["N-08"]
    assert ids("N-08 hopfield") == []


@pytest.mark.parametrize(
    ("short", "long", "expected"),
    [
        ("ntk", "neural tangent kernel", {"M-15", "M-19", "A-56"}),
        ("rnn", "recurrent network", {"N-67", "X-95"}),
        ("gan", "generative adversarial network", {"E-09"}),
        ("lrp", "layer-wise relevance propagation", {"C-21", "C-24"}),
        ("pinn", "physics-informed neural network", {"A-163"}),
        ("sgd", "stochastic gradient descent", {"L-135", "A-23", "S-21"}),
        ("svm", "support vector machine", {"M-127"}),
        ("svd", "singular value decomposition", {"L-022"}),
        ("pl", "Polyak-Lojasiewicz", {"L-134", "N-46", "A-123"}),
    ],
)
def test_abbreviations_and_their_long_forms_find_the_same(short, long, expected):
    assert expected <= set(ids(short))
    assert expected <= set(ids(long))


def test_vc_is_no_part_of_other_words():
    assert "M-36" in ids("vc")
    assert all("VC" in item.name for item in catalogue.search("vc"))


def test_every_word_must_occur_in_any_order_and_spelling():
    assert ids("KERNEL ridge") == ids("ridge kernel") == ["M-169"]
    assert ids("batch normalization") == ids("batch normalisation") != []
    assert ids("holder") == ids("Hölder") != []
    assert ids("kernel zebra") == []


def test_names_come_before_citations():
    found = catalogue.search("montufar")
    in_name = ["Montúfar" in item.name for item in found]
    assert True in in_name
    assert False in in_name
    assert in_name == sorted(in_name, reverse=True)


def test_search_by_place():
    assert ids("theorem 1.3 notes")[0] == "N-08"


@pytest.mark.parametrize("query", ["", "   ", "—", "zzzz", "N-999", "\\"])
def test_no_match_is_an_empty_list(query):
    assert catalogue.search(query) == []


# ----------------------------------------------------------------------------------- errata


def test_errata_are_valid():
    errata = catalogue.errata()
    assert Counter(item.id for item in errata.values())["N-08"] >= 2
    for key, item in errata.items():
        assert item.key == key
        assert item.id in catalogue.entries()
        assert item.printed != item.correct
        for text in (item.printed, item.correct):
            assert text.strip() == text != ""
            assert text.count("$") % 2 == 0, item


GOOD = {"key": "a-key", "id": "N-08", "printed": "false", "correct": "true"}


def erratum(**changes: str | None) -> str:
    fields = {**GOOD, **changes}
    rows = [f'{name} = "{value}"' for name, value in fields.items() if value is not None]
    return "\n".join(["[[erratum]]", *rows, ""])


def read(directory: Path, *texts: str):
    for number, text in enumerate(texts):
        (directory / f"room{number}.toml").write_text(text, encoding="utf-8")
    return catalogue.read_errata(directory, catalogue.entries())


def test_errata_of_all_files_are_read_in_order(tmp_path):
    (tmp_path / "README.md").write_text("not an erratum")
    found = read(tmp_path, erratum() + erratum(key="b"), erratum(key="a0"))
    assert list(found) == ["a-key", "b", "a0"]
    assert found["a-key"] == catalogue.Erratum(**GOOD)
    assert read(tmp_path, "", "") == {}


def test_line_ends_in_a_text_are_layout(tmp_path):
    found = read(tmp_path, erratum(printed=None) + 'printed = """\none\ntwo\n"""\n')
    assert found["a-key"].printed == "one two"


@pytest.mark.parametrize(
    ("texts", "sentence"),
    [
        ([erratum(id="N-999")], "room0.toml, erratum 1: no catalogue entry is named 'N-999'"),
        ([erratum() + erratum()], "room0.toml, erratum 2: the key 'a-key' is used twice"),
        ([erratum(), erratum()], "room1.toml, erratum 1: the key 'a-key' is used twice"),
        ([erratum(key="A Key")], "the key 'A Key' is not in kebab-case"),
        ([erratum(printed="  ")], "'printed' must be a non-empty string"),
        ([erratum(correct=None)], "'correct' must be a non-empty string"),
        ([erratum() + "id2 = 3\n"], "unknown field 'id2'"),
        ([erratum(key=None) + "key = 3\n"], "'key' must be a non-empty string"),
        (["[[eratum]]\nkey = 'a'\n"], "unknown table 'eratum'; expected [[erratum]]"),
        (["[erratum]\nkey = 'a'\n"], "must be an array of tables"),
        (["[[erratum]\n"], "room0.toml is not valid TOML"),
    ],
)
def test_malformed_errata_are_refused(tmp_path, texts, sentence):
    with pytest.raises(FileProblem, match=re.escape(sentence)):
        read(tmp_path, *texts)


# ---------------------------------------------------------------------------- malformed files

SOURCE = '[source]\nkey = "k"\ntitle = "T"\nshort = "t"\nauthors = ""\nedition = ""\n'
ENTRY = {"id": "Z-01", "name": "n", "where": "§1", "kind": "theorem", "room": "nets"}


def row(background: str = "false", **changes: str) -> str:
    fields = {**ENTRY, **changes}
    rows = [f'{name} = "{value}"' for name, value in fields.items()]
    return "\n".join(["[[entry]]", *rows, f"background = {background}", ""])


def test_chapters_in_several_files_are_one_source(tmp_path):
    (tmp_path / "k-1.toml").write_text(SOURCE + 'chapters = ["1 One"]\n' + row())
    (tmp_path / "k-2.toml").write_text(SOURCE + 'chapters = ["2 Two"]\n' + row(id="Z-02"))
    sources, found = catalogue.read_entries(tmp_path)
    assert sources["k"].chapters == ("1 One", "2 Two")
    assert list(found) == ["Z-01", "Z-02"]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (row(), "the table [source] is missing"),
        (SOURCE + row() + row(), "k.toml, entry 2: the id Z-01 is used twice"),
        (SOURCE + row(id="Z1"), "the id 'Z1' is not a letter"),
        (SOURCE + row(kind="theorm"), "no kind is named 'theorm'; did you mean 'theorem'?"),
        (SOURCE + row(room="attic"), "no room is named 'attic'"),
        (SOURCE + row(where=""), "'where' must be a non-empty string"),
        (SOURCE + row(background='"no"'), "'background' must be true or false"),
        (SOURCE + row(background="true"), "exactly for the kind 'background'"),
        (SOURCE.replace('"T"', '""'), "'title' must be a non-empty string"),
        (SOURCE + "chapters = 3\n", "'chapters' must be a list of strings"),
    ],
)
def test_malformed_entries_are_refused(tmp_path, text, sentence):
    (tmp_path / "k.toml").write_text(text)
    with pytest.raises(FileProblem, match=re.escape(sentence)):
        catalogue.read_entries(tmp_path)


def test_files_of_one_source_must_agree(tmp_path):
    (tmp_path / "k-1.toml").write_text(SOURCE)
    (tmp_path / "k-2.toml").write_text(SOURCE.replace('"T"', '"U"'))
    with pytest.raises(FileProblem, match="source 'k' differs"):
        catalogue.read_entries(tmp_path)

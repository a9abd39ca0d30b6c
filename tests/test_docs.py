"""The documentation: its navigation is complete, its names exist, its makers make what they say."""

import importlib
import importlib.util
import io
import json
import re
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from PIL import Image

from torchtheory.core import catalogue
from torchtheory.core.claim import Claim, Verdict
from torchtheory.core.figure import Figure
from torchtheory.labs.engine.run import run_lab
from torchtheory.labs.engine.store import RunStore

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
SETTINGS = (ROOT / "mkdocs.yml").read_text("utf-8")


@pytest.fixture
def making(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(DOCS / "making")


@pytest.fixture
def api_pages(making: None) -> ModuleType:
    return importlib.import_module("api_pages")


@pytest.fixture
def result_pages(making: None) -> ModuleType:
    return importlib.import_module("result_pages")


def test_every_page_stands_in_the_navigation_once() -> None:
    navigation = re.findall(r":\s+(\S+\.md)$", SETTINGS.partition("\nnav:")[2], re.MULTILINE)
    assert sorted(navigation) == sorted(page.name for page in DOCS.glob("*.md"))


def test_what_the_settings_name_exists() -> None:
    for path in re.findall(r"docs/making/\w+\.py", SETTINGS):
        assert (ROOT / path).exists(), path
    for path in re.findall(r"(?:stylesheets|javascripts)/[\w-]+\.\w+", SETTINGS):
        assert (DOCS / path).exists(), path


@pytest.mark.parametrize("page", sorted(DOCS.glob("*.md")), ids=lambda page: page.stem)
def test_links_between_pages_lead_somewhere(page: Path, library: Any) -> None:
    made = {f"results/{name}.md" for name in (*catalogue.ROOMS, "index", "errata")}
    made |= library.pages.keys()
    for link in re.findall(r"\]\(([^)#:]+\.\w+)", page.read_text("utf-8")):
        assert link in made or (DOCS / link).exists(), link


@pytest.mark.parametrize("page", sorted(DOCS.glob("*.md")), ids=lambda page: page.stem)
def test_the_modules_of_a_table_exist(page: Path) -> None:
    text = page.read_text("utf-8")
    for table in re.findall(r"^\|.*modules of `(\S+?)`.*\|\n\|[-| ]+\|\n((?:\|.*\n)+)", text, re.M):
        package, rows = table
        side = 0 if re.search(rf"^\| modules of `{package}`", text, re.M) else 1
        for row in rows.splitlines():
            cell = row.strip("|").split("|")[side].partition(":")[0]
            for module in re.findall(r"`([\w.]+)`", cell):
                assert importlib.util.find_spec(f"{package}.{module}"), module


@pytest.fixture(scope="module")
def library() -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(DOCS / "making")
        return importlib.import_module("api_pages").library(ROOT / "src")


def test_every_name_of_the_reference_exists_and_is_told_once(library: Any) -> None:
    told = [p for _, text in library.pages.values() for p in re.findall(r"(?m)^::: (\S+)", text)]
    assert len(told) == len(set(told)) > 1000
    for path in told:
        module, _, name = path.rpartition(".")
        assert hasattr(importlib.import_module(module), name), path


def test_every_front_has_a_page(library: Any) -> None:
    for stub in (ROOT / "src" / "torchtheory").glob("*/**/__init__.pyi"):
        package = ".".join(stub.parent.relative_to(ROOT / "src").parts)
        page = library.places[package]
        assert package.rpartition(".")[2] == library.pages[page][0]
        for group in importlib.import_module("api_pages").front(stub.parent, package):
            for path in group.paths:
                assert f"::: {path}\n" in library.pages[page][1] or (
                    f"- [`{path.rpartition('.')[2]}`](" in library.pages[page][1]
                ), path


def test_every_documented_function_stands_in_the_index(library: Any) -> None:
    index = library.pages["api/index.md"][1]
    found = re.findall(r"(?m)^- \[`(\w+)`\]\((\S+?)\) in `(\S+)`: .", index)
    assert {f"torchtheory.{module}.{name}" for name, _, module in found} == set(library.lines)
    for name, link, module in found:  # ... and leads to a place that there is
        address, _, anchor = link.partition("#")
        text = library.pages[f"api/{address}"][1]
        assert f"::: {anchor}\n" in text or f'<span id="{anchor}">' in text, (module, name)
    for module in ("graphs.convolutions", "linalg.eigenvalues", "audit.engine.audit"):
        for name, value in vars(importlib.import_module(f"torchtheory.{module}")).items():
            if getattr(value, "__module__", "") == f"torchtheory.{module}" and value.__doc__:
                assert name.startswith("_") or f"torchtheory.{module}.{name}" in library.lines


@pytest.mark.parametrize("page", sorted(DOCS.glob("*.md")), ids=lambda page: page.stem)
def test_what_a_page_names_of_the_library_leads_to_the_reference(page: Path, library: Any) -> None:
    api_pages = importlib.import_module("api_pages")
    text = api_pages.linked(page.read_text("utf-8"), library, page.name)
    for address, _, anchor in re.findall(r"\]\((api/[^)#]+)(#([^)]+))?\)", text):
        assert not anchor or anchor in library.pages[address][1]
    rooms = "|".join(("torchtheory", "tt", *catalogue.ROOMS))
    prose = re.sub(r"(?ms)^```.*?^```$", "", text)
    left = re.findall(rf"(?<!\[)`((?:{rooms})\.[\w.]+)[`(]", prose)
    assert [name for name in left if not name.endswith((".json", ".npz", ".html"))] == []


def test_links_of_a_page(library: Any) -> None:
    api_pages = importlib.import_module("api_pages")
    text = "`graphs.GCN(...)`, `fit`, `depth.narrow`, [`GCN`](x.md)\n```\n`graphs.GCN`\n```\n"
    assert api_pages.linked(text, library, "a.md") == (
        "[`graphs.GCN(...)`](api/graphs.md#torchtheory.graphs.convolutions.GCN), `fit`, "
        "[`depth.narrow`](api/approximation/depth.md#torchtheory.approximation.depth.narrow), "
        "[`GCN`](x.md)\n```\n`graphs.GCN`\n```\n"
    )


def test_a_stub_becomes_groups(api_pages: ModuleType, tmp_path: Path) -> None:
    room = tmp_path / "torchtheory" / "nets"
    (room / "residual").mkdir(parents=True)
    (room / "__init__.py").write_text('"""The networks."""\n')
    (room / "__init__.pyi").write_text(
        "# networks\nfrom .feedforward import mlp as mlp\nfrom .residual import (\n"
        "    residual_network as residual_network,\n)\n\n# functions of\n# one number\n"
        "from torchtheory.nets.activations import activation as activation\n"
        "\n# topics\nfrom . import residual as residual\n"
    )
    assert api_pages.front(room) == [
        api_pages.Group(
            "Networks",
            ("torchtheory.nets.feedforward.mlp", "torchtheory.nets.residual.residual_network"),
        ),
        api_pages.Group("Functions of one number", ("torchtheory.nets.activations.activation",)),
        api_pages.Group("Topics", ("torchtheory.nets.residual",)),
    ]
    (room / "residual" / "__init__.py").write_text('"""Shortcuts."""\n')
    (room / "residual" / "__init__.pyi").write_text("# all\nfrom .layers import a as a\n")
    (room / "residual" / "layers.py").write_text('"""Layers."""\ndef b():\n    """Adds."""\n')
    made = api_pages.library(tmp_path)
    _, page = made.pages["api/nets/index.md"]
    assert "The networks." in page
    assert "- [`residual`](residual.md): Shortcuts." in page
    _, inner = made.pages["api/nets/residual.md"]
    assert "::: torchtheory.nets.residual.layers.a" in inner
    assert '<span id="torchtheory.nets.residual.layers.b"></span>`b`: Adds.' in inner
    assert api_pages.navigation(made.pages)[1:] == [
        {"nets": ["api/nets/index.md", {"residual": "api/nets/residual.md"}]}
    ]


def test_without_a_stub_the_listed_imports_are_the_front(
    api_pages: ModuleType, tmp_path: Path
) -> None:
    room = tmp_path / "nets"
    room.mkdir()
    (room / "__init__.py").write_text(
        "from torchtheory.nets.low_rank import a, b\nfrom torchtheory.core import c\n"
        '__all__ = ["a", "c"]\n'
    )
    assert api_pages.front(room) == [api_pages.Group("Low rank", ("torchtheory.nets.low_rank.a",))]


def test_results_of_a_run(result_pages: ModuleType, tmp_path: Path) -> None:
    picture = io.BytesIO()
    Image.new("RGB", (900, 600), "white").save(picture, "PNG")
    run = run_lab("perceptron-novikoff")
    run.figures = [Figure("first", "A line.", None, picture.getvalue())]
    RunStore(tmp_path).save(run)
    (tmp_path / "broken" / "quick-0").mkdir(parents=True)
    (tmp_path / "broken" / "quick-0" / "config.json").write_text("{")
    found = result_pages.result_pages(tmp_path)
    title, page = found.pages["results/neurons.md"]
    assert title == "neurons"
    assert "### N-08" in page
    assert "<math" in page
    assert 'src="pictures/perceptron-novikoff.webp"' in page
    assert found.images["results/pictures/perceptron-novikoff.webp"][:4] == b"RIFF"
    assert "`torchtheory lab run hopfield-dynamics`" in page
    assert "no lab yet" in found.pages["results/scattering.md"][1]
    assert "1 run with" in found.pages["results/index.md"][1]


def test_every_entry_stands_on_one_page(result_pages: ModuleType, tmp_path: Path) -> None:
    found = result_pages.result_pages(tmp_path / "none")
    everything = "".join(text for _, text in found.pages.values())
    ids = re.findall(r'<span id="([a-z]-\d+)">', everything)
    assert sorted(ids) == sorted(id.lower() for id in catalogue.entries())
    errata = found.pages["results/errata.md"][1]
    assert errata.count('<dl class="erratum">') == len(catalogue.errata())
    assert '<code class="tex">' not in errata


def test_the_full_run_is_shown_before_the_quick_one(
    result_pages: ModuleType, tmp_path: Path
) -> None:
    for preset, promised in (("quick", 1.0), ("full", 2.0)):
        directory = tmp_path / "some-lab" / f"{preset}-0"
        directory.mkdir(parents=True)
        config = {"lab": "some-lab", "preset": preset, "seed": 0}
        (directory / "config.json").write_text(json.dumps(config))
        claim = Claim(("N-08",), "a", promised, "<=", 0.5)
        content = {"claims": [claim.to_json()], "errata": [], "figures": [], "problems": []}
        (directory / "claims.json").write_text(json.dumps(content))
    (run,) = result_pages.read_runs(tmp_path).values()
    assert run.claims[0].promised == 2.0
    assert run.claims[0].verdict is Verdict.HOLDS


def test_formulas_become_mathml(making: None) -> None:
    markdown = pytest.importorskip("markdown")
    formulas = importlib.import_module("formulas")
    html = markdown.markdown(
        "so $$\\|a\\|_2^2$$ and $x_1 * y_1$, not `$z$`", extensions=[formulas.Formulas()]
    )
    assert html.count("<math") == 2
    assert "<code>$z$</code>" in html
    assert not formulas.unset_formulas(html)
    broken = markdown.markdown(r"$\frac{a}{$", extensions=[formulas.Formulas()])
    assert formulas.unset_formulas(broken) == [r"\frac{a}{"]


def test_doctests_are_fenced_and_names_separated(making: None) -> None:
    pytest.importorskip("griffe")
    docstrings = importlib.import_module("docstrings")
    text = "Adds.\n>>> 1 + 1  # doctest: +SKIP\n2\n\n```python\n>>> kept\n```\n"
    assert docstrings.fence_doctests(text) == (
        "Adds.\n\n```pycon\n>>> 1 + 1\n2\n```\n\n```python\n>>> kept\n```"
    )
    several = "Args:\n    a, b: both\n        of them.\n    c: one, d: no name.\n\nx, y: prose."
    assert docstrings.separate_names(several) == (
        "Args:\n    a: both\n        of them.\n    b: both\n        of them.\n"
        "    c: one, d: no name.\n\nx, y: prose."
    )

"""The documentation: its navigation is complete, its names exist, its makers make what they say."""

import importlib
import importlib.util
import io
import json
import re
from pathlib import Path
from types import ModuleType

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
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    made = {f"results/{name}.md" for name in (*catalogue.ROOMS, "index", "errata")}
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


def test_every_name_of_the_reference_exists(api_pages: ModuleType) -> None:
    pages = api_pages.api_pages(ROOT / "src")
    assert {"api/core.md", "api/linalg.md", "api/nets.md", "api/audit.md"} <= pages.keys()
    for _, text in pages.values():
        paths = re.findall(r"^::: (\S+)", text, re.MULTILINE)
        assert paths
        for path in paths:
            module, _, name = path.rpartition(".")
            assert hasattr(importlib.import_module(module), name), path


def test_a_stub_becomes_groups(api_pages: ModuleType, tmp_path: Path) -> None:
    room = tmp_path / "nets"
    room.mkdir()
    (room / "__init__.py").write_text('"""The networks."""\n')
    (room / "__init__.pyi").write_text(
        "# networks\nfrom .feedforward import mlp as mlp\nfrom .residual import (\n"
        "    residual_network as residual_network,\n)\n\n# functions of\n# one number\n"
        "from torchtheory.nets.activations import activation as activation\n"
    )
    assert api_pages.front(room) == [
        api_pages.Group(
            "Networks",
            ("torchtheory.nets.feedforward.mlp", "torchtheory.nets.residual.residual_network"),
        ),
        api_pages.Group("Functions of one number", ("torchtheory.nets.activations.activation",)),
    ]
    assert "The networks." in api_pages.api_page(room)


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

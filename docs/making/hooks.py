"""What mkdocs calls: pages made from the code, the catalogue and finished runs; formulas set."""

from __future__ import annotations

import logging
import shutil
from pathlib import Path
from typing import Any

import api_pages
import formulas
import result_pages

log = logging.getLogger("mkdocs.hooks.torchtheory")


def on_startup(**_: Any) -> None:
    """Copy what the reference is collected from, before anybody looks for it.

    Stubs stay behind: they say where names come from, and the pages name them by their modules. To
    a type checker `torchtheory.audit` is even a class, which would hide the package of that name.
    """
    root = Path(__file__).parents[2]
    copy = root / "build" / "documented"
    shutil.rmtree(copy, ignore_errors=True)
    left_out = shutil.ignore_patterns("__pycache__", "*.json", "*.toml", "*.pyi")
    shutil.copytree(root / "src", copy, ignore=left_out)


def on_config(config: Any) -> Any:
    """Make the generated pages and put them into the navigation."""
    root = Path(config.config_file_path).parent
    library = api_pages.library(root / "src")
    results = result_pages.result_pages(root / config.extra["runs"])
    config.markdown_extensions.append(formulas.Formulas())  # also of docstrings
    config.nav += [
        {"Library": api_pages.navigation(library.pages)},
        {"Results": [{title: place} for place, (title, _) in results.pages.items()]},
    ]
    made = {place: text for place, (_, text) in {**library.pages, **results.pages}.items()}
    config.extra["generated"] = {**made, **results.images}
    config.extra["library"] = library
    log.info(results.summary)
    return config


def on_files(files: Any, config: Any) -> Any:
    """Add the generated pages and pictures; nothing is written into the source tree."""
    from mkdocs.structure.files import File

    for place, content in config.extra.pop("generated").items():
        files.append(File.generated(config, place, content=content))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, **_: Any) -> str:
    """What a page written by hand names of the library leads to the reference."""
    if page.file.generated_by:
        return markdown
    return api_pages.linked(markdown, config.extra["library"], page.file.src_uri)


def on_page_content(html: str, page: Any, **_: Any) -> str:
    """A formula that cannot be set is a warning, and an error of a strict build."""
    for latex in formulas.unset_formulas(html):
        log.warning("%s: cannot set the formula %s", page.file.src_uri, latex)
    return html

"""A page for each package: its front in its groups, each name documented from its docstring.

The front of a package is its stub `__init__.pyi`, where comments at the left margin are headings of
the imports below them. Without a stub it is what `__init__.py` imports and lists in `__all__`,
grouped by module; where that is nothing, what is chosen here.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

PACKAGE = "torchtheory"

#: The packages that have a page, in the order of the import graph, with what their page is called.
PAGES = {
    "core": "core: claims, statements, intervals",
    "linalg": "linalg: matrix-free linear algebra",
    "models": "models: your network as a function",
    "data": "data: data sets",
    "primer": "primer",
    "nets": "nets",
    "neurons": "neurons",
    "convolution": "convolution",
    "equivariance": "equivariance",
    "graphs": "graphs",
    "sequences": "sequences",
    "training": "training",
    "expressivity": "expressivity",
    "robustness": "robustness",
    "explanation": "explanation",
    "optimization": "optimization",
    "kernels": "kernels",
    "generalization": "generalization",
    "approximation": "approximation",
    "stochastic": "stochastic",
    "sparsity": "sparsity",
    "scattering": "scattering",
    "inverse": "inverse",
    "control": "control",
    "tensors": "tensors",
    "pde": "pde",
    "audit": "audit",
}

#: The front of packages whose `__init__` imports nothing: heading, module, names.
CHOSEN = {
    "core": (
        ("Claims", "claim", "Claim Verdict claim not_applicable"),
        ("Statements", "statement", "Statement CounterExample"),
        ("Records", "record", "Record Table"),
        (
            "Intervals",
            "intervals",
            "Interval mean_interval clopper_pearson quantile_interval median_interval fit_slope "
            "hoeffding_radius",
        ),
        ("Randomness", "random", "as_generator"),
        ("The catalogue", "catalogue", "Entry Source Erratum entries sources entry errata search"),
        (
            "Errors",
            "errors",
            "TorchTheoryError InvalidInput InvalidType ShapeMismatch EmptyData "
            "NonFinite LabelOutOfRange UnsupportedModel FileProblem MissingPackage NotConverged "
            "OutOfTime UnknownName",
        ),
    ),
    "linalg": (
        ("Operators", "operators", "LinearOperator"),
        (
            "Eigenvalues",
            "eigenvalues",
            "top_eigenpairs extremal_eigenvalues EigenResult ExtremalEigenvalues",
        ),
        (
            "Singular values",
            "singular_values",
            "singular_values operator_norm operator_norm_upper_bound SingularResult OperatorNorm",
        ),
        ("Spectral density", "density", "spectral_density SpectralDensity"),
        ("Traces", "trace", "trace"),
        ("Linear systems", "conjugate_gradients", "conjugate_gradients Solution"),
    ),
    "models": (
        ("Problems", "problem", "Problem"),
        ("Data", "samples", "Samples collect"),
        (
            "Models as functions",
            "model",
            "PureFunction evaluation_mode flatten unflatten parameters_from",
        ),
        ("Files", "loading", "load_model load_weights read_weights"),
    ),
}


@dataclass(frozen=True, slots=True)
class Group:
    """Names under one heading, as full paths."""

    heading: str
    paths: tuple[str, ...]


def front(directory: Path) -> list[Group]:
    """The groups of a package's front."""
    package = f"{PACKAGE}.{directory.name}"
    stub, module = directory / "__init__.pyi", directory / "__init__.py"
    if stub.exists():
        text = stub.read_text("utf-8")
        headings = _headings(text)
        found: dict[str, list[str]] = {}
        for line, _, path in _imports(text, package):
            heading = next((words for at, words in reversed(headings) if at < line), "")
            found.setdefault(heading, []).append(path)
        return [Group(heading, tuple(paths)) for heading, paths in found.items()]
    text = module.read_text("utf-8")
    listed = _listed(text)
    found = {}
    for _, name, path in _imports(text, package):
        if name in listed:
            place = path.rpartition(".")[0].removeprefix(f"{package}.")
            found.setdefault(_words(place), []).append(path)
    for heading, place, names in () if found else CHOSEN.get(directory.name, ()):
        found[heading] = [f"{package}.{place}.{name}" for name in names.split()]
    return [Group(heading, tuple(paths)) for heading, paths in found.items()]


def introduction(directory: Path) -> str:
    """The docstring of a package."""
    for name in ("__init__.py", "__init__.pyi"):
        path = directory / name
        if path.exists() and (found := ast.get_docstring(ast.parse(path.read_text("utf-8")))):
            return found
    return ""


def api_page(directory: Path) -> str:
    """The Markdown of a package's page."""
    name = directory.name
    lines = [f"# {PAGES.get(name, name)}", "", introduction(directory), ""]
    groups = front(directory)
    chosen = name in CHOSEN and not (directory / "__init__.pyi").exists()
    if groups and not chosen:
        lines += [f"Import what stands here from `{PACKAGE}.{name}`.", ""]
    for group in groups:
        if group.heading:
            lines += [f"## {group.heading}", ""]
        if chosen:
            lines += [f"From `{group.paths[0].rpartition('.')[0]}`.", ""]
        for path in group.paths:
            lines += [f"::: {path}", ""]
    return "\n".join(lines)


def api_pages(source: Path) -> dict[str, tuple[str, str]]:
    """Title and Markdown of every page by its address in the site, for the packages there are."""
    found = {}
    for name in PAGES:
        directory = source / PACKAGE / name
        if (directory / "__init__.py").exists():
            found[f"api/{name}.md"] = (name, api_page(directory))
    return found


def _headings(text: str) -> list[tuple[int, str]]:
    """Comments at the left margin with the line they end at; several lines are one comment."""
    found: list[tuple[int, str]] = []
    for number, line in enumerate(text.splitlines(), start=1):
        if not (comment := re.match(r"#\s*(.+)", line)):
            continue
        words = comment[1].strip()
        if found and found[-1][0] == number - 1:
            found[-1] = (number, f"{found[-1][1]} {words}")
        else:
            found.append((number, words))
    return [(at, words[:1].upper() + words[1:]) for at, words in found]


def _imports(text: str, package: str) -> Iterator[tuple[int, str, str]]:
    """Line, name and full path of whatever the package imports from inside itself."""
    for node in ast.parse(text).body:
        if not isinstance(node, ast.ImportFrom):
            continue
        module = node.module or ""
        if node.level == 1:
            module = f"{package}.{module}".rstrip(".")
        if module == package or module.startswith(f"{package}."):
            for alias in node.names:
                yield node.lineno, alias.asname or alias.name, f"{module}.{alias.name}"


def _listed(text: str) -> list[str]:
    for node in ast.parse(text).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return [str(name) for name in ast.literal_eval(node.value)]
    return []


def _words(module: str) -> str:
    """The path of a module as a heading: `landscape.low_loss_paths` is "Low loss paths"."""
    words = module.rpartition(".")[2].replace("_", " ")
    return words[:1].upper() + words[1:]

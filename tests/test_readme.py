"""Every Python block of the README and of the documentation runs as it stands."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCKS = [
    pytest.param(code, id=f"{page.stem}-{k}")
    for page in PAGES
    for k, code in enumerate(re.findall(r"```python\n(.*?)```", page.read_text("utf-8"), re.S))
]


@pytest.mark.usefixtures("own_registry")
@pytest.mark.parametrize("code", BLOCKS)
def test_block_runs(code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from torchtheory.audit.engine import finding

    finding.all_findings()  # loaded first, so that they stay registered afterwards
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(finding, "_FINDINGS", dict(finding._FINDINGS))
    exec(compile(code, "README", "exec"), {"__name__": "readme"})


def test_the_readme_has_a_block_for_each_way_in() -> None:
    assert sum(b.id.startswith("README") for b in BLOCKS) >= 3

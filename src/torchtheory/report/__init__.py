"""How results become a terminal table, a self-contained page, a notebook cell."""

from torchtheory.report.comparison import (
    comparison_fragment,
    comparison_markdown,
    comparison_page,
    print_comparison,
)
from torchtheory.report.findings import AuditFinding, AuditResult
from torchtheory.report.html import (
    audit_fragment,
    audit_page,
    index_page,
    run_fragment,
    run_page,
)
from torchtheory.report.lists import print_coverage, print_errata
from torchtheory.report.markdown import audit_markdown
from torchtheory.report.plain_math import plain
from torchtheory.report.terminal import print_audit, print_run, print_runs

__all__ = [
    "AuditFinding",
    "AuditResult",
    "audit_fragment",
    "audit_markdown",
    "audit_page",
    "comparison_fragment",
    "comparison_markdown",
    "comparison_page",
    "index_page",
    "plain",
    "print_audit",
    "print_comparison",
    "print_coverage",
    "print_errata",
    "print_run",
    "print_runs",
    "run_fragment",
    "run_page",
]

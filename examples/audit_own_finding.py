"""A finding of your own: which classes does the network never predict?

    python examples/audit_own_finding.py [--directory audit-own]

A finding is a function of the problem and of the record it fills. Registered with the decorator, it
runs in every audit, here and on the command line, with its own part of the time.
"""

from __future__ import annotations

import argparse

import torchtheory as tt
from torchtheory.audit.example import digits_example
from torchtheory.audit.findings.hypotheses import classification, deterministic


@tt.finding(
    "predicted-classes",
    area="generalization",
    title="Are all classes predicted as often as they occur?",
    cost="forward",
    needs=[classification, deterministic],
)
def predicted_classes(problem: tt.Problem, record: tt.audit.FindingRecord) -> None:
    true, classes = problem.train.y, problem.classes or 0
    said = problem.outputs(problem.train).argmax(1)
    rows = [(k, int((said == k).sum()), int((true == k).sum())) for k in range(classes)]
    record.table("classes", ("class", "predicted", "occurs"), rows)
    never = [k for k, predicted, occurs in rows if predicted == 0 < occurs]
    record.quantity("never-predicted", "classes that are never predicted", len(never))
    if never:
        record.defect(f"Class {never[0]} occurs in the data but is never predicted.")


def main(arguments: list[str] | None = None) -> tt.audit.Audit:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--directory", default="audit-own")
    options = parser.parse_args(arguments)
    net, train, test, _ = digits_example()
    healthy = tt.audit(net, train, test, only=["predicted-classes", "risk"])
    print(*healthy.summary, sep="\n")
    dict(net.named_parameters())["4.bias"].data[3] = -1000
    report = tt.audit(net, train, test, only=["predicted-classes", "risk"])
    print("\nWithout class 3:", *report.summary, sep="\n")
    print("written to", report.save(options.directory))
    return report


if __name__ == "__main__":
    main()

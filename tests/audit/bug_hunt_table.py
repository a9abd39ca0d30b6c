"""Planted defects and their healthy twins: how many are named, how many twins are accused.

    PYTHONPATH=.:examples python -m tests.audit.bug_hunt_table [--seeds 5] [--only NAME ...] [--new]

from the root of the repository.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from functools import cache

from tests.audit import planted, test_data_defects

import bug_hunt
from torchtheory.core.diagnosis import State


def _old_hunt(name: str) -> tuple[str, Callable[[int], bool], Callable[[int], list[str]]]:
    defect = bug_hunt.DEFECTS[name]

    def named(seed: int) -> bool:
        found = planted.accusations(bug_hunt.audit_case(name, seed, True), defect.finding)
        return any(defect.words in s for s in found)

    def twin(seed: int) -> list[str]:
        report = bug_hunt.audit_case(name, seed, False)
        said = planted.accusations(report, defect.finding)
        return [*report.warnings, *(s for s in said if defect.words in s)]

    return defect.finding, named, twin


def _data_defect(name: str) -> tuple[str, Callable[[int], bool], Callable[[int], list[str]]]:
    finding = test_data_defects.broken(name, 0)[1]

    def named(seed: int) -> bool:
        case, where, words = test_data_defects.broken(name, seed)
        report = test_data_defects.audited(case, where)
        return any(words in s for s in planted.accusations(report, where))

    kind = "table" if name.startswith("table") else "digits"
    return finding, named, lambda seed: _data_twin(kind, seed)


@cache
def _data_twin(kind: str, seed: int) -> list[str]:
    return test_data_defects.audited(test_data_defects.HEALTHY[kind](seed)).warnings


@cache
def _twin_report(make: Callable[[int], planted.Case], seed: int) -> list[tuple[str, State, str]]:
    report = planted.audited(make(seed))
    return [(f.name, a.state, a.sentence) for f in report.findings for a in f.assessments]


def _new_defect(name: str) -> tuple[str, Callable[[int], bool], Callable[[int], list[str]]]:
    defect = planted.PLANTED[name]

    def named(seed: int) -> bool:
        report = planted.audited(defect.make(seed), [defect.finding])
        said = planted.accusations(report, defect.finding)
        return any(defect.words.lower() in s.lower() for s in said)

    def twin(seed: int) -> list[str]:
        return [
            sentence
            for finding, state, sentence in _twin_report(defect.twin, seed)
            if state is State.DEFECT
            or (state is State.LOOK and finding == defect.finding and defect.words in sentence)
        ]

    return defect.finding, named, twin


def main(arguments: list[str] | None = None) -> int:
    """Print the table; 1 if a twin was accused or fewer than nine of ten defects were named."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--only", nargs="*")
    parser.add_argument("--new", action="store_true", help="those of planted.py alone")
    options = parser.parse_args(arguments)
    every = {name: _new_defect(name) for name in planted.PLANTED}
    if not options.new:
        every |= {f"{n} (model)": _old_hunt(n) for n in bug_hunt.DEFECTS}
        every |= {f"{n} (data)": _data_defect(n) for n in test_data_defects.DEFECTS}
    print(f"{'defect':34} {'finding':24} named  twins accused")
    named = accused = 0
    for name, (finding, hit, twin) in every.items():
        if options.only and name not in options.only:
            continue
        hits = sum(hit(seed) for seed in range(options.seeds))
        said = [(seed, s) for seed in range(options.seeds) for s in twin(seed)]
        wrong = len({seed for seed, _ in said})
        named, accused = named + hits, accused + wrong
        print(
            f"{name:34} {finding:24} {hits}/{options.seeds}    {wrong}/{options.seeds}", flush=True
        )
        for seed, sentence in said[:2]:
            print(f"    seed {seed}: {sentence}")
    count = sum(1 for name in every if not options.only or name in options.only)
    healthy = [
        (name, seed, s)
        for name, make in planted.HEALTHY.items()
        if not options.only
        for seed in range(options.seeds)
        for finding, state, s in _twin_report(make, seed)
        if state is State.DEFECT and finding != "calibration"  # who overfits is too sure, truly
    ]
    for name, seed, sentence in healthy:
        print(f"healthy {name}, seed {seed}: {sentence}")
    total = count * options.seeds
    print(
        f"{count} defects, named {named} of {total} ({named / total:.1%}); twins accused {accused}"
    )
    return int(accused > 0 or bool(healthy) or named < 0.9 * total)


if __name__ == "__main__":
    sys.exit(main())

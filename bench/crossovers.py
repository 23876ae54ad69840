"""Prints where one variant of an operator stops being the fastest along a size of its cases.

    warpwatch run --commits HEAD --suite full --kinds check,bench --operators spmm --output results.wwb
    python bench/crossovers.py results.wwb --operator spmm --size sparsity --against v1 [--metric hot]

A line per group of cases that differ in this size alone: the time of the variant in microseconds, the fastest other
variant with its speed-up, and the size from which it is faster, interpolated between the two cases around it.
"""

from __future__ import annotations

import argparse
import sys
from collections import defaultdict
from itertools import pairwise
from math import log
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from bench.table import Findings, read, timing
from warpwatch.contract.case import Case, parse_case
from warpwatch.contract.words import Status

Row = tuple[int, float, str, float]
"""(size, microseconds of the variant, fastest other variant, its microseconds)."""


def groups(findings: Findings, size: str, against: str, metric: str) -> dict[str, list[Row]]:
    """Rows in ascending order of the size, by what their cases have in common."""
    times: dict[Case, dict[str, float]] = defaultdict(dict)
    for (variant, key), finding in findings["bench"].items():
        check = findings["check"].get((variant, key))
        measurement = timing(finding, metric)
        if measurement is not None and (check is None or check.status is Status.OK):
            times[parse_case(key)][variant] = measurement.median_ns / 1e3
    found: dict[str, list[Row]] = defaultdict(list)
    for case, by_variant in times.items():
        sizes = dict(case.sizes)
        value = sizes.pop(size, None)
        others = {name: time for name, time in by_variant.items() if name != against}
        if isinstance(value, int) and against in by_variant and others:
            fastest = min(others, key=lambda name: others[name])
            name = Case(tuple(sizes.items()), case.precision, case.direction, case.layout).key
            found[name].append((value, by_variant[against], fastest, others[fastest]))
    return {name: sorted(rows) for name, rows in found.items() if len(rows) > 1}


def crossover(rows: list[Row]) -> float | None:
    """The first size from which another variant is faster; None where it never is, or always."""
    for left, right in pairwise(rows):
        before, behind = (log(row[1] / row[3]) for row in (left, right))
        if before <= 0 < behind:
            return left[0] + (right[0] - left[0]) * -before / (behind - before)
    return None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path, nargs="+")
    parser.add_argument("--operator", default="spmm")
    parser.add_argument("--size", default="sparsity")
    parser.add_argument("--against", default="v1")
    parser.add_argument("--metric", default="hot")
    arguments = parser.parse_args()
    _, findings, _ = read(arguments.results)[arguments.operator]
    print(f"| case | {arguments.size} | {arguments.against}, µs | fastest other | speed-up |\n|---|---|---|---|---|")
    ends = []
    for name, rows in groups(findings, arguments.size, arguments.against, arguments.metric).items():
        for value, time, other, faster in rows:
            print(f"| {name} | {value} | {time:.1f} | {other} {faster:.1f} | {time / faster:.2f}× |")
        at = crossover(rows)
        ends.append(f"- {name}: " + (f"another is faster from {arguments.size} {at:.0f}" if at else "no crossover"))
    print("\n" + "\n".join(ends))


if __name__ == "__main__":
    main()

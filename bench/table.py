"""Prints a table of results files: every benched operator, case and variant, and how much faster our kernels are.

    warpwatch run --commits HEAD --suite full --kinds check,bench --device cuda --output results.wwb
    python bench/table.py results.wwb ... [--operators kron,rope] [--metric graph]

A cell is the median in microseconds and, in brackets, the interquartile range as a share of it; or the status when
there is no time. Our kernels are the native variants and those written in Triton. The last columns show how many times
faster our fastest kernel is than the fastest other variant (v1, v2, torch.compile, libraries), the share of the
measured roofline that the fastest variant reaches, and the case's floors: the microseconds that its operations and its
bytes take at the measured peaks. The last line is the geometric mean of these gains.
"""

from __future__ import annotations

import argparse
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from statistics import geometric_mean

sys.path.insert(0, str(Path(__file__).parents[1]))

from warpwatch.bundle import BundleReader
from warpwatch.contract.case import peak_of_case
from warpwatch.contract.catalogue import Catalogue, OperatorEntry
from warpwatch.contract.measurement import Measurement, floors, roofline
from warpwatch.contract.outcome import Finding
from warpwatch.contract.words import Status

Findings = dict[str, dict[tuple[str, str], Finding]]
"""By kind, then by (variant, case)."""


def read(paths: list[Path]) -> dict[str, tuple[OperatorEntry, Findings, dict[str, float]]]:
    """(catalogue entry, findings, ceilings of the device) by operator; a later commit or file replaces earlier ones."""
    findings: dict[str, Findings] = defaultdict(lambda: defaultdict(dict))
    catalogues: dict[str, Catalogue] = {}
    peaks: dict[str, dict[str, float]] = {}
    for path in paths:
        with BundleReader(path) as reader:
            for run in reader.runs():
                operator, outcome = run.order.operator, run.outcome
                if outcome.catalogue is not None:
                    catalogues[operator] = outcome.catalogue
                peaks[operator] = outcome.peaks or {}
                findings[operator][run.order.kind] |= {(f.variant, f.case): f for f in outcome.findings}
    entries = {
        name: next(entry for entry in catalogues[name].operators if entry.name == name)
        for name in findings
        if name in catalogues
    }
    return {name: (entry, findings[name], peaks[name]) for name, entry in entries.items()}


def timing(finding: Finding | None, metric: str) -> Measurement | None:
    if finding is None or finding.bench is None or finding.status is not Status.OK:
        return None
    return next((m for m in finding.bench.measurements if m.metric == metric), None)


def cell(check: Finding | None, bench: Finding | None, metric: str) -> str:
    if check is not None and check.status is not Status.OK:
        return str(check.status)
    measurement = timing(bench, metric)
    if measurement is None:
        return "–" if bench is None else str(bench.status)
    return f"{measurement.median_ns / 1e3:.2f} ({100 * measurement.noise:.1f} %)"


def row(
    entry: OperatorEntry, case: str, precision: str, findings: Findings, peaks: dict[str, float], metric: str
) -> tuple[str, float | None]:
    """(the row of a case, how many times faster our fastest kernel is than the fastest other variant)."""
    benches = {v.name: findings["bench"].get((v.name, case)) for v in entry.variants}
    wrong = {name for (name, of), check in findings["check"].items() if of == case and check.status is not Status.OK}
    times = {
        name: m.median_ns for name, f in benches.items() if name not in wrong and (m := timing(f, metric)) is not None
    }
    our_names = {v.name for v in entry.variants if v.native or v.name.startswith("triton")}
    ours = min((t for name, t in times.items() if name in our_names), default=None)
    other = min((t for name, t in times.items() if name not in our_names), default=None)
    gain = other / ours if ours and other else None
    reached, least = "", ""
    if times:
        best = min(times, key=lambda name: times[name])
        finding = benches[best]
        assert finding is not None
        assert finding.bench is not None
        work, peak = (finding.bench.flops, finding.bench.bytes), peak_of_case(case, precision)
        share, bound = roofline(*work, times[best], peak, peaks)
        reached = f"{100 * share:.0f} % ({bound})" if share else ""
        least = " · ".join(f"{ns / 1e3:.2f} {name}" for name, ns in floors(*work, peak, peaks).items() if ns)
    cells = [cell(findings["check"].get((v.name, case)), benches[v.name], metric) for v in entry.variants]
    return "| " + " | ".join([case, *cells, f"{gain:.2f}×" if gain else "", reached, least]) + " |", gain


def tables(
    operators: dict[str, tuple[OperatorEntry, Findings, dict[str, float]]],
    metric: str,
    chosen: dict[str, list[str]] | None = None,
) -> Iterator[str]:
    """The lines of all operators. chosen: cases by operator; by default all that were benched."""
    gains: list[float] = []
    for name, (entry, findings, peaks) in sorted(operators.items()):
        if chosen is not None and name not in chosen:
            continue
        names = [variant.name for variant in entry.variants]
        measured = {case for _, case in findings["bench"]}
        rows = [
            row(entry, case.key, case.precision, findings, peaks, metric)
            for case in entry.cases
            if case.key in measured and (chosen is None or case.key in chosen[name])
        ]
        yield f"## {name}\n"
        yield f"| case | {' | '.join(names)} | own against the others | roofline | floors |"
        yield "|---" * (len(names) + 4) + "|"
        yield from (line for line, _ in rows)
        yield ""
        gains += [gain for _, gain in rows if gain]
    if gains:
        mean, slower = geometric_mean(gains), sum(gain < 1 for gain in gains)
        yield f"Geometric mean of own against the others: {mean:.2f}× over {len(gains)} rows; below 1: {slower}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path, nargs="+")
    parser.add_argument("--operators", help="separated by commas; default: all")
    parser.add_argument("--metric", default="graph")
    arguments = parser.parse_args()
    operators = read(arguments.results)
    if arguments.operators:
        operators = {name: operators[name] for name in arguments.operators.split(",") if name in operators}
    print("\n".join(tables(operators, arguments.metric)))


if __name__ == "__main__":
    main()

"""Compares children of a template with children that are started as programs: their times of the same code.

python bench/templates.py [--device cuda:0] [--processes 16] [--children 4] [--output FILE.json]

In each round a child of either kind benches every case, alone on the device; which kind comes first alternates. A
template forks as many children as --children says. Prints, per case and metric, the median over the processes and
their spread ((max - min) / median) by kind, the ratio of the two medians, and the spread of the medians of templates.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median

from bench.spread import CASES
from warpwatch import git
from warpwatch.contract.messages import BenchReply
from warpwatch.contract.words import Status
from warpwatch.settings import Settings
from warpwatch.worker import templates
from warpwatch.worker.checkout import Checkout
from warpwatch.worker.host import Host
from warpwatch.worker.reporter import SilentReporter
from warpwatch.worker.tools import Tools

ROOT = Path(__file__).parents[1]
KINDS = {"program": False, "template": True}
BUDGET_NS = 250_000_000
SECONDS = 120.0


@dataclass(frozen=True, slots=True)
class Times:
    """Medians in ns of one case and metric: per process, in the order of their start."""

    program: list[float] = field(default_factory=list)
    template: list[float] = field(default_factory=list)


def bench_child(checkout: Checkout, *, may_be_forked: bool, seed: int) -> dict[str, float]:
    """The median in ns by case and metric, in one fresh child."""
    child = checkout.host.start_child(replace(checkout._spec(), may_be_forked=may_be_forked), SilentReporter())
    try:
        times: dict[str, float] = {}
        for operator, variant, case in CASES[checkout.host.kind]:
            reply = child.ask(
                BenchReply,
                "bench",
                SECONDS,
                SilentReporter(),
                operator=operator,
                variant=variant,
                case=case,
                seed=seed,
                budget_ns=BUDGET_NS,
            )
            if reply.status is not Status.OK:
                raise SystemExit(f"{operator} {variant} {case}: {reply.status} {reply.message}")
            times |= {f"{operator} {variant} {case} {m.metric}": m.median_ns for m in reply.measurements}
        return times
    finally:
        child.close()


def measure(checkout: Checkout, processes: int) -> dict[str, Times]:
    times: dict[str, Times] = {}
    for number in range(processes):
        for kind in list(KINDS)[:: 1 if number % 2 == 0 else -1]:
            for label, time_ns in bench_child(checkout, may_be_forked=KINDS[kind], seed=1).items():
                getattr(times.setdefault(label, Times()), kind).append(time_ns)
    return times


def spread(times: Sequence[float]) -> float:
    return (max(times) - min(times)) / median(times)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--processes", type=int, default=16)
    parser.add_argument("--children", type=int, default=4)
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()
    templates.CHILDREN = templates.CHILDREN_BESIDE_GPU = arguments.children
    with tempfile.TemporaryDirectory() as folder:
        tools = Tools(Host(Settings(home=Path(folder) / "home", fork_isolation="none"), arguments.device))
        try:
            (checkout,) = tools.checkouts(str(ROOT), [git.resolve(ROOT, "HEAD")], SilentReporter())
            checkout.build(sorted({operator for operator, *_ in CASES[tools.host.kind]}), SilentReporter())
            times = measure(checkout, arguments.processes)
        finally:
            tools.close()
    print(f"{arguments.processes} processes of each kind, {arguments.children} children of a template")
    for label, of_case in times.items():
        pieces = range(0, arguments.processes, arguments.children)
        of_templates = [median(of_case.template[start : start + arguments.children]) for start in pieces]
        print(
            f"{label}: program {median(of_case.program) / 1e3:.2f} µs, spread {spread(of_case.program):.2%}; "
            f"template {median(of_case.template) / 1e3:.2f} µs, spread {spread(of_case.template):.2%}, "
            f"of medians of templates {spread(of_templates):.2%}; "
            f"ratio {median(of_case.template) / median(of_case.program):.4f}"
        )
    if arguments.output is not None:
        rows = {label: {kind: getattr(of_case, kind) for kind in KINDS} for label, of_case in times.items()}
        arguments.output.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

"""Times what the sandbox costs: the start of a process and of a child, and calls of small kernels.

python bench/sandbox.py [--starts 40] [--children 5] [--jobs 4]

Each pair is measured in turn, without isolation and with the strongest of this host. Prints medians and their ratio or
difference. The goals are at most 30 ms for a start and at most 5 % for a call. Children are started as programs and,
with the strongest isolation, also as forks of a template; the first of these waits for the template, which is not in
the median of the times, and is in the processor time.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import median

from warpwatch import git
from warpwatch.contract.environment import Environment
from warpwatch.contract.spec import JobRequest, JobSpec
from warpwatch.contract.words import JobKind
from warpwatch.settings import Settings
from warpwatch.worker import levels, sandbox, templates
from warpwatch.worker.execution import execute
from warpwatch.worker.host import Host
from warpwatch.worker.reporter import SilentReporter
from warpwatch.worker.tools import Tools

ROOT = Path(__file__).parents[1]
OPERATOR, VARIANT = "vector_add", "v2"
METRIC = {"cpu": "hot", "cuda": "call"}
"""The metric that includes the host's part of a call, per kind of device."""


def seconds(action: Callable[[], object]) -> float:
    begin = time.perf_counter()
    action()
    return time.perf_counter() - begin


def time_starts(home: Path, count: int) -> dict[str, list[float]]:
    """Seconds from start to end of /bin/true, in turn: as it is, and in each of two confinements."""
    full = levels.confinement(home, None)
    none = replace(full, isolation="none")
    actions: dict[str, Callable[[], object]] = {
        "plain": lambda: subprocess.run(["/bin/true"], check=True),
        "none": lambda: sandbox.run_confined(none, ["/bin/true"]),
        full.isolation: lambda: sandbox.run_confined(full, ["/bin/true"]),
    }
    samples: dict[str, list[float]] = {name: [] for name in actions}
    for _ in range(count):
        for name, action in actions.items():
            samples[name].append(seconds(action))
    return samples


def _start_and_end(host: Host, root: Path, *, may_be_forked: bool, by_itself: bool = False) -> None:
    child = host.start_child(replace(host.empty_child(root), may_be_forked=may_be_forked), SilentReporter())
    child.ask(Environment, "environment", 60, SilentReporter())
    if by_itself:
        child.end(60)
    child.close()


def time_children(kinds: dict[str, tuple[Host, bool]], root: Path, count: int) -> dict[str, list[float]]:
    """Seconds from the start of a harness to its first reply and end."""
    samples: dict[str, list[float]] = {name: [] for name in kinds}
    for _ in range(count):
        for name, (host, may_be_forked) in kinds.items():
            samples[name].append(seconds(partial(_start_and_end, host, root, may_be_forked=may_be_forked)))
    return samples


def processor_seconds(kinds: dict[str, tuple[Host, bool]], root: Path, count: int) -> dict[str, float]:
    """Processor time of a child from its start to its end, with its share of a template."""
    times = {}
    for name, (host, may_be_forked) in kinds.items():
        templates.close()
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        for _ in range(count):
            # Nobody collects the times of processes that are killed with their first one.
            _start_and_end(host, root, may_be_forked=may_be_forked, by_itself=True)
        templates.close()
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        times[name] = (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime) / count
    return times


def time_calls(tools: dict[str, Tools], traces: Path, count: int) -> dict[str, dict[str, list[float]]]:
    """Medians in ns by case, of `count` jobs in turn, each in a fresh child."""
    sha = git.resolve(ROOT, "HEAD")
    request = JobRequest(JobKind.BENCH, str(ROOT), sha, OPERATOR, JobSpec(variants=[VARIANT], budget_ns=300_000_000))
    samples: dict[str, dict[str, list[float]]] = {name: {} for name in tools}
    for _ in range(count):
        for name, kept in tools.items():
            for finding in execute(request, kept, SilentReporter(), traces).findings:
                for measurement in finding.bench.measurements if finding.bench else []:
                    if measurement.metric == METRIC[kept.host.kind]:
                        samples[name].setdefault(finding.case, []).append(measurement.median_ns)
            kept.close()
    return samples


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--starts", type=int, default=40)
    parser.add_argument("--children", type=int, default=5)
    parser.add_argument("--jobs", type=int, default=4)
    parser.add_argument("--device", default="cpu")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder) / "home"
        strongest = levels.strongest_isolation(home, arguments.device.partition(":")[0])
        starts = {name: 1e3 * median(times) for name, times in time_starts(home, arguments.starts).items()}
        print(f"start of /bin/true: {', '.join(f'{name} {ms:.1f} ms' for name, ms in starts.items())}")
        print(f"  the sandbox adds {starts[strongest] - starts['plain']:.1f} ms")
        hosts = {
            name: Host(Settings(home=home, isolation=name, fork_isolation="none"), arguments.device)
            for name in ("none", strongest)
        }
        kinds = {name: (host, False) for name, host in hosts.items()} | {"template": (hosts[strongest], True)}
        children = {n: median(times) for n, times in time_children(kinds, home, arguments.children).items()}
        print(f"first reply of a child: {', '.join(f'{name} {s:.3f} s' for name, s in children.items())}")
        print(f"  ratio {children[strongest] / children['none']:.3f}")
        processor = processor_seconds(kinds, home, arguments.children)
        print(f"  processor time: {', '.join(f'{name} {s:.3f} s' for name, s in processor.items())}")
        calls = time_calls({name: Tools(host) for name, host in hosts.items()}, Path(folder), arguments.jobs)
        for case, plain in calls["none"].items():
            ratio = median(calls[strongest][case]) / median(plain)
            print(f"call of {OPERATOR} {VARIANT} {case}: {median(plain) / 1e3:.1f} µs, ratio {ratio:.3f}")


if __name__ == "__main__":
    main()

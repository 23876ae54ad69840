"""Measures how much timings of identical code differ between fresh processes, with our metrics and with other timers.

python bench/spread.py [--device cuda:0] [--processes 20] [--ours] [--output FILE.md]

In each round, one fresh process measures every case with our metrics and another one with the peers, in rotating order.
Both are alone on the device, and they take turns at being first. Separate processes are needed because one timer can
change the times of the next: after eight streams have been used, every kernel launch in a process on an H100 becomes
0.3 µs slower. Prints per case and method the median over the processes, the spread (max - min over the median), the
95th percentile of |difference from the median|, and the seconds of one measurement with warm-up and capture. Peers that
are not installed are left out and named.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))

from bench.fresh import ROOT, fresh_processes, open_verbs, serve
from warpwatch import native
from warpwatch.contract.messages import Request
from warpwatch.worker.harness.child.verbs import Verbs
from warpwatch.worker.harness.problem import CaseProblem
from warpwatch.worker.harness.timers.summary import quantile

CASES = {
    "cuda": (
        ("square", "v2", "size=512x512,f32,fwd"),
        ("kron", "v4", "batch=16,factors=32x32,f32,fwd"),
        ("square", "v2", "size=2048x2048,f32,fwd"),
        ("kron", "cublas", "batch=32,factors=128x128,f32,fwd"),
        ("kron", "v4", "batch=1024,factors=32x32x32,f32,fwd"),
        ("kron", "v2", "batch=1024,factors=8x8x8x8x8,f32,fwd"),
    ),
    "cpu": (
        ("vector_add", "v3", "n=65536,f32,fwd"),
        ("square", "v3", "size=512x512,f32,fwd"),
        ("kron", "v3", "batch=16,factors=32x32,f32,fwd"),
        ("kron", "v2", "batch=33,factors=7x5x11,f32,fwd"),
    ),
}
SIDES = ("warpwatch", "peers")
BUDGET_NS = 250_000_000
"""Half of it goes to the first metric, which then runs about as long as do_bench."""
PEER_SECONDS = 0.125
NVBENCH_SECONDS = 0.3

COUNTED = {
    "warpwatch cycles": "{:.0f} cycles",
    "warpwatch clock": "{:.4f} GHz",
    "warpwatch instructions": "{:.0f} instructions",
    "warpwatch memory": "{:.0f} bytes",
}
"""Formats of the readings that are not times."""

Call = Callable[[], Any]
Reading = tuple[float, float]
"""(nanoseconds or count per call, seconds of the measurement; 0 for a count, which belongs to another metric)."""


def ours(verbs: Verbs, request: Request) -> dict[str, Reading]:
    """Every metric and count of the service."""
    began: dict[str, float] = {}

    def progress(_done: int, _total: int, metric: str) -> None:
        began[metric] = time.perf_counter()

    reply = verbs.bench(request, progress)
    times = [*began.values(), time.perf_counter()]
    seconds = {metric: times[index + 1] - times[index] for index, metric in enumerate(began)}
    counts = {f"warpwatch {name}": (counter.median, 0.0) for name, counter in reply.counters.items()}
    return counts | {f"warpwatch {m.metric}": (m.median_ns, seconds.get(m.metric, 0.0)) for m in reply.measurements}


def torch_timer(call: Call) -> float:
    from torch.utils.benchmark import Timer

    timer = Timer("call()", globals={"call": call}, num_threads=torch.get_num_threads())
    return timer.blocked_autorange(min_run_time=PEER_SECONDS).median * 1e9


def do_bench(call: Call) -> float:
    from triton import testing

    return float(testing.do_bench(call, return_mode="median")) * 1e6


def do_bench_cudagraph(call: Call) -> float:
    from triton import testing

    return float(testing.do_bench_cudagraph(call, return_mode="median")) * 1e6


def nvbench(calls: dict[str, Call]) -> dict[str, Reading]:
    """The medians of nvbench's isolated ("cold") device times; it runs once per process, so it takes all cases."""
    from cuda import bench
    from cuda.bench.results import BenchmarkResult

    def measure(state: Any) -> None:
        call = calls[state.get_string("case")]

        def launch(launched: Any) -> None:
            with torch.cuda.stream(torch.cuda.ExternalStream(launched.get_stream().addressof())):  # type: ignore[no-untyped-call]
                call()

        state.exec(launch, batched=False)

    bench.register(measure).set_name("spread").add_string_axis("case", list(calls))
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder, "nvbench.json")
        start = time.perf_counter()
        bench.run_all_benchmarks(["nvbench", "--quiet", "--timeout", str(NVBENCH_SECONDS), "--jsonbin", str(output)])
        seconds = (time.perf_counter() - start) / len(calls)
        states = BenchmarkResult.from_json(output)["spread"].states
    return {
        next(iter(state.point.values())): (float(state.center(lambda samples: median(samples))) * 1e9, seconds)
        for state in states
    }


PEERS: dict[str, dict[str, Callable[[Call], float]]] = {
    "cuda": {
        "do_bench": do_bench,
        "do_bench_cudagraph": do_bench_cudagraph,
        "torch.utils.benchmark": torch_timer,
    },
    "cpu": {"torch.utils.benchmark": torch_timer},
}


def theirs(peer: str, problem: CaseProblem) -> dict[str, Reading]:
    """The reading of a peer for the same call."""
    with problem.modes():
        call = problem.call(problem.data(1))
        call()
        problem.synchronize()
        start = time.perf_counter()
        return {peer: (PEERS[problem.device.type][peer](call), time.perf_counter() - start)}


def measure(
    verbs: Verbs, device: torch.device, number: int, side: str, broken: dict[str, str]
) -> dict[str, dict[str, Reading]]:
    """The readings of every case by every method of one of SIDES.

    number: of this round, which rotates the order. broken: gets the methods that fail, each with its error.
    """
    problems = {}
    readings: dict[str, dict[str, Reading]] = {}
    for operator, variant, case in CASES[device.type]:
        request = Request(0, "bench", operator, variant, case, seed=1, budget_ns=BUDGET_NS)
        label = f"{operator} {variant} {case}"
        problems[label] = problem = verbs.problem(request)
        steps: list[tuple[str, Callable[[], dict[str, Reading]]]] = (
            [(peer, partial(theirs, peer, problem)) for peer in PEERS[device.type]]
            if side == "peers"
            else [("warpwatch", partial(ours, verbs, request))]
        )
        turn = number % len(steps)
        readings[label] = {}
        for name, step in (*steps[turn:], *steps[:turn]):
            with record_failure(name, broken):
                readings[label] |= step()
    if device.type == "cuda" and side == "peers":
        with record_failure("nvbench", broken), torch.no_grad():
            calls = {label: problem.call(problem.data(1)) for label, problem in problems.items()}
            for label, reading in nvbench(calls).items():
                readings[label]["nvbench cold"] = reading
    return readings


@contextmanager
def record_failure(method: str, broken: dict[str, str]) -> Iterator[None]:
    """Records an exception under the method's name in `broken`."""
    try:
        yield
    except Exception as error:  # noqa: BLE001 - the other methods must still give their readings.
        broken[method] = f"{type(error).__name__}: {error}"[:300]


def child(device: torch.device) -> None:
    verbs = open_verbs(ROOT, device)
    for operator in sorted({operator for operator, *_ in CASES[device.type]}):
        native.build(operator)

    def handle(request: dict[str, Any]) -> dict[str, Any]:
        broken: dict[str, str] = {}
        return {"readings": measure(verbs, device, request["number"], request["side"], broken), "broken": broken}

    serve(handle)


def table(runs: list[dict[str, dict[str, Reading]]]) -> list[str]:
    lines = ["| case | method | median µs | spread | p95 of \\|Δ\\| | seconds |", "|---|---|---|---|---|---|"]
    for case in runs[0]:
        for method in sorted({method for run in runs for method in run[case]}, key=lambda name: (name[0] != "w", name)):
            readings = [run[case][method] for run in runs if method in run[case]]
            times, seconds = [reading[0] for reading in readings], median(reading[1] for reading in readings)
            middle = median(times)
            away = quantile(sorted(abs(t - middle) / middle for t in times), 0.95)
            spread = (max(times) - min(times)) / middle
            shown = COUNTED[method].format(middle) if method in COUNTED else f"{middle / 1e3:.2f}"
            lines.append(f"| {case} | {method} | {shown} | {spread:.2%} | {away:.2%} | {seconds:.2f} |")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda:0" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--processes", type=int, default=20, help="rounds of one process of ours and one of the peers")
    parser.add_argument("--ours", action="store_true", help="leave the peers out, which takes half of the time")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="start no round after so many seconds")
    parser.add_argument("--output", type=Path, help="write the table to this file, and every reading beside it as JSON")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        child(torch.device(arguments.device))
        return
    runs: list[dict[str, dict[str, Reading]]] = []
    broken, end = dict[str, str](), time.perf_counter() + arguments.seconds
    sides = SIDES[:1] if arguments.ours else SIDES
    processes = fresh_processes(Path(__file__), arguments.device, len(sides) * arguments.processes)
    while len(runs) < arguments.processes and time.perf_counter() < end:
        merged: dict[str, dict[str, Reading]] = {}
        for side in sides[:: 1 if len(runs) % 2 else -1]:
            process = next(processes)
            reply = process.request(number=len(runs), side=side)
            process.close()
            merged = {case: merged.get(case, {}) | readings for case, readings in reply["readings"].items()}
            broken |= reply["broken"]
        runs.append(merged)
    title = f"{len(runs)} times {len(sides)} fresh processes on {arguments.device}, torch {torch.__version__}."
    lines = [title, "", *table(runs)]
    lines += [f"{method} failed on some cases: {reason}" for method, reason in broken.items()]
    print("\n".join(lines))
    if arguments.output:
        arguments.output.write_text("\n".join(lines) + "\n", encoding="utf-8")
        arguments.output.with_suffix(".json").write_text(json.dumps(runs), encoding="utf-8")


if __name__ == "__main__":
    main()

"""How far apart are measurements of identical code in fresh processes: ours beside the timers that people use.

python bench/spread.py [--device cuda:0] [--processes 20] [--output FILE.md]

Each of so many times a fresh process measures every case with our metrics and another with the peers, whose order
rotates, in turn first and alone on the device. Two, because what one timer leaves behind in a process moves the next
one's times: after eight streams had work an H100 starts each kernel 0.3 µs later. Printed per case and method: the
median over the processes, the spread (max - min over that median), the 95th percentile of |difference from that
median|, and the seconds one measurement took, warm-up and capture included. Peers that are not installed are left out
and named.
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

from bench.fresh import ROOT, fresh_ones, open_verbs, serve
from warpwatch.contract.protocol import Request
from warpwatch.worker.harness.problem import CaseProblem
from warpwatch.worker.harness.summary import quantile
from warpwatch.worker.harness.verbs import Verbs

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
"""Half of it goes to the first metric, which then takes about as long as do_bench."""
PEER_SECONDS = 0.125
NVBENCH_SECONDS = 0.3

COUNTED = {
    "warpwatch cycles": "{:.0f} cycles",
    "warpwatch clock": "{:.4f} GHz",
    "warpwatch instructions": "{:.0f} instructions",
}
"""What is no time, and how it is written."""

Call = Callable[[], Any]
Reading = tuple[float, float]
"""(nanoseconds per call or what is counted, seconds it took to find out; a count is part of the metric before it)."""


def ours(verbs: Verbs, request: Request) -> dict[str, Reading]:
    """Every metric and count of the service."""
    began: dict[str, float] = {}

    def progress(_done: int, _total: int, metric: str) -> None:
        began[metric] = time.perf_counter()

    reply = verbs.bench(request, progress)
    times = [*began.values(), time.perf_counter()]
    seconds = {metric: times[index + 1] - times[index] for index, metric in enumerate(began)}
    counted = {f"warpwatch {name}": (counter.median, 0.0) for name, counter in reply.counters.items()}
    return counted | {
        f"warpwatch {found.metric}": (found.median_ns, seconds.get(found.metric, 0.0)) for found in reply.measurements
    }


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
    """The medians of nvbench's isolated ("cold") device times.

    It runs once per process, so it takes all cases together.
    """
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
    """A peer's reading of the same call."""
    with problem.modes():
        call = problem.call(problem.data(1))
        call()
        problem.synchronize()
        start = time.perf_counter()
        return {peer: (PEERS[problem.device.type][peer](call), time.perf_counter() - start)}


def measure(
    verbs: Verbs, device: torch.device, number: int, side: str, broken: dict[str, str]
) -> dict[str, dict[str, Reading]]:
    """Every case by every method of one of SIDES, the `number`-th time; a method that fails is named in `broken`, and
    the others go on."""
    problems = {}
    found: dict[str, dict[str, Reading]] = {}
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
        found[label] = {}
        for name, step in (*steps[turn:], *steps[:turn]):
            with named(name, broken):
                found[label] |= step()
    if device.type == "cuda" and side == "peers":
        with named("nvbench", broken), torch.no_grad():
            for label, reading in nvbench(
                {label: problem.call(problem.data(1)) for label, problem in problems.items()}
            ).items():
                found[label]["nvbench cold"] = reading
    return found


@contextmanager
def named(method: str, broken: dict[str, str]) -> Iterator[None]:
    try:
        yield
    except Exception as error:  # noqa: BLE001 - one method that fails must not cost the others their readings.
        broken[method] = f"{type(error).__name__}: {error}"[:300]


def child(device: torch.device) -> None:
    verbs = open_verbs(ROOT, device)
    for operator in sorted({operator for operator, *_ in CASES[device.type]}):
        verbs.build(Request(0, "build", operator), lambda *_: None)

    def answer(request: dict[str, Any]) -> dict[str, Any]:
        broken: dict[str, str] = {}
        return {"found": measure(verbs, device, request["number"], request["side"], broken), "broken": broken}

    serve(answer)


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
    parser.add_argument("--processes", type=int, default=20, help="of ours, and as many of the peers'")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="start no further process after so long")
    parser.add_argument(
        "--output", type=Path, help="where the table goes as well; every reading goes beside it as JSON"
    )
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child:
        child(torch.device(given.device))
        return
    runs: list[Any] = []
    broken, end = dict[str, str](), time.perf_counter() + given.seconds
    processes = fresh_ones(Path(__file__), given.device, len(SIDES) * given.processes)
    while len(runs) < given.processes and time.perf_counter() < end:
        found: dict[str, dict[str, Reading]] = {}
        for side in SIDES[:: 1 if len(runs) % 2 else -1]:
            process = next(processes)
            reply = process.ask(number=len(runs), side=side)
            process.close()
            found = {case: found.get(case, {}) | readings for case, readings in reply["found"].items()}
            broken |= reply["broken"]
        runs.append(found)
    lines = [f"{len(runs)} times two fresh processes on {given.device}, torch {torch.__version__}.", "", *table(runs)]
    lines += [f"{method} did not run everywhere: {why}" for method, why in broken.items()]
    print("\n".join(lines))
    if given.output:
        given.output.write_text("\n".join(lines) + "\n", encoding="utf-8")
        given.output.with_suffix(".json").write_text(json.dumps(runs), encoding="utf-8")


if __name__ == "__main__":
    main()

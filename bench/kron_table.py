"""The table of kron: every variant x the listed shapes, forward and backward, checked and timed on a GPU.

    python bench/kron_table.py [--cases TEXT] [--variants v1,v2] [--seconds 0.3] [--output FILE.md]

Every variant is first held against the float64 oracle, then timed as the service's metric `graph`: CUDA graphs of calls that walk through
input sets covering more than three times the L2 cache, so data is cold and launch cost is hidden as far as a graph hides it. A cell is the
median of all replays in microseconds, and in brackets the interquartile range in percent of it. The last columns compare the fastest of
our own variants with the faster of v1, v2 and cublas.
"""

from __future__ import annotations

import argparse
import gc
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from kernels import kron  # noqa: E402
from warpwatch import native  # noqa: E402
from warpwatch.operator import Case  # noqa: E402
from worker.harness.check import check  # noqa: E402
from worker.harness.failures import Refusal, describe  # noqa: E402
from worker.harness.problem import Problem  # noqa: E402
from worker.harness.rotation import no_collection  # noqa: E402
from worker.harness.summary import summarize  # noqa: E402
from worker.harness.timer_cuda import GraphTimer  # noqa: E402
from worker.protocol import Measurement, Status  # noqa: E402

PEERS = ("v1", "v2", "cublas")
OWN = ("v3", "v4", "v5")
PLACEMENTS = 3


@dataclass(frozen=True, slots=True)
class Cell:
    """What one variant did on one case: a measurement, or the reason why there is none."""

    measurement: Measurement | None
    error: float = 0.0
    reason: str = ""

    @property
    def text(self) -> str:
        if self.measurement is None:
            return self.reason
        return f"{self.measurement.median_ns / 1e3:.2f} ({100 * self.measurement.noise:.1f} %)"


def measure(problem: Problem, seconds: float) -> Cell:
    """The variant checked, and timed for about `seconds`; nothing that it does wrong stops the table."""
    try:
        problem.refuse_unsupported()
        reply = check(problem, 1, lambda *_: None)
        if reply.status is not Status.OK:
            return Cell(None, reason=f"{reply.status}: {reply.message[:200]}")
        error = max(tensor.relative / tensor.tolerance for tensor in reply.tensors)
        return Cell(time_in_graph(problem, seconds), error, reply.message)
    except Refusal as refusal:
        return Cell(None, reason=refusal.status.value)
    except Exception as problem_found:
        failure = describe(problem_found, problem.device)
        print(failure.message[-600:], flush=True)
        if failure.poisoned:
            raise
        return Cell(None, reason=failure.status.value)


def time_in_graph(problem: Problem, seconds: float) -> Measurement:
    """Nanoseconds per call over all placements, and the last results verified."""
    samples: list[float] = []
    with problem.modes(), no_collection():
        timer = GraphTimer(problem, 1, PLACEMENTS)
        end = time.perf_counter() + seconds
        while time.perf_counter() < end or len(samples) < PLACEMENTS * 10:
            for _ in range(timer.placements):
                samples += timer.take()
        timer.verify()
    return summarize("graph", samples)


def fastest(cells: dict[str, Cell], names: Iterable[str]) -> float | None:
    times = [cell.measurement.median_ns for name in names if (cell := cells.get(name)) and cell.measurement]
    return min(times, default=None)


def row(case: Case, cells: dict[str, Cell], names: Sequence[str]) -> str:
    own, peer = fastest(cells, OWN), fastest(cells, PEERS)
    cost = kron.operator.cost(case)
    speed = f"{cost.flops / own / 1e3:.1f}" if own else ""
    gain = f"{peer / own:.2f}x" if own and peer else ""
    return "| " + " | ".join([case.key, *(cells[name].text for name in names), gain, speed]) + " |"


def table(cases: Sequence[Case], names: Sequence[str], seconds: float, device: torch.device) -> list[str]:
    lines = [
        "| case | " + " | ".join(names) + " | own vs best of v1, v2, cublas | own TFLOP/s |",
        "|---|" + "---|" * (len(names) + 2),
    ]
    for case in cases:
        cells = {}
        for name in names:
            cells[name] = measure(Problem(kron.operator, kron.operator.variants[name], case, device), seconds)
            gc.collect()
            torch.cuda.empty_cache()
        lines.append(row(case, cells, names))
        print(lines[-1], flush=True)
        worst = {name: f"{cell.error:.2f}" for name, cell in cells.items() if cell.measurement}
        print(f"    error over tolerance: {worst}", flush=True)
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--cases", default="", metavar="TEXT", help="only cases whose key has one of these comma-free words, split by ;"
    )
    parser.add_argument("--variants", default="v1,v2,cublas,v3,v4,v5", metavar="NAMES")
    parser.add_argument("--seconds", type=float, default=0.3, help="time for each measurement; default: 0.3")
    parser.add_argument("--cache", type=Path, default=ROOT / ".warpwatch" / "builds")
    parser.add_argument("--output", type=Path, help="where the table goes as well")
    given = parser.parse_args()
    device = torch.device("cuda:0")
    native.configure(ROOT / "csrc", given.cache, "cuda:0")
    native.load("kron")
    kron.register_native()
    words = [word for word in given.cases.split(";") if word]
    cases = [case for case in kron.FULL if not words or any(word in case.key for word in words)]
    head = [
        f"{torch.cuda.get_device_name(device)}, torch {torch.__version__}. CUDA graphs over rotated inputs (cold L2), {PLACEMENTS} memory "
        f"placements, {given.seconds:g} s each: median in us (interquartile range).",
        "",
    ]
    lines = [*head, *table(cases, given.variants.split(","), given.seconds, device)]
    if given.output:
        given.output.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

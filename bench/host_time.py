"""Compares one kernel with itself while one side takes longer on the host, and shows what either signal says.

python bench/host_time.py [--device cuda:0] [--rows 4096]

The operator is a row softmax. Each variant waits on the host before it calls the kernel: at the base or at the head,
for 10 to 1,000 µs. One comparison of both commits measures all variants as a job does. The device's time of identical
kernels must be the same, within 0.2 % by the median of the rounds; `launch` must change by the wait, in the right
direction. Exits with 1 where anything is wrong.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).parents[1]))

from warpwatch.contract.measurement import LAUNCH
from warpwatch.contract.outcome import Comparison
from warpwatch.contract.rounds import interval_of_rounds, launch_ratio
from warpwatch.contract.spec import JobRequest, JobSpec
from warpwatch.contract.words import JobKind, Status
from warpwatch.server.verdicts.thresholds import stop_rule
from warpwatch.settings import Settings
from warpwatch.worker.execution import execute
from warpwatch.worker.host import Host
from warpwatch.worker.tools import Tools

MICROSECONDS = (10, 30, 100, 300, 1000)
WAITS = {"same": (0, 0)} | {
    f"{side}_{wait}": (wait, 0) if side == "base" else (0, wait) for side in ("base", "head") for wait in MICROSECONDS
}
"""Microseconds at the base and at the head, by variant."""
OPERATOR = """
from time import perf_counter_ns
import torch
from warpwatch import Cost, Operator, case

operator = Operator(
    "softmax_rows", "Softmax of rows.",
    inputs=lambda case, make: {{"x": make.normal(case["n"], 1024)}},
    reference=lambda x: torch.softmax(x, -1),
    cost=lambda case: Cost(flops=5 * 1024 * case["n"], bytes=8 * 1024 * case["n"]),
    cases={{"quick": [case(n={rows})]}},
)


def add(name, microseconds):
    def waits(x):
        end = perf_counter_ns() + 1000 * microseconds
        while perf_counter_ns() < end:
            pass
        return torch.softmax(x, -1)

    operator.variant(name, idea="waits on the host")(waits)

for name, microseconds in {waits}.items():
    add(name, microseconds)
"""


class Log:
    """Prints what a job logs, and never stops it."""

    def log(self, text: str) -> None:
        print(f"  {text}", flush=True)

    def progress(self, done: int, total: int, text: str, cell: tuple[str, str] | None = None) -> None:
        """Nobody watches."""

    def should_stop(self) -> None: ...

    def should_yield(self) -> None: ...


def commit(repository: Path, rows: int, side: int) -> str:
    """Commits the operator with the waits of the base (0) or of the head (1)."""
    waits = {name: both[side] for name, both in WAITS.items()}
    (repository / "kernels").mkdir(parents=True, exist_ok=True)
    (repository / "warpwatch.toml").write_text('operators = "kernels"\n')
    (repository / "kernels" / "softmax_rows.py").write_text(OPERATOR.format(rows=rows, waits=waits))
    identity = ["-c", "user.name=bench", "-c", "user.email=bench@example.org"]
    for words in (["init", "-q"], ["add", "--all"], [*identity, "commit", "-q", "--message", "Change waits"]):
        subprocess.run(["git", *words], cwd=repository, check=True)
    return subprocess.check_output(["git", "rev-parse", "HEAD"], cwd=repository, text=True).strip()


def direction(low: float, high: float, bound: float) -> str:
    """What an interval of head over base shows."""
    return "slower" if low > bound else "faster" if high < 1 / bound else "same"


def describe(variant: str, comparisons: Sequence[Comparison]) -> tuple[str, bool]:
    """(the row of one variant, whether it is right)."""
    wait_ns = 1000 * (WAITS[variant][1] - WAITS[variant][0])
    cells, is_right = [f"{variant:>10}"], [item.metric for item in comparisons] == ["graph", LAUNCH]
    for item in comparisons:
        interval = interval_of_rounds(item.ratios)
        if item.status is not Status.OK or interval is None:
            return f"{variant:>10} {item.metric} {item.status} {item.message}", False
        middle, base_ns = median(item.ratios), median(item.base_ns)
        cells.append(f"{item.metric} {base_ns / 1e3:8.2f} µs × {middle:.4f} ({interval[0]:.4f} … {interval[1]:.4f})")
        if item.metric == LAUNCH:
            bound = launch_ratio(item.base_ns)
            truth = (base_ns + wait_ns) / base_ns
            shown, expected = direction(*interval, bound), direction(truth, truth, bound)
            cells.append(f"{shown}, expected {expected}")
            is_right &= shown == expected and item.reason is None
        else:
            is_right &= abs(middle - 1) <= 0.002 and interval[0] <= 1.005 and interval[1] >= 1 / 1.005
        cells.append(f"{len(item.ratios)} rounds {item.reason or ''}")
    return "  ".join(cells), is_right


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--rows", type=int, default=4096)
    arguments, wrong, begin = parser.parse_args(), 0, time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        home, repository = Path(folder), Path(folder, "repository")
        base, head = (commit(repository, arguments.rows, side) for side in (0, 1))
        tools = Tools(Host(Settings(home=home), arguments.device))
        case = f"n={arguments.rows},f32,fwd"
        stop = stop_rule(tools.host.kind, is_suspected=False)
        spec = JobSpec(pairs=[(variant, case) for variant in WAITS], stop=stop, rounds=8)
        request, begin = (
            JobRequest(JobKind.COMPARE, str(repository), head, "softmax_rows", spec, base),
            time.monotonic(),
        )
        try:
            comparisons = execute(request, tools, Log(), home).comparisons
        finally:
            tools.close()
        for variant in WAITS:
            row, is_right = describe(variant, [item for item in comparisons if item.variant == variant])
            print(row, "" if is_right else "WRONG", flush=True)
            wrong += not is_right
        print(f"{wrong} of {len(WAITS)} wrong; it took {time.monotonic() - begin:.0f} s")
    return min(wrong, 1)


if __name__ == "__main__":
    sys.exit(main())

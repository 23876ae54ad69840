"""Measures every GPU of this host at one commit, and prints what tells the cards apart and how far they lie apart.

    python -m bench.two_cards [--repeats 6] [--operators vector_add,cublas_matmul] [--folder two-cards]

It needs a host with two GPUs of one model. Each repeat is a run of `warpwatch run` on every card at the same time, and
prints the table of all so far.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import combinations
from math import log
from pathlib import Path
from statistics import median

from warpwatch.bundle import BundleReader
from warpwatch.server.verdicts.cards import learn_offset
from warpwatch.worker.devices import find_devices

Times = dict[tuple[str, str, str], list[float]]
"""Medians of the verdict metric by operator, variant and case, one per repeat."""


def measure(operators: str, device: str, output: Path) -> tuple[str, Times]:
    """The card's name with its facts, and its times."""
    words = ["run", "--commits", "HEAD", "--kinds", "bench", "--operators", operators, "--device", device]
    subprocess.run([sys.executable, "-m", "warpwatch", *words, "--output", str(output)], check=True)
    card, times = "unknown", Times()
    with BundleReader(output) as bundle:
        for run in bundle.runs():
            environment = run.outcome.environment
            if environment.card is not None:
                card = f"{environment.card.name} {environment.card.facts}"
            for finding in run.outcome.findings:
                for item in finding.bench.measurements if finding.bench else ():
                    if item.metric == "graph":
                        key = run.order.operator, finding.variant, finding.case
                        times.setdefault(key, []).append(item.median_ns)
    return card, times


def show(every: dict[str, Times]) -> None:
    """Prints what the repeats say so far."""
    for card, times in every.items():
        print(f"{card}: {len(times)} series", flush=True)
    for one, other in combinations(every, 2):
        shared = sorted(every[one].keys() & every[other].keys())
        logs = {
            number: [log(a / b) for a, b in zip(every[one][key], every[other][key], strict=False)]
            for number, key in enumerate(shared)
        }
        print(f"{one.split()[0]} over {other.split()[0]}: {learn_offset(logs, 'cuda')}")
        for number, key in enumerate(shared):
            print(f"  {' '.join(key):60} {median(every[one][key]) / median(every[other][key]):.4f} {len(logs[number])}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=6)
    parser.add_argument("--operators", default="vector_add,cublas_matmul")
    parser.add_argument("--folder", type=Path, default=Path("two-cards"))
    arguments = parser.parse_args()
    arguments.folder.mkdir(exist_ok=True)
    gpus = [device.name for device in find_devices() if device.name.startswith("cuda")]
    every: dict[str, Times] = defaultdict(dict)
    for repeat in range(arguments.repeats):
        outputs = [arguments.folder / f"{device.replace(':', '')}-{repeat}.wwb" for device in gpus]
        for output in outputs:
            output.unlink(missing_ok=True)
        # The metric is of the device alone, so the cards are measured at the same time.
        with ThreadPoolExecutor(len(gpus)) as pool:
            measured = [*pool.map(partial(measure, arguments.operators), gpus, outputs)]
        for card, times in measured:
            for key, values in times.items():
                every[card].setdefault(key, []).extend(values)
        show(every)


if __name__ == "__main__":
    main()

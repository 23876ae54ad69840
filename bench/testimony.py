"""Prints how far the ways to time one call are from each other, for the operators of this repository on a GPU.

python bench/testimony.py [--seconds 150] [--operators rope,matmul] [--seed 0]

Benches variants that need no native library on random declared cases, as a job does, until the time is over. A row has
the medians of the metrics in µs; `busy` is the share of `kernel` in which anything runs; `repeated` and `timed` are the
replays on repeated numbers and on repeated buffers over those on new numbers; then kernels, copies and fills of an
eager and of a captured call. Every accusation of these honest variants is printed; exits with 1 after one.
"""

from __future__ import annotations

import argparse
import importlib
import random
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))

from warpwatch.contract.measurement import METRICS
from warpwatch.operator import Case, Operator, Variant
from warpwatch.worker.harness.bench import bench
from warpwatch.worker.harness.failures import Refusal, WrongResultError
from warpwatch.worker.harness.guards.integrity import TamperGuard
from warpwatch.worker.harness.problem import CaseProblem

ROOT = Path(__file__).parents[1]
BUDGET_NS = 100_000_000
SLOW = {"lottery", "bpe_train", "launch"}
"""Operators whose calls take long, or that measure launches and copies themselves."""
FACTS = ("busy_share", "repeated_share", "timed_share", "eager_launches", "captured_launches")


def problems(names: list[str], seed: int) -> Iterator[tuple[Operator, Variant, Case]]:
    """Every variant without native code on every declared case, in random order, operator by operator in turn."""
    source = random.Random(seed)
    queues = []
    for name in names:
        operator: Operator = importlib.import_module(f"kernels.{name}").operator
        cases = {given.key: given for given in (*operator.cases["quick"], *operator.cases.get("full", ()))}
        variants = [variant for variant in operator.variants.values() if not variant.native]
        pairs = [(operator, variant, given) for variant in variants for given in cases.values()]
        queues.append(source.sample(pairs, len(pairs)))
    while queues:
        for queue in list(queues):
            if not queue:
                queues.remove(queue)
                continue
            yield queue.pop()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=150)
    parser.add_argument("--operators", help="separated by commas; all by default")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--without", default="compile,flex", help="variants to leave out, since they compile for long")
    options = parser.parse_args()
    every = sorted(path.stem for path in (ROOT / "kernels").glob("[a-z]*.py") if path.stem not in SLOW)
    names = options.operators.split(",") if options.operators else every
    guard, device = TamperGuard(), torch.device("cuda:0")
    print(torch.cuda.get_device_name(device), torch.__version__)
    end, benched, accused = time.monotonic() + options.seconds, 0, 0
    for operator, variant, given in problems(names, options.seed):
        if time.monotonic() > end:
            break
        label = f"{operator.name} {variant.name} {given.key}"
        if variant.name in options.without.split(","):
            continue
        problem, begin = CaseProblem(operator, variant, given, device), time.monotonic()
        try:
            problem.refuse_unsupported()
            reply = bench(problem, options.seed, BUDGET_NS, guard, lambda *_: None)
        except Refusal:
            continue
        except WrongResultError as error:
            accused += 1
            print(f"ACCUSED {label}: {error.fault}: {error}", flush=True)
            continue
        except Exception as error:  # noqa: BLE001 - a missing library says nothing about the timers.
            print(f"failed {label}: {type(error).__name__}: {str(error)[:100]}", flush=True)
            continue
        benched += 1
        medians = {measurement.metric: measurement.median_ns / 1e3 for measurement in reply.measurements}
        times = [f"{name} {medians[name]:.2f}" for name in METRICS["cuda"] if name in medians]
        if "cycles" in reply.counters:
            times.append(f"cycles {reply.counters['cycles'].median / reply.counters['clock'].median / 1e3:.2f}")
        facts = [f"{name} {reply.health['testimony'][name]:.2f}" for name in FACTS if name in reply.health["testimony"]]
        print(f"{label}: {', '.join([*times, *facts])} [{time.monotonic() - begin:.1f} s]", flush=True)
    print(f"{benched} benched, {accused} accused")
    return 1 if accused else 0


if __name__ == "__main__":
    raise SystemExit(main())

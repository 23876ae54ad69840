"""Plants 60 changes by code, toolchain, both and neither, and prints what the four cells say of each.

    python -m bench.attribution [--rounds 36] [--quiet 1] [--count 2000]

Noise: how public H100 series of code that was not under test lie off their level from run to run. In a comparison the
four cells of a round stand beside one another and differ by less.
"""

from __future__ import annotations

import argparse
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import cache
from math import exp, log
from pathlib import Path
from statistics import median

from bench.detectors.series import load_controls
from warpwatch.contract.rounds import CellRounds
from warpwatch.contract.words import ChangeOrigin
from warpwatch.server.verdicts.attribution import Attribution, attribute

DATA = Path(__file__).parent / "data" / "h100-kernel-series.csv.gz"
CASES, SEED = 60, 18
ORIGINS = (ChangeOrigin.CODE, ChangeOrigin.TOOLCHAIN, ChangeOrigin.BOTH, ChangeOrigin.NEITHER)
EFFECTS = (0.03, 0.05, 0.1, 0.2, 0.45)
"""Planted changes as shares of the time; the largest is what one compiler release cost elsewhere."""
QUIET = 0.02
"""The usual limit for `load_noise`: no comparison of this length decides noisier series."""


@cache
def load_noise(path: Path, quiet: float = QUIET) -> list[list[float]]:
    """Of each control series, how far the log times of its runs lie off those around them; without series of which a
    tenth of the runs lies farther off than `quiet`."""
    pools = []
    for series in load_controls(path):
        logs = [log(reading.median_ns) for reading in series.readings]
        offs = [value - median(logs[max(0, place - 4) : place + 5]) for place, value in enumerate(logs)]
        if sorted(map(abs, offs))[int(0.9 * len(offs))] <= quiet:
            pools.append(offs)
    return pools


def plant(
    noise: Sequence[Sequence[float]], rounds: int, seed: int = SEED, count: int = CASES
) -> Iterator[tuple[ChangeOrigin, Attribution]]:
    """The true origin of each planted change, and the attribution."""
    chance = random.Random(seed)
    for number in range(count):
        origin, pool = ORIGINS[number % 4], chance.choice(noise)
        code, toolchain = (chance.choice(EFFECTS) * chance.choice((1, 1, -0.5)) for _ in range(2))
        code *= origin in (ChangeOrigin.CODE, ChangeOrigin.BOTH)
        toolchain *= origin in (ChangeOrigin.TOOLCHAIN, ChangeOrigin.BOTH)

        def cell(factor: float, pool: Sequence[float] = pool) -> list[float]:
            return [1e5 * factor * exp(chance.choice(pool)) for _ in range(rounds)]

        factors = 1.0, 1 + code, 1 + toolchain, (1 + code) * (1 + toolchain)
        yield origin, attribute(CellRounds(*map(cell, factors)), "cuda")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--rounds", type=int, default=36)
    parser.add_argument("--quiet", type=float, default=QUIET, help="see load_noise; 1 takes every series")
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--count", type=int, default=CASES)
    arguments = parser.parse_args()
    noise = load_noise(arguments.data, arguments.quiet)
    counts = Counter(
        (origin, result.origin) for origin, result in plant(noise, arguments.rounds, arguments.seed, arguments.count)
    )
    print(f"{len(noise)} control series, {arguments.rounds} rounds of four cells, {arguments.count} planted changes")
    for (origin, said), count in sorted(counts.items()):
        print(f"{origin:10} attributed to {said:10} {count}")
    print(f"right: {sum(count for (origin, said), count in counts.items() if origin == said)} of {arguments.count}")


if __name__ == "__main__":
    main()

"""Times cold and unchanged builds of csrc, per operator.

CCACHE_DISABLE=1 python bench/builds.py [--repeats 5]

Builds every operator into an empty cache, once for a CPU (C++ only) and once for a GPU (also CUDA for every
architecture, if nvcc is installed), then again without changes. Disable compiler caches, which would make a second run
faster. Prints seconds of the cold build, and the median and range of the unchanged builds in milliseconds. The goals
are 20 s and 50 ms on two cores.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path

from warpwatch import native

ROOT = Path(__file__).parent.parent


def seconds_of(operator: str) -> float:
    began = time.perf_counter()
    built = native.build(operator)
    taken = time.perf_counter() - began
    if built.status != "ok":
        raise SystemExit(f"{operator}: {built.status}\n{built.log}")
    return taken


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    repeats = parser.parse_args().repeats
    for device in ("cpu", "cuda"):
        with tempfile.TemporaryDirectory() as cache:
            native.configure(ROOT / "csrc", Path(cache), device)
            for folder in sorted(path for path in (ROOT / "csrc").iterdir() if path.is_dir() and path.name != "common"):
                cold = seconds_of(folder.name)
                warm = [seconds_of(folder.name) * 1e3 for _ in range(repeats)]
                spread = f"{statistics.median(warm):6.1f} ms ({min(warm):.1f} … {max(warm):.1f})"
                print(f"{folder.name:<12} {device:<4} cold {cold:6.1f} s   no change {spread}", flush=True)


if __name__ == "__main__":
    main()

"""Compares byte-pair training of our C++ and of Hugging Face's tokenizers: MB/s, peak memory and the merges.

python bench/bpe.py [--megabytes 2 18] [--merges 1000] [--trainers v3 v4 hf_tokenizers]

Corpora are synthetic proteins (kernels/bpe_train.py). Each training runs in a process of its own on a corpus in its own
format, so the seconds exclude conversion. Memory is the peak of the process minus its memory before training. Exits 1
when merges differ. hf_tokenizers needs `pip install tokenizers`.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch

from kernels import bpe_train
from warpwatch import native
from warpwatch.operator import case
from warpwatch.worker.harness.problem import SeededMaker

ROOT = Path(__file__).parent.parent
SEED = 7


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=int, nargs="+", default=[2, 18])
    parser.add_argument("--merges", type=int, default=1000)
    parser.add_argument("--trainers", nargs="+", default=["v3", "v4", "hf_tokenizers"])
    parser.add_argument("--train", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.train is not None:
        print(json.dumps(train(arguments.train, arguments.megabytes[0], arguments.merges)))
        return 0
    print(
        f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}, torch {torch.__version__}, {arguments.merges} merges"
    )
    identical = [compare(size, arguments.merges, arguments.trainers) for size in arguments.megabytes]
    return 0 if all(identical) else 1


def compare(megabytes: int, merges: int, trainers: list[str]) -> bool:
    """Prints a line per trainer; returns whether all trainers found the same merges."""
    expected = None
    same = True
    for trainer in trainers:
        command = [sys.executable, __file__, "--train", trainer, "--megabytes", str(megabytes), "--merges", str(merges)]
        output = subprocess.run(command, check=True, capture_output=True, text=True, cwd=ROOT).stdout
        training = json.loads(output.splitlines()[-1])
        expected = expected or training["merges"]
        is_identical = training["merges"] == expected
        same = same and is_identical
        speed = f"{training['seconds']:8.2f} s  {megabytes / training['seconds']:8.2f} MB/s"
        memory = f"{training['peak_bytes'] / 1e6:8.0f} MB"
        verdict = f"{'identical' if is_identical else 'DIFFERENT'} merges, load {os.getloadavg()[0]:.1f}"
        print(f"{megabytes:>3} MB  {trainer:<14} {speed}  {memory}  {verdict}", flush=True)
    return same


def train(trainer: str, megabytes: int, merges: int) -> dict[str, object]:
    """Runs one training in this process; returns its seconds, peak bytes and merges."""
    torch.set_grad_enabled(False)
    maker = SeededMaker(SEED, torch.device("cpu"), "i32")
    inputs = bpe_train.inputs(case("i32", symbols=megabytes * 1_000_000, merges=merges), maker)
    variant = bpe_train.operator.variants[trainer]
    with tempfile.TemporaryDirectory() as cache:
        if variant.native:
            native.configure(ROOT / "csrc", Path(cache), "cpu")
            native.load("bpe_train")
        prepared = variant.prepare(**inputs) if variant.prepare is not None else {}
        before = reset_peak()
        began = time.perf_counter()
        result = variant.function(**inputs, **prepared)
        seconds = time.perf_counter() - began
    return {"seconds": seconds, "peak_bytes": peak() - before, "merges": result.tolist()}


def reset_peak() -> int:
    """Resets `peak` where Linux allows it; returns the bytes that the process holds now."""
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    return peak()


def peak() -> int:
    """The peak memory of the process in bytes."""
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


if __name__ == "__main__":
    sys.exit(main())

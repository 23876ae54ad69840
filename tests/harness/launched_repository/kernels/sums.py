"""Sums of rows by versions of one kernel: the first, versions that do the same work, and versions that do not.

Results are those of the first, bit for bit, wherever that is possible, so that only what is launched tells them apart.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import torch
import triton
import triton.language as tl

from warpwatch import Cost, Operator, case

operator = Operator(
    "sums",
    "Sums of rows.",
    inputs=lambda case, make: {"x": make.normal(case["n"], 256)},
    reference=lambda x: x.sum(-1),
    cost=lambda case: Cost(flops=256 * case["n"], bytes=4 * 257 * case["n"]),
    cases={"quick": [case(n=512)]},
)
FILE = Path(tempfile.gettempdir(), "repeats.txt")
STEPS = 1


def launch(kernel, x, *further, grid=None, **options):
    x = x.contiguous()
    y = torch.empty(x.shape[0], device=x.device, dtype=x.dtype)
    kernel[(grid or x.shape[0],)](x, y, *further, **options)
    return y


def first_kernel():
    @triton.jit
    def sums(x, y, repeats, size: tl.constexpr):
        row = tl.program_id(0).to(tl.int64)
        value = tl.load(x + row * size + tl.arange(0, size))
        for _ in range(repeats):
            tl.store(y + row, tl.sum(value, 0))

    return sums


def commented_kernel():
    @triton.jit
    def sums(x, y, repeats, size: tl.constexpr):
        """One program sums one row."""
        row = tl.program_id(0).to(tl.int64)
        # All of it at once.
        value = tl.load(x + row * size + tl.arange(0, size))
        for _ in range(repeats):
            tl.store(y + row, tl.sum(value, 0))

    return sums


def renamed_kernel():
    @triton.jit
    def sums(x, y, repeats, size: tl.constexpr):
        index = tl.program_id(0).to(tl.int64)
        values = tl.load(x + index * size + tl.arange(0, size))
        for _ in range(repeats):
            tl.store(y + index, tl.sum(values, 0))

    return sums


def volatile_kernel():
    @triton.jit
    def sums(x, y, repeats, size: tl.constexpr):
        row = tl.program_id(0).to(tl.int64)
        value = tl.load(x + row * size + tl.arange(0, size), volatile=True)
        for _ in range(repeats):
            tl.store(y + row, tl.sum(value, 0))

    return sums


def strided_kernel():
    @triton.jit
    def sums(x, y, repeats, size: tl.constexpr, rows: tl.constexpr):
        for step in range(rows):
            row = tl.program_id(0).to(tl.int64) * rows + step
            value = tl.load(x + row * size + tl.arange(0, size))
            for _ in range(repeats):
                tl.store(y + row, tl.sum(value, 0))

    return sums


def wide_kernel():
    @triton.jit
    def sums(x, y, repeats, size: tl.constexpr):
        row = tl.program_id(0).to(tl.int64)
        value = tl.load(x + row * size + tl.arange(0, size)).to(tl.float64)
        for _ in range(repeats):
            tl.store(y + row, tl.sum(value, 0).to(tl.float32))

    return sums


def constant_kernel(repeats):
    @triton.jit
    def sums(x, y, unused, size: tl.constexpr, count: tl.constexpr):
        row = tl.program_id(0).to(tl.int64)
        value = tl.load(x + row * size + tl.arange(0, size))
        for _ in tl.static_range(count):
            tl.store(y + row, tl.sum(value, 0), cache_modifier=".cg")

    return lambda x: launch(sums, x, 0, size=256, count=repeats)


def tuned_kernel(key, warps):
    kernel = triton.autotune([triton.Config({}, num_warps=count) for count in warps], key=[key])(first_kernel())
    return lambda x: launch(kernel, x, 1, size=256)


def from_environment(value, default):
    def run(x):
        os.environ["SUMS_WARPS"] = value
        return launch(kernel, x, 1, size=256, num_warps=int(os.environ.get("SUMS_WARPS", default)))

    kernel = first_kernel()
    return run


def from_file(text):
    def run(x):
        FILE.write_text(text)
        return launch(kernel, x, int(FILE.read_text()), size=256)

    kernel = first_kernel()
    return run


def plain(build, *arguments, **options):
    kernel = build()
    options.setdefault("num_warps", 4)
    return lambda x: launch(kernel, x, *(arguments or (1,)), size=256, **options)


def after(run, *, before):
    def both(x):
        before(x)
        return run(x)

    return both


SAME = {
    "first": plain(first_kernel),
    "commented": plain(commented_kernel),
    "renamed": plain(renamed_kernel),
    "by_the_environment": from_environment("4", "8"),
    "by_a_file": from_file("1"),
    "looped_once": plain(strided_kernel, rows=1),
    "with_a_default": lambda x: (lambda run: run(x))(FIRST),
}
OTHER = {
    "an_instruction": plain(volatile_kernel),
    "wider_numbers": plain(wide_kernel),
    "warps": plain(first_kernel, num_warps=8),
    "stages_and_registers": plain(first_kernel, maxnreg=16),
    "a_grid": plain(strided_kernel, grid=256, rows=2),
    "unrolled_numbers": plain(strided_kernel, grid=128, rows=4),
    "an_argument": plain(first_kernel, 2),
    "a_file": from_file("3"),
    "the_environment": from_environment("2", "4"),
    "an_inlined_constant": constant_kernel(2),
    "another_inlined_constant": constant_kernel(3),
    "a_tuned_choice": tuned_kernel("size", [1, 2]),
    "another_key": tuned_kernel("repeats", [16]),
    "a_launch_more": after(plain(first_kernel), before=plain(first_kernel)),
    "a_fill_more": after(plain(first_kernel), before=lambda x: torch.zeros(1 << 16, device=x.device)),
    "a_copy_more": after(plain(first_kernel), before=lambda x: x.clone()),
    "a_copy_from_the_host": after(plain(first_kernel), before=lambda x: torch.ones(4).to(x.device)),
    "torch": lambda x: x.sum(-1),
    "torch_in_another_layout": lambda x: x.t().contiguous().sum(0),
    "a_product": lambda x: x @ torch.ones(256, device=x.device),
}
FIRST = SAME["first"]
for name, run in (SAME | OTHER).items():
    operator.variant(name, idea=name.replace("_", " "))(run)

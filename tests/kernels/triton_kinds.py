"""Counts the kernels that Triton would compile for calls that differ in sizes, addresses and layouts, without a GPU and
without compiling any: `python -m tests.kernels.triton_kinds` prints them by group as JSON."""

from __future__ import annotations

import json
from typing import Any

import torch
from triton.backends.compiler import GPUTarget
from triton.runtime.driver import driver
from triton.runtime.jit import JITFunction

from kernels._triton_attention import TritonAttention
from kernels._triton_linear import product

from .triton_program import Driver

_kinds: set[tuple[str, str]] = set()


def main() -> None:
    JITFunction._do_compile = _count
    driver.set_active(Driver(GPUTarget("cuda", 90, 32)))
    groups = {
        "products of odd sizes": lambda: multiply((33, 31, 130), (131, 67, 129), (77, 12, 301)),
        "and of inputs that begin anywhere": lambda: multiply((32, 64, 130), (33, 31, 130), offset=1),
        "products of even sizes": lambda: multiply((32, 64, 128), (128, 1280, 5888), (80, 16, 48)),
        "attention": lambda: attend((2, 4, 128, 64), (1, 1, 256, 64), (3, 5, 192, 64)),
        "attention of projections": lambda: attend((2, 4, 128, 64), (2, 16, 256, 64), by_row=True),
    }
    counted = {}
    for name, group in groups.items():
        before = len(_kinds)
        group()
        counted[name] = len(_kinds) - before
    print(json.dumps(counted))


def _count(self: Any, key: str, *_: Any) -> None:
    _kinds.add((self.fn.__name__, key))


def multiply(*sizes: tuple[int, int, int], offset: int = 0) -> None:
    for m, k, n in sizes:
        product(torch.zeros(offset + m * k)[offset:].view(m, k), torch.zeros(n, k).t())


def attend(*sizes: tuple[int, int, int, int], by_row: bool = False) -> None:
    """Forward and backward."""
    for batch, heads, rows, d in sizes:
        shape = (batch, rows, heads, d) if by_row else (batch, heads, rows, d)
        q = torch.zeros(shape, requires_grad=True)
        laid = q.transpose(1, 2) if by_row else q
        TritonAttention.apply(laid, laid, laid, False).sum().backward()


if __name__ == "__main__":
    main()

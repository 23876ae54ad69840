"""The Triton variants in Triton's own interpreter, which needs no GPU; in a process of its own, since the choice is made on import."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from .conftest import ROOT

pytest.importorskip("triton")

SCRIPT = """
import torch
from kernels import square, vector_add
a = torch.randn(37, 61, requires_grad=True)
b = torch.randn(37, 61, requires_grad=True)
for ours, theirs in (
    (square.triton_square(a), a * a),
    (vector_add.triton_add(a, b), a + b),
):
    assert torch.equal(ours, theirs)
    g = torch.randn_like(ours)
    for mine, right in zip(*(torch.autograd.grad(y, (a, b), g, allow_unused=True) for y in (ours, theirs))):
        assert (mine is None and right is None) or torch.allclose(mine, right)
"""


def test_triton_variants_are_right() -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], cwd=ROOT, env=os.environ | {"TRITON_INTERPRET": "1"}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr

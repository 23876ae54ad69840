"""What kernel code finds in the GPU memory of another process, which the driver alone keeps apart."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")]
SECRET = 0x5EC4E7
VICTIM = f"""
import sys, torch
kept = [torch.full((2**26,), {SECRET}, dtype=torch.int32, device="cuda") for _ in range(16)]
torch.cuda.synchronize()
print("ready", flush=True)
sys.stdin.read()
"""
# What is free is taken without writing to it, in pieces, and searched.
THIEF = f"""
import torch
total, taken, pieces = 0, torch.cuda.mem_get_info()[0] * 8 // 10, []
while sum(piece.nbytes for piece in pieces) < taken:
    pieces.append(torch.empty(2**26, dtype=torch.int32, device="cuda"))
    total += int((pieces[-1] == {SECRET}).sum())
print(len(pieces), total)
"""


def steal() -> tuple[int, int]:
    """How many pieces of memory another process took, and how often it found the secret in them."""
    done = subprocess.run([sys.executable, "-c", THIEF], capture_output=True, text=True, timeout=300, check=True)
    pieces, hits = map(int, done.stdout.split())
    return pieces, hits


@pytest.mark.parametrize("end", ["alive", "killed", "ended"])
def test_memory_of_another_process_is_not_found(end: str) -> None:
    environment = os.environ | {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
    command = [sys.executable, "-c", VICTIM]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, env=environment) as victim:
        assert victim.stdin is not None
        assert victim.stdout is not None
        assert victim.stdout.readline() == b"ready\n"
        if end == "killed":
            victim.kill()
            victim.wait()
        elif end == "ended":
            victim.stdin.close()
            victim.wait()
        try:
            pieces, hits = steal()
        finally:
            victim.kill()
    assert pieces > 16, "more than the victim had was searched"
    assert hits == 0

"""What an exception of kernel code means."""

from __future__ import annotations

import pytest
import torch

from warpwatch.contract.words import Status
from warpwatch.worker.harness.failures import status_of

NAMELESS = 'torch_call_dispatcher( "aten::empty_like", "", stack.data(), TORCH_ABI_VERSION) API call failed at ops.h'


def test_memory_that_torch_refuses_to_native_code_is_told_from_other_failures(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch's stable interface leaves out why a call failed, so the allocator's own count decides."""
    stats = {"num_ooms": 0}
    monkeypatch.setattr(torch.cuda, "memory_stats", lambda: stats)
    assert status_of(RuntimeError(NAMELESS)) is Status.CRASHED
    stats["num_ooms"] = 1
    assert status_of(RuntimeError("a misaligned address")) is Status.CRASHED
    assert status_of(RuntimeError(NAMELESS)) is Status.OUT_OF_MEMORY
    # What was refused once does not explain what fails later.
    assert status_of(RuntimeError(NAMELESS)) is Status.CRASHED

"""What an exception of kernel code means."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

import pytest
import torch

from warpwatch.contract.words import Status
from warpwatch.worker.harness import failures
from warpwatch.worker.harness.checks import probes
from warpwatch.worker.harness.failures import status_of
from warpwatch.worker.harness.timers import graphs as module
from warpwatch.worker.harness.timers.graphs import CaptureError, capture

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


def test_a_probe_that_costs_the_context_says_so_in_the_first_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def crash() -> NoReturn:
        raise RuntimeError("CUDA error: misaligned address\nSearch for it")

    for module_of_it in (probes, failures):
        monkeypatch.setattr(module_of_it, "device_works", lambda _device: False)
    with pytest.raises(RuntimeError) as caught:
        probes._run("offset inputs", crash, torch.device("cpu"))
    failure = failures.describe(caught.value, torch.device("cpu"))
    first, *rest = failure.message.splitlines()
    assert first.startswith("CUDA error: misaligned address. This was in the probe 'offset inputs'. Its inputs begin")
    assert first.endswith("aligned or stride. The CUDA context is lost, so this process ends.")
    assert rest[0] == "Traceback (most recent call last):"
    assert failure.poisoned


class Graph:
    """A CUDA graph whose capture ends with `error`."""

    def __init__(self, error: Exception | None) -> None:
        self._error = error

    def capture_begin(self, **_options: Any) -> None: ...

    def capture_end(self) -> None:
        if self._error is not None:
            raise self._error


def lacks_memory() -> NoReturn:
    raise torch.OutOfMemoryError("CUDA out of memory")


def lacks_memory_while_it_handles_an_error() -> NoReturn:
    try:
        raise ValueError("no such plan")
    except ValueError:
        lacks_memory()


def is_not_permitted() -> NoReturn:
    raise RuntimeError("operation not permitted when stream is capturing")


@pytest.mark.parametrize("ending", [None, RuntimeError("the capture was invalidated")])
@pytest.mark.parametrize(
    ("call", "kind"),
    [
        (lacks_memory, torch.OutOfMemoryError),
        (lacks_memory_while_it_handles_an_error, torch.OutOfMemoryError),
        (is_not_permitted, CaptureError),
    ],
)
def test_a_capture_that_lacks_memory_is_told_from_one_that_cuda_refuses(
    call: Callable[[], Any], kind: type[Exception], ending: Exception | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    recovered: list[bool] = []
    monkeypatch.setattr(torch.cuda, "CUDAGraph", lambda: Graph(ending))
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(module, "_recover", lambda: recovered.append(True))
    with pytest.raises(kind):
        capture([(0, call)])
    assert recovered == [True]

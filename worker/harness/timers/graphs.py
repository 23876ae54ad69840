"""Captures calls in a CUDA graph, and asks the driver what a capture has recorded so far, which torch does not offer.

Where the driver cannot be asked the answer is None, and nothing is concluded from it.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch

from warpwatch.contract.words import Fault, Status

from ..driver import cuda_driver
from ..failures import WrongResultError, status_of
from ..problem import ordered_stream
from .rotation import no_collection

_UNJOINED = "unjoined work"
_DEFAULT_STREAM = "legacy stream"
"""In CUDA's error for a launch on the default stream while a stream is captured that waits for it."""


class NoMetricError(Exception):
    """A metric cannot be measured for this variant or on this machine; the message says why."""


class CaptureError(NoMetricError):
    """A CUDA graph cannot capture a variant; the message is CUDA's."""


@dataclass(frozen=True, slots=True)
class Capture:
    """A CUDA graph of calls. results: the last result of each input set. added: nodes of each call; work: kernels,
    copies and fills of all calls together. The driver is asked for both, and where it does not answer they are empty.
    """

    graph: torch.cuda.CUDAGraph
    results: dict[int, Any]
    added: list[int]
    work: int | None


def capture(
    launches: list[tuple[int, Callable[[], Any]]], pause: Callable[[], None] = lambda: None, *, count: bool = False
) -> Capture:
    """Captures all launches in one CUDA graph on the current stream.

    launches: (index of the input set, call). pause: is called before each launch. count: whether to ask the driver what
    each launch adds.
    """
    results: dict[int, Any] = {}
    added: list[int] = []
    work: int | None = None
    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    try:
        # Garbage collection would free device memory, which a capture does not allow.
        with no_collection():
            graph.capture_begin(capture_error_mode="thread_local")
            try:
                before, captured = 0, CapturedGraph()
                for index, call in launches:
                    pause()
                    results[index] = call()
                    if count and (nodes := captured.count_nodes()) is not None:
                        added.append(nodes - before)
                        before = nodes
                if count:
                    work = captured.count_work()
            finally:
                graph.capture_end()
    except RuntimeError as error:
        results.clear()
        with suppress(RuntimeError):
            torch.cuda.synchronize()
        _recover()
        # capture_end fails too after a failed capture; the error before it is the cause.
        cause = error.__context__ or error
        reason = str(cause).splitlines()[0]
        if Status.OUT_OF_MEMORY in (status_of(error), status_of(cause)):
            raise torch.OutOfMemoryError(reason) from error
        if _UNJOINED in reason:
            raise WrongResultError(
                f"The variant leaves work on another stream that the current stream does not wait for ({reason})",
                Fault.OTHER_STREAM,
            ) from None
        raise CaptureError(reason) from None
    return Capture(graph, results, added, work)


def launches_on_default_stream(call: Callable[[], Any], device: torch.device) -> bool:
    """Whether a call launches on CUDA's default stream, as CuTe DSL and SageAttention do whatever stream is current.

    A capture on a stream of torch does not see such a launch, and one on an ordinary stream fails for it. So a call is
    told by captures on both. False where this driver captures nothing on an ordinary stream.
    """
    if not _captures_in_order(device):
        return False
    with torch.cuda.stream(ordered_stream(device)):
        if _refusal(call) is None:
            return False
        # Libraries get handles and memory for a stream when they first see it.
        call()
        reason = _refusal(call)
    return reason is not None and (_DEFAULT_STREAM in reason or _refusal(call) is None)


@cache
def _captures_in_order(device: torch.device) -> bool:
    try:
        with torch.cuda.stream(ordered_stream(device)):
            return _refusal(lambda: torch.ones(1024, device=device) + 1) is None
    except (OSError, AttributeError):
        return False


def _refusal(call: Callable[[], Any]) -> str | None:
    """Why the current stream cannot capture the call; None where it can, and where memory does not suffice."""
    try:
        capture([(0, call)])
    except (CaptureError, WrongResultError) as error:
        return str(error)
    except torch.OutOfMemoryError:
        return None
    except Exception as error:  # noqa: BLE001 - libraries raise errors of their own where CUDA refuses a launch.
        return str(error)
    return None


def _recover() -> None:
    """Undoes what a failed capture leaves behind: an error that the next launch would report as its own, and a state of
    the generator that refuses to draw numbers outside a capture."""
    with suppress(RuntimeError):
        torch.ones(1, device="cuda")
    generator = torch.cuda.default_generators[torch.cuda.current_device()]
    with suppress(RuntimeError):
        generator.graphsafe_set_state(generator.clone_state())


_ACTIVE = 1
"""CU_STREAM_CAPTURE_STATUS_ACTIVE."""
_KERNEL, _COPY, _FILL, _GRAPH = 0, 1, 2, 4
"""Values of CUgraphNodeType; the last is a graph within the graph."""


class CapturedGraph:
    """The graph that is being captured on the current stream when this is made, for as long as the capture goes on.

    A capture has one graph, and to ask which takes longer than to count its nodes. So that is asked once.
    """

    def __init__(self) -> None:
        self._handle = _captured_handle()
        self._count = ctypes.c_size_t()

    def count_nodes(self) -> int | None:
        driver = cuda_driver()
        if self._handle is None or driver is None:
            return None
        return None if driver.cuGraphGetNodes(self._handle, None, ctypes.byref(self._count)) else self._count.value

    def count_work(self) -> int | None:
        """The kernels, copies and fills among the nodes; None also where a node stands for a graph of its own."""
        count, driver = self.count_nodes(), cuda_driver()
        if count is None or driver is None:
            return None
        nodes, room = (ctypes.c_void_p * max(count, 1))(), ctypes.c_size_t(count)
        if count and driver.cuGraphGetNodes(self._handle, nodes, ctypes.byref(room)) != 0:
            return None
        work, kind = 0, ctypes.c_int()
        for node in nodes[:count]:
            if driver.cuGraphNodeGetType(ctypes.c_void_p(node), ctypes.byref(kind)) != 0 or kind.value == _GRAPH:
                return None
            work += kind.value in (_KERNEL, _COPY, _FILL)
        return work


def _captured_handle() -> ctypes.c_void_p | None:
    driver = cuda_driver()
    # The symbol of CUDA 11.3; newer drivers keep it for programs that were built with it.
    ask = getattr(driver, "cuStreamGetCaptureInfo_v2", None)
    if ask is None:
        return None
    status, number, graph = ctypes.c_int(), ctypes.c_uint64(), ctypes.c_void_p()
    dependencies, count = ctypes.c_void_p(), ctypes.c_size_t()
    stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
    references = (ctypes.byref(value) for value in (status, number, graph, dependencies, count))
    if ask(stream, *references) != 0 or status.value != _ACTIVE or not graph.value:
        return None
    return graph

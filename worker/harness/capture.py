"""Captures calls in a CUDA graph."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch

from warpwatch.contract.words import Fault, Status

from .failures import WrongResultError, status_of
from .graph_nodes import CapturedGraph
from .rotation import no_collection

_UNJOINED = "unjoined work"


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
        _renew_generator()
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


def _renew_generator() -> None:
    """Replaces the state of the generator: after a failed capture it refuses to draw numbers outside one."""
    generator = torch.cuda.default_generators[torch.cuda.current_device()]
    with suppress(RuntimeError):
        generator.graphsafe_set_state(generator.clone_state())

"""Captures calls in a CUDA graph."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
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


@dataclass(slots=True)
class CapturedCounts:
    """What a capture recorded. added: nodes of each call; work: kernels, copies and fills of all calls together. Both
    stay empty where the driver cannot be asked."""

    added: list[int] = field(default_factory=list)
    work: int | None = None


def capture(
    launches: list[tuple[int, Callable[[], Any]]],
    results: dict[int, Any],
    counts: CapturedCounts | None = None,
    pause: Callable[[], None] = lambda: None,
) -> torch.cuda.CUDAGraph:
    """Captures all launches in one CUDA graph on the current stream.

    launches: (index of the input set, call). results: gets the last result of each set. counts: filled where given.
    pause: is called before each launch.
    """
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
                    if counts is not None and (nodes := captured.count_nodes()) is not None:
                        counts.added.append(nodes - before)
                        before = nodes
                if counts is not None:
                    counts.work = captured.count_work()
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
    return graph


def _renew_generator() -> None:
    """Replaces the state of the generator: after a failed capture it refuses to draw numbers outside one."""
    generator = torch.cuda.default_generators[torch.cuda.current_device()]
    with suppress(RuntimeError):
        generator.graphsafe_set_state(generator.clone_state())

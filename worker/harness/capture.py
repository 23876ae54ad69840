"""Captures a variant in a CUDA graph and replays it on numbers that it was not captured with."""

from __future__ import annotations

from typing import Any

from .probe_context import NotProbedError, ProbeContext
from .rotation import wipe


def graph_capture(scene: ProbeContext) -> str:
    """What a replay leaves must be right for the numbers that lie in the inputs then.

    A variant that cannot be captured is noted.
    """
    # The timers check what they timed, so they import the check.
    from .timer_cuda import CaptureError
    from .timer_cuda import _capture as capture

    problem = scene.problem
    data = problem.data(scene.seed)
    if not data.fits(scene.data):
        raise NotProbedError("its inputs cannot be given other numbers in place")
    kept: dict[int, Any] = {}
    # Backward too begins with the forward call: what it saved for the gradients belongs to these numbers. What a
    # forward call prepared is made anew for other numbers, in place, as the timers do it.
    call = (lambda: problem.call(data)()) if problem.backward else problem.call(data)
    try:
        graph = capture([(0, call)], kept)
    except CaptureError as reason:
        raise NotProbedError(f"it cannot be captured: {reason}") from None
    results = problem.results(kept[0])
    data.overwrite(scene.data)
    if problem.refreshed(call, data) is not call:
        raise NotProbedError("what it prepares for other numbers does not go into the same memory")
    wipe(results, [data])
    graph.replay()
    problem.synchronize()
    scene.truth.expect(results)
    return ""

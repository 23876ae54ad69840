"""Captures a variant in a CUDA graph and replays it on numbers that it was not captured with."""

from __future__ import annotations

from typing import Any

from .rotation import wipe
from .scene import NotProbedError, Scene


def graph_capture(scene: Scene) -> str:
    """What a replay leaves must be right for the numbers that lie in the inputs then. A variant that cannot be captured is noted."""
    # The timers check what they timed, so they import the check.
    from .timer_cuda import CaptureError
    from .timer_cuda import _capture as capture

    problem = scene.problem
    data = problem.data(scene.seed)
    if not data.fits(scene.data):
        raise NotProbedError("its inputs cannot be given other numbers in place")
    kept: dict[int, Any] = {}
    # Backward too begins with the forward call: what it saved for the gradients belongs to these numbers.
    try:
        graph = capture([(0, lambda: problem.call(data)())], kept)
    except CaptureError as reason:
        raise NotProbedError(f"it cannot be captured: {reason}") from None
    results = problem.results(kept[0])
    data.overwrite(scene.data)
    wipe(results, [data])
    graph.replay()
    problem.synchronize()
    scene.truth.expect(results)
    return ""

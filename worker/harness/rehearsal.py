"""Does once, with the reference, what is done to measure a case on a GPU.

The first use of each kernel of torch, and of a CUDA graph, takes a process a third of a second in all. Children that
rehearse at the same time wait for that together, and not one after the other. No variant runs: one that chooses its
configuration by time needs a device of its own.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

import torch

from warpwatch.contract.messages import GraphPlan

from .capture import CaptureError
from .failures import WrongResultError
from .problem import CaseProblem
from .timer_cuda import PAIRED, GraphTimer

_PLAN = GraphPlan(sets=2, placements=1, launches=2, replays=1)


def rehearse(problem: CaseProblem, seed: int) -> None:
    """Measures and verifies the reference on the case, and forgets what came of it."""
    if torch.backends.cudnn.benchmark:
        # It chooses algorithms by their times as well.
        return
    reference = replace(problem.variant, function=problem.operator.reference, prepare=None)
    stage = CaseProblem(problem.operator, reference, problem.case, problem.device, problem.turns)
    with stage.modes(), suppress(CaptureError):
        timer = GraphTimer(stage, seed, 1, plan=_PLAN, pace=replace(PAIRED, warm_up_ns=0))
        timer.take()
        # Beside others even the reference may seem to leave out work.
        with suppress(WrongResultError):
            timer.testify()
        timer.verify()

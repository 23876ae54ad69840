"""Does once, before anything is measured, what compilers and torch do at the first use.

The first use of each kernel of torch, and of a CUDA graph, takes a process a third of a second in all. Children that
rehearse at the same time wait for that together, and not one after the other. A rehearsal runs no variant: a variant
that chooses its configuration by time needs a device of its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from typing import Any

import torch

from warpwatch.contract.activities import Activity
from warpwatch.contract.messages import GraphPlan
from warpwatch.contract.words import LaneUse

from ..failures import WrongResultError
from ..guards.integrity import TamperGuard, watch
from ..problem import CaseProblem
from ..turns import STOPWATCH, ChildTurns
from .cuda import PAIRED, GraphTimer
from .graphs import CaptureError

_Event: Any = torch.cuda.Event


@STOPWATCH.measure(Activity.WARM_UP)
def call_first(problem: CaseProblem, seed: int, guard: TamperGuard) -> float:
    """Calls the variant once; returns the seconds that this took.

    Compilers take seconds and no device, so another child may use it meanwhile, and this one call may run beside a
    sample of that. Once Python code makes an event that can time, or where cuDNN searches or something is prepared, the
    call has the device: its configurations are not chosen by times that others disturb."""
    may_time = torch.backends.cudnn.benchmark or problem.variant.prepare is not None
    with problem.turns.use(LaneUse.DEVICE), problem.modes():
        data = problem.data(seed)
        use = LaneUse.DEVICE if may_time else LaneUse.NONE
        with problem.turns.use(use), watch(guard), _device_when_timing(problem.turns):
            begin = problem.turns.now_ns()
            problem.call(data)()
            problem.synchronize()
            return (problem.turns.now_ns() - begin) / 1e9


@contextmanager
def _device_when_timing(turns: ChildTurns) -> Iterator[None]:
    """Has the device from the first event with a time on that Python code makes in the block."""
    make = vars(_Event)["__new__"]

    def notice(cls: Any, enable_timing: bool = False, *options: Any, **more: Any) -> Any:
        if enable_timing:
            until_end.enter_context(turns.use(LaneUse.DEVICE))
        return make.__func__(cls, enable_timing, *options, **more)

    with ExitStack() as until_end:
        _Event.__new__ = staticmethod(notice)
        try:
            yield
        finally:
            _Event.__new__ = make


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

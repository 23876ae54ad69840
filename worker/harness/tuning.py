"""Makes the first call of a variant on a case, in which compilers run and configurations are chosen."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch

from warpwatch.contract.activities import Activity
from warpwatch.contract.words import LaneUse

from .integrity import TamperGuard, watch
from .problem import CaseProblem
from .spent import STOPWATCH
from .turns import ChildTurns

_Event: Any = torch.cuda.Event


@STOPWATCH.measure(Activity.WARM_UP)
def call_first(problem: CaseProblem, seed: int, guard: TamperGuard) -> None:
    """Compilers take seconds and no device, so another child may use it meanwhile, and this one call may run beside a
    sample of that. Once Python code makes an event that can time, or where cuDNN searches or something is prepared, the
    call has the device: its configurations are not chosen by times that others disturb."""
    may_time = torch.backends.cudnn.benchmark or problem.variant.prepare is not None
    with problem.turns.use(LaneUse.DEVICE), problem.modes():
        data = problem.data(seed)
        use = LaneUse.DEVICE if may_time else LaneUse.NONE
        with problem.turns.use(use), watch(guard), _device_when_timing(problem.turns):
            problem.call(data)()
            problem.synchronize()


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

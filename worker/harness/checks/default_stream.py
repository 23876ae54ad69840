"""Tells a launch on CUDA's default stream, which is only unusual, from work that nobody waits for.

CuTe DSL and SageAttention launch on the default stream, whatever the current stream is. Their callers work on the
default stream too, or on ordinary streams, which wait for it and for which it waits. A stream of torch does neither, so
such a variant reads its inputs too early here, and looks like a cheat.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable
from typing import TypeVar

from warpwatch.contract.measurement import METRICS
from warpwatch.contract.messages import BenchReply, CheckReply
from warpwatch.contract.words import Fault, Status

from ..bench import Prepared
from ..failures import WrongResultError
from ..problem import CaseProblem
from ..timers.graphs import launches_on_default_stream

R = TypeVar("R", BenchReply, CheckReply)


def judge_in_order(problem: CaseProblem, seed: int, judge: Callable[[], R]) -> R:
    """The reply of `judge`. Where it finds a fault, or launches that no capture sees, in a variant that launches on the
    default stream, it judges once more on a stream that waits for that: work that is unfinished there is unfinished for
    every caller."""
    failure: WrongResultError | None = None
    try:
        reply = judge()
        if reply.status is not Status.WRONG and reply.fault is not Fault.NOT_CAPTURABLE:
            return reply
    except WrongResultError as error:
        # Frames of the traceback hold the tensors of the first attempt.
        traceback.clear_frames(error.__traceback__)
        failure = error
    if put_in_order(problem, seed):
        return judge()
    if failure is not None:
        raise failure
    return reply


def prepare_in_order(problem: CaseProblem, seed: int, prepare: Callable[[], Prepared]) -> Prepared:
    """What `prepare` returns; prepared once more where no graph holds the launches because they are on the default
    stream."""
    prepared = prepare()
    if prepared.metric != METRICS[problem.device.type][0] and put_in_order(problem, seed):
        return prepare()
    return prepared


def put_in_order(problem: CaseProblem, seed: int) -> bool:
    """Puts the problem in order where its variant launches on the default stream; returns whether it did so now."""
    if problem.device.type != "cuda" or problem.is_in_order:
        return False
    if problem.uses_default_stream is None:
        try:
            with problem.modes():
                call = problem.call(problem.data(seed))
                problem.uses_default_stream = launches_on_default_stream(call, problem.device)
        except Exception:  # noqa: BLE001 - kernel code may raise anything, and what it was accused of stands.
            return False
    problem.is_in_order = problem.uses_default_stream
    return problem.is_in_order

"""Checks one variant on one case against the float64 oracle.

The variant runs three times in the same buffers: twice on different inputs, which catches results cached from an
earlier call, and once more on the first inputs, which shows whether it is bitwise repeatable. No run may change its
inputs. A variant that passes is then probed, see probes.py, and run on a part of the batch, see batch.py.
"""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from time import perf_counter

import torch
from torch import Tensor

from warpwatch.contract.activities import Activity
from warpwatch.contract.measurement import Counter, TensorError
from warpwatch.contract.messages import CheckReply
from warpwatch.contract.words import Fault, Status

from ..failures import WrongResultError
from ..guards.diagnosis import count_wrong, is_common
from ..guards.digits import describe_digits, find_digits
from ..oracle import Oracle
from ..problem import CaseData, CaseProblem, Progress, bits, poison_memory
from ..profile.choices import recorded_choices
from ..profile.launches import LaunchRecording, describe
from ..turns import STOPWATCH
from .batch import compare_rows, count_moved
from .probes import ProbeContext, ProbeHistory, run_probes

_SECOND_SEED = 1_000_003
"""Added to the seed for the second set of inputs."""


def check(
    problem: CaseProblem,
    seed: int,
    history: ProbeHistory,
    progress: Progress,
    launches: LaunchRecording | None = None,
) -> CheckReply:
    """Checks a variant; a wrong result is a reply with status `wrong`, or a WrongResultError that names the fault.

    history: findings of this process about other variants and cases. The counter `first_call` of the reply is the time
    of the first of the three runs. launches: records what the third launches.
    """
    with problem.modes(), recorded_choices() as choices:
        live = problem.data(seed)
        first, first_errors, oracle, seconds = _run_and_judge(problem, live, seed, Activity.WARM_UP)
        first_copy = {name: tensor.clone() for name, tensor in first.items()}
        if any(not error.right for error in first_errors):
            return _wrong(problem, oracle, first_errors, first, seed, seed)
        progress(1, 3, "first inputs right")
        # Two oracles at once may not fit into memory beside a large case.
        del oracle
        live = _replace_inputs(live, problem.data(seed + _SECOND_SEED))
        second, second_errors, oracle, _ = _run_and_judge(problem, live, seed + _SECOND_SEED, Activity.VERIFY)
        if any(not error.right for error in second_errors):
            repeated = {error.name: second[error.name] for error in second_errors if not error.right}
            _expect_no_repetition(problem, live, first_copy, repeated, oracle)
            note = "; the first call was right, on other inputs"
            return _wrong(problem, oracle, second_errors, second, seed, seed + _SECOND_SEED, note)
        _expect_first_results_intact(first, first_copy, live)
        progress(2, 3, "second inputs right")
        del second
        live = _replace_inputs(live, problem.data(seed))
        with launches.recording() if launches is not None else nullcontext() as recorded:
            third = problem.run(live)
        launched = describe(recorded, list(third.values()))
        moved = count_moved(first_copy, third)
        curves = None if problem.records else problem.operator.curves(problem.case, *first.values())
        del first, third
        context = ProbeContext(problem, seed, problem.data(seed + _SECOND_SEED), oracle, history)
        batch, moved = compare_rows(context, live, first_copy, moved)
        del first_copy, live
        probes = run_probes(context, progress)
    failing = [probe.name for probe in probes if probe.status == "wrong"]
    wrong = [f"{probe.name}: {probe.message}" for probe in probes if probe.status == "wrong"]
    if wrong:
        return CheckReply(Status.WRONG, "\n".join(wrong), seed, first_errors, probes, Fault.PROBE, failing)
    note = f"Nondeterministic: {', '.join(moved)} differ between two calls on the same inputs" if moved else ""
    counters = {"first_call": Counter("seconds", seconds, seconds, seconds, 1)}
    return CheckReply(
        Status.OK,
        note,
        seed,
        first_errors,
        probes,
        curves=curves,
        moving=list(moved),
        differing=sum(moved.values()),
        batch=batch,
        counters=counters,
        launched=None if launched is None else replace(launched, choices=choices),
    )


def _run_and_judge(
    problem: CaseProblem, live: CaseData, seed: int, activity: Activity
) -> tuple[dict[str, Tensor], list[TensorError], Oracle, float]:
    """(results of one call, their errors, the oracle, seconds of the call); WrongResultError when the call changes its
    inputs.

    live: holds the inputs of `seed`. activity: what the time of the call counts as.
    """
    pristine = live.clone()
    poison_memory(problem.expected, problem.device)
    with STOPWATCH.measure(activity):
        begin = perf_counter()
        results = problem.run(live)
        seconds = perf_counter() - begin
    changed = live.changed_since(pristine)
    if changed is not None:
        raise WrongResultError(f"The variant modifies its input {changed}", Fault.MODIFIED_INPUT, changed)
    oracle = Oracle(problem, pristine, partial(problem.data, seed))
    return results, oracle.judge(results), oracle, seconds


def _replace_inputs(live: CaseData, other: CaseData) -> CaseData:
    """The inputs `other` in the buffers of `live` where they fit, so that a cache keyed by address answers wrong."""
    if not live.fits(other):
        return other
    live.overwrite(other)
    return live


def _expect_first_results_intact(first: dict[str, Tensor], first_copy: dict[str, Tensor], live: CaseData) -> None:
    """Raises WrongResultError when the second call overwrote a result of the first.

    Views of inputs are left out, because the inputs have just been replaced.
    """
    inputs = {tensor.untyped_storage().data_ptr() for _, tensor in live.tensors()}
    for name, tensor in first.items():
        is_view = tensor.untyped_storage().data_ptr() in inputs
        if not is_view and not torch.equal(bits(tensor), bits(first_copy[name])):
            raise WrongResultError(
                f"The next call overwrites {name} of the call before", Fault.OVERWRITTEN_RESULT, name
            )


def _expect_no_repetition(
    problem: CaseProblem, live: CaseData, first: dict[str, Tensor], wrong: dict[str, Tensor], oracle: Oracle
) -> None:
    """Raises WrongResultError when the wrong results of the second call are those of the first, bit for bit, whenever
    the call is repeated, and are those of no other inputs."""
    if not all(torch.equal(bits(first[name]), bits(result)) for name, result in wrong.items()):
        return
    wrong_calls, calls = count_wrong(lambda: problem.run(live), oracle)
    if wrong_calls == calls and not is_common(problem, wrong):
        names = ", ".join(wrong)
        message = (
            f"{names} of the second inputs is what the first call returned, bit for bit: the variant caches results"
        )
        raise WrongResultError(message, Fault.CACHED_RESULT, *wrong)


def _wrong(
    problem: CaseProblem,
    oracle: Oracle,
    errors: list[TensorError],
    results: dict[str, Tensor],
    seed: int,
    drawn_from: int,
    note: str = "",
) -> CheckReply:
    """The reply about wrong results. drawn_from: the seed of the inputs that led to them."""
    wrong = [error.name for error in errors if not error.right]
    message, first = f"{oracle.explain_first(errors, results)}{note}", wrong[0]
    redraw, exact = partial(problem.data, drawn_from), oracle.expected[first].oracle
    precision = find_digits(problem, redraw, first, results[first], exact)
    if precision is None:
        return CheckReply(Status.WRONG, message, seed, errors, fault=Fault.WRONG_VALUES, subjects=wrong)
    message += describe_digits(precision)
    return CheckReply(Status.WRONG, message, seed, errors, fault=Fault.REDUCED_PRECISION, subjects=[precision])

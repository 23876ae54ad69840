"""Probes of a variant that passed the plain runs of a check: each probe is one function, or method, of this module.

A probe returns a note (usually empty) when the variant passes, and raises WrongResultError when it fails. An exception
of kernel code that mentions contiguity, alignment or strides counts as a refusal and not as a wrong result.
"""

from __future__ import annotations

import math
import random
import secrets
import sys
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import UnsupportedOperatorException
from torch.utils._pytree import tree_leaves, tree_map_only

from warpwatch.contract.measurement import Probe
from warpwatch.contract.words import Fault, Status
from warpwatch.quantization import is_coded

from ..failures import WrongResultError, device_works, status_of
from ..guards.bands import GuardedInputs, Layout, aligned, guard_allocations, offset, strided
from ..oracle import Oracle, compare, disturbed_oracle, explain, moved_inputs
from ..problem import CaseData, CaseProblem, Progress, as_bytes, index_of
from ..timers.graphs import CaptureError, capture
from ..timers.rotation import addresses_of, wipe

_REFUSALS = ("contigu", "align", "stride")
_RECOMPILES = "torch.compile stance"
_NAN, _INFINITE = (math.nan, math.nan), (math.inf, -math.inf)
_FINITE = (8.0, 9.0), (-8.0, -9.0)
"""Numbers that stand where special values stood, to see which elements they reach."""
_WAY_OUT = (
    '; where special values mean nothing, write `no_special_values="why"` into the variant, or into the operator for '
    "all variants: see docs/verdicts.md"
)
_NOISE_SEEDS = (1, 2, 3, 4)
_REPEATED = 5
_SEED_BITS = 40
_ALWAYS = ("test_schema", "test_autograd_registration")
_WITH_FAKE = ("test_faketensor", "test_aot_dispatch_dynamic")
_NO_FAKE = "There was no fake impl registered"
"""torch's error for operators made with torch.library.custom_op, which always register a fake kernel that raises it."""
_OPCHECK_TOLERANCE = 1e-2
"""The compiled and the plain call run the same kernel, and the rest of the check judges the numbers."""


class ProbeHistory:
    """Findings of this process that one check leaves to the next: the torch operators that were put through opcheck, by
    variant, with and without gradients, and the rows of a batch, by operator and case."""

    def __init__(self) -> None:
        self._keys: set[tuple[str, ...]] = set()
        self.rows: dict[tuple[str, str], Any] = {}
        """For batch.py, which says what they are."""

    def is_new(self, *key: str) -> bool:
        """Whether this is the first time that somebody asks for `key`."""
        before = len(self._keys)
        self._keys.add(key)
        return len(self._keys) > before


_LAYOUTS = {
    "strided inputs": "have gaps between their elements",
    "offset inputs": "begin an element behind an aligned address, as slices do",
}
"""What the inputs of a probe do, in the words of a message."""


class NotProbedError(Exception):
    """A probe does not apply to this variant or case; the message says why."""


@dataclass(frozen=True, slots=True)
class ProbeContext:
    """All that the probes of one check share. seed: the seed of the check. data: the inputs of every probe, and oracle:
    their oracle."""

    problem: CaseProblem
    seed: int
    data: CaseData
    oracle: Oracle
    history: ProbeHistory


def run_probes(context: ProbeContext, progress: Progress) -> list[Probe]:
    """Runs every probe that applies to this device, also after one has failed."""
    banded = BandedRun(context)
    probes: dict[str, Callable[[], str]] = {
        "guard bands": banded.guard_bands,
        "opcheck": banded.opcheck,
        "strided inputs": partial(_with_layout, context, strided),
        "offset inputs": partial(_with_layout, context, offset),
        "special values": partial(special_values, context),
    }
    if context.problem.device.type == "cuda":
        probes["graph capture"] = partial(graph_capture, context)
    results = []
    for index, (name, probe) in enumerate(probes.items()):
        progress(index, len(probes), f"probing {name}")
        results.append(_run(name, probe, context.problem.device))
    return results


def _run(name: str, probe: Callable[[], str], device: torch.device) -> Probe:
    """Runs one probe and turns its exceptions into a status; raises only when the CUDA context is lost."""
    try:
        return Probe(name, "ok", probe())
    except NotProbedError as reason:
        return Probe(name, "skipped", str(reason))
    except WrongResultError as wrong:
        return Probe(name, "wrong", str(wrong))
    except Exception as error:
        if not device_works(device):
            error.add_note(f"This was in the probe {name!r}.")
            if name in _LAYOUTS:
                error.add_note(
                    f"Its inputs {_LAYOUTS[name]}. A variant that cannot take them must raise an error that says "
                    "contiguous, aligned or stride."
                )
            raise
        if status_of(error) is Status.OUT_OF_MEMORY:
            return Probe(name, "skipped", "Not enough memory")
        if _RECOMPILES in str(error):
            return Probe(name, "skipped", "torch.compile would recompile")
        is_refusal = isinstance(error, (RuntimeError, ValueError, TypeError, AssertionError)) and any(
            word in str(error).lower() for word in _REFUSALS
        )
        status = "refuses" if is_refusal or name == "special values" else "wrong"
        return Probe(name, status, f"The variant raises {type(error).__name__}: {first_line(error)}")


class BandedRun:
    """A run between bands of known bytes, and opcheck of the torch operators that it called."""

    def __init__(self, context: ProbeContext) -> None:
        self._context = context
        self._operators: dict[Any, tuple[tuple[Any, ...], dict[str, Any]]] = {}
        """The torch operators that were called, with the arguments of the first call."""
        self._call: Callable[[], Any] | None = None
        """It made these arguments, which may stand for something prepared, such as the number of a plan."""

    def guard_bands(self) -> str:
        """Puts bands of known bytes around the inputs, and bands and poison around memory that torch allocates."""
        problem = self._context.problem
        guarded = GuardedInputs(self._context.data, aligned)
        allocations = guard_allocations()
        try:
            with no_recompilation(), allocations:
                self._call, results = problem.prepare_and_run(guarded.data)
        except WrongResultError:
            raise
        except RuntimeError as error:
            if status_of(error) is Status.OUT_OF_MEMORY or not device_works(problem.device):
                raise
            raise NotProbedError(f"The variant does not run between guard bands: {first_line(error)}") from error
        self._operators = allocations.calls
        guarded.expect_intact()
        allocations.expect_intact()
        self._context.oracle.expect(results)
        if any(allocations.owns(result) for result in results.values()):
            return ""
        return "Only the inputs are guarded: the results come from torch's own operators or from compiled code"

    def opcheck(self) -> str:
        """Tests the torch operators of a native variant with torch.library.opcheck: schema, autograd, fake kernel and
        compile.

        Each operator is checked once per variant, with and without gradients, with the arguments that the variant gave
        it.
        WrongResultError names operator and test.
        """
        problem = self._context.problem
        if not problem.variant.native or not self._operators:
            raise NotProbedError("It calls no torch operator of its own")
        checked, notes = 0, []
        for operator, (args, kwargs) in self._operators.items():
            key = (
                problem.operator.name,
                problem.variant.name,
                f"{operator.name()} {problem.case.as_declared.direction}",
            )
            if self._context.history.is_new(*key):
                notes += _opcheck_one(operator, args, kwargs)
                checked += 1
        # The guarded inputs hold memory that a large case needs.
        self._call = None
        if not checked:
            raise NotProbedError("Done on an earlier case")
        return "; ".join(notes)


def _with_layout(context: ProbeContext, layout: Layout) -> str:
    """Runs the variant on the same inputs in another memory layout."""
    guarded = GuardedInputs(context.data, layout)
    if not guarded.placed:
        raise NotProbedError("No input can have this layout")
    with no_recompilation():
        results = context.problem.run(guarded.data)
    guarded.expect_intact()
    context.oracle.expect(results)
    return ""


def no_recompilation() -> AbstractContextManager[Any]:
    """Makes torch.compile raise instead of recompiling for a new layout, which takes seconds."""
    if "torch._dynamo" not in sys.modules:
        return nullcontext()
    stance: AbstractContextManager[Any] = torch.compiler.set_stance("fail_on_recompile")
    return stance


def first_line(error: BaseException) -> str:
    """The first line of an error's message, or the name of its type."""
    return (str(error).strip() or type(error).__name__).splitlines()[0][:300]


def graph_capture(context: ProbeContext) -> str:
    """Captures the variant in a CUDA graph and replays it on other inputs; the replay must be right for these.

    A variant that cannot be captured is skipped.
    """
    problem = context.problem
    data = problem.data(context.seed)
    if not data.fits(context.data):
        raise NotProbedError("Its inputs cannot be replaced in place")
    # A backward case captures its forward call too, because the tensors saved for the gradients belong to these inputs.
    call = (lambda: problem.call(data)()) if problem.backward else problem.call(data)
    try:
        captured = capture([(0, call)])
    except CaptureError as reason:
        raise NotProbedError(f"A CUDA graph cannot capture it: {reason}") from None
    data.overwrite(context.data)
    # The timers too prepare arguments again in place after a forward call's inputs have changed.
    if problem.refreshed(call, data) is not call:
        raise NotProbedError("It prepares arguments for other inputs in other memory")
    returned = captured.results[0]
    wipe(returned, addresses_of([data]))
    captured.graph.replay()
    problem.synchronize()
    # A gradient of zeros has memory only from here on, so the wipe must not see it.
    context.oracle.expect(problem.results(returned))
    return ""


def _opcheck_one(operator: Any, args: Any, kwargs: Any) -> list[str]:
    """Notes on what could not be tested of one torch operator."""
    name = operator.name()
    keys = ("Meta", "CompositeImplicitAutograd")
    has_fake = any(torch._C._dispatch_has_kernel_for_dispatch_key(name, key) for key in keys) or (
        torch._library.simple_registry.singleton.find(operator._schema.name).fake_impl.kernel is not None
    )
    tests: tuple[str, ...] = (*_ALWAYS, *_WITH_FAKE) if has_fake else _ALWAYS
    takes_codes = any(isinstance(item, Tensor) and is_coded(item) for item in tree_leaves((args, kwargs)))
    if takes_codes:
        # It multiplies arguments, to compare them with those after the call.
        tests = tuple(test for test in tests if test != "test_schema")
    # torch compares codes of eight bits bit by bit, and takes any tolerance for a difference.
    tolerance = 0.0 if _returns_codes(operator, args, kwargs) else _OPCHECK_TOLERANCE
    tolerances = {"atol": tolerance, "rtol": tolerance}
    with warnings.catch_warnings():
        # The operator that computes gradients has no gradient itself, so this warning does not matter.
        warnings.filterwarnings("ignore", "[^ ]*: an autograd kernel was not registered")
        results = torch.library.opcheck(operator, args, kwargs, test_utils=tests, raise_exception=False, **tolerances)
    failed = {test: outcome for test, outcome in results.items() if outcome != "SUCCESS"}
    for test, outcome in failed.items():
        reason = " ".join(str(outcome).split())
        if _NO_FAKE not in reason and not isinstance(outcome, UnsupportedOperatorException):
            raise WrongResultError(f"{name} fails {test}: {reason[:400]}", Fault.OPCHECK, name)
    notes = [f"torch tests no schema with codes of eight bits, such as arguments of {name}"] if takes_codes else []
    if failed or not has_fake:
        notes.append(f"{name} (or the operator of its gradient) has no fake kernel, so torch.compile cannot trace it")
    return notes


def _returns_codes(operator: Any, args: Any, kwargs: Any) -> bool:
    """Whether an operator returns codes of eight bits. It gets copies: one that changes its arguments in spite of its
    schema would leave nothing for opcheck to notice."""
    if operator._schema.is_mutable:
        return False
    with torch.no_grad():
        own_args, own_kwargs = tree_map_only(Tensor, torch.clone, (args, kwargs))
        returned = operator(*own_args, **own_kwargs)
    return any(isinstance(item, Tensor) and is_coded(item) for item in tree_leaves(returned))


def special_values(context: ProbeContext) -> str:
    """Plants NaN, infinities, denormals and negative zeros among the inputs, and judges where they come out.

    The other numbers are those of an earlier run, so the oracle shows which elements a planted value reaches. Elements
    that it does not reach must be as right as before. Elements that the oracle makes NaN because of a NaN, or infinite
    because of an infinity, must not be finite, unless the reference loses the value in the case's own precision.
    Nothing else is judged: combinations of infinities, products with zero, and gradients where there are none, depend
    on how the formula is written.
    """
    problem = context.problem
    reason = problem.operator.no_special_values or problem.variant.no_special_values
    if reason:
        raise NotProbedError(reason)
    for values in (_NAN, _INFINITE):
        planted = context.data.map(lambda tensor: tensor.detach().clone())
        with torch.no_grad():
            if not _plant(planted, values, context.seed):
                raise NotProbedError("No input holds floating-point numbers")
        if not problem.records and problem.operator.quantized(problem.case):
            # What codes and scales become is defined for every number.
            redraw = partial(planted.map, lambda tensor: tensor.detach().clone())
            Oracle(problem, redraw(), redraw).expect(problem.run(planted))
            continue
        oracle = problem.oracle(planted)
        for name, result in problem.run(planted).items():
            if result.dtype.is_floating_point and result.shape == oracle[name].shape:
                judged = result.detach()
                if name.startswith("grad "):
                    # No gradient is defined at an input that is not finite.
                    place = dict(planted.tensors())[name.removeprefix("grad ")].detach()
                    judged = torch.where(place.isfinite(), judged, oracle[name].to(judged.dtype))
                _judge_special(context, name, judged, oracle[name], planted, values is _NAN)
    return ""


def _plant(data: CaseData, values: tuple[float, ...], seed: int) -> bool:
    """Writes special values into the data, in place; False when no tensor can hold them.

    `values` go only into the largest input and the incoming gradients, because one NaN in a small operand, such as a
    weight, would leave no finite number to judge. Denormals and negative zeros go everywhere.
    """
    floats = [(name, t) for name, t in data.tensors() if t.dtype.is_floating_point and t.numel() and t.is_contiguous()]
    if not floats:
        return False
    largest = max(floats, key=lambda pair: pair[1].numel())[0]
    rng = random.Random(seed)
    for name, tensor in floats:
        harsh = values if name == largest or name.startswith("incoming") else ()
        chosen = [*harsh, torch.finfo(tensor.dtype).smallest_normal / 4, -0.0][: max(1, tensor.numel() // 2)]
        places = torch.tensor(rng.sample(range(tensor.numel()), len(chosen)), device=tensor.device)
        planted = torch.tensor(chosen, dtype=tensor.dtype, device=tensor.device)
        as_bytes(tensor.view(-1))[places] = as_bytes(planted)
    return True


def _judge_special(context: ProbeContext, name: str, result: Tensor, oracle: Tensor, data: CaseData, nan: bool) -> None:
    """Raises WrongResultError when `result` swallows the planted values or spreads them too far.

    data: the inputs with the planted values.
    """
    planted = "NaN" if nan else "infinities"
    not_finite = oracle.isnan() if nan else oracle.isinf()
    swallowed = not_finite & result.isfinite()
    expected = context.oracle.expected[name]
    if bool(swallowed.any()) and name.startswith("grad "):
        # No gradient is defined beside an input that is not finite: only the incoming ones must come through, and they
        # may go another way beside it, as that of a maximum does.
        finite_inputs = CaseData(context.data.inputs, data.incoming)
        swallowed &= ~context.problem.oracle(finite_inputs)[name].isfinite()
        if bool(swallowed.any()):
            swallowed &= ~torch.stack(_unreached(context, name, only_incoming=True)).any(0)
        if bool(swallowed.any()):
            swallowed &= context.problem.run(finite_inputs)[name].isfinite()
    if bool(swallowed.any()):
        # The reference may multiply a planted value by the zeros of a padding, which other right code leaves out.
        swallowed &= ~torch.stack(_unreached(context, name)).any(0)
    for seed in _NOISE_SEEDS if bool(swallowed.any()) else ():
        # Rounding errors may decide whether a value gets through, as at the border of a clamp.
        swallowed &= ~disturbed_oracle(context.problem, data, seed)[name].isfinite()
    if bool(swallowed.any()):
        # The reference in the case's own precision may lose the value as well, as a maximum that compares does.
        by_torch = (context.problem.own_precision(data) or {}).get(name)
        if by_torch is not None and by_torch.shape == swallowed.shape:
            swallowed &= ~by_torch.isfinite()
    if bool(swallowed.any()):
        _expect_no_kept_result(context, name)
        index = index_of(int(swallowed.to(torch.uint8).reshape(-1).argmax()), swallowed.shape)
        raise WrongResultError(
            f"The variant swallows {planted}: {name}{index} is {float(result[tuple(index)]):.6g}, expected "
            f"{float(oracle[tuple(index)]):g}, as are {int(swallowed.sum())} of {int(not_finite.sum())} such elements"
            f"{_WAY_OUT}",
            Fault.SPECIAL_VALUES,
            name,
        )
    judged = torch.where(oracle == expected.oracle, result.to(expected.oracle.dtype), expected.oracle)
    if not context.oracle.is_right(name, judged):
        judged = torch.where(torch.stack(_unreached(context, name)).all(0), judged, expected.oracle)
    if not context.oracle.is_right(name, judged):
        error = explain(compare(name, judged, context.oracle.expected[name]), judged)
        message = f"{planted} reach elements that do not depend on them: {error}{_WAY_OUT}"
        raise WrongResultError(message, Fault.SPECIAL_VALUES, name)


def _expect_no_kept_result(context: ProbeContext, name: str) -> None:
    """Raises WrongResultError when the variant ignores ordinary numbers as well, in the places where it ignored special
    values.

    A maximum that drops a NaN gives the answer of the inputs without the NaN, and so does a cache. Only the cache does
    the same for a number that changes the answer, and is right as soon as it meets the number among inputs whose answer
    it cannot have.
    """
    for values in _FINITE:
        if not _ignores_planted(context, name, values):
            continue
        # Code that leaves numbers out now and then may be wrong here and right there by chance.
        for _ in range(_REPEATED):
            result, oracle = _run_planted(context, context.problem.data(secrets.randbits(_SEED_BITS)), values)
            if not (oracle.is_right(name, result[name]) and _ignores_planted(context, name, values)):
                raise WrongResultError(f"{name} ignores some numbers of the inputs", Fault.WRONG_VALUES, name)
        message = (
            f"{name} stays that of other inputs when a few numbers of the inputs change, and follows them among "
            "new inputs: the variant caches results, or searches memory for the oracle"
        )
        raise WrongResultError(message, Fault.CACHED_RESULT, name)


def _ignores_planted(context: ProbeContext, name: str, values: tuple[float, ...]) -> bool:
    """Whether the result stays that of the inputs without `values` in places of them, and is wrong for those with."""
    result, oracle = _run_planted(context, context.data, values)
    return context.oracle.is_right(name, result[name]) and not oracle.is_right(name, result[name])


def _run_planted(context: ProbeContext, data: CaseData, values: tuple[float, ...]) -> tuple[dict[str, Tensor], Oracle]:
    """(the variant's results for the data with `values` in the places of special values, their oracle)."""
    planted = data.map(lambda tensor: tensor.detach().clone())
    with torch.no_grad():
        _plant(planted, values, context.seed)
    redraw = partial(planted.map, lambda tensor: tensor.detach().clone())
    oracle = Oracle(context.problem, redraw(), redraw)
    return context.problem.run(planted), oracle


def _unreached(context: ProbeContext, name: str, *, only_incoming: bool = False) -> list[Tensor]:
    """Which elements of a result do not depend on the numbers at the planted places, by the oracle for finite ones.

    An element may keep its value although it depends on a planted NaN: the gradient of a bound is zero beside a NaN as
    it was beside the number before, and another right formula gives the whole incoming gradient. Of equal numbers one
    may get the whole gradient, so there is an answer for each order that the last bit can bring them into.

    only_incoming: of the planted places, those in the incoming gradients.
    """
    unreached = []
    for data in (context.data, *moved_inputs(context.problem, context.data)):
        before = context.problem.oracle(data)[name]
        same = torch.ones_like(before, dtype=torch.bool)
        for values in _FINITE:
            planted = data.map(lambda tensor: tensor.detach().clone())
            with torch.no_grad():
                _plant(planted, values, context.seed)
            if only_incoming:
                planted = CaseData(data.inputs, planted.incoming)
            same &= context.problem.oracle(planted)[name] == before
        unreached.append(same)
    return unreached

"""Asks a variant that was right so far what plain runs cannot show: each probe is one function of this module or of a
neighbour.

A probe returns a note (usually empty) when all is well and raises WrongResultError when not. An error that names
contiguity, alignment or strides is a refusal: clumsy, but no wrong answer.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from warpwatch.contract.measurement import Probe
from warpwatch.contract.words import Status

from .capture import graph_capture
from .failures import WrongResultError, device_works, status_of
from .guards import GuardedAllocations, GuardedInputs, Layout, aligned, offset, strided
from .opchecks import opcheck
from .probe_context import NotProbedError, ProbeContext
from .specials import special_values

_REFUSALS = ("contigu", "align", "stride")
_RECOMPILES = "torch.compile stance"

Progress = Callable[[int, int, str], None]


def run_probes(scene: ProbeContext, progress: Progress) -> list[Probe]:
    """Every probe that makes sense on this device, whatever the ones before it found."""
    probes: dict[str, Callable[[ProbeContext], str]] = {
        "guard bands": guard_bands,
        "opcheck": opcheck,
        "strided inputs": lambda scene: _laid_out(scene, strided),
        "offset inputs": lambda scene: _laid_out(scene, offset),
        "special values": special_values,
    }
    if scene.problem.device.type == "cuda":
        probes["graph capture"] = graph_capture
    done = []
    for index, (name, probe) in enumerate(probes.items()):
        progress(index, len(probes), f"probing {name}")
        done.append(_run(name, probe, scene))
    return done


def guard_bands(scene: ProbeContext) -> str:
    """Inputs between known bytes, and all that the variant allocates through torch between others and full of NaN."""
    problem = scene.problem
    guarded = GuardedInputs(scene.data, aligned)
    allocations = GuardedAllocations()
    try:
        with no_recompilation(), allocations:
            results = problem.run(guarded.data, scene.alive)
    except WrongResultError:
        raise
    except RuntimeError as error:
        if status_of(error) is Status.OUT_OF_MEMORY or not device_works(problem.device):
            raise
        raise NotProbedError(f"it does not run between guard bands: {_first_line(error)}") from error
    scene.calls = allocations.calls
    guarded.expect_intact()
    allocations.expect_intact()
    scene.truth.expect(results)
    if any(allocations.owns(result) for result in results.values()):
        return ""
    return "around the inputs alone: its results come from torch's own operators or from compiled code"


def _laid_out(scene: ProbeContext, layout: Layout) -> str:
    """The same numbers, lying otherwise in memory."""
    guarded = GuardedInputs(scene.data, layout)
    if not guarded.placed:
        raise NotProbedError("no input can lie otherwise")
    with no_recompilation():
        results = scene.problem.run(guarded.data)
    guarded.expect_intact()
    scene.truth.expect(results)
    return ""


def no_recompilation() -> AbstractContextManager[Any]:
    """torch.compile translates anew for each layout, which takes seconds and may exceed its limit: such a probe is
    skipped instead."""
    if "torch._dynamo" not in sys.modules:
        return nullcontext()
    stance: AbstractContextManager[Any] = torch.compiler.set_stance("fail_on_recompile")
    return stance


def _run(name: str, probe: Callable[[ProbeContext], str], scene: ProbeContext) -> Probe:
    try:
        return Probe(name, "ok", probe(scene))
    except NotProbedError as reason:
        return Probe(name, "skipped", str(reason))
    except WrongResultError as wrong:
        return Probe(name, "wrong", str(wrong))
    except Exception as error:
        if not device_works(scene.problem.device):
            error.add_note(f"It happened in the probe {name!r}.")
            raise
        return _excused(name, error)


def _excused(name: str, error: Exception) -> Probe:
    """What an exception in a probe counts as."""
    line = _first_line(error)
    if status_of(error) is Status.OUT_OF_MEMORY:
        return Probe(name, "skipped", "there is not enough memory")
    if _RECOMPILES in str(error):
        return Probe(name, "skipped", "torch.compile would translate it anew")
    refusal = isinstance(error, (RuntimeError, ValueError, TypeError, AssertionError)) and any(
        word in str(error).lower() for word in _REFUSALS
    )
    return Probe(
        name, "refuses" if refusal or name == "special values" else "wrong", f"it raises {type(error).__name__}: {line}"
    )


def _first_line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0][:300]

"""Puts the torch operators that a native variant calls through torch.library.opcheck: schema, autograd, fake kernel,
compilation."""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch._subclasses.fake_tensor import UnsupportedOperatorException

from .failures import WrongResultError
from .probe_context import NotProbedError, ProbeContext

_ALWAYS = ("test_schema", "test_autograd_registration")
_WITH_FAKE = ("test_faketensor", "test_aot_dispatch_dynamic")
_NO_FAKE = "There was no fake impl registered"
"""What torch.library.custom_op says of itself, which registers a fake kernel in any case."""
_TOLERANCE = 1e-2
"""The compiled and the plain call run the very same kernel; numbers are what the rest of the check is about."""


def opcheck(scene: ProbeContext) -> str:
    """Each operator once per variant and direction, with the arguments that the variant gave it.

    WrongResultError names operator and test.
    """
    problem = scene.problem
    if not problem.variant.native or not scene.calls:
        raise NotProbedError("it calls no torch operator of its own")
    done, notes = 0, []
    for operator, (args, kwargs) in scene.calls.items():
        key = (problem.operator.name, problem.variant.name, f"{operator.name()} {problem.case.direction}")
        if key in scene.memory:
            continue
        scene.memory.add(key)
        notes += _check_one(operator, args, kwargs)
        done += 1
    # Inputs in their bands are memory that a large case needs.
    scene.alive.clear()
    if not done:
        raise NotProbedError("done on an earlier case")
    return "; ".join(notes)


def _check_one(operator: Any, args: Any, kwargs: Any) -> list[str]:
    """Notes on what could not be tested."""
    tests = (*_ALWAYS, *_WITH_FAKE) if _has_fake(operator) else _ALWAYS
    with warnings.catch_warnings():
        # The operator that computes gradients has none itself, which is all right.
        warnings.filterwarnings("ignore", "[^ ]*: an autograd kernel was not registered")
        results = torch.library.opcheck(
            operator, args, kwargs, test_utils=tests, raise_exception=False, atol=_TOLERANCE, rtol=_TOLERANCE
        )
    failed = {test: outcome for test, outcome in results.items() if outcome != "SUCCESS"}
    for test, outcome in failed.items():
        reason = " ".join(str(outcome).split())
        if _NO_FAKE not in reason and not isinstance(outcome, UnsupportedOperatorException):
            raise WrongResultError(f"{operator.name()} fails {test}: {reason[:400]}")
    lacks_fake = failed or tests == _ALWAYS
    return (
        [f"{operator.name()} (or the operator of its gradient) has no fake kernel, so torch.compile cannot trace it"]
        if lacks_fake
        else []
    )


def _has_fake(operator: Any) -> bool:
    name = operator.name()
    meta = any(
        torch._C._dispatch_has_kernel_for_dispatch_key(name, key) for key in ("Meta", "CompositeImplicitAutograd")
    )
    return meta or torch._library.simple_registry.singleton.find(operator._schema.name).fake_impl.kernel is not None

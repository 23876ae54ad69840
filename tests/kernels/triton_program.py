"""Runs the Triton variants of operators without a GPU: `python -m tests.kernels.triton_program MODE OPERATOR...`.

interpret-all: every variant on every quick and edge case in Triton's interpreter, held against the float64 oracle.
interpret: on the cheapest edge case of each precision, direction and number format, and on the cheapest quick case of
those that no edge case has. compile: the kernels that these calls launch are compiled to machine code for each
architecture that we support, and not launched. Prints a line of JSON per outcome, and one for an operator that raises.
The choice is made when Triton is imported, so each of the two takes a process of its own.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import sys
import traceback
from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from typing import Any

ARCHS = (80, 90, 100)
FIRST_ARCH = {"scaled_matmul": 89, "grouped_matmul": 89, "kv_attention": 89}
"""The first architecture with the number formats of an operator."""


def main(mode: str, *names: str) -> None:
    # Collections find next to nothing, and look through torch, Triton and all types of a kernel each time.
    gc.disable()
    if mode != "compile":
        os.environ["TRITON_INTERPRET"] = "1"
        from .triton_interpreter import speed_up

        speed_up()
    for name in names:
        try:
            run(mode, name)
        except Exception:  # noqa: BLE001 - the operators after it run all the same
            say(operator=name, error=traceback.format_exc())


def run(mode: str, name: str) -> None:
    operator = importlib.import_module(f"kernels.{name}").operator
    variants = [variant for variant in operator.variants.values() if variant.name.startswith("triton")]
    for variant in variants:
        suites = [halves_of(operator.cases.get(suite, ()), variant) for suite in ("quick", "edge")]
        if mode == "interpret":
            quick, edge = (cheapest_of_each_kind(operator, cases) for cases in suites)
            cases = list((quick | edge).values())
        else:
            cases = [case for suite in suites for case in suite]
        # What keeps it from CPUs is that its interpreter is slow, which is no matter here.
        free = replace(variant, devices=("cpu", "cuda"), unsupported=lambda case, device: None)
        (compile_only if mode == "compile" else interpret)(operator, free, cases)


def halves_of(cases: Iterable[Any], variant: Any) -> list[Any]:
    """The cases that the variant supports, without steps whose backward is among them: a step launches what its two
    halves launch."""
    runnable = [case for case in cases if variant.reason_unsupported(case, "cuda") is None]
    return [case for case in runnable if case.direction != "step" or replace(case, direction="bwd") not in runnable]


def cheapest_of_each_kind(operator: Any, cases: list[Any]) -> dict[tuple[Any, ...], Any]:
    by_cost = sorted(cases, key=lambda case: operator.cost(case).bytes, reverse=True)
    return {kind_of(case): case for case in by_cost}


def interpret(operator: Any, variant: Any, cases: list[Any]) -> None:
    """One run per case, since a program of a grid takes a millisecond; the full check is a GPU's."""
    import torch

    from warpwatch.worker.harness.oracle import Oracle
    from warpwatch.worker.harness.problem import CaseProblem

    for case in cases:
        problem = CaseProblem(operator, variant, case, torch.device("cpu"))
        with problem.modes():
            data = problem.data(7)
            results = problem.run(data)
            oracle = Oracle(problem, data, partial(problem.data, 7))
            wrong = oracle.explain_first(oracle.judge(results), results)
        say(operator=operator.name, variant=variant.name, case=case.key, wrong=wrong)


def compile_only(operator: Any, variant: Any, cases: list[Any]) -> None:
    import torch

    from warpwatch.worker.harness.problem import CaseProblem

    # Other sizes make the same code for other constants: the first case of each precision, direction and number format
    # shows that it compiles.
    chosen = {kind_of(case): case for case in reversed(cases)}
    for arch in (arch for arch in ARCHS if arch >= FIRST_ARCH.get(operator.name, 0)):
        compiled = _instead_of_launching(arch)
        for case in chosen.values():
            problem = CaseProblem(operator, variant, case, torch.device("cpu"))
            with problem.modes():
                problem.call(problem.data(7))()
        kernels = {kernel: len(code) for kernel, code in compiled.items()}
        say(operator=operator.name, variant=variant.name, arch=arch, kernels=kernels)


def kind_of(case: Any) -> tuple[Any, ...]:
    """Its precision, direction and number formats."""
    return (case.precision, case.direction, *(value for _, value in case.sizes if isinstance(value, str)))


def _instead_of_launching(arch: int) -> dict[str, bytes]:
    """From now on a kernel is compiled for `arch` where it would be launched; returns where the machine code goes."""
    from triton.backends.compiler import GPUTarget
    from triton.runtime.driver import driver
    from triton.runtime.jit import JITFunction

    compiled: dict[str, bytes] = {}
    run = JITFunction.__dict__.get("_run", JITFunction.run)
    JITFunction._run = run

    def compile_it(self: Any, *args: Any, grid: Any, warmup: bool, **options: Any) -> Any:
        kernel = run(self, *args, grid=grid, warmup=True, **options)
        compiled[self.fn.__name__] = kernel.asm["cubin"]
        return kernel

    JITFunction.run = compile_it
    driver.set_active(_Driver(GPUTarget("cuda", arch, 32)))
    return compiled


class _Driver:
    """What Triton asks of a driver before it compiles."""

    def __init__(self, target: Any) -> None:
        self._target = target

    def get_current_target(self) -> Any:
        return self._target

    def get_current_device(self) -> int:
        return self._target.arch  # Compiled kernels are kept by device, and here each target is one.

    def get_current_stream(self, _device: int) -> int:
        return 0


def say(**fields: Any) -> None:
    print("outcome " + json.dumps(fields), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])

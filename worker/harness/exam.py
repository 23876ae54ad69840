"""Sits one harness before candidates: cheats and honest variants, each in a process of its own.

`python -m warpwatch.worker.harness.exam REQUEST` takes a request as JSON and prints one line of JSON per candidate. A
candidate shares its process with the harness, as it does wherever such harnesses are used, so each has a fork of this
process, which imports torch and nothing of either.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import select
import signal
import sys
import traceback
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from warpwatch.operator import DeviceKind, Operator

from .problem import SeededMaker

_LONGEST_MESSAGE = 300


@dataclass(frozen=True, slots=True)
class CandidateResult:
    """The result of a candidate in a harness.

    outcome: believed, with the seconds of a call; caught, by `check` or by `time`; not_run, where the candidate cannot
    run here.
    """

    operator: str
    variant: str
    outcome: str
    by: str = ""
    seconds: float | None = None
    message: str = ""


def main(request: dict[str, Any]) -> None:
    torch.set_num_threads(1)
    # The exam's own folder, whatever other package of this name can be imported.
    kernels = ModuleType("kernels")
    kernels.__path__ = [str(Path(request["root"]) / "kernels")]
    sys.modules["kernels"] = kernels
    for operator, variant in request["candidates"]:
        result = _in_a_fork(partial(_sit, request, operator, variant), request["timeout_seconds"])
        if result is None:
            message = "it crashed, or did not end in time"
            result = asdict(CandidateResult(operator, variant, "caught", "time", message=message))
        print(json.dumps(result), flush=True)


def _in_a_fork(run: Callable[[], CandidateResult], timeout_seconds: float) -> dict[str, Any] | None:
    """Calls `run` in a process of its own and returns the result; None when the process dies or takes too long."""
    receiving, sending = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(receiving)
        quiet = os.open(os.devnull, os.O_WRONLY)
        os.dup2(quiet, 1)
        os.dup2(quiet, 2)
        os.write(sending, json.dumps(asdict(run())).encode())
        os._exit(0)
    os.close(sending)
    parts: list[bytes] = []
    try:
        while select.select([receiving], [], [], timeout_seconds)[0] and (part := os.read(receiving, 65536)):
            parts.append(part)
    finally:
        os.close(receiving)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    return json.loads(b"".join(parts)) if parts else None


def _sit(request: dict[str, Any], operator_name: str, variant_name: str) -> CandidateResult:
    """Asks the harness about one candidate."""
    names, step = (operator_name, variant_name), "check"
    try:
        operator: Operator = importlib.import_module(f"kernels.{operator_name}").operator
    except Exception as error:  # noqa: BLE001 - the harness was not asked, so it caught nothing.
        return CandidateResult(*names, "not_run", message=f"{type(error).__name__}: {error}"[:_LONGEST_MESSAGE])
    try:
        adapter = load_adapter(request["adapter"])
        if request["checkout"]:
            adapter.use(request["checkout"])
        variant, device = operator.variants[variant_name], torch.device(request["device"])
        kind: DeviceKind = "cuda" if device.type == "cuda" else "cpu"
        # Other harnesses time no gradients.
        cases = [case for case in operator.all_cases() if case.direction == "fwd"]
        refusals = {case: variant.reason_unsupported(case, kind) for case in cases}
        case = next((case for case, refusal in refusals.items() if refusal is None), None)
        if case is None:
            return CandidateResult(*names, "not_run", message=next(iter(refusals.values()), "no forward case") or "")
        arguments = list(operator.inputs(case.as_declared, SeededMaker(0, device, case.precision)))

        def inputs(seed: int) -> list[Tensor]:
            return list(operator.inputs(case.as_declared, SeededMaker(seed, device, case.precision)).values())

        def reference(*tensors: Tensor) -> Any:
            return operator.reference(**dict(zip(arguments, tensors, strict=True)))

        def function(*tensors: Tensor) -> Any:
            return variant.function(**dict(zip(arguments, tensors, strict=True)))

        with torch.no_grad():
            if not adapter.check(reference, function, inputs):
                return CandidateResult(*names, "caught", "check")
            step = "time"
            seconds = float(adapter.time(function, inputs))
        return CandidateResult(*names, "believed", seconds=seconds)
    except Exception as error:  # noqa: BLE001 - a harness that raises does not believe the candidate.
        place = traceback.extract_tb(error.__traceback__)[-1]
        message = f"{type(error).__name__}: {error} ({Path(place.filename).name}:{place.lineno})"
        return CandidateResult(*names, "caught", step, message=message[:_LONGEST_MESSAGE])


def load_adapter(name: str) -> Any:
    """The adapter of this name, or that in the file with this path."""
    if not name.endswith(".py"):
        return importlib.import_module(f"{__package__}.adapters.{name}")
    spec = importlib.util.spec_from_file_location("exam_adapter", name)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))

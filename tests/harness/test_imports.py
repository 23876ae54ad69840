"""A child imports what takes seconds, such as sympy and torch._dynamo, only where a variant itself needs it, and spares
garbage collections what was imported."""

from __future__ import annotations

import subprocess
import sys

from tests.harness.child import ROOT

BEGIN = """
import gc
import sys
from pathlib import Path
import torch
from bench.fresh import open_verbs
from warpwatch.contract.messages import Request
from warpwatch.contract.words import Status

verbs = open_verbs(Path(sys.argv[1]), torch.device("cpu"))
"""
ALL_VERBS = """
for verb in ("check", "prepare", "sample", "finish", "bench"):
    request = Request(0, verb, "square", "mul", "size=333x257,f32,fwd", budget_ns=20_000_000)
    reply = getattr(verbs, verb)(request, lambda *_: None)
    assert reply.status is Status.OK, (verb, reply.message)
    print(verb, *sorted({"sympy", "torch._dynamo", "torch._inductor"} & sys.modules.keys()))
"""
LATE_IMPORT = """
request = Request(0, "check", "square", "mul", "size=333x257,f32,fwd")
verbs.check(request, lambda *_: None)
before = len(gc.get_objects())
import sympy
imported = len(gc.get_objects()) - before
verbs.check(request, lambda *_: None)
print((len(gc.get_objects()) - before) / imported)
"""
SENSITIVITY = """
from kernels import attention
from warpwatch.worker.harness.problem import CaseProblem
from warpwatch.worker.harness.oracle import _no_import_of_dynamo, measure_sensitivity

problem = CaseProblem(attention.operator, attention.operator.variants["v1"], attention.QUICK[-1], torch.device("cpu"))
with problem.modes():
    data = problem.data(7)
    print(sorted(measure_sensitivity(problem, data, problem.oracle(data))) == sorted(problem.oracle(data)))
print("torch._dynamo" in sys.modules, hasattr(sys.modules.get("torch._dynamo"), "disabled"))
with _no_import_of_dynamo():
    import torch._dynamo.config
    print(torch._dynamo.config.recompile_limit > 0, torch._dynamo is sys.modules["torch._dynamo"])
x = torch.ones(2, 4)
print(torch.compile(lambda x: x.softmax(1), backend="eager", fullgraph=True)(x).equal(x / 4))
"""


def run(program: str) -> list[str]:
    """The words that a process prints which has opened the harness first."""
    command = [sys.executable, "-c", BEGIN + program, str(ROOT)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def test_measuring_imports_no_compiler_and_collections_pass_over_what_a_variant_imported_late() -> None:
    """In one process, which takes longest to start."""
    *printed, left = run(ALL_VERBS + LATE_IMPORT)
    assert printed == ["check", "prepare", "sample", "finish", "bench"]
    assert float(left) < 0.1


def test_measuring_sensitivity_imports_no_compiler_and_leaves_it_as_it_is() -> None:
    assert run(SENSITIVITY) == ["True", "False", "False", "True", "True", "True"]

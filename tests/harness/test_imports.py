"""A child imports what takes seconds, such as sympy and torch._dynamo, only where a variant itself needs it."""

from __future__ import annotations

import subprocess
import sys

from tests.harness.child import ROOT

PROGRAM = """
import sys
from pathlib import Path
import torch
from bench.fresh import open_verbs
from warpwatch.contract.messages import Request
from warpwatch.contract.words import Status

verbs = open_verbs(Path(sys.argv[1]), torch.device("cpu"))
for verb in ("check", "prepare", "sample", "finish", "bench"):
    request = Request(0, verb, "square", "mul", "size=333x257,f32,fwd", budget_ns=20_000_000)
    reply = getattr(verbs, verb)(request, lambda *_: None)
    assert reply.status is Status.OK, (verb, reply.message)
    print(verb, *sorted({"sympy", "torch._dynamo", "torch._inductor"} & sys.modules.keys()))
"""


def test_measuring_imports_no_compiler() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM, str(ROOT)], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["check", "prepare", "sample", "finish", "bench"]

"""The Triton variants of all operators: right in Triton's own interpreter, and compiled to machine code, neither of
which needs a GPU."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from typing import Any

import pytest

from .conftest import ROOT

# An operator has a Triton variant where its file says so; importing all of them here would take torch.compile's time.
OPERATORS = sorted(
    path.stem
    for path in (ROOT / "kernels").glob("*.py")
    if re.search(r'\.variant\(\s*"triton', path.read_text(encoding="utf-8"))
)


def outcomes(mode: str, operator: str) -> list[dict[str, Any]]:
    done = subprocess.run(
        [sys.executable, "-m", "tests.kernels.triton_program", mode, operator],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    return [
        json.loads(line.removeprefix("outcome ")) for line in done.stdout.splitlines() if line.startswith("outcome ")
    ]


@pytest.mark.parametrize("operator", OPERATORS)
def test_triton_is_right_in_the_interpreter(operator: str) -> None:
    results = outcomes("interpret", operator)
    assert results
    assert not [outcome for outcome in results if outcome["wrong"]]


@pytest.mark.parametrize("operator", OPERATORS)
def test_triton_compiles_for_every_architecture(operator: str) -> None:
    results = outcomes("compile", operator)
    assert {outcome["arch"] for outcome in results} == {80, 90, 100}
    assert all(outcome["kernels"] and all(outcome["kernels"].values()) for outcome in results)

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
from .triton_program import ARCHS, FIRST_ARCH

# An operator has a Triton variant where its file says so; importing all of them here would take torch.compile's time.
OPERATORS = sorted(
    path.stem
    for path in (ROOT / "kernels").glob("*.py")
    if re.search(r'\.variant\(\s*"triton', path.read_text(encoding="utf-8"))
)


pytestmark = pytest.mark.timeout(900)
Outcomes = dict[str, list[dict[str, Any]]]
"""What came of each operator."""


@pytest.fixture(scope="module")
def interpreted(request: pytest.FixtureRequest) -> Outcomes:
    return outcomes("interpret", request)


@pytest.fixture(scope="module")
def interpreted_all(request: pytest.FixtureRequest) -> Outcomes:
    return outcomes("interpret-all", request)


@pytest.fixture(scope="module")
def compiled(request: pytest.FixtureRequest) -> Outcomes:
    return outcomes("compile", request)


def outcomes(mode: str, request: pytest.FixtureRequest) -> Outcomes:
    """One process for all operators that this run of the tests asks for: importing torch and Triton takes longest."""
    here = [item for item in request.session.items if item.path == request.path]
    names = sorted({item.callspec.params["operator"] for item in here if hasattr(item, "callspec")})
    command = [sys.executable, "-m", "tests.kernels.triton_program", mode, *names]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    results: Outcomes = {name: [] for name in names}
    for line in done.stdout.splitlines():
        if line.startswith("outcome "):
            outcome = json.loads(line.removeprefix("outcome "))
            results[outcome.pop("operator")].append(outcome)
    return results


@pytest.mark.parametrize("operator", OPERATORS)
def test_triton_is_right_in_the_interpreter(interpreted: Outcomes, operator: str) -> None:
    assert_right(interpreted[operator])


@pytest.mark.nightly
@pytest.mark.parametrize("operator", OPERATORS)
def test_triton_is_right_in_every_case(interpreted_all: Outcomes, operator: str) -> None:
    assert_right(interpreted_all[operator])


def assert_right(results: list[dict[str, Any]]) -> None:
    assert results
    assert not [outcome for outcome in results if outcome.get("error") or outcome["wrong"]]


@pytest.mark.parametrize("operator", OPERATORS)
def test_triton_compiles_for_every_architecture(compiled: Outcomes, operator: str) -> None:
    results = compiled[operator]
    assert [outcome["error"] for outcome in results if "error" in outcome] == []
    assert {outcome["arch"] for outcome in results} == {a for a in ARCHS if a >= FIRST_ARCH.get(operator, 0)}
    assert all(outcome["kernels"] and all(outcome["kernels"].values()) for outcome in results)

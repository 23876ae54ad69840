"""The harness catches and names every deliberate cheat, and passes the honest variants beside them."""

from __future__ import annotations

import ast
import signal
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.harness.child import ROOT, Harness, lay_out_libraries
from warpwatch.contract.catalogue import Catalogue
from warpwatch.contract.messages import BenchReply, CheckReply, SampleReply
from warpwatch.contract.outcome import Finding
from warpwatch.contract.words import Fault, Status
from warpwatch.worker.harness.failures import WrongResultError
from warpwatch.worker.harness.guards.integrity import TamperGuard, watch
from warpwatch.worker.harness.problem import expect_plain
from warpwatch.worker.proving import ExpectedFault, read_expectations

CHEATERS = ROOT / "worker" / "adversaries" / "cheaters"
CASE = "n=256,f32,fwd"
_BACKWARD = "n=256,f32,bwd"
_WIDE = "rows=64,columns=16384,f32,fwd"
CASES = {
    "cpu": {"kept": "n=512,f32,fwd", "guessed": _WIDE, "forward": _BACKWARD},
    "cuda": {"kept": "n=2048,f32,fwd", "captured": "n=2048,f32,fwd", "guessed": _WIDE, "forward": _BACKWARD},
}
"""Caching pays for larger cases only, and guessing for wide ones."""
BUDGET_NS = 40_000_000
BURNS_SECONDS = 2.0
BUDGETS_NS = {"phases": 320_000_000}
"""One of them cheats from its 101st call on, which a busy host does not reach within the usual budget."""


def variants(elsewhere: str = "cuda") -> list[tuple[str, str, ExpectedFault | None]]:
    """(operator, variant, its fault) of all variants that run not only `elsewhere`; None for honest ones."""
    rows = []
    for expectations in read_expectations(CHEATERS / "kernels"):
        path = CHEATERS / "kernels" / f"{expectations.operator}.py"
        cheaters = expectations.caught_by
        for node in ast.parse(path.read_text()).body:
            for decorator in node.decorator_list if isinstance(node, ast.FunctionDef) else ():
                text = ast.unparse(decorator)
                if text.startswith("operator.variant(") and f"'{elsewhere}'" not in text:
                    name = text.split("'")[1]
                    rows.append((path.stem, name, cheaters.get(name)))
    return rows


@pytest.fixture(scope="module")
def cheaters(cache: Path) -> Iterator[Harness]:
    lay_out_libraries(CHEATERS, cache.parent / "cheaters", "detached")
    child = Harness(CHEATERS, cache.parent / "cheaters")
    yield child
    # The interpreter aborts at its end where a thread of a cheat still runs.
    assert child.stop() in (0, -signal.SIGABRT), child.log.read_text()


def chosen() -> Iterator[Any]:
    """Every run has all honest variants, and the first two cheats that one fault of an operator names; nightly all."""
    faults = Counter[tuple[str, str]]()
    for operator, variant, expected in variants():
        faults[operator, str(expected)] += expected is not None
        marks = [pytest.mark.nightly] if faults[operator, str(expected)] > 2 else []
        yield pytest.param(operator, variant, expected, marks=marks)


@pytest.mark.parametrize(
    ("operator", "variant", "expected"), chosen(), ids=lambda value: None if value is None else str(value)
)
def test_every_cheater_is_named_and_no_honest_twin_is(
    cheaters: Harness, operator: str, variant: str, expected: ExpectedFault | None
) -> None:
    case, budget_ns = CASES["cpu"].get(operator, CASE), BUDGETS_NS.get(operator, BUDGET_NS)
    reply = cheaters.ask(BenchReply, "bench", operator=operator, variant=variant, case=case, budget_ns=budget_ns)
    if operator == "burning":
        # Its thread works on for a while, and other variants of this process would be accused of that.
        time.sleep(BURNS_SECONDS)
    if expected is None:
        assert (reply.status, reply.message) == (Status.OK, "")
        return
    assert reply.status is Status.WRONG, reply.message
    finding = Finding(variant, case, reply.status, fault=reply.fault, subjects=reply.subjects)
    assert expected.matches(finding), (reply.fault, reply.subjects, reply.message)
    assert reply.measurements == []


def test_there_are_sixty_in_twelve_classes_each_beside_an_honest_twin(cheaters: Harness) -> None:
    every = [row for elsewhere in ("cuda", "cpu") for row in variants(elsewhere)]
    cheats = {(operator, variant) for operator, variant, expected in every if expected is not None}
    assert len(cheats) >= 60
    assert len({operator for operator, _ in cheats}) >= 12
    assert {operator for operator, _ in cheats} == {operator for operator, _, expected in every if expected is None}
    catalogue = cheaters.ask(Catalogue, "catalogue")
    assert {entry.name for entry in catalogue.operators} == {
        path.stem for path in (CHEATERS / "kernels").glob("[a-z]*.py")
    }
    assert [entry.error for entry in catalogue.operators if entry.error] == []


def test_a_check_and_a_comparison_notice_replaced_functions_too(cheaters: Harness) -> None:
    names = {"operator": "patches", "case": CASE}
    checked = cheaters.ask(CheckReply, "check", variant="comparison", **names)
    assert (checked.status, checked.subjects) == (Status.WRONG, ["torch.Tensor.double"])
    prepared = cheaters.ask(SampleReply, "prepare", variant="harness_code", **names)
    assert (prepared.status, "harness.timers.cpu._time" in prepared.message) == (Status.WRONG, True)
    # The functions are restored, so the next variant passes.
    assert cheaters.ask(BenchReply, "bench", variant="honest", budget_ns=BUDGET_NS, **names).status is Status.OK


def test_a_comparison_notices_a_side_that_works_while_the_other_is_measured(cheaters: Harness) -> None:
    for variant, status in (("honest_helper", Status.OK), ("burns_while_idle", Status.WRONG)):
        names = {"operator": "burning", "variant": variant, "case": CASE}
        assert cheaters.ask(SampleReply, "prepare", **names).status is Status.OK
        assert cheaters.ask(SampleReply, "sample", **names).status is Status.OK
        time.sleep(0.4)
        reply = cheaters.ask(SampleReply, "finish", **names)
        assert reply.status is status, reply.message
    time.sleep(BURNS_SECONDS)
    assert "works while nothing calls it" in reply.message


def test_a_file_that_patches_when_it_is_loaded_is_refused(tmp_path: Path, cache: Path) -> None:
    (tmp_path / "kernels").mkdir()
    text = (CHEATERS / "kernels" / "coarse.py").read_text().replace('make_operator("coarse"', 'make_operator("early"')
    (tmp_path / "kernels" / "early.py").write_text(f"import time\ntime.perf_counter_ns = lambda: 0\n{text}")
    (tmp_path / "kernels" / "_product.py").write_text((CHEATERS / "kernels" / "_product.py").read_text())
    child = Harness(tmp_path, cache.parent / "early")
    (entry,) = child.ask(Catalogue, "catalogue").operators
    assert entry.error == "The operator file replaces functions that measure or check it: time.perf_counter_ns"
    assert child.stop() == 0


def test_what_was_replaced_is_put_back() -> None:
    guard, double, equal = TamperGuard(), torch.Tensor.double, torch.equal
    torch.Tensor.double = lambda self: self  # type: ignore[method-assign,assignment,return-value]
    torch.equal = lambda a, b: True  # type: ignore[assignment]
    assert sorted(guard.restore()) == ["torch.Tensor.double", "torch.equal"]
    assert (torch.Tensor.double, torch.equal, guard.restore()) == (double, equal, [])


def test_settings_are_put_back_also_after_an_error() -> None:
    guard, threads = TamperGuard(), torch.get_num_threads()
    with pytest.raises(KeyError), watch(guard):  # noqa: PT012 - both statements must run inside the watch.
        torch.set_num_threads(threads + 1)
        raise KeyError
    assert torch.get_num_threads() == threads
    with pytest.raises(WrongResultError) as changed, watch(guard):
        torch.set_num_threads(threads + 1)
    assert (changed.value.fault, changed.value.subjects) == (Fault.CHANGED_SETTING, ["the number of CPU threads"])
    assert torch.get_num_threads() == threads


def test_what_was_replaced_is_to_blame_for_any_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    guard = TamperGuard()
    with pytest.raises(WrongResultError) as blamed, watch(guard):  # noqa: PT012 - as above.
        monkeypatch.setattr(torch.cuda, "synchronize", lambda device=None: None)
        raise RuntimeError("both events must be completed")
    assert (blamed.value.fault, blamed.value.subjects) == (Fault.REPLACED_FUNCTION, ["torch.cuda.synchronize"])


def test_lazy_tensors_are_no_results() -> None:
    expect_plain(torch.ones(2))
    with pytest.raises(WrongResultError) as view:
        expect_plain(torch._neg_view(torch.ones(2)))
    with pytest.raises(WrongResultError) as fake, torch._subclasses.fake_tensor.FakeTensorMode():
        expect_plain(torch.ones(2))
    assert view.value.fault is fake.value.fault is Fault.LAZY_RESULT

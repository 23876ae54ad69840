"""What `warpwatch run` and `try` print of results."""

from __future__ import annotations

from dataclasses import replace

import pytest

from warpwatch.cli.result_table import ResultTable
from warpwatch.contract.environment import Environment
from warpwatch.contract.measurement import PROTOCOLS, Measurement
from warpwatch.contract.messages import BenchReply
from warpwatch.contract.outcome import Comparison, Finding, Outcome
from warpwatch.contract.rounds import StopRule
from warpwatch.contract.words import JobKind, Reason, Status

CASE = "n=8,f32,fwd"
ENVIRONMENT = Environment("0" * 64, "cpu", "cpu", "CPU", {})


def findings(*rows: Finding) -> Outcome:
    return Outcome(ENVIRONMENT, findings=list(rows))


def compared(variant: str, base_ns: float, head_ns: float, rounds: int = 12) -> Comparison:
    wobble = [1 + n / 10_000 for n in range(rounds)]
    base, head = [base_ns * w for w in wobble], [head_ns * w for w in wobble]
    return Comparison(variant, CASE, "hot", PROTOCOLS["cpu"], Status.OK, "", base, head)


def test_a_row_holds_check_time_and_comparison() -> None:
    table = ResultTable("cpu")
    table.add(JobKind.CHECK, findings(Finding("v1", CASE, Status.OK), Finding("v2", CASE, Status.WRONG, "off\nby one")))
    measurement = Measurement("hot", [1500.0], 1500.0, 1400.0, 1600.0, 0.01)
    table.add(
        JobKind.BENCH, findings(Finding("v1", CASE, Status.OK, bench=BenchReply(Status.OK, measurements=[measurement])))
    )
    table.add(JobKind.COMPARE, Outcome(ENVIRONMENT, comparisons=[compared("v1", 1000.0, 1500.0)]))
    (first, first_style), (second, second_style) = table.lines()
    assert first.split("  ")[:3] == [CASE, "v1", "pass"]
    assert "1.50\u2009µs" in first
    assert "slower (" in first
    assert second.endswith("off by one")
    assert (first_style, second_style) == ("red", "red")
    assert (table.wrong, table.slower) == (1, 1)


def test_a_row_has_the_error_of_a_traceback_and_all_of_other_messages() -> None:
    traceback = "Traceback (most recent call last):\n  File x, line 1\nValueError: no"
    table = ResultTable("cpu")
    lost = f"CUDA error: misaligned address. The CUDA context is lost.\n{traceback}"
    rows = [Finding(f"v{number}", CASE, Status.CRASHED, message) for number, message in enumerate([traceback, lost])]
    table.add(JobKind.CHECK, findings(*rows))
    (first, _), (second, _) = table.lines()
    assert first.endswith("crashed  ValueError: no")
    assert second.endswith("crashed  CUDA error: misaligned address. The CUDA context is lost.")


@pytest.mark.parametrize(
    ("head_ns", "earliest", "slower"),
    [
        pytest.param(1030.0, 3, 1, id="suspected"),
        pytest.param(1030.0, 6, 0, id="not suspected"),
        pytest.param(2000.0, 6, 1, id="not suspected, and plain"),
    ],
)
def test_three_rounds_decide_what_was_suspected_or_is_plain(head_ns: float, earliest: int, slower: int) -> None:
    outcome = Outcome(ENVIRONMENT, comparisons=[compared("v1", 1000.0, head_ns, rounds=3)])
    table = ResultTable("cuda")
    table.add(JobKind.COMPARE, outcome, StopRule(earliest, 1.005))
    assert table.slower == slower


def rounds_of(ratios: list[float], reason: Reason | None = None) -> Comparison:
    heads = [100_000.0 * ratio for ratio in ratios]
    return Comparison("v1", CASE, "hot", PROTOCOLS["cpu"], Status.OK, "", [100_000.0] * len(ratios), heads, reason)


@pytest.mark.parametrize(
    ("comparison", "words"),
    [
        pytest.param(
            rounds_of([0.98, 0.99, 1.0, 1.01, 1.02, 1.03]),
            ": no larger change; finds slow-downs from 12.9\u2009% on",
            id="excludes the rest",
        ),
        pytest.param(rounds_of([1.0, 1.04, 1.0]), ": too few rounds exclude nothing", id="excludes nothing"),
        pytest.param(
            rounds_of([0.98, 1.0, 1.0, 1.01, 1.02, 1.03], Reason.CONTROL_MOVED),
            ": the base differed from itself",
            id="moved",
        ),
    ],
)
def test_an_inconclusive_row_says_what_its_rounds_exclude(comparison: Comparison, words: str) -> None:
    table = ResultTable("cpu")
    table.add(JobKind.COMPARE, Outcome(ENVIRONMENT, comparisons=[comparison]), StopRule(6, 1.02, seconds=1.0))
    ((line, style),) = table.lines()
    assert "inconclusive" in line
    assert line.endswith(words)
    assert (table.unsure, table.slower, style) == (1, 0, "yellow")


def test_columns_without_content_and_unsupported_variants_are_left_out() -> None:
    table = ResultTable("cuda")
    rows = Finding("v1", CASE, Status.OK), Finding("triton", CASE, Status.UNSUPPORTED, "only on a GPU")
    table.add(JobKind.CHECK, findings(*rows))
    lines = [line for line, _ in table.lines()]
    assert lines[0] == f"{CASE}  v1  pass"
    assert lines[1] == "unsupported here: triton (only on a GPU)"
    assert (table.wrong, table.slower) == (0, 0)


def test_what_did_not_change_is_no_failure() -> None:
    table = ResultTable("cpu")
    table.add(JobKind.COMPARE, Outcome(ENVIRONMENT, comparisons=[compared("v1", 1000.0, 1000.0)]))
    table.add(
        JobKind.COMPARE,
        Outcome(
            ENVIRONMENT,
            comparisons=[Comparison("v2", CASE, "hot", PROTOCOLS["cpu"], Status.SKIPPED, "the base has no v2")],
        ),
    )
    ratios = [0.88 if n % 2 else 0.995 for n in range(12)]
    open_below = replace(compared("v3", 1000.0, 1000.0), base_ns=[1e4] * 12, head_ns=[1e4 * ratio for ratio in ratios])
    table.add(JobKind.COMPARE, Outcome(ENVIRONMENT, comparisons=[open_below]))
    (same, style), (missing, _), (not_slower, _) = table.lines()
    assert "no change" in same
    assert "not slower (−12.0 … −0.5\u2009%)" in not_slower
    assert style == ""
    assert missing.endswith("the base has no v2")
    assert (table.wrong, table.slower) == (0, 0)

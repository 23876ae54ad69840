"""What ends a confirmed change, without a database: later checks, and changes back."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from warpwatch.contract.words import Status
from warpwatch.db.closing import LaterChange, LaterCheck, OpenChange
from warpwatch.server.judge.closing import Fix, find_ends, find_fix


def fix_of(change: OpenChange, checks: Sequence[LaterCheck], changes: Sequence[LaterChange]) -> Fix | None:
    return find_fix(change, find_ends(change, checks, changes))


def change(direction: str = "slower", *series: int) -> OpenChange:
    return OpenChange(1, "square", "", "cuda", direction, "0" * 40, list(series or (1,)))


def check(ordinal: int, status: Status, series: int = 1) -> LaterCheck:
    return LaterCheck(1, series, ordinal, f"{ordinal:040x}", ordinal, status)


def later(ordinal: int, ratio: float | None, *, series: int = 1, settled: bool = True, **times: float) -> LaterChange:
    """The change at this ordinal; the open one itself is at 1."""
    before, after = times.get("before"), times.get("after")
    own = ordinal == 1
    return LaterChange(1, series, ordinal, own, settled, ordinal, f"{ordinal:040x}", ordinal, ratio, before, after)


def test_a_breakage_ends_at_the_first_check_from_which_on_all_pass() -> None:
    rows = [check(2, Status.WRONG), check(3, Status.OK), check(4, Status.CRASHED), check(5, Status.OK)]
    fix = fix_of(change("broken"), rows, [])
    assert fix is not None
    assert fix.ordinal == 5
    assert fix_of(change("broken"), rows[:3], []) is None, "it broke again"
    assert fix_of(change("broken"), [], []) is None, "nobody has looked since"


def test_a_breakage_of_several_cases_ends_when_the_last_one_passes() -> None:
    rows = [check(2, Status.OK), check(2, Status.WRONG, 2), check(3, Status.OK, 2)]
    fix = fix_of(change("broken", 1, 2), rows, [])
    assert fix is not None
    assert fix.ordinal == 3
    assert fix_of(change("broken", 1, 2), rows[:2], []) is None


def test_a_slow_down_ends_with_a_change_back() -> None:
    fix = fix_of(change(), [], [later(1, 1.25), later(5, 0.802)])
    assert fix is not None
    assert fix.ordinal == 5


def test_half_a_change_back_ends_nothing() -> None:
    assert fix_of(change(), [], [later(1, 1.25), later(5, 0.9)]) is None
    assert fix_of(change(), [], [later(1, 1.007), later(5, 0.9975)]) is None, "small as it was, most of it is left"
    assert fix_of(change(), [], [later(1, 1.25)]) is None


def test_a_change_back_counts_for_one_of_two_slow_downs() -> None:
    """After +25 % and +10 %, −9 % undoes the second one."""
    assert fix_of(change(), [], [later(1, 1.25), later(4, 1.1), later(5, 1 / 1.1)]) is None
    fix = fix_of(change(), [], [later(1, 1.1), later(5, 1 / 1.1)])
    assert fix is not None


def test_a_range_that_is_still_narrowed_names_no_fix_yet() -> None:
    assert fix_of(change(), [], [later(1, 1.25), later(5, 0.8, settled=False)]) is None


def test_series_that_no_comparison_took_are_told_by_their_times() -> None:
    rows = [later(1, 1.25), later(5, 0.8), later(1, 1.25, series=2)]
    back = later(5, None, series=2, before=100.0, after=100.2)
    fix = fix_of(change("slower", 1, 2), [], [*rows, back])
    assert fix is not None
    still_slow = later(5, None, series=2, before=100.0, after=124.0)
    assert fix_of(change("slower", 1, 2), [], [*rows, still_slow]) is None
    assert fix_of(change("slower", 1, 2), [], rows) is None, "nobody has timed the second one since"


def test_what_is_left_of_a_change_is_known_of_each_series() -> None:
    """Of +131 % and +44 %, a later change undoes the first and leaves 1.4 % of the second."""
    rows = [later(1, 2.31), later(5, 1 / 2.31), later(1, 1.44, series=2), later(5, 0.704, series=2)]
    ends = find_ends(change("slower", 1, 2), [], rows)
    assert find_fix(change("slower", 1, 2), ends) is None
    assert ends[1].end is not None
    assert ends[2].end is None
    assert ends[2].left_ratio == pytest.approx(1.44 * 0.704)


def test_a_later_slow_down_makes_no_more_of_a_change() -> None:
    ends = find_ends(change(), [], [later(1, 1.25), later(5, 1.1)])
    assert (ends[1].left_ratio, ends[1].end) == (None, None)

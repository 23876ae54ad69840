"""Rows of the overview: levels are never joined over environments, and every number is that of its cells."""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import UTC, datetime
from math import exp

from warpwatch.db.reads.overview import OverviewCell
from warpwatch.db.trends import TrendCell, TrendCommit, TrendGrid
from warpwatch.server.figures.overview_rows import best_variant, check_counts, levels, operator_summaries

WHEN = datetime(2026, 1, 1, tzinfo=UTC)
COMMITS = [TrendCommit(number, f"{number:040x}", f"Change {number}", WHEN) for number in range(1, 5)]


def cell(variant: str, case: str, ns: float | None, status: str | None = "ok", share: float = 0.5) -> OverviewCell:
    timed = (ns, 0.01, share, 1.0, 1.0, None, None, None)
    return OverviewCell("kron", case, variant, 1, "a" * 40, *timed, status, "", "ok", "", None)


def moved(commit: int, change: float | None, operator: str = "kron") -> TrendCell:
    return TrendCell(operator, commit, change, 0 if change is None else 3, 70 + commit, WHEN)


def test_a_piece_ends_where_nothing_can_be_compared() -> None:
    pieces = levels([moved(1, None), moved(2, 1.5), None, moved(3, None), moved(4, 0.5)])
    assert [[place for place, _ in piece] for piece in pieces] == [[0, 1], [3, 4]]
    assert [round(exp(level), 9) for piece in pieces for _, level in piece] == [1.0, 1.5, 1.5, 0.75]


def test_a_row_has_a_tile_per_commit_and_a_sparkline_that_tells_its_numbers() -> None:
    trends = TrendGrid(COMMITS, [moved(1, None), moved(2, 1.02), moved(4, 1.3), moved(4, 0.5, "square")])
    other = replace(cell("v1", "n=1", 100.0), operator="square")
    kron, square = operator_summaries([cell("v1", "n=1", 100.0), other], trends)
    assert [tile and (tile.heat, tile.text) for tile in kron.tiles] == [(0, "•"), (0, "·"), None, (3, "+30")]
    assert [tile and (tile.heat, tile.text) for tile in square.tiles] == [None, None, None, (-4, "\N{MINUS SIGN}50")]
    assert kron.tiles[3] is not None
    assert kron.tiles[3].cell.series_id == 74
    assert (kron.last and kron.last.commit_id, kron.last_sha) == (4, COMMITS[3].sha)
    drawn = re.search(r'aria-label="kron: (\S+)\N{THIN SPACE}% over 3 measured commits"', kron.sparkline)
    assert drawn is not None
    assert drawn[1] == "+32.6"
    assert kron.sparkline.count("L") == 2


def test_an_operator_without_a_point_has_no_line() -> None:
    (row,) = operator_summaries([cell("v1", "n=1", None)], TrendGrid([], []))
    assert (row.sparkline, row.best, row.last, row.tiles) == ("", None, None, [])


def test_the_best_variant_wins_most_cases_and_is_right() -> None:
    cells = [
        *(cell("v1", f"n={n}", 100.0, share=0.1) for n in (1, 2, 3)),
        cell("v2", "n=1", 50.0, share=0.2),
        cell("v2", "n=2", 40.0, share=0.4),
        cell("v3", "n=1", 10.0, "wrong"),
        cell("v3", "n=2", 10.0, "wrong"),
        cell("v3", "n=3", 90.0, share=0.9),
    ]
    best = best_variant(cells)
    assert best is not None
    assert (best.name, best.wins, best.cases, best.baseline) == ("v2", 2, 3, "v1")
    assert best.speedup is not None
    assert round(best.speedup, 6) == 2.25
    assert best.share is not None
    assert round(best.share, 6) == 0.3


def test_a_baseline_that_was_never_timed_is_not_named() -> None:
    best = best_variant([cell("v1", "n=1", None), cell("v2", "n=1", 30.0), cell("v3", "n=1", 10.0)])
    assert best is not None
    assert (best.name, best.baseline) == ("v3", "v2")


def test_checks_are_counted_by_what_they_mean() -> None:
    statuses = ["ok", "ok", "wrong", "crashed", "unsupported", "skipped", None]
    assert check_counts([cell("v1", "n=1", 1.0, status) for status in statuses]) == {
        "pass": 2,
        "fail": 2,
        "not_applicable": 2,
        "not_run": 1,
    }


def test_the_worst_open_change_is_shown() -> None:
    plain = cell("v1", "n=1", 1.0)
    slow = replace(plain, regression_id=3, regression_direction="slower", regression_ratio=1.4)
    slower = replace(plain, regression_id=4, regression_direction="slower", regression_ratio=1.6)
    broken = replace(plain, regression_id=5, regression_direction="broken")
    for cells, worst in (([plain], None), ([slow, slower], 4), ([slower, broken, slow], 5)):
        (row,) = operator_summaries(cells, TrendGrid([], []))
        assert (row.worst and row.worst.regression_id) == worst

"""Rows of the overview: levels are never joined over environments, and every number is that of its cells."""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import UTC, datetime
from math import exp

from warpwatch.contract.words import StatementKind
from warpwatch.db.reads.overview import OverviewCell
from warpwatch.db.reads.standing import VerdictMark
from warpwatch.db.trends import TrendCell, TrendCommit, TrendGrid
from warpwatch.server.figures.overview_rows import best_variant, check_counts, levels, operator_summaries, shift_rows
from warpwatch.server.figures.speedups import case_speedups, standings
from warpwatch.server.figures.verdict_timeline import verdict_timeline
from warpwatch.server.verdicts.statements import Statement

WHEN = datetime(2026, 1, 1, tzinfo=UTC)
COMMITS = [TrendCommit(number, f"{number:040x}", f"Change {number}", WHEN, number) for number in range(1, 5)]


def cell(variant: str, case: str, ns: float | None, status: str | None = "ok", share: float = 0.5) -> OverviewCell:
    timed = (ns, 0.01, share, 1.0, 1.0, None, None, None)
    return OverviewCell("kron", case, variant, 1, "a" * 40, *timed, status, "", "ok", "", None)


def moved(commit: int, change: float | None, operator: str = "kron") -> TrendCell:
    return TrendCell(operator, commit, change, 0 if change is None else 3, 70 + commit, WHEN)


def test_a_piece_ends_where_nothing_can_be_compared() -> None:
    pieces = levels([moved(1, None), moved(2, 1.5), None, moved(3, None), moved(4, 0.5)])
    assert [[place for place, _ in piece] for piece in pieces] == [[0, 1], [3, 4]]
    assert [round(exp(level), 9) for piece in pieces for _, level in piece] == [1.0, 1.5, 1.5, 0.75]


def test_a_sparkline_tells_its_numbers_and_marks_verdicts() -> None:
    trends = TrendGrid(COMMITS, [moved(1, None), moved(2, 1.02), moved(4, 1.3), moved(4, 0.5, "square")])
    other = replace(cell("v1", "n=1", 100.0), operator="square")
    mark = VerdictMark(7, "kron", COMMITS[3].sha, 4, "slower", "culprit", 1.3, can_confirm=False, series=1)
    kron, square = operator_summaries([cell("v1", "n=1", 100.0), other], trends, [mark])
    assert (kron.last and kron.last.commit_id, kron.last_sha) == (4, COMMITS[3].sha)
    drawn = re.search(r'aria-label="kron: (\S+)\N{THIN SPACE}% over 3 measured commits"', kron.sparkline)
    assert drawn is not None
    assert drawn[1] == "+32.6"
    assert 'class="verdict statement slower" data-statement="confirmed"' in kron.sparkline
    assert "verdict" not in square.sparkline


def stated(kind: StatementKind, series_id: int, sha: str) -> tuple[tuple[int, str], Statement]:
    return (series_id, sha), Statement(kind, ratio=1.3, series_id=series_id, commit_sha=sha)


def test_commits_without_a_change_of_code_are_left_out_of_the_heat_map() -> None:
    """At the second commit no code changed; at the third, one series of two shifted."""
    kinds = StatementKind
    table = [(1, "a", kinds.NOT_TOLD_APART), (2, "a", kinds.NO_DATA), (3, "a", kinds.NOT_TOLD_APART)]
    table += [(number, "b", kinds.SAME_CODE) for number in (1, 2, 3)]
    table += [(1, "c", kinds.SHIFT), (2, "c", kinds.NOT_TOLD_APART), (3, "c", kinds.NOT_TOLD_APART)]
    statements = dict(stated(kind, number, sha) for number, sha, kind in table)
    shown, rows = shift_rows(statements, {1: "kron", 2: "kron", 3: "square"}, ["a", "b", "c"])
    assert shown == ["a", "c"]
    ((name, tiles),) = rows
    assert name == "kron", "nothing is said of the other operator"
    assert [tile.statement and tile.statement.kind for tile in tiles] == [kinds.NOT_TOLD_APART, kinds.SHIFT]


def test_a_timeline_draws_verdicts_alone() -> None:
    def mark(number: int, operator: str, ordinal: int, direction: str, phase: str, ratio: float | None) -> VerdictMark:
        return VerdictMark(number, operator, f"{ordinal:040x}", ordinal, direction, phase, ratio, False, 1)

    marks = [
        mark(1, "kron", 2, "faster", "culprit", 0.8),
        mark(2, "square", 3, "broken", "fixed", None),
        mark(3, "square", 3, "slower", "unpaired", 1.08),
        mark(4, "kron", 4, "slower", "culprit", 1.41),
    ]
    picture = verdict_timeline(marks, [1, 2, 3, 4])
    assert picture is not None
    drawn = re.findall(r'class="verdict statement (\w+)" data-statement="(\w+)"', picture)
    tones = [("faster", "confirmed"), ("slower", "confirmed"), ("suspected", "suspected"), ("plain", "confirmed")]
    assert drawn == 2 * tones, "across the page and for phones"
    assert re.findall(r'class="name"[^>]*>(\w+)<', picture) == 2 * ["kron", "square"], "the worst first"
    assert verdict_timeline([], [1, 2, 3]) is None
    assert verdict_timeline(marks[:1], [3, 4]) is None, "it lies before what is shown"


def test_an_operator_without_a_point_has_no_line() -> None:
    (row,) = operator_summaries([cell("v1", "n=1", None)], TrendGrid([], []))
    assert (row.sparkline, row.best, row.last) == ("", None, None)


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


def test_sums_of_kernels_are_compared_with_no_graph() -> None:
    """v1 has no graph: what passes between its kernels is missing in their sum, so it is neither base nor fastest."""
    kernels = replace(cell("v1", "n=1", 10.0), metric="kernel")
    graphs = [replace(cell(name, "n=1", ns), metric="graph") for name, ns in (("v2", 30.0), ("v3", 15.0))]
    best = best_variant([kernels, *graphs])
    assert best is not None
    assert (best.name, best.baseline, best.speedup) == ("v3", "v2", 2.0)
    assert case_speedups([kernels, *graphs]) == {"v2": 1.0, "v3": 2.0}
    assert standings([kernels, *graphs])["v3"] == "fastest in 1 of 1 case, 2.00× the next"
    assert case_speedups([kernels, replace(kernels, variant="v2", median_ns=5.0)]) == {"v1": 1.0, "v2": 2.0}


def test_checks_are_counted_by_what_they_mean() -> None:
    statuses = ["ok", "ok", "wrong", "crashed", "unsupported", "skipped", None]
    assert check_counts([cell("v1", "n=1", 1.0, status) for status in statuses]) == {
        "pass": 2,
        "fail": 2,
        "not_applicable": 2,
        "not_run": 1,
    }


def test_where_an_operator_stands_is_said_of_its_worst_cell() -> None:
    plain = cell("v1", "n=1", 1.0)
    slow = replace(plain, regression_id=3, regression_direction="slower", regression_ratio=1.4)
    slower = replace(plain, regression_id=4, regression_direction="slower", regression_ratio=1.6)
    broken = replace(plain, regression_id=5, regression_direction="broken")
    suspected = replace(plain, suspected_id=6, suspected_direction="slower", suspected_ratio=2.0)
    for cells, worst in (([plain], None), ([slow, slower], 4), ([slower, broken, slow], 5), ([suspected, slow], 3)):
        (row,) = operator_summaries(cells, TrendGrid([], []))
        assert (row.worst and row.worst.regression_id) == worst
    (row,) = operator_summaries([suspected, plain], TrendGrid([], []))
    assert row.worst is not None
    assert (row.worst.kind, row.worst_cells) == (StatementKind.SUSPECTED, 1)


def test_the_worst_operator_comes_first() -> None:
    slow = replace(cell("v1", "n=1", 1.0), operator="b", regression_id=3, regression_direction="slower")
    rows = [replace(cell("v1", "n=1", 1.0), operator="a"), slow, replace(cell("v1", "n=1", 1.0, "wrong"), operator="c")]
    assert [row.operator for row in operator_summaries(rows, TrendGrid([], []))] == ["c", "b", "a"]

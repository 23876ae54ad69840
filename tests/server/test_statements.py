"""What is true of a series at a commit: the pure rule, and what it is read from."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text

from tests.builders import CASES, Lab, described
from warpwatch.contract.words import StatementDirection, StatementKind, StatementSource, Status
from warpwatch.db.database import Database
from warpwatch.db.reads.lines import ALL_COMMITS
from warpwatch.db.reads.statements import PointReading, SeriesChangeFact, SeriesFacts, list_facts
from warpwatch.server.explanation.statements import read_statements
from warpwatch.server.reports.wording import statement_tone, statement_words
from warpwatch.server.verdicts.statements import Statement, state_rounds, state_series, worst_statement

CELL = ("v1", CASES[0])
SHA = "a" * 40


def reading(ordinal: int, median_ns: float) -> PointReading:
    return PointReading(1, ordinal, ordinal, f"{ordinal:040x}", 1, None, median_ns, median_ns * 0.99, median_ns * 1.01)


def facts(before_ns: float, at_ns: float, **more: Any) -> SeriesFacts:
    """A series of twelve readings that differ by 1 %, then one of at_ns."""
    readings = [reading(number, before_ns * (1 + 0.01 * (number % 2))) for number in range(1, 12)]
    readings += [reading(12, before_ns), reading(13, at_ns)]
    names = (1, SHA, "square", "v1", CASES[0], "cpu", "hot", None)
    return SeriesFacts(*names, reading=readings[-1], before=readings[-2], readings=readings, **more)


def change(direction: str = "slower", ratio: float | None = 1.4, **more: Any) -> SeriesChangeFact:
    fields: dict[str, Any] = {"verdict": "confirmed", "phase": "culprit", "can_confirm": False, "is_end": False}
    fields |= {"low": None, "high": None, "base_sha": "b" * 40, "head_status": None} | more
    return SeriesChangeFact(
        series_id=1, commit_id=13, sha=SHA, ordinal=13, regression_id=7, direction=direction, ratio=ratio, **fields
    )


def test_only_a_change_beyond_what_the_series_can_show_is_a_shift() -> None:
    small, large = state_series(facts(1e5, 1.05e5)), state_series(facts(1e5, 2e5))
    assert (small.kind, large.kind) == (StatementKind.NOT_TOLD_APART, StatementKind.SHIFT)
    assert large.detectable is not None
    assert large.ratio == pytest.approx(2.0)
    assert [statement_tone(item) for item in (small, large)] == ["plain", "shift"]
    assert not {"slower", "faster"} & set(f"{statement_words(small)} {statement_words(large)}".split())


def test_the_same_code_did_not_change_whatever_its_times_are() -> None:
    same = state_series(facts(1e5, 2e5, is_same_code=True))
    assert (same.kind, same.source, statement_tone(same)) == (StatementKind.SAME_CODE, StatementSource.CODE, "plain")


def test_a_trial_decides_before_history_does() -> None:
    slower = state_series(facts(1e5, 1e5, changes=[change()]))
    assert (slower.kind, slower.direction, slower.ratio) == (
        StatementKind.CONFIRMED,
        StatementDirection.SLOWER,
        1.4,
    )
    assert (slower.source, slower.regression_id, statement_tone(slower)) == (StatementSource.TRIAL, 7, "slower")
    dismissed = state_series(facts(1e5, 2e5, changes=[change(verdict="dismissed", phase="dismissed", ratio=1.0)]))
    assert (dismissed.kind, dismissed.source) == (StatementKind.NOT_TOLD_APART, StatementSource.TRIAL)


def test_a_suspicion_is_no_slow_down() -> None:
    for phase, can_confirm, ending in (
        ("suspected", True, "suspected"),
        ("unpaired", False, "suspected, cannot be confirmed"),
    ):
        suspected = change(verdict="suspected", phase=phase, can_confirm=can_confirm)
        statement = state_series(facts(1e5, 2e5, changes=[suspected]))
        assert statement.kind == StatementKind.SUSPECTED
        assert statement_tone(statement) == "suspected"
        assert statement_words(statement).endswith(ending)
    # A series of a change counts as confirmed no sooner than the change does.
    early = state_series(facts(1e5, 2e5, changes=[change(phase="suspected")]))
    assert early.kind == StatementKind.SUSPECTED


def test_a_wrong_result_is_never_faster() -> None:
    wrong = state_series(facts(2e5, 1e5, status=Status.WRONG, changes=[change("faster", 0.5)]))
    assert (wrong.kind, statement_words(wrong), statement_tone(wrong)) == (StatementKind.FAILED, "wrong", "failing")
    broken = state_series(facts(2e5, 1e5, status=Status.WRONG, changes=[change("broken", None, head_status="wrong")]))
    assert (broken.kind, broken.direction) == (StatementKind.CONFIRMED, StatementDirection.BROKEN)
    fixed = state_series(facts(1e5, 1e5, changes=[change("broken", None, is_end=True, phase="fixed")]))
    assert (fixed.direction, fixed.source) == (StatementDirection.FIXED, StatementSource.CHECK)
    began = change("broken", None, phase="fixed", head_status="wrong")
    ended = change("broken", None, is_end=True, phase="fixed")
    both = state_series(facts(1e5, 1e5, changes=[began, ended]))
    assert both.direction == StatementDirection.FIXED, "it broke and was repaired since the time before"


def test_without_a_reading_there_is_no_time_to_speak_of() -> None:
    empty = SeriesFacts(1, SHA, "square", "v1", CASES[0], "cpu", "hot", None)
    assert state_series(empty).kind == StatementKind.NO_DATA
    assert state_series(replace(empty, is_same_code=True)).kind == StatementKind.SAME_CODE
    assert state_series(replace(empty, status=Status.BUILD_FAILED)).kind == StatementKind.FAILED


def test_rounds_of_an_ab_comparison_decide_for_two_commits() -> None:
    shift = state_series(facts(1e5, 2e5))
    slower = state_rounds(shift, "slower", 1.5, 1.4, 1.6)
    assert (slower.kind, slower.direction, slower.ratio) == (StatementKind.CONFIRMED, StatementDirection.SLOWER, 1.5)
    assert state_rounds(shift, "unsure", 1.5, 0.9, 2.0).kind == StatementKind.NOT_TOLD_APART
    same = state_series(facts(1e5, 2e5, is_same_code=True))
    assert state_rounds(same, "faster", 0.5, 0.4, 0.6) == same


def test_a_summary_shows_the_worst() -> None:
    slower, shift = state_series(facts(1e5, 1e5, changes=[change()])), state_series(facts(1e5, 3e5))
    failed = state_series(facts(1e5, 1e5, status=Status.CRASHED))
    assert worst_statement([shift, slower]) == slower
    assert worst_statement([shift, slower, failed]) == failed
    assert worst_statement([]) is None


@pytest.fixture
def read(lab: Lab, database: Database) -> Any:
    """Statements about CELL by the number of a commit."""
    (series_id,) = (1,)

    def statement(number: int, against: int | None = None) -> Statement:
        with database.session() as session:
            held = None if against is None else lab.shas[against]
            return read_statements(session, [series_id], [lab.shas[number]], ALL_COMMITS, held)[
                series_id, lab.shas[number]
            ]

    return statement


def write_sources(database: Database, lab: Lab, sources: dict[int, str], digests: dict[int, str] | None = None) -> None:
    """What the judge writes of the sources of an operator at commits, and of the code of CELL's variant, by number."""
    with database.session() as session:
        for number, fingerprint in sources.items():
            session.execute(
                text(
                    "INSERT INTO job_sources (job_id, operator_id, commit_id, environment_id, sources, variants) "
                    "SELECT jobs.id, operator_id, commit_id, environments.id, :sources, "
                    "jsonb_strip_nulls(jsonb_build_object(CAST(:variant AS text), CAST(:digest AS text))) "
                    "FROM jobs, environments "
                    "WHERE commit_id = :commit_id AND kind = 'bench' LIMIT 1"
                ),
                {
                    "sources": fingerprint,
                    "commit_id": lab.commits[lab.shas[number]],
                    "variant": CELL[0],
                    "digest": (digests or {}).get(number),
                },
            )


def test_times_are_held_against_the_commit_measured_before(lab: Lab, read: Any) -> None:
    lab.bench(0, {CELL: 1e5})
    lab.bench(2, {CELL: 3e5})
    assert read(0).ratio is None
    assert statement_words(read(0)) == "first measured"
    assert read(2).ratio == pytest.approx(3.0)
    assert read(1).kind == StatementKind.NO_DATA
    lab.bench(3, {CELL: 1.5e5})
    assert read(3).ratio == pytest.approx(0.5)
    assert read(3, against=0).ratio == pytest.approx(1.5)


def test_repeats_of_a_commit_are_not_held_against_each_other(lab: Lab, read: Any) -> None:
    for number, time in ((0, 1e5), (1, 3e5), (1, 3.01e5)):
        lab.bench(number, {CELL: time})
    assert read(1).ratio == pytest.approx(3.01)


def test_a_variant_without_native_code_is_the_same_where_only_native_sources_differ(
    lab: Lab, read: Any, database: Database
) -> None:
    for number in range(4):
        lab.bench(number, {CELL: 1e5 * 1.01**number})
    # Its catalogue says that no variant is native.
    write_sources(database, lab, {0: "python-native", 1: "python-native", 2: "python-other", 3: "changed-other"})
    assert [read(number).kind for number in (1, 2, 3)] == [
        StatementKind.SAME_CODE,
        StatementKind.SAME_CODE,
        StatementKind.NOT_TOLD_APART,
    ]


def test_a_variant_is_the_same_where_its_own_code_is(lab: Lab, read: Any, database: Database) -> None:
    for number in range(6):
        lab.bench(number, {CELL: 1e5 * 1.01**number})
    sources = {number: f"python{number}-native" for number in range(6)} | {5: "python5-other"}
    # Of 3 and 4 nothing is known, and that is never the same.
    write_sources(database, lab, sources, {0: "a", 1: "a", 2: "b", 5: "b"})
    same, unsure = StatementKind.SAME_CODE, StatementKind.NOT_TOLD_APART
    assert [read(number).kind for number in range(1, 6)] == [same, unsure, unsure, unsure, unsure]
    assert [read(5, against=number).kind for number in (1, 2)] == [unsure, same], "no variant is native here"


def test_a_check_that_was_repeated_and_passed_is_no_failure(lab: Lab, read: Any) -> None:
    lab.bench(0, {CELL: 1e5})
    lab.check(0, {CELL: Status.WRONG})
    assert read(0).kind == StatementKind.FAILED
    lab.check(0, {CELL: Status.OK})
    assert read(0).kind == StatementKind.NOT_TOLD_APART


def test_old_commits_are_read_beyond_the_newest_readings(
    lab: Lab, read: Any, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(6):
        lab.bench(number, {CELL: 1e5 * 2**number})
    whole = [read(number).ratio for number in range(6)]
    with database.session() as session:
        everything = list_facts(session, [1], lab.shas, ALL_COMMITS)
    assert [item.before.sha if item.before else None for item in everything] == [None, *lab.shas[:5]]
    from warpwatch.db.reads import statements

    monkeypatch.setattr(statements, "NOISE_READINGS", 2)
    monkeypatch.setattr(statements, "_NEWEST", statements._NEWEST.replace("LIMIT 64", "LIMIT 2"))
    assert [read(number).ratio for number in range(6)] == whole


def test_a_commit_of_another_repository_is_not_mixed_up(
    lab: Lab, read: Any, database: Database, tmp_path: Path
) -> None:
    lab.bench(0, {CELL: 1e5})
    other = Lab(database, lab.source, lab.shas, tmp_path, name="other")
    assert described(other.source, tuple(other.shas))
    other.bench(0, {CELL: 9e5})
    assert read(0).value_ns == pytest.approx(1e5)

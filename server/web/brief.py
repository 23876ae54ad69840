"""Brief answers of the API, a function per subject: what pages state, in the same words, for agents and scripts.

Every number is written with its unit, and says by what it is known: the interval and the source of its statement.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from warpwatch.contract.commit_ids import short_sha
from warpwatch.contract.rounds import times_of_rounds
from warpwatch.contract.words import JudgementVerdict
from warpwatch.db.judgements import JudgementRow
from warpwatch.db.reads.devices import DeviceRow
from warpwatch.db.reads.history import PointRow, SeriesChange, SeriesHistory, SeriesRow, StatusMark
from warpwatch.db.reads.home import HomeRow
from warpwatch.db.reads.query import Page
from warpwatch.db.reads.work import SubmissionRow
from warpwatch.db.regressions import RegressionDetail, RegressionRow, RegressionSeriesRow, TrialRow
from warpwatch.server.explanation.alarms import AlarmRow
from warpwatch.server.explanation.causes import CauseView
from warpwatch.server.explanation.paired import StatedRow
from warpwatch.server.history.diffs import DiffLine, DiffLineKind
from warpwatch.server.http.brief import MOST_TEXT, Brief
from warpwatch.server.intake.patch_requests import StoredPatch
from warpwatch.server.reports.formats import (
    JUDGEMENT_WORDS,
    change,
    duration,
    host_fact,
    interval,
    phase_name,
    plural,
    sci,
    size,
    state_name,
)
from warpwatch.server.reports.model import MEANINGS, Report, ReportRow
from warpwatch.server.reports.wording import candidate_commits, change_headline, statement_reason, statement_words
from warpwatch.server.reports.words import reason, sentence, times_text
from warpwatch.server.verdicts.statements import Statement, state_change, state_member, state_regression

_MARKS = {DiffLineKind.ADDED: "+", DiffLineKind.REMOVED: "-", DiffLineKind.SAME: " "}


def _certainty(statement: Statement) -> str:
    """How sure a statement is, and by what: "confirmed by paired rounds of an A/B comparison; 95 % interval …"."""
    return f"{state_name(statement.kind)}, by {statement_reason(statement)}"


def _change(row: RegressionRow) -> dict[str, Any]:
    """A change in one item."""
    return {
        "change": row.id,
        "what": f"{row.operator} on {row.device_key}: {change_headline(row)}",
        "certainty": _certainty(state_regression(row)),
        "state": f"{state_name(row.state)}, {phase_name(row.phase)}",
        "commit": row.culprit_sha,
        "range": None if row.culprit_sha else f"{row.base_sha}..{row.head_sha} ({candidate_commits(row)})",
        "subject": row.head_subject,
        "shown_by": f"{row.series} series",
    }


def brief_home(page: Page[HomeRow]) -> Brief:
    """Every repository and how its watched branch stands."""
    items = [
        {
            "repository": row.name,
            "branch": row.branch,
            "newest_commit": row.newest_sha,
            "stands": f"{row.open} open, {row.suspected} suspected, "
            + ("nothing checked" if row.failing is None else plural(row.failing, "failing result"))
            + f", {plural(row.costs, 'open cost')}",
            "queue": f"{plural(row.queued, 'job')} waiting, {row.running} running",
        }
        for row in page.items
    ]
    return Brief({}, items, page.next_before)


def brief_changes(page: Page[RegressionRow]) -> Brief:
    """A list of changes, worst first."""
    facts = {} if page.items else {"summary": "no changes match"}
    return Brief(facts, [_change(row) for row in page.items], page.next_before)


def brief_change(detail: RegressionDetail) -> Brief:
    """One change: its commits, its series with their times, its trials and the command that measures it again."""
    row = detail.regression
    facts = _change(row) | {
        "repository": detail.repository,
        "base": row.base_sha,
        "head": row.head_sha,
        "author": row.head_author,
        "fixed_by": row.fixed_by_sha,
        "assignee": row.assignee,
        "notes": [f"{note.author} ({state_name(note.state)}): {note.note}" for note in detail.notes[-3:]],
        "reproduce": detail.replay,
    }
    items = [_member(series) for series in detail.series] + [_trial(trial) for trial in detail.trials]
    return Brief(facts, items)


def _member(row: RegressionSeriesRow) -> dict[str, Any]:
    # The times are those of the trial, and so is the certainty; later changes may have left less of it.
    decided = state_member(replace(row, left_ratio=None))
    words = statement_words(decided)
    if row.fixed_by_sha is not None:
        words += f", fixed by {short_sha(row.fixed_by_sha)}"
    elif row.left_ratio is not None:
        words += f", of which {change(row.left_ratio)} is left"
    base, head = times_of_rounds(row.base_ns, row.head_ns)
    return {
        "series": row.series_id,
        "cell": f"{row.variant} {row.case} {row.metric}",
        "statement": words,
        "certainty": _certainty(decided),
        "times": f"{duration(base)} → {duration(head)} per call, medians of paired rounds" if base and head else None,
        "message": row.message,
        "reproduce": row.replay,
    }


def _trial(trial: TrialRow) -> dict[str, Any]:
    measured = ", ".join(text for text in (change(trial.ratio), interval(trial.low, trial.high)) if text)
    return {
        "trial": f"job {trial.job_id} ({trial.purpose}): {short_sha(trial.base_sha)} vs {short_sha(trial.head_sha)}",
        "answer": f"{state_name(trial.answer)}{f' ({measured}, 95 % interval)' if measured else ''}",
        "rounds": plural(trial.rounds, "paired round") if trial.rounds else None,
        "message": trial.message,
    }


def brief_cause(cause: CauseView) -> Brief:
    """The evidence for the cause of a change: machine code, kernels of both traces, host, errors, then the diff."""
    sources = cause.sources
    facts = {
        "diff": sources.message or f"{plural(len(sources.files), 'file')} changed",
        "commits": sources.commits,
        "diff_command": sources.command,
        "diff_url": sources.url,
        "machine_code": _code_summary(cause),
        "trace": None
        if cause.kernels is None
        else f"{duration(cause.kernels.a_ns)} → {duration(cause.kernels.b_ns)} of kernels per recorded call; "
        "paired rounds, not traces, tell whether something became slower",
    }
    return Brief(facts, [*_code_items(cause), *_trace_items(cause), *_host_items(cause), *_diff_items(sources.lines)])


def _code_summary(cause: CauseView) -> str | None:
    code = cause.code
    if code is None:
        return None
    if code.base_hash and code.base_hash == code.head_hash:
        return "identical at base and head (fingerprints of the code), so no change of the code can have changed a time"
    states = Counter(kernel.state for kernel in code.changes)
    counted = ", ".join(f"{count} {state}" for state, count in states.items()) or "none differ"
    return f"kernels of the builds at {short_sha(code.base_sha)} and {short_sha(code.head_sha)}: {counted}"


def _code_items(cause: CauseView) -> Iterator[dict[str, Any]]:
    for kernel in cause.code.changes if cause.code else ():
        sides = [
            f"{side.registers} registers, {size(side.shared_bytes)} shared, {size(side.spill_bytes)} spilled, "
            f"{size(side.code_bytes)} of code"
            if side
            else "absent"
            for side in (kernel.before, kernel.after)
        ]
        yield {"machine_code": kernel.name, "arch": kernel.arch, "is": kernel.state, "from_to": " → ".join(sides)}


def _trace_items(cause: CauseView) -> Iterator[dict[str, Any]]:
    for row in cause.kernels.rows if cause.kernels else ():
        if row.state != "same":
            times = f"{duration(row.a_ns)} → {duration(row.b_ns)} per recorded call"
            yield {"trace": row.b_name or row.a_name, "is": row.state, "times": times}


def _host_items(cause: CauseView) -> Iterator[dict[str, Any]]:
    for row in cause.circumstances:
        before, after = (
            " … ".join("?" if value is None else host_fact(value, row.name) for value in pair)
            for pair in ((row.base_before, row.base_after), (row.head_before, row.head_after))
        )
        if before != after:
            yield {"host": row.name, "base_and_head": f"{before} → {after}"}
    for item in cause.errors.changes if cause.errors else ():
        errors = f"{sci(item.base_relative)} → {sci(item.head_relative)} relative to the float64 oracle"
        allowed = f"tolerance {sci(item.tolerance)}"
        yield {"error_of": f"{item.variant} {item.case} {item.tensor}", "from_to": f"{errors}, {allowed}"}


def _diff_items(lines: Sequence[DiffLine]) -> Iterator[dict[str, Any]]:
    """The diff in blocks of whole lines, as long as a text may be."""
    block = ""
    for line in lines:
        text = f"{_MARKS.get(line.kind, '')}{line.text}\n"
        if block and len(block) + len(text) > MOST_TEXT:
            yield {"diff": block}
            block = ""
        block += text
    if block:
        yield {"diff": block}


def brief_series(page: Page[SeriesRow]) -> Brief:
    """Series with the numbers that their histories are asked by."""
    items = [
        {
            "series": row.id,
            "cell": f"{row.operator} {row.variant} {row.case} {row.metric}",
            "device": row.device_key,
        }
        for row in page.items
    ]
    return Brief({} if items else {"summary": "no series match"}, items, page.next_before)


def brief_history(history: SeriesHistory) -> Brief:
    """The confirmed changes of a series, what failed, then its points, newest first."""
    series = history.series
    points = sorted(history.points, key=lambda point: -point.ordinal)
    facts = {
        "series": series.id,
        "repository": series.repository,
        "cell": f"{series.operator} {series.variant} {series.case} {series.metric}",
        "device": series.device_key,
        "branch": history.branch,
        "summary": f"{plural(len(points), 'point')} and {plural(len(history.changes), 'decided change')}",
        "certainty": "times are medians per call with the 95 % interval within a run; runs of one commit differ by "
        "more, so two points alone show no change: only `change` items are decided",
    }
    return Brief(facts, [*map(_series_change, history.changes), *_failures(history.marks), *map(_point, points)])


def _series_change(row: SeriesChange) -> dict[str, Any]:
    statement = state_change(row.regression_id, row.direction, row.phase, row.ratio, row.signal)
    measured = interval(row.low, row.high)
    return {
        "change": row.regression_id,
        "statement": statement_words(statement),
        "certainty": _certainty(statement) + (f"; 95 % interval {measured}" if measured else ""),
        "range": f"{row.base_sha}..{row.head_sha} ({plural(row.commits, 'commit')})",
        "fixed_by": row.fixed_by_sha,
    }


def _failures(marks: Sequence[StatusMark]) -> list[dict[str, Any]]:
    return [
        {"commit": mark.commit_sha, "failed": f"{mark.kind} {state_name(mark.status)}", "message": mark.message}
        for mark in marks
    ]


def _point(row: PointRow) -> dict[str, Any]:
    return {
        "commit": row.commit_sha[:12],
        "time": f"{duration(row.median_ns, 4)} ({duration(row.low_ns, 4)} … {duration(row.high_ns, 4)})",
        "subject": row.subject[:60],
    }


def brief_comparison(page: Page[StatedRow]) -> Brief:
    """Two commits or variants, what differs first."""
    rows = sorted(page.items, key=lambda row: not row.is_changed)
    changed = sum(row.is_changed for row in rows)
    same = sum(row.is_same_code for row in rows)
    facts = {
        "summary": f"{changed} of {len(rows)} cells differ beyond noise; {same} have the same code",
        "certainty": "`confirmed` is decided by paired rounds; a `shift` is a difference of separate runs beyond the "
        "noise between runs, which a compare job can decide",
    }
    return Brief(facts, [_compared(row) for row in rows])


def _compared(row: StatedRow) -> dict[str, Any]:
    is_paired = row.paired_left_ns is not None and row.paired_right_ns is not None
    left, right = (row.paired_left_ns, row.paired_right_ns) if is_paired else (row.left_ns, row.right_ns)
    variants = dict.fromkeys((row.left_variant, row.right_variant))
    return {
        "cell": f"{row.operator} {' → '.join(variants)} {row.case}",
        "series": row.right_series_id,
        "statement": statement_words(row.statement),
        "certainty": _certainty(row.statement),
        "times": f"{duration(left)} → {duration(right)} per call",
        "launch": statement_words(row.launch) if row.launch is not None else None,
    }


def brief_submission(row: SubmissionRow) -> Brief:
    """A submission, its jobs by state and its results by status."""
    facts = {
        "submission": row.id,
        "repository": row.repository,
        "state": row.state,
        "jobs": ", ".join(f"{count} {state_name(state)}" for state, count in row.counts.items()),
        "results": ", ".join(f"{count} {state_name(status)}" for status, count in row.results.items()),
        "next": f"ask for the verdict of submission {row.id}",
    }
    return Brief(facts)


def brief_patch(patch: StoredPatch) -> Brief:
    """A stored patch: the commit to submit, and what differs from its base."""
    facts = {
        "sha": patch.sha,
        "base_sha": patch.base_sha,
        "files": patch.files,
        "operators": patch.operators,
        "next": "submit `sha` with base `base_sha` and the kinds check and compare",
    }
    return Brief(facts)


def brief_judgement(row: JudgementRow) -> Brief:
    """A judgement: its verdict once it has ended, and where its receipt is."""
    verdict = None if row.verdict is None else JUDGEMENT_WORDS[JudgementVerdict(row.verdict)]
    facts = {
        "judgement": row.id,
        "state": row.state,
        "what": f"{row.operator} of {row.repository} on {row.device_key}",
        "verdict": verdict,
        "hidden_cases": None if row.at_least is None else f"at least {row.at_least:g} times as fast",
        "certainty": None if verdict is None else "by checks, a bench and paired rounds on public and hidden cases",
        "receipt": None if row.receipt is None else f"/api/v1/judgements/{row.id}",
        "public_cases": None if row.submission_id is None else f"submission {row.submission_id}",
        "next": "ask again with its number" if row.state == "pending" else "verify it at /api/v1/receipts/verify",
    }
    return Brief(facts)


def brief_report(report: Report) -> Brief:
    """The verdict on a submission, worst finding first, each with the command that measures it again."""
    facts = {
        "submission": report.submission_id,
        "repository": report.repository,
        "verdict": report.conclusion,
        "exit_code": None if report.pending else report.exit_code,
        "summary": report.summary,
        "compared": f"{report.compared} cells with the base; for {report.same} of them a slow-down is excluded"
        if report.compared
        else None,
        "could_detect": report.sensitivity.summary,
        "beside_the_time": report.traded,
        "unchanged": report.unchanged,
        "outstanding": f"{report.pending} jobs or verdicts" if report.pending else None,
        "page": report.url,
    }
    return Brief(facts, [_finding(row) for row in report.rows])


def _finding(row: ReportRow) -> dict[str, Any]:
    return {
        "finding": row.kind,
        # Programs get the keys of devices, which they may have to give back.
        "statement": sentence(row, {}),
        "times": f"{times} per call" if (times := times_text(row)) else None,
        "certainty": f"{MEANINGS[row.kind]} Evidence: {row.decided_by}"
        + ("; the interval of the paired rounds has 95 %" if row.low is not None else ""),
        "message": reason(row),
        "reproduce": row.replay,
    }


def brief_alarms(page: Page[AlarmRow]) -> Brief:
    """What keeps numbers from coming, with its remedy."""
    items = [
        {
            "problem": state_name(row.kind),
            "about": " ".join(text for text in (row.repository, row.operator, row.variant, row.device_key) if text),
            "since": row.since.isoformat(timespec="minutes"),
            "message": row.message,
            "remedy": row.remedy,
        }
        for row in page.items
    ]
    summary = plural(len(items), "problem") if items else "nothing keeps measurements from coming"
    return Brief({"summary": summary}, items)


def brief_devices(page: Page[DeviceRow]) -> Brief:
    """Devices with their keys and queues."""
    items = [
        {
            "device": row.key,
            "name": row.name,
            "kind": row.kind,
            "workers": f"{row.workers} alive" + (", a scheduler starts more" if row.is_elastic else ""),
            "queue": f"{plural(row.queued, 'job')} waiting, {row.running} running",
        }
        for row in page.items
    ]
    return Brief({} if items else {"summary": "no devices; start a worker"}, items)

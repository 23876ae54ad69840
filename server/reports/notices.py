"""Writes messages to people: what happened, in which commit, by whom, and where to look."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, time, timedelta
from typing import Any
from urllib.parse import quote
from zoneinfo import ZoneInfo

from warpwatch.contract.commit_ids import short_sha
from warpwatch.contract.words import ChangePhase, NoticeKind
from warpwatch.db.channels import SUSPICION, Listener, Notice, WeekSummary
from warpwatch.db.reads.events import EventRow
from warpwatch.db.regressions import RegressionDetail, RegressionRow
from warpwatch.db.triage import SERVICE
from warpwatch.server.explanation.alarms import AlarmRow
from warpwatch.server.reports.formats import plural
from warpwatch.server.reports.wording import change_headline

DIGEST_HOUR = 8
"""When the digest of a week comes: on Monday, in the time zone of its channel."""
MOST_NAMES = 8
"""How many operators, or cases, a message names."""
_WORDS = {
    NoticeKind.CONFIRMED: "confirmed",
    NoticeKind.BROKEN: "confirmed",
    NoticeKind.SETTLED: "settled",
}


def change_notice(
    kind: NoticeKind,
    listener: Listener,
    row: RegressionRow,
    event: EventRow | None,
    server_url: str,
    device_names: Mapping[str, str],
) -> Notice:
    """Notice of a change to a regression; the message describes the whole event of the regression. device_names: by
    key, which only the fields for programs have."""
    link = f"{server_url}/regressions/{row.id}"
    word = row.state if kind is NoticeKind.FIXED else _WORDS[kind]
    # The headline of a change that nothing can confirm says so.
    is_suspected = row.phase == ChangePhase.UNPAIRED
    words = [change_headline(row), *([] if is_suspected else [word])]
    title = f"{listener.repository}: {_place(row, device_names)}: {', '.join(words)}"
    lines = [_origin(row, *_commit(row))]
    if kind is NoticeKind.FIXED and row.fixed_by_sha:
        lines.append(f"{row.state.capitalize()} by {short_sha(row.fixed_by_sha)}.")
    others = [other for other in (event.regressions if event else []) if other.id != row.id]
    if others:
        names = sorted({_place(other, device_names) for other in others})
        lines.append(f"The same commits changed {plural(len(others), 'other')}: {', '.join(names[:MOST_NAMES])}.")
    if row.assignee:
        lines.append(f"Assigned to {row.assignee}.")
    fields = _fields(kind, listener, row, link) | {
        "operators": event.operators if event else [row.operator],
        "devices": event.devices if event else [row.device_key],
    }
    key = f"{SUSPICION if is_suspected else kind}:{row.id}"
    return Notice(kind, key, title, "\n".join(lines), link, fields, row.id)


def withdrawn_notices(
    listener: Listener, details: Sequence[RegressionDetail], server_url: str, device_names: Mapping[str, str]
) -> list[Notice]:
    """Notices that take back what one message told of these changes: the first says all, the others are covered by it.

    They are of the kind `fixed`, as both end what somebody may be working on.
    """
    if not details:
        return []
    reasons = [_reason(detail) for detail in details]
    lines = [
        f"{_place(detail.regression, device_names)}, {_cells(detail)}: {reason}"
        for detail, reason in zip(details, reasons, strict=True)
    ]
    more = [f"And {plural(len(lines) - MOST_NAMES, 'other')}."] if len(lines) > MOST_NAMES else []
    first = details[0].regression
    link = f"{server_url}/regressions/{first.id}"
    rows = [detail.regression for detail in details]
    fields = _fields(NoticeKind.FIXED, listener, first, link) | {
        "operators": sorted({row.operator for row in rows}),
        "devices": sorted({row.device_key for row in rows}),
        "withdrawn": reasons[0],
    }
    title = f"{listener.repository}: {_place(first, device_names)}: withdrawn: {reasons[0]}"[:200]
    text = "\n".join([_origin(first, *_commit(first)), *lines[:MOST_NAMES], *more])
    return [Notice(NoticeKind.FIXED, f"withdrawn:{row.id}", title, text, link, fields, row.id) for row in rows]


def _reason(detail: RegressionDetail) -> str:
    """Why a change is not true any more: what the service noted, or a person who closed it."""
    state = detail.regression.state
    closing = [note for note in detail.notes if note.state == state and "state" in note.changes]
    notes = closing or [note for note in detail.notes if note.author == SERVICE]
    if not notes:
        return change_headline(detail.regression)
    note = notes[-1]
    return note.note if note.author == SERVICE else f"{state} by {note.author}: {note.note}".removesuffix(": ")


def _cells(detail: RegressionDetail) -> str:
    """The variants and cases of a change."""
    cells = list(dict.fromkeys(f"{row.variant} {row.case}" for row in detail.series))
    more = [f"{len(cells) - MOST_NAMES} more"] if len(cells) > MOST_NAMES else []
    return ", ".join([*cells[:MOST_NAMES], *more])


def _place(row: RegressionRow, device_names: Mapping[str, str]) -> str:
    return f"{row.operator} on {device_names.get(row.device_key, row.device_key)}"


def _commit(row: RegressionRow) -> tuple[str, str, str]:
    """(SHA, author, subject) of the commit that caused it, as far as it is known; else of the newest that may have."""
    if row.merged_culprit_sha:
        return row.merged_culprit_sha, row.merged_author or "", row.merged_subject or ""
    return row.head_sha, row.head_author, row.head_subject


def _origin(row: RegressionRow, sha: str, author: str, subject: str) -> str:
    commit = f"{short_sha(sha)} by {author}: {subject}"
    if row.culprit_sha or not row.commits_between:
        return f"Commit {commit}"
    return f"One of {row.commits_between + 1} commits after {short_sha(row.base_sha)}, up to {commit}"


def _fields(kind: NoticeKind, listener: Listener, row: RegressionRow, link: str) -> dict[str, Any]:
    sha, author, subject = _commit(row)
    names = ("operator", "device_key", "direction", "ratio", "low", "high", "base_sha", "head_sha", "culprit_sha")
    more = ("fixed_by_sha", "assignee", "phase", "branch", "signal")
    return {
        "kind": kind,
        "repository": listener.repository,
        "regression_id": row.id,
        **{name: getattr(row, name) for name in (*names, *more)},
        "commit": {"sha": sha, "author": author, "subject": subject},
        "link": link,
    }


def alarm_notice(listener: Listener, alarm: AlarmRow, server_url: str, now: datetime) -> Notice:
    """Something that blocks measurement; told once a day while it lasts."""
    place = (alarm.kind, alarm.device_key, alarm.repository, alarm.operator, alarm.variant)
    link = f"{server_url}/alarms?repository={quote(listener.repository)}"
    fields = {
        "kind": NoticeKind.ALARM,
        "repository": listener.repository,
        "alarm": alarm.kind,
        "device_key": alarm.device_key,
        "operator": alarm.operator,
        "message": alarm.message,
        "remedy": alarm.remedy,
        "link": link,
    }
    key = f"alarm:{now:%Y-%m-%d}:{':'.join(place)}"
    title = f"{listener.repository}: {alarm.message}"
    return Notice(NoticeKind.ALARM, key, title[:200], f"{alarm.message}\nRemedy: {alarm.remedy}", link, fields)


def digest_due(listener: Listener, now: datetime) -> datetime | None:
    """The Monday whose digest is due, in UTC; None where none is, or where it is more than a day late."""
    local = now.astimezone(ZoneInfo(listener.time_zone))
    monday = local.date() - timedelta(days=local.weekday())
    due = datetime.combine(monday, time(DIGEST_HOUR), local.tzinfo).astimezone(UTC)
    return due if listener.created_at < due <= now < due + timedelta(days=1) else None


def digest_notice(listener: Listener, due: datetime, week: WeekSummary, server_url: str) -> Notice:
    """Notice with the summary of a week."""
    link = f"{server_url}/regressions?repository={quote(listener.repository)}"
    lines = [
        f"{plural(week.confirmed, 'operator')} got slower, {plural(week.broken, 'operator')} broke, "
        f"{plural(week.improved, 'operator')} got faster.",
        f"{plural(week.fixed, 'change')} fixed; {plural(week.open, 'regression')} open.",
        f"{plural(week.results, 'result')} measured.",
    ]
    fields = {"kind": NoticeKind.DIGEST, "repository": listener.repository, "link": link}
    fields |= {name: getattr(week, name) for name in WeekSummary.__slots__}
    title = f"{listener.repository}: the week until {due:%Y-%m-%d}"
    return Notice(NoticeKind.DIGEST, f"digest:{due:%G-W%V}", title, "\n".join(lines), link, fields)


def end_of_quiet_hours(listener: Listener, now: datetime) -> datetime | None:
    """When the quiet hours end that `now` lies in; None outside of them."""
    if listener.quiet_from is None or listener.quiet_until is None or listener.quiet_from == listener.quiet_until:
        return None
    local = now.astimezone(ZoneInfo(listener.time_zone))
    is_past_start, is_before_end = local.hour >= listener.quiet_from, local.hour < listener.quiet_until
    spans_midnight = listener.quiet_from > listener.quiet_until
    is_quiet = (is_past_start or is_before_end) if spans_midnight else (is_past_start and is_before_end)
    if not is_quiet:
        return None
    day = local.date() + timedelta(days=spans_midnight and is_past_start)
    return datetime.combine(day, time(listener.quiet_until), local.tzinfo).astimezone(UTC)

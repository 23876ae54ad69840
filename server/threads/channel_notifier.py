"""Tells people what happened, in the background: chats, mailboxes and webhooks of each repository."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import groupby
from typing import Any

import apprise

from warpwatch.contract.words import ChangePhase, NoticeKind
from warpwatch.db import channels
from warpwatch.db.channels import (
    SUSPICION,
    DueDelivery,
    Listener,
    Notice,
    find_told,
    list_listeners,
    list_untold,
    list_withdrawn,
    read_week,
)
from warpwatch.db.database import Database
from warpwatch.db.reads.devices import list_device_names
from warpwatch.db.reads.events import read_event
from warpwatch.db.reads.query import Session
from warpwatch.db.regressions import read_regression
from warpwatch.destinations import DestinationError, UnknownHostError
from warpwatch.server.http.alarm_cache import Alarms
from warpwatch.server.intake.channels import WEBHOOK, host_of_service, open_service
from warpwatch.server.intake.hooks import sign
from warpwatch.server.reports.notices import (
    alarm_notice,
    change_notice,
    digest_due,
    digest_notice,
    end_of_quiet_hours,
    withdrawn_notices,
)
from warpwatch.server.threads.notifier import FIRST_PAUSE_SECONDS, Notifier
from warpwatch.server.threads.posting import PostAttempt
from warpwatch.settings import Settings

POLL_SECONDS = 2.0
PARALLEL = 4
ROUND_SECONDS = 60.0
"""How often alarms, digests and withdrawn changes are looked at; other changes are looked at in every round."""
SERVICE_SECONDS = 30.0
SIGNATURE = "X-Warpwatch-Signature-256"
_CONFIRMATIONS = (NoticeKind.CONFIRMED, NoticeKind.BROKEN)
_GOOD = (NoticeKind.FIXED, NoticeKind.DIGEST, NoticeKind.TEST)


class ChannelNotifier(Notifier[DueDelivery]):
    """A thread that writes messages for what happened, and sends those that are due."""

    def __init__(
        self,
        settings: Settings,
        database: Database,
        alarms: Alarms,
        *,
        first_pause: float = FIRST_PAUSE_SECONDS,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        super().__init__(
            "channels",
            "messages to people",
            "deliveries",
            settings,
            database,
            poll_seconds=POLL_SECONDS,
            parallel=PARALLEL,
            first_pause=first_pause,
        )
        self._alarms = alarms
        self._clock = clock
        self._looked_at = -ROUND_SECONDS

    def sweep(self) -> None:
        """One round: new messages, then what is due."""
        with self._database.session() as session:
            listeners = {listener.id: listener for listener in list_listeners(session)}
        if listeners:
            self._tell_changes(listeners)
            if time.monotonic() - self._looked_at >= ROUND_SECONDS:
                self._looked_at = time.monotonic()
                self._tell_withdrawn(listeners)
                for listener in listeners.values():
                    self._tell_alarms(listener)
                    self._tell_digest(listener)
        self.send_due()

    def _tell_changes(self, listeners: dict[int, Listener]) -> None:
        for kind in (*_CONFIRMATIONS, NoticeKind.SETTLED, NoticeKind.FIXED):
            with self._database.session() as session:
                untold = list_untold(session, kind)
            for row in untold:
                if row.channel_id in listeners:
                    with self._database.session() as session:
                        self._tell_change(session, kind, listeners[row.channel_id], row.regression_id)

    def _tell_change(self, session: Session, kind: NoticeKind, listener: Listener, regression_id: int) -> None:
        """Stores the message, or that an earlier one of the same event tells of it already."""
        detail = read_regression(session, regression_id)
        if detail is None:
            return
        row = detail.regression
        event = read_event(session, listener.repository_id, row)
        names = list_device_names(session)
        notice = change_notice(kind, listener, row, event, self._settings.server_url, names)
        ids = [row.id, *(other.id for other in (event.regressions if event else []))]
        is_suspected = row.phase == ChangePhase.UNPAIRED
        told = find_told(session, listener.id, [kind, SUSPICION] if is_suspected else [kind], ids)
        if told is None and kind is NoticeKind.SETTLED and row.settled_at is not None:
            # What was settled when it was confirmed was told with that.
            confirmed = find_told(session, listener.id, _CONFIRMATIONS, ids)
            told = confirmed if confirmed is not None and confirmed.created_at >= row.settled_at else None
        self._store(session, listener, replace(notice, covered_by=told.id if told else None))

    def _tell_withdrawn(self, listeners: dict[int, Listener]) -> None:
        """Takes back what is not true any more where it was told: for each message that told it, one message."""
        with self._database.session() as session:
            rows = list_withdrawn(session)
            names = list_device_names(session)
        for (channel_id, _), group in groupby(rows, key=lambda row: (row.channel_id, row.message_id)):
            if channel_id not in listeners:
                continue
            with self._database.session() as session:
                details = [detail for row in group if (detail := read_regression(session, row.regression_id))]
                message_id = None
                for notice in withdrawn_notices(listeners[channel_id], details, self._settings.server_url, names):
                    stored = self._store(session, listeners[channel_id], replace(notice, covered_by=message_id))
                    if stored is None:
                        # Another server tells it.
                        break
                    message_id = message_id or stored

    def _tell_alarms(self, listener: Listener) -> None:
        if NoticeKind.ALARM not in listener.kinds:
            return
        with self._database.session() as session:
            for alarm in self._alarms.recent(session, listener.repository_id):
                if listener.person is None or not alarm.operator or alarm.operator in listener.operators:
                    notice = alarm_notice(listener, alarm, self._settings.server_url, self._clock())
                    self._store(session, listener, notice)

    def _tell_digest(self, listener: Listener) -> None:
        due = digest_due(listener, self._clock()) if NoticeKind.DIGEST in listener.kinds else None
        if due is not None:
            with self._database.session() as session:
                week = read_week(session, listener.repository_id, due - timedelta(days=7))
                self._store(session, listener, digest_notice(listener, due, week, self._settings.server_url))

    def _store(self, session: Session, listener: Listener, notice: Notice) -> int | None:
        quiet = end_of_quiet_hours(listener, self._clock())
        return channels.tell_people(session, listener.id, replace(notice, not_before=quiet))

    def claim(self, session: Session) -> DueDelivery | None:
        return channels.claim_delivery(session)

    def send(self, due: DueDelivery) -> PostAttempt:
        return self._post(due) if due.service == WEBHOOK else self._notify(due)

    def describe(self, due: DueDelivery) -> str:
        return f"the message {due.id} by {due.service}"

    def _post(self, due: DueDelivery) -> PostAttempt:
        """Sends a signed webhook."""
        body: dict[str, Any] = {"id": due.id, "title": due.title, "text": due.text, "link": due.link, **due.fields}
        content = json.dumps(body).encode()
        return self._poster.post(due.url, content, {SIGNATURE: sign(due.secret or "", content)})

    def _notify(self, due: DueDelivery) -> PostAttempt:
        """Sends a message through apprise."""
        target = open_service(due.url)
        if target is None:
            return PostAttempt("its address cannot be used any more", is_final=True)
        host = host_of_service(due.service, target)
        try:
            if host is not None:
                self._settings.destinations.resolve(host, int(target.port or 443))
        except UnknownHostError as error:
            return PostAttempt(str(error))
        except DestinationError as error:
            return PostAttempt(str(error), is_final=True)
        service = apprise.Apprise()
        service.add(target)
        failed: list[str] = []
        is_taken = service.notify(
            body=f"{due.text}\n{due.link}",
            title=due.title,
            notify_type=apprise.NotifyType.INFO if due.kind in _GOOD else apprise.NotifyType.WARNING,
            body_format=apprise.NotifyFormat.TEXT,
            timeout=SERVICE_SECONDS,
            log_callback=lambda entry, _service: failed.append(str(entry.message)),
            log_level=logging.WARNING,
        )
        return PostAttempt() if is_taken else PostAttempt("; ".join(failed)[:500] or f"{due.service} did not take it")

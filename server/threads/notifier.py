"""Threads that send messages: several at once, each again and again until it is taken or given up."""

from __future__ import annotations

import logging
import time
from abc import abstractmethod
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import Generic, Protocol, TypeVar

from warpwatch.db.attempts import MessageTable, record_failure, record_sent
from warpwatch.db.database import Database
from warpwatch.db.errors import EngineError
from warpwatch.db.reads.query import Session
from warpwatch.server.threads.background import Background
from warpwatch.server.threads.posting import LONGEST_PAUSE_SECONDS, PostAttempt, Poster
from warpwatch.settings import Settings

FIRST_PAUSE_SECONDS = 5.0
"""Between two tries; each pause is twice as long as the one before, up to LONGEST_PAUSE_SECONDS."""
MAX_ATTEMPTS = 14
"""About five hours."""
_log = logging.getLogger(__name__)


class DueMessage(Protocol):
    """A message that is to be sent now. attempts: how often that failed before."""

    @property
    def id(self) -> int: ...

    @property
    def attempts(self) -> int: ...


M = TypeVar("M", bound=DueMessage)


class Notifier(Background, Generic[M]):
    """Sends the messages of a table. parallel: how many at once."""

    def __init__(
        self,
        name: str,
        subject: str,
        table: MessageTable,
        settings: Settings,
        database: Database,
        *,
        poll_seconds: float,
        parallel: int,
        first_pause: float,
    ) -> None:
        super().__init__(name, subject, poll_seconds)
        self._table: MessageTable = table
        self._settings = settings
        self._database = database
        self._parallel = parallel
        self._first_pause = first_pause
        self._poster = Poster(settings, self._stop)
        self._pool = ThreadPoolExecutor(parallel, thread_name_prefix=name)
        self._deliveries: set[Future[None]] = set()

    def stop(self) -> None:
        super().stop()
        self._pool.shutdown()

    @abstractmethod
    def claim(self, session: Session) -> M | None:
        """The message to send next, which no other server sends meanwhile."""

    @abstractmethod
    def send(self, due: M) -> PostAttempt:
        """Sends one message, with no transaction open."""

    @abstractmethod
    def describe(self, due: M) -> str:
        """The message as the log calls it."""

    def send_due(self) -> None:
        """Sends what is due, for as long as the pause between rounds.

        A delivery may outlast the round: the next one goes on without it.
        """
        ends_at = time.monotonic() + self._pause_seconds
        while not self._stop.is_set() and time.monotonic() < ends_at:
            while len(self._deliveries) < self._parallel and (due := self._claim()) is not None:
                self._deliveries.add(self._pool.submit(self._deliver, due))
            if not self._deliveries:
                return
            wait(self._deliveries, max(0.0, ends_at - time.monotonic()), FIRST_COMPLETED)
            self._deliveries = {delivery for delivery in self._deliveries if not delivery.done()}

    def _claim(self) -> M | None:
        with self._database.session() as session:
            return self.claim(session)

    def _deliver(self, due: M) -> None:
        """Sends one message and stores how it went."""
        try:
            attempt = self.send(due)
            if not self._stop.is_set():
                self._record(due, attempt)
        except EngineError as error:
            _log.warning("the result of %s is not stored, so it is sent again: %s", self.describe(due), error)
        except Exception:  # noqa: BLE001 - the pool would swallow what nobody thought of.
            _log.exception("%s is tried again after an unknown error", self.describe(due))

    def _record(self, due: M, attempt: PostAttempt) -> None:
        with self._database.session() as session:
            if attempt.trouble is None:
                record_sent(session, self._table, due.id)
                return
            is_final = attempt.is_final or due.attempts + 1 >= MAX_ATTEMPTS
            pause = max(min(self._first_pause * 2**due.attempts, LONGEST_PAUSE_SECONDS), attempt.pause_seconds)
            record_failure(session, self._table, due.id, attempt.trouble, None if is_final else pause)
        suffix = "; given up" if is_final else ""
        _log.warning("%s was not taken: %s%s", self.describe(due), attempt.trouble, suffix)

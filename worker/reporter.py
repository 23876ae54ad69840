"""Where a running job writes log and progress, and how it learns that it must stop."""

from __future__ import annotations

import logging
import threading
from contextlib import suppress
from typing import Protocol

from warpwatch.contract.claims import RunProgress
from warpwatch.contract.outcome import Outcome
from warpwatch.contract.words import Reason
from warpwatch.worker.coordinator import Coordinator, LostRunError, ServerError, pause_seconds

LOG_LIMIT = 2**20
"""Bytes of log that one run may store; a kernel that prints in a loop must not fill the database."""


class Stopped(Exception):  # noqa: N818 - it is a request from outside, not an error of the job
    """The job was told to stop: it was cancelled, its lease was lost, or its worker is shutting down; or it makes room.

    outcome: its results until then, None before the first finding. yielded_to: the more urgent job that it makes room
    for, None otherwise.
    """

    def __init__(self, reason: str, yielded_to: int | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.yielded_to = yielded_to
        self.outcome: Outcome | None = None


class CannotRunError(RuntimeError):
    """The job could not be run at all, so there is no result to record.

    retry: whether another attempt may help. reason: what code decides by; the message is for people.
    """

    def __init__(self, message: str, *, retry: bool = False, reason: Reason | None = None) -> None:
        super().__init__(message)
        self.retry = retry
        self.reason = reason


class UnhealthyError(CannotRunError):
    """The device is unfit to be measured on; the message says why."""

    def __init__(self, message: str) -> None:
        super().__init__(message, retry=True, reason=Reason.UNFIT_DEVICE)


class Reporter(Protocol):
    """Where a job's log and progress go. `should_stop` is asked at least five times a second, so it must be quick.

    cell: the variant and case that are measured next. should_yield: the more urgent job that waits for the device; it
    is asked before each cell.
    """

    def log(self, text: str) -> None: ...
    def progress(self, done: int, total: int, text: str, cell: tuple[str, str] | None = None) -> None: ...
    def should_stop(self) -> str | None: ...
    def should_yield(self) -> int | None: ...


class SilentReporter:
    """Reports nothing and never asks the job to stop or to yield; the base of reporters that do only some of it."""

    def log(self, text: str) -> None:
        """Drops the line."""

    def progress(self, done: int, total: int, text: str, cell: tuple[str, str] | None = None) -> None:
        """Shows nothing."""

    def should_stop(self) -> str | None:
        return None

    def should_yield(self) -> int | None:
        return None


class BoundedReporter:
    """Passes everything on until LOG_LIMIT bytes of log were written, then logs that once and drops the rest."""

    def __init__(self, inner: Reporter, limit: int = LOG_LIMIT) -> None:
        self._inner = inner
        self._remaining = limit
        self._limit = limit

    def log(self, text: str) -> None:
        if self._remaining <= 0:
            return
        self._remaining -= len(text.encode(errors="replace")) + 1
        if self._remaining > 0:
            self._inner.log(text)
        else:
            self._inner.log(f"log cut: this run printed more than {self._limit} bytes")

    def progress(self, done: int, total: int, text: str, cell: tuple[str, str] | None = None) -> None:
        self._inner.progress(done, total, text, cell)

    def should_stop(self) -> str | None:
        return self._inner.should_stop()

    def should_yield(self) -> int | None:
        return self._inner.should_yield()

    def check(self) -> None:
        """Raises Stopped when the job must stop."""
        reason = self.should_stop()
        if reason is not None:
            raise Stopped(reason)


_log = logging.getLogger(__name__)


class LogWriter:
    """Writes for one run. Lines wait while the server cannot be reached; the run's log limit bounds their number.

    is_careful: write the variant and case before they are measured, because an earlier run of the job was lost.
    """

    def __init__(self, coordinator: Coordinator, run_id: int, *, is_careful: bool = False) -> None:
        self._is_careful = is_careful
        self._coordinator = coordinator
        self._run_id = run_id
        self._lock = threading.Lock()
        self._lines: list[str] = []
        self._progress: RunProgress | None = None
        self._writing = threading.Lock()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._write_on, name="log-writer", daemon=True)
        self._thread.start()

    def log(self, text: str) -> None:
        with self._lock:
            self._lines.append(text)

    def progress(self, done: int, total: int, text: str, cell: tuple[str, str] | None = None) -> None:
        with self._lock:
            self._progress = RunProgress(done, total, text, cell)
        if self._is_careful:
            with suppress(ServerError):
                self._write()

    def close(self) -> str:
        """Ends the writing; returns what is not written yet, which goes with the ending of the run."""
        self._ended.set()
        self._thread.join()
        return _join(self._lines)

    def _write_on(self) -> None:
        failures = 0
        while not self._ended.wait(self._coordinator.log_seconds):
            try:
                self._write()
                failures = 0
            except LostRunError:
                return
            except ServerError as error:
                _log.warning("the log of run %d cannot be written yet: %s", self._run_id, error)
                failures += 1
                self._ended.wait(pause_seconds(failures, error))

    def _write(self) -> None:
        with self._writing:
            self._write_alone()

    def _write_alone(self) -> None:
        with self._lock:
            lines, progress = list(self._lines), self._progress
        if not lines and progress is None:
            return
        self._coordinator.write_log(self._run_id, _join(lines), progress)
        with self._lock:
            del self._lines[: len(lines)]
            if self._progress == progress:
                self._progress = None


def _join(lines: list[str]) -> str:
    return "".join(f"{line}\n" for line in lines)

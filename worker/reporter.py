"""Where a running job writes log and progress, and how it learns that it must stop."""

from __future__ import annotations

from typing import Protocol

from warpwatch.contract.outcome import Outcome
from warpwatch.contract.words import Reason

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

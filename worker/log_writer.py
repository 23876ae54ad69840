"""Writes a run's log and progress now and then, on a thread of its own."""

from __future__ import annotations

import logging
import threading
from contextlib import suppress

from warpwatch.contract.claims import RunProgress
from warpwatch.worker.coordinator import Coordinator, LostRunError, ServerError

_DOWN_SECONDS = 2.0
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
        while not self._ended.wait(self._coordinator.log_seconds):
            try:
                self._write()
            except LostRunError:
                return
            except ServerError as error:
                _log.warning("the log of run %d cannot be written yet: %s", self._run_id, error)
                self._ended.wait(_DOWN_SECONDS)

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

"""Threads that do beside the server what nobody waits for."""

from __future__ import annotations

import logging
import threading
import time
from abc import ABC, abstractmethod

from warpwatch.db.errors import EngineError

_log = logging.getLogger(__name__)
JOIN_SECONDS = 15


class Background(ABC):
    """A thread that sweeps again and again until it is stopped, and outlives whatever goes wrong meanwhile."""

    def __init__(self, name: str, subject: str, pause_seconds: float) -> None:
        """subject: what waits while sweeping fails, as the log says it. pause_seconds: between two sweeps."""
        self._subject = subject
        self._pause_seconds = pause_seconds
        self.name = name
        self.swept_at = time.monotonic()
        """When the last round ended without an error."""
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    @abstractmethod
    def sweep(self) -> object:
        """One round."""

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Ends the thread after what it is at."""
        self._stop.set()
        self._thread.join(timeout=JOIN_SECONDS)

    def _run(self) -> None:
        while not self._stop.wait(self._pause_seconds):
            try:
                self.sweep()
                self.swept_at = time.monotonic()
            except EngineError as error:
                _log.warning("%s wait: %s", self._subject, error)
            except Exception:  # noqa: BLE001 - the thread must outlive what nobody thought of.
                _log.exception("%s wait for an error that is not known", self._subject)

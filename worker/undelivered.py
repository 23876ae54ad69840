"""Endings of runs that the server could not be given: kept on disk until it takes them, also after a restart.

A results file is written first and its description last, by a rename, so that a worker that is killed leaves an ending
that is whole or none.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from warpwatch.contract.claims import RunEnding
from warpwatch.contract.codec import from_json, to_json

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class StoredEnding:
    """How a run of `worker_id` ended. log: the end of its log. path: its results file, None without results."""

    server: str
    worker_id: int
    job_id: int
    run_id: int
    ending: RunEnding
    log: str = ""
    path: Path | None = None


class UndeliveredEndings:
    """Those of all workers of a data folder. Two of them may deliver one ending: the server takes it once."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def keep(self, stored: StoredEnding) -> StoredEnding:
        """Writes the ending with a copy of its results file; OSError where the disk takes no more."""
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        path = None
        if stored.path is not None:
            path = self._results(stored.run_id)
            with stored.path.open("rb") as source, path.open("wb") as target:
                shutil.copyfileobj(source, target)
                target.flush()
                os.fsync(target.fileno())
        described = {
            "server": stored.server,
            "worker_id": stored.worker_id,
            "job_id": stored.job_id,
            "run_id": stored.run_id,
            "ending": to_json(stored.ending),
            "log": stored.log,
            "has_results": path is not None,
        }
        partial = self._description(stored.run_id).with_suffix(".partial")
        with partial.open("w", encoding="utf-8") as file:
            json.dump(described, file)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(self._description(stored.run_id))
        return replace(stored, path=path)

    def drop(self, run_id: int) -> None:
        """Forgets the ending of a run, which was delivered or is of no use any more."""
        for path in (self._description(run_id), self._results(run_id)):
            path.unlink(missing_ok=True)

    def list(self, server: str) -> Iterator[StoredEnding]:
        """The endings for a server, those of the oldest run first; what cannot be read is dropped."""
        for path in sorted(self._folder.glob("*.json"), key=lambda path: (len(path.name), path.name)):
            try:
                stored = self._read(path)
            except (OSError, ValueError, KeyError, TypeError) as error:
                _log.warning("%s is dropped, because it cannot be read: %s", path, error)
                path.unlink(missing_ok=True)
                continue
            if stored.server == server:
                yield stored

    def _read(self, path: Path) -> StoredEnding:
        described = json.loads(path.read_text(encoding="utf-8"))
        run_id = int(described["run_id"])
        results = self._results(run_id) if described["has_results"] else None
        return StoredEnding(
            str(described["server"]),
            int(described["worker_id"]),
            int(described["job_id"]),
            run_id,
            from_json(RunEnding, described["ending"]),
            str(described["log"]),
            results,
        )

    def _description(self, run_id: int) -> Path:
        return self._folder / f"{run_id}.json"

    def _results(self, run_id: int) -> Path:
        return self._folder / f"{run_id}.wwb"

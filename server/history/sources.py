"""Commits whose measurements are another one's too, because its operators are made from the same sources."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from warpwatch import git
from warpwatch.contract.spec import JobSpec
from warpwatch.db.reads.measured import WINDOW, EarlierJob, JobSlot, read_earlier_jobs
from warpwatch.db.reads.query import Session
from warpwatch.sources import Sources


@dataclass(slots=True)
class SourceCache:
    """What was read of sources, by mirror: commits do not change, so all threads and requests of a server share it."""

    by_mirror: dict[Path, Sources] = field(default_factory=dict)

    def of(self, mirror: Path) -> Sources:
        return self.by_mirror.setdefault(mirror, Sources(mirror))


def line_before(mirror: Path, sha: str) -> list[str]:
    """The commits up to `sha` along first parents whose measurements may be its own too."""
    return git.last_commits(mirror, sha, WINDOW)


class Earlier:
    """The jobs requested at commits before those of a submission, whose jobs are visited from the oldest commit on.

    line: of the oldest commit, see line_before.
    """

    def __init__(self, session: Session, mirror: Path, oldest: git.CommitInfo, line: Sequence[str]) -> None:
        self._sources = Sources(mirror)
        self._earlier_jobs = read_earlier_jobs(session, oldest.sha, oldest.ordinal, line)

    def unchanged_since(self, place: JobSlot, operator: str, sha: str, spec: JobSpec) -> str | None:
        """The nearest earlier commit whose numbers are this one's too: the same was asked for there, of the same
        sources."""
        before = self._earlier_jobs.get(place)
        if (
            before is not None
            and before.spec.asks_for_same(spec)
            and self._sources.of(before.sha, operator) == self._sources.of(sha, operator)
        ):
            return before.sha
        self._earlier_jobs[place] = EarlierJob(sha, spec)
        return None

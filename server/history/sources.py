"""Commits whose measurements are another one's too, because its operators are made from the same sources."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from warpwatch import git
from warpwatch.contract.spec import DefinitionsVersion, JobSpec
from warpwatch.db.reads.code import RepositoryRow
from warpwatch.db.reads.measured import WINDOW, EarlierJob, JobSlot, read_earlier_jobs, read_requested_jobs
from warpwatch.db.reads.query import Session
from warpwatch.sources import Sources


@dataclass(slots=True)
class SourceCache:
    """Cache of sources by mirror. Commits do not change, so all threads and requests of a server share the cache."""

    by_mirror: dict[tuple[Path, DefinitionsVersion | None], Sources] = field(default_factory=dict)

    def of(self, mirror: Path, definitions: DefinitionsVersion | None = None) -> Sources:
        key = (mirror, definitions)
        if key not in self.by_mirror:
            self.by_mirror[key] = Sources(mirror, definitions)
        return self.by_mirror[key]


def line_before(mirror: Path, sha: str) -> list[str]:
    """The commits up to `sha` along first parents whose measurements may be its own too."""
    return git.last_commits(mirror, sha, WINDOW)


class Earlier:
    """The jobs requested at commits before those of a submission, whose jobs are visited from the oldest commit on.

    line: of the oldest commit, see line_before. shas: commits of a range, of which nothing is measured twice.
    """

    def __init__(
        self,
        session: Session,
        repository: RepositoryRow,
        mirror: Path,
        oldest: git.CommitInfo,
        line: Sequence[str],
        cache: SourceCache | None = None,
        shas: Sequence[str] = (),
    ) -> None:
        self._mirror = mirror
        self._definitions = repository.definitions
        self._cache = cache or SourceCache()
        self._earlier_jobs = read_earlier_jobs(session, repository.id, oldest.ordinal, line)
        self._requested = read_requested_jobs(session, repository.id, shas) if shas else {}

    def is_requested(self, place: JobSlot, sha: str, spec: JobSpec) -> bool:
        """Whether the same was asked for before, of this very commit of the range and with the same definition."""
        version = self._version
        for job in self._requested.get((place, sha), ()):
            if job.spec.asks_for_same(spec) and self._fingerprint(
                sha, job.definitions_sha, place.operator
            ) == self._fingerprint(sha, version, place.operator):
                self._earlier_jobs[place] = EarlierJob(sha, spec, version)
                return True
        return False

    def unchanged_since(self, place: JobSlot, sha: str, spec: JobSpec) -> str | None:
        """The nearest earlier commit whose numbers are this one's too: the same was asked for there, of the same
        sources. Git is asked, so no transaction may be open."""
        before = self._earlier_jobs.get(place)
        version = self._version
        if (
            before is not None
            and before.spec.asks_for_same(spec)
            and self._fingerprint(before.sha, before.definitions_sha, place.operator)
            == self._fingerprint(sha, version, place.operator)
        ):
            return before.sha
        self._earlier_jobs[place] = EarlierJob(sha, spec, version)
        return None

    @property
    def _version(self) -> str | None:
        """Of the definitions that new jobs measure."""
        return self._definitions.sha if self._definitions is not None else None

    def _fingerprint(self, sha: str, version: str | None, operator: str) -> str | None:
        """Of the operator at a commit; each job counts with the definitions that it measured."""
        definitions = replace(self._definitions, sha=version) if self._definitions and version else None
        return self._cache.of(self._mirror, definitions).of(sha, operator)

"""Reads mirrors: lines of history, descent of commits, and whether an operator has the same sources."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from pathlib import Path
from typing import Protocol

from warpwatch import git
from warpwatch.contract.commit_ids import short_sha
from warpwatch.contract.spec import DefinitionsVersion
from warpwatch.db.reads.code import definitions_version
from warpwatch.server.history.sources import SourceCache
from warpwatch.settings import Settings
from warpwatch.sources import Sources

_log = logging.getLogger(__name__)
_TIPS = 5
"""Newer commits that are tried as the end of a line: the newest may be on another branch."""


class Mirror:
    """One repository's mirror. It never fetches, because a commit that was measured is in the mirror already."""

    def __init__(self, path: Path, sources: Sources) -> None:
        self.path = path
        self.sources = sources
        self._lines: dict[tuple[str, frozenset[str], str | None], set[str]] = {}

    def line(self, sha: str, others: Iterable[tuple[int, str]], ordinal: int, trunk: str | None = None) -> set[str]:
        """Those of the other commits (ordinal, id) that lie on one line of first parents with `sha`, and itself.

        trunk: the newest commit of the watched branch, whose line counts where `sha` lies on it.
        """
        key = (sha, frozenset(other for _, other in others), trunk)
        if key not in self._lines:
            older = sorted(pair for pair in others if pair[0] < ordinal)
            newer = sorted((pair for pair in others if pair[0] > ordinal), reverse=True)
            tips = [*([trunk] if trunk else []), *(tip for _, tip in newer[:_TIPS])] if newer else []
            try:
                self._lines[key] = ({sha} | self._before(sha, older) | self._behind(sha, tips)) & (key[1] | {sha})
            except git.GitError as error:
                _log.warning("%s is not compared with its neighbours: %s", short_sha(sha), error)
                self._lines[key] = {sha}
        return self._lines[key]

    def _before(self, sha: str, older: list[tuple[int, str]]) -> set[str]:
        return git.first_parents_since(self.path, sha, older[0][1]) if older else set()

    def _behind(self, sha: str, tips: Iterable[str]) -> set[str]:
        for tip in tips:
            line = git.first_parents_since(self.path, tip, sha)
            if sha in line:
                return line
        return set()

    def same_sources(self, operator: str, sha: str, other_sha: str) -> bool:
        """Whether an operator is made from the same at two commits, so that its numbers differ by noise alone."""
        fingerprint = self.sources.of(sha, operator)
        return fingerprint is not None and fingerprint == self.sources.of(other_sha, operator)


class MirroredRow(Protocol):
    """A row that says which repository it is about, and how its operators are defined."""

    @property
    def repository_url(self) -> str: ...
    @property
    def definitions_url(self) -> str | None: ...
    @property
    def definitions_sha(self) -> str | None: ...


class Mirrors:
    """The mirrors of all repositories, with a cache of what was read while the judge evaluates several jobs."""

    def __init__(self, settings: Settings, cache: SourceCache) -> None:
        self._home = settings.home
        self._cache = cache
        self._mirrors: dict[tuple[str, DefinitionsVersion | None], Mirror] = {}

    def of(self, row: MirroredRow) -> Mirror:
        """The mirror of the repository that a row is about."""
        definitions = definitions_version(row.definitions_url, row.definitions_sha)
        key = (row.repository_url, definitions)
        if key not in self._mirrors:
            path = git.mirror_path(row.repository_url, self._home)
            self._mirrors[key] = Mirror(path, self._cache.of(path, definitions))
        return self._mirrors[key]

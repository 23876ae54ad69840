"""Which variants of an operator have other code at one commit than at another; what has the same differs by noise
alone."""

from __future__ import annotations

from dataclasses import dataclass

from warpwatch.db.reads import judging
from warpwatch.db.reads.query import Session
from warpwatch.server.history.mirror import Mirror


@dataclass(frozen=True, slots=True)
class ChangedVariants:
    """The variants whose code may differ: those named, or all."""

    all: bool
    names: frozenset[str] = frozenset()

    def holds(self, variant: str) -> bool:
        return self.all or variant in self.names


class CodeComparison:
    """Holds what an operator is made from at two commits against each other; every pair once."""

    def __init__(self, session: Session, mirror: Mirror, operator: str, operator_id: int) -> None:
        self._session = session
        self._mirror = mirror
        self._operator = operator
        self._operator_id = operator_id
        self._known: dict[tuple[int, int, int], ChangedVariants] = {}

    def changed(self, base: tuple[int, str], head: tuple[int, str], environment_id: int) -> ChangedVariants:
        """The variants whose code may differ between two commits (id, full id), built in one environment.

        Where only native sources differ, other variants are the same; so are native ones whose machine code is.
        """
        key = (base[0], head[0], environment_id)
        if key not in self._known:
            self._known[key] = self._compare(base, head, environment_id)
        return self._known[key]

    def can_compare(self, base_sha: str, head_sha: str) -> bool:
        """Whether two commits can be measured in one environment: not where they ask for different interpreters."""
        return self._mirror.sources.interpreter(base_sha) == self._mirror.sources.interpreter(head_sha)

    def _compare(self, base: tuple[int, str], head: tuple[int, str], environment_id: int) -> ChangedVariants:
        sources = self._mirror.sources
        before, after = (sources.parts(sha, self._operator) for _, sha in (base, head))
        if before is None or after is None or before[0] != after[0]:
            return ChangedVariants(all=True)
        if before[1] == after[1]:
            return ChangedVariants(all=False)
        hashes = [
            judging.read_code_hash(self._session, self._operator_id, commit, environment_id)
            for commit, _ in (base, head)
        ]
        if hashes[0] and hashes[0] == hashes[1]:
            return ChangedVariants(all=False)
        return ChangedVariants(all=False, names=frozenset(judging.list_native(self._session, head[0], self._operator)))

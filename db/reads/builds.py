"""Reads builds: what compilers made of each commit, and since when machine code is what it is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, fields
from typing import Any

from sqlalchemy.orm import Session

from warpwatch.db.reads.code import CommitRow
from warpwatch.db.reads.query import fetch, fetch_scalar


@dataclass(frozen=True, slots=True)
class KernelCode:
    """One kernel on one architecture, or one source file's code for the CPU, where registers are 0.

    code_hash is empty where nothing is known of the machine code.
    """

    name: str
    arch: str
    registers: int = 0
    shared_bytes: int = 0
    spill_bytes: int = 0
    code_bytes: int = 0
    code_hash: str = ""


@dataclass(frozen=True, slots=True)
class CodeChange:
    """One kernel before and after. state: changed | added | removed | unknown (no fingerprint on one side)."""

    name: str
    arch: str
    state: str
    before: KernelCode | None
    after: KernelCode | None


@dataclass(frozen=True, slots=True)
class BuildView:
    """A build of one operator's library for one commit.

    base_sha: the nearest earlier commit with a build of it on the same device; changes is against that one, None where
    there is none. unchanged_since: the first commit of those in a row whose machine code is all the same; None where it
    is unknown.
    """

    operator: str
    device_key: str
    status: str
    cached: bool
    seconds: float
    compile_seconds: float | None
    log: str
    code_hash: str
    resources: list[KernelCode]
    base_sha: str | None = None
    base_compile_seconds: float | None = None
    changes: list[CodeChange] | None = None
    unchanged_since: str | None = None


@dataclass(frozen=True, slots=True)
class CodeCommit:
    """One commit of a history of machine code; code_hash is that of the whole library."""

    sha: str
    ordinal: int
    subject: str
    code_hash: str
    compile_seconds: float | None


@dataclass(frozen=True, slots=True)
class CodeSeries:
    """One kernel over the commits of its history; None where a commit does not have it."""

    name: str
    values: list[KernelCode | None]


@dataclass(frozen=True, slots=True)
class CodeHistory:
    """The machine code of one operator on one device and architecture, oldest commit first. archs: those there are."""

    operator: str
    device_key: str
    arch: str | None
    archs: list[str]
    commits: list[CodeCommit] = field(default_factory=list)
    kernels: list[CodeSeries] = field(default_factory=list)


_FIELDS = tuple(field.name for field in fields(KernelCode))
Place = tuple[str, str, int]
"""Name and architecture of a kernel, and which of several of that name it is."""

# Machine code depends on the compiler and, for a CPU, on the machine, so it is unchanged since a commit within an
# environment.
_BUILDS = """
SELECT operators.name AS operator, devices.key AS device_key, build.status, cached, seconds, build.compile_seconds, log,
       code_hash, build.resources, before.sha AS base_sha, before.compile_seconds AS base_compile_seconds,
       before.resources AS base_resources,
       CASE WHEN before.sha IS NOT NULL THEN (
           WITH known AS (
               SELECT commits.id, commits.ordinal, code_hash FROM builds JOIN commits ON commits.id = builds.commit_id
               WHERE operator_id = build.operator_id AND environment_id = build.environment_id
           ), own AS (SELECT ordinal, code_hash FROM known WHERE id = :commit_id AND code_hash <> '')
           SELECT commits.sha FROM own
           JOIN known ON known.code_hash = own.code_hash AND known.ordinal <= own.ordinal
           JOIN commits ON commits.id = known.id
           WHERE NOT EXISTS (
               SELECT FROM known AS between
               WHERE between.code_hash <> own.code_hash AND between.ordinal BETWEEN known.ordinal AND own.ordinal)
           ORDER BY known.ordinal LIMIT 1
       ) END AS unchanged_since
FROM builds AS build
JOIN operators ON operators.id = build.operator_id
JOIN environments ON environments.id = build.environment_id
JOIN devices ON devices.id = environments.device_id
LEFT JOIN LATERAL (
    SELECT commits.sha, resources, compile_seconds
    FROM builds JOIN commits ON commits.id = builds.commit_id JOIN environments AS other
         ON other.id = builds.environment_id
    WHERE build.status = 'ok' AND operator_id = build.operator_id AND builds.status = 'ok'
      AND commits.ordinal < :ordinal AND other.device_id = environments.device_id
    ORDER BY commits.ordinal DESC, environment_id = build.environment_id DESC, builds.id DESC LIMIT 1
) AS before ON true
WHERE commit_id = :commit_id ORDER BY operators.name, devices.key, build.id
"""


def read_builds(session: Session, commit: CommitRow) -> list[BuildView]:
    """Every build of a commit, with the changes of its machine code since the nearest earlier commit with a build."""

    def view(resources: list[Any], base_resources: list[Any] | None, **columns: Any) -> BuildView:
        codes = kernel_codes(resources)
        changes = None if base_resources is None else code_changes(kernel_codes(base_resources), codes)
        return BuildView(resources=codes, changes=changes, **columns)

    return fetch(session, view, _BUILDS, commit_id=commit.id, ordinal=commit.ordinal)


def read_code_history(
    session: Session, operator_id: int, operator: str, device_key: str, arch: str | None = None, limit: int = 200
) -> CodeHistory:
    """The machine code of the newest `limit` commits that were built on a device, for one architecture: the device's
    own by default."""
    sql = """
    SELECT DISTINCT ON (commits.ordinal, commits.id) commits.sha, commits.ordinal, subject, code_hash,
         compile_seconds, resources
    FROM builds JOIN commits ON commits.id = builds.commit_id JOIN environments
         ON environments.id = builds.environment_id
    JOIN devices ON devices.id = environments.device_id
    WHERE operator_id = :operator_id AND devices.key = :device_key AND status = 'ok'
    ORDER BY commits.ordinal DESC, commits.id DESC, environment_id DESC LIMIT :limit
    """

    def row(resources: list[Any], **columns: Any) -> tuple[CodeCommit, list[KernelCode]]:
        return CodeCommit(**columns), kernel_codes(resources)

    found = fetch(session, row, sql, operator_id=operator_id, device_key=device_key, limit=limit)[::-1]
    archs = list(dict.fromkeys(code.arch for _, codes in reversed(found) for code in codes))
    chosen = arch if arch in archs else _own_arch(session, device_key, archs)
    places = [dict(_placed(code for code in codes if code.arch == chosen)) for _, codes in found]
    names = dict.fromkeys(place for one in places for place in one)
    kernels = [CodeSeries(_written(place), [one.get(place) for one in places]) for place in names]
    return CodeHistory(operator, device_key, chosen, archs, [commit for commit, _ in found], kernels)


def code_changes(before: list[KernelCode], after: list[KernelCode]) -> list[CodeChange]:
    """Kernels whose machine code differs, in the order of `after`, and then those that went."""
    old, new = dict(_placed(before)), dict(_placed(after))
    changes = []
    for place in dict.fromkeys([*new, *old]):
        one, other = old.get(place), new.get(place)
        state = _state(one, other)
        if state != "same":
            changes.append(CodeChange(_written(place), place[1], state, one, other))
    return changes


def kernel_codes(resources: list[Any]) -> list[KernelCode]:
    """A build's resources as rows; fields that an earlier version did not record stay at their defaults."""
    return [
        KernelCode(**{"arch": "", **{name: entry[name] for name in _FIELDS if name in entry}}) for entry in resources
    ]


def _own_arch(session: Session, device_key: str, archs: list[str]) -> str | None:
    """The architecture of the device itself, by its compute capability; for a CPU the only one there is."""
    sql = """
    SELECT facts ->> 'capability' FROM environments JOIN devices ON devices.id = environments.device_id
    WHERE devices.key = :device_key ORDER BY environments.id DESC LIMIT 1
    """
    capability = fetch_scalar(session, sql, device_key=device_key)
    own = f"sm_{str(capability).replace('.', '')}"
    return own if own in archs else next(iter(archs), None)


def _placed(codes: Iterable[KernelCode]) -> list[tuple[Place, KernelCode]]:
    seen: Counter[tuple[str, str]] = Counter()
    placed = []
    for code in codes:
        placed.append(((code.name, code.arch, seen[code.name, code.arch]), code))
        seen[code.name, code.arch] += 1
    return placed


def _written(place: Place) -> str:
    """Overloads share a short name; the second is `name (2)`."""
    name, _, number = place
    return f"{name} ({number + 1})" if number else name


def _state(before: KernelCode | None, after: KernelCode | None) -> str:
    if before is None or after is None:
        return "added" if before is None else "removed"
    if before.code_hash and after.code_hash:
        return "same" if before == after else "changed"
    # Without a fingerprint, equal registers prove nothing; different ones prove that the code is another.
    return "unknown" if _facts(before) == _facts(after) else "changed"


def _facts(code: KernelCode) -> tuple[int, int, int]:
    return code.registers, code.shared_bytes, code.spill_bytes

"""Reads what calls launched, by the checks of commits: where digests are equal, the device had the same work."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import NamedTuple

from sqlalchemy import text

from warpwatch.contract.codec import from_json
from warpwatch.contract.measurement import LaunchedCode
from warpwatch.db.reads.lines import HistoryLine, on_line
from warpwatch.db.reads.query import Session

_DIGESTS = """
SELECT DISTINCT ON (results.operator_id, commit_id, environment_id, variant_id, case_id)
       results.operator_id, commit_id, environment_id, variants.name, cases.key, details #>> '{launched,digest}'
FROM results JOIN variants ON variants.id = results.variant_id JOIN cases ON cases.id = results.case_id
WHERE commit_id = ANY(:commits) AND results.operator_id = ANY(:operators) AND results.kind = 'check' AND status = 'ok'
ORDER BY results.operator_id, commit_id, environment_id, variant_id, case_id, results.id DESC
"""


class LaunchedKey(NamedTuple):
    """A call: of a variant on a case, at a commit, in an environment."""

    operator_id: int
    commit_id: int
    environment_id: int
    variant: str
    case: str


def read_digests(session: Session, operators: Collection[int], commits: Collection[int]) -> dict[LaunchedKey, str]:
    """Fingerprints of all that calls did on the device, where they are known; see LaunchedCode."""
    rows = session.execute(text(_DIGESTS), {"operators": list(operators), "commits": list(commits)})
    return {LaunchedKey(*row[:5]): row[5] for row in rows if row[5]}


@dataclass(frozen=True, slots=True)
class LaunchedHistory:
    """What the newest right check of a variant launched on a case. since: the first commit of those in a row that
    launched the same; before: what the one before that launched, None where there is none."""

    variant: str
    sha: str
    launched: LaunchedCode
    since: str
    before: LaunchedCode | None


@dataclass(frozen=True, slots=True)
class LaunchedPair:
    """What a variant launched on a case at the nearest right checks on both sides of a change."""

    variant: str
    case: str
    base_sha: str
    head_sha: str
    base: LaunchedCode
    head: LaunchedCode

    @property
    def is_same(self) -> bool:
        return self.base.digest != "" and self.base.digest == self.head.digest


_HISTORY = f"""
SELECT variants.name, commits.sha, details -> 'launched'
FROM results JOIN variants ON variants.id = results.variant_id JOIN cases ON cases.id = results.case_id
JOIN commits ON commits.id = results.commit_id JOIN devices ON devices.id = results.device_id
WHERE results.operator_id = :operator_id AND devices.key = :device_key AND results.kind = 'check'
  AND cases.key = :case AND status = 'ok' AND details ? 'launched' AND {on_line("commits.id")}
ORDER BY results.ordinal DESC, results.id DESC LIMIT :limit
"""


def read_launched(
    session: Session, operator_id: int, device_key: str, case: str, line: HistoryLine, limit: int = 500
) -> list[LaunchedHistory]:
    """What every variant launches on a case of a device, by variant, as far as the newest `limit` checks tell."""
    values = {"operator_id": operator_id, "device_key": device_key, "case": case, "limit": limit, **line.parameters}
    found: dict[str, LaunchedHistory] = {}
    for variant, sha, raw in session.execute(text(_HISTORY), values):
        launched, newest = from_json(LaunchedCode, raw), found.get(variant)
        if newest is None:
            found[variant] = LaunchedHistory(variant, sha, launched, sha, None)
        elif newest.before is None and newest.launched.digest and launched.digest == newest.launched.digest:
            found[variant] = replace(newest, since=sha)
        elif newest.before is None:
            found[variant] = replace(newest, before=launched)
    return [found[variant] for variant in sorted(found)]

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
SELECT variants.name, newest.sha, newest.launched
FROM variants CROSS JOIN LATERAL (
    SELECT commits.sha, details -> 'launched' AS launched, results.ordinal, results.id
    FROM results JOIN commits ON commits.id = results.commit_id
    WHERE results.variant_id = variants.id AND results.kind = 'check' AND status = 'ok'
      AND results.case_id = (SELECT id FROM cases WHERE operator_id = :operator_id AND key = :case)
      AND results.device_id = (SELECT id FROM devices WHERE key = :device_key AND kind = 'cuda')
      AND {on_line("commits.id")}
    ORDER BY results.ordinal DESC, results.id DESC LIMIT :limit
) AS newest
WHERE variants.operator_id = :operator_id AND newest.launched IS NOT NULL
ORDER BY newest.ordinal DESC, newest.id DESC
"""


def read_launched(
    session: Session, operator_id: int, device_key: str, case: str, line: HistoryLine, limit: int = 100
) -> list[LaunchedHistory]:
    """What every variant launches on a case of a GPU, by variant, as far as the newest `limit` checks of each tell."""
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

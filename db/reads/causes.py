"""Reads what is known of why something changed: machine code, circumstances and numerical errors at the nearest
measured commits."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, NamedTuple

from sqlalchemy.orm import Session

from warpwatch.contract.codec import from_json
from warpwatch.contract.measurement import LaunchedCode
from warpwatch.db.reads.builds import CodeChange, code_changes, kernel_codes
from warpwatch.db.reads.launched import LaunchedPair
from warpwatch.db.reads.lines import line_of, on_line
from warpwatch.db.reads.query import fetch


@dataclass(frozen=True, slots=True)
class CodeEvidence:
    """Machine code at the nearest commits that were built on the device: at or before the base, and at or behind the
    head.

    base_hash, head_hash: fingerprints of all of it, empty where they are unknown. changes: kernels that differ.
    """

    base_sha: str
    head_sha: str
    base_hash: str
    head_hash: str
    changes: list[CodeChange]


@dataclass(frozen=True, slots=True)
class BenchSide:
    """How the worst series was timed at the nearest commit on one side.

    health: see contract.messages.BenchReply; facts: its environment.
    """

    commit_sha: str
    job_id: int
    median_ns: float
    low_ns: float
    high_ns: float
    measured_at: datetime
    health: dict[str, Any]
    facts: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Difference:
    """One fact that is not the same on both sides; None where a side does not tell."""

    name: str
    base: Any
    head: Any


@dataclass(frozen=True, slots=True)
class BenchEvidence:
    """The worst series as both commits' own benches timed it, and in what their environments differ.

    None: not timed on that side.
    """

    variant: str
    case: str
    base: BenchSide | None
    head: BenchSide | None
    differences: list[Difference]


@dataclass(frozen=True, slots=True)
class ErrorChange:
    """The error of one output or gradient against the oracle, as the nearest checks on both sides found it.

    right: whether a check took it for right; None, like an error, where that side did not tell of this tensor.
    """

    variant: str
    case: str
    tensor: str
    base_sha: str
    head_sha: str
    base_relative: float | None
    head_relative: float | None
    base_right: bool | None
    head_right: bool | None
    tolerance: float | None

    @property
    def ratio(self) -> float | None:
        """How many times the error grew; None where either side is unknown or was exact."""
        return (
            self.head_relative / self.base_relative if self.base_relative and self.head_relative is not None else None
        )


@dataclass(frozen=True, slots=True)
class ErrorEvidence:
    """checked: how many outputs and gradients both sides were asked for.

    changes: those whose error or rightness is another, worst first.
    """

    checked: int
    changes: list[ErrorChange] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class RegressionEvidence:
    """Evidence from both sides of a change; None where nothing is known. launched: of the worst series."""

    code: CodeEvidence | None
    launched: LaunchedPair | None
    bench: BenchEvidence | None
    errors: ErrorEvidence | None


MOST_SERIES = 40
"""Series of a regression whose checks are looked at."""
SHOWN_ERRORS = 12


class _Member(NamedTuple):
    """A series of a change. base_at, head_at: ordinals of both ends; line_id, trunk_id, fork_at: the branch of the
    change, as parameters of `on_line`. Without series there is one row without a series."""

    operator_id: int
    device_id: int
    base_at: int
    head_at: int
    line_id: int | None
    trunk_id: int | None
    fork_at: int | None
    series_id: int | None
    variant_id: int | None
    case_id: int | None
    variant: str
    case: str


class _Build(NamedTuple):
    side: str
    sha: str
    code_hash: str
    resources: list[Any]


class _Check(NamedTuple):
    place: int
    side: str
    sha: str
    tensors: list[dict[str, Any]]
    launched: dict[str, Any] | None


Checks = dict[tuple[int, str], _Check]
"""Of each series the nearest check on each side, by the place of the series and the side."""

# The worst confirmed one first.
_MEMBERS = f"""
SELECT regressions.operator_id, regressions.device_id, base.ordinal AS base_at, head.ordinal AS head_at, line_id,
       trunk_id, fork_at, member.*
FROM regressions
JOIN commits AS base ON base.id = base_commit_id JOIN commits AS head ON head.id = head_commit_id
LEFT JOIN LATERAL {line_of("head.id")} AS line ON true
LEFT JOIN LATERAL (
    SELECT series.id AS series_id, series.variant_id, series.case_id, variants.name AS variant, cases.key AS case
    FROM regression_series AS member
    JOIN series ON series.id = member.series_id
    JOIN variants ON variants.id = series.variant_id
    JOIN cases ON cases.id = series.case_id
    WHERE member.regression_id = regressions.id
    ORDER BY member.verdict <> 'confirmed',
             abs(ln(greatest(coalesce(member.ratio, member.suspected_ratio, 1), 1e-9))) DESC, series.id LIMIT :limit
) AS member ON true
WHERE regressions.id = :id
"""
_IS_NEAR = {
    "base": f"{{ordinal}} <= :base_at AND {on_line('commits.id')} ORDER BY {{ordinal}} DESC",
    "head": f"{{ordinal}} >= :head_at AND {on_line('commits.id')} ORDER BY {{ordinal}}",
}
"""SQL: what lies nearest to a change on one side of it, on its branch."""


def _both(select: str, ordinal: str, order: str) -> str:
    """SQL of what lies nearest on each side. select: up to its last condition, {side} is the side; order: of rows of
    one commit."""
    return " UNION ALL ".join(
        f"({select.format(side=side)} AND {near.format(ordinal=ordinal)}, {order} LIMIT 1)"
        for side, near in _IS_NEAR.items()
    )


_BUILDS = f"""
WITH found AS (
    SELECT commits.id, commits.ordinal, commits.sha, environment_id, builds.id AS build_id, code_hash, resources
    FROM builds JOIN commits ON commits.id = builds.commit_id JOIN environments
         ON environments.id = builds.environment_id
    WHERE operator_id = :operator_id AND status = 'ok' AND device_id = :device_id
), base AS (
    SELECT * FROM found AS commits WHERE {_IS_NEAR["base"].format(ordinal="ordinal")}, build_id DESC LIMIT 1
), head AS (
    SELECT * FROM found AS commits WHERE {_IS_NEAR["head"].format(ordinal="ordinal")},
           environment_id = (SELECT environment_id FROM base) DESC, build_id DESC LIMIT 1
)
SELECT 'base' AS side, sha, code_hash, resources FROM base
UNION ALL SELECT 'head', sha, code_hash, resources FROM head
"""
_BENCHES = _both(
    """
    SELECT '{side}' AS side, commits.sha AS commit_sha, runs.job_id, median_ns, low_ns, high_ns, measured_at,
           coalesce(results.details -> 'health', CAST('{{}}' AS jsonb)) AS health, environments.facts
    FROM points
    JOIN results ON results.id = points.result_id
    JOIN runs ON runs.id = results.run_id
    JOIN commits ON commits.id = points.commit_id
    JOIN environments ON environments.id = points.environment_id
    WHERE points.series_id = :series_id
    """,
    "points.ordinal",
    "points.id DESC",
)
_NEAR_CHECKS = _both(
    """
    SELECT '{side}' AS side, commits.sha, details FROM results JOIN commits ON commits.id = results.commit_id
    WHERE variant_id = cell.variant_id AND case_id = cell.case_id AND device_id = :device_id AND kind = 'check'
    """,
    "results.ordinal",
    "results.id DESC",
)
_CHECKS = f"""
SELECT CAST(place AS integer) AS place, side, sha, coalesce(details -> 'tensors', '[]') AS tensors,
       CASE WHEN place = 1 THEN details -> 'launched' END AS launched
FROM unnest(CAST(:variants AS bigint[]), CAST(:cases AS bigint[])) WITH ORDINALITY AS cell (variant_id, case_id, place)
CROSS JOIN LATERAL ({_NEAR_CHECKS}) AS near
"""


def read_evidence(session: Session, regression_id: int, checked: int = MOST_SERIES) -> RegressionEvidence:
    """Everything kept that may tell why a change came about; the regression must exist. checked: of so many series,
    the worst first, errors are compared."""
    rows = fetch(session, _Member, _MEMBERS, id=regression_id, limit=checked)
    members = [row for row in rows if row.series_id is not None]
    place = {name: getattr(rows[0], name) for name in ("base_at", "head_at", "line_id", "trunk_id", "fork_at")}
    of_device = place | {"operator_id": rows[0].operator_id, "device_id": rows[0].device_id}
    code = _read_code(session, of_device)
    if not members:
        return RegressionEvidence(code, None, None, None)
    ids = {"variants": [row.variant_id for row in members], "cases": [row.case_id for row in members]}
    checks = {(check.place, check.side): check for check in fetch(session, _Check, _CHECKS, **of_device, **ids)}
    bench = _read_bench(session, members[0], place)
    return RegressionEvidence(code, _launched_pair(members[0], checks), bench, _errors(members, checks))


def _read_code(session: Session, place: dict[str, Any]) -> CodeEvidence | None:
    """The machine code on both sides of a change; None where it is not known on both."""
    builds = {build.side: build for build in fetch(session, _Build, _BUILDS, **place)}
    if len(builds) < 2:
        return None
    base, head = builds["base"], builds["head"]
    changes = code_changes(kernel_codes(base.resources), kernel_codes(head.resources))
    return CodeEvidence(base.sha, head.sha, base.code_hash, head.code_hash, changes)


def _read_bench(session: Session, worst: _Member, place: dict[str, Any]) -> BenchEvidence:
    """How the worst series was timed on both sides of a change."""
    sides = dict(fetch(session, _named_side, _BENCHES, series_id=worst.series_id, **place))
    base, head = sides.get("base"), sides.get("head")
    differences = []
    if base and head:
        values = {name: (base.facts.get(name), head.facts.get(name)) for name in [*base.facts, *head.facts]}
        differences = [Difference(name, old, new) for name, (old, new) in values.items() if old != new]
    return BenchEvidence(worst.variant, worst.case, base, head, differences)


def _named_side(side: str, **columns: Any) -> tuple[str, BenchSide]:
    return side, BenchSide(**columns)


def _launched_pair(worst: _Member, checks: Checks) -> LaunchedPair | None:
    """What the worst series launched on both sides of a change; None where it is not known on both."""
    known = [check for side in _IS_NEAR if (check := checks.get((1, side))) is not None and check.launched is not None]
    if len(known) < 2:
        return None
    base, head = (from_json(LaunchedCode, check.launched) for check in known)
    return LaunchedPair(worst.variant, worst.case, known[0].sha, known[1].sha, base, head)


def _errors(members: list[_Member], checks: Checks) -> ErrorEvidence | None:
    """The errors that checks found on both sides of a change in its worst series; None where there are no checks."""
    changes = [
        change
        for place, member in enumerate(members, start=1)
        if (place, "base") in checks and (place, "head") in checks
        for change in _error_changes(member, checks[place, "base"], checks[place, "head"])
    ]
    told = [change for change in changes if None not in (change.base_relative, change.head_relative)]
    if not changes:
        return None
    moved = [c for c in changes if c.base_relative != c.head_relative or c.base_right != c.head_right]
    moved.sort(key=lambda c: (c.head_right is not False, -(c.ratio or 0), -(c.head_relative or 0)))
    return ErrorEvidence(len(told), moved[:SHOWN_ERRORS])


def _error_changes(member: _Member, base: _Check, head: _Check) -> list[ErrorChange]:
    """Every tensor that either side told of."""
    before, after = ({tensor["name"]: tensor for tensor in side.tensors} for side in (base, head))
    found = []
    for name in dict.fromkeys([*before, *after]):
        old, new = before.get(name, {}), after.get(name, {})
        errors = (_number(old.get("relative")), _number(new.get("relative")), old.get("right"), new.get("right"))
        tolerance = _number(new.get("tolerance", old.get("tolerance")))
        found.append(ErrorChange(member.variant, member.case, name, base.sha, head.sha, *errors, tolerance))
    return found


def _number(value: Any) -> float | None:
    """Numbers that are not finite are kept as text, because JSON has none."""
    return None if value is None else float(value)

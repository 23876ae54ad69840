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
from warpwatch.db.reads.query import fetch, fetch_one


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


class _Place(NamedTuple):
    operator_id: int
    device_id: int
    base_at: int
    head_at: int
    line_id: int | None
    trunk_id: int | None
    fork_at: int | None

    @property
    def line(self) -> dict[str, int | None]:
        """The branch of the change, as parameters of `on_line`."""
        return {"line_id": self.line_id, "trunk_id": self.trunk_id, "fork_at": self.fork_at}


class _Cell(NamedTuple):
    series_id: int
    variant_id: int
    case_id: int
    variant: str
    case: str


class _Build(NamedTuple):
    sha: str
    environment_id: int
    code_hash: str
    resources: list[Any]


class _Check(NamedTuple):
    sha: str
    tensors: list[dict[str, Any]]
    launched: dict[str, Any] | None


_PLACE = f"""
SELECT operator_id, device_id, base.ordinal AS base_at, head.ordinal AS head_at, line_id, trunk_id, fork_at
FROM regressions
JOIN commits AS base ON base.id = base_commit_id JOIN commits AS head ON head.id = head_commit_id
LEFT JOIN LATERAL {line_of("head.id")} AS line ON true
WHERE regressions.id = :id
"""

# The worst confirmed one first.
_MEMBERS = """
SELECT series.id AS series_id, series.variant_id, series.case_id, variants.name AS variant, cases.key AS case
FROM regression_series AS member
JOIN series ON series.id = member.series_id
JOIN variants ON variants.id = series.variant_id
JOIN cases ON cases.id = series.case_id
WHERE member.regression_id = :id
ORDER BY member.verdict <> 'confirmed',
         abs(ln(greatest(coalesce(member.ratio, member.suspected_ratio, 1), 1e-9))) DESC, series.id LIMIT :limit
"""


def read_evidence(session: Session, regression_id: int) -> RegressionEvidence:
    """Everything kept that may tell why a change came about; the regression must exist."""
    return RegressionEvidence(
        read_code_evidence(session, regression_id),
        read_launched_pair(session, regression_id),
        read_bench_evidence(session, regression_id),
        read_error_evidence(session, regression_id),
    )


def read_code_evidence(session: Session, regression_id: int) -> CodeEvidence | None:
    """The machine code on both sides of a change; None where it is not known on both."""
    place = _read_place(session, regression_id)

    def build(side: str, at: int, environment_id: int = 0) -> _Build | None:
        condition, order = _nearest("commits.ordinal", side)
        sql = f"""
        SELECT commits.sha, environment_id, code_hash, resources
        FROM builds JOIN commits ON commits.id = builds.commit_id JOIN environments
             ON environments.id = builds.environment_id
        WHERE operator_id = :operator_id AND status = 'ok' AND device_id = :device_id AND {condition}
        ORDER BY {order}, environment_id = :environment_id DESC, builds.id DESC LIMIT 1
        """
        of = {"operator_id": place.operator_id, "device_id": place.device_id, "environment_id": environment_id}
        return fetch_one(session, _Build, sql, at=at, **of, **place.line)

    base = build("base", place.base_at)
    head = build("head", place.head_at, base.environment_id) if base else None
    if base is None or head is None:
        return None
    changes = code_changes(kernel_codes(base.resources), kernel_codes(head.resources))
    return CodeEvidence(base.sha, head.sha, base.code_hash, head.code_hash, changes)


def read_launched_pair(session: Session, regression_id: int) -> LaunchedPair | None:
    """What the worst series launched on both sides of a change; None where it is not known on both."""
    cells, place = fetch(session, _Cell, _MEMBERS, id=regression_id, limit=1), _read_place(session, regression_id)
    checks = [_nearest_check(session, place, cells[0], side) for side in ("base", "head")] if cells else []
    known = [check for check in checks if check is not None and check.launched is not None]
    if len(known) < 2:
        return None
    base, head = (from_json(LaunchedCode, check.launched) for check in known)
    return LaunchedPair(cells[0].variant, cells[0].case, known[0].sha, known[1].sha, base, head)


def read_bench_evidence(session: Session, regression_id: int) -> BenchEvidence | None:
    """How the worst series was timed on both sides of a change; None where the change has no series."""
    cells = fetch(session, _Cell, _MEMBERS, id=regression_id, limit=1)
    if not cells:
        return None
    cell, place = cells[0], _read_place(session, regression_id)

    def timed(side: str, at: int) -> BenchSide | None:
        condition, order = _nearest("points.ordinal", side)
        sql = f"""
        SELECT commits.sha AS commit_sha, runs.job_id, median_ns, low_ns, high_ns, measured_at,
               coalesce(results.details -> 'health', '{{}}') AS health, environments.facts
        FROM points
        JOIN results ON results.id = points.result_id
        JOIN runs ON runs.id = results.run_id
        JOIN commits ON commits.id = points.commit_id
        JOIN environments ON environments.id = points.environment_id
        WHERE points.series_id = :series_id AND {condition}
        ORDER BY {order}, points.id DESC LIMIT 1
        """
        return fetch_one(session, BenchSide, sql, series_id=cell.series_id, at=at, **place.line)

    base, head = timed("base", place.base_at), timed("head", place.head_at)
    differences = []
    if base and head:
        values = {name: (base.facts.get(name), head.facts.get(name)) for name in [*base.facts, *head.facts]}
        differences = [Difference(name, old, new) for name, (old, new) in values.items() if old != new]
    return BenchEvidence(cell.variant, cell.case, base, head, differences)


def read_error_evidence(session: Session, regression_id: int, limit: int = MOST_SERIES) -> ErrorEvidence | None:
    """The errors that checks found on both sides of a change in its worst series; None where there are no checks."""
    cells = fetch(session, _Cell, _MEMBERS, id=regression_id, limit=limit)
    place = _read_place(session, regression_id)
    changes = [change for cell in cells for change in _error_changes(session, place, cell)]
    told = [change for change in changes if None not in (change.base_relative, change.head_relative)]
    if not changes:
        return None
    moved = [c for c in changes if c.base_relative != c.head_relative or c.base_right != c.head_right]
    moved.sort(key=lambda c: (c.head_right is not False, -(c.ratio or 0), -(c.head_relative or 0)))
    return ErrorEvidence(len(told), moved[:SHOWN_ERRORS])


def _read_place(session: Session, regression_id: int) -> _Place:
    place = fetch_one(session, _Place, _PLACE, id=regression_id)
    assert place is not None
    return place


def _nearest(column: str, side: str) -> tuple[str, str]:
    """Condition and order for what lies nearest to the change on one side of it, on its branch."""
    here = on_line("commits.id")
    if side == "base":
        return f"{column} <= :at AND {here}", f"{column} DESC"
    return f"{column} >= :at AND {here}", column


def _nearest_check(session: Session, place: _Place, cell: _Cell, side: str) -> _Check | None:
    condition, order = _nearest("results.ordinal", side)
    sql = f"""
    SELECT commits.sha, coalesce(details -> 'tensors', '[]') AS tensors, details -> 'launched' AS launched
    FROM results JOIN commits ON commits.id = results.commit_id
    WHERE variant_id = :variant_id AND case_id = :case_id AND device_id = :device_id AND kind = 'check'
         AND {condition}
    ORDER BY {order}, results.id DESC LIMIT 1
    """
    of = {"variant_id": cell.variant_id, "case_id": cell.case_id, "device_id": place.device_id}
    at = place.base_at if side == "base" else place.head_at
    return fetch_one(session, _Check, sql, at=at, **of, **place.line)


def _error_changes(session: Session, place: _Place, cell: _Cell) -> list[ErrorChange]:
    """Every tensor that either side told of, where both sides were checked."""

    base, head = (_nearest_check(session, place, cell, side) for side in ("base", "head"))
    if base is None or head is None:
        return []
    before, after = ({tensor["name"]: tensor for tensor in side.tensors} for side in (base, head))
    found = []
    for name in dict.fromkeys([*before, *after]):
        old, new = before.get(name, {}), after.get(name, {})
        errors = (_number(old.get("relative")), _number(new.get("relative")), old.get("right"), new.get("right"))
        tolerance = _number(new.get("tolerance", old.get("tolerance")))
        found.append(ErrorChange(cell.variant, cell.case, name, base.sha, head.sha, *errors, tolerance))
    return found


def _number(value: Any) -> float | None:
    """Numbers that are not finite are kept as text, because JSON has none."""
    return None if value is None else float(value)

"""Reads what a variant on a case took or got beside its time, over the commits of a line."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from sqlalchemy.orm import Session

from warpwatch.db.reads.history import MAX_POINTS
from warpwatch.db.reads.lines import HistoryLine, on_line
from warpwatch.db.reads.query import fetch


class Quantity(StrEnum):
    """memory: bytes that a call allocates at most at once, its results included. kept: bytes that a forward call keeps
    for its gradients. code: bytes of machine code in the operator's native library. error: the largest relative error
    of a result of a right check, over what is tolerated. differing: elements whose bits differ between two calls on the
    same inputs. rows: share of the rows whose bits depend on the rows beside them. compile: seconds that compilers and
    linker take for the operator's native library, which all its variants share. load: seconds until the operator's file
    and library are loaded in a new process. first_call: seconds of the first call of the variant there. energy: joules
    that an NVIDIA GPU takes for a call, by a profile or by a bench with a large budget. best: the time of the fastest
    other variant with a right result over the time of this variant, both at one commit in one environment: 1 is as
    fast, 1.2 is ahead by a fifth."""

    MEMORY = "memory"
    KEPT = "kept"
    CODE = "code"
    ERROR = "error"
    DIFFERING = "differing"
    ROWS = "rows"
    COMPILE = "compile"
    LOAD = "load"
    FIRST_CALL = "first_call"
    ENERGY = "energy"
    BEST = "best"


@dataclass(frozen=True, slots=True)
class QuantityRow:
    """The newest value of one commit, in the environment that it was taken in."""

    commit_sha: str
    ordinal: int
    subject: str
    author: str
    authored_at: datetime
    environment_id: int
    value: float


def counter_median(name: str) -> str:
    """SQL for the median of a counter of a row of `results`; NULL where it has none."""
    return f"CAST(results.details -> 'counters' -> '{name}' ->> 'median' AS float)"


CODE_BYTES = """(
    SELECT CASE WHEN bool_and(CAST(kernel ->> 'code_bytes' AS bigint) > 0)
                THEN CAST(sum(CAST(kernel ->> 'code_bytes' AS bigint)) AS float) END
    FROM jsonb_array_elements(builds.resources) AS kernel)"""
"""SQL for the bytes of machine code of a row of `builds`; NULL where a part of it is not known."""
PER_LIBRARY = frozenset({Quantity.COMPILE, Quantity.CODE})
"""Quantities of the native library, which all variants of an operator share."""
_KINDS = {
    Quantity.MEMORY: "= 'bench'",
    Quantity.KEPT: "= 'bench'",
    Quantity.ERROR: "= 'check'",
    Quantity.DIFFERING: "= 'check'",
    Quantity.ROWS: "= 'check'",
    Quantity.LOAD: "IN ('bench', 'check')",
    Quantity.FIRST_CALL: "IN ('bench', 'check')",
    Quantity.ENERGY: "IN ('bench', 'profile')",
}
_VALUES: dict[Quantity, str] = {
    Quantity.MEMORY: counter_median("memory"),
    Quantity.KEPT: counter_median("kept"),
    Quantity.DIFFERING: "CAST(results.details ->> 'differing' AS float)",
    Quantity.ROWS: """CAST(results.details -> 'batch' ->> 'changed' AS float)
        / nullif(CAST(results.details -> 'batch' ->> 'rows' AS float), 0)""",
    Quantity.LOAD: counter_median("load"),
    Quantity.FIRST_CALL: counter_median("first_call"),
    # Integers must be exact, so nothing is tolerated there.
    Quantity.ERROR: """(
        SELECT max(CAST(tensor ->> 'relative' AS float) / nullif(CAST(tensor ->> 'tolerance' AS float), 0))
        FROM jsonb_array_elements(results.details -> 'tensors') AS tensor)""",
    Quantity.ENERGY: counter_median("energy"),
}


def _builds(value: str) -> str:
    return f"""
    SELECT DISTINCT ON (commits.ordinal, builds.commit_id)
           commits.ordinal, builds.commit_id, builds.environment_id, {value} AS value
    FROM series JOIN builds ON builds.operator_id = series.operator_id
         JOIN environments ON environments.id = builds.environment_id AND environments.device_id = series.device_id
         JOIN commits ON commits.id = builds.commit_id
    WHERE series.id = :series_id AND builds.status = 'ok' AND {on_line("builds.commit_id")}
    ORDER BY commits.ordinal DESC, builds.commit_id DESC, builds.id DESC LIMIT :limit
    """


# The other variants are read at once and grouped: a look at each of them at every commit would be thousands.
_BEST = f"""
WITH own AS (SELECT * FROM series WHERE id = :series_id), wrong AS (
    SELECT variant_id, commit_id FROM (
        SELECT DISTINCT ON (results.variant_id, results.commit_id) results.variant_id, results.commit_id, status
        FROM own JOIN results ON results.case_id = own.case_id AND results.device_id = own.device_id
        WHERE results.kind = 'check' ORDER BY results.variant_id, results.commit_id, results.id DESC
    ) AS newest WHERE status <> 'ok'
), best AS (
    SELECT points.ordinal, points.commit_id, points.environment_id, min(points.median_ns) AS ns
    FROM own JOIN series AS other ON other.operator_id = own.operator_id AND other.device_id = own.device_id
         AND other.case_id = own.case_id AND other.metric = own.metric AND other.protocol = own.protocol
         AND other.variant_id <> own.variant_id
    JOIN points ON points.series_id = other.id
    WHERE NOT EXISTS (SELECT FROM wrong WHERE wrong.variant_id = other.variant_id
                      AND wrong.commit_id = points.commit_id)
    GROUP BY points.ordinal, points.commit_id, points.environment_id
)
SELECT DISTINCT ON (points.ordinal, points.commit_id)
       points.ordinal, points.commit_id, points.environment_id, best.ns / points.median_ns AS value
FROM points JOIN best USING (ordinal, commit_id, environment_id)
WHERE points.series_id = :series_id AND points.median_ns > 0 AND {on_line("points.commit_id")}
ORDER BY points.ordinal DESC, points.commit_id DESC, points.id DESC LIMIT :limit
"""
_SOURCES = {
    Quantity.COMPILE: _builds("builds.compile_seconds"),
    Quantity.CODE: _builds(CODE_BYTES),
    Quantity.BEST: _BEST,
}


def _results(quantity: Quantity) -> str:
    return f"""
    SELECT DISTINCT ON (results.ordinal, results.commit_id)
           results.ordinal, results.commit_id, results.environment_id, {_VALUES[quantity]} AS value
    FROM series JOIN results ON results.variant_id = series.variant_id AND results.case_id = series.case_id
         AND results.device_id = series.device_id
    WHERE series.id = :series_id AND results.kind {_KINDS[quantity]} AND results.status = 'ok'
      AND {on_line("results.commit_id")} AND {_VALUES[quantity]} IS NOT NULL
    ORDER BY results.ordinal DESC, results.commit_id DESC, results.id DESC LIMIT :limit
    """


def list_quantities(
    session: Session, series_id: int, quantity: Quantity, line: HistoryLine, limit: int = MAX_POINTS
) -> list[QuantityRow]:
    """The newest `limit` commits of a line at which the quantity of a series' variant, case and device is known, oldest
    first."""
    sql = f"""
    SELECT commits.sha AS commit_sha, newest.ordinal, subject, author, authored_at, newest.environment_id, newest.value
    FROM ({_SOURCES[quantity] if quantity in _SOURCES else _results(quantity)}) AS newest
         JOIN commits ON commits.id = newest.commit_id
    WHERE newest.value IS NOT NULL ORDER BY newest.ordinal, newest.commit_id
    """
    return fetch(session, QuantityRow, sql, series_id=series_id, limit=limit, **line.parameters)

"""Reads what a commit did beside its times: the errors of its results, which of them differ from call to call or depend
on other rows, the memory and energy of a call, the code of its libraries, and what a new process waits for."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import text
from sqlalchemy.orm import Session

from warpwatch.contract.report_facts import Trade
from warpwatch.contract.words import TradeKind
from warpwatch.db.reads.lines import ALL_COMMITS, HistoryLine, on_line, read_line_of
from warpwatch.db.reads.paired import PairedRounds, list_paired_rounds
from warpwatch.db.reads.quantities import CODE_BYTES, counter_median
from warpwatch.db.reads.query import PRIMARY_METRIC, fetch

MOST_CELLS = 500
EARLIER_CHECKS = 5
"""Checks in which a result must have been the same from call to call: some differ in one check and not in the next."""
EARLIER_WAITS = 24
"""Readings that teach how noisy a waiting time is."""
MOST_TRADES = 2000


@dataclass(frozen=True, slots=True)
class TradedCell:
    """A variant on a case that is right at a commit, and the newest results before it in the same environment.

    base, head: details of both checks, empty where there is none. moved: results of which bits differed in one of the
    checks before. change: the time over that of the point before, in one environment and by one card; None where there
    is none. base_counters, head_counters: of both benches. base_joules, head_joules: energy of a call at this commit,
    and before it in the same environment and by the same card, where both were measured.
    """

    operator: str
    variant: str
    case: str
    device_kind: str
    device_key: str
    base: dict[str, Any]
    head: dict[str, Any]
    moved: list[str]
    change: float | None
    base_counters: dict[str, Any]
    head_counters: dict[str, Any]
    base_joules: float | None
    head_joules: float | None


@dataclass(frozen=True, slots=True)
class TradedWait:
    """How long something took at a commit that is waited for once, and at those before it in the same environment, the
    newest first. variant and case are empty for compilers and linker of a library."""

    kind: str
    operator: str
    variant: str
    case: str
    device_kind: str
    device_key: str
    seconds: float
    earlier: list[float]


@dataclass(frozen=True, slots=True)
class TradedLibrary:
    """Bytes of machine code of an operator's library at a commit, and at the commit before in the same environment."""

    operator: str
    device_key: str
    base_bytes: float
    head_bytes: float


_JOULES = counter_median("energy")
_ASKED = """(CAST(:operator_id AS bigint) IS NULL OR {0}.operator_id = :operator_id)
      AND (CAST(:device_id AS bigint) IS NULL OR {0}.device_id = :device_id)"""
_OF_CELL = """results.variant_id = cell.variant_id AND results.case_id = cell.case_id
      AND results.device_id = cell.device_id"""
_AT = f"{_OF_CELL} AND results.ordinal = cell.ordinal AND results.commit_id = cell.commit_id"
_BEFORE = f"{_OF_CELL} AND results.ordinal < cell.ordinal AND {on_line('results.commit_id')}"
_CELLS = f"""
SELECT operators.name AS operator, variants.name AS variant, cases.key AS case, device.kind AS device_kind,
       device.key AS device_key, coalesce(earlier.base, '{{}}') AS base, coalesce(head.details, '{{}}') AS head,
       coalesce(earlier.moved, '[]') AS moved, timed.median_ns / nullif(previous.median_ns, 0) AS change,
       coalesce(benched_before.counters, '{{}}') AS base_counters, coalesce(benched.counters, '{{}}') AS head_counters,
       metered_before.joules AS base_joules, metered.joules AS head_joules
FROM (
    SELECT DISTINCT operator_id, variant_id, case_id, device_id, commit_id, ordinal FROM results
    WHERE commit_id = :commit_id AND kind IN ('check', 'bench') AND status = 'ok' AND {_ASKED.format("results")}
    ORDER BY operator_id, variant_id, case_id, device_id LIMIT {MOST_CELLS}
) AS cell
JOIN operators ON operators.id = cell.operator_id
JOIN variants ON variants.id = cell.variant_id
JOIN cases ON cases.id = cell.case_id
JOIN devices AS device ON device.id = cell.device_id
LEFT JOIN LATERAL (
    SELECT status, details, environment_id FROM results WHERE {_AT} AND results.kind = 'check'
    ORDER BY results.id DESC LIMIT 1
) AS head ON true
LEFT JOIN LATERAL (
    SELECT (array_agg(details ORDER BY ordinal DESC, id DESC))[1] AS base,
           jsonb_path_query_array(jsonb_agg(details), '$[*].moving[*]') AS moved
    FROM (
        SELECT id, ordinal, details FROM results
        WHERE {_BEFORE} AND results.kind = 'check' AND results.status = 'ok'
          AND results.environment_id = head.environment_id
        ORDER BY results.ordinal DESC, results.id DESC LIMIT {EARLIER_CHECKS}
    ) AS checks
) AS earlier ON true
LEFT JOIN LATERAL (
    SELECT details -> 'counters' AS counters, environment_id FROM results
    WHERE {_AT} AND results.kind = 'bench' AND results.status = 'ok' ORDER BY results.id DESC LIMIT 1
) AS benched ON true
LEFT JOIN LATERAL (
    SELECT details -> 'counters' AS counters FROM results
    WHERE {_BEFORE} AND results.kind = 'bench' AND results.status = 'ok'
      AND results.environment_id = benched.environment_id
    ORDER BY results.ordinal DESC, results.id DESC LIMIT 1
) AS benched_before ON true
LEFT JOIN LATERAL (
    SELECT points.* FROM series JOIN points ON points.series_id = series.id
    WHERE series.operator_id = cell.operator_id AND series.device_id = cell.device_id
      AND series.case_id = cell.case_id AND series.variant_id = cell.variant_id
      AND series.metric = {PRIMARY_METRIC} AND points.ordinal = cell.ordinal AND points.commit_id = cell.commit_id
    ORDER BY series.id DESC, points.id DESC LIMIT 1
) AS timed ON true
LEFT JOIN LATERAL (
    SELECT median_ns FROM points
    WHERE points.series_id = timed.series_id AND points.ordinal < timed.ordinal
      AND points.environment_id = timed.environment_id
      AND (points.card_id IS NULL OR timed.card_id IS NULL OR points.card_id = timed.card_id)
      AND {on_line("points.commit_id")}
    ORDER BY points.ordinal DESC, points.id DESC LIMIT 1
) AS previous ON true
LEFT JOIN LATERAL (
    SELECT {_JOULES} AS joules, results.environment_id, runs.card_id FROM results
    JOIN runs ON runs.id = results.run_id
    WHERE {_AT} AND results.kind IN ('bench', 'profile') AND results.status = 'ok' AND {_JOULES} IS NOT NULL
    ORDER BY results.id DESC LIMIT 1
) AS metered ON true
LEFT JOIN LATERAL (
    SELECT {_JOULES} AS joules FROM results
    JOIN runs ON runs.id = results.run_id
    WHERE metered.joules IS NOT NULL AND {_BEFORE} AND results.kind IN ('bench', 'profile') AND results.status = 'ok'
      AND results.environment_id = metered.environment_id
      AND (runs.card_id IS NULL OR metered.card_id IS NULL OR runs.card_id = metered.card_id)
      AND {_JOULES} IS NOT NULL
    ORDER BY results.ordinal DESC, results.id DESC LIMIT 1
) AS metered_before ON true
WHERE head.status IS NULL OR head.status = 'ok'
ORDER BY operators.name, variants.name, cases.key, device.key
"""
_VALUE = "CAST(results.details -> 'counters' -> {0} ->> 'median' AS float)"
_WAITS = f"""
SELECT cell.kind, operators.name AS operator, variants.name AS variant, cases.key AS case,
       device.kind AS device_kind, device.key AS device_key, cell.seconds,
       ARRAY(SELECT {_VALUE.format("cell.kind")} FROM results
             WHERE {_BEFORE} AND results.kind IN ('check', 'bench') AND results.status = 'ok'
               AND results.environment_id = cell.environment_id AND {_VALUE.format("cell.kind")} > 0
             ORDER BY results.ordinal DESC, results.id DESC LIMIT {EARLIER_WAITS}) AS earlier
FROM (
    SELECT DISTINCT ON (operator_id, variant_id, case_id, device_id, wait.kind)
           wait.kind, operator_id, variant_id, case_id, device_id, commit_id, ordinal, environment_id,
           {_VALUE.format("wait.kind")} AS seconds
    FROM results CROSS JOIN (VALUES ('{TradeKind.LOAD}'), ('{TradeKind.FIRST_CALL}')) AS wait(kind)
    WHERE commit_id = :commit_id AND results.kind IN ('check', 'bench') AND status = 'ok'
      AND {_VALUE.format("wait.kind")} > 0 AND {_ASKED.format("results")}
    ORDER BY operator_id, variant_id, case_id, device_id, wait.kind, results.id DESC LIMIT {MOST_CELLS}
) AS cell
JOIN operators ON operators.id = cell.operator_id
JOIN variants ON variants.id = cell.variant_id
JOIN cases ON cases.id = cell.case_id
JOIN devices AS device ON device.id = cell.device_id
ORDER BY operators.name, variants.name, cases.key, device.key, cell.kind
"""
_BUILT = f"""
FROM builds JOIN environments ON environments.id = builds.environment_id
JOIN commits ON commits.id = builds.commit_id
JOIN operators ON operators.id = builds.operator_id JOIN devices AS device ON device.id = environments.device_id
CROSS JOIN LATERAL (
    SELECT {{0}} AS earlier FROM (
        SELECT {{1}} AS value, before.ordinal FROM builds JOIN commits AS before ON before.id = builds.commit_id
        WHERE builds.operator_id = operators.id AND builds.environment_id = environments.id AND builds.status = 'ok'
          AND before.ordinal < commits.ordinal AND {on_line("before.id")}
    ) AS built WHERE value > 0
) AS history
WHERE builds.commit_id = :commit_id AND builds.status = 'ok' AND {{1}} > 0 AND earlier IS NOT NULL
  AND (CAST(:operator_id AS bigint) IS NULL OR builds.operator_id = :operator_id)
  AND (CAST(:device_id AS bigint) IS NULL OR environments.device_id = :device_id)
ORDER BY operators.name, device.key, builds.id
"""
_LIBRARIES = f"""
SELECT operators.name AS operator, device.key AS device_key, earlier AS base_bytes, {CODE_BYTES} AS head_bytes
{_BUILT.format("(array_agg(value ORDER BY ordinal DESC))[1]", CODE_BYTES)}
"""
_COMPILES = f"""
SELECT '{TradeKind.COMPILE}' AS kind, operators.name AS operator, '' AS variant, '' AS case,
       device.kind AS device_kind, device.key AS device_key, builds.compile_seconds AS seconds, earlier
{_BUILT.format(f"(array_agg(value ORDER BY ordinal DESC))[1:{EARLIER_WAITS}]", "builds.compile_seconds")}
"""


_PARENT = """
SELECT parent.id, parent.sha FROM commits
JOIN commits AS parent ON parent.repository_id = commits.repository_id AND parent.sha = commits.parent_sha
WHERE commits.id = :id
"""


_BASES = f"""
SELECT DISTINCT ON (operator, device_key) operators.name AS operator, device.key AS device_key, base.sha
FROM (
    SELECT DISTINCT operator_id, device_id, kind, ordinal FROM results
    WHERE commit_id = :commit_id AND kind IN ('check', 'bench') AND status = 'ok' AND {_ASKED.format("results")}
) AS own
JOIN LATERAL (
    SELECT results.commit_id, results.ordinal FROM results
    WHERE results.operator_id = own.operator_id AND results.device_id = own.device_id AND results.kind = own.kind
      AND results.ordinal < own.ordinal AND results.status = 'ok' AND {on_line("results.commit_id")}
    ORDER BY results.ordinal DESC, results.id DESC LIMIT 1
) AS earlier ON true
JOIN operators ON operators.id = own.operator_id JOIN devices AS device ON device.id = own.device_id
JOIN commits AS base ON base.id = earlier.commit_id
ORDER BY operator, device_key, earlier.ordinal
"""


@dataclass(frozen=True, slots=True)
class TradeBase:
    """The commit that results of an operator on a device are held against: the older of that of its checks and that of
    its benches."""

    operator: str
    device_key: str
    sha: str


@dataclass(frozen=True, slots=True)
class TradeFacts:
    """Everything beside its times that a commit may have changed. pairs: its newest A/B comparisons with its first
    parent; among: how many pairs of series were compared with it in all, without those of trials. bases: the commits
    that the others are held against, without its first parent."""

    cells: list[TradedCell]
    waits: list[TradedWait]
    libraries: list[TradedLibrary]
    pairs: list[PairedRounds] = field(default_factory=list)
    among: int = 1
    bases: list[TradeBase] = field(default_factory=list)


def read_trade_facts(
    session: Session, commit_id: int, operator_id: int | None = None, device_id: int | None = None
) -> TradeFacts:
    """The facts of a commit, at most MOST_CELLS of a kind: of one operator on one device, or of all."""
    line = read_line_of(session, commit_id) or ALL_COMMITS
    values: dict[str, Any] = {"commit_id": commit_id, "operator_id": operator_id, "device_id": device_id}
    values |= line.parameters
    parents = fetch(session, lambda **parent: (parent["id"], parent["sha"]), _PARENT, id=commit_id)
    parent_id, parent_sha = parents[0] if parents else (None, None)
    pairs = list_paired_rounds(session, parent_id, commit_id) if parent_id is not None else []
    return TradeFacts(
        fetch(session, TradedCell, _CELLS, **values),
        [*fetch(session, TradedWait, _WAITS, **values), *fetch(session, TradedWait, _COMPILES, **values)],
        fetch(session, TradedLibrary, _LIBRARIES, **values),
        [row for row in pairs if operator_id in (None, row.operator_id) and device_id in (None, row.device_id)],
        sum(not row.is_trial for row in pairs),
        [base for base in fetch(session, TradeBase, _BASES, **values) if base.sha != parent_sha],
    )


_COLUMNS = """
trades.kind, operators.name AS operator, coalesce(variants.name, '') AS variant, coalesce(cases.key, '') AS case,
devices.key AS device_key, trades.tensor, trades.passes, trades.since, trades.change, trades.is_faster, trades.before,
trades.after, trades.cases, trades.is_worse, trades.is_exact, trades.metric, trades.id, commits.sha AS commit_sha,
trades.accepted_by
"""
_JOINS = """
FROM trades JOIN commits ON commits.id = trades.commit_id JOIN operators ON operators.id = trades.operator_id
JOIN devices ON devices.id = trades.device_id LEFT JOIN variants ON variants.id = trades.variant_id
LEFT JOIN cases ON cases.id = trades.case_id
"""


def _trade(kind: str, **columns: Any) -> Trade:
    return Trade(TradeKind(kind), **columns)


def list_trades(session: Session, commit_ids: Collection[int]) -> list[Trade]:
    """What was found of these commits."""
    sql = f"SELECT {_COLUMNS} {_JOINS} WHERE trades.commit_id = ANY(:ids) ORDER BY trades.id"
    return fetch(session, _trade, sql, ids=list(commit_ids))


def list_trades_at(session: Session, repository_id: int, shas: Collection[str]) -> list[Trade]:
    """What was found of the commits with these ids of git."""
    sql = f"""
    SELECT {_COLUMNS} {_JOINS} WHERE commits.repository_id = :repository_id AND commits.sha = ANY(:shas)
    ORDER BY trades.id
    """
    return fetch(session, _trade, sql, repository_id=repository_id, shas=list(shas))


def list_trades_of_line(session: Session, repository_id: int, line: HistoryLine) -> list[Trade]:
    """What was found of the newest commits of a line, at most MOST_TRADES, in order of history."""
    sql = f"""
    SELECT {_COLUMNS} {_JOINS} JOIN (
        SELECT trades.id FROM trades JOIN commits ON commits.id = trades.commit_id
        WHERE commits.repository_id = :repository_id AND {on_line("commits.id")}
        ORDER BY commits.ordinal DESC, trades.id DESC LIMIT {MOST_TRADES}
    ) AS newest ON newest.id = trades.id
    ORDER BY commits.ordinal, trades.id
    """
    return fetch(session, _trade, sql, repository_id=repository_id, **line.parameters)


def _distance(trade: str) -> str:
    """SQL: how far the values of a trade are apart, by their logarithms; of moved work, how far the step moved."""
    return f"""
    CASE WHEN {trade}.kind = 'moved' THEN abs(ln(coalesce(nullif({trade}.change, 0), 1)))
         WHEN {trade}.before IS NULL OR {trade}.after IS NULL THEN 0
         ELSE abs(ln(greatest({trade}.after, 1e-300)) - ln(greatest({trade}.before, 1e-300))) END
    """


def _open_costs(*line: str) -> str:
    """SQL that joins `cost`: the open costs of `wanted.id` on a line that are no suspicion. Nothing after a cost on its
    line gave it back: what is left of it is more than counts as a cost."""
    return f"""
    JOIN operators ON operators.repository_id = wanted.id AND (CAST(:operator AS text) IS NULL
         OR operators.name = :operator)
    JOIN trades AS cost ON cost.operator_id = operators.id AND cost.is_worse AND cost.is_exact
         AND cost.accepted_by IS NULL AND cost.kind <> '{TradeKind.ENERGY}'
    JOIN commits ON commits.id = cost.commit_id AND {on_line("cost.commit_id", *line)}
    WHERE NOT EXISTS (
        SELECT FROM trades AS gain JOIN commits AS later ON later.id = gain.commit_id
        WHERE gain.operator_id = cost.operator_id AND gain.device_id = cost.device_id AND gain.kind = cost.kind
          AND gain.variant_id IS NOT DISTINCT FROM cost.variant_id AND NOT gain.is_worse
          AND (later.ordinal, gain.id) > (commits.ordinal, cost.id) AND {on_line("gain.commit_id", *line)}
          AND (gain.kind IN ('{TradeKind.DETERMINISM}', '{TradeKind.BATCH}')
               OR {_distance("cost")} - {_distance("gain")}
                  <= CASE gain.kind WHEN '{TradeKind.ACCURACY}' THEN :least_error ELSE :least END))
    """


_WATCHED_COSTS = f"""
SELECT wanted.id, count(*) AS costs FROM unnest(CAST(:ids AS bigint[])) AS wanted(id)
LEFT JOIN branches AS watched ON watched.repository_id = wanted.id AND watched.is_watched
{_open_costs("watched.id", "CAST(NULL AS bigint)", "CAST(NULL AS bigint)")} GROUP BY wanted.id
"""
_LINE_COSTS = f"SELECT count(*) FROM (SELECT CAST(:repository_id AS bigint) AS id) AS wanted {_open_costs()}"


def count_watched_costs(session: Session, ids: Collection[int], least: Mapping[str, float]) -> dict[int, int]:
    """How many costs are open on the watched branch of each repository, without suspicions. least: see
    server.verdicts.trades."""
    values = {"ids": list(ids), "operator": None, **least}
    return {row.id: row.costs for row in session.execute(text(_WATCHED_COSTS), values)}


def count_costs(
    session: Session, repository_id: int, line: HistoryLine, least: Mapping[str, float], operator: str | None = None
) -> int:
    """How many costs are open on a line, without suspicions; of one operator, where it is named."""
    values = {"repository_id": repository_id, "operator": operator, **least, **line.parameters}
    return int(session.scalar(text(_LINE_COSTS), values) or 0)


_NEXT = f"""
SELECT DISTINCT next.commit_id FROM unnest(ARRAY['check', 'bench', 'profile']) AS kind CROSS JOIN LATERAL (
    SELECT results.commit_id FROM results JOIN runs ON runs.id = results.run_id JOIN jobs ON jobs.id = runs.job_id
    WHERE results.operator_id = :operator_id AND results.device_id = :device_id AND results.kind = kind.kind
      AND results.ordinal > (SELECT ordinal FROM commits WHERE id = :commit_id) AND {on_line("results.commit_id")}
      AND jobs.judged_at IS NOT NULL
    ORDER BY results.ordinal, results.id LIMIT 1
) AS next
"""


def list_next_commits(session: Session, commit_id: int, operator_id: int, device_id: int) -> list[int]:
    """The commits after one on its line whose results of an operator on a device are held against its results, and were
    judged before."""
    line = read_line_of(session, commit_id) or ALL_COMMITS
    values = {"commit_id": commit_id, "operator_id": operator_id, "device_id": device_id, **line.parameters}
    return fetch(session, lambda commit_id: commit_id, _NEXT, **values)

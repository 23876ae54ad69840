"""The database as the public sees it: each connection has temporary views in front of all tables.

PostgreSQL looks for a name among the temporary relations of a connection first, so every query of the server reads the
views, and a query that forgets who asks still returns nothing private. The connections cannot write.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import psycopg
from psycopg import sql
from psycopg.rows import tuple_row
from sqlalchemy import event

from warpwatch.db.database import Database

_OF_REPOSITORY = "repository_id IN (SELECT id FROM repositories)"
_OF_OPERATOR = "operator_id IN (SELECT id FROM operators)"
_ALL = "true"
ROWS = {
    "repositories": "{chosen} AND deleted_at IS NULL",
    "branches": _OF_REPOSITORY,
    "operators": _OF_REPOSITORY,
    # Uncommitted work that somebody sent is nobody else's.
    "commits": f"{_OF_REPOSITORY} AND patch_id IS NULL",
    "submissions": _OF_REPOSITORY,
    # What waits or runs says what people work on now.
    "jobs": f"{_OF_OPERATOR} AND state NOT IN ('queued', 'running')",
    **dict.fromkeys(("variants", "cases", "series", "trends", "regressions", "trades", "builds"), _OF_OPERATOR),
    "environment_changes": _OF_OPERATOR,
    **dict.fromkeys(("results", "all_results", "card_offsets"), _OF_OPERATOR),
    # Rows of these are reached through rows of the others alone.
    **dict.fromkeys(("points", "all_points", "comparisons", "all_comparisons", "samples", "branch_commits"), _ALL),
    **dict.fromkeys(("regression_series", "trials", "environment_steps", "job_sources", "runs"), _ALL),
    **dict.fromkeys(("traces", "trace_kernels", "trace_chunks", "cards"), _ALL),
    # Judgements are of uncommitted work, and nobody but a worker reads what a sealed job has to measure.
    **dict.fromkeys(("judgements", "sealed_jobs"), "false"),
    "devices": "id IN (SELECT device_id FROM series)",
    "environments": "device_id IN (SELECT id FROM devices)",
}
"""Which rows of a table are public, in the order in which the views are made. Other tables have none."""
_NO_ADDRESS = r"regexp_replace({column}, '\S*@\S*', '', 'g')"
_VERDICTS_ONLY = "CASE WHEN status IN ('wrong', 'unsupported', 'skipped') THEN message ELSE '' END"
COLUMNS = {
    ("repositories", "url"): "''",
    **{("repositories", name): "NULL" for name in ("definitions_url", "definitions_ref", "definitions_sha")},
    **{("repositories", name): "NULL" for name in ("webhook_secret", "status_url", "status_token", "branches_key")},
    ("commits", "author"): _NO_ADDRESS,
    ("commits", "subject"): _NO_ADDRESS,
    ("submissions", "request"): "'{{}}'",
    ("submissions", "idempotency_key"): "NULL",
    ("jobs", "message"): "''",
    ("jobs", "progress"): "NULL",
    ("jobs", "trace_parent"): "NULL",
    ("builds", "log"): "''",
    ("runs", "message"): "''",
    ("runs", "worker_id"): "NULL",
    ("runs", "card_facts"): "NULL",
    ("runs", "struck_out_reason"): "NULL",
    # Messages of crashes and failed builds quote what kernel code and compilers printed.
    ("results", "message"): _VERDICTS_ONLY,
    ("all_results", "message"): _VERDICTS_ONLY,
    ("comparisons", "message"): "''",
    ("all_comparisons", "message"): "''",
    ("regressions", "assignee"): "NULL",
    ("regressions", "link"): "NULL",
    ("regressions", "due_on"): "NULL",
    ("trades", "accepted_by"): "NULL",
    ("environments", "facts"): "facts - 'variables' - 'image'",
    # A card is known by its serial number, or by the name of its host.
    ("cards", "key"): "'card ' || id",
    ("cards", "facts"): "'{{}}'",
    ("traces", "report"): "NULL",
}
"""What the public sees instead of a column's value."""
WITH_ADDRESSES = ("author", "subject")
"""Columns of commits that may hold e-mail addresses."""
_RELATIONS = """
SELECT relname, array_agg(attname ORDER BY attnum), array_agg(format_type(atttypid, atttypmod) ORDER BY attnum)
FROM pg_class JOIN pg_attribute ON attrelid = pg_class.oid
WHERE relnamespace = current_schema()::regnamespace AND relkind IN ('r', 'p', 'v') AND attnum > 0 AND NOT attisdropped
  AND relname <> 'alembic_version'
GROUP BY relname
"""


def open_published(
    url: str, repositories: Sequence[str] | None = None, *, pool_size: int = 5, with_addresses: bool = False
) -> Database:
    """The database at `url` as the public sees it. repositories: names of those to show, instead of those marked
    public. with_addresses: names and subjects of commits keep the e-mail addresses in them."""
    database = Database(url, pool_size=pool_size)

    def hide(connection: psycopg.Connection[Any], _record: object) -> None:
        with connection.cursor(row_factory=tuple_row) as cursor:
            schema = cursor.execute("SELECT current_schema()").fetchall()[0][0]
            columns = {name: list(zip(*rest, strict=True)) for name, *rest in cursor.execute(_RELATIONS).fetchall()}
            order = [*(name for name in ROWS if name in columns), *(columns.keys() - ROWS.keys())]
            for name in order:
                cursor.execute(_view(schema, name, columns[name], repositories, with_addresses))
            cursor.execute("SET default_transaction_read_only = on")
        connection.commit()

    event.listen(database.engine, "connect", hide)
    return database


def _view(
    schema: str,
    name: str,
    columns: list[tuple[str, str]],
    repositories: Sequence[str] | None,
    with_addresses: bool,
) -> sql.Composed:
    chosen = sql.SQL("is_public") if repositories is None else sql.SQL("name = ANY({})").format(list(repositories))
    values = [
        sql.Identifier(column)
        if (masked := COLUMNS.get((name, column))) is None or (with_addresses and column in WITH_ADDRESSES)
        else sql.SQL("CAST({} AS {}) AS {}").format(
            sql.SQL(masked).format(column=sql.Identifier(column)), sql.SQL(kind), sql.Identifier(column)
        )
        for column, kind in columns
    ]
    return sql.SQL("CREATE TEMPORARY VIEW {name} AS SELECT {values} FROM {schema}.{name} WHERE {rows}").format(
        name=sql.Identifier(name),
        schema=sql.Identifier(schema),
        values=sql.SQL(", ").join(values),
        rows=sql.SQL(ROWS.get(name, "false")).format(chosen=chosen),
    )

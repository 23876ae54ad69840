"""Inserts many rows at once with COPY: twice as fast as INSERT, on both sides of the connection."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import psycopg
from psycopg import sql
from psycopg.types.json import Jsonb
from sqlalchemy import text
from sqlalchemy.orm import Session

from warpwatch.db.database import dumps
from warpwatch.db.errors import OutcomeError
from warpwatch.db.models import Base


def reserve_ids(s: Session, counts: dict[type[Base], int]) -> list[list[int]]:
    """Ids for rows that `copy_rows` will insert, of each table in turn: COPY returns none."""
    # The arrays are parallel: a row per table. The inner query depends on it, so it is asked once for each.
    statement = text("""
        SELECT ARRAY(SELECT nextval(pg_get_serial_sequence(name, 'id')) FROM generate_series(1, count))
        FROM unnest(CAST(:names AS text[]), CAST(:counts AS bigint[])) AS wanted (name, count)
    """)
    names = [table.__tablename__ for table in counts]
    return list(s.scalars(statement, {"names": names, "counts": list(counts.values())}))


def copy_rows(s: Session, table: type[Base], rows: Sequence[dict[str, Any]]) -> None:
    """Inserts rows that all have the same columns, within the transaction of `s`; OutcomeError for a value that
    PostgreSQL cannot hold."""
    if not rows:
        return
    names = list(rows[0])
    statement = sql.SQL("COPY {} ({}) FROM STDIN").format(
        sql.Identifier(table.__tablename__), sql.SQL(", ").join(map(sql.Identifier, names))
    )
    connection: Any = s.connection().connection.driver_connection
    try:
        with connection.cursor() as cursor, cursor.copy(statement) as copy:
            for row in rows:
                copy.write_row([_plain(row[name]) for name in names])
    except (psycopg.DataError, psycopg.IntegrityError, UnicodeError) as error:
        raise OutcomeError(f"a result cannot be stored: {str(error).strip().splitlines()[0]}") from error


def _plain(value: Any) -> Any:
    return Jsonb(value, dumps) if isinstance(value, dict) else value

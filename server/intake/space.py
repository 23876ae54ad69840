"""Disk budgets: whether there is room for more results, so that work stops before a disk is full."""

from __future__ import annotations

from dataclasses import dataclass

from warpwatch.db.database import Database
from warpwatch.db.reads.metrics import read_database_bytes
from warpwatch.db.reads.query import Session
from warpwatch.server.http.problems import Problem
from warpwatch.settings import Settings, free_bytes


@dataclass(frozen=True, slots=True)
class SpaceShortage:
    """A disk budget that is spent; both texts are for people."""

    message: str
    remedy: str


def find_shortages(session: Session, settings: Settings) -> list[SpaceShortage]:
    """Which budgets of this server and of the database are spent."""
    shortages = []
    free = free_bytes(settings.home)
    if free < settings.disk_reserve_bytes:
        shortages.append(
            SpaceShortage(
                f"{free / 2**30:.1f} GiB are free in {settings.home}, less than the "
                f"{settings.disk_reserve_bytes / 2**30:g} GiB that stay free; no work is accepted",
                "free space there, keep data for a shorter time with `warpwatch retention`, or lower "
                "WARPWATCH_DISK_RESERVE_GB",
            )
        )
    if settings.database_bytes is not None and (size := read_database_bytes(session)) > settings.database_bytes:
        shortages.append(
            SpaceShortage(
                f"the database takes {size / 2**30:.1f} GiB, more than its budget of "
                f"{settings.database_bytes / 2**30:g} GiB; no work is accepted",
                "keep data for a shorter time with `warpwatch retention`, run VACUUM FULL in PostgreSQL, or raise "
                "WARPWATCH_DATABASE_GB",
            )
        )
    return shortages


def require_space(database: Database, settings: Settings) -> None:
    """Problem where a budget is spent."""
    with database.session() as session:
        shortages = find_shortages(session, settings)
    if shortages:
        detail = "; ".join(f"{shortage.message}: {shortage.remedy}" for shortage in shortages)
        raise Problem(507, detail)

"""Everything that can go wrong between us and the database; the docstring of each class is its message."""

from __future__ import annotations


class EngineError(Exception):
    """Something went wrong in the database."""

    def __init__(self, message: str | None = None) -> None:
        super().__init__(message or self.__doc__)


class DatabaseDownError(EngineError):
    """PostgreSQL cannot be reached; start it, or set WARPWATCH_DATABASE_URL to one that runs."""


class DatabaseBusyError(DatabaseDownError):
    """PostgreSQL did not answer in time: another transaction holds a lock, or the statement is slow; try again."""


class DatabaseFullError(EngineError):
    """The disk that PostgreSQL writes to is full; free some space there, nothing was half-written."""


class SchemaOutdatedError(EngineError):
    """The database does not have the tables that this version needs; run `warpwatch migrate`."""


class SchemaTooOldError(EngineError):
    """The database is of a version before 0.1; install Warpwatch 0.1, run its `warpwatch migrate`, then this version's.

    Nothing was changed.
    """


class SchemaTooNewError(EngineError):
    """The database was migrated by a newer version of Warpwatch; upgrade this one."""


class EmbeddedServerError(EngineError):
    """The embedded PostgreSQL cannot be started."""


class BackupError(EngineError):
    """A backup cannot be made or restored."""


class StaleRunError(EngineError):
    """The job no longer belongs to this run: its lease ran out, or it was cancelled or given to another worker.

    Nothing was written.
    """


class NotFoundError(EngineError):
    """There is no such thing in the database."""


class StateError(EngineError):
    """The request is not possible in the present state."""


class OutcomeError(EngineError):
    """The outcome of a run cannot be recorded: it contradicts itself or the job. Nothing was written."""


class UnusableValueError(ValueError):
    """A number is too large, or a text holds what PostgreSQL cannot: whoever gave it must give another.

    Nothing was written.
    """

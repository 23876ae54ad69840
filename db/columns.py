"""Column types that models and read queries share."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Dialect, TypeDecorator
from sqlalchemy.dialects.postgresql import JSONB

from warpwatch.contract.spec import JobSpec


class StoredSpec(TypeDecorator[JobSpec]):
    """A JSONB column that reads and writes JobSpec."""

    impl = JSONB
    cache_ok = True

    # SQLAlchemy defines the parameters of both methods, so `dialect` stays although it is not used.
    def process_bind_param(self, value: JobSpec | None, dialect: Dialect) -> dict[str, Any] | None:  # noqa: ARG002
        return None if value is None else value.to_stored()

    def process_result_value(self, value: dict[str, Any] | None, dialect: Dialect) -> JobSpec | None:  # noqa: ARG002
        return None if value is None else JobSpec.from_stored(value)

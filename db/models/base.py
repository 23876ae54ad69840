"""What all tables have in common: types, names of constraints, the moment a row was made."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import Any, ClassVar

from sqlalchemy import BigInteger, CheckConstraint, DateTime, Dialect, LargeBinary, MetaData, Text, TypeDecorator, func
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from warpwatch.contract.spec import JobSpec


def one_of(column: str, values: type[StrEnum]) -> CheckConstraint:
    """A constraint that the column holds one of the values."""
    listed = ", ".join(f"'{value}'" for value in values)
    return CheckConstraint(f"{column} IN ({listed})", name=f"{column}_known")


class StoredSpec(TypeDecorator[JobSpec]):
    """A JSONB column that reads and writes JobSpec."""

    impl = JSONB
    cache_ok = True

    # SQLAlchemy passes `dialect` to both methods by position and by name.
    def process_bind_param(self, value: JobSpec | None, dialect: Dialect) -> dict[str, Any] | None:  # noqa: ARG002
        return None if value is None else value.to_stored()

    def process_result_value(self, value: dict[str, Any] | None, dialect: Dialect) -> JobSpec | None:  # noqa: ARG002
        return None if value is None else JobSpec.from_stored(value)


class Base(DeclarativeBase):
    metadata = MetaData(
        naming_convention={
            "ix": "ix_%(table_name)s_%(column_0_N_name)s",
            "uq": "uq_%(table_name)s_%(column_0_N_name)s",
            "ck": "ck_%(table_name)s_%(constraint_name)s",
            "fk": "fk_%(table_name)s_%(column_0_N_name)s",
            "pk": "pk_%(table_name)s",
        }
    )
    type_annotation_map: ClassVar = {
        str: Text(),
        int: BigInteger(),
        bytes: LargeBinary(),
        datetime: DateTime(timezone=True),
        JobSpec: StoredSpec(),
        dict[str, Any]: JSONB(),
        list[Any]: JSONB(),
    }


def created() -> Mapped[datetime]:
    """A column that says when its row was made."""
    return mapped_column(server_default=func.now())

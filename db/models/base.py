"""Common parts of all tables: types, names of constraints, the time at which a row was made."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import Any, ClassVar

from sqlalchemy import BigInteger, CheckConstraint, DateTime, LargeBinary, MetaData, Text, func
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from warpwatch.contract.spec import JobSpec
from warpwatch.db.columns import StoredSpec


def one_of(column: str, values: type[StrEnum]) -> CheckConstraint:
    """A constraint that the column holds one of the values."""
    listed = ", ".join(f"'{value}'" for value in values)
    return CheckConstraint(f"{column} IN ({listed})", name=f"{column}_known")


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
